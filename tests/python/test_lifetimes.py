# SPDX-License-Identifier: Apache-2.0
"""What is lent, dropped, closed or forked at the wrong moment: an exception, and never memory that is gone."""

import asyncio
import gc
import mmap
import threading
import weakref

import numpy as np
import pytest

import quire
from byte_engine import (
    DEADLINE_S,
    WRITE_THROUGH,
    Engine,
    config,
    drain,
    engine_with_a_load,
    run_python,
    token_range,
)
from quire import _ready


def adopting(memory, **fields):
    device = {"memory": quire.DeviceMemory.Adopted, "adopted_memory": memory}
    return config(4, 8, device={"page_count": 8, **device}, **fields)


class Lent:
    """A tensor that lends memory made for the loan, and says where its own is."""

    def __init__(self, byte_count=9 * 4 * 8):
        self.array = np.zeros(byte_count, np.uint8)
        self.moved = 0
        self.loans = []

    def __dlpack__(self, **fields):
        class Loan(np.ndarray):
            pass

        loan = self.array.view(Loan)
        self.loans.append(weakref.ref(loan))
        return loan.__dlpack__(**fields)

    def __dlpack_device__(self):
        return (1, 0)

    def data_ptr(self):
        return self.array.ctypes.data + self.moved


def test_a_loan_lasts_as_long_as_the_cache():
    tensor = Lent()
    cache = quire.Cache.open(adopting(tensor))
    gc.collect()
    assert any(loan() is not None for loan in tensor.loans)
    cache.close()
    del cache
    gc.collect()
    assert all(loan() is None for loan in tensor.loans)


def test_a_buffer_that_is_adopted_cannot_be_resized():
    memory = bytearray(9 * 4 * 8)
    cache = quire.Cache.open(adopting(memory))
    with pytest.raises(BufferError):
        memory.clear()
    cache.close()
    memory.clear()


def test_a_buffer_that_goes_to_disk_cannot_be_closed(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    engine = Engine(config(16, 16, host={"page_count": 16}, disk=disk))
    memory = mmap.mmap(-1, 2 * engine.cache.geometry().page.page_bytes)
    answers = []
    engine.cache.put_on_disk(engine.space, token_range(0, 32), memory, answers.append)
    with pytest.raises(BufferError):
        memory.close()
    drain(engine.cache)
    while not answers:
        engine.cache.apply(engine.cache.poll())
    assert answers[0].outcome == quire.TransferOutcome.Ok and answers[0].token_count == 32
    gc.collect()
    memory.close()


def test_a_request_that_close_cuts_off_is_answered(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    engine = Engine(config(16, 16, host={"page_count": 16}, disk=disk))
    answers = []
    memory = np.zeros(2 * engine.cache.geometry().page.page_bytes, np.uint8)
    engine.cache.put_on_disk(engine.space, token_range(0, 32), memory, answers.append)
    engine.cache.close()
    assert [answer.outcome for answer in answers] == [quire.TransferOutcome.Cancelled]


MOVED_CALLS = {
    "admit": lambda cache, one, other, step: cache.admit(other),
    "finish_step": lambda cache, one, other, step: cache.finish_step(step, [None]),
    "apply_copies": lambda cache, one, other, step: cache.apply_copies(step),
    "abort_step": lambda cache, one, other, step: cache.abort_step(step),
    "plan_step": lambda cache, one, other, step: cache.plan_step([one]),
    "preempt": lambda cache, one, other, step: cache.preempt(one, list(quire.Preempt)[0]),
    "sleep": lambda cache, one, other, step: cache.sleep(list(quire.Sleep)[0]),
    "reset": lambda cache, one, other, step: cache.reset(),
    "poll": lambda cache, one, other, step: cache.poll(),
    "apply": lambda cache, one, other, step: cache.apply([]),
    "report_to_ranks": lambda cache, one, other, step: cache.report_to_ranks(0, 1),
    "apply_ranks": lambda cache, one, other, step: cache.apply_ranks([b""]),
    "wait_until_ready": lambda cache, one, other, step: cache.wait_until_flushed(0),
    "device_memory": lambda cache, one, other, step: cache.device_memory(),
    "component_memory": lambda cache, one, other, step: cache.component_memory(),
}


@pytest.mark.parametrize("call", MOVED_CALLS)
def test_memory_that_has_moved_is_never_touched(call):
    tensor = Lent()
    engine = Engine(adopting(tensor, host=WRITE_THROUGH))
    one = engine.admitted([1, 2, 3, 4])
    other = engine.cache.begin(engine.space, [5, 6])
    step = engine.cache.plan_step([one]).step
    tensor.moved = 64
    with pytest.raises(quire.InvalidArgument, match=r"device\.adopted_memory has changed.*close this cache"):
        MOVED_CALLS[call](engine.cache, one, other, step)
    engine.cache.stats()
    engine.cache.close()


def test_adopted_memory_may_not_overlap():
    components = [quire.Component(name="k", dim=8, element=quire.ElementType.Fp32)]
    groups = [quire.CacheGroup(name=name, layers=[i], components=components) for i, name in enumerate("ab")]
    layout = quire.ModelLayout.create("two", groups)
    bare = quire.DeviceConfig(page_count=64, memory=quire.DeviceMemory.None_)
    pool = quire.Cache.open(quire.CacheConfig(layout=layout, device=bare)).geometry(0).pool_bytes
    memory = np.zeros(2 * pool, np.uint8)

    def open_with(*parts):
        device = quire.DeviceConfig(page_count=64, memory=quire.DeviceMemory.Adopted, adopted_group_memory=parts)
        return quire.Cache.open(quire.CacheConfig(layout=layout, device=device))

    for second in (memory[:pool], memory[pool - 1 : 2 * pool - 1], memory[1 : pool + 1]):
        with pytest.raises(quire.InvalidArgument, match=r"adopted_group_memory\[0\] and .*\[1\] share memory"):
            open_with(memory[:pool], second)
    open_with(memory[:pool], memory[pool:]).close()


def test_pages_of_tensors_may_lie_between_each_other_and_not_overlap():
    shape = quire.SimpleShape(layers=1, kv_heads=1, head_dim=4, element=quire.ElementType.Fp32)
    layout = quire.ModelLayout.simple(shape)

    def open_with(k, v):
        tensors = [quire.AdoptedTensor(layer_index=0, component_index=i, data=data) for i, data in enumerate((k, v))]
        device = {"page_count": 8, "memory": quire.DeviceMemory.Adopted, "adopted_tensors": [tensors]}
        return quire.Cache.open(config(4, 8, layout=layout, device=device))

    memory = np.zeros((10, 2, 4, 4), np.float32)

    def pages_from(first):
        return memory.reshape(-1)[first:][: 9 * 32].reshape(9, 2, 4, 4)[:, 0]

    with pytest.raises(quire.InvalidArgument, match="needs .* device.accelerator"):  # and nothing else
        open_with(pages_from(0), pages_from(16))
    for k, v in ((0, 0), (0, 15), (0, 17), (16, 1), (8, 16)):
        with pytest.raises(quire.InvalidArgument, match="share memory"):
            open_with(pages_from(k), pages_from(v))


def test_a_step_that_is_dropped_did_not_happen():
    engine = Engine(config(4, 32))
    for i in range(4):
        with pytest.raises(ZeroDivisionError):
            with engine.cache.begin(engine.space, token_range(100 * i, 8)) as sequence:
                engine.cache.admit(sequence)
                step = engine.cache.plan_step([sequence]).step
                1 / 0
        del step
    gc.collect()
    engine.cache.reset()
    assert engine.cache.stats().free_pages == 32


def test_steps_that_are_dropped_in_flight_are_aborted_whatever_their_order():
    for order in ([0, 1], [1, 0]):
        engine = Engine(config(4, 32, steps_in_flight_max=2))
        sequence = engine.admitted(token_range(0, 9))
        steps = [engine.cache.plan_step([quire.StepEntry(sequence=sequence, token_count=4)]).step for _ in range(2)]
        for i in order:
            steps[i] = None
        assert engine.cache.view(sequence).pending_tokens == 9
        engine.cache.check_invariants()


def test_a_step_whose_plan_is_held_lives():
    engine = Engine(config(4, 32))
    sequence = engine.admitted(token_range(0, 9))
    plan = engine.cache.plan_step([sequence]).step.plan
    gc.collect()
    engine.cache.stats()
    assert len(plan.entries[0].tokens) == 9


def test_a_block_aborts_a_step_that_it_does_not_finish():
    engine = Engine(config(4, 32))
    sequence = engine.admitted(token_range(0, 8))
    with pytest.raises(ZeroDivisionError), engine.cache.plan_step([sequence]).step as step:
        1 / 0
    assert "over" in repr(step) and engine.cache.view(sequence).pending_tokens == 8
    with engine.cache.plan_step([sequence]).step as step:
        engine.cache.finish_step(step, [None])
    assert engine.cache.view(sequence).pending_tokens == 0


def test_entries_that_are_made_while_they_are_read_are_kept():
    engine = Engine(config(4, 64, tree_tokens_max=16))
    sequence = engine.admitted([1, 2, 3])
    engine.cache.finish_step(engine.plan(sequence), [[4]])

    class Made:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            if index:
                raise IndexError
            return quire.StepEntry(sequence=sequence, tree_parents=[-1, 0, 1, 2, 3])

    for _ in range(100):
        engine.cache.abort_step(engine.cache.plan_step(Made()).step)


def test_a_callback_lives_as_long_as_a_sequence_of_its_cache():
    def make():
        tokens = token_range(0, 16)
        engine, _ = engine_with_a_load(tokens)
        cache, told = engine.cache, []
        cache.set_ready_callback(lambda sequence: told.append((sequence, cache)))  # a cycle
        return cache.begin(engine.space, tokens), told

    sequence, told = make()
    gc.collect()
    cache = sequence.cache
    cache.admit(sequence)
    for plan in cache.take_transfers():
        cache.apply([quire.Completion(id=plan.id, kind=plan.kind, good_pages=len(plan.pages))], 0)
    assert [one for one, _ in told] == [sequence.id]


def test_closing_twice_while_others_wait_lets_all_of_them_go():
    made = config(1, 200_000, device={"memory": quire.DeviceMemory.None_}, step_tokens_max=200_000)
    for _ in range(5):
        cache = quire.Cache.open(made)
        space = cache.key_space(quire.KeySpace(model="m"))
        sequence = cache.begin(space, np.arange(190_000))
        cache.admit(sequence)
        cache.finish_step(cache.plan_step([sequence]).step, [None])

        def call(what):
            try:
                what()
            except quire.Error:
                pass

        calls = [cache.check_invariants, cache.close, cache.close, *[cache.stats] * 4]
        threads = [threading.Thread(target=call, args=[one], daemon=True) for one in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not any(thread.is_alive() for thread in threads)


def test_a_child_of_a_process_whose_threads_wait_ends():
    run_python("""
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads: this is one
from byte_engine import engine_with_a_load, token_range
tokens = token_range(0, 16)
engine, mover = engine_with_a_load(tokens)
sequence = engine.admitted(tokens)
thread = threading.Thread(target=lambda: engine.cache.wait_until_ready(sequence, 1))
thread.start()
time.sleep(0.1)
child = os.fork()
if child == 0: sys.exit(0)
deadline = time.monotonic() + 30
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline: time.sleep(0.01)
if ended == (0, 0): os.kill(child, 9); raise SystemExit("the child never ends")
assert ended[1] == 0, ended
thread.join()
""")


@pytest.mark.parametrize("thread_count", [1, 4])
def test_the_interpreter_ends_while_threads_open_caches(thread_count):
    run_python(f"""
import threading, time, quire
from byte_engine import config
def work():
    try:
        while True: quire.Cache.open(config(4, 32, host={{"page_count": 64}})).close()
    except quire.Unavailable: pass
for _ in range({thread_count}): threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
""")


def test_a_tensor_cannot_close_the_cache_that_asks_it():
    class Closing(Lent):
        cache = None

        def data_ptr(self):
            if self.cache is not None:
                with pytest.raises(quire.Unavailable, match="busy"):
                    self.cache.close()
            return super().data_ptr()

    tensor = Closing()
    engine = Engine(adopting(tensor))
    tensor.cache = engine.cache
    sequence = engine.admitted([1, 2, 3])
    engine.cache.abort_step(engine.cache.plan_step([sequence]).step)
    tensor.cache = None


def send_to_host(engine, tokens):
    """What is cached of them is on the host alone."""
    with engine.cache.begin(engine.space, tokens) as sequence:
        engine.cache.admit(sequence)
        engine.cache.finish_step(engine.cache.plan_step([sequence]).step, [None])
    drain(engine.cache)
    engine.cache.reclaim(100)


def test_tasks_that_wait_hear_why_nothing_comes():
    tensor = Lent(9 * 4 * (1 << 16))
    layout = quire.ModelLayout.opaque(1 << 16)
    engine = Engine(adopting(tensor, layout=layout, host={**WRITE_THROUGH, "external_mover": False}))
    cache = engine.cache
    send_to_host(engine, token_range(0, 16))

    async def main():
        loads = cache.begin(engine.space, token_range(0, 16))
        cache.admit(loads)
        if not cache.view(loads).is_loading:
            return
        tensor.moved = 64
        with pytest.raises(quire.InvalidArgument, match="freed or moved"):
            await asyncio.wait_for(loads.ready(), DEADLINE_S)
        tensor.moved = 0

    asyncio.run(main())


def test_nothing_is_left_of_an_event_loop_that_waited():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)
    loops = []

    async def main():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with engine.cache.begin(engine.space, tokens) as sequence:
            engine.cache.admit(sequence)
            waiting = asyncio.ensure_future(sequence.ready())
            await asyncio.sleep(0)
            mover.settle()
            await waiting
        engine.cache.reclaim(100)

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert not any(_ready._pumps.values())
    assert all(loop() is None for loop in loops)


def test_no_reader_of_others_is_taken_from_a_loop():
    import socket

    tokens = token_range(0, 16)
    engine = Engine(config(4, 32, layout=quire.ModelLayout.opaque(4 << 20), context_tokens_max=32, host=WRITE_THROUGH))
    cache = engine.cache
    send_to_host(engine, tokens)

    async def main():
        loads = cache.begin(engine.space, tokens)
        cache.admit(loads)
        waiting = asyncio.ensure_future(loads.ready())
        await asyncio.sleep(0)
        descriptor = cache.event_fd()
        cache.close()
        pairs = []
        while not pairs or max(end.fileno() for end in pairs[-1]) < descriptor:
            pairs.append(socket.socketpair())
        mine, other = sorted(pairs[-1], key=lambda end: end.fileno() != descriptor)
        heard = asyncio.Event()
        asyncio.get_running_loop().add_reader(mine, heard.set)
        try:
            await waiting
        except quire.InvalidArgument:
            pass  # the cache is closed
        other.send(b"x")
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        asyncio.get_running_loop().remove_reader(mine)
        for pair in pairs:
            for end in pair:
                end.close()

    asyncio.run(main())
