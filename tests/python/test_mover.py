# SPDX-License-Identifier: Apache-2.0
"""Mover, SwapEngine and the metrics from Python: an engine that moves its own pages."""

from __future__ import annotations

import gc
import mmap
import pickle
import select
import threading
import urllib.request
import weakref

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, WRITE_THROUGH, Engine, config, run_python, token_range

Kind, Outcome, Fault = quire.TransferKind, quire.TransferOutcome, quire.TransferFault
PAGE_BYTES = 4 * 64
LONG_NS = DEADLINE_S * 10**9


def geometry(page_count=9, layers=1, token_bytes=64):
    layout = quire.ModelLayout.opaque(token_bytes)
    if layers > 1:
        layout = quire.ModelLayout.simple(quire.SimpleShape(name="m", layers=layers, kv_heads=1, head_dim=8))
    page = quire.PageGeometry.create(layout.groups[0], quire.PageOptions(page_tokens=4))
    return quire.PoolGeometry.create(page, quire.PoolOptions(page_count=page_count))


def open_mover(memory=None, **fields):
    of = fields.pop("device_geometry", None) or geometry()
    memory = np.zeros(of.pool_bytes, np.uint8) if memory is None else memory
    fields.setdefault("host_page_count", 8)
    return quire.Mover.open(quire.MoverConfig(device_geometry=of, device_memory=memory, **fields)), memory


def plan(index, kind, *pages, **fields):
    """Pages are pairs of a device page and a host page."""
    made = [quire.PageTransfer(device_page=d, host_page=h, host_generation=1, name_tag=77 + h) for d, h in pages]
    return quire.TransferPlan(id=quire.TransferId(index=index), kind=kind, pages=made, **fields)


def finish(mover, made):
    """Submits a plan and waits for its completion."""
    assert mover.try_submit(made)
    assert mover.wait(made.id, made.band_count - 1, LONG_NS) != Outcome.TimedOut
    while not (ended := mover.poll()):
        select.select([mover.event_fd()], [], [], 1)
    assert len(ended) == 1 and ended[0].id == made.id
    return ended[0]


def test_pages_go_to_the_host_and_come_back():
    mover, memory = open_mover()
    pages = memory.reshape(9, -1)
    pages[1:4] = np.arange(1, 4, dtype=np.uint8)[:, None]
    stored = finish(mover, plan(1, Kind.Store, (1, 5), (2, 6), (3, 7)))
    assert (stored.outcome, stored.good_pages, stored.moved_bytes) == (Outcome.Ok, 3, 3 * PAGE_BYTES)
    pages[:] = 0
    loaded = finish(mover, plan(2, Kind.Load, (8, 6), (4, 5)))
    assert loaded.outcome == Outcome.Ok and loaded.kind == Kind.Load
    assert (pages[8] == 2).all() and (pages[4] == 1).all() and (pages[1] == 0).all()
    assert isinstance(mover.host_region(), quire.HostRegionStatus)
    mover.close()
    assert mover.is_closed
    with pytest.raises(quire.InvalidArgument, match="closed"):
        mover.poll()


def test_a_page_that_is_not_what_the_plan_says_is_reported():
    mover, _ = open_mover()
    with mover:
        finish(mover, plan(1, Kind.Store, (1, 1)))
        other = quire.PageTransfer(device_page=2, host_page=1, host_generation=2, name_tag=78)
        ended = finish(mover, quire.TransferPlan(id=quire.TransferId(index=2), kind=Kind.Load, pages=[other]))
        assert (ended.outcome, ended.fault, ended.good_pages) == (Outcome.Failed, Fault.Generation, 0)


def test_bands_can_be_waited_for_and_plans_cancelled():
    of = geometry(layers=4)
    mover, _ = open_mover(device_geometry=of)
    finish(mover, plan(1, Kind.Store, (1, 1), (2, 2)))
    made = plan(2, Kind.Load, (3, 1), (4, 2), band_count=4)
    assert mover.try_submit(made)
    assert [mover.wait(made.id, band, LONG_NS) for band in range(4)] == [Outcome.Ok] * 4
    mover.pause()
    late = plan(3, Kind.Load, (5, 1))
    assert mover.try_submit(late)
    assert mover.wait(late.id, 0, 0) == Outcome.TimedOut
    assert mover.wait(late.id, 0, 1_000_000) == Outcome.TimedOut
    assert mover.cancel(late.id) and not mover.cancel(late.id)
    mover.resume()
    assert mover.wait(late.id, 0, LONG_NS) == Outcome.Cancelled
    assert [end.outcome for end in mover.poll()][-1] == Outcome.Cancelled
    with pytest.raises(quire.Error):
        mover.wait(quire.TransferId(index=99), 0, 0)


def test_plans_come_from_another_process():
    mover, memory = open_mover()
    memory.reshape(9, -1)[2] = 5
    text = quire.encode(plan(4, Kind.Store, (2, 3)))
    made = quire.decode(text)
    assert made == plan(4, Kind.Store, (2, 3)) and pickle.loads(pickle.dumps(made)) == made
    assert finish(mover, made).outcome == Outcome.Ok


def test_several_pools_have_pages_of_their_own():
    of = geometry(), geometry(5, token_bytes=32)
    memory = [np.zeros(each.pool_bytes, np.uint8) for each in of]
    pools = [
        quire.MoverPool(parts=[quire.MoverPart(geometry=g, memory=m)], host_page_count=4) for g, m in zip(of, memory)
    ]
    mover = quire.Mover.open(quire.MoverConfig(pools=pools))
    memory[1][:] = 9
    finish(mover, plan(1, Kind.Store, (1, 1), pool_index=1))
    memory[1][:] = 0
    finish(mover, plan(2, Kind.Load, (3, 1), pool_index=1))
    assert (memory[1].reshape(5, -1)[3] == 9).all() and memory[1].reshape(5, -1)[1].max() == 0
    moved = np.full(of[1].pool_bytes, 3, np.uint8)
    mover.set_device([quire.MoverPart(geometry=of[1], memory=moved)], pool_index=1)
    finish(mover, plan(3, Kind.Load, (2, 1), pool_index=1))
    assert (moved.reshape(5, -1)[2] == 9).all()
    with pytest.raises(quire.InvalidArgument, match="pool 7"):
        mover.set_device([quire.MoverPart(geometry=of[1], memory=moved)], pool_index=7)
    mover.forget_host_pages()
    assert finish(mover, plan(4, Kind.Load, (2, 1), pool_index=1)).outcome == Outcome.Failed


class Memory(np.ndarray):
    """An array that can be watched."""


def test_a_mover_keeps_its_memory_until_it_is_closed():
    of = geometry()
    memory = np.zeros(of.pool_bytes, np.uint8).view(Memory)
    watched = weakref.ref(memory)
    mover, _ = open_mover(memory)
    del memory
    gc.collect()
    assert watched() is not None
    finish(mover, plan(1, Kind.Store, (1, 1)))
    mover.close()
    del _
    gc.collect()
    assert watched() is None


def test_a_wait_lets_others_run_and_ends_when_the_mover_is_closed():
    mover, _ = open_mover()
    mover.pause()
    made = plan(1, Kind.Store, (1, 1))
    assert mover.try_submit(made)
    ended = []

    def wait():
        try:
            ended.append(mover.wait(made.id, 0, LONG_NS))
        except quire.Cancelled as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    mover.close()  # would not come to this if the wait had the GIL
    thread.join(DEADLINE_S)
    assert len(ended) == 1 and (ended[0] == Outcome.Cancelled or isinstance(ended[0], quire.Error))


def test_misuse_of_a_mover_is_refused_with_the_reason():
    of = geometry()
    with pytest.raises(quire.InvalidArgument, match="device_geometry is not set"):
        quire.Mover.open(quire.MoverConfig(device_memory=np.zeros(9, np.uint8)))
    with pytest.raises(quire.InvalidArgument, match="device_memory has 10 bytes"):
        open_mover(np.zeros(10, np.uint8))
    read_only = np.zeros(of.pool_bytes, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(quire.InvalidArgument, match="cannot be written to"):
        open_mover(read_only)
    with pytest.raises(quire.InvalidArgument, match="give either"):
        open_mover(pools=[quire.MoverPool()])
    with pytest.raises(quire.InvalidArgument, match="geometry is not set"):
        quire.MoverConfig(pools=[quire.MoverPool(parts=[quire.MoverPart()])]).validate()
    with pytest.raises(quire.InvalidArgument, match="host_page_count"):
        open_mover(host_page_count=0)
    with pytest.raises(quire.InvalidArgument, match="accelerator is"):
        open_mover(accelerator=object())
    mover, _ = open_mover()
    with pytest.raises(quire.InvalidArgument):
        mover.try_submit(plan(1, Kind.Store, (99, 1)))
    with pytest.raises(quire.Error):
        mover.wait_on(1, quire.TransferId(index=1), 0)
    with pytest.raises(quire.Unsupported):
        mover.wait_on(1, quire.TransferId(index=1), 0, timeout_ns=1_000_000)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(mover)


def test_a_forked_child_leaves_the_mover_alone():
    program = """
import os, sys
import numpy as np
import quire
page = quire.PageGeometry.create(quire.ModelLayout.opaque(64).groups[0], quire.PageOptions(page_tokens=4))
of = quire.PoolGeometry.create(page, quire.PoolOptions(page_count=4))
mover = quire.Mover.open(quire.MoverConfig(device_geometry=of, device_memory=np.zeros(of.pool_bytes, np.uint8),
                                           host_page_count=2))
child = os.fork()
if child == 0:
    mover.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(program).stdout == "7\n"


# An engine in Python that moves its own pages


def move_pages(cache, mover, taken):
    """Hands what the cache wants moved to the mover, and the cache what has ended."""
    taken += cache.take_transfers()
    while taken and mover.try_submit(taken[0]):
        taken.pop(0)
    for id in cache.take_cancellations():
        mover.cancel(id)
    cache.apply(mover.poll())


def test_an_engine_moves_its_own_pages():
    engine = Engine(config(4, 8, host={**WRITE_THROUGH, "external_mover": True}))
    memory = np.asarray(engine.cache.device_memory())
    of = engine.cache.geometry()
    with quire.Mover.open(
        quire.MoverConfig(device_geometry=of, device_memory=memory, host_page_count=WRITE_THROUGH["page_count"])
    ) as mover:
        taken = []

        def settle():
            move_pages(engine.cache, mover, taken)
            while engine.cache.stats().transfers_in_flight > 0:
                select.select([mover.event_fd()], [], [], 1)
                move_pages(engine.cache, mover, taken)

        def request(tokens):
            sequence = engine.admitted(tokens)
            settle()
            found = engine.cache.view(sequence).computed_tokens
            step = engine.plan(sequence)
            engine.compute(step, tokens)  # compares what it finds with what was computed
            engine.cache.finish_step(step, [None])
            engine.cache.end(sequence)
            settle()
            return found

        texts = [token_range(1000 * i, 24) for i in range(4)]
        assert [request(text) for text in texts] == [0] * 4
        assert [request(text) for text in texts] == [24] * 4  # the device holds one of them
        stats = engine.cache.stats()
        assert stats.loaded_page_total >= 18 and stats.load_outcomes[Outcome.Ok] > 0
        engine.cache.check_invariants()
        engine.cache.close()  # its memory stays as long as the mover has it
        finish(mover, plan(1 << 20, Kind.Store, (1, 1)))


# A device in plain memory


def swap_parts(layers=3, device_pages=6, records=4, **fields):
    device = quire.open_host_device()
    of = geometry(device_pages, layers)
    memory = np.zeros(of.pool_bytes, np.uint8)
    stride = 4096
    held = np.frombuffer(mmap.mmap(-1, records * stride), np.uint8)
    device.register_host(held, stride)
    made = quire.SwapConfig(
        device=device,
        layers=quire.fragments_of(of, memory),
        device_page_count=device_pages,
        records=held,
        record_stride=stride,
        record_count=records,
        staging_bytes=1 << 20,
        **fields,
    )
    return device, memory.reshape(device_pages, -1), held.reshape(records, -1), made


@pytest.mark.parametrize("path", list(quire.SwapPath.__members__.values()))
def test_pages_are_swapped_with_a_device(path):
    device, pages, records, made = swap_parts()
    pages[:] = np.random.default_rng(1).integers(0, 256, pages.shape)
    engine = quire.SwapEngine.open(made)
    assert engine.layer_count == 3 and engine.record_bytes == pages.shape[1]
    streams = quire.SwapStreams(copies=device.create_stream(), kernels=device.create_stream(quire.StreamPriority.High))
    before = pages.copy()
    order = quire.SwapOrder(kind=Kind.Store, device_pages=[1, 4], records=[3, 0], streams=streams, path=path)
    stored = engine.swap(order)
    assert (stored.page_count, stored.good_pages, len(stored.checksums)) == (2, 2, 2)
    np.testing.assert_array_equal(records[3][: engine.record_bytes], before[1])
    pages[:] = 0
    order = quire.SwapOrder(
        device_pages=[2, 5], records=[3, 0], expected=stored.checksums, band_count=3, streams=streams, path=path
    )
    ticket = engine.try_start(order)
    assert engine.has_arrived(ticket, 2)
    engine.wait_on(streams.copies, ticket, 1)
    device.synchronize(streams.copies)
    assert engine.is_done(ticket)
    report = engine.finish(ticket)
    assert report.good_pages == 2 and report.checksums == stored.checksums
    np.testing.assert_array_equal(pages[2], before[1])
    pages[:] = 0
    order.band_by_band = True
    ticket = engine.try_start(order)
    for band in range(1, 3):
        assert len(engine.band_events(ticket)) == band and 0 not in engine.band_events(ticket)
        assert engine.has_arrived(ticket, band - 1)
        assert not engine.has_arrived(ticket, band) and not engine.is_done(ticket)
        with pytest.raises(quire.Unavailable, match=f"band {band} of the swap is not on its streams"):
            engine.wait_on(streams.copies, ticket, band)
        assert engine.start_next_band(ticket)
    assert not engine.start_next_band(ticket)
    device.synchronize(streams.copies)
    assert engine.finish(ticket).good_pages == 2
    np.testing.assert_array_equal(pages[2], before[1])
    records[3][0] ^= 1
    assert engine.swap(order).good_pages == 0
    with pytest.raises(quire.Error):
        engine.finish(ticket)


def test_ways_are_measured_and_chosen():
    _, _, _, made = swap_parts()
    timings = quire.measure_swaps(made)
    chosen = quire.choose_paths(timings, Kind.Store)
    assert isinstance(chosen, quire.SwapPaths) and chosen.many in {each.path for each in timings}
    assert all(each.seconds >= 0 and each.page_count > 0 for each in timings)
    made.load_paths = made.store_paths = quire.SwapPaths(few=quire.SwapPath.Whole, many=quire.SwapPath.Whole)
    assert quire.SwapEngine.open(made).paths(Kind.Load) == made.load_paths
    with pytest.raises(quire.InvalidArgument, match="no timings"):
        quire.choose_paths([], Kind.Load)


def test_misuse_of_a_swap_engine_is_refused_with_the_reason():
    device, pages, records, made = swap_parts()
    engine = quire.SwapEngine.open(made)
    with pytest.raises(quire.InvalidArgument):
        engine.swap(quire.SwapOrder(device_pages=[1], records=[]))
    with pytest.raises(quire.InvalidArgument, match="need more"):
        quire.SwapConfig(device=device, records=records, record_stride=4096, record_count=5).validate()
    with pytest.raises(quire.InvalidArgument, match="device is"):
        quire.SwapConfig(device="gpu").validate()
    with pytest.raises(quire.InvalidArgument):
        quire.SwapEngine.open(quire.SwapConfig())
    with pytest.raises(quire.InvalidArgument, match="registered already"):
        device.register_host(records.reshape(-1), 4096)
    device.unregister_host(records.reshape(-1))
    with pytest.raises(quire.InvalidArgument, match="not registered"):
        device.unregister_host(records.reshape(-1))
    with pytest.raises(quire.InvalidArgument, match="4096"):
        device.register_host(np.zeros(100, np.uint8), 1)
    assert repr(device) == "Device(0, host memory)"


def test_a_swap_engine_keeps_what_it_uses():
    device, pages, records, made = swap_parts()
    engine = quire.SwapEngine.open(made)
    stream = device.create_stream()
    pages[1] = 7
    del device, pages, made
    gc.collect()
    streams = quire.SwapStreams(copies=stream, kernels=stream)
    engine.swap(quire.SwapOrder(kind=Kind.Store, device_pages=[1], records=[0], streams=streams))
    assert (records[0][: engine.record_bytes] == 7).all()


def test_a_device_keeps_the_memory_that_it_knows():
    device = quire.open_host_device()
    memory = np.frombuffer(mmap.mmap(-1, 8192), np.uint8).view(Memory)
    watched = weakref.ref(memory)
    device.register_host(memory, 4096)
    del memory
    gc.collect()
    assert watched() is not None
    device.unregister_host(watched())
    gc.collect()
    assert watched() is None
    memory = np.frombuffer(mmap.mmap(-1, 4096), np.uint8).view(Memory)
    watched = weakref.ref(memory)
    device.register_host(memory, 4096)
    del device, memory
    gc.collect()
    assert watched() is None


def test_a_cache_and_a_mover_work_on_a_device_in_plain_memory():
    device = quire.open_host_device()
    of = geometry(layers=3)
    memory = np.random.default_rng(2).integers(0, 256, of.pool_bytes).astype(np.uint8)
    before = memory.reshape(9, -1).copy()
    mover, _ = open_mover(memory, device_geometry=of, accelerator=device, staging_bytes=1 << 20)
    finish(mover, plan(1, Kind.Store, (1, 1), (2, 2)))
    memory[:] = 0
    assert finish(mover, plan(2, Kind.Load, (5, 2))).outcome == Outcome.Ok
    np.testing.assert_array_equal(memory.reshape(9, -1)[5], before[2])
    stream = device.create_stream()
    queued = plan(3, Kind.Load, (6, 1), band_count=3)
    mover.pause()
    assert mover.try_submit(queued)
    with pytest.raises(quire.Unavailable, match="the mover is paused"):
        mover.wait_on(stream, queued.id, 2, timeout_ns=LONG_NS)
    mover.resume()
    mover.wait_on(stream, queued.id, 2, timeout_ns=LONG_NS)
    device.synchronize(stream)
    np.testing.assert_array_equal(memory.reshape(9, -1)[6], before[1])
    made = config(4, 8, device={"memory": quire.DeviceMemory.Accelerator, "accelerator": device})
    with quire.Cache.open(made) as cache:
        assert np.asarray(cache.device_memory()).size == cache.geometry().pool_bytes


# Metrics


def metrics_of(engine, **fields):
    server = quire.MetricsServer.open(quire.MetricsConfig(**fields))
    server.describe(engine.cache)
    server.update(engine.cache.stats())
    return server


def test_metrics_are_text_that_prometheus_reads():
    engine = Engine(config(4, 16))
    text = token_range(0, 16)
    engine.request(text)
    sequence = engine.cache.begin(engine.space, text)
    admission = engine.cache.admit(sequence)
    with metrics_of(engine, start_time_seconds=5.5) as server:
        server.observe(quire.TimedCall.PlanStep, 5_000)
        server.observe(Kind.Load, 10**9)
        server.observe([quire.Completion(kind=Kind.Store, busy_ns=10**6)])
        server.observe(admission, len(text))
        server.observe_ready(10**6)
        lines = server.text().splitlines()
        assert "quire_start_time_seconds 5.5" in lines
        assert f"quire_sealed_pages {engine.cache.stats().sealed_pages}" in lines or any(
            line.startswith("quire_pages{") for line in lines
        )
        assert 'quire_call_seconds_bucket{call="plan_step",le="5e-06"} 1' in lines
        assert 'quire_transfer_seconds_count{kind="load"} 1' in lines
        assert 'quire_transfer_seconds_count{kind="store"} 1' in lines
        assert "quire_matched_tokens_sum 16" in lines and "quire_ready_seconds_count 1" in lines
        assert server.port == 0
        kinds = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        assert all(line.split("{")[0].split()[0].startswith("quire_") for line in lines if not line.startswith("#"))
        assert "quire_chunk_pages" in kinds
    with pytest.raises(quire.InvalidArgument, match="closed"):
        server.text()


def test_the_disk_tier_has_metrics_too(tmp_path):
    engine = Engine(
        config(16, 16, host={"page_count": 16}, disk={"directories": [tmp_path], "capacity_bytes": 64 << 20})
    )
    with metrics_of(engine) as server:
        server.update(engine.cache.disk_status())
        assert "quire_disk_used_bytes" in server.text()


def test_listening_works_or_says_what_is_missing():
    engine = Engine(config(4, 16))
    try:
        server = metrics_of(engine, port=0)
    except quire.Unsupported as error:
        assert "prometheus-cpp" in str(error) and "text()" in str(error)
        return
    with server, urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        assert server.text() in answer.read().decode()


def test_bad_addresses_are_refused():
    with pytest.raises(quire.InvalidArgument, match="in numbers"):
        quire.MetricsServer.open(quire.MetricsConfig(address="localhost"))
    with pytest.raises(TypeError):
        quire.MetricsConfig(port=70000)
