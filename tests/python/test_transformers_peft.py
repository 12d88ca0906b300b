# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT: each set of them has pages of its own, whatever is done to them."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

import quire
from test_transformers import after, generate, make_model, same, tokens

try:
    import peft
    import torch

    from quire.integrations.transformers import prefix_cache
except ImportError:  # conftest.py says so
    peft = torch = prefix_cache = None  # type: ignore[assignment]

pytestmark = pytest.mark.needs_peft

_TARGETS = ["q_proj", "k_proj", "v_proj", "up_proj"]


def lora(**changes: Any) -> Any:
    options = dict(r=4, lora_alpha=32, target_modules=_TARGETS, init_lora_weights=False, task_type="CAUSAL_LM") | changes
    return peft.LoraConfig(**options)


def adapted(**changes: Any) -> Any:
    model = make_model("llama")
    torch.manual_seed(11)
    return peft.get_peft_model(model, lora(**changes)).eval()


def prompt_of(seed: int = 2) -> Any:
    return after(tokens(1, 100), seed, 7)


def both(model: Any, cache: Any, prompt: Any | None = None) -> int:
    """Compares with and without the cache. Gives the tokens that were not computed."""
    same(model, prompt_of() if prompt is None else prompt, cache)
    return cache.last.reused_tokens


def test_a_peft_model_is_served() -> None:
    model = adapted()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        assert both(model, cache) == 96
        # By place, as generate() takes it.
        torch.manual_seed(1234)
        expected = model.generate(prompt_of(), max_new_tokens=10)
        assert torch.equal(model.generate(prompt_of(), past_key_values=cache, max_new_tokens=10), expected)
        assert cache.last.reused_tokens == 96


def test_adapters_have_pages_of_their_own() -> None:
    model = adapted()
    torch.manual_seed(12)
    model.add_adapter("other", lora(r=2))
    model.eval()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        with model.disable_adapter():
            assert both(model, cache) == 0
            assert both(model, cache) == 96
        model.set_adapter("other")
        model.eval()
        assert both(model, cache) == 0
        model.base_model.set_adapter(["default", "other"])
        assert both(model, cache) == 0
        model.base_model.set_adapter(["other", "default"])  # which rounds differently
        both(model, cache)
        for name in ("default", "other"):
            model.set_adapter(name)
            assert both(model, cache) == 96
        with model.disable_adapter():
            assert both(model, cache) == 96


def test_an_adapter_that_is_loaded_later_has_pages_of_its_own(tmp_path: pathlib.Path) -> None:
    model = adapted()
    other = adapted(lora_alpha=64)
    other.save_pretrained(tmp_path / "other")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        model.load_adapter(tmp_path / "other", "loaded")
        model.eval()
        assert both(model, cache) == 96  # it is not active
        model.set_adapter("loaded")
        model.eval()
        assert both(model, cache) == 0
        model.delete_adapter("loaded")
        model.set_adapter("default")
        assert both(model, cache) == 96


def test_scales_and_weights_of_an_adapter_are_part_of_the_key() -> None:
    model = adapted()
    layers = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        for layer in layers:
            layer.scale_layer(0.5)
        assert both(model, cache) == 0
        for layer in layers:
            layer.unscale_layer()
        assert both(model, cache) == 96
        with torch.no_grad():
            layers[0].lora_B["default"].weight.mul_(3.0)
        assert both(model, cache) == 0
        layers[0].lora_A["default"].weight.data.mul_(3.0)
        assert both(model, cache) == 0
        assert both(model, cache) == 96


@pytest.mark.parametrize("identity", [None, "llama"])
def test_the_next_process_tells_adapters_apart(identity: str | None, tmp_path: pathlib.Path) -> None:
    options = dict(device_bytes=8 << 20, directory=tmp_path, identity=identity)
    first = adapted()
    with prefix_cache(first, **options) as cache:
        assert both(first, cache) == 0
    for model, reused in ((adapted(), 96), (adapted(lora_alpha=16), 0), (adapted(use_rslora=True), 0), (adapted(r=8), 0)):
        with prefix_cache(model, **options) as cache:
            assert both(model, cache) == reused
    plain = make_model("llama")
    with prefix_cache(plain, **options) as cache:  # the same weights, without adapters
        assert both(plain, cache) == 0
    model = adapted()
    with prefix_cache(model, **options) as cache, model.disable_adapter():
        assert both(model, cache) == 96


def test_adapters_by_row_use_no_prefix() -> None:
    """PEFT leaves its hooks in the model when generate() raises, so that such a call is served without the cache."""
    model = adapted()
    model.add_adapter("other", lora())
    model.eval()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        both(model, cache)
        for names in (["other"], ["__base__"], ["default"]):
            expected = generate(model, prompt_of(), adapter_names=names)
            assert torch.equal(generate(model, prompt_of(), cache, adapter_names=names), expected)
            assert cache.last.reused_tokens == cache.last.published_tokens == 0
            assert "(PEFT's adapter_names): use set_adapter() instead" in cache.last.error
        assert both(model, cache) == 96


def test_adapters_from_a_place_in_the_prompt_on_use_no_prefix() -> None:
    """Which place that is, depends on tokens behind it: the last of these invocations."""
    model = adapted(alora_invocation_tokens=[7, 8])
    prompt = prompt_of()
    prompt[0, 40:42] = torch.tensor([7, 8])
    later = torch.cat([prompt, torch.tensor([[7, 8, 3]])], dim=1)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for text in (prompt, later, later):
            assert both(model, cache, text) == 0
            assert cache.last.published_tokens == 0
            assert cache.last.error.endswith("(PEFT's alora_offsets)")
        with model.disable_adapter():
            both(model, cache, later)
            assert both(model, cache, prompt) == 96


def test_adapters_of_parameters_are_refused_with_the_reason() -> None:
    """PEFT writes them in each forward pass."""
    model = adapted(target_modules=[], target_parameters=["q_proj.weight"])
    with pytest.raises(quire.Unsupported, match=r"q_proj\.weight was written to.*own forward passes.*merge the adapter"):
        prefix_cache(model, device_bytes=8 << 20)
    merged = model.merge_and_unload()
    with prefix_cache(merged, device_bytes=8 << 20) as cache:
        assert [both(merged, cache), both(merged, cache)] == [0, 96]


def test_merging_is_noticed() -> None:
    model = adapted()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        both(model, cache)
        model.merge_adapter()
        with pytest.raises(quire.InvalidArgument, match="the model has changed since"):
            generate(model, prompt_of(), cache)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        both(model, cache)
        assert both(model, cache) == 96
        plain = model.merge_and_unload()
        with pytest.raises(quire.InvalidArgument, match="the model has changed since"):
            generate(plain, prompt_of(), cache)


def test_a_model_that_is_wrapped_later_is_noticed() -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        both(model, cache)
        wrapped = peft.get_peft_model(model, lora()).eval()
        with pytest.raises(quire.InvalidArgument, match="has other modules in it"):
            generate(wrapped, prompt_of(), cache)


def test_adapters_of_transformers_own() -> None:
    model = make_model("llama")
    model.add_adapter(lora(), "first")
    model.eval()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        model.disable_adapters()
        assert both(model, cache) == 0
        model.enable_adapters()
        assert both(model, cache) == 96
        model.add_adapter(lora(r=2), "second")
        model.eval()
        model.set_adapter("second")
        assert both(model, cache) == 0
        model.set_adapter("first")
        assert both(model, cache) == 96


def _tuners() -> dict[str, Any]:
    every = dict(target_modules=_TARGETS, task_type="CAUSAL_LM")
    return {
        "dora": lambda: lora(use_dora=True),
        "rslora": lambda: lora(use_rslora=True),
        "saved modules": lambda: lora(modules_to_save=["embed_tokens"]),
        "trained tokens": lambda: lora(trainable_token_indices=[3, 5, 7, 9, 11]),
        "parts of layers": lambda: lora(layers_to_transform=[1, 2]),
        "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "v_proj"], feedforward_modules=[], init_ia3_weights=False, task_type="CAUSAL_LM"),
        "loha": lambda: peft.LoHaConfig(r=4, alpha=32, init_weights=False, **every),
        "lokr": lambda: peft.LoKrConfig(r=4, alpha=32, init_weights=False, **every),
        "oft": lambda: peft.OFTConfig(oft_block_size=4, r=0, init_weights=False, **every),
        "vera": lambda: peft.VeraConfig(r=4, target_modules=["q_proj"], init_weights=False, d_initial=1.0, task_type="CAUSAL_LM"),
        "hra": lambda: peft.HRAConfig(r=4, init_weights=False, **every),
        "fourier": lambda: peft.FourierFTConfig(n_frequency=50, scaling=50.0, target_modules=_TARGETS, task_type="CAUSAL_LM"),
        "adaption prompt": lambda: peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=2, task_type="CAUSAL_LM"),
        "layer norms": lambda: peft.LNTuningConfig(task_type="CAUSAL_LM"),
    }


@pytest.mark.parametrize("tuner", [
    "dora", "rslora", "saved modules", "trained tokens", "parts of layers", "ia3", "loha", "lokr", "oft", "vera", "hra", "fourier", "adaption prompt", "layer norms",
])
def test_every_kind_of_adapter_is_told_from_none(tuner: str) -> None:
    model = make_model("llama")
    torch.manual_seed(5)
    wrapped = peft.get_peft_model(model, _tuners()[tuner]()).eval()
    with torch.no_grad():  # some begin as if they were not there
        for name, weight in wrapped.named_parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.5)
    with prefix_cache(wrapped, device_bytes=8 << 20) as cache:
        prompt = prompt_of()
        expected, plain = generate(wrapped, prompt), generate(make_model("llama"), prompt)
        assert not torch.equal(expected, plain), "the adapter does nothing: the test could not fail"
        assert both(wrapped, cache) == 0
        assert both(wrapped, cache) == 96
        with wrapped.disable_adapter():
            got = generate(wrapped, prompt)
            try:
                assert torch.equal(generate(wrapped, prompt, cache), got)
            except quire.InvalidArgument as error:
                assert "has changed since" in str(error)
        assert both(wrapped, cache) == 96


def test_forward_passes_by_hand() -> None:
    model = adapted()
    prompt = prompt_of()
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        both(model, cache)
        for called in (model, model.get_base_model()):
            reused = cache.start(prompt)
            assert reused == 96
            logits = called(prompt[:, reused:], past_key_values=cache).logits[:, -1]
            cache.finish()
            torch.testing.assert_close(logits, model(prompt).logits[:, -1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_any_operations_in_any_order(seed: int) -> None:
    """Whatever was done to the adapters, an answer is that of generate() without a cache, or it is refused."""
    draw = random.Random(seed)
    model = adapted()
    names = ["default"]
    cache = prefix_cache(model, device_bytes=8 << 20)
    served = 0

    def layers() -> list[Any]:
        return [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]

    def add() -> None:
        if len(names) < 4:
            names.append(f"adapter{len(names)}-{draw.randrange(10**6)}")
            model.add_adapter(names[-1], lora(r=draw.choice([2, 4]), lora_alpha=draw.choice([8, 32])))

    def delete() -> None:
        if len(names) > 1 and draw.random() < 0.5:
            model.set_adapter(names[0])
            model.delete_adapter(names.pop())

    def choose() -> None:
        model.set_adapter(draw.choice(names))

    def choose_several() -> None:
        model.base_model.set_adapter(draw.sample(names, draw.randint(1, len(names))))

    def weigh() -> None:
        if 1 < len(names) < 4:
            names.append(f"weighted{draw.randrange(10**6)}")
            pair = draw.sample(names[:-1], 2)
            model.add_weighted_adapter(pair, [0.7, draw.random()], names[-1], combination_type="cat")

    def switch() -> None:
        draw.choice([model.base_model.disable_adapter_layers, model.base_model.enable_adapter_layers])()

    def scale() -> None:
        for layer in layers():
            layer.scale_layer(draw.choice([0.5, 2.0]))

    def write() -> None:
        layer = draw.choice(layers())
        weight = draw.choice(list(layer.lora_B.values())).weight
        if draw.random() < 0.5:
            weight.data.mul_(1.5)
        else:
            with torch.no_grad():
                weight.mul_(1.5)

    def merge() -> None:
        if draw.random() < 0.3:
            model.merge_adapter()

    def unmerge() -> None:
        model.unmerge_adapter()

    operations = [add, delete, choose, choose, choose, choose_several, weigh, switch, scale, write, merge, unmerge]
    for _ in range(40):
        draw.choice(operations)()
        model.eval()
        prompt = prompt_of(draw.randrange(3))
        expected = generate(model, prompt, max_new_tokens=4)
        try:
            got = generate(model, prompt, cache, max_new_tokens=4)
        except quire.InvalidArgument as error:
            assert "has changed since" in str(error)
            cache.close()
            cache = prefix_cache(model, device_bytes=8 << 20)
            continue
        assert torch.equal(got, expected)
        served += cache.last.reused_tokens > 0
    cache.close()
    assert served > 5


def test_merged_adapters_that_are_disabled_use_no_prefix() -> None:
    """PEFT takes them out of the weights during the call."""
    model = adapted()
    model.merge_adapter()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        both(model, cache)
        assert both(model, cache) == 96
        with model.disable_adapter():
            got = generate(model, prompt_of(), cache)
            assert cache.last.reused_tokens == 0 and "merged adapters that are disabled" in cache.last.error
            assert torch.equal(got, generate(model, prompt_of()))


def test_hooks_that_are_allowed_are_not_those_of_adapters_by_row() -> None:
    model = adapted()
    model.add_adapter("other", lora())
    model.eval()
    with prefix_cache(model, device_bytes=8 << 20, allow_hooks=True) as cache:
        both(model, cache)
        expected = generate(model, prompt_of(), adapter_names=["other"])
        assert torch.equal(generate(model, prompt_of(), cache, adapter_names=["other"]), expected)
        assert cache.last.reused_tokens == cache.last.published_tokens == 0


def test_other_adapters_between_start_and_a_forward_pass() -> None:
    model = adapted()
    prompt = prompt_of()
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        assert cache.start(prompt) == 0
        with model.disable_adapter():
            model(prompt, past_key_values=cache)
        assert cache.finish() == 0
        assert "other adapters are active" in cache.last.error
        assert both(model, cache) == 0
        reused = cache.start(prompt)
        with model.disable_adapter(), pytest.raises(quire.InvalidArgument, match=r"call start\(\) again"):
            model(prompt[:, reused:], past_key_values=cache)


def test_adapters_in_training_mode_are_refused() -> None:
    model = peft.get_peft_model(make_model("llama"), lora(lora_dropout=0.5))
    model.get_base_model().eval()
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.lora_dropout.train()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        with pytest.raises(quire.Unsupported, match="in training mode"):
            generate(model, prompt_of(), cache)


def test_tensors_that_an_adapter_keeps_in_attributes_are_part_of_the_key() -> None:
    model = adapted()
    layer = next(module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer))
    layer.mask = torch.ones(4)
    layer.masks = {"default": torch.ones(4), "other": torch.ones(4)}
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        layer.mask.mul_(2.0)
        assert both(model, cache) == 0
        layer.masks["default"] = torch.zeros(4)
        assert both(model, cache) == 0
        layer.masks["other"] = torch.zeros(4)  # of an adapter that is not active
        assert both(model, cache) == 96


# Prompt learning: tokens before each prompt that are none of its input_ids.


def with_virtual_tokens(kind: str, seed: int = 3, model: Any = None, count: int = 20) -> Any:
    model = make_model("llama") if model is None else model
    torch.manual_seed(seed)
    configs = {
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=count, task_type="CAUSAL_LM"),
        "p": lambda: peft.PromptEncoderConfig(num_virtual_tokens=count, task_type="CAUSAL_LM", encoder_hidden_size=32),
        "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=count, task_type="CAUSAL_LM", num_attention_heads=2, token_dim=32),
    }
    wrapped = peft.get_peft_model(model, configs[kind]()).eval()
    with torch.no_grad():
        for weight in wrapped.prompt_encoder.parameters():
            weight.copy_(torch.randn_like(weight) * (2.0 if kind == "prefix" else 1.0))
    return wrapped


VIRTUAL = ["prompt", "p", "prefix"]


@pytest.mark.parametrize("options", [
    {"do_sample": False}, {"do_sample": True, "temperature": 1.5}, {"num_beams": 3, "do_sample": False},
    {"do_sample": True, "num_return_sequences": 2},
], ids=["greedy", "sampling", "beams", "several answers"])
@pytest.mark.parametrize("kind", VIRTUAL)
def test_virtual_tokens_have_pages_of_their_own(kind: str, options: dict[str, Any]) -> None:
    model = with_virtual_tokens(kind)
    prompt = prompt_of()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        base = model.get_base_model()
        same(base, prompt, cache)
        assert not torch.equal(generate(model, prompt, do_sample=False), generate(base, prompt, do_sample=False)), "they do nothing"
        same(model, prompt, cache, **options)
        assert cache.last.reused_tokens == 0 and cache.last.error == ""
        same(model, prompt, cache, **options)
        assert cache.last.reused_tokens == 92  # 112 columns in whole pages, of them 20 virtual ones
        same(model, prompt_of(3), cache, **options)
        assert cache.last.reused_tokens == 92
        with model.disable_adapter():
            same(model, prompt, cache)
            assert cache.last.reused_tokens == 96
        same(base, prompt, cache)
        assert cache.last.reused_tokens == 96


@pytest.mark.parametrize("kind", VIRTUAL)
def test_virtual_tokens_that_change_are_others(kind: str, tmp_path: pathlib.Path) -> None:
    model = with_virtual_tokens(kind)
    with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path) as cache:
        assert both(model, cache) == 0
        assert both(model, cache) == 92
        with torch.no_grad():
            for weight in model.prompt_encoder.parameters():
                weight.data.mul_(1.3)  # which torch does not count
        assert both(model, cache) == 0
        assert both(model, cache) == 92
    for other, reused in ((with_virtual_tokens(kind), 92), (with_virtual_tokens(kind, seed=4), 0), (with_virtual_tokens(kind, count=9), 0)):
        with prefix_cache(other, device_bytes=8 << 20, directory=tmp_path) as cache:  # as the next process does
            assert both(other, cache) == reused
    plain = make_model("llama")
    with prefix_cache(plain, device_bytes=8 << 20, directory=tmp_path) as cache:
        assert both(plain, cache) == 0


def test_adapters_with_virtual_tokens_take_turns() -> None:
    model = with_virtual_tokens("prompt")
    model.add_adapter("other", peft.PromptTuningConfig(num_virtual_tokens=7, task_type="CAUSAL_LM"))
    model.eval()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for _ in range(2):
            for name in ("default", "other"):
                model.set_adapter(name)
                reused = both(model, cache)
        assert reused > 80


@pytest.mark.parametrize("kind", VIRTUAL)
def test_padded_rows_behind_virtual_tokens_use_no_prefix(kind: str) -> None:
    model = with_virtual_tokens(kind)
    first, second = tokens(1, 40), tokens(2, 29)
    rows = torch.cat([first, torch.cat([torch.zeros(1, 11, dtype=torch.long), second], dim=1)])
    mask = torch.ones_like(rows)
    mask[1, :11] = 0
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for _ in range(2):
            same(model, rows, cache, attention_mask=mask)
            assert cache.last.reused_tokens == 0 and "virtual tokens stand before the padding" in cache.last.error
        same(model, torch.cat([first, tokens(5, 40)]), cache)
        same(model, torch.cat([first, tokens(5, 40)]), cache)
        assert cache.last.reused_tokens == 2 * 28


def test_virtual_tokens_before_windows() -> None:
    gemma = make_model("gemma")
    model = with_virtual_tokens("prompt", model=gemma)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        assert both(model, cache) == 0
        assert both(model, cache) == 92
    model = peft.get_peft_model(
        make_model("gemma"), peft.PrefixTuningConfig(num_virtual_tokens=6, task_type="CAUSAL_LM", num_attention_heads=2, token_dim=32)
    ).eval()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        with pytest.raises(quire.Unsupported, match="PREFIX_TUNING, and the model has windows"):
            generate(model, prompt_of(), cache)


def test_virtual_tokens_that_depend_on_the_call_are_refused_with_the_reason() -> None:
    config = peft.MultitaskPromptTuningConfig(num_virtual_tokens=5, num_tasks=2, task_type="CAUSAL_LM")
    model = peft.get_peft_model(make_model("llama"), config).eval()
    with pytest.raises(quire.Unsupported, match="MULTITASK_PROMPT_TUNING.*this depends on task_ids of each call"):
        prefix_cache(model, device_bytes=8 << 20)


def test_a_prompt_encoder_in_training_mode_is_refused() -> None:
    model = with_virtual_tokens("p")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        model.prompt_encoder.train()
        with pytest.raises(quire.Unsupported, match="prompt_encoder.* is in training mode"):
            generate(model, prompt_of(), cache)
        model.prompt_encoder.eval()
        assert both(model, cache) == 0


def test_virtual_tokens_by_hand_find_nothing_of_the_plain_model() -> None:
    model = with_virtual_tokens("prompt")
    prompt = prompt_of()
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        same(model.get_base_model(), prompt, cache)
        reused = cache.start(prompt)
        with pytest.raises(quire.Unsupported, match="a forward pass was given inputs_embeds"):
            model(prompt[:, reused:], past_key_values=cache)
