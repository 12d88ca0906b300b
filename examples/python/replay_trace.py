#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays recorded requests through a quire.Cache and says how much of their prompts it would have found.

    replay_trace.py trace.jsonl --policy lru,arc --capacity-tokens 100k,1M

docs/replay.md says what a trace looks like. The figures are those of `./quire replay` for the same trace and capacities,
which is faster and says more. quire/replay.py of the package is what a scheduler does with a cache, to be read and changed.
"""

from __future__ import annotations

import argparse
import sys
import time

import quire
from quire.replay import read_trace, replay


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
