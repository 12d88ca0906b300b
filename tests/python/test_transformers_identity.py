# SPDX-License-Identifier: Apache-2.0
"""K and V depend on more than tokens. Whatever changes them is noticed, kept apart or refused: never a wrong token."""

from __future__ import annotations

import copy
import inspect
import pathlib
from typing import Any

import pytest

import quire
from test_transformers import KINDS, _VOCABULARY, after, generate, make_model, same, tokens

try:
    import torch
    import transformers

    from quire.integrations.transformers import prefix_cache
except ImportError:  # conftest.py says so
    torch = transformers = prefix_cache = None  # type: ignore[assignment]

pytestmark = pytest.mark.needs_transformers

_SMALL = dict(vocab_size=_VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=None)


def gpt2(**changes: Any) -> Any:
    torch.manual_seed(3)
    config = transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=512, **_SMALL | changes)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    return model


# Weights.


def _scaled(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.mul_(1.5)


def _loaded(model: Any) -> None:
    model.load_state_dict(make_model("llama", seed=9).state_dict())


def _through_data(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.weight.data.mul_(1.5)


def _assigned(model: Any) -> None:
    model.model.layers[0].mlp = copy.deepcopy(make_model("llama", seed=9).model.layers[0].mlp)


def _new_parameter(model: Any) -> None:
    layer = model.model.layers[0].self_attn.v_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 2)


def _trained(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    model(input_ids=tokens(5, 20), labels=tokens(5, 20)).loss.backward()
    optimizer.step()


def _other_frequencies(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(0.5)  # a buffer that is not saved


def _other_setting(model: Any) -> None:
    model.model.layers[0].self_attn.scaling *= 3


def _other_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def _hooked(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 1.5)


def _forward_of_its_own(model: Any) -> None:
    layer = model.model.layers[0].mlp
    forward = layer.forward
    layer.forward = lambda states: forward(states) * 2


def _partly_in_training(model: Any) -> None:
    model.model.layers[2].train()


def _hooked_everywhere(model: Any) -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    model.undo = handle.remove


CHANGES = [
    _scaled, _loaded, _through_data, _assigned, _new_parameter, _trained, _other_frequencies, _other_setting,
    _other_attention, _hooked, _forward_of_its_own, _partly_in_training, _hooked_everywhere,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_a_changed_model_is_noticed(change: Any) -> None:
    model = make_model("llama")
    prompt = after(tokens(1, 100), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 96
        change(model)
        try:
            with pytest.raises(quire.Error, match="has changed since|training mode|has a hook|forward pass of its own|hooks for all"):
                generate(model, prompt, cache)
            with pytest.raises(quire.Error):
                cache.start(prompt)
        finally:
            getattr(model, "undo", lambda: None)()


@pytest.mark.parametrize("change", [_scaled, _through_data, _other_frequencies, _other_setting], ids=lambda c: c.__name__[1:])
@pytest.mark.parametrize("identity", [None, "llama"])
def test_a_changed_model_finds_nothing_of_the_one_before(change: Any, identity: str | None, tmp_path: pathlib.Path) -> None:
    """In the next process, on the same directory. An identity that somebody gives is believed for the weights."""
    model = make_model("llama")
    prompt = after(tokens(1, 100), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path, identity=identity) as cache:
        same(model, prompt, cache)
    change(model)
    if identity is not None and change in (_scaled, _through_data):
        return
    try:
        cache = prefix_cache(model, device_bytes=8 << 20, directory=tmp_path, identity=identity)
    except quire.InvalidArgument as error:
        assert "other weights" in str(error)
        return
    with cache:
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 0


def test_one_element_is_noticed_where_torch_counts_or_all_are_looked_at() -> None:
    prompt = after(tokens(1, 100), 2, 7)
    for check_all_weights in (False, True):
        model = make_model("llama")
        with prefix_cache(model, device_bytes=8 << 20, check_all_weights=check_all_weights) as cache:
            same(model, prompt, cache)
            weight = model.model.layers[0].self_attn.q_proj.weight
            if check_all_weights:
                weight.data[3, 5] += 1.0  # which torch does not count
            else:
                with torch.no_grad():
                    weight[3, 5] += 1.0
            with pytest.raises(quire.InvalidArgument, match="the model has changed since"):
                generate(model, prompt, cache)


def test_a_model_that_changes_while_a_call_runs_is_not_remembered() -> None:
    model = make_model("llama")
    prompt = after(tokens(1, 100), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache, torch.no_grad():
        cache.start(prompt)
        model(prompt, past_key_values=cache)
        model.lm_head.weight.mul_(2.0)
        assert cache.finish() == 0
        assert "has changed since" in cache.last.error
        assert cache.quire.lookup(cache._store.space, prompt[0]).matched_tokens == 0


def test_hooks_that_only_look_can_be_allowed() -> None:
    model = make_model("llama")
    seen = []
    model.model.layers[0].register_forward_hook(lambda module, args, output: seen.append(1) and None)
    prompt = after(tokens(1, 100), 2, 7)
    with pytest.raises(quire.Unsupported, match=r"model\.layers\.0 has a hook.*allow_hooks=True"):
        prefix_cache(model, device_bytes=8 << 20)
    with prefix_cache(model, device_bytes=8 << 20, allow_hooks=True) as cache:
        same(model, prompt, cache)
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 96 and seen


def test_hooks_of_transformers_are_no_reason() -> None:
    model = make_model("llama")
    prompt = after(tokens(1, 100), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for _ in range(2):
            options = dict(return_dict_in_generate=True, output_hidden_states=True)
            expected = generate(model, prompt, **options).sequences
            assert torch.equal(generate(model, prompt, cache, **options).sequences, expected)
        assert cache.last.reused_tokens == 96
    model.enable_input_require_grads()
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)


def test_a_name_or_a_path_is_no_part_of_the_key(tmp_path: pathlib.Path) -> None:
    prompt = after(tokens(1, 100), 2, 7)
    for name, reused in (("first", 0), ("second", 96)):
        model = make_model("llama")
        model.name_or_path = name
        with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path) as cache:
            same(model, prompt, cache)
            assert cache.last.reused_tokens == reused


def test_very_many_key_spaces_come_and_go() -> None:
    model = make_model("llama")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for number in range(1100):
            cache._store.use_adapters(f"state {number}")
        same(model, after(tokens(1, 100), 2, 7), cache)


# Arguments.


def _values_for(prompt: Any) -> list[Any]:
    """Things that a caller may give by any name."""
    rows, columns = prompt.shape
    return [
        prompt % 2, torch.zeros_like(prompt), torch.rand(rows, columns, 64), torch.rand(3, 4), True, 7, "text", ["text"] * rows
    ]


@pytest.mark.parametrize("kind", ["gpt2", *KINDS])
def test_every_argument_of_a_forward_pass(kind: str) -> None:
    """Each argument, with values of many kinds: the same tokens as without the cache, or refused."""
    model = gpt2() if kind == "gpt2" else make_model(kind)
    prompt = after(tokens(1, 60), 2, 7)
    names = set(inspect.signature(type(model).forward).parameters) | {
        "adapter_names", "task_ids", "token_type_ids", "mm_token_type_ids", "head_mask", "cache_position", "encoder_hidden_states",
        "cross_attn_head_mask", "pixel_values", "input_features", "some_name",
    }
    names -= {"self", "input_ids", "past_key_values", "kwargs"}
    tried = 0
    options = dict(max_new_tokens=3, do_sample=False)
    plain = generate(model, prompt, **options)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        generate(model, prompt, cache, **options)  # is there to be found
        for name in sorted(names):
            for value in _values_for(prompt):
                try:
                    expected = generate(model, prompt, **{**options, name: value})
                except Exception:  # transformers refuses it
                    continue
                tried += 1
                try:
                    got = generate(model, prompt, cache, **{**options, name: value})
                except quire.Error:
                    got = expected
                assert torch.equal(got, expected), f"{name}={value!r:.50}"
            assert torch.equal(generate(model, prompt, cache, **options), plain), f"after {name}"
            assert cache.last.reused_tokens == 64
    assert tried > 5


def test_arguments_of_generate_itself_are_taken() -> None:
    model = make_model("llama")
    prompt = after(tokens(1, 100), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for _ in range(2):
            generate(model, prompt, cache, tokenizer=object(), trust_remote_code=False, synced_gpus=False)
        assert cache.last.reused_tokens == 96


def test_token_types_are_refused() -> None:
    model = gpt2()
    prompt = after(tokens(1, 100), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)
        with pytest.raises(quire.Unsupported, match=r"generate\(\) was given token_type_ids: K and V may depend on it"):
            generate(model, prompt, cache, token_type_ids=torch.full_like(prompt, 5))
        with torch.no_grad(), pytest.raises(quire.Unsupported, match="a forward pass was given token_type_ids"):
            reused = cache.start(prompt)
            assert reused == 96
            rest = prompt[:, reused:]
            model(rest, past_key_values=cache, token_type_ids=torch.full_like(rest, 5))
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 96


# Models.


def _without_positions() -> dict[str, Any]:
    small = dict(_SMALL, d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=32)
    bart = transformers.BartConfig(**small, encoder_layers=2, max_position_embeddings=256, is_decoder=True, is_encoder_decoder=False)
    trocr = transformers.TrOCRConfig(**small, max_position_embeddings=256, is_decoder=True)
    roformer = transformers.RoFormerConfig(
        **_SMALL, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, is_decoder=True,
        max_position_embeddings=256,
    )
    return {
        "bart": transformers.BartForCausalLM(bart),
        "trocr": transformers.TrOCRForCausalLM(trocr),
        "roformer": transformers.RoFormerForCausalLM(roformer),
    }


@pytest.mark.parametrize("kind", ["bart", "trocr", "roformer"])
def test_padded_rows_of_models_that_count_columns_use_no_prefix(kind: str) -> None:
    torch.manual_seed(0)
    model = _without_positions()[kind].eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    first, second = tokens(1, 70), tokens(2, 59)
    padded = torch.cat([torch.zeros(1, 11, dtype=torch.long), second], dim=1)
    both = torch.cat([first, padded])
    mask = (torch.cat([torch.ones_like(first), torch.cat([torch.zeros(1, 11), torch.ones(1, 59)], dim=1).long()]))
    try:
        cache = prefix_cache(model, device_bytes=8 << 20)
    except quire.Unsupported as error:  # some versions of transformers give it attention in both directions
        assert kind == "roformer" and "change with the tokens behind it" in str(error)
        return
    with cache:
        same(model, second, cache)  # K and V of these tokens without padding
        same(model, first, cache)
        same(model, both, cache, attention_mask=mask)
        assert cache.last.reused_tokens == 0 and "takes no position_ids" in cache.last.error
        same(model, both, cache, attention_mask=mask)
        same(model, second, cache)
        assert cache.last.reused_tokens == 48


def test_weights_that_are_elsewhere_are_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(make_model("llama"), execution_device=torch.device("cpu"))
    with pytest.raises(quire.Unsupported, match="meta device|offloaded"):
        prefix_cache(model, device_bytes=8 << 20)


def test_weights_that_were_packed_are_refused() -> None:
    quantize = pytest.importorskip("torch.ao.quantization", reason="this torch has no quantize_dynamic()")
    quantized = quantize.quantize_dynamic(make_model("llama"), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(quire.Unsupported, match="_packed_params.* is no plain tensor"):
        prefix_cache(quantized, device_bytes=8 << 20)


def test_weights_made_in_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        model = make_model("llama")
    with pytest.raises(quire.Unsupported, match=r"was made under torch\.inference_mode\(\)"):
        prefix_cache(model, device_bytes=8 << 20)


def test_attention_in_both_directions_is_refused() -> None:
    model = make_model("gemma")
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.config.use_bidirectional_attention = True
    with pytest.raises(quire.Unsupported, match="change with the tokens behind it"):
        prefix_cache(model, device_bytes=8 << 20)


def test_models_that_take_no_cache_of_transformers_are_refused_with_the_reason() -> None:
    config = transformers.xLSTMConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_heads=2)
    with pytest.raises(quire.Unsupported, match="xLSTMForCausalLM keeps a recurrent state"):
        prefix_cache(transformers.xLSTMForCausalLM(config).eval(), device_bytes=8 << 20)


@pytest.mark.parametrize("window", [4, 32])
def test_a_window_that_the_model_s_own_mask_does_not_have_is_refused(window: int) -> None:
    """Moshi's cache forgets what is outside of the window, and a prompt that is computed at once sees all of it."""
    torch.manual_seed(0)
    config = transformers.MoshiConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, ffn_dim=96,
        sliding_window=window, max_position_embeddings=512, **_SMALL,
    )
    with pytest.raises(quire.Unsupported, match="K and V in layer 1 of MoshiForCausalLM are not the same in one forward pass"):
        prefix_cache(transformers.MoshiForCausalLM(config).eval(), device_bytes=8 << 20)


@pytest.mark.parametrize("clip", [None, 8.0])
def test_dbrx_is_served_where_transformers_can_run_it(clip: float | None) -> None:
    torch.manual_seed(0)
    config = transformers.DbrxConfig(
        d_model=64, n_heads=4, n_layers=2, vocab_size=_VOCABULARY, max_seq_len=256, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": clip},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
    )
    model = transformers.DbrxForCausalLM(config).eval()
    prompt = after(tokens(1, 100), 2, 7)
    try:
        generate(model, prompt)
    except Exception:  # torch's clamp() takes no bounds that are None
        with pytest.raises(quire.Unsupported, match="DbrxForCausalLM cannot compute a text of 8 tokens, with a cache or without"):
            prefix_cache(model, device_bytes=8 << 20)
        return
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 96
