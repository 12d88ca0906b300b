# SPDX-License-Identifier: Apache-2.0
"""examples/python/prefill_decode.py: one process computes a prompt, another goes on, and neither serves a wrong byte.

The decoder is in this process and the prefiller is a real one, stopped and killed by its id. Nothing waits for a time:
loops end when something has happened, and DEADLINE_S is only reached when something is wrong.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "python"
PROGRAM = str(EXAMPLES / "prefill_decode.py")
sys.path.insert(0, str(EXAMPLES))

import peer_links  # noqa: E402
import prefill_decode  # noqa: E402
from toy_engine import PAGE, VOCAB, Engine  # noqa: E402

STEP = 64
OPTIONS = ["--step-tokens", str(STEP), "--prompt-tokens", "300", "--new-tokens", "6"]
PROMPT = np.random.default_rng(1).integers(0, VOCAB, 300).tolist()
PAGES = -(-len(PROMPT) // PAGE)


def make_engine(pages=3 * PAGES + 4):
    return Engine(pages, STEP, 7)


def without_cache(prompt, token_count):
    """The same model, with K and V in plain arrays."""
    model, text, rows = make_engine().model, list(prompt), []
    memory = {}
    for position in itertools.count():

        def remember(layer, k, v):
            keys, values = memory.setdefault(layer, ([], []))
            keys.append(k)
            values.append(v)
            return np.array(keys), np.array(values)

        logits = model.logits(text[position], position, remember)
        if position + 1 == len(text):
            text.append(int(logits.argmax()))
            rows.append(logits)
        if len(rows) == token_count:
            return text[len(prompt) :], np.array(rows)


@pytest.fixture(scope="module", name="expected")
def expected_fixture():
    return without_cache(PROMPT, 6)


class Pair:
    """A decoder here, and a prefiller in a process of its own."""

    def __init__(self, transport, engine=None, options=OPTIONS, connection_type=None):
        parsed = prefill_decode.parse(["--transport", transport, *options])
        self.process, connection = prefill_decode.start_prefiller(parsed)
        self.connection = connection_type(connection) if connection_type else connection
        self.engine = engine or make_engine()
        link, peer, _ = peer_links.connect(self.connection, self.engine.pool, self.engine.stores(), transport)
        assert link.name == transport
        self.ticks = itertools.count()  # a clock that goes on when it is looked at
        self.decoder = prefill_decode.Decoder(self.engine, link, peer, clock=lambda: next(self.ticks))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.decoder.link.close()
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def poll_until(self, is_so):
        end = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < end
            self.decoder.poll(0.01)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def receive(self):
        """Without a fault and without a deadline."""
        receive = self.decoder.ask_for(PROMPT)
        self.poll_until(lambda: receive.is_complete or receive.error)
        return receive

    def check_decodes(self, sequence, expected):
        tokens, logits = self.decoder.decode(sequence, len(expected[0]))
        assert tokens == expected[0]
        assert prefill_decode.same_bits(logits, expected[1])

    def check_nothing_is_left(self, sequence):
        self.engine.cache.end(sequence)
        stats = self.engine.cache.stats()
        assert (stats.sequence_count, stats.open_pages, stats.fenced_pages) == (0, 0, 0)
        self.engine.cache.check_invariants()


# ── scenarios, by transport ──────────────────────────────────────────────────────────────────────────────────────────


def logits_are_equal(transport, expected):
    with Pair(transport) as pair:
        receive = pair.receive()
        sequence, outcome = pair.decoder.settle(receive)
        assert outcome == "received"
        assert pair.engine.cache.stats().received_tokens == len(PROMPT)
        assert receive.read_count == -(-len(PROMPT) // STEP)
        assert receive.read_bytes == len(PROMPT) * prefill_decode.TOKEN_BYTES
        pair.check_decodes(sequence, expected)
        # All but the last token ran again there, and nothing else was computed here.
        assert pair.engine.cache.stats().computed_tokens == len(expected[0])
        pair.check_nothing_is_left(sequence)

        # What one has received is found by the next one, and the rest is asked for.
        again = pair.receive()
        assert again.token_count == len(PROMPT) % PAGE
        sequence, outcome = pair.decoder.settle(again)
        assert outcome == "received"
        pair.check_decodes(sequence, expected)
        pair.check_nothing_is_left(sequence)

        # What the prefiller has cached goes over with its first step.
        pair.engine.cache.reset()
        whole = pair.receive()
        assert (whole.token_count, whole.read_count) == (len(PROMPT), 1)
        sequence, outcome = pair.decoder.settle(whole)
        assert outcome == "received"
        pair.check_decodes(sequence, expected)
        pair.check_nothing_is_left(sequence)


def a_flipped_bit_is_not_served(transport, expected):
    with Pair(transport) as pair:
        prefill_decode.break_second_read("flip", pair.process, pair.decoder)
        receive = pair.decoder.ask_for(PROMPT)
        pair.poll_until(lambda: receive.error)
        assert re.fullmatch(r"step 1: wrong bytes in 1 of \d+ parts", receive.error)
        pair.poll_until(lambda: receive.is_quiet)
        sequence, outcome = pair.decoder.settle(receive)
        assert outcome == receive.error and not pair.decoder.quarantine
        assert pair.engine.cache.view(sequence).pending_tokens == len(PROMPT)
        pair.check_decodes(sequence, expected)
        assert pair.engine.cache.stats().received_tokens == 0
        pair.check_nothing_is_left(sequence)


def stop_in_the_middle(pair):
    """The second step is asked for, and whoever is to answer does not run any more."""
    prefill_decode.break_second_read("stop", pair.process, pair.decoder)
    receive = pair.decoder.ask_for(PROMPT)
    pair.poll_until(lambda: len(receive.reads) + receive.read_count >= 2)
    return receive


def a_late_peer_writes_into_quarantine_only(transport, expected):
    with Pair(transport) as pair:
        receive = stop_in_the_middle(pair)
        pair.decoder.wait_for(receive, next(pair.ticks) + 20)
        assert not receive.is_complete and not receive.is_quiet and not receive.error
        late_pages = set(pair.engine.cache.view(receive.sequence).pages)
        sequence, outcome = pair.decoder.settle(receive)
        assert outcome == "late" and pair.decoder.quarantine == [receive]

        pair.check_decodes(sequence, expected)
        # More work than the pool has room for beside the quarantine, so that every page that is free is handed out.
        for seed in range(3):
            other = np.random.default_rng(seed).integers(0, VOCAB, len(PROMPT)).tolist()
            filler = pair.engine.start(other)
            pair.engine.generate(filler, 1)
            assert late_pages.isdisjoint(pair.engine.cache.view(filler).pages)
            pair.engine.cache.end(filler)
        assert late_pages.isdisjoint(pair.engine.cache.view(sequence).pages)
        assert not receive.is_quiet and pair.decoder.quarantine == [receive]

        pages = pair.engine.pool.reshape(len(pair.engine.keys), -1)
        others = [page for page in range(len(pages)) if page not in late_pages]
        before, late_before = pages[others].copy(), pages[sorted(late_pages)].copy()
        free = pair.engine.cache.stats().free_pages
        pair.go_on()
        pair.poll_until(lambda: not pair.decoder.quarantine)
        np.testing.assert_array_equal(pages[others], before)
        assert not np.array_equal(pages[sorted(late_pages)], late_before)  # so it did land
        assert pair.engine.cache.stats().free_pages == free + len(late_pages)
        assert pair.engine.cache.stats().received_tokens == 0
        pair.check_nothing_is_left(sequence)

        sequence, outcome = pair.decoder.settle(pair.receive())  # the link is as good as before
        pair.check_decodes(sequence, expected)


def closing_the_link_ends_the_quarantine(transport, expected):
    with Pair(transport) as pair:
        receive = stop_in_the_middle(pair)
        sequence, _ = pair.decoder.settle(receive)
        pair.decoder.link.close()
        assert receive.is_quiet
        before = pair.engine.pool.copy()
        pair.go_on()
        pair.process.wait(DEADLINE_S)  # its socket has ended
        np.testing.assert_array_equal(pair.engine.pool, before)
        pair.decoder.quarantine.remove(receive)
        pair.engine.cache.abort_receive(receive.sequence)
        pair.engine.cache.end(receive.sequence)
        tokens, logits = pair.engine.generate(sequence, len(expected[0]))
        assert tokens == expected[0] and prefill_decode.same_bits(logits, expected[1])
        pair.check_nothing_is_left(sequence)


def a_killed_peer_is_noticed_without_a_deadline(transport, expected):
    for is_stopped in (False, True):
        with Pair(transport) as pair:
            receive = stop_in_the_middle(pair)
            if not is_stopped:
                pair.go_on()
            pair.process.kill()
            pair.poll_until(lambda: receive.error and receive.is_quiet)
            sequence, outcome = pair.decoder.settle(receive)
            assert "gone" in outcome and not pair.decoder.quarantine and not pair.decoder.link.is_open
            pair.check_decodes(sequence, expected)
            pair.check_nothing_is_left(sequence)
            # Whoever asks afterwards hears at once that nobody is there.
            receive = pair.decoder.ask_for(PROMPT[:50][::-1])
            pair.decoder.poll()
            assert receive.error and receive.is_quiet


SCENARIOS = [
    logits_are_equal,
    a_flipped_bit_is_not_served,
    a_late_peer_writes_into_quarantine_only,
    closing_the_link_ends_the_quarantine,
    a_killed_peer_is_noticed_without_a_deadline,
]
NEED_A_LATE_PEER = [a_late_peer_writes_into_quarantine_only, closing_the_link_ends_the_quarantine]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_over_a_socket(scenario, expected):
    scenario("socket", expected)


# NIXL has threads of its own and ends the process when it is not pleased: each scenario is a process. Shared memory
# lets bytes arrive from a peer that is stopped, so those that stop one and go on are by TCP alone.
@pytest.mark.needs_nixl
@pytest.mark.parametrize(
    ("scenario", "ways"),
    [(scenario, "tcp") for scenario in SCENARIOS]
    + [(scenario, "all") for scenario in SCENARIOS if scenario not in NEED_A_LATE_PEER],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_over_nixl(scenario, ways):
    code = f"import test_prefill_decode as t; t.{scenario.__name__}('nixl', t.without_cache(t.PROMPT, 6))"
    folder = pathlib.Path(__file__).parent
    environment = {**os.environ, **({"UCX_TLS": "tcp"} if ways == "tcp" else {})}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, timeout=5 * DEADLINE_S)
    assert done.returncode == 0, done.stderr


# ── what the other side may say ──────────────────────────────────────────────────────────────────────────────────────


class Said:
    """A link whose other side says what the test has it say, and has nothing to be read."""

    name, is_open = "said", True

    def __init__(self):
        self.says, self.heard, self.reads = [], [], []

    def send(self, message):
        self.heard.append(message)

    def read(self, pieces, note):
        self.reads.append(pieces)
        return peer_links.Read()

    def poll(self, timeout_s=0.0):
        says, self.says = self.says, []
        return says


def step_for(receive, **fields):
    slot = min(receive.unread_slots)
    step = {"what": "step", "sequence": receive.number, "step": 0, "parts": [[0, slot, 2]], "checksums": ["0"]}
    return {**step, **fields}


@pytest.fixture(name="asked")
def asked_fixture():
    engine, link = make_engine(), Said()
    decoder = prefill_decode.Decoder(engine, link, {"pool_bytes": len(engine.pool)})
    return decoder, link, decoder.ask_for(PROMPT[:40])


def test_the_decoder_asks_with_its_slots(asked):
    _, link, receive = asked
    (message,) = link.heard
    slots = {slot for first, count in message["slots"] for slot in range(first, first + count)}
    assert (message["what"], message["begin"], message["tokens"]) == ("compute", 0, PROMPT[:40])
    assert slots == receive.unread_slots and len(slots) == 40


def test_a_step_as_it_should_be_is_read(asked):
    decoder, link, receive = asked
    link.says = [step_for(receive)]
    decoder.poll()
    assert not receive.error and len(link.reads) == 1 and len(receive.unread_slots) == 38


@pytest.mark.parametrize(
    "change",
    [
        lambda slot: {"parts": [[0, slot + 1000, 2]]},  # not asked for
        lambda slot: {"parts": [[0, slot, 2], [0, slot + 1, 2]], "checksums": ["0", "0"]},  # one slot twice
        lambda slot: {"parts": [[10**9, slot, 2]]},  # beyond the other pool
        lambda slot: {"parts": [[-1, slot, 2]]},
        lambda slot: {"parts": [[15, slot, 2]]},  # across two pages
        lambda slot: {"parts": [[0, slot, -2]]},
        lambda slot: {"checksums": []},
        lambda slot: {"parts": [], "checksums": []},
    ],
)
def test_a_step_that_names_other_slots_is_never_read(asked, change):
    decoder, link, receive = asked
    link.says = [step_for(receive, **change(min(receive.unread_slots)))]
    decoder.poll()
    assert "slots that were not asked for" in receive.error and not link.reads
    sequence, _ = decoder.settle(receive)
    assert decoder.engine.cache.view(sequence).pending_tokens == 40


def test_the_same_step_twice_is_read_once(asked):
    decoder, link, receive = asked
    link.says = [step_for(receive), step_for(receive), step_for(receive, parts=[[0, max(receive.unread_slots), 1]])]
    decoder.poll()
    assert len(link.reads) == 1 and receive.error  # nor is anything read behind it
    assert not receive.is_quiet  # the first one may still land


def test_what_comes_after_the_deadline_is_not_read(asked):
    decoder, link, receive = asked
    link.says = [step_for(receive)]
    decoder.poll()
    sequence, outcome = decoder.settle(receive)
    assert outcome == "late" and link.heard[-1] == {"what": "stop", "sequence": receive.number}
    slot = min(receive.unread_slots)
    link.says = [step_for(receive, parts=[[0, slot, 2]])]
    decoder.poll()
    assert len(link.reads) == 1 and decoder.quarantine == [receive]


def test_the_prefiller_stops_when_it_is_told_and_keeps_pages_until_the_end():
    engine, link = make_engine(), Said()
    prefiller = prefill_decode.Prefiller(engine, link)
    prefiller.handle({"what": "compute", "sequence": 3, "tokens": PROMPT, "begin": 0, "slots": [[16, len(PROMPT)]]})
    prefiller.run_step(3)
    prefiller.run_step(3)
    (first, second) = link.heard
    assert (first["step"], second["step"]) == (0, 1)
    assert sum(count for _, _, count in first["parts"]) == STEP
    says = [[], [{"what": "stop", "sequence": 3}], [], [{"what": "end", "sequence": 3}]]
    held = []

    def poll(timeout_s):
        held.append((len(link.heard), engine.cache.stats().sequence_count))
        link.is_open = len(says) > 1
        return says.pop(0)

    link.poll = poll
    prefiller.serve()
    assert held == [(2, 1), (3, 1), (3, 1), (3, 1)]  # one more step until it was told
    assert engine.cache.stats().sequence_count == 0
    for what in ("stop", "end"):
        prefiller.handle({"what": what, "sequence": 3})  # what has ended already


@pytest.mark.parametrize(
    "message",
    [
        {},
        7,
        [],
        "compute",
        None,
        {"what": "compute"},
        {"what": "compute", "sequence": []},
        {"what": "compute", "sequence": 4, "tokens": "abc", "begin": 0, "slots": [[16, 3]]},
        {"what": "compute", "sequence": 4, "tokens": [0, VOCAB], "begin": 0, "slots": [[16, 2]]},
        {"what": "compute", "sequence": 4, "tokens": [0, -1], "begin": 0, "slots": [[16, 2]]},
        {"what": "compute", "sequence": 4, "tokens": [0, 1.5], "begin": 0, "slots": [[16, 2]]},
        {"what": "compute", "sequence": 4, "tokens": [0, 1], "begin": "x", "slots": [[16, 2]]},
        {"what": "compute", "sequence": 4, "tokens": [0, 1], "begin": 0, "slots": 7},
        {"what": "compute", "sequence": 4, "tokens": [0, 1], "begin": 0, "slots": [[16]]},
        {"what": "compute", "sequence": 4, "tokens": [0, 1], "begin": 0, "slots": [[2**70, 2]]},
        {"what": "compute", "sequence": 3, "tokens": [0, 1], "begin": 0, "slots": [[16, 2]]},  # a number that is taken
        {"what": "stop", "sequence": {}},
        {"what": "dance", "sequence": 3},
    ],
)
def test_a_decoder_that_talks_nonsense_is_closed(message):
    engine, link = make_engine(), Said()
    link.close = lambda: setattr(link, "is_open", False)
    prefiller = prefill_decode.Prefiller(engine, link)
    prefiller.handle({"what": "compute", "sequence": 3, "tokens": PROMPT, "begin": 0, "slots": [[16, len(PROMPT)]]})
    link.says = [message]
    prefiller.serve()
    assert not link.is_open
    engine.cache.check_invariants()


def test_a_prefiller_to_which_nonsense_is_said_ends_as_if_its_decoder_were_gone():
    with Pair("socket") as pair:
        pair.decoder.link.send({})
        assert pair.process.wait(DEADLINE_S) == 0


def test_what_was_announced_stays_where_it_is_while_others_compute_the_same():
    engine, link = make_engine(), Said()
    prefiller = prefill_decode.Prefiller(engine, link)
    engine.step_tokens = 40  # steps end inside a page
    for number, slot in ((0, 16), (1, 416)):
        prefiller.handle({"what": "compute", "sequence": number, "tokens": PROMPT, "begin": 0, "slots": [[slot, 300]]})
    while any(job["unsent"] > 0 for job in prefiller.jobs.values()):
        for number in prefiller.jobs:
            prefiller.run_step(number)
    for message in link.heard:
        pages = engine.cache.view(prefiller.jobs[message["sequence"]]["sequence"]).pages
        for (local, _, count), checksum in zip(message["parts"], message["checksums"]):
            assert local // PAGE in pages
            assert engine.checksum(local, count) == checksum


def test_a_peer_that_talks_nonsense_later_is_closed(asked):
    decoder, link, receive = asked
    link.close = lambda: setattr(link, "is_open", False)
    link.says = [{"what": "step", "sequence": receive.number, "step": 0, "parts": 7, "checksums": []}]
    decoder.poll()
    assert not link.is_open and receive.error


def test_a_prefiller_that_cannot_says_why():
    with Pair("socket", options=["--prompt-tokens", "1", "--new-tokens", "1"]) as pair:  # whose pool is that small
        receive = pair.receive()
        assert "the pool is too small" in receive.error or "needs" in receive.error
        sequence, _ = pair.decoder.settle(receive)
        assert pair.engine.cache.view(sequence).pending_tokens == len(PROMPT)


def test_sides_that_store_something_else_are_refused():
    with pytest.raises(peer_links.PeerError, match="the other side stores"):
        Pair("socket", options=[*OPTIONS, "--seed", "8"])


def test_a_peer_that_talks_nonsense_is_a_peer_that_is_gone():
    here, there = socket.socketpair()
    with there:
        there.sendall((2).to_bytes(4, "big") + b"{]")
        with pytest.raises(peer_links.PeerError, match="gone"):
            peer_links.connect(here, np.zeros(8, np.uint8), "x", "socket")


def test_a_read_beyond_the_pool_is_not_answered():
    here, there = socket.socketpair()
    link = peer_links.SocketLink(peer_links.Stream(here), np.zeros(8, np.uint8))
    asking = peer_links.Stream(there)
    asking.send({"read": 0, "pieces": [[4, 5]]})
    link.poll(DEADLINE_S)
    assert not link.is_open
    asking.close()


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────────────────


def run_program(*arguments, environment=None):
    return subprocess.run([sys.executable, PROGRAM, *OPTIONS, *arguments], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=3 * DEADLINE_S, env=environment)


def test_the_program_says_that_the_logits_are_equal():
    done = run_program("--transport", "socket")
    assert done.returncode == 0, done.stderr
    assert "transport  socket\n" in done.stdout and "outcome    received\n" in done.stdout
    assert f"300 tokens: {300 * prefill_decode.TOKEN_BYTES:,} bytes in 5 reads" in done.stdout
    assert "logits     equal: 6 x 256 floats" in done.stdout


@pytest.mark.parametrize("fault", ["flip", "stop", "kill"])
def test_the_program_gets_over_a_fault(fault):
    done = run_program("--transport", "socket", "--fault", fault, "--deadline-s", "2")
    assert done.returncode == 0, done.stderr
    assert "the decoder computes the prompt itself" in done.stdout and "logits     equal" in done.stdout
    assert {"flip": "wrong bytes", "stop": "late", "kill": "gone"}[fault] in done.stdout


def test_logits_that_differ_are_status_one(monkeypatch, capfd):
    decode = prefill_decode.Decoder.decode

    def one_bit_off(self, sequence, token_count):
        tokens, logits = decode(self, sequence, token_count)
        logits.view(np.uint32)[0, 0] ^= 1
        return tokens, logits

    monkeypatch.setattr(prefill_decode.Decoder, "decode", one_bit_off)
    assert prefill_decode.main([*OPTIONS, "--transport", "socket"]) == 1
    assert "logits     NOT EQUAL" in capfd.readouterr().out


def test_nixl_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(peer_links.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert peer_links.make_agent("quire") == (None, "NIXL's Python package is not installed")
    here, there = socket.socketpair()
    with there:
        stream = peer_links.Stream(there)
        stream.send({"stores": "x", "pool_bytes": 8, "agent": None, "base": 0, "why": ""})
        link, _, why = peer_links.connect(here, np.zeros(8, np.uint8), "x", "auto")
        assert link.name == "socket" and "not installed" in why
        link.close()
    here, there = socket.socketpair()
    with there:
        peer_links.Stream(there).send({"stores": "x", "pool_bytes": 8, "agent": None, "base": 0, "why": ""})
        with pytest.raises(peer_links.PeerError, match="not installed"):
            peer_links.connect(here, np.zeros(8, np.uint8), "x", "nixl")


def test_two_that_find_no_way_to_each_other_say_so_once(tmp_path):
    for package in ("nixl_cu12", "nixl_cu13", "nixl"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('not here')")
    done = run_program("--transport", "nixl", environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (2, "prefill_decode.py: NIXL's Python package is not installed\n")


def is_alive(process_id):
    with contextlib.suppress(FileNotFoundError):
        return pathlib.Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("how", ["ctrl_c", "killed"])
def test_both_processes_end(how):
    program = subprocess.Popen([sys.executable, PROGRAM, "--transport", "socket", "--prompt-tokens", "100000"],
                               stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    try:
        prefiller = None
        for line in program.stdout:  # ends with the program
            if found := re.search(r"prefiller  process (\d+)", line):
                prefiller = int(found[1])
            if line.startswith("transport"):
                break
        assert prefiller is not None and is_alive(prefiller)
        program.send_signal(signal.SIGINT if how == "ctrl_c" else signal.SIGKILL)
        assert program.wait(DEADLINE_S) == (130 if how == "ctrl_c" else -signal.SIGKILL)
        end = time.monotonic() + DEADLINE_S
        while is_alive(prefiller):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def test_the_engine_says_the_same_without_a_cache(expected):
    engine = make_engine()
    tokens, logits = engine.generate(engine.start(PROMPT), 6)
    assert tokens == expected[0] and prefill_decode.same_bits(logits, expected[1])
    assert isinstance(engine.cache, quire.Cache)
