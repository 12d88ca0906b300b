# SPDX-License-Identifier: Apache-2.0
"""Ways to have other K and V for the same tokens: each is served right, noticed or refused."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest

import quire
from test_transformers import after, generate, make_model, same, tokens

try:
    import torch
    import transformers

    from quire.integrations.transformers import prefix_cache
except ImportError:  # conftest.py says so
    torch = transformers = prefix_cache = None  # type: ignore[assignment]

pytestmark = pytest.mark.needs_transformers

PROMPT_TOKENS = 107


def _prompt() -> Any:
    return after(tokens(1, 100), 2, 7)


def _to_half(model: Any) -> None:
    model.to(torch.bfloat16)


def _to_half_and_back(model: Any) -> None:
    model.to(torch.bfloat16).to(torch.float32)


def _rope_at_run_time(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq / 8


def _rope_of_the_configuration(model: Any) -> None:
    model.config.rope_parameters["rope_theta"] = 500.0


def _rope_scaling(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 1.7


def _epsilon(model: Any) -> None:
    model.model.layers[0].input_layernorm.variance_epsilon = 0.5


def _causality(model: Any) -> None:
    model.model.layers[0].self_attn.is_causal = False


def _window(model: Any) -> None:
    model.config.sliding_window = 8


def _heads(model: Any) -> None:
    model.model.layers[0].self_attn.num_key_value_groups = 1


def _order_of_layers(model: Any) -> None:
    layers = model.model.layers
    layers[0], layers[1] = layers[1], layers[0]


def _fewer_layers(model: Any) -> None:
    model.config.num_hidden_layers = 3


def _other_embeddings(model: Any) -> None:
    model.set_input_embeddings(torch.nn.Embedding(211, 64))


def _resized(model: Any) -> None:
    model.resize_token_embeddings(300)


def _another_class(model: Any) -> None:
    class Turned(type(model.model.norm)):  # type: ignore[misc]
        def forward(self, states: Any) -> Any:
            return -super().forward(states)

    model.model.layers[0].input_layernorm.__class__ = Turned


def _an_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def _pruned(model: Any) -> None:
    import torch.nn.utils.prune as prune

    prune.random_unstructured(model.model.layers[0].self_attn.k_proj, "weight", amount=0.5)


def _parametrized(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].self_attn.k_proj)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.parametrizations.weight.original0.mul_(2.0)


def _hooked_before(model: Any) -> None:
    model.model.layers[1].register_forward_pre_hook(lambda module, args: (args[0] * 2, *args[1:]))


def _swapped_data(model: Any) -> None:
    weight = model.model.layers[0].self_attn.k_proj.weight
    weight.data = weight.data.clone() * 2


def _same_address(model: Any) -> None:
    """Another tensor of the same kind where the old one was."""
    layer = model.model.layers[0].self_attn.k_proj
    old = layer.weight.detach().clone()
    del layer.weight
    layer.weight = torch.nn.Parameter(old * 2)


NOTICED = [
    _to_half, _to_half_and_back, _rope_at_run_time, _rope_of_the_configuration, _rope_scaling, _epsilon, _causality, _window, _heads,
    _order_of_layers, _fewer_layers, _other_embeddings, _resized, _another_class, _an_activation, _pruned, _parametrized,
    _hooked_before, _swapped_data, _same_address,
]


@pytest.mark.parametrize("change", NOTICED, ids=lambda change: change.__name__[1:])
def test_a_model_that_is_changed_at_run_time_is_noticed(change: Any) -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, _prompt(), cache)
        change(model)
        with pytest.raises(quire.Error, match="has changed since|has a hook"):
            generate(model, _prompt(), cache)


@contextlib.contextmanager
def _default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _kernels() -> Iterator[None]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


@contextlib.contextmanager
def _mkldnn() -> Iterator[None]:
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.mark.parametrize("setting", [_default_dtype, _matmul_precision, _deterministic, _kernels, _mkldnn], ids=lambda s: s.__name__[1:])
def test_what_torch_is_told_has_pages_of_its_own(setting: Any) -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, _prompt(), cache)
        with setting():
            same(model, _prompt(), cache)
            assert cache.last.reused_tokens == 0
            same(model, _prompt(), cache)
            assert cache.last.reused_tokens == 96
        same(model, _prompt(), cache)
        assert cache.last.reused_tokens == 96


def test_what_torch_is_told_while_a_call_runs_is_not_remembered() -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        cache.start(_prompt())
        with _matmul_precision():
            model(_prompt(), past_key_values=cache)
            assert cache.finish() == 0
        assert "torch was told something else" in cache.last.error


def test_autocast_in_a_forward_pass_by_hand_is_refused() -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        cache.start(_prompt())
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(quire.Error, match="autocast"):
            model(_prompt(), past_key_values=cache)
        same(model, _prompt(), cache)
        assert cache.last.reused_tokens == 0


@pytest.mark.parametrize("mask", ["a hole", "four dimensions"])
def test_masks_with_holes_are_refused(mask: str) -> None:
    model = make_model("llama")
    prompt = _prompt()
    given = torch.ones_like(prompt)
    given[0, 30:40] = 0
    if mask == "four dimensions":
        given = torch.ones(1, 1, PROMPT_TOKENS, PROMPT_TOKENS).tril().bool()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)
        with pytest.raises(quire.Error, match="attention_mask"):
            generate(model, prompt, cache, attention_mask=given)


@pytest.mark.parametrize("name", ["position_ids", "cache_position"])
def test_places_that_are_shifted_are_not_remembered(name: str) -> None:
    model = make_model("llama")
    prompt = _prompt()
    places = torch.arange(5, 5 + PROMPT_TOKENS)
    given = {name: places if name == "cache_position" else places[None]}
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        with pytest.raises(quire.Unsupported, match=name):
            generate(model, prompt, cache, **given)
        cache.start(prompt)
        model(prompt, past_key_values=cache, **given)
        assert cache.finish() == 0 and cache.last.error
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 0


@pytest.mark.parametrize("name", ["inputs_embeds", "encoder_outputs", "encoder_hidden_states", "pixel_values", "input_features"])
def test_inputs_that_are_no_tokens_are_refused(name: str) -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, _prompt(), cache)
        with pytest.raises((quire.Unsupported, quire.InvalidArgument), match=name):
            generate(model, _prompt(), cache, **{name: torch.rand(1, PROMPT_TOKENS, 64)})


def test_a_configuration_of_generate_changes_no_k(tmp_path: Any) -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, _prompt(), cache)
        model.generation_config.temperature = 0.3
        model.generation_config.do_sample = True
        model.config.use_cache = False
        model.config.eos_token_id = 7
        same(model, _prompt(), cache, use_cache=True)
        assert cache.last.reused_tokens == 96


# Code that brings arguments of its own.


def test_an_argument_of_remote_code_that_shifts_places() -> None:
    """cache_position is an argument of forward() that transformers' own models have no more."""

    class Remote(type(make_model("llama"))):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, cache_position: Any = None, position_ids: Any = None, **kwargs: Any) -> Any:
            if cache_position is not None:
                position_ids = cache_position[None]
            return super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)

    model = make_model("llama")
    model.__class__ = Remote
    prompt = _prompt()
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        same(model, prompt, cache)
        with pytest.raises(quire.Unsupported, match="cache_position"):
            generate(model, prompt, cache, cache_position=torch.arange(9, 9 + PROMPT_TOKENS))
        reused = cache.start(prompt)
        assert reused == 96
        model(prompt[:, reused:], past_key_values=cache, cache_position=torch.arange(0, PROMPT_TOKENS - reused))
        assert cache.finish() == 0
        assert "cache_position are not those of texts" in cache.last.error
        reused = cache.start(prompt)
        right = model(prompt[:, reused:], past_key_values=cache, cache_position=torch.arange(reused, PROMPT_TOKENS)).logits
        cache.finish()
        assert cache.last.error == ""
        torch.testing.assert_close(right[:, -1], model(prompt).logits[:, -1], rtol=1e-3, atol=1e-3)


# Layers whose forward pass torch.compile() has made.


@pytest.mark.parametrize("way", ["compile", "forward"])
def test_layers_that_are_compiled_are_served(way: str) -> None:
    torch._dynamo.reset()
    model = make_model("llama")
    expected = generate(model, _prompt())
    for layer in model.model.layers:
        if way == "compile":
            layer.compile(backend="eager")
        else:
            layer.forward = torch.compile(layer.forward, backend="eager")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for reused in (0, 96):
            assert torch.equal(generate(model, _prompt(), cache), expected)
            assert cache.last.reused_tokens == reused
    torch._dynamo.reset()


def test_a_compiled_forward_pass_that_is_not_the_class_s_is_refused() -> None:
    torch._dynamo.reset()
    model = make_model("llama")
    layer, other = model.model.layers[:2]
    for forward in (
        torch.compile(lambda *args, **kwargs: None, backend="eager"),
        torch.compile(other.forward, backend="eager"),  # of another layer
        types.MethodType(type(layer).forward, other),
    ):
        layer.forward = forward
        with pytest.raises(quire.Unsupported, match=r"model\.layers\.0 has a forward pass of its own.*allow_changes=\['model\.layers\.0\.forward'\]"):
            prefix_cache(model, device_bytes=8 << 20)
    del layer.forward
    layer.compile(backend="eager")
    layer._compiled_call_impl = lambda *args, **kwargs: None
    with pytest.raises(quire.Unsupported, match=r"model\.layers\.0 has a call of its own"):
        prefix_cache(model, device_bytes=8 << 20)


def test_a_forward_pass_that_is_known_to_compute_the_same_can_be_allowed() -> None:
    model = make_model("llama")
    for layer in model.model.layers:
        forward = layer.forward
        layer.forward = lambda *args, forward=forward, **kwargs: forward(*args, **kwargs)
    with prefix_cache(model, device_bytes=8 << 20, allow_changes=["model.layers.*.forward"]) as cache:
        same(model, _prompt(), cache)
        same(model, _prompt(), cache)
        assert cache.last.reused_tokens == 96
        model.model.norm.forward = lambda states: states
        with pytest.raises(quire.Unsupported, match=r"model\.norm has a forward pass of its own"):
            generate(model, _prompt(), cache)
