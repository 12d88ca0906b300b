# SPDX-License-Identifier: Apache-2.0
"""For the package's tests: small caches, and an engine that computes real bytes.

The eight bytes of each token are a hash of everything before it, so any page served to the wrong prefix shows.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import quire

TOKEN_BYTES = 8
WRITE_THROUGH = {"page_count": 64, "write_policy": quire.WritePolicy.WriteThrough}
DEADLINE_S = 60  # of loops that wait for other threads; reached only when something is wrong
_MASK = (1 << 64) - 1


def config(page_tokens=4, page_count=32, **fields):
    """A CacheConfig with the layout of these tests; `device`, `host` and `disk` are dictionaries of fields."""
    device = {"page_count": page_count, **fields.pop("device", {})}
    made = quire.CacheConfig(
        layout=fields.pop("layout", None) or quire.ModelLayout.opaque(TOKEN_BYTES),
        page=quire.PageOptions(page_tokens=page_tokens),
        device=quire.DeviceConfig(**device),
        host=quire.HostConfig(**fields.pop("host", {})),
        disk=quire.DiskConfig(**fields.pop("disk", {})),
        sequence_count_max=fields.pop("sequence_count_max", 16),
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def values_of(tokens, salt=0, extra_keys=()):
    """What each token stores: a hash of it and of all before it."""
    values = np.empty(len(tokens), np.uint64)
    value = (salt * 0x9E3779B97F4A7C15 + 1) & _MASK
    for i, token in enumerate(tokens):
        value = ((value ^ (int(token) + 1)) * 0xD6E8FEB86659FD93) & _MASK
        value ^= value >> 32
        for key in extra_keys:
            if key.begin <= i < key.end:
                value = (value + int.from_bytes(key.item[:8], "little") * 0x94D049BB133111EB) & _MASK
        values[i] = value
    return values


def token_range(first, count):
    return list(range(first, first + count))


def rows(cache):
    """The pool as a row of 64 bits for each slot. Drop it before resize() or sleep()."""
    return np.asarray(cache.device_memory()).view(np.uint64)


def drain(cache):
    """Until the cache's own mover has nothing left to do. By the clock that wait_until_ready() goes by."""
    deadline = time.monotonic() + DEADLINE_S
    while cache.stats().transfers_in_flight > 0:
        assert time.monotonic() < deadline, "transfers do not end"
        ended = cache.poll()
        cache.apply(ended, time.monotonic_ns())
        if not ended and cache.stats().transfers_in_flight > 0:
            select.select([cache.event_fd()], [], [], 0.05)


class Engine:
    """A cache and who uses it: plans steps, checks what it reads, writes what it computes."""

    def __init__(self, made, space=None):
        self.cache = quire.Cache.open(made)
        self.space = self.cache.key_space(space or quire.KeySpace(model="test"))
        self.page_tokens = made.page.page_tokens
        self.has_tiers = made.host.page_count > 0 and not made.host.external_mover

    def admitted(self, tokens, options=None, extra_keys=()):
        prompt = quire.Prompt(tokens, list(extra_keys)) if extra_keys else tokens
        sequence = self.cache.begin(self.space, prompt, options)
        self.cache.admit(sequence)
        return sequence

    def plan(self, *entries, **fields):
        """A step that there must be room for, with its copies applied."""
        deadline = time.monotonic() + DEADLINE_S
        while (outcome := self.cache.plan_step(list(entries), **fields)).step is None:
            assert self.has_tiers and outcome.shortage.pages_leaving > 0, outcome.shortage
            assert time.monotonic() < deadline, "room is never made"
            drain(self.cache)
        self.cache.apply_copies(outcome.step)
        return outcome.step

    def compute(self, step, *texts, salt=0, extra_keys=()):
        """Every token before each entry must be right, every token of it is written. A text is the whole sequence."""
        memory = rows(self.cache)
        for entry in step.plan.entries:
            tokens = texts[entry.entry_index]
            values = values_of(tokens[: entry.position + entry.token_count], salt, extra_keys)
            stored = slots_of(entry, self.page_tokens)[: entry.position]
            np.testing.assert_array_equal(memory[stored], values[: entry.position], "bytes of another prefix")
            slots = entry.append_slots
            written = slots != quire.NO_SLOT
            memory[slots[written]] = values[entry.position :][written]

    def run(self, sequence, tokens, new_tokens=None, **fields):
        """One step of all pending tokens; `tokens` is the sequence so far, and grows."""
        step = self.plan(sequence)
        self.compute(step, tokens, **fields)
        self.cache.finish_step(step, [new_tokens])
        if new_tokens is not None:
            tokens += new_tokens
        return step.number

    def check(self, sequence, tokens, **fields):
        """What the sequence's pages hold is what was computed."""
        view = self.cache.view(sequence)
        slots = slots_of(view, self.page_tokens)[: view.computed_tokens]
        np.testing.assert_array_equal(rows(self.cache)[slots], values_of(tokens, **fields)[: view.computed_tokens])

    def request(self, tokens, options=None, **fields):
        """A whole request; gives the tokens that it did not have to compute."""
        sequence = self.cache.begin(self.space, tokens, options)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.cache.admit(sequence)
                break
            except quire.Unavailable:  # no room for the pages to load
                assert self.has_tiers and time.monotonic() < deadline
                drain(self.cache)
        if self.has_tiers:
            assert self.cache.wait_until_ready(sequence, DEADLINE_S)
        step = self.plan(sequence)
        found = self.cache.view(sequence).computed_tokens
        self.compute(step, tokens, **fields)
        self.cache.finish_step(step, [None])
        self.cache.end(sequence)
        return found


def slots_of(pages_of, page_tokens):
    """The slot of every token of a view's or an entry's pages."""
    pages = np.asarray(pages_of.pages, np.int64)
    return (pages[:, None] * page_tokens + np.arange(page_tokens)).reshape(-1)


class HandMover:
    """Moves what a cache with an external mover asks for, when it is told to."""

    def __init__(self, cache):
        self.cache = cache
        self.page_bytes = cache.geometry().page.page_bytes
        self.host = {}
        self.waiting = []
        self.kinds = []

    def take(self):
        for plan in self.cache.take_transfers():
            self.waiting.append(plan)
            self.kinds.append(plan.kind)

    def move(self, plan):
        memory = np.asarray(self.cache.device_memory()).reshape(-1, self.page_bytes)
        end = quire.Completion(id=plan.id, kind=plan.kind)
        for page in plan.pages:
            name = (page.host_generation, page.name_tag)
            if plan.kind == quire.TransferKind.Store:
                self.host[page.host_page] = (name, memory[page.device_page].copy())
            elif self.host[page.host_page][0] == name:
                memory[page.device_page] = self.host[page.host_page][1]
            else:
                end.outcome, end.fault = quire.TransferOutcome.Failed, quire.TransferFault.Generation
                break
            end.good_pages += 1
            end.moved_bytes += self.page_bytes
        return end

    def settle(self, now=0):
        """Moves everything until nothing is left to move."""
        self.take()
        while self.waiting:
            self.cache.apply([self.move(self.waiting.pop(0))], now)
            self.take()


def engine_with_a_load(tokens, external=True):
    """What is cached is on the host alone; with an external mover nothing comes back until somebody moves it."""
    engine = Engine(config(4, 32, host={**WRITE_THROUGH, "external_mover": external}))
    if external:
        mover = HandMover(engine.cache)
        sequence = engine.admitted(tokens)
        step = engine.plan(sequence)
        engine.compute(step, tokens)
        engine.cache.finish_step(step, [None])
        engine.cache.end(sequence)
        mover.settle()
    else:
        mover = None
        engine.request(tokens)
        drain(engine.cache)
    engine.cache.reclaim(100)
    return engine, mover


def run_python(program, *arguments, timeout_s=120, check=True):
    """A program in an interpreter of its own; gives what came of it. `check`: it must end well and silently."""
    here = Path(__file__).parent
    paths = [str(here), str(Path(quire.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check:
        assert (done.returncode, done.stderr) == (0, ""), f"exit status {done.returncode}: {done.stdout}{done.stderr}"
    return done
