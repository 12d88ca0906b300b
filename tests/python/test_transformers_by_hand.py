# SPDX-License-Identifier: Apache-2.0
"""start(), forward passes and finish() by hand, in any order and with failures: what is remembered is right."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import Any

import pytest
from test_transformers import _WINDOW, after, generate, make_model, prefix_cache, same, tokens, torch

import quire

pytestmark = pytest.mark.needs_transformers

SMALL: dict[str, Any] = dict(device_bytes=8 << 20)


class Broken(Exception):
    pass


def break_at(model: Any, place: str) -> Any:
    def fail(*args: Any) -> None:
        raise Broken

    parts = {"begin": model.model.embed_tokens, "layer": model.model.layers[2], "head": model.lm_head}
    return parts[place].register_forward_pre_hook(fail)


def assert_right(model: Any, cache: Any, prompt: Any) -> None:
    """What the cache has of a prompt gives the logits that there are without it."""
    with torch.no_grad():
        reused = cache.start(prompt)
        got = model(prompt[:, reused:], past_key_values=cache).logits[:, -1]
        cache.finish()
        torch.testing.assert_close(got, model(prompt).logits[:, -1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_breaks_off_and_is_taken_off_nothing_wrong_is_remembered(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    model = make_model(kind)
    prompts = [tokens(50 + seed, draw.randrange(30, 70)) for seed in range(3)]
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        for _ in range(8):
            prompt = draw.choice(prompts)
            reused = cache.start(prompt)
            given = [prompt[:, reused:]]
            for _ in range(draw.randrange(1, 5)):
                place = draw.choice(["", "", "", "", "begin", "layer", "head"])
                hook = break_at(model, place) if place else None
                try:
                    model(given[-1], past_key_values=cache)
                except Broken:
                    pass
                except quire.InvalidArgument as error:
                    assert "broke off" in str(error)
                finally:
                    if hook is not None:
                        hook.remove()
                if draw.random() < 0.5:
                    try:
                        cache.crop(-draw.choice([1, 2, 5, cache.get_seq_length()]))
                    except quire.InvalidArgument as error:
                        assert "reach into a prefix" in str(error)
                given.append(draw.choice([draw.choice(prompts), tokens(draw.randrange(9), draw.randrange(1, 20))]))
            cache.finish()
            for prompt in prompts:
                assert_right(model, cache, prompt)


@pytest.mark.parametrize("place", ["layer", "head"])
def test_a_pass_that_broke_off_is_said_and_not_remembered(place: str) -> None:
    model = make_model("llama")
    a, b = tokens(1, 51), tokens(2, 48)
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        cache.start(a)
        model(a, past_key_values=cache)
        hook = break_at(model, place)
        with pytest.raises(Broken):
            model(tokens(3, 3), past_key_values=cache)
        hook.remove()
        cache.crop(-cache.get_seq_length())
        with pytest.raises(quire.InvalidArgument, match=r"broke off.*call start\(\) again"):
            model(b, past_key_values=cache)
        assert cache.finish() == 0
        assert cache.last.error == "a forward pass broke off"
        for prompt in (a, b):
            assert_right(model, cache, prompt)


def test_a_pass_that_did_nothing_can_be_tried_again() -> None:
    model = make_model("llama")
    prompt = tokens(1, 64)
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        cache.start(prompt)
        hook = break_at(model, "begin")
        with pytest.raises(Broken):
            model(prompt, past_key_values=cache)
        hook.remove()
        model(prompt, past_key_values=cache)
        assert cache.finish() == 64
        assert_right(model, cache, prompt)


@pytest.mark.parametrize("what", ["mask", "positions", "both in a dict"])
def test_what_tokens_see_is_checked_wherever_it_is_given(what: str) -> None:
    model = make_model("gemma" if what == "both in a dict" else "llama")
    prompt = tokens(1, 64)
    holes = torch.ones_like(prompt)
    holes[:, 5:25] = 0
    places = torch.arange(64)[None]
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        cache.start(prompt)
        if what == "mask":
            model(prompt, holes, past_key_values=cache)
        elif what == "positions":
            model(prompt, None, 3 * places, cache)
        else:
            causal = torch.ones(64, 64, dtype=torch.bool).tril()[None, None]
            masks = {"full_attention": causal, "sliding_attention": causal}
            model(prompt, attention_mask=masks, past_key_values=cache)
        assert cache.finish() == 0
        assert cache.last.error
        cache.start(prompt)
        model(prompt, torch.ones_like(prompt), places, cache)
        assert cache.finish() == 64
        assert_right(model, cache, prompt)


def test_tokens_behind_a_prefix_are_not_taken_for_the_prompt() -> None:
    model = make_model("llama")
    prompt = tokens(1, 52)
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache, max_new_tokens=1)
        reused = cache.start(prompt)
        assert reused == 48
        longer = after(prompt, 2, 60)
        logits = model(longer[:, reused:], past_key_values=cache).logits
        cache.finish()
        assert logits.shape[1] == 64
        torch.testing.assert_close(logits[:, -1], model(longer).logits[:, -1], rtol=1e-3, atol=1e-3)


def test_a_prefix_with_windows_is_not_shortened() -> None:
    model = make_model("gemma")
    prompt = tokens(1, 100)
    with torch.no_grad(), prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache, max_new_tokens=1)
        assert cache.start(prompt) == 96
        with pytest.raises(quire.InvalidArgument, match="6 tokens cannot be taken off.*shorter prompt"):
            cache.crop(-6)
        model(prompt[:, 96:], past_key_values=cache)
        cache.crop(-4)  # what was computed can be taken off
        logits = model(prompt[:, 96:], past_key_values=cache).logits
        torch.testing.assert_close(logits[:, -1], model(prompt).logits[:, -1], rtol=1e-3, atol=1e-3)
        assert cache.start(prompt[:, :_WINDOW]) == 16
        cache.crop(-6)  # all of what is before it is there


def test_a_model_in_training_is_refused() -> None:
    model = make_model("llama", attention_dropout=0.5)
    prompt = tokens(1, 64)
    with prefix_cache(model, **SMALL) as cache:
        model.train()
        with pytest.raises(quire.Unsupported, match=r"training mode.*model\.eval\(\)"):
            model.generate(prompt, past_key_values=cache, max_new_tokens=1)
        model.eval()
        same(model, prompt, cache)


def test_finish_needs_a_start() -> None:
    model = make_model("llama")
    prompt = tokens(1, 64)
    with prefix_cache(model, **SMALL) as cache:
        same(model, prompt, cache)
        published = cache.last.published_tokens
        with pytest.raises(quire.InvalidArgument, match=r"call start\(\) before finish\(\)"):
            cache.finish()
        assert cache.last.published_tokens == published


def test_a_second_threads_forward_pass_and_close_are_told_to_wait() -> None:
    model = make_model("llama")
    prompt = tokens(1, 64)
    refused: list[str] = []
    disturbing: list[threading.Thread] = []

    def disturb() -> None:
        for name, call in (("forward", lambda: model(prompt, past_key_values=cache)), ("close", cache.close)):
            with pytest.raises(quire.Unavailable, match="another thread is in a call"):
                call()
            refused.append(name)

    def during(*args: Any) -> None:
        if not disturbing:
            disturbing.append(threading.Thread(target=disturb))
            disturbing[0].start()
            disturbing[0].join()

    with prefix_cache(model, allow_hooks=True, **SMALL) as cache:
        hook = model.model.layers[1].register_forward_pre_hook(during)
        generate(model, prompt, cache)
        hook.remove()
        same(model, prompt, cache)
    assert refused == ["forward", "close"]


def test_a_cache_that_is_collected_while_another_is_made_takes_nothing_from_it(monkeypatch: Any) -> None:
    from quire.integrations import _generate

    class Collecting(weakref.WeakKeyDictionary):  # type: ignore[type-arg]
        def setdefault(self, key: Any, default: Any = None) -> Any:
            found = super().setdefault(key, default)
            gc.collect()
            return found

    model = make_model("llama")
    monkeypatch.setattr(_generate, "_open_caches", Collecting())
    old = prefix_cache(model, **SMALL)
    circle: list[Any] = [old]
    circle.append(circle)
    gc.disable()
    try:
        del old, circle
        with prefix_cache(model, **SMALL) as cache:
            same(model, tokens(1, 40), cache)
    finally:
        gc.enable()
