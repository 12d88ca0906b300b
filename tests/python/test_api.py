# SPDX-License-Identifier: Apache-2.0
"""The scenarios of the C++ tests, through Python: sequences, steps and what stays cached, on the device tier."""

import numpy as np
import pytest

import quire
from byte_engine import Engine, config, rows, slots_of, token_range, values_of


@pytest.fixture
def engine():
    made = Engine(config())
    yield made
    made.cache.check_invariants()


def open_small(*arguments, **fields):
    return Engine(config(*arguments, **fields))


# Finding what is cached


def test_a_second_request_finds_the_pages_of_the_first(engine):
    assert engine.request(token_range(0, 10)) == 0
    assert engine.request(token_range(0, 8) + [70, 71, 72]) == 8
    stats = engine.cache.stats()
    assert (stats.hit_tokens, stats.prompt_tokens, stats.computed_tokens) == (8, 21, 13)


def test_match_stops_at_the_first_unknown_page(engine):
    engine.request(token_range(0, 16))
    assert engine.cache.lookup(engine.space, token_range(0, 4) + [99] + token_range(5, 11)).matched_tokens == 4


def test_a_prompt_that_is_cached_whole_runs_its_last_token_again_and_writes_nothing(engine):
    tokens = token_range(0, 12)
    engine.request(tokens)
    sequence = engine.cache.begin(engine.space, tokens)
    admission = engine.cache.admit(sequence)
    assert (admission.matched_tokens, admission.miss.reason) == (12, quire.MissReason.None_)
    assert engine.cache.view(sequence).pending_tokens == 1
    step = engine.plan(sequence)
    assert step.plan.append_slots.tolist() == [quire.NO_SLOT]
    assert step.plan.seq_lens.tolist() == [12]
    engine.compute(step, tokens)
    engine.cache.finish_step(step, [12])
    engine.run(sequence, tokens + [12])
    engine.check(sequence, tokens + [12])


def test_a_match_inside_a_page_is_copied_when_it_saves_half_a_page(engine):
    engine.request(token_range(0, 8))
    tokens = token_range(0, 6) + [90, 91]
    assert engine.cache.lookup(engine.space, tokens).partial_tokens == 2
    sequence = engine.cache.begin(engine.space, tokens)
    admission = engine.cache.admit(sequence)
    assert (admission.matched_tokens, admission.partial_tokens) == (6, 2)
    outcome = engine.cache.plan_step([sequence])
    copies = outcome.step.plan.copies
    assert copies.shape == (1, 3)
    source, target, count = copies[0].tolist()
    assert count == 2 and target == engine.cache.view(sequence).pages[1] and source != target
    memory = rows(engine.cache)
    before = memory[source * 4 : source * 4 + 2].copy()
    assert not np.array_equal(memory[target * 4 : target * 4 + 2], before)
    engine.cache.apply_copies(outcome.step)
    np.testing.assert_array_equal(memory[target * 4 : target * 4 + 2], before)
    engine.compute(outcome.step, tokens)
    engine.cache.finish_step(outcome.step, [None])
    assert engine.cache.stats().partial_hit_tokens == 2


def test_a_match_that_saves_less_than_the_minimum_is_not_copied():
    engine = open_small(partial_reuse_min_tokens=3)
    engine.request(token_range(0, 8))
    sequence = engine.cache.begin(engine.space, token_range(0, 6) + [90, 91])
    admission = engine.cache.admit(sequence)
    assert (admission.matched_tokens, admission.miss.reason) == (4, quire.MissReason.PartialPage)


def test_options_limit_what_is_reused(engine):
    tokens = token_range(0, 12)
    engine.request(tokens)
    lookup = lambda **fields: engine.cache.lookup(engine.space, tokens, quire.SequenceOptions(**fields))  # noqa: E731
    assert lookup(match_tokens_max=8).matched_tokens == 8
    assert lookup(use_cache=False).matched_tokens == 0
    assert lookup().matched_tokens == 12


def test_the_prompt_is_copied_so_the_callers_array_may_change(engine):
    tokens = np.arange(10, dtype=np.int32)
    sequence = engine.cache.begin(engine.space, tokens)
    tokens[:] = 77
    engine.cache.admit(sequence)
    assert engine.plan(sequence).plan.entries[0].tokens.tolist() == token_range(0, 10)


@pytest.mark.parametrize("form", [list, tuple, np.int32, np.int64])
def test_tokens_come_as_lists_tuples_and_arrays_of_either_width(engine, form):
    tokens = np.arange(9, dtype=form) if isinstance(form, type) and issubclass(form, np.integer) else form(range(9))
    assert engine.request(tokens) == 0
    assert engine.request(token_range(0, 9)) == 8


def test_key_spaces_do_not_share(engine):
    tokens = token_range(0, 8)
    engine.request(tokens)
    for field in ("model", "revision", "adapter", "element", "rope", "salt"):
        other = engine.cache.key_space(quire.KeySpace(**{"model": "test", field: "other"}))
        assert other != engine.space
        assert engine.cache.lookup(other, tokens).matched_tokens == 0
    same = engine.cache.key_space(quire.KeySpace(model="test"))
    assert same == engine.space and hash(same) == hash(engine.space)


def test_a_miss_names_the_key_space_that_has_it():
    engine = open_small(lost_page_count_max=16)
    engine.request(token_range(0, 8))
    other = engine.cache.key_space(quire.KeySpace(model="test", salt="b"))
    sequence = engine.cache.begin(other, token_range(0, 8))
    assert engine.cache.admit(sequence).miss.reason == quire.MissReason.KeySpaceDiffers


def test_extra_keys_keep_equal_tokens_apart(engine):
    tokens = token_range(0, 12)
    cat = [quire.ExtraKey(begin=4, end=8, item=b"cat")]
    dog = [quire.ExtraKey(begin=4, end=8, item=b"dog")]
    sequence = engine.admitted(tokens, extra_keys=cat)
    engine.run(sequence, tokens, extra_keys=cat)
    engine.cache.end(sequence)
    assert engine.cache.lookup(engine.space, quire.Prompt(tokens, cat)).matched_tokens == 12
    assert engine.cache.lookup(engine.space, quire.Prompt(tokens, dog)).matched_tokens == 4
    assert engine.cache.lookup(engine.space, tokens).matched_tokens == 4
    assert cat[0].item == b"cat" + bytes(29)


# Steps


def test_a_batch_is_planned_together_with_slots_one_after_the_other(engine):
    a, b = token_range(0, 6), token_range(50, 3)
    first, second = engine.admitted(a), engine.admitted(b)
    step = engine.plan(quire.StepEntry(sequence=first, token_count=4), second)
    plan = step.plan
    assert (plan.entry_count, plan.token_count) == (2, 7)
    assert plan.query_indptr.tolist() == [0, 4, 7]
    assert plan.query_positions.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert plan.seq_lens.tolist() == [4, 3]
    assert plan.stored_lens.tolist() == [0, 0]
    entries = plan.entries
    assert [entry.entry_index for entry in entries] == [0, 1]
    assert entries[0].sequence == first.id and entries[0].tokens.tolist() == a[:4]
    assert np.concatenate([entry.append_slots for entry in entries]).tolist() == plan.append_slots.tolist()
    engine.compute(step, a, b)
    engine.cache.finish_step(step, [None, quire.StepResult(tokens=[60])])
    assert engine.cache.view(first).pending_tokens == 2
    assert engine.cache.view(second).token_count == 4
    engine.run(first, a)
    engine.check(first, a)


def test_decoding_fills_pages_and_seals_them_one_by_one(engine):
    tokens = token_range(0, 3)
    sequence = engine.admitted(tokens)
    sealed = []
    for token in token_range(100, 6):
        engine.run(sequence, tokens, [token])
        sealed.append(engine.cache.stats().sealed_pages)
    assert sealed == [0, 1, 1, 1, 1, 2]
    engine.check(sequence, tokens)


def test_results_are_step_results_tokens_numbers_or_none(engine):
    sequence = engine.admitted([1, 2])
    for result, count in ((5, 3), ([6], 4), (np.array([7], np.int64), 5), (quire.StepResult(tokens=[8]), 6), (None, 6)):
        engine.cache.finish_step(engine.plan(sequence), [result])
        assert engine.cache.view(sequence).token_count == count


def test_two_sequences_that_compute_the_same_pages_end_up_sharing_them(engine):
    tokens = token_range(0, 9)
    first, second = engine.admitted(tokens), engine.admitted(tokens)
    step = engine.plan(first, second)
    engine.compute(step, tokens, tokens)
    engine.cache.finish_step(step, [None, None])
    assert engine.cache.view(first).pages[:2] == engine.cache.view(second).pages[:2]
    assert engine.cache.stats().duplicate_page_total == 2


def test_a_short_pool_plans_nothing_and_says_how_many_entries_fit():
    engine = open_small(4, 4)
    a, b = engine.admitted(token_range(0, 12)), engine.admitted(token_range(50, 8))
    outcome = engine.cache.plan_step([a, b])
    assert outcome.step is None
    shortage = outcome.shortage
    assert (shortage.pages_needed, shortage.pages_available, shortage.entries_that_fit) == (5, 4, 1)
    assert engine.cache.stats().short_plan_count == 1
    step = engine.plan(a)
    engine.compute(step, token_range(0, 12))
    engine.cache.finish_step(step, [None])
    engine.cache.end(a)
    assert engine.cache.plan_step([b]).step is not None  # evicts what it needs
    assert engine.cache.stats().evicted_page_total == 1


def test_an_aborted_step_gives_its_pages_back_and_can_be_planned_again(engine):
    tokens = token_range(0, 10)
    sequence = engine.admitted(tokens)
    step = engine.plan(sequence)
    engine.cache.abort_step(step)
    stats = engine.cache.stats()
    assert (stats.open_pages, stats.aborted_step_count) == (0, 1)
    assert engine.cache.view(sequence).pending_tokens == 10
    engine.run(sequence, tokens)
    engine.check(sequence, tokens)


def test_several_steps_in_flight_are_finished_oldest_first():
    engine = open_small(steps_in_flight_max=3)
    tokens = token_range(0, 8)
    sequence = engine.admitted(tokens)
    first = engine.plan(quire.StepEntry(sequence=sequence, token_count=5))
    second = engine.plan(quire.StepEntry(sequence=sequence, token_count=3))
    third = engine.plan(quire.StepEntry(sequence=sequence, token_count=1))  # the token that the second one will bring
    assert engine.cache.view(sequence).steps_in_flight == 3
    assert third.plan.entries[0].tokens.size == 0
    with pytest.raises(quire.Unavailable, match="in flight"):
        engine.cache.plan_step([sequence])
    with pytest.raises(quire.InvalidArgument, match="oldest|order|first"):
        engine.cache.finish_step(second, [None])
    engine.compute(first, tokens)
    engine.cache.finish_step(first, [None])
    engine.compute(second, tokens)
    engine.cache.finish_step(second, [8])
    engine.compute(third, tokens + [8])
    engine.cache.finish_step(third, [9])
    engine.check(sequence, tokens + [8, 9])
    assert engine.cache.view(sequence).computed_tokens == 9


def test_a_discarded_result_takes_the_later_steps_of_its_sequence_along():
    engine = open_small(steps_in_flight_max=2)
    tokens = token_range(0, 4)
    sequence = engine.admitted(tokens)
    first = engine.plan(sequence)
    second = engine.plan(quire.StepEntry(sequence=sequence, token_count=1))
    engine.cache.finish_step(first, [quire.StepResult(discard=True)])
    engine.cache.finish_step(second, [None])
    assert engine.cache.view(sequence).computed_tokens == 0
    engine.run(sequence, tokens)
    engine.check(sequence, tokens)


def test_appended_tokens_are_computed_by_the_next_step(engine):
    tokens = token_range(0, 5)
    sequence = engine.admitted(tokens)
    engine.run(sequence, tokens)
    engine.cache.append(sequence, token_range(60, 6))
    assert engine.cache.view(sequence).pending_tokens == 6
    engine.run(sequence, tokens + token_range(60, 6))
    engine.check(sequence, tokens + token_range(60, 6))


def test_publish_none_caches_nothing_and_publish_prompt_not_the_output(engine):
    for publish, matched in ((quire.Publish.None_, 0), (quire.Publish.Prompt, 4), (quire.Publish.All, 8)):
        tokens = token_range(1000 * publish.value, 5)
        sequence = engine.admitted(tokens, quire.SequenceOptions(publish=publish))
        engine.run(sequence, tokens, token_range(7, 5))
        engine.run(sequence, tokens)
        engine.cache.end(sequence)
        assert engine.cache.lookup(engine.space, tokens).matched_tokens == matched


def test_end_may_publish_what_begin_was_told_to_hold_back(engine):
    tokens = token_range(0, 8)
    sequence = engine.admitted(tokens, quire.SequenceOptions(publish=quire.Publish.None_))
    engine.run(sequence, tokens)
    engine.cache.end(sequence, quire.Publish.All)
    assert sequence.has_ended
    assert engine.request(tokens) == 8


def test_a_dropped_handle_ends_its_sequence_at_the_next_call(engine):
    sequence = engine.admitted(token_range(0, 8))
    assert engine.cache.stats().sequence_count == 1
    del sequence
    assert engine.cache.stats().sequence_count == 0


def test_a_sequence_ends_with_its_block_and_a_cache_closes_with_its_own():
    with quire.Cache.open(config()) as cache:
        space = cache.key_space(quire.KeySpace(model="m"))
        with cache.begin(space, [1, 2, 3]) as sequence:
            cache.admit(sequence)
            assert sequence.cache is cache and not sequence.has_ended
        assert sequence.has_ended and cache.stats().sequence_count == 0
    assert cache.is_closed


def test_expected_tokens_hold_an_admission_back():
    engine = open_small(4, 8)
    options = quire.SequenceOptions(expected_tokens=20)
    running = engine.admitted(token_range(0, 4), options)
    waiting = engine.cache.begin(engine.space, token_range(50, 4), options)
    with pytest.raises(quire.Unavailable):
        engine.cache.admit(waiting)
    assert engine.cache.view(waiting).is_waiting
    engine.cache.end(running)
    engine.cache.admit(waiting)


# Changing a sequence


def test_a_fork_shares_whole_pages_and_copies_the_one_it_writes(engine):
    tokens = token_range(0, 11)
    source = engine.admitted(tokens)
    engine.run(source, tokens)
    before = engine.cache.stats().free_pages
    fork = engine.cache.fork(source, 10)
    assert engine.cache.stats().free_pages == before
    branch = tokens[:10] + [70, 71]
    engine.cache.append(fork, branch[10:])
    step = engine.plan(fork)
    copies = step.plan.copies.tolist()
    assert copies == [[engine.cache.view(source).pages[2], engine.cache.view(fork).pages[2], 2]]
    engine.compute(step, branch)
    engine.cache.finish_step(step, [None])
    assert engine.cache.view(fork).pages[:2] == engine.cache.view(source).pages[:2]
    engine.check(source, tokens)
    engine.check(fork, branch)
    assert engine.cache.stats().forked_sequence_count == 1


@pytest.mark.parametrize("byte_layout", [quire.ByteLayout.PageFirst, quire.ByteLayout.LayerFirst])
def test_copies_move_every_layer_and_component_of_a_page(byte_layout):
    shape = quire.SimpleShape(layers=3, kv_heads=2, head_dim=4, element=quire.ElementType.Fp32)
    engine = open_small(4, 8, layout=quire.ModelLayout.simple(shape), device={"byte_layout": byte_layout})
    cache = engine.cache
    source = engine.admitted(token_range(0, 6))
    cache.finish_step(engine.plan(source), [None])
    k, v = (np.asarray(cache.component_memory(0, name)) for name in ("k", "v"))
    assert k.shape == (9, 3, 4, 2, 4) and k.dtype == np.float32
    random = np.random.default_rng(1)
    page = cache.view(source).pages[1]
    k[page], v[page] = random.random(k[page].shape), random.random(v[page].shape)
    fork = cache.fork(source, 6)
    cache.append(fork, [50])
    step = engine.plan(fork)  # applies the copies
    target = cache.view(fork).pages[1]
    assert target != page
    np.testing.assert_array_equal(k[target, :, :2], k[page, :, :2])
    np.testing.assert_array_equal(v[target, :, :2], v[page, :, :2])
    assert not np.array_equal(k[target, :, 2:], k[page, :, 2:])  # tokens that are not the fork's
    cache.abort_step(step)


def test_a_rewind_gives_pages_back_and_asks_anew(engine):
    tokens = token_range(0, 11)
    sequence = engine.admitted(tokens, quire.SequenceOptions(publish=quire.Publish.None_))
    engine.run(sequence, tokens)
    free = engine.cache.stats().free_pages
    engine.cache.rewind(sequence, 5)
    assert engine.cache.stats().free_pages == free + 1
    view = engine.cache.view(sequence)
    assert (view.token_count, view.computed_tokens, view.pending_tokens) == (6, 6, 1)
    other = tokens[:6] + [80, 81, 82]
    engine.cache.append(sequence, other[6:])
    engine.run(sequence, other)
    engine.check(sequence, other)


def test_a_rewind_into_a_cached_page_leaves_the_page_and_copies_it(engine):
    tokens = token_range(0, 8)
    sequence = engine.admitted(tokens)
    engine.run(sequence, tokens)
    engine.cache.rewind(sequence, 2)
    other = tokens[:6] + [90]
    engine.cache.append(sequence, [90])
    step = engine.plan(sequence)
    assert step.plan.copies[:, 2].tolist() == [2]
    engine.compute(step, other)
    engine.cache.finish_step(step, [None])
    engine.check(sequence, other)
    assert engine.cache.lookup(engine.space, tokens).matched_tokens == 8


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_of_a_draft_the_accepted_tokens_stay_and_the_rest_goes(engine, accepted):
    tokens = token_range(0, 6)
    sequence = engine.admitted(tokens)
    engine.run(sequence, tokens, [6])
    drafts = token_range(200, 4)
    step = engine.plan(quire.StepEntry(sequence=sequence, draft_count=4))
    entry = step.plan.entries[0]
    assert (entry.position, entry.token_count, entry.draft_count) == (6, 5, 4)
    engine.compute(step, tokens + drafts)
    tokens += drafts[:accepted] + [300]
    engine.cache.finish_step(step, [quire.StepResult(tokens=tokens[7:], accepted_count=accepted)])
    view = engine.cache.view(sequence)
    assert (view.token_count, view.computed_tokens, view.pending_tokens) == (8 + accepted, 7 + accepted, 1)
    engine.run(sequence, tokens)
    engine.check(sequence, tokens)


def compute_tree(engine, step, known, parents, values):
    """Each node's bytes are those of its path."""
    memory = rows(engine.cache)
    slots = step.plan.append_slots[-len(parents) :]
    for i, slot in enumerate(slots):
        memory[slot] = values_of(known + path_of(parents, values, i))[-1]


def path_of(parents, values, leaf):
    path = []
    while leaf >= 0:
        path.insert(0, values[leaf])
        leaf = parents[leaf]
    return path


@pytest.mark.parametrize("leaf", [6, 3, 0, -1])
def test_a_commit_moves_the_accepted_path_of_a_tree_into_place(engine, leaf):
    known = token_range(0, 6)
    sequence = engine.admitted(known)
    engine.run(sequence, known)
    parents = [-1, 0, 0, 1, 1, 2, 2]
    values = token_range(100, 7)
    step = engine.plan(quire.StepEntry(sequence=sequence, tree_parents=parents))
    assert step.plan.tree_indptr.tolist() == [0, 7]
    nodes = step.plan.tree_nodes
    assert nodes[:, 2].tolist() == [0, 1, 1, 2, 2, 2, 2]
    # Key k is seen by query q iff begin[k] <= begin[q] < end[k]: iff it is q or one of its ancestors.
    for query in range(7):
        ancestors = set(path_of(parents, list(range(7)), query))
        begin = nodes[query, 0]
        assert {k for k in range(7) if nodes[k, 0] <= begin < nodes[k, 1]} == ancestors
    compute_tree(engine, step, known, parents, values)
    engine.cache.finish_step(step, [values])
    view = engine.cache.view(sequence)
    assert (view.tree_tokens, view.computed_tokens) == (7, 6)
    engine.cache.commit_tree(sequence, leaf)
    known = known + path_of(parents, values, leaf)
    assert engine.cache.view(sequence).token_count == len(known)
    engine.cache.append(sequence, [90])
    step = engine.plan(sequence)
    moves = {6: 2, 3: 1, 0: 0, -1: 0}
    assert step.plan.groups[0].moves.shape == (moves[leaf], 2)
    engine.compute(step, known + [90])
    engine.cache.finish_step(step, [None])
    engine.check(sequence, known + [90])


def unrotated():
    return quire.ModelLayout.simple(quire.SimpleShape(layers=1, kv_heads=1, head_dim=4, keys_rotated=False))


def test_a_window_holds_its_sink_and_its_last_tokens():
    engine = open_small(4, 32, layout=unrotated())
    sequence = engine.cache.begin(engine.space, token_range(0, 40))
    engine.cache.set_window(sequence, quire.Window(visible_tokens=12, sink_tokens=2))
    engine.cache.admit(sequence)
    while engine.cache.view(sequence).pending_tokens > 0:
        step = engine.plan(quire.StepEntry(sequence=sequence, token_count=1))
        assert step.plan.query_positions[0] <= 11
        engine.cache.finish_step(step, [None])
    # The last token saw 2 and [30, 40): pages 0, 7, 8 and 9.
    pages = engine.cache.view(sequence).pages
    assert len(pages) == 10
    assert [i for i, page in enumerate(pages) if page != quire.NULL_PAGE] == [0, 7, 8, 9]
    assert engine.cache.view(sequence).window.visible_tokens == 12
    stats = engine.cache.stats()
    assert (stats.sealed_pages, stats.private_pages) == (3, 3)


def test_a_long_chunk_of_a_window_stores_only_its_sink_and_its_window():
    engine = open_small(4, 32, layout=unrotated())
    sequence = engine.cache.begin(engine.space, token_range(0, 50))
    engine.cache.set_window(sequence, quire.Window(visible_tokens=8, sink_tokens=2))
    engine.cache.admit(sequence)
    slots = engine.plan(sequence).plan.append_slots
    assert [i for i, slot in enumerate(slots) if slot == quire.NO_SLOT] == token_range(4, 40)


def test_a_window_needs_keys_that_are_not_rotated():
    layout = quire.ModelLayout.simple(quire.SimpleShape(layers=1, kv_heads=1, head_dim=4))
    rotated = open_small(layout=layout)
    sequence = rotated.cache.begin(rotated.space, [1, 2, 3])
    with pytest.raises(quire.Error):
        rotated.cache.set_window(sequence, quire.Window(visible_tokens=8))


def test_a_preempted_sequence_finds_again_what_is_cached_of_it(engine):
    tokens = token_range(0, 10)
    sequence = engine.admitted(tokens)
    engine.run(sequence, tokens)
    engine.cache.preempt(sequence, quire.Preempt.Drop)
    view = engine.cache.view(sequence)
    assert view.is_waiting and view.pages == ()
    assert engine.cache.resume(sequence).matched_tokens == 8
    engine.run(sequence, tokens)
    engine.check(sequence, tokens)
    assert engine.cache.stats().preempted_sequence_count == 1


# What stays and what goes


def test_a_kept_prefix_is_not_evicted_until_it_is_let_go():
    engine = open_small(4, 8)
    engine.request(token_range(0, 12))
    kept = engine.cache.keep(engine.space, token_range(0, 12))
    assert kept.token_count == 12 and engine.cache.stats().kept_pages == 3
    engine.request(token_range(100, 20))
    assert engine.cache.lookup(engine.space, token_range(0, 12)).matched_tokens == 12
    engine.cache.unkeep(kept.id)
    engine.request(token_range(200, 32))
    assert engine.cache.lookup(engine.space, token_range(0, 12)).matched_tokens == 0
    with pytest.raises(quire.InvalidArgument):
        engine.cache.unkeep(kept.id)


def test_a_kept_prefix_is_let_go_when_its_time_is_over(engine):
    engine.request(token_range(0, 12))
    kept = engine.cache.keep(engine.space, token_range(0, 12), ttl_ns=1_000)
    engine.cache.advance(999)
    assert engine.cache.stats().kept_pages == 3
    engine.cache.advance(1_000)
    assert engine.cache.stats().kept_pages == 0
    with pytest.raises(quire.InvalidArgument):
        engine.cache.unkeep(kept.id)


def test_higher_priorities_stay_longer():
    engine = open_small(4, 8, policy="priority")
    engine.request(token_range(0, 16), quire.SequenceOptions(priority=5))
    engine.request(token_range(100, 16), quire.SequenceOptions(priority=-5))
    engine.request(token_range(200, 16), quire.SequenceOptions(priority=0))
    assert engine.cache.lookup(engine.space, token_range(0, 16)).matched_tokens == 16
    assert engine.cache.lookup(engine.space, token_range(100, 16)).matched_tokens == 0


@pytest.mark.parametrize("policy", quire.policy_names())
def test_every_policy_makes_room_for_new_requests(policy):
    engine = open_small(4, 8, policy=policy)
    for i in range(20):
        engine.request(token_range(100 * (i % 5), 12))
        engine.cache.check_invariants()
    assert engine.cache.stats().evicted_page_total > 0


def test_a_dropped_key_space_matches_nothing_and_its_id_is_recognised(engine):
    engine.request(token_range(0, 8))
    assert engine.cache.drop(engine.space) == 2
    with pytest.raises(quire.InvalidArgument):
        engine.cache.begin(engine.space, token_range(0, 8))
    engine.space = engine.cache.key_space(quire.KeySpace(model="test"))
    assert engine.request(token_range(0, 8)) == 0
    assert engine.cache.stats().dropped_page_total == 2


def test_a_reset_gives_up_everything_and_is_refused_while_sequences_live(engine):
    engine.request(token_range(0, 8))
    sequence = engine.admitted([1, 2, 3])
    with pytest.raises(quire.Unavailable):
        engine.cache.reset()
    engine.cache.end(sequence)
    engine.cache.reset()
    stats = engine.cache.stats()
    assert stats.free_pages == stats.page_count


def test_reclaim_gives_up_idle_pages_and_says_how_many(engine):
    engine.request(token_range(0, 16))
    assert engine.cache.reclaim(1) == 1
    assert engine.cache.reclaim(100) == 3
    assert engine.cache.reclaim(100) == 0


def test_a_resized_pool_keeps_what_it_holds():
    engine = open_small(4, 8, context_tokens_max=16)
    tokens = token_range(0, 16)
    engine.request(tokens)
    engine.cache.resize(16)
    assert engine.cache.stats().page_count == 16
    assert engine.cache.geometry().page_count == 17  # and the null page
    assert engine.request(tokens) == 16  # compares the bytes
    engine.cache.resize(4)
    assert engine.request(tokens) == 16
    with pytest.raises(quire.Error):
        engine.cache.resize(3)


# External pools, and several caches


def test_offered_pages_are_found_under_the_engines_ids():
    cache = quire.Cache.open(config(4, 16, device={"pool": quire.DevicePool.External}))
    space = cache.key_space(quire.KeySpace(model="m"))
    offered = cache.offer(space, token_range(1, 8), [9, 3])
    assert (offered.adopted_pages, offered.duplicate_pages, offered.prefix_pages) == (2, 0, 0)
    assert cache.offer(space, token_range(1, 12), [5], first_page=2).adopted_pages == 1
    match = cache.match(space, token_range(1, 15))
    assert (match.token_count, list(match.pages)) == (12, [9, 3, 5])
    assert cache.reclaim(100) == 0
    cache.end(match.sequence)
    assert cache.reclaim(2) == 2
    first = cache.take_released(1)
    assert len(first) == 1 and sorted(first + cache.take_released()) == [3, 5]
    assert cache.take_released() == []
    with pytest.raises(quire.InvalidArgument, match="page 9 is offered twice"):
        cache.offer(space, token_range(50, 4), [9])
    assert cache.device_memory() is None


def test_pages_of_several_groups_are_offered_and_matched():
    number = [quire.Component(name="n", element=quire.ElementType.Fp32, dim=1)]
    layout = quire.ModelLayout.create(
        "groups",
        [
            quire.CacheGroup(name="far", layers=[0], components=number),
            quire.CacheGroup(
                name="near", kind=quire.GroupKind.Window, layers=[1], components=number, window_tokens=6
            ),
            quire.CacheGroup(
                name="state",
                kind=quire.GroupKind.Snapshot,
                layers=[2],
                components=number,
                retention=quire.GroupRetention(rule=quire.RetentionRule.Last),
                slot_entries=1,
            ),
        ],
    )
    cache = quire.Cache.open(
        quire.CacheConfig(
            layout=layout,
            page=quire.PageOptions(page_tokens=4),
            device=quire.DeviceConfig(
                pool=quire.DevicePool.External, page_count=16, group_page_counts=[16, 12, 8]
            ),
            sequence_count_max=4,
        )
    )
    space = cache.key_space(quire.KeySpace(model="m"))
    tokens = token_range(1, 16)
    window = quire.GroupPages(group_index=1, page_ids=[0, 1, 2, 3])
    state = quire.GroupPages(group_index=2, first_page=3, page_ids=[7])
    outcome = cache.offer(space, tokens, [4, 5, 6, 7], groups=[window, state])
    assert (outcome.adopted_pages, outcome.adopted_group_pages, outcome.group_duplicates) == (4, 5, ())
    match = cache.match(space, tokens + [99])
    assert (match.token_count, match.replay_tokens, match.pages) == (16, 0, [4, 5, 6, 7])
    assert match.groups == [quire.GroupPages(group_index=1, first_page=2, page_ids=[2, 3]), state]
    assert cache.reclaim(9, group_index=1) == 2 and cache.take_released(group_index=1) == [0, 1]
    cache.end(match.sequence)
    other = quire.GroupPages(group_index=2, first_page=3, page_ids=[1])
    again = cache.offer(space, tokens, [], first_page=4, groups=[other])
    assert [(page.group_index, page.page) for page in again.group_duplicates] == [(2, 1)]
    with pytest.raises(quire.InvalidArgument, match="group 'near': page 12 is not below"):
        cache.offer(space, tokens, [], first_page=4, groups=[quire.GroupPages(group_index=1, page_ids=[12])])
    assert cache.reclaim(1) == 1
    assert [cache.take_released(group_index=group) for group in (0, 1, 2)] == [[7], [3], [7]]


def test_what_one_cache_computes_another_decodes():
    prefill, decode = open_small(), open_small()
    tokens = token_range(0, 22)
    receiving = decode.admitted(tokens)
    slots = decode.cache.prepare_receive(receiving, 22)
    assert sum(run.token_count for run in slots) == 22
    assert decode.cache.view(receiving).is_receiving

    sending = prefill.admitted(tokens)
    step = prefill.plan(quire.StepEntry(sequence=sending, token_count=7))
    prefill.compute(step, tokens)
    prefill.cache.finish_step(step, [None])
    prefill.cache.mark_send(sending, 0, slots, 5)
    sent = 0
    here, there = rows(prefill.cache), rows(decode.cache)
    while prefill.cache.view(sending).pending_tokens > 0:
        pending = prefill.cache.view(sending).pending_tokens
        step = prefill.plan(quire.StepEntry(sequence=sending, token_count=min(pending, 6)))
        prefill.compute(step, tokens)
        group = step.plan.groups[0]
        for run in group.sends:
            there[run.remote_slot : run.remote_slot + run.token_count] = here[
                run.local_slot : run.local_slot + run.token_count
            ]
            assert run.receiver == 5
            sent += run.token_count
        is_sent = group.remote_slots != quire.NO_SLOT
        there[group.remote_slots[is_sent]] = here[group.append_slots[is_sent]]
        assert set(group.receivers[is_sent]) <= {5}
        sent += int(is_sent.sum())
        prefill.cache.finish_step(step, [None])
    assert sent == 22

    decode.cache.finish_receive(receiving)
    assert decode.cache.stats().received_tokens == 22
    decode.check(receiving, tokens)
    decode.run(receiving, tokens, [500])
    decode.run(receiving, tokens)
    decode.check(receiving, tokens)


def test_an_aborted_receive_leaves_its_tokens_pending(engine):
    sequence = engine.admitted(token_range(0, 9))
    engine.cache.prepare_receive(sequence, 9)
    with pytest.raises(quire.Error):
        engine.cache.plan_step([sequence])
    engine.cache.abort_receive(sequence)
    assert engine.cache.view(sequence).pending_tokens == 9
    engine.run(sequence, token_range(0, 9))


# Observers


def test_stats_add_up(engine):
    engine.request(token_range(0, 10))
    sequence = engine.admitted(token_range(0, 8) + [60])
    stats = engine.cache.stats()
    parts = ("free_pages", "open_pages", "sealed_pages", "private_pages", "fenced_pages")
    assert stats.page_count == 32 == sum(getattr(stats, part) for part in parts)
    assert stats.sealed_pages == stats.pinned_pages + stats.evictable_pages == 2
    assert (stats.begun_sequence_count, stats.admitted_sequence_count, stats.sequence_count) == (2, 2, 1)
    group = engine.cache.group_stats(0)
    assert (group.page_count, group.free_pages, group.sealed_pages) == (32, stats.free_pages, 2)
    assert stats.miss_requests[quire.MissReason.Unknown.value] + stats.miss_requests[quire.MissReason.None_.value] >= 1
    assert f"{stats.free_pages} free" in repr(engine.cache)
    engine.cache.end(sequence)


def test_runs_are_visited_parents_first_with_their_tokens_and_pages(engine):
    engine.request(token_range(0, 8) + token_range(100, 8))
    engine.request(token_range(0, 8) + token_range(200, 4))
    runs = [run for run in engine.cache.visit_runs() if run.tokens.size > 0]
    assert len(runs) == 3
    shared = runs[0]
    assert shared.tokens.tolist() == token_range(0, 8) and shared.first_page == 0 and shared.child_count == 2
    children = {run.tokens[0]: run for run in runs[1:]}
    assert set(children) == {100, 200}
    for run in runs[1:]:
        assert run.parent == shared.run and run.first_page == 2 and run.depth == shared.depth + 1
        assert run.tier == quire.Tier.Device and run.key_space == engine.space
        assert run.pages.size * 4 == run.tokens.size
    values = values_of(token_range(0, 8) + token_range(200, 4))
    np.testing.assert_array_equal(rows(engine.cache)[slots_of(children[200], 4)], values[8:])


def test_residency_records_tell_what_came_and_went(engine):
    engine.request(token_range(0, 12))
    engine.cache.reclaim(100)
    records = engine.cache.read_residency()
    assert [record.number for record in records] == list(range(len(records)))
    assert sum(record.page_count for record in records if record.cause == quire.ResidencyCause.Sealed) == 3
    assert sum(record.page_count for record in records if record.cause == quire.ResidencyCause.Evicted) == 3
    assert [record.number for record in engine.cache.read_residency(1, 1)] == [1]


def test_a_budget_gives_each_group_its_pages():
    layout = quire.preset("gpt-oss-120b")
    request = quire.BudgetRequest(device_bytes=8 << 30, context_tokens_max=8192, sequence_count_max=4)
    budget = quire.solve_budget(layout, request)
    assert [tier.tier for tier in budget.tiers] == [quire.Tier.Device]
    assert budget.tiers[0].used_bytes <= 8 << 30
    assert len(budget.tiers[0].groups) == len(layout.groups)
    assert "device" in quire.describe_budget(budget, layout)
