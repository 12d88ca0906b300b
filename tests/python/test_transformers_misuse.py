# SPDX-License-Identifier: Apache-2.0
"""A prefix cache that is used where, when or how it cannot be says so, and leaves model, cache and directory intact."""

from __future__ import annotations

import copy
import gc
import io
import json
import threading
import warnings
import weakref
from typing import Any

import pytest
from test_transformers import after, generate, make_model, prefix_cache, same, tokens, torch, transformers

import quire

pytestmark = pytest.mark.needs_transformers
SMALL = dict(device_bytes=8 << 20)


# ── which model ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_closed_cache_is_refused() -> None:
    model = make_model("llama")
    prompt = tokens(1, 60)
    with prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache)
    for _ in range(2):
        with pytest.raises(quire.InvalidArgument, match="closed: make another one"):
            generate(model, prompt, cache)
    with prefix_cache(model, **SMALL), pytest.raises(quire.InvalidArgument, match="closed: make another one"):
        generate(model, prompt, cache)
    for call in (lambda: cache.start(prompt), cache.finish):
        with pytest.raises(quire.InvalidArgument, match="closed"):
            call()


def test_the_cache_of_another_model_is_refused() -> None:
    model, other = make_model("llama"), make_model("llama", seed=5)
    prompt = tokens(1, 60)
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache)
        with pytest.raises(quire.InvalidArgument, match="is of another model"):
            generate(other, prompt, cache)
        with prefix_cache(other, **SMALL), pytest.raises(quire.InvalidArgument, match="another model, a LlamaForCausalLM"):
            generate(other, prompt, cache)
        assert cache.start(prompt) == 48
        with pytest.raises(quire.InvalidArgument, match="make a prefix_cache"):
            other(prompt[:, 48:], past_key_values=cache)
        with pytest.raises(quire.InvalidArgument, match="a part of this one"):
            model.model(prompt[:, 48:], past_key_values=cache)
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 48


def test_a_forward_pass_needs_a_start() -> None:
    model = make_model("llama")
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        for _ in range(2):
            with pytest.raises(quire.InvalidArgument, match="had no start"):
                model(tokens(1, 20), past_key_values=cache)
            cache.start(tokens(1, 20))
            cache.finish()


@pytest.mark.parametrize("first_is_closed_first", [False, True])
def test_two_caches_of_one_model_are_apart(first_is_closed_first: bool) -> None:
    model = make_model("llama")
    prompt = tokens(1, 100)
    caches = [prefix_cache(model, **SMALL), prefix_cache(model, **SMALL)]
    for cache in caches:
        same(model, prompt, cache)
        assert (cache.last.reused_tokens, cache.last.published_tokens) == (0, 96)
    closed, left = caches if first_is_closed_first else caches[::-1]
    closed.close()
    same(model, after(prompt, 2, 9), left)
    assert left.last.reused_tokens == 96
    left.close()
    assert type(model) is transformers.LlamaForCausalLM


def test_caches_that_are_dropped_leave_the_model_as_it_was() -> None:
    model = make_model("llama")
    kept = prefix_cache(model, identity="x", **SMALL)
    for _ in range(5):
        prefix_cache(model, identity="x", **SMALL)
    gc.collect()
    same(model, tokens(1, 40), kept)
    before, _ = vars(model).copy(), kept.close()
    assert type(model) is transformers.LlamaForCausalLM
    assert vars(model).keys() == before.keys()
    assert not model._forward_pre_hooks
    reference = weakref.ref(model)
    cache = prefix_cache(model, identity="x", **SMALL)
    del model
    gc.collect()
    assert reference() is None  # a cache keeps no model alive
    cache.close()


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_of_a_model_with_a_cache_are_plain_models(way: str) -> None:
    model = make_model("llama")
    prompt = tokens(1, 40)
    with prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache)
        if way == "deepcopy":
            other = copy.deepcopy(model)
        else:
            file = io.BytesIO()
            torch.save(model, file)
            assert b"quire" not in file.getvalue()
            file.seek(0)
            other = torch.load(file, weights_only=False)
        assert type(other) is transformers.LlamaForCausalLM
        assert torch.equal(generate(other, prompt), generate(model, prompt))
        with torch.no_grad():
            other.model.layers[0].mlp.down_proj.weight.mul_(-1)
        assert not torch.equal(generate(other, prompt, do_sample=False), generate(model, prompt, do_sample=False))
        assert isinstance(model, transformers.LlamaForCausalLM)
        assert type(model).__name__ == "LlamaForCausalLM"
        with pytest.raises(quire.Unsupported, match="give the same one to every call"):
            copy.deepcopy(cache)


def test_a_compiled_model_is_its_model() -> None:
    compiled = torch.compile(make_model("llama"), backend="eager")
    prompt = tokens(1, 60)
    with prefix_cache(compiled, **SMALL) as cache:
        same(compiled, prompt, cache, max_new_tokens=2)
        same(compiled, prompt, cache, max_new_tokens=2)
        assert cache.last.reused_tokens == 48


def test_what_is_no_model_with_generate_is_refused() -> None:
    for what in (None, "Qwen/Qwen3-0.6B"):
        with pytest.raises(TypeError, match="give the model itself"):
            prefix_cache(what)
    with pytest.raises(quire.Unsupported, match=r"LlamaModel has no generate\(\)"):
        prefix_cache(make_model("llama").model)


def test_layers_that_take_no_cache_are_refused() -> None:
    config = transformers.OpenAIGPTConfig(vocab_size=50, n_embd=32, n_layer=2, n_head=2)
    with pytest.raises(quire.Unsupported, match="layer 0 of OpenAIGPTLMHeadModel left nothing in past_key_values"):
        prefix_cache(transformers.OpenAIGPTLMHeadModel(config))


def test_looking_at_a_model_keeps_what_is_in_training() -> None:
    model = make_model("llama").train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    prefix_cache(model, **SMALL).close()
    assert [module.training for module in model.modules()] == before
    model.model.layers[2].register_forward_pre_hook(lambda *args: 1 / 0)
    with pytest.raises(quire.Unsupported, match="with a cache or without: ZeroDivisionError: division by zero"):
        prefix_cache(model, **SMALL, allow_hooks=True)
    assert [module.training for module in model.modules()] == before


# ── a model that changes ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_that_was_converted_needs_a_new_cache() -> None:
    model = make_model("llama")
    prompt = tokens(1, 60)
    with prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache)
        model.to(torch.float64)
        for seed in (1, 2):
            with pytest.raises(quire.InvalidArgument, match="was torch.float32.* and is torch.float64.*make a new"):
                generate(model, tokens(seed, 60), cache)


def test_autocast_is_refused() -> None:
    model = make_model("llama")
    with prefix_cache(model, **SMALL) as cache, torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(quire.Unsupported, match="autocast is on"):
            generate(model, tokens(1, 60), cache)


def test_inference_mode_may_be_on_or_off() -> None:
    model = make_model("llama")
    prompt = tokens(1, 60)
    with torch.inference_mode():
        cache = prefix_cache(model, **SMALL)
        same(model, prompt, cache)
    same(model, prompt, cache)
    same(model, after(prompt, 2, 40), cache)
    with torch.inference_mode():
        same(model, after(prompt, 2, 40), cache)
    assert cache.last.reused_tokens == 96
    cache.close()


def test_pages_hold_no_graphs() -> None:
    model = make_model("gemma")
    prompt = tokens(1, 100)
    expected = model(prompt).logits[:, -1]
    with prefix_cache(model, **SMALL) as cache:
        for reused in (0, 96, 96):
            assert cache.start(prompt) == reused
            logits = model(prompt[:, reused:], past_key_values=cache).logits[:, -1]
            torch.testing.assert_close(logits, expected)
            cache.finish()
            assert not any(group.keys.requires_grad or group.values.requires_grad for group in cache._store.groups)


# ── calls that fail ──────────────────────────────────────────────────────────────────────────────────────────────────


def fail_once(monkeypatch: Any, cache: Any, error: BaseException) -> None:
    copy_in = cache._store._copy_in

    def fail(*args: Any) -> None:
        monkeypatch.setattr(cache._store, "_copy_in", copy_in)
        raise error

    monkeypatch.setattr(cache._store, "_copy_in", fail)


def test_an_interrupt_while_remembering_leaves_nothing_in_the_way(monkeypatch: Any) -> None:
    model = make_model("llama")
    prompt = tokens(1, 60)
    with prefix_cache(model, **SMALL) as cache:
        fail_once(monkeypatch, cache, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            generate(model, prompt, cache)
        same(model, prompt, cache)
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 48


def test_an_answer_is_given_although_it_cannot_be_remembered(monkeypatch: Any) -> None:
    model = make_model("llama")
    prompt = tokens(1, 60)
    expected = generate(model, prompt, do_sample=False)
    with prefix_cache(model, **SMALL) as cache:
        fail_once(monkeypatch, cache, RuntimeError("out of memory"))
        with pytest.warns(UserWarning, match="not remembered: RuntimeError: out of memory"):
            assert torch.equal(generate(model, prompt, cache, do_sample=False), expected)
        assert cache.last.error == "RuntimeError: out of memory"
        same(model, prompt, cache)
        same(model, prompt, cache)
        assert (cache.last.reused_tokens, cache.last.error) == (48, "")


def test_why_nothing_was_remembered_is_said() -> None:
    model = make_model("llama")
    prompt = tokens(1, 64)
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        cache.start(prompt)
        model(inputs_embeds=model.get_input_embeddings()(prompt), past_key_values=cache)
        assert cache.finish() == 0
        assert "no input_ids" in cache.last.error
        cache.start(prompt)
        model(prompt, past_key_values=cache, position_ids=torch.arange(7, 71)[None])
        assert cache.finish() == 0
        assert "position_ids" in cache.last.error


def test_a_second_thread_is_told_to_wait() -> None:
    model = make_model("llama")
    prompt = tokens(1, 60)
    is_inside, may_go_on = threading.Event(), threading.Event()

    def wait(*args: Any) -> None:
        is_inside.set()
        assert may_go_on.wait(60)

    with prefix_cache(model, allow_hooks=True, **SMALL) as cache:
        handle = model.model.layers[2].register_forward_pre_hook(wait)
        thread = threading.Thread(target=generate, args=(model, prompt, cache))
        thread.start()
        try:
            assert is_inside.wait(60)
            for call in (lambda: generate(model, prompt, cache), lambda: cache.start(prompt)):
                with pytest.raises(quire.Unavailable, match="another thread is in a call with this prefix cache"):
                    call()
        finally:
            may_go_on.set()
            thread.join()
        handle.remove()
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 48


def test_what_the_host_has_is_not_published_again() -> None:
    model = make_model("llama")
    page = 16 * 4 * 4 * 2 * 32
    first, second = tokens(1, 100), tokens(2, 100)
    with prefix_cache(model, device_bytes=8 * page, host_bytes=60 * page) as cache:
        for prompt, published in ((first, 96), (second, 96), (first, 0), (second, 0)):
            same(model, prompt, cache, max_new_tokens=1)
            assert cache.last.published_tokens == published


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (dict(page_tokens=0), quire.InvalidArgument, "page_tokens is 0: give a positive number"),
        (dict(page_tokens=-4), quire.InvalidArgument, "page_tokens is -4"),
        (dict(device_bytes=1.5e9), TypeError, "device_bytes is 1500000000.0: give an integer"),
        (dict(device_bytes=-1), quire.InvalidArgument, "device_bytes is -1"),
        (dict(identity=5), TypeError, "identity is 5: give a string"),
        (dict(salt=None), TypeError, "salt is None: give a string"),
        (dict(directory=""), quire.InvalidArgument, "directory is empty"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        prefix_cache(make_model("llama"), **(SMALL | options))


def test_bad_prompts_are_named() -> None:
    model = make_model("llama")
    ids = tokens(1, 20)
    with prefix_cache(model, **SMALL) as cache:
        for prompt, words in (
            (ids[0], "1 dimensions"),
            (ids.tolist(), "input_ids is a list"),
            (ids[:0], "0 rows of 20 tokens"),
            (ids[:, :0], "1 rows of 0 tokens"),
            (ids.float(), "torch.float32: give integers"),
        ):
            for options in ({}, dict(attention_mask=torch.ones(1, 20))):
                with pytest.raises(quire.InvalidArgument, match=words):
                    model.generate(prompt, past_key_values=cache, **options)
        with pytest.raises(quire.Unsupported, match="attention_mask is list"):
            model.generate(ids, attention_mask=[[1] * 20], past_key_values=cache)
        with pytest.raises(quire.Unsupported, match="use_cache is False"):
            model.generate(ids, past_key_values=cache, use_cache=False)
        same(model, ids, cache)


def test_a_model_that_is_set_to_use_no_cache_uses_this_one() -> None:
    model = make_model("llama")
    model.generation_config.use_cache = False
    with prefix_cache(model, **SMALL) as cache:
        same(model, tokens(1, 60), cache)
        same(model, tokens(1, 60), cache)
        assert (cache.last.reused_tokens, cache.last.error) == (48, "")


def test_a_padding_token_inside_a_prompt_needs_a_mask() -> None:
    model = make_model("llama")
    ids = tokens(1, 60)
    ids[0, 20] = 0
    with prefix_cache(model, **SMALL) as cache:
        with pytest.raises(quire.InvalidArgument, match="row 0 of input_ids has the padding token 0 behind.*give one"):
            generate(model, ids, cache)
        same(model, ids, cache, attention_mask=torch.ones_like(ids))


def test_a_generation_config_may_be_given_by_its_place() -> None:
    model = make_model("llama")
    ids = tokens(1, 60)
    ids[0, :5] = 7
    config = transformers.GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=7)
    with prefix_cache(model, **SMALL) as cache:
        for reused in (0, 48):
            assert torch.equal(model.generate(ids, config, past_key_values=cache), model.generate(ids, config))
            assert (cache.last.prompt_tokens, cache.last.reused_tokens) == (55, reused)
        config.prefill_chunk_size = 8
        with pytest.raises(quire.Unsupported, match="prefill_chunk_size"):
            model.generate(ids, config, past_key_values=cache)


# ── directories and identities ───────────────────────────────────────────────────────────────────────────────────────


def test_a_directory_in_use_says_what_to_close(tmp_path: Any) -> None:
    model = make_model("llama")
    with prefix_cache(model, directory=tmp_path, **SMALL):
        with pytest.raises(quire.Unavailable, match="close the earlier cache first"):
            prefix_cache(model, directory=tmp_path, **SMALL)
    prefix_cache(model, directory=tmp_path, **SMALL).close()


def test_a_cache_that_cannot_be_opened_claims_no_directory(tmp_path: Any) -> None:
    model = make_model("llama")
    with pytest.raises(quire.InvalidArgument, match="page_tokens is 4"):
        prefix_cache(model, directory=tmp_path, page_tokens=4, **SMALL)
    prefix_cache(model, directory=tmp_path, **SMALL).close()


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{}"])
def test_a_directory_whose_description_is_damaged_is_refused(text: str, tmp_path: Any) -> None:
    (tmp_path / "model.json").write_text(text, encoding="utf-8")
    with pytest.raises(quire.Corrupt, match=r"model.json .*: delete it with the pages beside it"):
        prefix_cache(make_model("llama"), directory=tmp_path, **SMALL)


def test_what_changes_no_k_and_v_changes_no_identity(tmp_path: Any) -> None:
    model = make_model("llama")
    prefix_cache(model, directory=tmp_path / "pages", **SMALL).close()
    model.config.pad_token_id, model.config.use_cache = 5, False
    prefix_cache(model, directory=tmp_path / "pages", **SMALL).close()
    model.save_pretrained(tmp_path / "model")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    prefix_cache(again, directory=tmp_path / "pages", **SMALL).close()
    described = json.loads((tmp_path / "pages" / "model.json").read_text(encoding="utf-8"))
    assert described["model"] == "LlamaForCausalLM"


def test_an_identity_does_not_hide_another_configuration(tmp_path: Any) -> None:
    prefix_cache(make_model("llama"), directory=tmp_path, identity="v1", **SMALL).close()
    other = make_model("llama", rope_parameters=dict(rope_type="default", rope_theta=100.0))
    with pytest.raises(quire.InvalidArgument, match="another configuration"):
        prefix_cache(other, directory=tmp_path, identity="v1", **SMALL)
    with pytest.raises(quire.InvalidArgument, match="other weights"):
        prefix_cache(make_model("llama"), directory=tmp_path, identity="v2", **SMALL)


def test_weights_of_any_size_and_place_are_told_apart(tmp_path: Any) -> None:
    model = make_model("llama")
    model.register_buffer("scale", torch.ones(1, dtype=torch.float16))
    model.register_buffer("nothing", torch.ones(0))
    storage = torch.zeros(65)
    model.model.norm.weight = torch.nn.Parameter(storage[1:].copy_(model.model.norm.weight.detach()))
    prefix_cache(model, directory=tmp_path, **SMALL).close()
    prefix_cache(copy.deepcopy(model), directory=tmp_path, **SMALL).close()
    model.scale += 1
    with pytest.raises(quire.InvalidArgument, match="other weights"):
        prefix_cache(model, directory=tmp_path, **SMALL)


def test_nothing_is_warned_of_in_an_ordinary_call() -> None:
    model = make_model("gemma")
    with warnings.catch_warnings(), prefix_cache(model, **SMALL) as cache:
        warnings.simplefilter("error", UserWarning)
        same(model, tokens(1, 60), cache)
        assert cache.last.error == ""
