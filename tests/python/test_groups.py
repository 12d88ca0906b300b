# SPDX-License-Identifier: Apache-2.0
"""Models of several cache groups through Python: windows, compressed entries and snapshots of states."""

import time

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, Engine, config, drain, token_range

PAGE_TOKENS = 16
NUMBER = [quire.Component(name="number", element=quire.ElementType.Int32, dim=1)]


def three_kinds(**fields):
    """One number per token, or per state, is enough to see that it is the right one."""
    far = quire.CacheGroup(name="far", layers=[0], components=NUMBER)
    near = quire.CacheGroup(name="near", kind=quire.GroupKind.Window, layers=[1], components=NUMBER, window_tokens=64)
    state = quire.CacheGroup(
        name="state",
        kind=quire.GroupKind.Snapshot,
        layers=[2],
        components=NUMBER,
        retention=quire.GroupRetention(rule=quire.RetentionRule.Every, interval_tokens=256),
        slot_entries=1,
    )
    return config(
        PAGE_TOKENS,
        128,
        layout=quire.ModelLayout.create("three-kinds", [far, near, state]),
        device={"group_page_counts": [128, 48, 12], "state_slot_count": 2},
        sequence_count_max=4,
        context_tokens_max=1024,
        plan=quire.PlanConfig(page_tables=quire.PageTables.Block),
        **fields,
    )


def numbers_of(tokens):
    """What a token stores depends on every token up to it."""
    numbers = np.empty(len(tokens), np.uint32)
    number = 1
    for i, token in enumerate(tokens):
        number = (number * 31 + token) & 0xFFFFFFFF
        numbers[i] = number
    return numbers.view(np.int32)


class Model:
    """Three layers that compute nothing: they write numbers, and check those they would read."""

    def __init__(self, cache):
        self.cache = cache
        self.far, self.near = (np.asarray(cache.component_memory(group, "number")).reshape(-1) for group in (0, 1))
        slots = np.asarray(cache.state_memory()).reshape(-1, cache.state_slots().slot_bytes)
        self.states = slots.view(np.int32)[:, 0]

    def run(self, plan, tokens):
        numbers = numbers_of(tokens)
        (entry,) = plan.entries
        begin, end = entry.position, entry.position + entry.token_count
        stored = np.arange(begin)
        pages = entry.pages.astype(np.int64)
        np.testing.assert_array_equal(self.far[pages[stored // 16] * 16 + stored % 16], numbers[:begin])
        seen = np.arange(max(0, begin - 63), begin)
        table = plan.groups[1].block_table[0].astype(np.int64)
        np.testing.assert_array_equal(self.near[table[seen // 16] * 16 + seen % 16], numbers[seen])
        assert self.states[entry.state_slot] == (0 if begin == 0 else numbers[begin - 1])
        for memory, group in ((self.far, plan.groups[0]), (self.near, plan.groups[1])):
            slots = group.append_slots[: end - begin]
            written = slots != quire.NO_SLOT
            memory[slots[written]] = numbers[begin:end][written]
        self.states[entry.state_slot] = numbers[end - 1]


def serve(engine, tokens, chunk=200):
    """A whole request, in chunks that end where snapshots are due; gives what it found."""
    cache = engine.cache
    sequence = engine.admitted(tokens)
    if engine.has_tiers:
        assert cache.wait_until_ready(sequence, DEADLINE_S)
    model = Model(cache)
    view = cache.view(sequence)
    found = view.token_count - view.pending_tokens
    while (view := cache.view(sequence)).pending_tokens > 0:
        count = min(view.pending_tokens, chunk)
        if view.next_checkpoint:
            count = min(count, view.next_checkpoint - (view.token_count - view.pending_tokens))
        step = engine.plan(quire.StepEntry(sequence=sequence, token_count=count))
        model.run(step.plan, tokens)
        cache.apply_saves(step)
        cache.finish_step(step, [None])
        cache.check_invariants()
    cache.end(sequence)
    return found


def test_a_hybrid_request_goes_on_from_the_snapshot_that_another_left():
    engine = Engine(three_kinds())
    shared = token_range(0, 512)
    assert serve(engine, shared + token_range(5000, 100)) == 0
    assert serve(engine, shared + token_range(7000, 60)) == 512
    stats = engine.cache.group_stats(2)
    assert stats.restored_snapshot_total == 1 and stats.sealed_page_total >= 2
    assert engine.cache.group_stats(2).slot_count == 2


def test_a_state_is_kept_at_multiples_of_its_interval_only():
    engine = Engine(three_kinds())
    serve(engine, token_range(0, 600))
    lookup = engine.cache.lookup(engine.space, token_range(0, 400) + token_range(9000, 100))
    assert lookup.matched_tokens == 256
    sequence = engine.admitted(token_range(0, 400) + token_range(9000, 100))
    miss = engine.cache.view(sequence).miss
    assert (miss.reason, miss.group) == (quire.MissReason.NotHeld, 2)


def test_windows_and_states_come_back_from_disk_after_a_restart(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    disk["group_retention"] = [
        quire.GroupRetention(),
        quire.GroupRetention(rule=quire.RetentionRule.Every, interval_tokens=256),
        quire.GroupRetention(),
    ]
    tokens = token_range(0, 600)
    first = Engine(three_kinds(host={"page_count": 256}, disk=disk))
    serve(first, tokens)
    assert first.cache.wait_until_flushed(DEADLINE_S)
    first.cache.close()
    second = Engine(three_kinds(host={"page_count": 256}, disk=disk))
    assert serve(second, tokens[:512] + token_range(8000, 20)) == 512  # checks every number it reads
    assert second.cache.group_stats(2).disk_loaded_page_total > 0
    assert second.cache.disk_status(2).page_count > 0
    drain(second.cache)


def test_windows_and_states_are_held_on_the_host_with_their_prefix(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    tokens = token_range(0, 512)
    first = Engine(three_kinds(host={"page_count": 128}, disk=disk))
    serve(first, tokens + token_range(8000, 60))
    assert first.cache.wait_until_flushed(DEADLINE_S)
    first.cache.close()
    engine = Engine(three_kinds(host={"page_count": 128}, disk=disk))
    hold = engine.cache.hold_on_host(engine.space, tokens)
    drain(engine.cache)
    held = engine.cache.held_prefix(hold.id)
    assert (held.token_count, held.is_arriving, held.miss.reason) == (512, False, quire.MissReason.None_)
    assert engine.cache.stats().held_pages == 32
    for i in range(1, 8):  # others use all pages of host and device
        serve(engine, token_range(100_000 * i, 600))
        drain(engine.cache)
    loaded = [engine.cache.group_stats(group).disk_loaded_page_total for group in range(3)]
    assert serve(engine, tokens + token_range(9000, 20)) == 512  # checks every number it reads
    drain(engine.cache)
    assert [engine.cache.group_stats(group).disk_loaded_page_total for group in range(3)] == loaded
    engine.cache.release_hold(hold.id)
    engine.cache.check_invariants()


def test_bytes_of_all_groups_go_from_one_disk_to_another(tmp_path):
    def on(name):
        disk = {"directories": [str(tmp_path / name)], "capacity_bytes": 64 << 20}
        return Engine(three_kinds(host={"page_count": 256}, disk=disk))

    def ask(engine, call, *arguments):
        answers = []
        call(engine.space, *arguments, answers.append)
        deadline = time.monotonic() + DEADLINE_S
        while not answers:
            assert time.monotonic() < deadline
            drain(engine.cache)
        assert answers[0].outcome == quire.TransferOutcome.Ok
        return answers[0]

    tokens = token_range(0, 520)
    first = on("first")
    serve(first, tokens)
    assert first.cache.wait_until_flushed(DEADLINE_S)
    direct = first.cache.direct_bytes(len(tokens))
    assert direct.token_count == 512
    assert [part.group_index for part in direct.parts] == [0, 1, 2]
    assert [part.page_count for part in direct.parts] == [32, 4, 1]
    assert direct.parts[2].offset_of(31) == direct.parts[2].offset and direct.parts[2].offset_of(30) is None
    pages = np.zeros(direct.byte_count, np.uint8)
    assert ask(first, first.cache.get_from_disk, tokens, pages).token_count == 512
    first.cache.close()
    second = on("second")
    assert ask(second, second.cache.lookup_on_disk, tokens).token_count == 0
    answer = ask(second, second.cache.put_on_disk, tokens, pages)
    assert (answer.token_count, answer.replay_tokens, answer.rebuilt_groups) == (512, 0, ())
    assert ask(second, second.cache.lookup_on_disk, tokens).token_count == 512
    assert serve(second, tokens + token_range(9000, 20)) == 512  # checks every number it reads
    with pytest.raises(quire.InvalidArgument, match="direct_bytes"):
        second.cache.put_on_disk(second.space, tokens, pages[:-1], print)


def test_what_one_cache_computes_of_all_groups_another_decodes():
    prefill, decode = Engine(three_kinds()), Engine(three_kinds())
    tokens = token_range(0, 300)
    receiving, sending = decode.admitted(tokens), prefill.admitted(tokens)
    slots = decode.cache.prepare_receive(receiving, 300)
    targets = decode.cache.receive_targets(receiving)
    assert {run.group for run in targets.windows} == {1}
    assert sum(run.token_count for run in targets.windows) == 300 - 224  # the last window, in whole pages
    assert targets == quire.ReceiveTargets(windows=list(targets.windows), state_slot=targets.state_slot)
    with pytest.raises(quire.InvalidArgument, match="group 'near' has no slot for token 237"):
        prefill.cache.mark_send(sending, 0, slots, 3)
    prefill.cache.mark_send(sending, 0, slots, 3, targets)

    here, there = Model(prefill.cache), Model(decode.cache)
    tokens.append(999)
    prefill.cache.append(sending, [999])
    states = []
    while prefill.cache.view(sending).computed_tokens < 300:
        pending = prefill.cache.view(sending).pending_tokens
        step = prefill.plan(quire.StepEntry(sequence=sending, token_count=min(pending, 200)))
        here.run(step.plan, tokens)
        for source, target, group in ((here.far, there.far, 0), (here.near, there.near, 1)):
            plan = step.plan.groups[group]
            is_sent = plan.remote_slots != quire.NO_SLOT
            target[plan.remote_slots[is_sent]] = source[plan.append_slots[is_sent]]
        states += step.plan.state_sends.tolist()
        for source, target, _, _, time in step.plan.state_sends.tolist():
            assert time == quire.SendTime.AfterStep
            there.states[target] = here.states[source]
        prefill.cache.apply_saves(step)
        prefill.cache.finish_step(step, [None])
    assert [state[1:4] for state in states] == [[targets.state_slot, 300, 3]]  # a step ends there

    decode.cache.finish_receive(receiving)
    decode.cache.check_invariants()
    with pytest.raises(quire.InvalidArgument, match="is not receiving"):
        decode.cache.receive_targets(receiving)
    decode.cache.append(receiving, [999])
    step = decode.plan(receiving)
    there.run(step.plan, tokens)
    decode.cache.apply_saves(step)
    decode.cache.finish_step(step, [None])


def test_the_pages_of_windows_and_snapshots_are_visited():
    engine = Engine(three_kinds())
    serve(engine, token_range(0, 512))
    history = {int(page) for run in engine.cache.visit_runs() for page in run.pages}
    for group in (1, 2):
        pages = engine.cache.visit_group_pages(group)
        assert pages and {page for page, _ in pages} <= history
    assert len(engine.cache.visit_group_pages(2)) == engine.cache.group_stats(2).sealed_pages


def test_a_compressed_group_has_a_slot_for_each_whole_entry():
    layout = quire.ModelLayout.create(
        "compressed",
        [
            quire.CacheGroup(name="near", kind=quire.GroupKind.Window, layers=[0], components=NUMBER, window_tokens=8),
            quire.CacheGroup(
                name="far", kind=quire.GroupKind.Compressed, layers=[0], components=NUMBER, tokens_per_entry=4
            ),
        ],
    )
    engine = Engine(config(16, 16, layout=layout, sequence_count_max=2, context_tokens_max=128))
    assert layout.hit_multiple_tokens == 4 and layout.page_multiple_tokens == 4
    sequence = engine.admitted(token_range(0, 10))
    plan = engine.plan(sequence).plan
    far = plan.groups[1]
    assert far.tokens_per_entry == 4 and plan.groups[0].window_tokens == 8
    page = engine.cache.view(sequence).pages[0]
    expected = [quire.NO_SLOT] * 10
    expected[3], expected[7] = page * 4, page * 4 + 1
    assert far.append_slots.tolist() == expected
    assert np.asarray(engine.cache.component_memory(1)).shape[2] == 4  # entries of a page


def test_a_ring_lies_in_the_state_slot():
    layout = quire.ModelLayout.create(
        "ring",
        [
            quire.CacheGroup(name="far", layers=[0], components=NUMBER),
            quire.CacheGroup(
                name="ring",
                kind=quire.GroupKind.Window,
                layers=[1],
                components=NUMBER,
                window_tokens=8,
                window_form=quire.WindowForm.Ring,
                slot_entries=8,
                retention=quire.GroupRetention(rule=quire.RetentionRule.Last),
            ),
        ],
    )
    engine = Engine(config(4, 32, layout=layout, sequence_count_max=2, context_tokens_max=64))
    sequence = engine.admitted(token_range(0, 6))
    plan = engine.plan(sequence).plan
    slot = plan.entries[0].state_slot
    assert plan.token_count == 4  # up to where a hit may end
    assert plan.groups[1].append_slots.tolist() == [slot * 8 + i for i in range(4)]


@pytest.mark.parametrize("name", quire.preset_names())
def test_every_preset_serves_requests_that_share_a_prefix(name):
    layout = quire.preset(name)
    budget = quire.BudgetRequest(context_tokens_max=16384, sequence_count_max=2)
    budget.page.page_tokens = page_tokens = max(layout.page_multiple_tokens, 16)
    # As many bytes as the budget asks for, whatever the model: nothing of it is ever touched.
    budget.device_bytes = 1 << 40
    made = quire.CacheConfig(layout=layout, sequence_count_max=2, context_tokens_max=16384, step_tokens_max=16384)
    made.page.page_tokens = page_tokens
    made.device.page_count = 64 * 1024 // page_tokens
    made.device.memory = quire.DeviceMemory.None_
    assert quire.solve_budget(layout, budget).tiers[0].request_count > 0
    assert name in layout.describe(made.page)
    cache = quire.Cache.open(made)
    space = cache.key_space(quire.KeySpace(model=name))
    prompt = np.arange(9000, dtype=np.int32)

    def request(tokens):
        with cache.begin(space, tokens) as sequence:
            matched = cache.admit(sequence).matched_tokens
            while (view := cache.view(sequence)).pending_tokens > 0:
                count = view.pending_tokens
                if view.next_checkpoint:
                    count = min(count, view.next_checkpoint - (view.token_count - count))
                step = cache.plan_step([quire.StepEntry(sequence=sequence, token_count=count)]).step
                assert len(step.plan.groups) == len(layout.groups)
                cache.finish_step(step, [None])
            return matched

    assert request(prompt) == 0
    matched = request(np.concatenate([prompt, [1, 2, 3]]).astype(np.int32))
    if layout.hit_multiple_tokens > 0:
        assert matched >= 8192
    cache.check_invariants()


def test_adopted_memory_of_several_groups_is_what_the_cache_uses():
    probe = quire.Cache.open(three_kinds())
    made = three_kinds()
    groups = [np.zeros(probe.geometry(g).pool_bytes, np.uint8) for g in range(3)]
    state = np.zeros(2 * probe.state_slots().slot_bytes, np.uint8)
    made.device.memory = quire.DeviceMemory.Adopted
    made.device.adopted_group_memory = groups
    made.device.adopted_state_memory = state
    engine = Engine(made)
    for g in range(3):
        assert np.asarray(engine.cache.device_memory(g)).ctypes.data == groups[g].ctypes.data
    assert np.asarray(engine.cache.state_memory()).ctypes.data == state.ctypes.data
    tokens = token_range(0, 40)
    step = engine.cache.plan_step([engine.admitted(tokens)]).step
    Model(engine.cache).run(step.plan, tokens)
    assert groups[0].any() and groups[1].any() and state.any()
    with pytest.raises(quire.Unsupported, match="not quire's own"):  # the engine copies in memory of its own
        engine.cache.apply_copies(step)
