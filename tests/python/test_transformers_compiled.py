# SPDX-License-Identifier: Apache-2.0
"""Forward passes that torch.compile() has compiled: the cache is part of them, and no call compiles them anew."""

from __future__ import annotations

from typing import Any

import pytest

from test_transformers import after, generate, make_model, prefix_cache, tokens, torch

pytestmark = pytest.mark.needs_transformers


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("way", ["the forward pass", "the model"])
def test_other_lengths_compile_nothing(kind: str, way: str) -> None:
    from torch._dynamo.testing import CompileCounter

    model = make_model(kind)
    document = tokens(1, 150)
    prompts = [after(document, seed, count) for seed, count in ((2, 9), (3, 21), (4, 40), (5, 13), (6, 35), (7, 18))]
    expected = [generate(model, prompt, do_sample=False) for prompt in prompts]
    torch._dynamo.reset()
    compiled = CompileCounter()
    options: dict[str, Any] = dict(backend=compiled, dynamic=True, fullgraph=True)  # fails where it cannot go on
    if way == "the model":
        model.compile(**options)
    else:
        model.forward = torch.compile(model.forward, **options)
    with prefix_cache(model, device_bytes=8 << 20, identity="compiled") as cache:
        counts = []
        for prompt, tokens_expected in zip(prompts, expected):
            assert torch.equal(generate(model, prompt, cache, do_sample=False), tokens_expected)
            assert cache.last.error == ""
            counts.append(compiled.frame_count)
        assert cache.last.reused_tokens == 144
    with prefix_cache(model, device_bytes=8 << 20, identity="compiled") as cache:
        for prompt, tokens_expected in zip(prompts, expected):
            assert torch.equal(generate(model, prompt, cache, do_sample=False), tokens_expected)
    counts.append(compiled.frame_count)
    assert counts[0] > 0
    assert counts[-1] == counts[2], counts  # the first has no prefix, the second one, the third other lengths
    torch._dynamo.reset()
