# SPDX-License-Identifier: Apache-2.0
"""begin() and end() of a prompt of 100,000 tokens that is cached whole: from C++ and from Python, in turns.

    python bench/python/begin_end.py [build/release/bin/bench_micro]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import numpy as np

import quire

TOKENS = 100_000


def from_cpp(program: str) -> float:
    ran = subprocess.run(
        [program, "--benchmark_filter=begin_end/warm/P:16", "--benchmark_format=json"],
        capture_output=True, text=True, check=True,
    )
    return float(json.loads(ran.stdout)["benchmarks"][0]["quire_us"])


def from_python(cache: quire.Cache, space: quire.KeySpaceId, tokens: object) -> float:
    times = []
    for _ in range(400):
        begin = time.perf_counter()
        cache.end(cache.begin(space, tokens))
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin/bench_micro"
    config = quire.CacheConfig(layout=quire.ModelLayout.opaque(8), step_tokens_max=TOKENS)
    config.device = quire.DeviceConfig(page_count=TOKENS // 8, memory=quire.DeviceMemory.None_)
    cache = quire.Cache.open(config)
    space = cache.key_space(quire.KeySpace(model="bench"))
    tokens = np.random.default_rng(7).integers(0, 128_000, TOKENS)
    sequence = cache.begin(space, tokens)
    cache.admit(sequence)
    step = cache.plan_step([sequence]).step
    cache.finish_step(step, [None])
    cache.end(sequence)
    forms = {"NumPy, int32": tokens.astype(np.int32), "NumPy, int64": tokens}
    try:
        import torch

        forms |= {"torch, int32": torch.from_numpy(forms["NumPy, int32"]), "torch, int64": torch.from_numpy(tokens)}
    except ImportError:
        print("without torch: its tensors are left out")
    rounds: dict[str, list[float]] = {"C++": [], **{name: [] for name in forms}}
    for _ in range(5):
        rounds["C++"].append(from_cpp(program))
        for name, form in forms.items():
            rounds[name].append(from_python(cache, space, form))
    base = statistics.median(rounds["C++"])
    for name, times in rounds.items():
        print(f"{name:14} {statistics.median(times):8.1f} us {statistics.median(times) / base:6.2f}")


if __name__ == "__main__":
    main()
