# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a prompt with a long shared document: computed, and with its prefix cached.

    python bench/python/first_token.py [--tokens 8192] [--device cuda] [--layers 16] [--compile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers

import quire
from quire.integrations.transformers import prefix_cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="of the shared document")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument(
        "--compile", action="store_true", help="also with the forward pass compiled by torch, which takes a minute"
    )
    parser.add_argument("--profile", action="store_true", help="say where a call with a cached prefix spends its time")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    config = transformers.LlamaConfig(
        vocab_size=128_256, hidden_size=options.hidden, intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
        num_key_value_heads=max(1, options.hidden // 256), tie_word_embeddings=True,
        max_position_embeddings=2 * options.tokens, pad_token_id=0, eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(options.device):
        model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    parameters = sum(weight.numel() for weight in model.parameters())
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "processor"
    print(f"Llama of {parameters / 1e9:.2f} B parameters in {dtype} on {where}; torch {torch.__version__}, transformers "
          f"{transformers.__version__}, quire {quire.__version__}, CUDA in quire: {quire.has_cuda}")
    document = torch.randint(2, config.vocab_size, (1, options.tokens))

    def new_question() -> torch.Tensor:
        return torch.randint(2, config.vocab_size, (1, 32))

    class Clock:
        """A streamer: the first thing it is given is the prompt, the second the first token, on the processor."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def first_token(question: torch.Tensor, cache: object = None, before: torch.Tensor = document) -> float:
        prompt = torch.cat([before, question], dim=1).to(options.device)
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()
        clock = Clock()
        begin = time.perf_counter()
        model.generate(prompt, max_new_tokens=2, do_sample=False, past_key_values=cache, streamer=clock)
        return (clock.times[1] - begin) * 1e3

    def median(cache: object = None, before: torch.Tensor = document) -> float:
        for _ in range(3):
            first_token(new_question(), cache, before)
        return statistics.median(first_token(new_question(), cache, before) for _ in range(options.runs))

    computed = median()
    print(f"{'computed':44} {computed:9.1f} ms")

    def row(name: str, milliseconds: float, cache: Any = None) -> None:
        reused = f"   {cache.last.reused_tokens} tokens reused" if cache is not None else ""
        print(f"{name:44} {milliseconds:9.1f} ms {100 * milliseconds / computed:6.1f} %{reused}", flush=True)

    row("the question alone: what generate() takes", median(before=document[:, :0]))

    with tempfile.TemporaryDirectory() as folder:
        sizes = dict(device_bytes=4 << 30, host_bytes=4 << 30, identity="bench")
        with prefix_cache(model, **sizes) as cache:
            row("the first time, remembered", first_token(new_question(), cache))
            row("prefix on the device", median(cache), cache)
            if options.profile:
                with cProfile.Profile() as profile:
                    median(cache)
                pstats.Stats(profile).sort_stats("cumulative").print_stats("quire|generate|forward|torch", 45)
        with prefix_cache(model, directory=folder, **sizes) as cache:
            first_token(new_question(), cache)
        with prefix_cache(model, directory=folder, **sizes) as cache:
            row("prefix on disk, just opened", first_token(new_question(), cache), cache)
            if options.compile:
                model.forward = torch.compile(model.forward, dynamic=True)
                row("prefix on the device, compiled", median(cache), cache)
                row("the question alone, compiled", median(before=document[:, :0]))


if __name__ == "__main__":
    main()
