# SPDX-License-Identifier: Apache-2.0
"""What modules keep in plain attributes is part of what K and V depend on: noticed when somebody changes it, judged when
forward passes do."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

import quire
from test_transformers import after, generate, make_model, same, tokens

try:
    import torch
    import transformers
    from transformers.models.llama import modeling_llama

    from quire.integrations.transformers import prefix_cache
except ImportError:  # conftest.py says so
    torch = transformers = modeling_llama = prefix_cache = None  # type: ignore[assignment]

pytestmark = pytest.mark.needs_transformers

if torch is not None:

    class Scaled(torch.nn.Module):
        """A projection whose result is multiplied by what is found in an attribute, wherever that is."""

        def __init__(self, inner: Any, read: Any) -> None:
            super().__init__()
            self.inner = inner
            self.read = read

        def forward(self, states: Any) -> Any:
            return self.inner(states) * self.read(self)

    class Settings:
        """A plain object, as remote code has."""

        def __init__(self, scale: Any) -> None:
            self.scale = scale

    class Scales(dict):  # type: ignore[type-arg]
        """Looks things up in a way of its own."""

        def get(self, name: str) -> Any:  # type: ignore[override]
            return super().get(f"of {name}", 1.0)

    class Another(transformers.LlamaForCausalLM):
        """Of a class that no other test makes a model of."""

    class SlotSettings:
        __slots__ = ("scale",)

        def __init__(self, scale: Any) -> None:
            self.scale = scale


def scaled(read: Any, **attributes: Any) -> tuple[Any, Any]:
    """A model whose first layer's K depends on attributes of one of its modules, and that module."""
    model = make_model("llama")
    attention = model.model.layers[0].self_attn
    module = Scaled(attention.k_proj, read)
    for name, value in attributes.items():
        setattr(module, name, value)
    attention.k_proj = module
    return model.eval(), module


def _one(value: float = 1.0) -> Any:
    return torch.full((32,), value)


def _cases() -> dict[str, tuple[Any, dict[str, Any], Any]]:
    """How K is scaled, the attributes it is read from, and what somebody does to them."""
    return {
        "a number": (lambda m: m.scale, {"scale": 1.0}, lambda m: setattr(m, "scale", 3.0)),
        "a number of its own": (lambda m: m._scale, {"_scale": 1.0}, lambda m: setattr(m, "_scale", 3.0)),
        "a tensor": (lambda m: m.table, {"table": _one()}, lambda m: setattr(m, "table", _one(3.0))),
        "a tensor, written": (lambda m: m.table, {"table": _one()}, lambda m: m.table.mul_(3.0)),
        "a tensor, through data": (lambda m: m.table, {"table": _one()}, lambda m: m.table.data.mul_(3.0)),
        "tensors in a list": (lambda m: m.tables[0], {"tables": [_one()]}, lambda m: m.tables[0].mul_(3.0)),
        "another tensor in a list": (lambda m: m.tables[0], {"tables": [_one()]}, lambda m: m.tables.__setitem__(0, _one(3.0))),
        "tensors in a tuple": (lambda m: m.tables[0], {"tables": (_one(),)}, lambda m: m.tables[0].mul_(3.0)),
        "tensors in a dictionary": (lambda m: m.tables["k"], {"tables": {"k": _one()}}, lambda m: m.tables["k"].mul_(3.0)),
        "numbers in a dictionary": (lambda m: m.scales["k"], {"scales": {"k": 1.0}}, lambda m: m.scales.update(k=3.0)),
        "numbers in a dictionary of a class of its own": (
            lambda m: m.scales.get("k"), {"scales": Scales({"of v": 1.0})}, lambda m: m.scales.update({"of k": 3.0})
        ),
        "numbers in a list": (lambda m: m.scales[0], {"scales": [1.0]}, lambda m: m.scales.__setitem__(0, 3.0)),
        "numbers deep inside": (
            lambda m: m.scales["k"][0][1], {"scales": {"k": [(0, 1.0)]}}, lambda m: m.scales["k"].__setitem__(0, (0, 3.0))
        ),
        "a name in a set": (
            lambda m: 3.0 if "big" in m.flags else 1.0, {"flags": set()}, lambda m: m.flags.add("big")
        ),
        "an object": (lambda m: m.settings.scale, {"settings": Settings(1.0)}, lambda m: setattr(m.settings, "scale", 3.0)),
        "an object in an object": (
            lambda m: m.settings.scale.scale, {"settings": Settings(Settings(1.0))},
            lambda m: setattr(m.settings.scale, "scale", 3.0),
        ),
        "an object with slots": (
            lambda m: m.settings.scale, {"settings": SlotSettings(1.0)}, lambda m: setattr(m.settings, "scale", 3.0)
        ),
        "a tensor in an object": (
            lambda m: m.settings.scale, {"settings": Settings(_one())}, lambda m: m.settings.scale.mul_(3.0)
        ),
        "an attribute that comes later": (
            lambda m: getattr(m, "scale", 1.0), {}, lambda m: setattr(m, "scale", 3.0)
        ),
        "an entry that comes later": (
            lambda m: m.scales.get("k", 1.0), {"scales": {}}, lambda m: m.scales.update(k=3.0)
        ),
        "an attribute that goes": (
            lambda m: getattr(m, "scale", 3.0), {"scale": 1.0}, lambda m: delattr(m, "scale")
        ),
        "a function": (lambda m: m.function(), {"function": lambda: 1.0}, lambda m: setattr(m, "function", lambda: 3.0)),
        "what a function closes over": (
            lambda m: m.function(), {"function": _closing_over([1.0])}, lambda m: m.function.__closure__[0].cell_contents.__setitem__(0, 3.0)
        ),
        "a bound method": (
            lambda m: m.bound(), {"bound": Holder(1.0).get}, lambda m: setattr(m.bound.__self__, "value", 3.0)
        ),
        "a module in a list": (
            lambda m: m.others[0].weight[0], {"others": [_weighted()]}, lambda m: m.others[0].weight.data.mul_(3.0)
        ),
        "an array of NumPy's": (lambda m: float(m.array[0]), {"array": _array()}, lambda m: m.array.__setitem__(0, 3.0)),
    }


def _closing_over(values: list[float]) -> Any:
    return lambda: values[0]


class Holder:
    def __init__(self, value: float) -> None:
        self.value = value

    def get(self) -> float:
        return self.value


def _weighted() -> Any:
    module = torch.nn.Linear(32, 1)
    with torch.no_grad():
        module.weight.fill_(1.0)
    return module


def _array() -> Any:
    import numpy

    return numpy.ones(3)


_NAMES = [
    "a number", "a number of its own", "a tensor", "a tensor, written", "a tensor, through data", "tensors in a list",
    "another tensor in a list", "tensors in a tuple", "tensors in a dictionary", "numbers in a dictionary",
    "numbers in a dictionary of a class of its own", "numbers in a list",
    "numbers deep inside", "a name in a set", "an object", "an object in an object", "an object with slots",
    "a tensor in an object", "an attribute that comes later", "an entry that comes later", "an attribute that goes", "a function",
    "what a function closes over", "a bound method", "a module in a list", "an array of NumPy's",
]


@pytest.mark.parametrize("name", _NAMES)
def test_whatever_k_depends_on_is_noticed(name: str, tmp_path: pathlib.Path) -> None:
    read, attributes, change = _cases()[name]
    model, module = scaled(read, **attributes)
    prompt = after(tokens(1, 60), 2, 7)
    before = generate(model, prompt, max_new_tokens=4)
    with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path) as cache:
        same(model, prompt, cache, max_new_tokens=4)
        same(model, prompt, cache, max_new_tokens=4)
        assert cache.last.reused_tokens == 64
        with torch.no_grad():
            change(module)
        assert not torch.equal(generate(model, prompt, max_new_tokens=4), before), "nothing changed: the test could not fail"
        with pytest.raises(quire.InvalidArgument, match=r"has changed since.*k_proj|has changed since.*attributes"):
            generate(model, prompt, cache, max_new_tokens=4)
    with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path) as cache:  # as the next process does
        same(model, prompt, cache, max_new_tokens=4)
        assert cache.last.reused_tokens == 0


def test_the_next_process_finds_what_nobody_has_changed(tmp_path: pathlib.Path) -> None:
    prompt = after(tokens(1, 60), 2, 7)
    for reused in (0, 64):
        model, _ = scaled(_read_all, table=_one(), scales={"k": [1.0, (2, 3)]}, settings=Settings(1.0), flags={"a", "b"})
        with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path) as cache:
            same(model, prompt, cache, max_new_tokens=4)
            assert cache.last.reused_tokens == reused


def _read_all(module: Any) -> Any:
    return module.table * module.scales["k"][0] * module.settings.scale


def test_an_attribute_that_is_allowed_may_change() -> None:
    model, module = scaled(lambda m: 1.0, note="first", notes={"a": [1]})
    prompt = after(tokens(1, 60), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20, allow_changes=["model.layers.*.self_attn.k_proj.note*"]) as cache:
        same(model, prompt, cache)
        module.note = "second"
        module.notes["a"].append(2)
        module.note_that_comes_later = object()
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 64
        module.other = 1
        with pytest.raises(quire.InvalidArgument, match=r"k_proj\.other was not there .*allow_changes=\['model\.layers\.0\.self_attn\.k_proj\.other'\]"):
            generate(model, prompt, cache)


def test_what_nobody_can_look_into_is_refused_unless_it_is_allowed() -> None:
    model, _ = scaled(lambda m: 1.0, engine=iter([1, 2]))
    with pytest.raises(quire.Unsupported, match=r"k_proj\.engine is a list_iterator.*allow_changes="):
        prefix_cache(model, device_bytes=8 << 20)
    with prefix_cache(model, device_bytes=8 << 20, allow_changes=["*.engine"]) as cache:
        same(model, after(tokens(1, 60), 2, 7), cache)


@pytest.mark.parametrize("patterns", ["model.layers", [1], 7])
def test_allowed_changes_are_a_list_of_strings(patterns: Any) -> None:
    with pytest.raises(TypeError):
        prefix_cache(make_model("llama"), device_bytes=8 << 20, allow_changes=patterns)


# What forward passes change themselves.

if torch is not None:

    class Grown(torch.nn.Module):
        """K times a table that grows with the text, as remote code keeps its cosines. The table is not rotated by place
        here: what matters is that it grows, and that its old part stays."""

        def __init__(self, inner: Any, kind: str) -> None:
            super().__init__()
            self.inner = inner
            self.kind = kind
            self.longest = 0
            self.calls = 0
            if kind == "buffer":
                self.register_buffer("table", torch.ones(1, 32), persistent=False)
            else:
                self.table = torch.ones(1, 32)
            self.by_length: dict[int, Any] = {}
            self.last_seen: Any = None

        def _grow(self, count: int) -> None:
            self.longest = count
            table = torch.linspace(0.5, 1.5, 32)[None].expand(count, 32).clone()
            if self.kind == "buffer":
                self.register_buffer("table", table, persistent=False)
            elif self.kind == "dictionary":
                self.by_length[count] = table
            else:
                self.table = table
            if self.kind == "dynamic":  # all of it is another one for longer texts
                self.table = table * count

        def forward(self, states: Any) -> Any:
            if self.kind == "counter":
                self.calls += 1
                return self.inner(states)
            if self.kind == "scaled by a counter":
                self.calls += 1
                return self.inner(states) * self.calls
            if self.kind == "last seen":
                self.last_seen = states.sum(dim=-1)
                return self.inner(states)
            count = states.shape[1]
            if count > self.longest:
                self._grow(count)
            table = self.by_length[self.longest] if self.kind == "dictionary" else self.table
            return self.inner(states) * table[:count]


def grown(kind: str) -> tuple[Any, Any]:
    model = make_model("llama")
    attention = model.model.layers[0].self_attn
    attention.k_proj = Grown(attention.k_proj, kind)
    return model.eval(), attention.k_proj


@pytest.mark.parametrize("is_used_before", [False, True])
@pytest.mark.parametrize("kind", ["buffer", "attribute", "dictionary", "counter"])
def test_what_forward_passes_change_is_no_reason(kind: str, is_used_before: bool) -> None:
    model, _ = grown(kind)
    document = tokens(1, 60)
    if is_used_before:
        generate(model, document)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        for seed, count, reused in ((2, 7, 0), (3, 9, 48), (4, 200, 48), (5, 300, 48)):
            prompt = after(document, seed, count)
            same(model, prompt, cache)  # the call without the cache changes them too
            assert cache.last.reused_tokens == reused and cache.last.error == ""
        same(model, after(document, 2, 7), cache)
        assert cache.last.reused_tokens == 64


@pytest.mark.parametrize("kind", ["buffer", "attribute"])
def test_a_table_that_somebody_writes_is_noticed(kind: str) -> None:
    for change in (lambda m: m.table.mul_(2.0), lambda m: setattr(m, "table", m.table * 2), lambda m: m.table[40:].mul_(3.0),
                   lambda m: setattr(m, "table", torch.cat([m.table[:40], m.table[40:] * 3]))):
        model, module = grown(kind)
        prompt = after(tokens(1, 60), 2, 7)
        with prefix_cache(model, device_bytes=8 << 20) as cache:
            same(model, prompt, cache)
            same(model, prompt, cache)
            change(module)
            with pytest.raises(quire.InvalidArgument, match=r"has changed since.*k_proj\.table"):
                generate(model, prompt, cache)


def test_a_table_that_is_another_one_for_longer_texts_is_noticed() -> None:
    model, _ = grown("dynamic")
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        prompt = after(tokens(1, 60), 2, 7)
        generate(model, prompt, cache)
        assert "k_proj.table" in cache.last.error and cache.last.published_tokens == 0
        with pytest.raises(quire.InvalidArgument, match=r"k_proj\.table was written to, or is another tensor"):
            generate(model, prompt, cache)


def test_k_that_depends_on_what_forward_passes_change_is_refused() -> None:
    model, _ = grown("scaled by a counter")
    with pytest.raises(quire.Unsupported, match=r"not the same|change with the tokens"):
        prefix_cache(model, device_bytes=8 << 20)


def test_a_tensor_that_each_forward_pass_leaves_is_refused_unless_it_is_allowed() -> None:
    model, _ = grown("last seen")
    prompt = after(tokens(1, 60), 2, 7)
    with pytest.raises(quire.Unsupported, match=r"k_proj\.last_seen changes in the model's own forward passes.*allow_changes="):
        prefix_cache(model, device_bytes=8 << 20)
    with prefix_cache(model, device_bytes=8 << 20, allow_changes=["*.last_seen"]) as cache:
        same(model, prompt, cache)
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 64


def test_a_length_that_somebody_writes_is_judged_by_what_it_does() -> None:
    model, module = grown("attribute")
    prompt = after(tokens(1, 60), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)
        module.longest = 0  # the next pass makes the table anew, and shorter
        same(model, prompt, cache)
        assert cache.last.reused_tokens == 64


# Code.


def test_other_code_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rotary = modeling_llama.apply_rotary_pos_emb

    def turned(q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        q, k = rotary(q, k, *args, **kwargs)
        return q, -k

    def seeing_all(inputs_embeds: Any, past_key_values: Any, **kwargs: Any) -> Any:
        count = inputs_embeds.shape[1]
        return torch.zeros(1, 1, count, count + past_key_values.get_seq_length())

    patches = [
        lambda patch: patch.setattr(modeling_llama, "apply_rotary_pos_emb", turned),
        # Called by forward() of the model inside, which is decorated more than once.
        lambda patch: patch.setattr(modeling_llama, "create_causal_mask", seeing_all),
        lambda patch: patch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: x),
        lambda patch: patch.setattr(modeling_llama.LlamaRMSNorm, "__call__", lambda self, x: x, raising=False),
        lambda patch: patch.setitem(
            transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", modeling_llama.eager_attention_forward
        ),
    ]
    prompt = after(tokens(1, 60), 2, 7)
    for change in patches:
        model = make_model("llama")
        with prefix_cache(model, device_bytes=8 << 20) as cache:
            same(model, prompt, cache)
            with monkeypatch.context() as patch:
                change(patch)
                with pytest.raises(quire.InvalidArgument, match="has changed since"):
                    generate(model, prompt, cache)
            same(model, prompt, cache)
            assert cache.last.reused_tokens == 64


def test_models_of_other_classes_are_no_reason(tmp_path: pathlib.Path) -> None:
    # transformers keeps lists of the classes that models were made of.
    prompt = after(tokens(1, 60), 2, 7)
    config = make_model("llama").config
    for kind in (Another, type("YetAnother", (Another,), {})):
        model = make_model("llama")
        with prefix_cache(model, device_bytes=8 << 20, directory=tmp_path) as cache:
            same(model, prompt, cache)
            assert cache.last.reused_tokens == (0 if kind is Another else 64)
            kind(config)
            same(model, prompt, cache)
            assert cache.last.reused_tokens == 64


def test_a_forward_pass_that_is_bound_to_one_module_is_noticed() -> None:
    model = make_model("llama")
    prompt = after(tokens(1, 60), 2, 7)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, prompt, cache)
        layer = model.model.layers[1].mlp
        layer.forward = types.MethodType(lambda self, states: states, layer)
        with pytest.raises(quire.Unsupported, match="forward pass of its own"):
            generate(model, prompt, cache)
