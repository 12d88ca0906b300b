# SPDX-License-Identifier: Apache-2.0
"""Threads, callbacks, and what happens to objects in whatever order they go."""

import contextlib
import gc
import itertools
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, WRITE_THROUGH, Engine, config, engine_with_a_load, run_python, token_range


def on_thread(call):
    """Runs a call on a thread of its own; gives what it gives, and raises what it raises."""
    outcome = []

    def run():
        try:
            outcome.append((call(), None))
        except BaseException as error:  # noqa: BLE001
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE_S)
    assert outcome, "the call does not return"
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


# Any thread may call


def test_a_cache_that_one_thread_opened_is_used_by_others():
    engine = on_thread(lambda: Engine(config()))
    assert on_thread(lambda: engine.request(token_range(0, 8))) == 0
    assert engine.request(token_range(0, 8)) == 8
    sequence = engine.admitted([1, 2, 3])
    on_thread(lambda: engine.cache.end(sequence))
    assert sequence.has_ended


def test_many_threads_serve_requests_at_the_same_time():
    engine = Engine(config(4, 64, sequence_count_max=32, steps_in_flight_max=1))
    errors = []
    step_lock = threading.Lock()  # one engine: steps are planned and finished in order

    def work(number):
        try:
            for turn in range(30):
                tokens = token_range(100 * (number % 3), 9 + turn % 5)
                sequence = engine.cache.begin(engine.space, tokens)
                engine.cache.admit(sequence)
                with step_lock:
                    step = engine.plan(sequence)
                    engine.compute(step, tokens)
                    engine.cache.finish_step(step, [None])
                engine.cache.stats()
                if turn % 2:
                    engine.cache.end(sequence)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert errors == []
    engine.cache.check_invariants()
    assert engine.cache.stats().sequence_count == 0
    assert engine.cache.stats().hit_tokens > 0


def test_handles_are_dropped_on_other_threads():
    engine = Engine(config())
    box = [engine.admitted([1, 2, 3]), engine.admitted([4, 5, 6])]
    on_thread(box.clear)
    assert engine.cache.stats().sequence_count == 0


def test_a_handle_that_is_dropped_while_its_step_is_in_flight_ends_with_the_step():
    engine = Engine(config())
    box = [engine.admitted(token_range(0, 8))]
    step = engine.plan(box[0])
    on_thread(box.clear)
    engine.compute(step, token_range(0, 8))
    engine.cache.finish_step(step, [None])
    assert engine.cache.stats().sequence_count == 0


def test_closing_on_one_thread_refuses_the_calls_of_another():
    engine = Engine(config())
    started, refused = threading.Event(), []

    def call_until_it_is_closed():
        try:
            while True:
                engine.cache.stats()
                started.set()
        except quire.InvalidArgument as error:
            refused.append(str(error))

    thread = threading.Thread(target=call_until_it_is_closed)
    thread.start()
    assert started.wait(DEADLINE_S)
    engine.cache.close()
    thread.join(DEADLINE_S)
    assert refused == ["the cache is closed: open another one"]


# Others run while bytes move


class Counter:
    """A thread that counts as fast as it can."""

    def __enter__(self):
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        while not self._stop.is_set():
            self.count += 1

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(DEADLINE_S)


@contextlib.contextmanager
def no_forced_switches():
    """For longer than any call here takes, the interpreter takes its lock from nobody who does not give it up: another
    thread that runs during a call runs because the call let it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.2)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def large():
    """A pool large enough that a walk over it or a copy in it takes a while."""
    layout = quire.ModelLayout.opaque(64 << 10)
    engine = Engine(config(64, 40, layout=layout, context_tokens_max=64 * 16, step_tokens_max=4096))
    engine.page_tokens = 64
    return engine


def test_others_run_while_pages_are_copied(large):
    cache = large.cache
    source = large.admitted(token_range(0, 63))
    step = cache.plan_step([source]).step
    cache.finish_step(step, [None])
    with no_forced_switches(), Counter() as counter:
        for i in range(20):
            fork = cache.fork(source, 63)
            cache.append(fork, [90 + i])
            step = cache.plan_step([fork]).step
            before = counter.count
            cache.apply_copies(step)
            advanced = counter.count > before
            cache.finish_step(step, [None])
            cache.end(fork)
            if advanced:
                break
    assert step.number > 0 and advanced


def test_others_run_while_the_invariants_are_checked():
    cache = quire.Cache.open(config(1, 200_000, device={"memory": quire.DeviceMemory.None_}, step_tokens_max=200_000))
    space = cache.key_space(quire.KeySpace(model="m"))
    with cache.begin(space, np.arange(150_000)) as sequence:
        cache.admit(sequence)
        cache.finish_step(cache.plan_step([sequence]).step, [None])
    with no_forced_switches(), Counter() as counter:
        for _ in range(20):
            before = counter.count
            cache.check_invariants()
            if advanced := counter.count > before:
                break
    assert advanced


def test_others_run_while_one_waits_for_a_load():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)  # nobody moves it, so the wait lasts as long as it may
    sequence = engine.admitted(tokens)
    with no_forced_switches(), Counter() as counter:
        before = counter.count
        assert not engine.cache.wait_until_ready(sequence, 0.2)
        assert counter.count > before


def test_a_second_thread_serves_requests_while_one_waits_until_all_is_flushed(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    engine = Engine(config(16, 64, host={"page_count": 128}, disk=disk))
    for i in range(8):
        engine.request(token_range(1000 * i, 64))
    done = threading.Event()
    flushed = []

    def flush():
        try:
            flushed.append(engine.cache.wait_until_flushed(DEADLINE_S))
        except quire.Error as error:
            flushed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=flush)
    thread.start()
    served = 0
    while not done.is_set() or served == 0:  # wait_until_flushed() has a limit of its own
        engine.request(token_range(20_000 + 100 * (served % 3), 40))
        served += 1
    thread.join(DEADLINE_S)
    assert flushed == [True]
    engine.cache.check_invariants()


def test_a_wait_that_is_given_too_little_time_says_so():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)
    sequence = engine.admitted(tokens)
    assert not engine.cache.wait_until_ready(sequence, 0)
    mover.settle()
    assert engine.cache.wait_until_ready(sequence, 0)


def test_threads_that_wait_at_the_same_time_do_not_set_time_back(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    engine = Engine(config(16, 16, host={"page_count": 16}, disk=disk))
    engine.request(token_range(0, 64))
    errors = []

    def wait():
        try:
            for _ in range(300):
                engine.cache.wait_until_flushed(0)
        except quire.Error as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    finally:
        sys.setswitchinterval(before)
    assert errors == []


# Objects go in any order


@pytest.mark.parametrize("order", list(itertools.permutations(["cache", "sequence", "step", "array", "memory"]))[::7])
def test_objects_are_dropped_in_any_order(order):
    engine = Engine(config())
    cache = engine.cache
    sequence = engine.admitted(token_range(0, 6))
    step = engine.plan(sequence)
    held = {
        "cache": cache,
        "sequence": sequence,
        "step": step,
        "array": step.plan.append_slots,
        "memory": np.asarray(cache.device_memory()),
    }
    gone = weakref.ref(cache)
    slots = step.plan.append_slots.tolist()
    del engine, cache, sequence, step
    for i, name in enumerate(order):
        del held[name]
        gc.collect()
        if "array" in held:
            assert held["array"].tolist() == slots
        if "memory" in held:
            held["memory"][8] = i
            assert held["memory"][8] == i
    assert gone() is None


@pytest.mark.parametrize("order", list(itertools.permutations(["close", "sequence", "step", "memory"])))
def test_a_cache_is_closed_before_or_after_anything_else(order):
    engine = Engine(config())
    held = {"sequence": engine.admitted(token_range(0, 6))}
    held["step"] = engine.plan(held["sequence"])
    held["memory"] = np.asarray(engine.cache.device_memory())
    for name in order:
        if name == "close":
            engine.cache.close()
        else:
            del held[name]
        gc.collect()
    assert engine.cache.is_closed
    engine.cache.close()  # again is nothing


def test_a_cache_in_a_cycle_with_its_ready_callback_is_collected():
    class Owner:
        def __init__(self):
            self.cache = quire.Cache.open(config(host=WRITE_THROUGH))
            self.cache.set_ready_callback(self.on_ready)

        def on_ready(self, sequence):
            pass

    owner = Owner()
    gone = weakref.ref(owner), weakref.ref(owner.cache)
    del owner
    gc.collect()
    assert (gone[0](), gone[1]()) == (None, None)


@pytest.mark.parametrize("also", ["sequence", "step", "plan", "entry"])
def test_an_engine_that_holds_its_sequences_and_steps_is_collected_too(also):
    class Owner:
        def __init__(self):
            self.cache = quire.Cache.open(config())
            self.cache.set_ready_callback(self.on_ready)
            space = self.cache.key_space(quire.KeySpace(model="m"))
            sequence = self.cache.begin(space, [1, 2, 3])
            self.cache.admit(sequence)
            step = self.cache.plan_step([sequence]).step
            self.held = {
                "sequence": sequence,
                "step": step,
                "plan": step.plan,
                "entry": quire.StepEntry(sequence=sequence),
            }[also]

        def on_ready(self, sequence):
            pass

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    leaked = gone()
    if leaked is not None:  # so that this test leaves nothing behind
        leaked.cache.set_ready_callback(None)
    assert leaked is None


# Callbacks


def test_an_exception_in_a_callback_is_raised_by_apply_and_the_others_are_told():
    first, second = token_range(0, 16), token_range(100, 16)
    engine, mover = engine_with_a_load(first)
    engine.cache.finish_step(engine.plan(engine.admitted(second)), [None])
    mover.settle()
    engine.cache.reclaim(100)
    told = []

    def callback(sequence):
        told.append(sequence)
        raise ZeroDivisionError(f"of {sequence.index}")

    engine.cache.set_ready_callback(callback)
    waiting = [engine.admitted(first), engine.admitted(second)]
    mover.take()
    ends = [mover.move(plan) for plan in mover.waiting]
    with pytest.raises(ZeroDivisionError, match=f"of {waiting[0].id.index}|of {waiting[1].id.index}"):
        engine.cache.apply(ends, 0)
    assert sorted(told, key=lambda name: name.index) == sorted((s.id for s in waiting), key=lambda name: name.index)
    assert not any(engine.cache.view(sequence).is_loading for sequence in waiting)
    engine.cache.check_invariants()


def test_a_callback_may_call_the_cache():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)
    seen = []

    def callback(_):
        seen.append(engine.cache.view(sequence).is_loading)
        engine.cache.set_ready_callback(None)
        seen.append(engine.cache.plan_step([sequence]).step is not None)

    engine.cache.set_ready_callback(callback)
    sequence = engine.admitted(tokens)
    mover.settle()
    assert seen == [False, True]


def test_a_callback_may_close_the_cache():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)
    engine.cache.set_ready_callback(lambda _: engine.cache.close())
    sequence = engine.admitted(tokens)
    mover.take()
    engine.cache.apply([mover.move(mover.waiting.pop())], 0)
    assert engine.cache.is_closed and not sequence.has_ended


def test_an_exception_in_a_disk_callback_is_raised_by_apply(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    engine = Engine(config(16, 16, host={"page_count": 64}, disk=disk))

    def callback(answer):
        raise KeyError(answer.token_count)

    engine.cache.lookup_on_disk(engine.space, token_range(0, 32), callback)
    with pytest.raises(KeyError, match="0"):
        for _ in range(100_000):
            engine.cache.apply(engine.cache.poll(), 0)


@pytest.mark.parametrize("way", ["finalizer", "entries", "tokens"])
def test_python_code_that_runs_during_a_call_may_call_the_cache_or_is_refused(way):
    program = """
import faulthandler, gc, sys
faulthandler.dump_traceback_later(5, exit=True)
import quire
from byte_engine import *
engine = Engine(config(4, 200))
for i in range(40): engine.request(token_range(1000 * i, 16))
cache, sequence = engine.cache, engine.admitted([1, 2, 3])
def call():
    try: cache.stats()
    except quire.Error as error: assert "call" in str(error) or "closed" in str(error)  # at the interpreter's end
class Dropped:
    def __init__(self): self.me = self
    def __del__(self): call()
class Entries(list):
    def __getitem__(self, i): call(); return super().__getitem__(i)
    def __iter__(self): call(); return super().__iter__()
if sys.argv[1] == "finalizer":
    gc.set_threshold(1, 1, 1)
    Dropped()
    cache.visit_runs()
elif sys.argv[1] == "entries":
    cache.plan_step(Entries([sequence]))
else:
    cache.begin(engine.space, Entries([1, 2, 3]))
"""
    run_python(program, way)


# The interpreter ends


def test_the_interpreter_ends_with_everything_alive():
    run_python("""
import numpy as np, quire
from byte_engine import *
engine = Engine(config(4, 32, host={"page_count": 64, "write_policy": quire.WritePolicy.WriteThrough}))
engine.request(token_range(0, 32))
engine.cache.set_ready_callback(lambda sequence: engine)
sequence = engine.admitted(token_range(0, 6))
step = engine.plan(sequence)
plan, array, memory = step.plan, step.plan.append_slots, np.asarray(engine.cache.device_memory())
cycle = [engine, sequence, step, plan, array, memory]; cycle.append(cycle)
other = quire.Cache.open(config())
""")


def test_the_interpreter_ends_while_transfers_move():
    run_python("""
import quire
from byte_engine import *
layout = quire.ModelLayout.opaque(16 << 10)
engine = Engine(config(64, 64, layout=layout, host={"page_count": 64, "write_policy": quire.WritePolicy.WriteThrough}))
engine.cache.finish_step(engine.cache.plan_step([engine.admitted(token_range(0, 63 * 64))]).step, [None])
engine.cache.poll()
assert engine.cache.stats().transfers_in_flight > 0
""")


def test_the_interpreter_ends_while_the_disk_is_written_and_the_next_one_finds_what_was_flushed(tmp_path):
    program = """
import sys, quire
from byte_engine import *
disk = {"directories": [sys.argv[1]], "capacity_bytes": 64 << 20}
engine = Engine(config(16, 64, host={"page_count": 128}, disk=disk))
found = engine.request(token_range(0, 64))
if sys.argv[2] == "flush": assert engine.cache.wait_until_flushed(60)
memory = np.asarray(engine.cache.device_memory())
engine.request(token_range(5000, 64))
answers = []
engine.cache.lookup_on_disk(engine.space, token_range(0, 64), answers.append)
engine.cache.poll()
print(found)
"""
    assert run_python(program, tmp_path, "flush").stdout == "0\n"
    assert run_python(program, tmp_path, "go").stdout == "64\n"


def test_the_interpreter_ends_while_other_threads_are_in_calls():
    done = run_python(
        """
import threading, quire
from byte_engine import *
cache = quire.Cache.open(config(1, 100_000, device={"memory": quire.DeviceMemory.None_}, step_tokens_max=100_000))
space = cache.key_space(quire.KeySpace(model="m"))
sequence = cache.begin(space, np.arange(90_000)); cache.admit(sequence)
cache.finish_step(cache.plan_step([sequence]).step, [None])
started = threading.Event()
def walk():
    try:
        while True:
            cache.check_invariants()
            started.set()
    except quire.InvalidArgument:
        pass
threads = [threading.Thread(target=walk, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
started.wait()
""",
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_open_cache_in_a_forgotten_cycle_ends_with_the_interpreter(tmp_path):
    run_python(
        """
import sys, gc, quire
from byte_engine import *
gc.disable()
disk = {"directories": [sys.argv[1]], "capacity_bytes": 64 << 20}
class Owner: pass
owner = Owner()
owner.engine = Engine(config(16, 64, host={"page_count": 128}, disk=disk))
owner.engine.cache.set_ready_callback(lambda _, owner=owner: owner)
owner.engine.request(token_range(0, 64))
del owner
""",
        tmp_path,
    )
    assert not quire.inspect_disk_store([str(tmp_path)]).directories[0].is_in_use


def test_a_forked_child_ends_and_leaves_the_cache_to_its_parent():
    run_python(
        """
import os, sys, signal, time, warnings, quire
from byte_engine import *
warnings.simplefilter("ignore")  # Python 3.12 warns of every fork beside threads
engine = Engine(config(4, 32, host={"page_count": 64, "write_policy": quire.WritePolicy.WriteThrough}))
engine.request(token_range(0, 32))
child = os.fork()
if child == 0:
    signal.alarm(3)  # ends it, with another status, if it hangs
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child does not end"
engine.request(token_range(0, 32))
engine.cache.check_invariants()
"""
    )


def test_an_interrupt_ends_a_wait(tmp_path):
    run_python(
        """
import signal, sys, threading, _thread, quire
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without one
from byte_engine import *
disk = {"directories": [sys.argv[1]], "capacity_bytes": 64 << 20}
engine = Engine(config(16, 16, host={"page_count": 16}, disk=disk))
engine.request(token_range(0, 64))
drain(engine.cache)
engine.cache.pause_transfers()  # it would wait for ever
waits = threading.Event()
def interrupt(): waits.wait(); _thread.interrupt_main()
threading.Thread(target=interrupt).start()
try:
    waits.set()
    engine.cache.wait_until_flushed()
    raise SystemExit("ended by itself")
except KeyboardInterrupt:
    pass
engine.cache.resume_transfers()
assert engine.cache.wait_until_flushed(60)
""",
        tmp_path,
    )
