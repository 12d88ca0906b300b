# SPDX-License-Identifier: Apache-2.0
"""Several tensor-parallel ranks with a disk tier: one cache that drives them all, and a cache for each."""

import asyncio
import copy
import gc
import pickle
import shutil
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, slots_of, token_range, values_of

PAGE_TOKENS = 16
TOKENS = token_range(0, 64)


def two_heads():
    """A row of eight bytes for each head: with two ranks, each has one."""
    rows = quire.Component(name="rows", element=quire.ElementType.Bytes, heads=2, dim=8)
    group = quire.CacheGroup(name="full", layers=[0], components=[rows], keys_rotated=False)
    return quire.ModelLayout.create("ranks", [group])


def ranked(path, rank_count=2, **disk):
    """A configuration without movers. `rank_count` is of the cache; the engine has two ranks."""
    made = quire.CacheConfig(layout=two_heads(), sequence_count_max=4)
    made.page = quire.PageOptions(page_tokens=PAGE_TOKENS, rank_count=2)
    made.device = quire.DeviceConfig(page_count=16, memory=quire.DeviceMemory.None_)
    made.host = quire.HostConfig(
        page_count=32, write_policy=quire.WritePolicy.WriteThrough, external_mover=True, rank_count=rank_count
    )
    made.disk = quire.DiskConfig(directories=[path], capacity_bytes=64 << 20, segment_bytes=1 << 20, **disk)
    return made


class Rank:
    """One rank's device memory and its mover. Every token of a page is a row of 64 bits there."""

    def __init__(self, made, number):
        self.number = number
        page = quire.PageGeometry.create(made.layout.groups[0], made.page)
        geometry = quire.PoolGeometry.create(page, quire.PoolOptions(page_count=made.device.page_count + 1))
        self.memory = np.zeros(geometry.pool_bytes, np.uint8)
        self.mover = quire.Mover.open(
            quire.MoverConfig(
                device_geometry=geometry,
                device_memory=self.memory,
                host_page_count=made.host.page_count,
                rank=number if made.host.rank_count > 1 else 0,
            )
        )

    def rows(self):
        return self.memory.view(np.uint64)

    def values(self, tokens):
        return values_of(tokens, salt=1 + self.number)


class RankedEngine:
    """A cache and the ranks that it drives."""

    def __init__(self, made, numbers=(0, 1)):
        self.ranks = [Rank(made, number) for number in numbers]
        made.host.rank_movers = [rank.mover for rank in self.ranks]
        self.cache = quire.Cache.open(made)
        self.space = self.cache.key_space(quire.KeySpace(model="test"))

    def exchange(self):
        for plan in self.cache.take_transfers():
            for rank in self.ranks:
                assert rank.mover.try_submit(plan)
        for id in self.cache.take_cancellations():
            for rank in self.ranks:
                rank.mover.cancel(id)
        for rank in self.ranks:
            self.cache.apply(rank.mover.poll())
        self.cache.apply(self.cache.poll())

    def exchange_until(self, is_done):
        deadline = time.monotonic() + DEADLINE_S
        while not is_done():
            assert time.monotonic() < deadline
            self.exchange()

    def request(self, tokens):
        """A whole request: every row is checked on every rank. Gives what it found."""
        cache = self.cache
        sequence = cache.begin(self.space, tokens)
        cache.admit(sequence)
        self.exchange_until(lambda: not cache.view(sequence).is_loading)
        found = cache.view(sequence).computed_tokens
        step = cache.plan_step([sequence]).step
        (entry,) = step.plan.entries
        slots = slots_of(entry, PAGE_TOKENS)[: len(tokens)]
        for rank in self.ranks:
            values = rank.values(tokens)
            np.testing.assert_array_equal(rank.rows()[slots[: entry.position]], values[: entry.position])
            written = entry.append_slots != quire.NO_SLOT
            rank.rows()[entry.append_slots[written]] = values[entry.position :][written]
            np.testing.assert_array_equal(rank.rows()[slots], values)
        cache.finish_step(step, [None])
        cache.end(sequence)
        self.exchange_until(lambda: cache.stats().transfers_in_flight == 0)
        cache.check_invariants()
        return found

    def close(self):
        """With everything on disk."""
        self.exchange_until(self.cache.flush)
        self.cache.close()
        for rank in self.ranks:
            rank.mover.close()


class OwnRank(RankedEngine):
    """One of two ranks, each with a cache of its own. They run in threads, and exchange once in each step."""

    def __init__(self, path, number, given, barrier):
        super().__init__(ranked(path / str(number), rank_count=1, rank_index=number), [number])
        self.number, self.given, self.barrier = number, given, barrier
        self.agreed = []

    def all_gather(self, report):
        self.given[self.number] = report
        self.barrier.wait(DEADLINE_S)
        reports = list(self.given)
        self.barrier.wait(DEADLINE_S)
        return reports[:: 1 - 2 * self.number]  # in any order

    def exchange(self):
        (rank,) = self.ranks
        for plan in self.cache.take_transfers():
            assert rank.mover.try_submit(plan)
        for id in self.cache.take_cancellations():
            rank.mover.cancel(id)
        report = self.cache.report_to_ranks(self.number, len(self.given), moved=rank.mover.poll())
        agreed = self.cache.apply_ranks(self.all_gather(report))
        assert self.cache.now() >= agreed.now
        self.agreed += agreed.completions


def test_what_two_ranks_write_a_fresh_cache_reads(tmp_path):
    first = RankedEngine(ranked(tmp_path))
    assert first.request(TOKENS) == 0
    first.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-0-of-2", "shard-1-of-2"]
    second = RankedEngine(ranked(tmp_path))
    assert second.request(TOKENS) == 64  # every row of both ranks is checked
    assert second.cache.stats().disk_hit_tokens == 64
    second.close()


def test_a_cache_keeps_the_movers_of_its_ranks(tmp_path):
    engine = RankedEngine(ranked(tmp_path))
    assert engine.request(TOKENS) == 0
    seen = [weakref.ref(rank.memory) for rank in engine.ranks]
    cache = engine.cache
    for rank in engine.ranks:
        rank.mover.close()  # takes no more calls
        with pytest.raises(quire.InvalidArgument, match="the mover was closed"):
            rank.mover.poll()
    del engine, rank
    gc.collect()
    assert all(memory() is not None for memory in seen)
    deadline = time.monotonic() + DEADLINE_S
    while not cache.flush():  # the disk tier reads the host pages of both
        assert time.monotonic() < deadline
        cache.apply(cache.poll())
    cache.close()
    gc.collect()
    assert [memory() for memory in seen] == [None, None]
    again = RankedEngine(ranked(tmp_path))
    assert again.request(TOKENS) == 64
    again.close()


def test_a_cache_that_is_never_closed_ends_before_its_movers(tmp_path):
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from test_ranks import RankedEngine, TOKENS, ranked
engine = RankedEngine(ranked({str(tmp_path)!r}))
assert engine.request(TOKENS) == 0
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_movers_that_do_not_fit_are_refused(tmp_path):
    made = ranked(tmp_path)
    movers = [Rank(made, number).mover for number in range(2)]
    with pytest.raises(quire.Unsupported, match="rank_movers"):
        quire.Cache.open(made)
    made.host.rank_movers = movers[:1]
    assert made.host.rank_movers == (movers[0],)
    with pytest.raises(quire.InvalidArgument, match="1 movers; host.rank_count is 2"):
        quire.Cache.open(made)
    made.host.rank_movers = movers[::-1]
    with pytest.raises(quire.InvalidArgument, match=r"host.rank_movers\[0\] reports as rank 1"):
        quire.Cache.open(made)
    made.host.rank_movers = [movers[0], 7]
    with pytest.raises(quire.InvalidArgument, match=r"host.rank_movers\[1\] is 7: give what Mover.open"):
        made.validate()
    with pytest.raises(TypeError, match="HostConfig.rank_movers"):
        made.host.rank_movers = 7
    movers[1].close()
    made.host.rank_movers = movers
    with pytest.raises(quire.InvalidArgument, match=r"host.rank_movers\[1\] was closed"):
        quire.Cache.open(made)
    alone = ranked(tmp_path / "alone", rank_count=1, rank_index=0)
    alone.host = quire.HostConfig(page_count=32, rank_movers=[movers[0]])
    alone.device.memory = quire.DeviceMemory.Host
    with pytest.raises(quire.InvalidArgument, match="host.external_mover is off"):
        quire.Cache.open(alone)


def test_a_configuration_with_movers_is_copied_and_never_pickled(tmp_path):
    made = ranked(tmp_path)
    movers = tuple(Rank(made, number).mover for number in range(2))
    made.host.rank_movers = movers
    again = copy.deepcopy(made)
    assert again == made and again.host.rank_movers == movers
    made.host.rank_movers = []
    assert again != made
    with pytest.raises(TypeError, match="a Mover cannot be pickled"):
        pickle.dumps(again)


def test_a_cache_of_one_rank_never_reads_what_another_rank_wrote(tmp_path):
    def served(rank, name):
        engine = RankedEngine(ranked(tmp_path / name, rank_count=1, rank_index=rank), [rank])
        found = engine.request(TOKENS)  # checks that rank's bytes
        engine.close()
        return found

    assert [served(0, "a"), served(1, "b")] == [0, 0]
    assert [served(0, "a"), served(1, "b")] == [64, 64]
    assert [served(0, "b"), served(1, "a")] == [0, 0]  # somebody has exchanged the directories
    with pytest.raises(quire.InvalidArgument, match="disk.rank_index is not set"):
        RankedEngine(ranked(tmp_path / "c", rank_count=1), [0])


def test_caches_of_ranks_find_what_all_of_them_have(tmp_path):
    given, barrier = [b"", b""], threading.Barrier(2)

    def serve(number):
        engine = OwnRank(tmp_path, number, given, barrier)
        found = [engine.request(TOKENS), engine.request(token_range(1000, 64)), engine.request(TOKENS)]
        assert len(engine.agreed) > 0
        engine.close()
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(serve, range(2))) == [[0, 0, 64]] * 2
        shutil.rmtree(tmp_path / "1")
        assert list(pool.map(serve, range(2))) == [[0, 0, 64]] * 2  # though rank 0 has them
        assert list(pool.map(serve, range(2))) == [[64, 64, 64]] * 2


def reporting(path, rank=0):
    """A cache of one rank that has reported."""
    engine = RankedEngine(ranked(path, rank_count=1, rank_index=rank), [rank])
    report = engine.cache.report_to_ranks(rank, 2, now=7)
    return engine, report


def test_an_agreement_has_time_and_completions(tmp_path):
    (one, first), (other, second) = (reporting(tmp_path / str(rank), rank) for rank in range(2))
    for engine in (one, other):
        agreed = engine.cache.apply_ranks([second, first])
        assert (agreed.now, agreed.completions) == (7, ())
        engine.cache.close()


def test_reports_that_are_none_are_refused(tmp_path):
    (one, first), (other, second) = (reporting(tmp_path / str(rank), rank) for rank in range(2))
    for bad in ([], [b"", b""], [first[:-1], second], [first], [first, first], [first, b"x" * len(second)]):
        with pytest.raises(quire.InvalidArgument, match="apply_ranks"):
            one.cache.apply_ranks(bad)
    with pytest.raises(TypeError):
        one.cache.apply_ranks([7])
    for rank, count in ((2, 2), (0, 0), (1, 2), (0, 3), (-1, 2)):
        with pytest.raises((quire.InvalidArgument, TypeError)):
            one.cache.report_to_ranks(rank, count)
    one.cache.apply_ranks([first, second])
    with pytest.raises(quire.InvalidArgument, match="comes first"):
        one.cache.apply_ranks([first, second])
    assert one.cache.report_to_ranks(0, 2) != first
    one.cache.close()
    other.cache.close()


def test_a_cache_of_another_configuration_is_refused(tmp_path):
    one, first = reporting(tmp_path / "a", 0)
    made = ranked(tmp_path / "b", rank_count=1, rank_index=1)
    made.policy = "fifo"
    other = RankedEngine(made, [1])
    second = other.cache.report_to_ranks(1, 2, now=7)
    for engine in (one, other):
        with pytest.raises(quire.Corrupt, match="opened otherwise"):
            engine.cache.apply_ranks([first, second])
        engine.cache.close()


def test_ranks_that_report_do_not_wait_or_apply_alone(tmp_path):
    engine = RankedEngine(ranked(tmp_path, rank_count=1, rank_index=0), [0])
    engine.cache.report_to_ranks(0, 1)
    cache = engine.cache
    sequence = cache.begin(engine.space, TOKENS)
    cache.admit(sequence)
    for call in (
        cache.poll,
        lambda: cache.apply([]),
        lambda: cache.advance(10**18),
        lambda: cache.wait_until_ready(sequence, 0),
        lambda: cache.wait_until_flushed(0),
        lambda: asyncio.run(sequence.ready()),
    ):
        with pytest.raises(quire.Unsupported, match=r"report_to_ranks\(\)"):
            call()
    cache.close()
    late = RankedEngine(ranked(tmp_path, rank_count=1, rank_index=0), [0])
    late.cache.poll()
    with pytest.raises(quire.Unsupported, match="told by poll"):
        late.cache.report_to_ranks(0, 1)
    late.cache.close()


def test_the_clock_goes_on_while_reports_are_gathered(tmp_path):
    engine = RankedEngine(ranked(tmp_path, rank_count=1, rank_index=0), [0])
    cache = engine.cache
    report = cache.report_to_ranks(0, 1)
    told = cache.now()
    while cache.now() < told + 2_000_000:  # what the gathering takes
        pass
    before = cache.now()
    assert cache.apply_ranks([report]).now <= told
    assert cache.now() >= before
    # What the caller says is the time is the time, and another rank's may be later.
    ahead = before + 10**12
    cache.report_to_ranks(0, 1, now=ahead)
    assert ahead <= cache.now()
    agreed = cache.apply_ranks([cache.report_to_ranks(0, 1)])
    assert ahead <= agreed.now <= cache.now()
    cache.close()
