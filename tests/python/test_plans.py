# SPDX-License-Identifier: Apache-2.0
"""What a step asks of the engine: the arrays of its plan, against values that are computed by hand."""

import numpy as np
import pytest

import quire
from byte_engine import Engine, config, token_range


def small_plan_engine(page_tables, **plan):
    layout = quire.ModelLayout.simple(quire.SimpleShape(layers=1, kv_heads=1, head_dim=8))
    return Engine(
        config(
            4,
            32,
            layout=layout,
            device={"memory": quire.DeviceMemory.None_},
            sequence_count_max=8,
            context_tokens_max=64,
            plan=quire.PlanConfig(page_tables=page_tables, **plan),
        )
    )


def finished(engine, tokens):
    """A sequence of so many computed tokens and one that is pending."""
    sequence = engine.admitted(tokens)
    step = engine.cache.plan_step([sequence]).step
    engine.cache.finish_step(step, [99])
    return sequence


def test_a_flashinfer_view_has_the_values_that_are_computed_by_hand():
    engine = small_plan_engine(quire.PageTables.Csr)
    a = finished(engine, token_range(0, 9))  # 10 tokens with the pending one: pages a0 a1 a2
    b = engine.admitted(token_range(50, 5))  # pages b0 b1
    plan = engine.cache.plan_step([a, b]).step.plan
    view = quire.flashinfer_view(plan)
    pages = list(engine.cache.view(a).pages) + list(engine.cache.view(b).pages)
    assert view.qo_indptr.tolist() == [0, 1, 6]
    assert view.kv_indptr.tolist() == [0, 3, 5]
    assert view.kv_indices.tolist() == pages
    assert view.kv_last_page_len.tolist() == [2, 1]
    a_pages, b_pages = pages[:3], pages[3:]
    slots_of_b = [b_pages[0] * 4 + i for i in range(4)] + [b_pages[1] * 4]
    assert plan.append_slots.tolist() == [a_pages[2] * 4 + 1] + slots_of_b
    assert plan.query_positions.tolist() == [9, 0, 1, 2, 3, 4]
    with pytest.raises(quire.Error):
        quire.block_table_view(plan)


def test_a_block_table_view_has_the_values_that_are_computed_by_hand():
    engine = small_plan_engine(quire.PageTables.Block)
    a = finished(engine, token_range(0, 9))
    b = engine.admitted(token_range(50, 5))
    shape = quire.PlanShape(entries=3, tokens=8, columns=4)
    plan = engine.cache.plan_step([a, b], shape).step.plan
    view = quire.block_table_view(plan)
    a_pages, b_pages = list(engine.cache.view(a).pages), list(engine.cache.view(b).pages)
    assert view.block_table.tolist() == [a_pages + [0], b_pages + [0, 0], [0, 0, 0, 0]]
    assert view.seq_lens.tolist() == [10, 5, 0]
    assert view.query_start_loc.tolist() == [0, 1, 6, 6]
    slots = [a_pages[2] * 4 + 1] + [b_pages[0] * 4 + i for i in range(4)] + [b_pages[1] * 4]
    assert view.slot_mapping.tolist() == slots + [-1, -1]
    assert plan.groups[0].block_table.tolist() == view.block_table.tolist()
    with pytest.raises(quire.Error):
        quire.flashinfer_view(plan)


def test_a_cascade_lists_a_shared_prefix_once():
    engine = small_plan_engine(quire.PageTables.Csr, cascade_levels_max=2)
    finished(engine, token_range(0, 8))
    a, b = engine.admitted(token_range(0, 8) + [60]), engine.admitted(token_range(0, 8) + [70, 71])
    plan = engine.cache.plan_step([a, b]).step.plan
    shared, own = plan.groups[0].levels
    assert shared.query_indptr[:2].tolist() == [0, 3]
    assert shared.page_indptr[:2].tolist() == [0, 2]
    assert quire.flashinfer_view(plan, level_index=0).kv_indices[:2].tolist() == list(engine.cache.view(a).pages[:2])
    assert own.query_indptr.tolist() in ([0, 1, 3], [0, 2, 3])
    assert own.first_keys.tolist() == [8, 8]
    assert own.last_page_tokens.tolist() == ([1, 2] if plan.entries[0].entry_index == 0 else [2, 1])


def test_rows_ship_what_changed_in_the_page_table():
    engine = small_plan_engine(quire.PageTables.Rows)
    sequence = engine.admitted(token_range(0, 6))
    step = engine.cache.plan_step([sequence]).step
    row = int(step.plan.state_slots[0])
    pages = engine.cache.view(sequence).pages
    assert step.plan.groups[0].deltas.tolist() == [[row, 0, pages[0]], [row, 1, pages[1]]]
    engine.cache.finish_step(step, [99])
    step = engine.cache.plan_step([sequence]).step
    assert step.plan.groups[0].deltas.shape == (0, 3)


def test_layer_windows_trim_the_lists_of_their_layers():
    engine = small_plan_engine(quire.PageTables.Csr, layer_windows=[4])
    sequence = finished(engine, token_range(0, 14))
    plan = engine.cache.plan_step([sequence]).step.plan
    window = plan.groups[0].layer_windows[0]
    assert window.window_tokens == 4
    first, last = window.page_indptr.tolist()
    # The query is token 14 and sees [11, 15): pages 2 and 3, from the first one's token 3 on.
    assert plan.groups[0].page_indices[first:last].tolist() == list(engine.cache.view(sequence).pages[2:4])
    assert (window.first_keys.tolist(), window.key_offsets.tolist()) == ([11], [3])


def test_all_arrays_of_a_plan_lie_in_its_staging():
    engine = small_plan_engine(quire.PageTables.Csr)
    plan = engine.cache.plan_step([engine.admitted(token_range(0, 6))]).step.plan
    begin = plan.staging.ctypes.data
    for array in (plan.query_positions, plan.query_indptr, plan.seq_lens, plan.groups[0].page_indices):
        assert begin <= array.ctypes.data < begin + plan.staging.size
        assert (array.ctypes.data - begin) % 16 == 0
        assert not array.flags.writeable
        offset = array.ctypes.data - begin
        staged = plan.staging[offset : offset + array.nbytes].view(array.dtype)
        np.testing.assert_array_equal(staged, array)


def test_plans_of_one_shape_have_their_arrays_at_the_same_offsets():
    engine = small_plan_engine(quire.PageTables.Block)
    shape = quire.PlanShape(entries=4, tokens=16, columns=16)
    offsets = []
    for count in (3, 11):
        step = engine.cache.plan_step([engine.admitted(token_range(count * 100, count))], shape).step
        plan = step.plan
        arrays = (plan.query_positions, plan.seq_lens, plan.groups[0].block_table, plan.groups[0].append_slots)
        offsets.append([array.ctypes.data - plan.staging.ctypes.data for array in arrays])
        assert plan.seq_lens.tolist() == [count, 0, 0, 0]
        engine.cache.finish_step(step, [None])
    assert offsets[0] == offsets[1]
