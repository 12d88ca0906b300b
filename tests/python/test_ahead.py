# SPDX-License-Identifier: Apache-2.0
"""Steps of sequences whose pages are still on their way from the host."""

import pytest

import quire
from byte_engine import Engine, config, drain, engine_with_a_load, token_range


def test_a_step_begins_before_its_pages_have_arrived():
    made = config(page_count=24)
    made.host = quire.HostConfig(page_count=48, write_policy=quire.WritePolicy.WriteThrough)
    engine = Engine(made)
    cache, tokens = engine.cache, [*token_range(0, 16), 7]
    engine.request(tokens[:16])
    drain(cache)
    cache.reclaim(99)
    sequence = cache.begin(engine.space, tokens, quire.SequenceOptions(plan_while_loading=True))
    assert cache.admit(sequence).is_ready
    view = cache.view(sequence)
    assert view.is_ready and view.computed_tokens == 16
    assert cache.wait_until_ready(sequence)
    step = engine.plan(sequence)
    layer = quire.GroupLayer(group_index=0, layer_index=0)
    assert cache.band_of(layer) == 0
    assert cache.wait_for_layer(step, layer, 10.0) == quire.TransferOutcome.Ok
    assert all(load.band_count == 1 for load in step.loads)
    drain(cache)
    assert cache.lost_entries(step) == []
    engine.compute(step, tokens)
    cache.finish_step(step, [None])
    assert cache.view(sequence).host_tokens == 16


def test_a_load_that_fails_takes_its_entry_back():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)
    cache, tokens = engine.cache, [*tokens, 7]
    options = quire.SequenceOptions(plan_while_loading=True)
    with cache.begin(engine.space, tokens, options) as sequence, cache.begin(engine.space, [8, 9]) as other:
        told = []
        assert not cache.admit(sequence, told.append).is_ready
        cache.admit(other)
        mover.take()
        cache.apply([], 0)
        assert [told, cache.view(sequence).is_ready] == [[sequence.id], True]
        step = engine.plan(sequence, other)
        assert [load.id for load in step.loads] == [plan.id for plan in mover.waiting]
        with pytest.raises(quire.Unsupported, match="the engine moves pages itself"):
            cache.wait_for_layer(step, quire.GroupLayer(), 0)
        with pytest.raises(quire.Unavailable):
            cache.finish_step(step, [[1], [1]])
        plan = mover.waiting.pop(0)
        failed = {"outcome": quire.TransferOutcome.Failed, "fault": quire.TransferFault.Checksum}
        cache.apply([quire.Completion(id=plan.id, kind=plan.kind, **failed)], 0)
        assert cache.lost_entries(step) == [0]
        cache.finish_step(step, [[1], [1]])  # the first one's token is of bytes that never came
        assert cache.view(sequence).token_count == 17
        assert cache.view(other).token_count == 3
        assert cache.view(sequence).computed_tokens == 0
        engine.run(sequence, tokens)
        engine.check(sequence, tokens)
        with pytest.raises(quire.InvalidArgument):
            cache.lost_entries(step)
