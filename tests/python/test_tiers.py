# SPDX-License-Identifier: Apache-2.0
"""The host and disk tiers through Python, with every byte compared."""

import gc
import time
import weakref

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, TOKEN_BYTES, Engine, HandMover, config, drain, rows, token_range, values_of

WRITE_THROUGH = {"write_policy": quire.WritePolicy.WriteThrough}


def tiers(page_count=8, host_page_count=64, page_tokens=4, **host):
    return config(page_tokens, page_count, host={"page_count": host_page_count, **host})


def by_hand(page_count=16, host_page_count=32, **host):
    engine = Engine(tiers(page_count, host_page_count, external_mover=True, **{"clean_reserve_pages": 2, **host}))
    return engine, HandMover(engine.cache)


def serve_by_hand(engine, mover, tokens, options=None):
    """A whole request with everything moved as it comes; gives the tokens that it did not have to compute."""
    sequence = engine.cache.begin(engine.space, tokens, options)
    for _ in range(100):
        try:
            engine.cache.admit(sequence)
            break
        except quire.Unavailable:
            mover.settle()
    mover.settle()
    found = engine.cache.view(sequence).computed_tokens
    for _ in range(100):
        outcome = engine.cache.plan_step([sequence])
        if outcome.step is not None:
            break
        mover.settle()
    engine.cache.apply_copies(outcome.step)
    engine.compute(outcome.step, tokens)
    engine.cache.finish_step(outcome.step, [None])
    engine.cache.end(sequence)
    mover.settle()
    engine.cache.check_invariants()
    return found


def put_on_host(engine, tokens):
    """Caches tokens on the host alone; for WriteThrough."""
    engine.request(tokens)
    drain(engine.cache)
    engine.cache.reclaim(2**32 - 1)
    lookup = engine.cache.lookup(engine.space, tokens)
    assert (lookup.matched_tokens, lookup.host_tokens) == (0, len(tokens) // 4 * 4)


# The host tier


def test_what_the_device_has_no_room_for_comes_back_from_the_host_as_it_was():
    engine = Engine(tiers(page_count=12, page_tokens=16))
    found = 0
    for turn in range(3):
        for user in range(4):
            tokens = token_range(1000 * user, 8 * 16)
            hit = engine.request(tokens)  # compares every byte of what it finds
            assert hit == (128 if turn > 0 else 0)
            found += hit
            engine.cache.check_invariants()
    drain(engine.cache)
    stats = engine.cache.stats()
    assert stats.host_hit_tokens * 2 > found
    assert stats.load_outcomes[quire.TransferOutcome.Failed.value] == 0
    assert stats.loaded_bytes == stats.loaded_page_total * 16 * TOKEN_BYTES
    assert engine.cache.host_region().refusals is not None


def test_an_admission_that_loads_is_ready_when_its_pages_are_there():
    engine = Engine(tiers(16, **WRITE_THROUGH))
    tokens = token_range(0, 16)
    put_on_host(engine, tokens)
    told = []
    engine.cache.set_ready_callback(told.append)
    sequence = engine.cache.begin(engine.space, tokens + [50])
    admission = engine.cache.admit(sequence)
    assert (admission.loading_tokens, admission.is_ready) == (16, False)
    assert engine.cache.view(sequence).is_loading
    assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
    assert told == [sequence.id]
    view = engine.cache.view(sequence)
    assert (view.is_loading, view.host_tokens, view.computed_tokens) == (False, 16, 16)
    engine.check(sequence, tokens)
    engine.run(sequence, tokens + [50])


def test_a_callback_that_is_taken_back_is_told_nothing():
    engine = Engine(tiers(16, **WRITE_THROUGH))
    put_on_host(engine, token_range(0, 16))
    told = []
    engine.cache.set_ready_callback(told.append)
    engine.cache.set_ready_callback(None)
    assert engine.request(token_range(0, 16)) == 16
    assert told == []


def test_a_saved_sequence_comes_back_with_all_its_bytes():
    host = {"page_count": 32, "write_policy": quire.WritePolicy.Selective, "write_hits_min": 2**32 - 1}
    engine = Engine(config(4, 16, host=host))
    tokens = token_range(0, 10)
    sequence = engine.admitted(tokens, quire.SequenceOptions(publish=quire.Publish.None_))
    engine.run(sequence, tokens)
    engine.cache.preempt(sequence, quire.Preempt.Save)
    drain(engine.cache)
    stats = engine.cache.stats()
    assert (stats.saved_pages, stats.free_pages) == (3, 16)
    rows(engine.cache)[4:] = 0  # what lies on the device now is nobody's
    assert engine.cache.resume(sequence).loading_tokens == 10
    assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
    engine.check(sequence, tokens)
    engine.cache.append(sequence, [60, 61])
    engine.run(sequence, tokens + [60, 61])
    engine.check(sequence, tokens + [60, 61])


def test_transfers_that_are_paused_start_when_they_are_resumed():
    engine = Engine(tiers(16, **WRITE_THROUGH))
    put_on_host(engine, token_range(0, 16))
    assert engine.cache.pause_transfers() is True
    assert engine.cache.lookup(engine.space, token_range(0, 16)).matched_tokens == 0
    assert engine.request(token_range(0, 16)) == 0
    engine.cache.resume_transfers()
    engine.cache.reclaim(100)
    drain(engine.cache)


@pytest.mark.parametrize("how, found", [(quire.Sleep.KeepHost, 16), (quire.Sleep.DropAll, 0)])
def test_a_cache_that_slept_has_what_the_host_kept(how, found):
    engine = Engine(tiers(16))
    tokens = token_range(0, 16)
    engine.request(tokens)
    while not engine.cache.sleep(how):
        drain(engine.cache)
    with pytest.raises(quire.Error, match="wake"):
        engine.admitted(tokens)
    engine.cache.wake()
    assert not rows(engine.cache).any()
    assert engine.request(tokens) == found
    engine.cache.check_invariants()


def test_loads_that_are_stopped_are_computed():
    engine, mover = by_hand(write_policy=quire.WritePolicy.WriteThrough)
    tokens = token_range(0, 16)
    serve_by_hand(engine, mover, tokens)
    engine.cache.reclaim(100)
    sequence = engine.admitted(tokens)
    mover.take()
    assert [plan.kind for plan in mover.waiting] == [quire.TransferKind.Load]
    engine.cache.stop_loading(sequence)
    assert engine.cache.take_cancellations() == [mover.waiting[0].id]
    view = engine.cache.view(sequence)
    assert (view.is_loading, view.pending_tokens, view.miss.reason) == (False, 16, quire.MissReason.LoadCancelled)
    cancelled = quire.Completion(id=mover.waiting.pop().id, outcome=quire.TransferOutcome.Cancelled)
    engine.cache.apply([cancelled], 0)
    engine.run(sequence, tokens)
    engine.check(sequence, tokens)
    engine.cache.check_invariants()


# The engine's own mover


def test_an_engine_moves_the_pages_itself_and_finds_every_byte():
    engine, mover = by_hand(page_count=12)
    for turn in range(3):
        for user in range(4):
            tokens = token_range(1000 * user, 32)
            assert serve_by_hand(engine, mover, tokens) == (32 if turn > 0 else 0)
    assert set(mover.kinds) == {quire.TransferKind.Load, quire.TransferKind.Store}
    assert engine.cache.event_fd() == -1


def test_a_failed_load_is_a_miss_and_the_good_pages_before_it_count():
    engine, mover = by_hand(write_policy=quire.WritePolicy.WriteThrough)
    tokens = token_range(0, 16)
    serve_by_hand(engine, mover, tokens)
    engine.cache.reclaim(100)
    sequence = engine.admitted(tokens)
    mover.take()
    (plan,) = mover.waiting
    assert (plan.priority, plan.band_count, plan.pool_index, len(plan.pages)) == (
        quire.TransferPriority.Waiting,
        1,
        0,
        4,
    )
    end = mover.move(plan)
    end.outcome, end.fault, end.good_pages = quire.TransferOutcome.Failed, quire.TransferFault.Checksum, 3
    engine.cache.apply([end], 0)
    view = engine.cache.view(sequence)
    assert (view.computed_tokens, view.miss.reason) == (12, quire.MissReason.LoadFailed)
    engine.run(sequence, tokens)
    engine.check(sequence, tokens)
    assert engine.cache.stats().load_faults[quire.TransferFault.Checksum.value] == 1


def test_completions_of_no_transfer_are_counted_and_change_nothing():
    engine, mover = by_hand()
    serve_by_hand(engine, mover, token_range(0, 64))
    engine.cache.apply([quire.Completion()], 0)
    assert engine.cache.stats().unknown_completion_count == 1


def test_a_load_that_takes_too_long_is_a_miss_when_the_cache_is_told_the_time():
    engine, mover = by_hand(write_policy=quire.WritePolicy.WriteThrough, load_timeout_ns=1_000)
    tokens = token_range(0, 16)
    serve_by_hand(engine, mover, tokens)
    engine.cache.reclaim(100)
    sequence = engine.admitted(tokens)
    engine.cache.apply([], 999)
    assert engine.cache.view(sequence).is_loading
    engine.cache.apply([], 1_000)
    view = engine.cache.view(sequence)
    assert (view.is_loading, view.miss.reason) == (False, quire.MissReason.LoadTimedOut)


def test_all_ranks_report_on_a_transfer():
    engine, mover = by_hand(rank_count=2, write_policy=quire.WritePolicy.WriteThrough)
    engine.cache.finish_step(engine.plan(engine.admitted(token_range(0, 8))), [None])
    mover.take()
    end = mover.move(mover.waiting.pop())
    engine.cache.apply([end], 0)
    assert engine.cache.stats().transfers_in_flight == 1
    end.rank = 1
    engine.cache.apply([end], 0)
    assert engine.cache.stats().transfers_in_flight == 0


# The disk tier


def on_disk(directory, **fields):
    disk = {"directories": [str(directory)], "capacity_bytes": 64 << 20, **fields}
    return Engine(config(16, 16, host={"page_count": 64}, disk=disk))


def wait_for(engine, answers):
    deadline = time.monotonic() + DEADLINE_S
    while not answers:
        assert time.monotonic() < deadline, "the disk tier does not answer"
        engine.cache.apply(engine.cache.poll(), time.monotonic_ns())


def test_what_was_flushed_is_found_by_the_next_process_as_it_was(tmp_path):
    tokens = token_range(0, 8 * 16)
    first = on_disk(tmp_path)
    assert first.request(tokens) == 0
    assert first.cache.wait_until_flushed(DEADLINE_S)
    status = first.cache.disk_status()
    assert (status.page_count, status.directory_count, status.last_error) == (8, 1, "")
    first.cache.close()
    second = on_disk(tmp_path)
    sequence = second.cache.begin(second.space, tokens)
    assert not second.cache.admit(sequence).is_ready
    assert second.cache.wait_until_ready(sequence, DEADLINE_S)
    view = second.cache.view(sequence)
    assert (view.disk_tokens, view.computed_tokens) == (128, 128)
    second.check(sequence, tokens)
    assert second.cache.stats().disk_hit_tokens == 128
    second.cache.close()


def test_flush_says_when_it_is_done(tmp_path):
    engine = on_disk(tmp_path)
    engine.request(token_range(0, 64))
    deadline = time.monotonic() + DEADLINE_S
    while not engine.cache.flush():
        assert time.monotonic() < deadline
        drain(engine.cache)
    assert engine.cache.stats().disk_stored_page_total == 4


def test_pages_are_put_on_disk_found_and_read_past_the_other_tiers(tmp_path):
    engine = on_disk(tmp_path)
    tokens = token_range(0, 3 * 16)
    pages = values_of(tokens).view(np.uint8)
    answers = []
    engine.cache.put_on_disk(engine.space, tokens, pages, answers.append)
    wait_for(engine, answers)
    assert (answers[0].outcome, answers[0].token_count) == (quire.TransferOutcome.Ok, 48)
    answers.clear()
    engine.cache.lookup_on_disk(engine.space, tokens + token_range(900, 16), answers.append)
    wait_for(engine, answers)
    assert answers[0].token_count == 48
    answers.clear()
    read = np.zeros(4 * 16 * TOKEN_BYTES, np.uint8)
    engine.cache.get_from_disk(engine.space, tokens + token_range(900, 16), read, answers.append)
    wait_for(engine, answers)
    assert answers[0].token_count == 48
    np.testing.assert_array_equal(read[: pages.size], pages)
    assert engine.request(tokens) == 48  # and compares the bytes


def test_memory_that_is_read_into_lives_until_the_answer(tmp_path):
    engine = on_disk(tmp_path)
    tokens = token_range(0, 3 * 16)
    answers = []
    engine.cache.put_on_disk(engine.space, tokens, values_of(tokens).view(np.uint8), answers.append)
    wait_for(engine, answers)
    answers.clear()

    def ask():
        read = np.zeros(3 * 16 * TOKEN_BYTES, np.uint8)
        engine.cache.get_from_disk(engine.space, tokens, read, lambda answer: answers.append((answer, gone())))
        return weakref.ref(read)

    gone = ask()  # whose array nobody else holds
    gc.collect()
    assert gone() is not None
    wait_for(engine, answers)
    answer, read = answers.pop()
    assert answer.token_count == 48
    np.testing.assert_array_equal(read.view(np.uint64), values_of(tokens))
    del read
    gc.collect()
    assert gone() is None


def test_a_store_is_inspected_and_verified(tmp_path):
    engine = on_disk(tmp_path)
    engine.request(token_range(0, 64))
    assert engine.cache.wait_until_flushed(DEADLINE_S)
    engine.cache.close()
    report = quire.inspect_disk_store([str(tmp_path)])
    assert report.page_count == 4
    assert len(report.directories) == 1 and not report.directories[0].is_in_use
    assert report.key_spaces[0].page_count == 4
    seen = []
    verified = quire.verify_disk_store([str(tmp_path)], on_progress=seen.append)
    assert verified.is_clean and verified.is_complete and verified.page_count == 4


def test_an_exception_of_those_who_watch_a_verify_ends_it(tmp_path):
    engine = on_disk(tmp_path)
    engine.request(token_range(0, 64))
    assert engine.cache.wait_until_flushed(DEADLINE_S)
    engine.cache.close()
    seen = []
    quire.verify_disk_store([str(tmp_path)], on_progress=seen.append)
    assert seen and seen[-1].done_bytes <= seen[-1].all_bytes and seen[-1].fault_count == 0

    def fail(progress):
        raise ZeroDivisionError(progress.all_bytes)

    with pytest.raises(ZeroDivisionError):
        quire.verify_disk_store([str(tmp_path)], on_progress=fail)
    assert quire.verify_disk_store([str(tmp_path)]).is_clean


def test_a_page_that_was_changed_on_disk_is_found_by_verify_and_never_served(tmp_path):
    engine = on_disk(tmp_path)
    tokens = token_range(0, 64)
    engine.request(tokens)
    assert engine.cache.wait_until_flushed(DEADLINE_S)
    engine.cache.close()
    needle = values_of(tokens)[20].tobytes()  # in the second page
    changed = 0
    for file in tmp_path.glob("segment-*"):
        data = bytearray(file.read_bytes())
        at = data.find(needle)
        if at >= 0:
            data[at] ^= 0xFF
            file.write_bytes(data)
            changed += 1
    assert changed == 1
    assert len(quire.verify_disk_store([str(tmp_path)]).faults) == 1
    engine = on_disk(tmp_path)
    assert engine.request(tokens) <= 16  # compares the bytes
    engine.cache.close()


def test_two_caches_do_not_share_a_directory(tmp_path):
    engine = on_disk(tmp_path)
    with pytest.raises(quire.Unavailable, match="has the directory"):
        on_disk(tmp_path)
    engine.cache.close()
    on_disk(tmp_path).cache.close()


def test_a_step_that_is_over_does_not_keep_the_files_open(tmp_path):
    engine = on_disk(tmp_path)
    sequence = engine.admitted(token_range(0, 16))
    assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
    step = engine.plan(sequence)
    engine.cache.finish_step(step, [None])
    engine.cache.close()
    on_disk(tmp_path).cache.close()
    assert "over" in repr(step)


def test_a_step_that_is_in_flight_at_close_does_not_keep_the_files_open(tmp_path):
    engine = on_disk(tmp_path)
    sequence = engine.admitted(token_range(0, 16))
    assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
    step = engine.plan(sequence)
    engine.cache.close()
    on_disk(tmp_path).cache.close()
    del step


def test_waiting_for_a_sequence_that_loads_nothing_is_over_at_once_in_every_configuration():
    for made in (tiers(), config(), tiers(external_mover=True)):
        engine = Engine(made)
        sequence = engine.admitted([1, 2, 3])
        assert engine.cache.wait_until_ready(sequence, 0)


def test_a_caller_may_go_by_a_clock_of_its_own():
    engine = Engine(tiers(**WRITE_THROUGH))
    engine.cache.advance(2**62)
    assert engine.cache.wait_until_ready(engine.admitted([1, 2, 3]), 0)
    engine.cache.advance(2**62 + 1)
