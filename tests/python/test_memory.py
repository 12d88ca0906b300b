# SPDX-License-Identifier: Apache-2.0
"""Memory: nothing grows with the number of requests, and nothing goes while somebody looks at it."""

import gc
import weakref

import numpy as np
import pytest

import quire
from byte_engine import Engine, config, run_python, token_range

GROWTH_BYTES_MAX = 2 << 20

# Real requests: begin, admit, plan, finish, end. The resident set is read from the kernel, in a process of its own.
REQUESTS = """
import gc, os, sys
import numpy as np
import quire
from byte_engine import config

def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

made = config(16, 256, device={"memory": quire.DeviceMemory.None_}, sequence_count_max=8)
cache = quire.Cache.open(made)
space = cache.key_space(quire.KeySpace(model="m"))
random = np.random.default_rng(7)
shared = random.integers(0, 1000, 64, dtype=np.int64)

def request(i):
    prompt = np.concatenate([shared[: 16 * (i % 5)], random.integers(0, 1000, 8 + i % 40)])
    sequence = cache.begin(space, prompt if i % 3 else prompt.tolist())
    cache.admit(sequence)
    outcome = cache.plan_step([sequence])
    plan = outcome.step.plan
    cache.finish_step(outcome.step, [int(plan.seq_lens[0])])
    if i % 16 == 0:
        plan_again = cache.plan_step([quire.StepEntry(sequence=sequence)]).step
        cache.abort_step(plan_again)
        fork = cache.fork(sequence, 4)
        try:
            cache.view(fork).missing
        except AttributeError:
            pass
        try:
            cache.begin(space, [-1])
        except quire.InvalidArgument:
            pass
        cache.stats(), cache.lookup(space, prompt), cache.read_residency(0, 8)
    if i % 7:
        cache.end(sequence)

begin = 0
for i in range(100_000):
    request(i)
    if i == 10_000:
        begin = resident_bytes()
grown = resident_bytes() - begin
stats = cache.stats()
assert stats.sequence_count == 0 and stats.evicted_page_total > 1000 and stats.hit_tokens > 10_000
print(grown)
"""


def test_the_resident_set_does_not_grow_with_the_number_of_requests():
    assert int(run_python(REQUESTS).stdout) < GROWTH_BYTES_MAX


TIERS = """
import gc, os, sys, time
import numpy as np
import quire
from byte_engine import *

def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

disk = {"directories": [sys.argv[1]], "capacity_bytes": 64 << 20, "segment_bytes": 1 << 20}
engine = Engine(config(16, 16, host={"page_count": 32}, disk=disk))
told = []
engine.cache.set_ready_callback(told.append)
begin = 0
for i in range(3_000):
    engine.request(token_range(1000 * (i % 6), 64))
    engine.cache.lookup_on_disk(engine.space, token_range(0, 32), lambda answer: None)
    drain(engine.cache)
    told.clear()
    np.asarray(engine.cache.device_memory())
    if i == 1_000:
        begin = resident_bytes()
print(resident_bytes() - begin)
"""


def test_nor_does_it_with_tiers_callbacks_and_arrays(tmp_path):
    assert int(run_python(TIERS, tmp_path).stdout) < GROWTH_BYTES_MAX


OPEN_AND_CLOSE = """
import gc, os, sys
import quire
from byte_engine import *

def resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

begin = 0
for i in range(600):
    engine = Engine(config(4, 64, host={"page_count": 64}))
    engine.cache.set_ready_callback(lambda _, engine=engine: engine)
    engine.request(token_range(0, 64))
    if i % 2:
        engine.cache.close()
    if i % 3 == 0:
        made = engine.plan(engine.admitted([1, 2])) if i % 2 == 0 else None
    del engine
    if i % 50 == 0:
        gc.collect()
    if i == 200:
        made = None
        begin = resident_bytes()
made = None
print(resident_bytes() - begin, len(os.listdir("/proc/self/fd")) < 30)
"""


def test_caches_that_are_opened_and_dropped_leave_nothing_behind():
    grown, has_few_files = run_python(OPEN_AND_CLOSE).stdout.split()
    assert int(grown) < GROWTH_BYTES_MAX and has_few_files == "True"


def test_arrays_of_the_pool_keep_its_memory_after_close():
    engine = Engine(config())
    memory = np.asarray(engine.cache.device_memory())
    engine.request(token_range(0, 8))
    before = memory.copy()
    assert before.any()
    engine.cache.close()
    gc.collect()
    np.testing.assert_array_equal(memory, before)
    memory[:] = 3
    assert memory.sum() == 3 * memory.size


def test_arrays_of_a_plan_keep_their_memory_after_close():
    engine = Engine(config())
    step = engine.plan(engine.admitted(token_range(0, 6)))
    array = step.plan.append_slots
    slots = array.tolist()
    engine.cache.close()
    del engine, step
    gc.collect()
    assert array.tolist() == slots


def test_the_cache_goes_with_the_last_array_of_its_memory():
    engine = Engine(config())
    gone = weakref.ref(engine.cache)
    memory = np.asarray(engine.cache.device_memory())
    view = memory[8:16]
    del engine, memory
    gc.collect()
    view[0] = 1
    del view
    gc.collect()
    assert gone() is None


def test_views_of_a_plan_are_refused_when_the_step_is_over():
    engine = Engine(config(plan=quire.PlanConfig(page_tables=quire.PageTables.Csr, layer_windows=[4])))
    ends = (lambda step: engine.cache.finish_step(step, [None]), engine.cache.abort_step)
    for i, end in enumerate(ends):
        step = engine.plan(engine.admitted(token_range(100 * i, 6)))
        plan = step.plan
        group = plan.groups[0]
        level, window = group.levels[0], group.layer_windows[0]
        (entry,) = plan.entries
        end(step)
        asks = [
            lambda: step.plan.seq_lens,
            lambda: plan.query_positions,
            lambda: plan.entries,
            lambda: plan.shape,
            lambda: plan.groups,
            lambda: group.append_slots,
            lambda: group.levels,
            lambda: level.page_indptr,
            lambda: window.page_indptr,
            lambda: quire.flashinfer_view(plan),
        ]
        for ask in asks:
            with pytest.raises(quire.InvalidArgument, match="is over"):
                ask()
        assert entry.tokens.size == 6 and entry.append_slots.size == 6  # a copy
        assert "over" in repr(step)


def test_views_of_a_plan_are_refused_when_the_cache_is_closed_or_stay_good():
    engine = Engine(config())
    step = engine.plan(engine.admitted(token_range(0, 6)))
    plan = step.plan
    engine.cache.close()
    try:
        assert plan.seq_lens.tolist() == [6]
    except quire.InvalidArgument as error:
        assert "closed" in str(error)


def test_the_pool_is_not_moved_below_an_array():
    engine = Engine(config(4, 8, host={"page_count": 8}, context_tokens_max=16))
    memory = np.asarray(engine.cache.device_memory())
    for call in (lambda: engine.cache.resize(16), lambda: engine.cache.sleep(quire.Sleep.DropAll)):
        with pytest.raises(quire.Unavailable, match="drop them first"):
            call()
    memory[0] = 0
    del memory
    gc.collect()
    engine.cache.resize(16)
    while not engine.cache.sleep(quire.Sleep.DropAll):
        engine.cache.apply(engine.cache.poll(), 0)
    engine.cache.wake()


def test_a_step_in_flight_survives_a_resize():
    engine = Engine(config(4, 8, context_tokens_max=16))
    sequence = engine.admitted(token_range(0, 6))
    step = engine.plan(sequence)
    array = step.plan.append_slots
    slots = array.tolist()
    with pytest.raises(quire.Error):  # between steps
        engine.cache.resize(16)
    engine.compute(step, token_range(0, 6))
    engine.cache.finish_step(step, [None])
    engine.cache.resize(16)
    engine.check(sequence, token_range(0, 6))
    assert array.size == len(slots)  # still readable
    step = engine.plan(engine.admitted([5, 6]))
    engine.cache.finish_step(step, [None])
