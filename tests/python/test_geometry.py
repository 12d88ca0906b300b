# SPDX-License-Identifier: Apache-2.0
"""Where bytes lie: pages, pools and state slots, as kernels written in Python need to know."""

import struct

import numpy as np
import pytest

import quire
from byte_engine import config


def component(name, heads=1, dim=2, **fields):
    return quire.Component(name=name, element=quire.ElementType.Fp32, heads=heads, dim=dim, **fields)


def hybrid():
    """K and V, a ring of 6 entries with a sink of 2, and a recurrent state with an earlier version."""
    ring = quire.CacheGroup(
        name="ring", kind=quire.GroupKind.Window, layers=[1], components=[component("k")], window_tokens=4,
        sink_tokens=2, window_form=quire.WindowForm.Ring, slot_entries=6, keys_rotated=False,
        retention=quire.GroupRetention(rule=quire.RetentionRule.None_),
    )  # fmt: skip
    state = quire.CacheGroup(
        name="state", kind=quire.GroupKind.Snapshot, layers=[2, 3], slot_entries=1, slot_history=1,
        components=[component("h", heads=3, initial=quire.fp32_pattern(1.5)), component("count", dim=1)],
        retention=quire.GroupRetention(rule=quire.RetentionRule.Last),
    )  # fmt: skip
    full = quire.CacheGroup(name="full", layers=[0], components=[component("k", 2), component("v", 2)])
    return quire.ModelLayout.create("hybrid", [full, ring, state])


def test_the_state_of_a_sequence_can_be_written_by_its_parts():
    layout = hybrid()
    cache = quire.Cache.open(config(4, 8, layout=layout, sequence_count_max=3, context_tokens_max=16))
    slots = cache.state_slots()
    assert slots.slot_bytes == quire.StateSlots.create(layout, quire.PageOptions(page_tokens=4)).slot_bytes
    assert [part.group_index for part in slots.parts] == [1, 2]
    assert slots.parts[0].offset == 0 and slots.parts[1].offset == slots.parts[0].geometry.page_bytes
    memory = np.asarray(cache.state_memory()).reshape(-1, slots.slot_bytes)
    assert len(slots.initial_bytes()) == slots.slot_bytes and slots.slot_bytes % slots.alignment == 0
    memory[1] = np.frombuffer(slots.initial_bytes(), np.uint8)
    # Every row is where offset_of() says, and nowhere else.
    seen = np.zeros(slots.slot_bytes, np.int32)
    for part_index, part in enumerate(slots.parts):
        group = layout.groups[part.group_index]
        for layer in range(part.geometry.layer_count):
            for index, strides in enumerate(part.geometry.components):
                for version in range(group.slot_history + 1):
                    for entry in range(group.slot_entries):
                        for head in range(part.geometry.heads_on_rank(index, 0).count):
                            row = quire.StateRow(
                                part_index=part_index, version_index=version, layer_index=layer,
                                component_index=index, entry_index=entry, head_index=head,
                            )  # fmt: skip
                            first = slots.offset_of(row)
                            seen[first : first + strides.head_bytes] += 1
                            values = memory[1, first : first + strides.head_bytes].view(np.float32)
                            assert (values == (1.5 if group.components[index].name == "h" else 0)).all()
    assert (seen == 1).all()
    # As a pool the same bytes are found, with the number of the slot as that of the page.
    pool = slots.pool_of(1, 3)
    assert (pool.page_count, pool.page_stride) == (3, slots.slot_bytes)
    place = quire.RowLocation(page=1, layer_index=1, component_index=0, token_index=1, head_index=2)
    row = quire.StateRow(part_index=1, version_index=1, layer_index=1, component_index=0, head_index=2)
    assert slots.parts[1].offset + pool.offset_of(place) == slots.slot_bytes + slots.offset_of(row)
    assert pool.strides.offset_of(place) == pool.offset_of(place)


def test_a_ring_keeps_its_sink():
    ring = hybrid().groups[1]
    assert [quire.ring_entry(ring, position) for position in range(9)] == [0, 1, 2, 3, 4, 5, 2, 3, 4]
    with pytest.raises(quire.InvalidArgument, match="it is no ring"):
        quire.ring_entry(quire.CacheGroup(name="g"), 3)


def test_groups_answer_questions():
    full, ring, state = hybrid().groups
    assert [quire.has_pages(group) for group in (full, ring, state)] == [True, False, True]
    assert [quire.has_slot(group) for group in (full, ring, state)] == [False, True, True]
    assert [quire.is_reusable(group) for group in (full, ring, state)] == [True, False, True]
    assert [quire.lookback_tokens(group, 100) for group in (full, ring, state)] == [0, 3, 1]
    assert quire.boundary_multiple(quire.CacheGroup(kind=quire.GroupKind.Compressed, tokens_per_entry=4)) == 4
    request = quire.BudgetRequest(page=quire.PageOptions(page_tokens=4))
    assert [quire.pages_of_request(group, request, 17) for group in (full, ring, state)] == [5, 0, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: quire.lookback_tokens(quire.CacheGroup(kind=quire.GroupKind.Compressed, tokens_per_entry=0), 5),
        lambda: quire.pages_of_request(
            quire.CacheGroup(), quire.BudgetRequest(page=quire.PageOptions(page_tokens=0)), 5
        ),
        lambda: quire.pages_of_request(
            quire.CacheGroup(
                kind=quire.GroupKind.Snapshot, retention=quire.GroupRetention(rule=quire.RetentionRule.Every)
            ),
            quire.BudgetRequest(),
            5,
        ),
        lambda: quire.PageGeometry.create(quire.CacheGroup(name="empty")),
        lambda: quire.PageGeometry.create_slot(hybrid().groups[0]),
        lambda: quire.PoolGeometry.create(quire.PageGeometry.create(hybrid().groups[0]), quire.PoolOptions()),
        lambda: quire.PageGeometry.create(hybrid().groups[0]).heads_on_rank(2, 0),
        lambda: quire.PageGeometry.create(hybrid().groups[0]).heads_on_rank(0, 1),
        lambda: quire.StateSlots.create(hybrid()).pool_of(2, 1),
        lambda: quire.StateSlots.create(hybrid()).pool_of(0, 0),
        lambda: quire.decode(b""),
        lambda: quire.decode(b"x" * 100),
    ],
)
def test_what_stops_a_program_in_cpp_is_an_exception(call):
    with pytest.raises((quire.InvalidArgument, quire.Corrupt)):
        call()


@pytest.mark.parametrize(
    "field", ["part_index", "version_index", "layer_index", "component_index", "entry_index", "head_index"]
)
def test_rows_outside_of_a_slot_are_refused(field):
    slots = quire.StateSlots.create(hybrid())
    for value in (6, 2**32 - 1):
        with pytest.raises(quire.InvalidArgument, match=f"{field} is {value}, and there are"):
            slots.offset_of(quire.StateRow(**{field: value}))


@pytest.mark.parametrize("field", ["page", "layer_index", "component_index", "token_index", "head_index"])
def test_rows_outside_of_a_pool_are_refused(field):
    pool = quire.PoolGeometry.create(quire.PageGeometry.create(hybrid().groups[0]), quire.PoolOptions(page_count=5))
    assert pool.offset_of(quire.RowLocation(page=4)) == 4 * pool.page_stride
    for value in (16, 2**32 - 1):
        with pytest.raises(quire.InvalidArgument, match=f"{field} is {value}, and there are"):
            pool.offset_of(quire.RowLocation(**{"page": 0, field: value}))
    with pytest.raises(quire.InvalidArgument):
        pool.offset_of(quire.RowLocation())  # of no page
    with pytest.raises(quire.InvalidArgument, match="component_index is 2"):
        pool.strides.offset_of(quire.RowLocation(page=0, component_index=2))


def test_heads_are_split_over_ranks():
    group = quire.CacheGroup(name="g", layers=[0], components=[component("k", heads=8)])
    page = quire.PageGeometry.create(group, quire.PageOptions(rank_count=4))
    ranges = [page.heads_on_rank(0, rank) for rank in range(4)]
    assert [(heads.first, heads.count) for heads in ranges] == [(0, 2), (2, 2), (4, 2), (6, 2)]
    assert page.page_count_within(page.page_bytes * 3 + 1) == 3
    assert page.initial_bytes() == bytes(page.page_bytes)
    page.group.name = "other"  # of a copy
    assert page.group == group


def test_patterns_are_little_endian():
    assert quire.fp32_pattern(1.5) == struct.pack("<f", 1.5)
    assert quire.int32_pattern(-1) == b"\xff" * 4
    assert quire.bf16_pattern(1.0) == b"\x80\x3f"
    sizes = {quire.ElementType.Fp32: 4, quire.ElementType.Bf16: 2, quire.ElementType.Fp8: 1}
    assert {element: quire.element_bytes(element) for element in sizes} == sizes


def test_formats_become_components():
    group = quire.CacheGroup(name="full", layers=quire.layer_range(0, 61))
    quire.use_format(group, quire.fp8_records())
    assert [part.name for part in group.components] == ["values", "scales", "rope"]
    assert quire.PageGeometry.create(group).token_bytes == 61 * 656
    quire.use_format(group, quire.EntryFormat(name="mine", components=[component("k")]), prefix="my_")
    assert group.components[-1].name == "my_k"
    made = [
        (quire.fp8_arrays(), 580), (quire.fp8_arrays_with_positions(), 584), (quire.fp8_rows_then_scales(), 584),
        (quire.index_keys_fp8(), 132), (quire.index_keys_mxfp4(), 68), (quire.index_keys_nvfp4(), 72),
        (quire.compressor_fp32(), 8192), (quire.compressor_bf16(quire.CompressorRow(series=1)), 2048),
        (quire.compressor_running(), 6144), (quire.plain_rows(), 1024),
    ]  # fmt: skip
    for form, token_bytes in made:
        one = quire.CacheGroup(name=form.name, layers=[0])
        quire.use_format(one, form)
        page = quire.PageGeometry.create(one, quire.PageOptions(page_tokens=1))
        assert page.entry_bytes == token_bytes, form.name


def test_key_spaces_and_tiers_answer_too():
    assert quire.KeySpace(model="m").canonical_form()[:9] == b"\x01" + bytes(7) + b"m"
    assert not quire.HostConfig().is_on and quire.HostConfig(page_count=1).is_on
    disk = quire.DiskConfig(directories=["/tmp/a", "/tmp/b"])
    assert disk.is_on and not quire.DiskConfig().is_on
    assert disk.capacity_bytes_min(1 << 20) == 2 * quire.DiskConfig(directories=["/tmp/a"]).capacity_bytes_min(1 << 20)


def test_plans_of_transfers_go_to_other_processes():
    host = {"page_count": 16, "external_mover": True, "write_policy": quire.WritePolicy.WriteThrough}
    cache = quire.Cache.open(config(4, 8, host=host, context_tokens_max=16))
    space = cache.key_space(quire.KeySpace(model="m"))
    sequence = cache.begin(space, list(range(10)))
    cache.admit(sequence)
    cache.finish_step(cache.plan_step([sequence]).step, [1])
    (plan,) = cache.take_transfers()
    encoded = quire.encode(plan)
    assert len(encoded) == quire.encoded_bytes(len(plan.pages)) and len(plan.pages) == 2
    assert quire.decode(encoded) == plan
    with pytest.raises(quire.Error):
        quire.decode(encoded[:-1])
