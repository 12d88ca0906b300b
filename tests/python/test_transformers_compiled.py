# SPDX-License-Identifier: Apache-2.0
"""Forward passes that torch.compile() has compiled: the cache is part of them, and each kind of call compiles once."""

from __future__ import annotations

from typing import Any

import pytest

from test_transformers import after, generate, make_model, prefix_cache, tokens, torch

pytestmark = pytest.mark.needs_transformers


@pytest.fixture
def compiled() -> Any:
    """Counts what torch would compile, and has it run as it is."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("way", ["the forward pass", "the model"])
def test_other_lengths_and_other_caches_compile_nothing(kind: str, way: str, compiled: Any) -> None:
    model = make_model(kind)
    document = tokens(1, 150)
    prompts = [after(document, seed, count) for seed, count in ((2, 9), (3, 21), (4, 40), (5, 13), (6, 35), (7, 18))]
    prompts += [after(prompts[2], 8, 70), after(document[:, :70], 9, 12)]  # with longer and shorter prefixes
    expected = [generate(model, prompt, do_sample=False) for prompt in prompts]
    options: dict[str, Any] = dict(backend=compiled, dynamic=True, fullgraph=True)  # fails where it cannot go on
    if way == "the model":
        model.compile(**options)
    else:
        model.forward = torch.compile(model.forward, **options)
    counts = []
    for _ in range(2):
        with prefix_cache(model, device_bytes=8 << 20, identity="compiled") as cache:
            for prompt, answer in zip(prompts, expected):
                assert torch.equal(generate(model, prompt, cache, do_sample=False), answer)
                assert cache.last.error == ""
                counts.append(compiled.frame_count)
            assert cache.last.reused_tokens == 64
    # Without a prefix, one token at a time, and with a prefix.
    assert 0 < counts[0] <= 3 and counts[1] <= 5, counts
    assert counts[1:] == [counts[1]] * (len(counts) - 1), counts


def test_looking_at_a_compiled_model_compiles_nothing(compiled: Any) -> None:
    model = make_model("llama")
    model.forward = torch.compile(model.forward, backend=compiled, dynamic=True)
    prefix_cache(model, device_bytes=8 << 20).close()
    assert compiled.frame_count == 0
