# SPDX-License-Identifier: Apache-2.0
"""Callbacks of one call, holds on the host, names of pages, and disks that are only read or only written."""

import pickle

import pytest

import quire
from byte_engine import DEADLINE_S, Engine, config, drain, token_range

TOKENS = token_range(0, 64)


def disk_config(path, access=quire.TierAccess.ReadAndWrite):
    disk = {"directories": [path], "segment_bytes": 1 << 20, "access": access}
    if access != quire.TierAccess.ReadOnly:
        disk["capacity_bytes"] = 64 << 20
    return config(16, 16, host={"page_count": 32, "write_policy": quire.WritePolicy.WriteThrough}, disk=disk)


def write_library(path):
    engine = Engine(disk_config(path))
    assert engine.request(TOKENS) == 0
    assert engine.cache.wait_until_flushed(DEADLINE_S)
    names = engine.cache.page_names(engine.space, TOKENS)
    engine.cache.close()
    return names


def test_a_callback_of_admit_comes_once_also_when_the_sequence_is_ready_at_once(tmp_path):
    write_library(tmp_path / "pages")
    engine = Engine(disk_config(tmp_path / "pages"))
    told = []
    with engine.cache.begin(engine.space, token_range(5000, 16)) as ready:
        assert engine.cache.admit(ready, told.append).is_ready or engine.cache.wait_until_ready(ready, DEADLINE_S)
        assert told == [ready.id]
    with engine.cache.begin(engine.space, TOKENS) as sequence:
        assert not engine.cache.admit(sequence, told.append).is_ready
        assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
        assert told[1:] == [sequence.id]
        assert engine.cache.view(sequence).computed_tokens == 64
        engine.cache.preempt(sequence, quire.Preempt.Drop)
        assert engine.cache.resume(sequence, callback=told.append).is_ready
        assert told[1:] == [sequence.id, sequence.id]


def test_a_callback_may_call_the_cache_and_its_exception_is_raised():
    engine = Engine(config())
    with engine.cache.begin(engine.space, [1, 2, 3]) as sequence:

        def fail(_):
            assert not engine.cache.view(sequence).is_loading
            raise RuntimeError("of the callback")

        with pytest.raises(RuntimeError, match="of the callback"):
            engine.cache.admit(sequence, fail)
    with engine.cache.begin(engine.space, [1, 2, 3]) as sequence:
        with pytest.raises(quire.InvalidArgument, match="callback is of type int"):
            engine.cache.admit(sequence, 7)
        assert engine.cache.view(sequence).is_waiting


def test_a_sequence_that_was_not_admitted_is_not_waited_for():
    engine = Engine(config())
    with engine.cache.begin(engine.space, [1, 2, 3]) as sequence:
        with pytest.raises(quire.InvalidArgument, match="admit it first"):
            engine.cache.wait_until_ready(sequence, 0)


def test_a_prefix_is_brought_to_the_host_and_held(tmp_path):
    write_library(tmp_path / "pages")
    engine = Engine(disk_config(tmp_path / "pages"))
    told = []
    hold = engine.cache.hold_on_host(engine.space, TOKENS, ttl_ns=10**15, callback=told.append)
    assert hold.is_arriving
    drain(engine.cache)
    assert [held.token_count for held in told] == [64]
    assert engine.cache.held_prefix(hold.id).token_count == 64
    assert engine.cache.held_prefix(hold.id).miss.reason == quire.MissReason.None_
    assert engine.cache.lookup(engine.space, TOKENS).host_tokens == 64
    assert engine.cache.stats().held_pages == 4
    assert pickle.loads(pickle.dumps(hold.id)) == hold.id
    assert engine.request(TOKENS) == 64
    engine.cache.release_hold(hold.id)
    with pytest.raises(quire.InvalidArgument, match="not held"):
        engine.cache.held_prefix(hold.id)
    with pytest.raises(quire.InvalidArgument, match="tier_max"):
        engine.cache.hold_on_host(engine.space, TOKENS, tier_max=quire.Tier.Device)


def test_names_of_pages_are_the_same_with_and_without_a_disk(tmp_path):
    names = write_library(tmp_path / "pages")
    assert [len(name) for name in names] == [32] * 4
    assert len(set(names)) == 4
    engine = Engine(config(16, 16))
    assert engine.cache.page_names(engine.space, TOKENS) == names
    assert engine.cache.page_names(engine.space, TOKENS[:40]) == names[:2]


def test_a_disk_that_is_only_read_serves_and_stays_as_it_was(tmp_path):
    write_library(tmp_path / "pages")
    before = {path.name: path.read_bytes() for path in (tmp_path / "pages").iterdir()}
    first = Engine(disk_config(tmp_path / "pages", quire.TierAccess.ReadOnly))
    second = Engine(disk_config(tmp_path / "pages", quire.TierAccess.ReadOnly))
    assert first.request(TOKENS) == 64
    assert second.request(TOKENS) == 64
    assert first.request(token_range(9000, 64)) == 0
    drain(first.cache)
    with pytest.raises(quire.Unsupported, match="only read"):
        first.cache.flush()
    with pytest.raises(quire.Unavailable):
        Engine(disk_config(tmp_path / "pages"))
    first.cache.close()
    second.cache.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "pages").iterdir()} == before


def test_a_disk_that_is_only_written_is_not_looked_at(tmp_path):
    write_library(tmp_path / "pages")
    engine = Engine(disk_config(tmp_path / "pages", quire.TierAccess.WriteOnly))
    assert engine.request(TOKENS) == 0
    assert engine.cache.stats().disk_find_count == 0
    assert engine.cache.wait_until_flushed(DEADLINE_S)


def test_streams_and_nodes_are_settings():
    streams = quire.TransferStreams(set_count=2, priority=quire.StreamPriority.Low)
    host = quire.HostConfig(load_streams=streams, region=quire.HostRegionConfig(bind_threads=False))
    assert host.load_streams.set_count == 2
    assert host.store_streams == quire.TransferStreams()
    given = quire.TransferStreams(given=[quire.SwapStreams(copies=1234)])
    assert given.given[0].copies == 1234 and given.given[0].kernels == 0
    made = config(host={"page_count": 8, "load_streams": quire.TransferStreams(set_count=9)})
    with pytest.raises(quire.InvalidArgument, match="load_streams.set_count is 9"):
        quire.Cache.open(made)
    region = Engine(config(host={"page_count": 8})).cache.host_region()
    assert region.numa_node is None and not region.has_bound_threads
