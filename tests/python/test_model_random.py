# SPDX-License-Identifier: Apache-2.0
"""A random engine against a naive twin: a dictionary from prefixes to the bytes that their last token stores.

Every token that a step reads is looked at in the pages that the plan names. A failure names its seed:
QUIRE_TEST_SEEDS=77 repeats it. With an odd seed the engine moves the pages between the tiers itself, which is then a
part of what the seed draws; with an even one the threads of the cache do.
"""

import hashlib
import os
import random
import time

import numpy as np
import pytest

import quire
from byte_engine import Engine, HandMover, config, drain, rows, slots_of

OPERATIONS = 2500
TEXT_TOKENS_MAX = 44
SEEDS = [int(seed) for seed in os.environ.get("QUIRE_TEST_SEEDS", "1,2,3,4,5,6").split(",")]


class Twin:
    """What is true, as simply as it can be said."""

    def __init__(self):
        self.value_of = {}  # prefix → what its last token stores

    def values(self, tokens):
        values = np.empty(len(tokens), np.uint64)
        for i in range(len(tokens)):
            prefix = tuple(tokens[: i + 1])
            if prefix not in self.value_of:
                digest = hashlib.blake2b(repr(prefix).encode(), digest_size=8).digest()
                self.value_of[prefix] = int.from_bytes(digest, "little")
            values[i] = self.value_of[prefix]
        return values


class Live:
    def __init__(self, sequence, tokens):
        self.sequence = sequence
        self.tokens = tokens
        self.is_admitted = False
        self.was_preempted = False
        self.is_planned = False


class Flight:
    def __init__(self, step, parts):
        self.step = step
        self.parts = parts  # (live, drafts)
        # Which entries compute the last known token of their sequence. A plan may give up a copy, and compute more.
        ends = {entry.entry_index: entry.position + entry.token_count for entry in step.plan.entries}
        self.is_last = [ends[i] == len(live.tokens) + len(drafts) for i, (live, drafts) in enumerate(parts)]


class RandomEngine:
    def __init__(self, seed):
        self.random = random.Random(seed)
        moves_itself = seed % 2 == 1
        pick = self.random.choice
        self.page_tokens = pick([2, 4, 5])
        host = {
            "page_count": 60,
            "write_policy": pick([quire.WritePolicy.WriteBack, quire.WritePolicy.WriteThrough]),
            "external_mover": moves_itself,
        }
        self.engine = Engine(
            config(
                self.page_tokens,
                120 // self.page_tokens,
                host=host,
                sequence_count_max=16,  # those that have ended in a step count until it is finished
                steps_in_flight_max=2,
                policy=pick(quire.policy_names()),
                dedup=pick([True, True, False]),
                partial_reuse_min_tokens=pick([None, 1]),
                context_tokens_max=60,
            )
        )
        self.cache, self.space = self.engine.cache, self.engine.space
        self.memory = rows(self.cache)
        self.mover = HandMover(self.cache) if moves_itself else None
        self.twin = Twin()
        self.texts = [[]]
        self.live = []
        self.flights = []
        self.counts = {}

    # Choices

    def some(self, wanted):
        return self.random.choice(found) if (found := [live for live in self.live if wanted(live)]) else None

    def idle(self):
        """An admitted sequence that is in no step and loads nothing."""
        return self.some(lambda live: live.is_admitted and not live.is_planned and not self.view(live).is_loading)

    def view(self, live):
        return self.cache.view(live.sequence)

    def text(self):
        known = self.random.choice(self.texts)
        start = known[: self.random.randint(0, len(known))]
        count = self.random.randint(1, 16)
        return (start + [self.random.randrange(4) for _ in range(count)])[: TEXT_TOKENS_MAX - 8]

    # Checks

    def check(self, live):
        view = self.view(live)
        assert view.token_count == len(live.tokens)
        slots = slots_of(view, self.page_tokens)[: view.computed_tokens]
        if len(slots) and not view.is_loading and not live.is_planned:
            self.engine_has_copied(live, view, slots)

    def engine_has_copied(self, live, view, slots):
        # The last page of a fork or a partial hit is copied by the next step: whole pages are there already.
        whole = view.computed_tokens // self.page_tokens * self.page_tokens
        np.testing.assert_array_equal(self.memory[slots[:whole]], self.twin.values(live.tokens)[:whole])

    # Operations

    def begin(self):
        if len(self.live) >= 7:
            return self.end()
        tokens = self.text()
        options = quire.SequenceOptions(
            prefetch=self.random.choice([quire.Prefetch.Off, quire.Prefetch.Wait, quire.Prefetch.BestEffort]),
            priority=self.random.randint(-2, 2),
        )
        form = self.random.choice([list, lambda t: np.array(t, np.int32), lambda t: np.array(t, np.int64)])
        self.live.append(Live(self.cache.begin(self.space, form(tokens), options), tokens))

    def admit(self):
        live = self.some(lambda live: not live.is_admitted)
        if live is None:
            return self.begin()
        try:
            admission = (self.cache.resume if live.was_preempted else self.cache.admit)(live.sequence)
        except quire.Unavailable:
            return self.move()
        live.is_admitted, live.was_preempted = True, False
        matched = admission.matched_tokens + admission.loading_tokens
        assert matched <= len(live.tokens)
        self.check(live)

    def plan(self):
        entries, parts = [], []
        for live in self.random.sample(self.live, min(len(self.live), self.random.randint(1, 3))):
            if not live.is_admitted or live.is_planned or (view := self.view(live)).is_loading:
                continue
            if view.pending_tokens == 0:
                continue
            count = self.random.choice([0, self.random.randint(1, view.pending_tokens)])
            drafts = []
            can_draft = count == 0 and view.computed_tokens < len(live.tokens) < TEXT_TOKENS_MAX - 8
            if can_draft and self.random.random() < 0.2:
                drafts = [self.random.randrange(4) for _ in range(self.random.randint(1, 4))]
            entries.append(quire.StepEntry(sequence=live.sequence, token_count=count, draft_count=len(drafts)))
            parts.append((live, drafts))
        if not entries or len(self.flights) == 2:
            return self.finish()
        outcome = self.cache.plan_step(entries)
        if outcome.step is None:
            assert outcome.shortage.pages_needed > outcome.shortage.pages_available
            self.counts["short"] = self.counts.get("short", 0) + 1
            self.finish()
            self.move()
            return self.preempt() if self.random.random() < 0.5 else self.end()
        self.cache.apply_copies(outcome.step)
        self.compute(outcome.step, parts)
        for live, _ in parts:
            live.is_planned = True
        self.flights.append(Flight(outcome.step, parts))

    def compute(self, step, parts):
        for entry in step.plan.entries:
            live, drafts = parts[entry.entry_index]
            text = live.tokens + drafts
            known = entry.token_count - entry.draft_count
            assert entry.tokens.tolist() == live.tokens[entry.position : entry.position + known]
            values = self.twin.values(text[: entry.position + entry.token_count])
            slots = slots_of(entry, self.page_tokens)
            # Everything that the model would read.
            np.testing.assert_array_equal(self.memory[slots[: entry.position]], values[: entry.position])
            appended = entry.append_slots
            for slot, value, own in zip(appended, values[entry.position :], slots[entry.position :], strict=False):
                assert slot in (own, quire.NO_SLOT)
                if slot == quire.NO_SLOT:
                    assert self.memory[own] == value  # it is in the cache already
                else:
                    self.memory[slot] = value
            self.counts["read"] = self.counts.get("read", 0) + entry.position

    def finish(self):
        if not self.flights:
            return self.append()
        flight = self.flights.pop(0)
        if self.random.random() < 0.1:
            self.cache.abort_step(flight.step)
        else:
            results = []
            for (live, drafts), is_last in zip(flight.parts, flight.is_last, strict=True):
                accepted = self.random.randint(0, len(drafts))
                tokens = drafts[:accepted]
                if is_last and (drafts or self.random.random() < 0.6) and len(live.tokens) < TEXT_TOKENS_MAX:
                    tokens = tokens + [self.random.randrange(4)]
                if live.sequence.has_ended:
                    tokens, accepted = [], 0
                results.append(quire.StepResult(tokens=tokens, accepted_count=accepted))
                live.tokens = live.tokens + tokens
            self.cache.finish_step(flight.step, results)
        for live, _ in flight.parts:
            live.is_planned = False
            if not live.sequence.has_ended:
                self.check(live)

    def append(self):
        live = self.idle()
        if live is None or len(live.tokens) > TEXT_TOKENS_MAX - 6:
            return self.begin()
        added = [self.random.randrange(4) for _ in range(self.random.randint(1, 6))]
        self.cache.append(live.sequence, added)
        live.tokens = live.tokens + added

    def fork(self):
        live = self.idle()
        if live is None or len(self.live) >= 7:
            return self.end()
        at = self.random.randint(0, len(live.tokens))
        other = Live(self.cache.fork(live.sequence, at), live.tokens[:at])
        other.is_admitted = True
        self.live.append(other)
        self.check(live)
        self.check(other)

    def rewind(self):
        live = self.idle()
        if live is None or not live.tokens:
            return self.admit()
        count = self.random.randint(1, len(live.tokens))
        self.cache.rewind(live.sequence, count)
        live.tokens = live.tokens[:-count]
        self.check(live)

    def preempt(self):
        live = self.idle()
        if live is None:
            return self.move()
        how = self.random.choice([quire.Preempt.Drop, quire.Preempt.Save])
        try:
            self.cache.preempt(live.sequence, how)
        except quire.Unavailable:
            return self.move()
        self.move_all()
        live.is_admitted = not self.view(live).is_waiting
        live.was_preempted = not live.is_admitted

    def end(self):
        live = self.some(lambda live: not live.is_planned or self.random.random() < 0.2)
        if live is None:
            return self.finish()
        self.live.remove(live)
        if len(live.tokens) > 0:
            self.texts.append(live.tokens)
            self.texts = self.texts[-40:]
        if live.is_planned or self.random.random() < 0.7:
            self.cache.end(live.sequence)
        # Else the handle is dropped with `live`.

    def move(self):
        if self.random.random() < 0.5:
            self.move_all()
        elif self.mover is None:
            self.cache.apply(self.cache.poll(), time.monotonic_ns())
        else:
            self.mover.take()
            self.random.shuffle(self.mover.waiting)
            for _ in range(self.random.randint(0, len(self.mover.waiting))):
                self.cache.apply([self.mover.move(self.mover.waiting.pop())], 0)

    def move_all(self):
        if self.mover is None:
            drain(self.cache)
        else:
            self.mover.settle()

    def look(self):
        tokens = self.text()
        found = self.cache.lookup(self.space, tokens)
        assert found.matched_tokens <= len(tokens)
        for run in self.cache.visit_runs():
            assert run.pages.size * self.page_tokens == run.tokens.size

    def reclaim(self):
        self.cache.reclaim(self.random.randint(1, 10))

    def look_at_the_whole_tree(self):
        """Every cached page on the device holds what its path stores."""
        paths = {}
        for run in self.cache.visit_runs():
            path = paths.get(run.parent, []) + run.tokens.tolist()
            paths[run.run] = path
            if run.tier != quire.Tier.Device or run.tokens.size == 0:
                continue
            values = self.twin.values(path)[-run.tokens.size :]
            np.testing.assert_array_equal(self.memory[slots_of(run, self.page_tokens)], values)
            self.counts["cached"] = self.counts.get("cached", 0) + int(run.tokens.size)

    def run(self):
        weights = {
            self.begin: 5,
            self.admit: 6,
            self.plan: 14,
            self.finish: 10,
            self.append: 2,
            self.fork: 2,
            self.rewind: 2,
            self.preempt: 2,
            self.end: 5,
            self.move: 4,
            self.look: 1,
            self.reclaim: 1,
        }
        for i in range(OPERATIONS):
            self.random.choices(list(weights), list(weights.values()))[0]()
            if i % 10 == 0:
                self.cache.check_invariants()
            if i % 50 == 0:
                self.look_at_the_whole_tree()
        while self.flights:
            self.finish()
        self.live.clear()
        self.move_all()
        self.look_at_the_whole_tree()
        self.cache.check_invariants()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_byte_that_is_found_is_what_the_twin_says(seed):
    engine = RandomEngine(seed)
    try:
        engine.run()
    except Exception as error:
        pytest.fail(f"repeat it with QUIRE_TEST_SEEDS={seed}: {type(error).__name__}: {error}")
    stats = engine.cache.stats()
    assert stats.sequence_count == 0
    # The run was worth something: it has found, evicted and read.
    assert stats.hit_tokens > 100 and stats.evicted_page_total > 0 and engine.counts["read"] > 1000
