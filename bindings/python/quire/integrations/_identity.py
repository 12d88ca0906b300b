# SPDX-License-Identifier: Apache-2.0
"""Everything that K and V of a model depend on besides tokens and their places, and whether it is still the same.

A prefix cache that was made for some weights must not serve others. Three things are told apart:

- The model itself: its classes, configuration, weights, buffers, and whatever its modules keep in attributes. They name
  the pages, and a directory belongs to them. ModelState.check() raises when any of them has changed since the cache was
  made. What forward passes change themselves is judged: a table may grow, and anything else must leave K and V of a short
  text as they were.
- Adapters (PEFT): which are active, with their weights and scales. They may change from call to call, and each set of them
  has pages of its own.
- What torch is told for all models: the element type of new tensors, how exactly it multiplies, which kernels it may use.
  It may change from call to call as well.
- What nobody can look into: hooks, replaced forward passes, weights that are elsewhere. These are refused.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import quire
from quire.integrations._attributes import BESIDES, OF_TORCH, Attributes, Change, is_allowed, join, written_buffers
from quire.integrations._code import plain_class, text_of_code
from quire.integrations._model import PROBES, is_same, run_probe

# How many elements of each tensor are compared at every call: of a tensor that was written through .data, torch counts
# no version.
_SAMPLED_ELEMENTS = 64
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_PRIMITIVES = (bool, int, float, str, type(None))
# What modules with adapters keep that K and V do not depend on: which adapters are there besides the active ones.
_NO_SETTINGS = {"_active_adapter", "_disable_adapters", "merged_adapters", "_adapters", "_caches", "kwargs"}


def _sum_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Two sums over all bits of a tensor, the same on every device."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 8:  # words are read where words begin
        flat = flat.clone()
    first = second = 0
    for piece in flat.split(1 << 26):
        word_count = piece.numel() // 8
        if word_count:
            words = piece[: word_count * 8].view(torch.int64)
            places = torch.arange(1, 2 * word_count, 2, dtype=torch.int64, device=words.device)
            first = (first * 31 + int(words.sum())) & ((1 << 64) - 1)
            second = (second * 37 + int((words * places).sum())) & ((1 << 64) - 1)
        for byte in piece[word_count * 8 :].tolist():
            first = (first * 257 + byte) & ((1 << 64) - 1)
    return first, second


def digest_of(tensors: list[tuple[str, Any]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda entry: entry[0]):
        if not isinstance(tensor, torch.Tensor) or tensor.is_quantized:
            raise quire.Unsupported(
                f"{name} is no plain tensor but a {type(tensor).__name__}: prefix_cache() cannot tell such weights from "
                "others; use the model as it was before it was quantised"
            )
        try:
            sums = _sum_of(tensor)
        except (RuntimeError, NotImplementedError) as error:
            raise quire.Unsupported(
                f"the bits of {name}, a {type(tensor).__name__}, cannot be summed up ({error}): give prefix_cache() an "
                "identity that names these weights"
            ) from None
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {sums}".encode())
    return digest.hexdigest()


def _relevant(config: Any) -> Any:
    if isinstance(config, dict):
        return {
            str(key): _relevant(value)
            for key, value in config.items()
            if not str(key).startswith("_") and not str(key).endswith(("token_id", "token_ids")) and key not in BESIDES
        }
    return config


def configuration_of(model: Any) -> str:
    """Names the class and the configuration of a model."""
    text = json.dumps(_relevant(model.config.to_dict()), sort_keys=True, default=str)
    return hashlib.sha256(f"{type(model).__name__} {text}".encode()).hexdigest()


def _implementations_of(model: Any) -> dict[str, Any]:
    """Which kernels compute attention and experts: they round differently. Somebody may give a name another function."""
    config = model.config.get_text_config(decoder=True)
    attention = getattr(config, "_attn_implementation", None)
    return {
        "attention": attention,
        "experts": getattr(config, "_experts_implementation", None),
        "attention function": ALL_ATTENTION_FUNCTIONS.get(attention, None),
        "mask function": ALL_MASK_ATTENTION_FUNCTIONS.get(attention, None),
    }


def _in_force(precision: str) -> str:
    """"none" stands for what is said of all kernels, and there for full precision."""
    for said in (precision, torch.backends.fp32_precision):
        if said != "none":
            return said
    return "ieee"


_SETTINGS_OF_TORCH: tuple[Callable[[], Any], ...] = (
    torch.get_default_dtype,
    torch.get_float32_matmul_precision,
    torch.are_deterministic_algorithms_enabled,
    lambda: torch.backends.cudnn.allow_tf32,
    lambda: torch.backends.cuda.matmul.allow_tf32,
    lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    lambda: _in_force(torch.backends.cuda.matmul.fp32_precision),
    lambda: _in_force(torch.backends.mkldnn.matmul.fp32_precision),
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    torch._C._get_mkldnn_enabled,
)


def settings_of_torch() -> str:
    """What torch is told for all models that its results depend on."""
    values = []
    for setting in _SETTINGS_OF_TORCH:
        try:
            values.append(str(setting()))
        except (AttributeError, RuntimeError):  # older, or told by its other interface: then that one says it
            values.append("-")
    return " ".join(values)


# Modules.


def _holds_adapters(module: Any) -> bool:
    """A module that PEFT has put in the place of another one."""
    return hasattr(type(module), "adapter_layer_names")


def _replaced_module(module: Any) -> tuple[str, Any]:
    """Of a module that holds adapters: the one that it was put in the place of."""
    children = module.__dict__["_modules"]
    name = "base_layer" if "base_layer" in children else "original_module"
    return name, children.get(name)


def _name_without_adapters(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("base_layer", "original_module"))


def _own_and_adapted(model: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """All modules of the model itself, and all that hold adapters, by the names that they would have without adapters."""
    own: dict[int, tuple[str, Any]] = {}
    adapted: dict[int, tuple[str, Any]] = {}
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if module is None or id(module) in own or id(module) in adapted:
            continue
        if _holds_adapters(module):
            adapted[id(module)] = (name, module)
            waiting.append((name, _replaced_module(module)[1]))
        else:
            own[id(module)] = (name, module)
            children = module.__dict__["_modules"].items()
            waiting.extend((f"{name}.{child}" if name else child, part) for child, part in reversed(children))
    return list(own.values()), list(adapted.values())


def _tensors_in(module: Any) -> Iterator[tuple[str, Any]]:
    """Its own parameters and buffers, without those of the modules in it."""
    for kind in ("_parameters", "_buffers"):
        for name, tensor in module.__dict__[kind].items():
            if tensor is not None:
                yield name, tensor


def _is_of_transformers(hook: Any) -> bool:
    """Hooks that capture outputs: K and V do not depend on them."""
    return str(getattr(hook, "__module__", "")).startswith("transformers.")


class CannotShare(Exception):
    """This one call may neither use nor leave K and V. It is not refused, because PEFT, inside whose generate() it runs,
    leaves its hooks in the model when that raises."""


def _refuse_hooks(name: str, module: Any, allow_hooks: bool) -> None:
    what = name or "the model"
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        for hook in module.__dict__[kind].values():
            if str(getattr(getattr(hook, "func", None), "__module__", "")).startswith("peft."):
                instead = ": use set_adapter() instead" if "adapter_names" in hook.keywords else ""
                raise CannotShare(
                    f"{what} chooses adapters by row or by token for this call (PEFT's {', '.join(hook.keywords)}){instead}"
                )
            if not allow_hooks and not _is_of_transformers(hook):
                raise quire.Unsupported(
                    f"{what} has a hook ({getattr(hook, '__qualname__', type(hook).__name__)}), which may change K and V "
                    "without a trace: remove it; or, when it only looks, make the cache with "
                    "prefix_cache(model, allow_hooks=True)"
                )


def _refuse_global_hooks() -> None:
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        raise quire.Unsupported(
            "torch has forward hooks for all modules (register_module_forward_hook), which may change K and V without a "
            "trace: remove them; or, when they only look, make the cache with prefix_cache(model, allow_hooks=True)"
        )


def refuse_training(name: str, module: Any) -> None:
    if module.training:
        raise quire.Unsupported(
            f"{name or 'the model'} is in training mode, in which K and V may depend on chance: call model.eval() first"
        )


def _is_compiled_of(function: Any, module: Any, plain: Any) -> bool:
    """torch.compile() of this method of this module."""
    method = getattr(function, "_torchdynamo_orig_callable", None)
    return getattr(method, "__self__", None) is module and getattr(method, "__func__", None) is plain


def _refuse_replaced_forward(name: str, module: Any, allowed: Iterable[str]) -> None:
    what = name or "the model"
    hook = module.__dict__.get("_hf_hook")
    if hook is not None:  # accelerate's
        if getattr(hook, "offload", True):
            raise quire.Unsupported(
                f"the weights of {what} are offloaded ({type(hook).__name__}), so that nobody can tell whether they are "
                "still the same: load the model without offloading"
            )
        return  # it moves inputs to the device
    for attribute, plain, said in (
        ("forward", type(module).forward, "a forward pass"), ("_compiled_call_impl", torch.nn.Module._call_impl, "a call")
    ):
        function = module.__dict__.get(attribute)
        path = join(name, attribute)
        if function is None or _is_compiled_of(function, module, plain) or is_allowed(path, allowed):
            continue
        raise quire.Unsupported(
            f"{what} has {said} of its own in the place of its class's, which may change K and V without a trace: write it as "
            f"a class; or, when it computes the same, make the cache with prefix_cache(model, allow_changes=[{path!r}])"
        )


def _refuse_unknown(name: str, module: Any, allow_hooks: bool, allowed: Iterable[str]) -> None:
    if module._forward_hooks or module._forward_pre_hooks:
        _refuse_hooks(name, module, allow_hooks)
    _refuse_replaced_forward(name, module, allowed)


def refuse_unknown_parts(model: Any, *, allow_hooks: bool, allow_changes: Iterable[str]) -> None:
    """What prefix_cache() could not tell the identity of, before anything of the model runs."""
    own, adapted = _own_and_adapted(model)
    for name, module in own + adapted:
        _refuse_unknown(name, module, allow_hooks, allow_changes)
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):  # the packed weights of a quantised module
            digest_of([(name, value)])


def _sample_of(tensors: list[tuple[str, Any]]) -> bytes:
    """A stretch from the middle of each tensor, in one copy for each type of element."""
    pieces: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for _, tensor in tensors:
        if type(tensor) in _PLAIN_TENSORS and tensor.is_contiguous():
            flat = tensor.detach().view(-1)
            first = max(0, flat.numel() // 2 - _SAMPLED_ELEMENTS // 2)
            piece = flat[first : first + _SAMPLED_ELEMENTS]
            pieces.setdefault((piece.device, piece.dtype), []).append(piece)
    return b"".join(torch.cat(some).view(torch.uint8).cpu().numpy().tobytes() for some in pieces.values())


def _refuse_tensor(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type == "meta":
        raise quire.Unsupported(
            f"{name} has no data (it is on torch's meta device, as offloaded weights are): load the model without offloading"
        )
    if tensor.is_inference():
        raise quire.Unsupported(
            f"{name} was made under torch.inference_mode(), so that torch does not count its changes: make or load the model "
            "outside of it"
        )


def _version_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Changes when torch writes to the tensor, or gives it other memory."""
    return tensor.data_ptr() if type(tensor) in _PLAIN_TENSORS else 0, tensor._version


def _kind_of(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


# Adapters.


def _plain(value: Any, active: list[str]) -> Any:
    """A setting in plain words; of settings by adapter, those of active ones."""
    if isinstance(value, dict):
        return {str(key): _plain(entry, active) for key, entry in sorted(value.items(), key=str) if str(key) in active}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, active) for entry in value]
    return value if type(value) in _PRIMITIVES else type(value).__qualname__


def _active_adapters(module: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Settings and tensors of the adapters that take part in this module's forward pass; None when there are none."""
    active = module._active_adapter
    active = [active] if isinstance(active, str) else list(active)
    merged = list(module.merged_adapters)
    if module._disable_adapters:
        return None, []
    replaced, _ = _replaced_module(module)
    tensors = list(_tensors_in(module))
    is_there = bool(tensors) or bool(merged)
    for name, child in module.__dict__["_modules"].items():
        if name == replaced or child is None:
            continue
        parts = {key: child[key] for key in active if key in child} if hasattr(child, "keys") else {"": child}
        for key, part in parts.items():
            is_there = True
            if isinstance(part, torch.Tensor):
                tensors.append((f"{name}.{key}", part))
            elif isinstance(part, torch.nn.Module):
                tensors += [(f"{name}.{key}.{inner}", tensor) for inner, tensor in part.named_parameters()]
                tensors += [(f"{name}.{key}.{inner}", tensor) for inner, tensor in part.named_buffers()]
    if not is_there:
        return None, []
    for name, value in module.__dict__.items():
        if name not in OF_TORCH:
            entries = value.items() if isinstance(value, dict) else (("", value),)
            tensors += [(f"{name}.{key}", part) for key, part in entries if isinstance(part, torch.Tensor) and key in ("", *active)]
    settings = {
        name: _plain(value, active)
        for name, value in sorted(module.__dict__.items())
        if name not in OF_TORCH and name not in _NO_SETTINGS
    }
    return (type(module).__qualname__, active, merged, settings), tensors


class _SeenModule:
    """A module as it was when the cache was made. It is not held: the model may go before the cache."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = weakref.ref(module)
        self.kind = plain_class(module)
        self.children = [id(child) for child in module.__dict__["_modules"].values()]
        self.written = written_buffers(module)  # which are looked at as attributes are
        tensors = list(self.tensors_in(module))
        for part, tensor in tensors:
            _refuse_tensor(join(name, part), tensor)
        self.tensors = [(part, weakref.ref(tensor), _version_of(tensor), _kind_of(tensor)) for part, tensor in tensors]

    def tensors_in(self, module: Any) -> Iterator[tuple[str, Any]]:
        for part, tensor in _tensors_in(module):
            if part not in self.written:
                yield part, tensor

    def find_change(self, module: Any) -> str | None:
        """What is not as it was, in words."""
        held = module.__dict__
        if plain_class(module) is not self.kind:
            return f"{self.name or 'the model'} is of another class, with another forward()"
        if [id(child) for child in held["_modules"].values()] != self.children:
            return f"{self.name or 'the model'} has other modules in it"
        tensors = list(self.tensors_in(module))
        if [part for part, _ in tensors] != [part for part, *_ in self.tensors]:
            return f"{self.name or 'the model'} has other parameters or buffers"
        for (part, tensor), (_, reference, version, kind) in zip(tensors, self.tensors):
            if reference() is not tensor or _version_of(tensor) != version:
                is_of_a_kind = _kind_of(tensor) == kind
                how = "was written to, or is another tensor" if is_of_a_kind else f"was {kind} and is {_kind_of(tensor)}"
                return f"{join(self.name, part)} {how}"
        return None


class ModelState:
    """A model as it was when the cache was made."""

    def __init__(
        self, model: Any, identity: str | None, *, allow_hooks: bool, allow_changes: Iterable[str], check_all_weights: bool
    ) -> None:
        self._allow_hooks = allow_hooks
        own, adapted = _own_and_adapted(model)
        self._allowed = tuple(allow_changes)
        self._modules = [_SeenModule(name, module) for name, module in own]
        self._adapted = [(name, weakref.ref(module), id(_replaced_module(module)[1])) for name, module in adapted]
        self._adapters: dict[Any, str] = {}  # their names, by what was seen of them
        self._attributes = Attributes(own, allow_changes)
        self._watch_passes(model)
        self._attribute_sample = _sample_of(self._attributes.tensors())
        weights = self._weights()
        self._sample = _sample_of(weights)
        # Buffers that are not saved, such as the frequencies of RoPE, follow from the configuration unless somebody has
        # changed them by hand: they are part of the key, and not of what a directory belongs to.
        saved = {_name_without_adapters(name) for name in model.state_dict()}
        self.identity = identity
        if identity is None:
            self.identity = digest_of([entry for entry in weights if entry[0] in saved])
        self._check_all_weights = check_all_weights
        self._all_sums = digest_of(weights + self._attributes.tensors()) if check_all_weights else None
        self.configuration = configuration_of(model)
        self._implementations = _implementations_of(model)
        kernels = sorted((name, text_of_code(what) if callable(what) else what) for name, what in self._implementations.items())
        others = digest_of([entry for entry in weights if entry[0] not in saved] + self._attributes.tensors())
        self.details = hashlib.sha256(f"{self._attributes.text} {kernels} {others}".encode()).hexdigest()

    def _watch_passes(self, model: Any) -> None:
        """Learns what forward passes change, and that K and V do not depend on it."""
        changed: dict[str, Change] = {}
        results = []
        for text in PROBES:
            results.append(run_probe(model, text))
            for seen in self._modules:
                module = seen.module()
                written = seen.find_change(module) if module is not None else None
                if written is not None:
                    raise quire.Unsupported(
                        f"{written}, by the model's own forward passes (as with PEFT's target_parameters): nobody could tell "
                        "that from other weights; merge the adapter, or run the model without a prefix cache"
                    )
            changes = self._attributes.changes()
            for change in changes:
                if change.is_of_tensor and not change.is_growth:
                    raise quire.Unsupported(
                        f"{change.path} changes in the model's own forward passes, and nobody can tell whether K and V depend "
                        f"on it: when they do not, make the cache with {_option(change)}"
                    )
                changed.setdefault(change.path, change)
            if changes:
                self._attributes.learn(changes)
                self._attributes.look()
        self._reference = results[0], self.name_adapters_or_none()
        self._settings = settings_of_torch()
        if not is_same(results[0], results[-1]):
            what = f", which changes {', '.join(changed)}" if changed else ""
            raise quire.Unsupported(
                f"K and V of a text are not the same the next time that {type(model).__name__} computes them{what}: no prefix "
                "can be used again; run it without a prefix cache"
            )

    def name_adapters_or_none(self) -> str | None:
        try:
            return self.name_adapters()
        except (CannotShare, quire.Error):
            return None

    def _check_attributes(self, model: Any) -> None:
        changes = self._attributes.changes()
        unclear = []
        for change in changes:
            if not change.is_own:
                raise _changed(f"{change} (when K and V do not depend on it, make the cache with {_option(change)})")
            if change.is_growth:
                continue
            if change.is_of_tensor:
                raise _changed(
                    f"{change}; the model's own forward passes write it, and nobody can tell whether it was they (when K and "
                    f"V do not depend on it, make the cache with {_option(change)})"
                )
            unclear.append(change)
        if unclear:
            reference, adapters = self._reference
            is_known = self.name_adapters_or_none() == adapters and settings_of_torch() == self._settings
            if not is_known or not is_same(reference, run_probe(model, PROBES[0])):
                raise _changed(
                    f"{unclear[0]}, and K and V of a text are others than they were"
                    if is_known
                    else f"{unclear[0]}, and with other adapters or settings of torch than at first nobody can tell whether K "
                    f"and V depend on it (when they do not, make the cache with {_option(unclear[0])})"
                )
        if changes:
            self._attributes.look()
            self._attribute_sample = _sample_of(self._attributes.tensors())
        elif _sample_of(self._attributes.tensors()) != self._attribute_sample:
            raise _changed("tensors in attributes have other values (they were written through .data)")

    def _weights(self) -> list[tuple[str, Any]]:
        """Parameters and buffers of the model itself."""
        return [
            (join(seen.name, part), tensor)
            for seen in self._modules
            if (module := seen.module()) is not None
            for part, tensor in seen.tensors_in(module)
        ]

    def check(self, model: Any) -> str:
        """Raises when the model is not as it was. Gives a name of its active adapters; "" when there are none.

        CannotShare: it is, and this call is to run on its own.
        """
        if not self._allow_hooks:
            _refuse_global_hooks()
        for seen in self._modules:
            module = seen.module()
            if module is None:
                raise _changed(f"{seen.name} is gone")
            refuse_training(seen.name, module)
            _refuse_unknown(seen.name, module, self._allow_hooks, self._allowed)
            change = seen.find_change(module)
            if change is not None:
                raise _changed(change)
        weights = self._weights()
        if _sample_of(weights) != self._sample:
            raise _changed("weights have other values (they were written through .data, or an adapter was merged)")
        self._check_attributes(model)
        if self._check_all_weights and digest_of(weights + self._attributes.tensors()) != self._all_sums:
            raise _changed("a weight or a buffer has other values")
        if _implementations_of(model) != self._implementations:
            raise _changed("attention or experts are computed by another implementation")
        return self.name_adapters()

    def name_adapters(self) -> str:
        """Names the active adapters; "" when there are none. CannotShare as check()."""
        adapted = []
        for name, reference, replaced in self._adapted:
            module = reference()
            if module is None or id(_replaced_module(module)[1]) != replaced:
                raise _changed(f"{name} has another module in it")
            _refuse_unknown(name, module, self._allow_hooks, self._allowed)
            for part in module.modules():
                if part is not _replaced_module(module)[1]:
                    refuse_training(name, part)
            if module._disable_adapters and list(module.merged_adapters):
                raise CannotShare(f"{name} has merged adapters that are disabled: PEFT takes them out during the call")
            adapted.append((name, module))
        seen, tensors = [], []
        for name, module in adapted:
            settings, parts = _active_adapters(module)
            if settings is not None:
                seen.append((name, settings))
                tensors += [(f"{name}.{part}", tensor) for part, tensor in parts]
        if not seen:
            return ""
        for name, tensor in tensors:
            _refuse_tensor(name, tensor)
        versions = [(id(tensor), _version_of(tensor)) for _, tensor in tensors]
        key = (repr(seen), tuple(versions), _sample_of(tensors))
        if key not in self._adapters:
            digest = hashlib.sha256(f"{seen!r} {digest_of(tensors)}".encode())
            self._adapters = {key: digest.hexdigest()}  # of the last ones only: the key holds addresses that come again
        return self._adapters[key]


def _option(change: Change) -> str:
    return f"prefix_cache(model, allow_changes=[{change.path!r}])"


def _changed(what: str) -> quire.Error:
    return quire.InvalidArgument(
        f"the model has changed since prefix_cache(model) was made, so that what the cache holds is of another one: {what}; "
        "close the cache and make a new one"
    )
