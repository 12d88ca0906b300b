# SPDX-License-Identifier: Apache-2.0
"""Recorded requests through a cache: how much of their prompts would it have found?

    requests, unit_tokens = read_trace("trace.jsonl")
    hit_tokens = sum(replay(requests, unit_tokens, policy="lru", capacity_tokens=1_000_000))

docs/replay.md says what a trace looks like. The figures are those of the tool, `quire replay`, which is faster and says
more.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator

import quire

__all__ = ["TraceRequest", "read_trace", "replay"]


@dataclasses.dataclass
class TraceRequest:
    """One request of a trace."""

    prompt: list[int]  # in units of the trace: tokens, or ids that stand for 512 of them and for all before them
    output: list[int]
    prompt_tokens: int
    key_space: str
    priority: int
    time_ms: float


def read_trace(path: str | os.PathLike[str], unit_tokens: int = 512) -> tuple[list[TraceRequest], int]:
    """The requests of a file of JSON lines, and how many tokens their units stand for: unit_tokens, or 1 where the trace
    has tokens. Raises quire.InvalidArgument with the line that cannot be used."""
    requests: list[TraceRequest] = []
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
                    TraceRequest(
                        prompt=prompt,
                        output=[] if has_ids else given.get("output", []),
                        prompt_tokens=given["input_length"] if has_ids else len(prompt),
                        key_space=given.get("key_space", "default"),
                        priority=given.get("priority", 0),
                        time_ms=given.get("timestamp", requests[-1].time_ms if requests else 0),
                    )
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise quire.InvalidArgument(f"{path}:{line_number}: {type(error).__name__} {error}") from None
    if not requests:
        raise quire.InvalidArgument(f"{path} has no requests")
    return requests, unit_tokens if numbers else 1


def replay(requests: list[TraceRequest], unit_tokens: int, policy: str, capacity_tokens: int) -> Iterator[int]:
    """Sends every request through a cache of its own, one behind the other, and says of each how many tokens of its
    prompt were there. Only the model is missing."""
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
