#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays recorded requests through a quire.Cache and says how much of their prompts it would have found.

    replay_trace.py trace.jsonl --policy lru,arc --capacity-tokens 100k,1M

docs/replay.md says what a trace looks like. The figures are those of `./quire replay` for the same trace and capacities,
which is faster and says more. Here one can read what a scheduler does with a cache, and change it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator

import quire


@dataclasses.dataclass
class Request:
    prompt: list[int]  # in units of the trace: tokens, or ids that stand for 512 of them and for all before them
    output: list[int]
    prompt_tokens: int
    key_space: str
    priority: int
    time_ms: float


def read_trace(path: str, unit_tokens: int) -> tuple[list[Request], int]:
    """The requests, and how many tokens their units stand for."""
    requests: list[Request] = []
    numbers: dict[int, int] = {}  # of ids, which may be larger than tokens
    with open(path, encoding="utf-8") as file:
        for line_number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                given = json.loads(line)
                has_ids = "hash_ids" in given
                prompt = [numbers.setdefault(i, len(numbers)) for i in given["hash_ids"]] if has_ids else given["tokens"]
                requests.append(
                    Request(
                        prompt=prompt,
                        output=[] if has_ids else given.get("output", []),
                        prompt_tokens=given["input_length"] if has_ids else len(prompt),
                        key_space=given.get("key_space", "default"),
                        priority=given.get("priority", 0),
                        time_ms=given.get("timestamp", requests[-1].time_ms if requests else 0),
                    )
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                sys.exit(f"{path}:{line_number}: {type(error).__name__} {error}")
    if not requests:
        sys.exit(f"{path} has no requests")
    return requests, unit_tokens if numbers else 1


def replay(requests: list[Request], unit_tokens: int, policy: str, capacity_tokens: int) -> Iterator[int]:
    """For each request, the tokens of its prompt that were in the cache."""
    page_units = 16 if unit_tokens == 1 else 1
    config = quire.CacheConfig(layout=quire.ModelLayout.opaque(1024 * unit_tokens), policy=policy)
    config.page.page_tokens = page_units
    config.device.page_count = capacity_tokens // (page_units * unit_tokens)
    config.device.memory = quire.DeviceMemory.None_  # there is no model, and so there are no bytes
    config.key_space_count_max = len({request.key_space for request in requests})
    pool_units = config.device.page_count * page_units
    with quire.Cache.open(config) as cache:
        for request in requests:
            cache.advance(round((request.time_ms - requests[0].time_ms) * 1e6))
            if len(request.prompt) > pool_units:
                yield 0  # more than there is room for
                continue
            space = cache.key_space(quire.KeySpace(model="replay", salt=request.key_space))
            with cache.begin(space, request.prompt, quire.SequenceOptions(priority=request.priority)) as sequence:
                cache.admit(sequence)
                hit_units = None
                while (view := cache.view(sequence)).pending_tokens > 0:
                    count = min(view.pending_tokens, config.step_tokens_max)
                    step = cache.plan_step([quire.StepEntry(sequence=sequence, token_count=count)]).step
                    entry = step.plan.entries[0]
                    if hit_units is None:
                        # Of a prompt that is there as a whole, the last token runs again.
                        is_there = view.computed_tokens == view.token_count and entry.position + 1 == view.token_count
                        hit_units = entry.position + is_there
                    is_prompt_done = entry.context_tokens == len(request.prompt)
                    answer = request.output[: pool_units - len(request.prompt)] if is_prompt_done else None
                    cache.finish_step(step, [answer or None])
                yield min(hit_units * unit_tokens, request.prompt_tokens)


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def amount(text: str) -> int:
    """512, 100k, 2.5M"""
    scale = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    return round(float(text if scale == 1 else text[:-1]) * scale)


def main() -> None:
    parser = argparse.ArgumentParser(description="How much of recorded prompts would a cache have found?")
    parser.add_argument("trace", help="JSON lines with hash_ids or tokens")
    parser.add_argument("--policy", default="all", help="one or several of " + ", ".join(quire.policy_names()) + "; or all")
    parser.add_argument("--capacity-tokens", default="100k,1M", help="pool sizes: 100k,1M")
    parser.add_argument("--unit-tokens", type=int, default=512, help="tokens that one of hash_ids stands for")
    arguments = parser.parse_args()

    requests, unit_tokens = read_trace(arguments.trace, arguments.unit_tokens)
    policies = quire.policy_names() if arguments.policy == "all" else arguments.policy.split(",")
    names = arguments.capacity_tokens.split(",")
    prompt_tokens = sum(request.prompt_tokens for request in requests)
    print(f"{len(requests):,} requests, {prompt_tokens:,} prompt tokens; hit rates by policy and pool size in tokens\n")
    print(" " * 10 + "".join(f"{name:>8}" for name in names))
    begin = time.monotonic()
    for policy in policies:
        rates = []
        for name in names:
            hit_tokens = 0
            for done, found in enumerate(replay(requests, unit_tokens, policy, amount(name)), 1):
                hit_tokens += found
                if done % 256 == 0:
                    show_progress(f"{policy}, {name}: {100 * done // len(requests)} %")
            rates.append(hit_tokens / prompt_tokens)
        show_progress("")
        print(f"{policy:10}" + "".join(f"{rate:>8.4f}" for rate in rates), flush=True)
    print(f"\n{time.monotonic() - begin:.1f} seconds")


if __name__ == "__main__":
    try:
        main()
    except quire.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
