# SPDX-License-Identifier: Apache-2.0
"""transformers' own generate() on a prefix cache: the same tokens as without, whatever the mode and the tiers."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import pytest

import quire

try:
    import torch
    import transformers

    from quire.integrations.transformers import PrefixCache, prefix_cache
except ImportError:  # conftest.py says so
    torch = transformers = PrefixCache = prefix_cache = None  # type: ignore[assignment]

pytestmark = pytest.mark.needs_transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
_VOCABULARY = 211
_WINDOW = 24


def make_model(kind: str, seed: int = 0, dtype: Any = None, device: str = "cpu", **changes: Any) -> Any:
    """A model of random weights: small, with fewer K and V heads than queries."""
    torch.manual_seed(seed)
    shape = dict(
        vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    ) | changes
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    elif kind == "qwen":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape, head_dim=16))
    else:
        kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
        shape = dict(sliding_window=_WINDOW, layer_types=kinds, head_dim=16) | shape
        config = transformers.Gemma3TextConfig(**shape)
        model = transformers.Gemma3ForCausalLM(config)
    # Random weights of the usual size make every token as likely as any other: these do not.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    return model.eval().to(device=device, dtype=dtype or torch.float32)


def tokens(seed: int, count: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, _VOCABULARY, (1, count), generator=generator)


def after(document: Any, seed: int, count: int) -> Any:
    return torch.cat([document, tokens(seed, count)], dim=1)


def generate(model: Any, prompt: Any, cache: Any = None, **options: Any) -> Any:
    torch.manual_seed(1234)
    options.setdefault("max_new_tokens", 10)
    if cache is not None:
        options["past_key_values"] = cache
    return model.generate(prompt.to(model.device), **options)


def same(model: Any, prompt: Any, cache: Any, **options: Any) -> Any:
    """Generates with and without the cache, and compares."""
    expected = generate(model, prompt, **options)
    got = generate(model, prompt, cache, **options)
    assert torch.equal(expected, got), f"{expected.tolist()} became {got.tolist()}"
    cache.quire.check_invariants()
    return got


KINDS = ["llama", "qwen", "gemma"]
MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.5, "top_k": 30},
    "several answers": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3, "do_sample": False},
    "beams, several answers": {"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
    "prompt lookup": {"prompt_lookup_num_tokens": 3, "do_sample": False},
    "assisted": {"do_sample": False},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_without_the_cache(kind: str, mode: str) -> None:
    model = make_model(kind)
    options: dict[str, Any] = dict(MODES[mode])
    if mode == "assisted":
        options["assistant_model"] = make_model(kind, seed=7)
    document = tokens(1, 150)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, after(document, 2, 9), cache, **options)
        assert cache.last.reused_tokens == 0
        same(model, after(document, 3, 21), cache, **options)
        assert cache.last.reused_tokens == 144  # the whole pages of the document
        answer = same(model, after(document, 2, 9), cache, **options)
        assert cache.last.reused_tokens == 144
        # A user's next turn: everything so far and a little more.
        same(model, after(answer[:1].cpu(), 4, 5), cache, **options)
        assert cache.last.reused_tokens >= 160


@pytest.mark.parametrize("mode", ["prompt lookup", "assisted"])
@pytest.mark.parametrize("give_mask", [False, True])
def test_drafts_behind_a_prefix_need_no_mask(mode: str, give_mask: bool) -> None:
    model = make_model("llama")
    options = dict(MODES[mode])
    if mode == "assisted":
        options["assistant_model"] = make_model("llama", seed=7)
    document = tokens(1, 150)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for seed, count in ((2, 9), (3, 21), (2, 9), (4, 10)):
            prompt = after(document, seed, count)
            if give_mask:
                options["attention_mask"] = torch.ones_like(prompt)
            greedy = generate(model, prompt, do_sample=False)
            assert torch.equal(same(model, prompt, cache, **options), greedy)
        assert cache.last.reused_tokens == 159 - 15


@pytest.mark.parametrize(
    ("version", "is_tested"), [("5.13.1", False), ("5.14.0", True), ("5.23.9", True), ("5.24.0.dev0", False)]
)
def test_versions_that_were_not_tested_are_warned_of(version: str, is_tested: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(transformers, "__version__", version)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        prefix_cache(make_model("llama"), device_bytes=8 << 20).close()
    messages = [str(w.message) for w in warned if "prefix_cache" in str(w.message)]
    if is_tested:
        assert messages == []
    else:
        assert len(messages) == 1
        assert f"transformers {version} is not one" in messages[0]
        assert "transformers>=5.14,<5.24" in messages[0]
        assert "transformers>=5.14,<5.24" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_forward_pass_of_the_whole_prompt_computes_what_is_new() -> None:
    model = make_model("llama")
    prompt = tokens(1, 100)
    with torch.no_grad(), prefix_cache(model, device_bytes=8 << 20) as cache:
        expected = model(prompt).logits[:, -1]
        for _ in range(2):
            cache.start(prompt)
            torch.testing.assert_close(model(prompt, past_key_values=cache).logits[:, -1], expected)
            cache.finish()
        assert cache.last.reused_tokens == 96


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_have_prefixes_and_padding_of_their_own(kind: str) -> None:
    model = make_model(kind)
    document, other = tokens(1, 100), tokens(2, 70)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for seed, rows in enumerate(
            (
                [after(document, 3, 30), after(other, 4, 44), after(document, 5, 1)],
                [after(document, 3, 38), after(other, 4, 44), after(document, 6, 20)],
                [after(other, 9, 3), after(document, 6, 20)],
                [tokens(11, 40), after(document, 6, 90)],
                [after(document, 6, 90), tokens(11, 44)],
            )
        ):
            length = max(row.shape[1] for row in rows)
            ids = torch.zeros((len(rows), length), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for index, row in enumerate(rows):
                ids[index, length - row.shape[1] :] = row[0]
                mask[index, length - row.shape[1] :] = 1
            same(model, ids, cache, attention_mask=mask.to(model.device), do_sample=False)
            for options in (dict(attention_mask=mask.to(model.device), num_beams=2), {}):
                # Without a mask, generate() sees by the padding token what is padding.
                same(model, ids, cache, do_sample=False, **options)
                columns = min(length - row.shape[1] + min(row.shape[1] // 16 * 16, row.shape[1] - 1) for row in rows)
                expected = sum(max(0, columns - length + row.shape[1]) for row in rows)
                assert cache.last.reused_tokens == expected, (seed, options)


@pytest.mark.parametrize("window", [2, 5, 15, 16, 17, 18, 40])
def test_windows_below_and_above_a_page_have_what_the_next_token_sees(window: int) -> None:
    model = make_model("gemma", sliding_window=window)
    prompt = tokens(1, 128)
    with torch.no_grad(), prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache, do_sample=False)
        for count in (1, 3, *range(14, 50), 79, 80, 81, 127):
            found = cache._store.find(prompt[0], count, {})
            assert found.tokens == count
            expected = transformers.DynamicCache(config=model.config)
            model(prompt[:, :count], past_key_values=expected)
            for index, computed in enumerate(expected.layers):
                for kept, right in ((found.keys, computed.keys), (found.values, computed.values)):
                    kept = kept[index][None, :, -right.shape[2] :]
                    torch.testing.assert_close(kept, right, msg=lambda m: f"layer {index}, {count} tokens: {m}")
        ids = torch.cat([prompt, torch.cat([torch.zeros(1, 37, dtype=torch.long), prompt[:, :91]], dim=1)])
        same(model, ids, cache, attention_mask=(ids != 0).long(), do_sample=False)
        assert cache.last.reused_tokens == 117 + 80  # the shorter row's whole pages end in column 117


def test_a_window_of_one_token_is_refused() -> None:
    with pytest.raises(quire.Unsupported, match="layer 0 of Gemma3ForCausalLM has a window of 1 token"):
        prefix_cache(make_model("gemma", sliding_window=1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_go_through_all_tiers_and_are_found_by_the_next_cache(kind: str, mode: str, tmp_path: Any) -> None:
    model = make_model(kind)
    options: dict[str, Any] = dict(MODES[mode], max_new_tokens=5)
    if mode == "assisted":
        options["assistant_model"] = make_model(kind, seed=7)
    page = 16 * 4 * 4 * 2 * 32  # tokens, bytes, layers, K and V, of two heads
    documents = [tokens(seed, 130) for seed in range(6)]
    sizes = dict(device_bytes=24 * page, host_bytes=30 * page, directory=tmp_path / "cache", disk_bytes=64 << 20)
    with prefix_cache(model, **sizes) as cache:
        for round_index in range(3):
            for seed, document in enumerate(documents):
                same(model, after(document, 50 + seed + round_index, 7), cache, **options)
                cache.quire.wait_until_flushed(60.0)  # a page that makes room before it is written is lost
                if round_index > 0:
                    assert cache.last.reused_tokens == 128
        stats = cache.quire.stats()
        assert stats.evicted_page_total > 0
        assert stats.loaded_page_total > 0
        assert stats.disk_loaded_page_total > 0
    model = make_model(kind)
    with prefix_cache(model, **sizes) as cache:
        for seed, document in enumerate(documents):
            same(model, after(document, 80 + seed, 7), cache, **options)
            assert cache.last.reused_tokens == 128
        assert cache.quire.stats().disk_hit_tokens > 0


def test_a_new_process_starts_warm(tmp_path: Any) -> None:
    program = textwrap.dedent(
        """
        import json, sys
        sys.path.insert(0, sys.argv[1])
        import test_transformers as t
        model = t.make_model("llama")
        cache = t.prefix_cache(model, device_bytes=8 << 20, directory=sys.argv[2])
        out = t.generate(model, t.after(t.tokens(1, 150), int(sys.argv[3]), 9), cache, do_sample=False)
        print(json.dumps([cache.last.reused_tokens, out.tolist()]))
        """  # and ends without closing the cache
    )
    model = make_model("llama")
    for seed, reused, hashes in ((2, 0, "1"), (3, 144, "2"), (2, 144, "3")):
        folder = __file__.rsplit("/", 1)[0]
        ran = subprocess.run(
            [sys.executable, "-c", program, folder, str(tmp_path / "cache"), str(seed)],
            capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": hashes},  # sets are in another order in each process
        )
        found, answer = json.loads(ran.stdout.splitlines()[-1])
        assert found == reused
        assert answer == generate(model, after(tokens(1, 150), seed, 9), do_sample=False).tolist()


def test_prompts_longer_than_the_pool_are_computed() -> None:
    model = make_model("llama")
    page = 16 * 4 * 4 * 2 * 32
    with prefix_cache(model, device_bytes=6 * page) as cache:
        prompt = tokens(1, 200)
        same(model, prompt, cache, do_sample=False)
        same(model, prompt, cache, do_sample=False)
        assert cache.last.reused_tokens == 80  # five pages besides the null page


def test_tenants_with_another_salt_share_nothing() -> None:
    model = make_model("llama")
    prompt = tokens(1, 100)
    with prefix_cache(model, device_bytes=8 << 20, salt="a") as cache:
        same(model, prompt, cache, do_sample=False)
        same(model, prompt, cache, do_sample=False)
        assert cache.last.reused_tokens == 96


def test_a_loop_without_generate_uses_start_and_finish() -> None:
    model = make_model("gemma")
    prompt = tokens(1, 100)
    with torch.no_grad(), prefix_cache(model, device_bytes=8 << 20) as cache:
        expected = model(prompt).logits[:, -1]
        for reused in (0, 96):
            assert cache.start(prompt) == reused
            logits = model(prompt[:, reused:], past_key_values=cache).logits[:, -1]
            torch.testing.assert_close(logits, expected)
            cache.finish()


def test_what_was_not_seen_or_stood_elsewhere_is_not_remembered() -> None:
    model = make_model("llama")
    prompt = tokens(1, 64)
    with torch.no_grad(), prefix_cache(model, device_bytes=8 << 20) as cache:
        cache.start(prompt)
        model(inputs_embeds=model.get_input_embeddings()(prompt), past_key_values=cache)
        assert cache.finish() == 0
        cache.start(prompt)
        model(prompt, past_key_values=cache, position_ids=torch.arange(7, 71)[None])
        assert cache.finish() == 0
        cache.start(prompt)
        model(prompt, past_key_values=cache, attention_mask=torch.ones(1, 64).index_fill(1, torch.tensor([5]), 0))
        assert cache.finish() == 0
        cache.start(prompt)
        model(prompt, past_key_values=cache)
        assert cache.finish() == 64


def test_a_call_that_breaks_off_leaves_nothing_wrong() -> None:
    model = make_model("llama")
    prompt = tokens(1, 64)
    with prefix_cache(model, device_bytes=8 << 20, allow_hooks=True) as cache:

        def fail(*args: Any) -> None:
            raise KeyboardInterrupt

        handle = model.model.layers[2].register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            generate(model, prompt, cache)
        handle.remove()
        assert cache.quire.stats().sealed_pages == 0
        same(model, prompt, cache, do_sample=False)
        same(model, prompt, cache, do_sample=False)
        assert cache.last.reused_tokens == 63  # all but the last, whose answer is asked for


def test_close_leaves_the_model_as_it_was() -> None:
    model = make_model("llama")
    prompt = tokens(1, 40)
    cache = prefix_cache(model, device_bytes=8 << 20)
    same(model, prompt, cache)
    cache.close()
    cache.close()
    assert type(model) is transformers.LlamaForCausalLM
    generate(model, prompt)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(seed=3), "other weights"),
        (dict(kind="qwen"), "another model"),
    ],
)
def test_a_directory_of_another_model_is_refused(change: dict[str, Any], words: str, tmp_path: Any) -> None:
    prefix_cache(make_model("llama"), device_bytes=8 << 20, directory=tmp_path).close()
    with pytest.raises(quire.InvalidArgument, match=words):
        prefix_cache(make_model(change.pop("kind", "llama"), **change), device_bytes=8 << 20, directory=tmp_path)
    prefix_cache(make_model("llama"), device_bytes=8 << 20, directory=tmp_path).close()


def test_layers_that_cannot_be_held_are_named() -> None:
    config = transformers.Qwen3NextConfig(
        vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["full_attention", "linear_attention"], num_experts=2,
    )
    model = torch.nn.Module()
    model.config = config
    model.generate = print
    with pytest.raises(quire.Unsupported, match="layer 1 of Module is 'linear_attention'"):
        prefix_cache(model)


@pytest.mark.parametrize(
    "rope",
    [
        dict(rope_type="longrope", short_factor=[1.0] * 8, long_factor=[4.0] * 8, original_max_position_embeddings=128),
        dict(rope_type="dynamic", factor=4.0),
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_that_depends_on_the_length_is_refused(rope: dict[str, Any]) -> None:
    rope = dict(rope, rope_theta=10000.0)
    with pytest.raises(quire.Unsupported, match=f"LlamaForCausalLM has RoPE of type '{rope['rope_type']}'.*without"):
        prefix_cache(make_model("llama", rope_parameters=rope))
    by_kind = dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0), full_attention=rope)
    with pytest.raises(quire.Unsupported, match=rope["rope_type"]):
        prefix_cache(make_model("gemma", rope_parameters=by_kind))


def test_rope_that_does_not_is_held() -> None:
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128)
    model = make_model("llama", rope_parameters=rope)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, tokens(1, 100), cache, do_sample=False)
        same(model, after(tokens(1, 100), 2, 60), cache, do_sample=False)
        assert cache.last.reused_tokens == 96


def test_padding_behind_tokens_is_refused() -> None:
    model = make_model("llama")
    ids = tokens(1, 20)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        mask = torch.ones_like(ids)
        mask[0, -3:] = 0
        with pytest.raises(quire.Unsupported, match="pad on the left"):
            generate(model, ids, cache, attention_mask=mask)
        with pytest.raises(quire.Unsupported, match="inputs_embeds"):
            model.generate(inputs_embeds=model.get_input_embeddings()(ids), past_key_values=cache)
        with pytest.raises(quire.InvalidArgument, match="input_ids"):
            model.generate(past_key_values=cache)
        with pytest.raises(quire.Unsupported, match="prefill_chunk_size"):
            generate(model, ids, cache, prefill_chunk_size=8)


def test_too_small_pools_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(quire.InvalidArgument, match="a page of this model has"):
        prefix_cache(make_model("llama"), device_bytes=1000)


@pytest.mark.needs_cuda
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_without_the_cache_on_a_gpu(kind: str, mode: str, tmp_path: Any) -> None:
    model = make_model(kind, device="cuda")
    options: dict[str, Any] = dict(MODES[mode])
    if mode == "assisted":
        options["assistant_model"] = make_model(kind, seed=7, device="cuda")
    page = 16 * 4 * 4 * 2 * 32
    sizes = dict(device_bytes=40 * page, host_bytes=60 * page, directory=tmp_path / "cache")
    documents = [tokens(seed, 150) for seed in range(5)]
    for _ in range(2):  # the second time in a new cache
        with prefix_cache(model, **sizes) as cache:
            for seed, document in enumerate([*documents, *documents]):
                same(model, after(document, 20 + seed, 9), cache, **options)
                cache.quire.wait_until_flushed(60.0)
            assert cache.last.reused_tokens == 144


def assert_logits_are_close(model: Any) -> None:
    document = tokens(1, 300)
    with torch.no_grad(), prefix_cache(model, device_bytes=8 << 20) as cache:
        for seed, reused in ((2, 0), (3, 288), (2, 319)):
            prompt = after(document, seed, 20).to(model.device)
            expected = model(prompt).logits.float()
            assert cache.start(prompt) == reused
            logits = model(prompt[:, reused:], past_key_values=cache).logits.float()
            cache.finish()
            expected = expected[:, reused:]
            assert logits.shape == expected.shape
            scale = expected.abs().max()
            assert float((logits - expected).abs().max() / scale) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_logits_in_float16_are_close(kind: str) -> None:
    # Not in bfloat16: torch 2.11 uses AMX for it wherever the processor says that it has it. Virtual machines may not.
    assert_logits_are_close(make_model(kind, dtype=torch.float16))


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_in_sixteen_bits_on_a_gpu_are_close(kind: str, name: str) -> None:
    assert_logits_are_close(make_model(kind, dtype=getattr(torch, name), device="cuda"))


@pytest.mark.needs_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_in_bf16_on_a_gpu_are_those_that_one_order_of_computing_gives(kind: str) -> None:
    model = make_model(kind, dtype=torch.bfloat16, device="cuda")
    document = tokens(1, 160)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        first = generate(model, after(document, 2, 9), cache, do_sample=False)
        again = generate(model, after(document, 2, 9), cache, do_sample=False)
        assert cache.last.reused_tokens == 160
        for _ in range(3):  # from here on every call computes the same tokens from the same prefix
            assert torch.equal(generate(model, after(document, 2, 9), cache, do_sample=False), again)
        assert first.shape == again.shape
