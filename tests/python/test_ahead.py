# SPDX-License-Identifier: Apache-2.0
"""Steps of sequences whose pages are still on their way from the host."""

import quire
from byte_engine import Engine, config, drain, token_range


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
