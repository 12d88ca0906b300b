#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes: one computes a prompt, the other fetches its K and V page by page and goes on.

    prefill_decode.py                            # by NIXL where its Python package is installed, else over a socket
    prefill_decode.py --transport socket --prompt-tokens 2000
    prefill_decode.py --fault stop               # what becomes of it when the first process hangs: flip, stop or kill

docs/prefill_decode.md says what moves and who owns what. The exit status is 0 when the logits are those of one process.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import quire
from peer_links import GONE, NONSENSE, PeerError, connect
from toy_engine import DIM, HEADS, LAYERS, PAGE, VOCAB, Engine

TOKEN_BYTES = 2 * LAYERS * HEADS * DIM * 4


def by_page(local, remote, count):
    """Parts of a run of slots that lie in one page, here and there."""
    while count > 0:
        part = min(count, PAGE - local % PAGE, PAGE - remote % PAGE)
        yield local, remote, part
        local, remote, count = local + part, remote + part, count - part


class Prefiller:
    """Computes prompts step by step, and says after each step what lies where. Its pages stay until they are let go."""

    def __init__(self, engine, link):
        self.engine, self.link = engine, link
        self.jobs = {}  # by the decoder's number: the sequence, how many tokens to send, steps so far

    def serve(self):
        while self.link.is_open:
            waiting = [number for number, job in self.jobs.items() if job["unsent"] > 0]
            for message in self.link.poll(0.0 if waiting else 0.1):
                try:
                    self.handle(message)
                except NONSENSE:
                    self.link.close()
            for number in waiting:
                if number in self.jobs and self.jobs[number]["unsent"] > 0:
                    self.run_step(number)

    def handle(self, message):
        number = message["sequence"]
        if message["what"] == "compute":
            are_tokens = all(isinstance(token, int) and 0 <= token < VOCAB for token in message["tokens"])
            if number in self.jobs or not are_tokens:
                raise ValueError("a number that is taken, or tokens that there are not")
            slots = [quire.SlotRun(first_slot=first, token_count=count) for first, count in message["slots"]]
            try:
                sequence = self.engine.start(message["tokens"])
                self.engine.cache.mark_send(sequence, message["begin"], slots, receiver=0)
            except quire.Error as error:
                self.link.send({"what": "failed", "sequence": number, "why": f"the prefiller: {error}"})
                return
            self.jobs[number] = {"sequence": sequence, "unsent": sum(run.token_count for run in slots), "steps": 0}
        elif message["what"] == "stop" and number in self.jobs:  # what was announced is still being read
            self.jobs[number]["unsent"] = 0
        elif message["what"] == "end" and number in self.jobs:
            self.engine.cache.end(self.jobs.pop(number)["sequence"])
        elif message["what"] not in ("stop", "end", "read"):  # that a step has arrived needs no answer
            raise ValueError("nobody asks for that")

    def run_step(self, number):
        job, cache = self.jobs[number], self.engine.cache
        try:
            step = self.engine.plan(job["sequence"])
        except (MemoryError, quire.Error) as error:
            job["unsent"] = 0
            self.link.send({"what": "failed", "sequence": number, "why": f"the prefiller: {error}"})
            return
        group = step.plan.groups[0]
        runs = [(run.local_slot, run.remote_slot, run.token_count) for run in group.sends]  # computed before
        for local, remote in zip(group.append_slots.tolist(), group.remote_slots.tolist()):
            if remote == quire.NO_SLOT:
                continue
            if runs and runs[-1][0] + runs[-1][2] == local and runs[-1][1] + runs[-1][2] == remote:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((local, remote, 1))
        self.engine.run(step)
        cache.finish_step(step, [None])
        parts = [part for run in runs for part in by_page(*run)]
        if not parts:  # the decoder has these tokens
            return
        checksums = [self.engine.checksum(local, count) for local, _, count in parts]
        self.link.send({"what": "step", "sequence": number, "step": job["steps"], "parts": parts,
                        "checksums": checksums})
        job["steps"] += 1
        job["unsent"] -= sum(count for _, _, count in parts)


class Receive:
    """What one sequence waits for. Pages are the sequence's, and no step may plan it until this has come to an end."""

    def __init__(self, decoder, number, sequence, prompt):
        self.decoder, self.number, self.sequence, self.prompt = decoder, number, sequence, prompt
        cache = decoder.engine.cache
        begin = cache.view(sequence).computed_tokens
        runs = cache.prepare_receive(sequence, len(prompt) - begin) if begin < len(prompt) else []
        self.unread_slots = {slot for run in runs for slot in range(run.first_slot, run.first_slot + run.token_count)}
        self.token_count = self.missing = len(self.unread_slots)
        self.reads, self.error, self.read_count, self.read_bytes = [], "", 0, 0
        if runs:
            slots = [[run.first_slot, run.token_count] for run in runs]
            decoder.link.send({"what": "compute", "sequence": number, "tokens": list(prompt), "begin": begin,
                               "slots": slots})

    @property
    def is_complete(self):
        return self.missing == 0 and not self.error

    @property
    def is_quiet(self):
        """Nothing lands in its pages any more."""
        return all(read.is_over for read, _ in self.reads)

    def on_step(self, message):
        """A step's pages are there to be read: one read for all of them."""
        # The other side says where to read. Where that goes is for this side to know.
        parts, checksums = message["parts"], message["checksums"]
        lie_in_pages = all(
            0 <= local and local + count <= self.decoder.peer_slots
            and 0 < count <= min(PAGE - local % PAGE, PAGE - remote % PAGE)
            for local, remote, count in parts
        )
        here = [slot for _, remote, count in parts for slot in range(remote, remote + count)] if lie_in_pages else []
        are_new = len(set(here)) == len(here) and self.unread_slots.issuperset(here)
        if not here or not are_new or len(checksums) != len(parts):
            self.error = f"step {message['step']} names slots that were not asked for"
            return
        self.unread_slots.difference_update(here)
        pieces = []
        for local, remote, count in parts:
            there = self.decoder.engine.page_pieces(local, count)
            for (target, length), (source, _) in zip(self.decoder.engine.page_pieces(remote, count), there):
                if pieces and pieces[-1][0] + pieces[-1][2] == target and pieces[-1][1] + pieces[-1][2] == source:
                    pieces[-1] = (*pieces[-1][:2], pieces[-1][2] + length)
                else:
                    pieces.append((target, source, length))
        note = {"what": "read", "sequence": self.number, "step": message["step"]}
        self.reads.append((self.decoder.link.read(pieces, note), (message["step"], parts, checksums)))
        self.read_bytes += sum(length for _, _, length in pieces)

    def look(self):
        """What has arrived counts when its checksums are those that the other side has sent."""
        for read, (step, parts, checksums) in [entry for entry in self.reads if entry[0].is_over or entry[0].error]:
            if read.state == "arrived":
                wrong = [remote for (_, remote, count), checksum in zip(parts, checksums)
                         if self.decoder.engine.checksum(remote, count) != checksum]
                if wrong:
                    self.error = self.error or f"step {step}: wrong bytes in {len(wrong)} of {len(parts)} parts"
                self.missing -= sum(count for _, _, count in parts)
                self.read_count += 1
            else:
                self.error = self.error or f"step {step}: {read.error}"
        self.reads = [entry for entry in self.reads if not entry[0].is_over]
        if not self.decoder.link.is_open and self.missing > 0:
            self.error = self.error or GONE


class Decoder:
    def __init__(self, engine, link, peer, clock=time.monotonic):
        self.engine, self.link, self.clock = engine, link, clock
        self.peer_slots = peer["pool_bytes"] // (TOKEN_BYTES * PAGE) * PAGE
        self.receives = {}  # by number: those that wait
        self.quarantine = []  # those that are given up, and whose pages may still be written
        self.next_number = 0

    def ask_for(self, prompt):
        receive = Receive(self, self.next_number, self.engine.start(prompt), prompt)
        self.receives[self.next_number] = receive
        self.next_number += 1
        return receive

    def poll(self, timeout_s=0.0):
        for message in self.link.poll(timeout_s):
            try:
                self.handle(message)
            except NONSENSE:
                self.link.close()
        for receive in [*self.receives.values(), *self.quarantine]:
            receive.look()
        for receive in [late for late in self.quarantine if late.is_quiet]:
            # Only now is its memory anybody's. To end the sequence earlier would have given it to others.
            self.quarantine.remove(receive)
            self.engine.cache.abort_receive(receive.sequence)
            self.engine.cache.end(receive.sequence)
            self.link.send({"what": "end", "sequence": receive.number})

    def handle(self, message):
        receive = self.receives.get(message["sequence"])
        if receive is None or receive.error:
            return
        if message["what"] == "step":
            receive.on_step(message)
        else:
            receive.error = message["why"]

    def wait_for(self, receive, deadline):
        """Until it is complete, has failed, or is late."""
        while not receive.is_complete and not receive.error and self.clock() < deadline:
            self.poll(0.01)

    def settle(self, receive):
        """The sequence to go on with, and what became of the receive. Afterwards its tokens are there, or pending."""
        del self.receives[receive.number]
        if receive.is_complete:
            if receive.token_count > 0:  # else all of it was cached here
                self.engine.cache.finish_receive(receive.sequence)
            self.link.send({"what": "end", "sequence": receive.number})
            return receive.sequence, "received"
        why = receive.error or "late"
        if receive.is_quiet:
            self.engine.cache.abort_receive(receive.sequence)
            self.link.send({"what": "end", "sequence": receive.number})
            return receive.sequence, why
        # Reads may still land. The sequence keeps its pages as long as it is receiving, so it is put aside as it is,
        # and another one does its work.
        self.link.send({"what": "stop", "sequence": receive.number})
        self.quarantine.append(receive)
        return self.engine.start(receive.prompt), why

    def decode(self, sequence, token_count):
        return self.engine.generate(sequence, token_count, between_steps=self.poll)


# ── the program ──────────────────────────────────────────────────────────────────────────────────────────────────────


def page_count(options):
    """Room for the prompt three times: in quarantine, computed here, and with what comes after it."""
    return 3 * (options.prompt_tokens // PAGE + 2) + options.new_tokens // PAGE + 2


def start_prefiller(options):
    """The other process, and a socket to it. It ends when the socket does."""
    here, there = socket.socketpair()
    command = [sys.executable, __file__, "--prefill-on", str(there.fileno()), "--transport", options.transport]
    for name in ("prompt-tokens", "new-tokens", "step-tokens", "seed"):
        command += [f"--{name}", str(getattr(options, name.replace("-", "_")))]
    with there:  # in a session of its own, so that Ctrl-C comes here alone
        process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    return process, here


def prefill(options):
    with socket.socket(fileno=options.prefill_on) as connection:
        engine = Engine(page_count(options), options.step_tokens, options.seed)
        try:
            link, _, _ = connect(connection, engine.pool, engine.stores(), options.transport)
        except PeerError:  # the other process says why
            return 2
        Prefiller(engine, link).serve()
        link.close()
    return 0


def break_second_read(fault, process, decoder):
    """A bit arrives flipped, or the prefiller is stopped or killed when it is asked for its second step."""
    link_read, asked = decoder.link.read, []

    def read(pieces, note):
        asked.append(note)
        if len(asked) == 2 and fault == "stop":
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
        elif len(asked) == 2 and fault == "kill":
            process.kill()
        made = link_read(pieces, note)
        if len(asked) == 2 and fault == "flip":
            end = made.end

            def end_with_a_flipped_bit(*arguments):
                decoder.engine.pool[pieces[-1][0]] ^= 1
                end(*arguments)

            made.end = end_with_a_flipped_bit
            if made.is_over:
                made.end(made.state)
        return made

    decoder.link.read = read


def run(options, process, connection):
    engine = Engine(page_count(options), options.step_tokens, options.seed)
    link, peer, why = connect(connection, engine.pool, engine.stores(), options.transport)
    with contextlib.closing(link):  # before the pool that it writes to
        prompt = np.random.default_rng(options.seed).integers(0, VOCAB, options.prompt_tokens).tolist()
        print(f"model      {LAYERS} layers, {HEADS} heads of {DIM} floats: {TOKEN_BYTES:,} bytes of K and V per token")
        print(f"prefiller  process {process.pid}; the decoder is process {os.getpid()}")
        print(f"transport  {link.name}{f' ({why})' if why else ''}", flush=True)
        tokens, logits = prefill_there(options, process, Decoder(engine, link, peer), prompt)
    one = Engine(page_count(options), options.step_tokens, options.seed)
    expected_tokens, expected = one.generate(one.start(prompt), options.new_tokens)
    equal = tokens == expected_tokens and same_bits(logits, expected)
    print(f"logits     {'equal' if equal else 'NOT EQUAL'}: {logits.shape[0]} x {logits.shape[1]} floats, compared bit "
          "for bit with those of one process")
    return 0 if equal else 1


def prefill_there(options, process, decoder, prompt):
    """The tokens behind the prompt and their logits."""
    if options.fault:
        break_second_read(options.fault, process, decoder)
    begin = time.monotonic()
    receive = decoder.ask_for(prompt)
    decoder.wait_for(receive, begin + options.deadline_s)
    seconds = time.monotonic() - begin
    sequence, outcome = decoder.settle(receive)
    read_count = len(receive.reads) + receive.read_count
    print(f"prompt     {len(prompt):,} tokens: {receive.read_bytes:,} bytes in {read_count} reads, {seconds:.3f} s")
    print(f"outcome    {outcome}{'' if outcome == 'received' else '; the decoder computes the prompt itself'}")
    if decoder.quarantine:
        pages = decoder.engine.cache.stats().open_pages
        print(f"quarantine {pages} pages, until nothing can land in them any more", flush=True)
    tokens, logits = decoder.decode(sequence, options.new_tokens)
    print(f"answer     {' '.join(map(str, tokens[:12]))}{' …' if len(tokens) > 12 else ''}")
    if decoder.quarantine:
        os.kill(process.pid, signal.SIGCONT)
        end = time.monotonic() + options.deadline_s
        while decoder.quarantine and time.monotonic() < end:
            decoder.poll(0.01)
        print(f"quarantine {'is over: its pages are free again' if not decoder.quarantine else 'goes on'}")
    return tokens, logits


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def parse(arguments):
    parser = argparse.ArgumentParser(description="Prefill in one process, decode in another.")
    parser.add_argument("--transport", choices=("auto", "nixl", "socket"), default="auto")
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=32, metavar="N")
    parser.add_argument("--step-tokens", type=int, default=64, metavar="N", help="of the prompt in one step")
    parser.add_argument("--deadline-s", type=float, metavar="S", help="how long to wait for the prompt: 60, or 3 "
                        "with --fault")
    parser.add_argument("--fault", choices=("flip", "stop", "kill"), help="in the middle of the transfer")
    parser.add_argument("--seed", type=int, default=7, metavar="N")
    parser.add_argument("--prefill-on", type=int, help=argparse.SUPPRESS)  # the other process: its socket
    options = parser.parse_args(arguments)
    if options.deadline_s is None:
        options.deadline_s = 3 if options.fault else 60
    for name in ("prompt_tokens", "new_tokens", "step_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is at least 1")
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.prefill_on is not None:
        return prefill(options)
    process, connection = start_prefiller(options)
    try:
        with connection:
            return run(options, process, connection)
    except PeerError as error:
        print(f"prefill_decode.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        process.kill()  # also one that is stopped
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
