# SPDX-License-Identifier: Apache-2.0
"""What the layers of a transformers model store, and whether a prefix cache can hold it."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

import quire
from quire.integrations._code import names_in_forward, plain_class

ELEMENTS = {
    torch.float32: quire.ElementType.Fp32,
    torch.float16: quire.ElementType.Fp16,
    torch.bfloat16: quire.ElementType.Bf16,
}

_PROBE_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class LayerShape:
    window: int  # 0: attends to everything
    heads: int
    key_dim: int
    value_dim: int


def layer_shapes(model: Any) -> tuple[list[LayerShape], torch.dtype, torch.device]:
    """What each layer stores, as forward passes of a few tokens show it."""
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise quire.Unsupported(f"{name} has an encoder: prefix_cache() holds decoders only")
    parameters = inspect.signature(type(model).forward).parameters
    if "past_key_values" not in parameters and "cache_params" in parameters:
        raise quire.Unsupported(f"{name} keeps a recurrent state (cache_params) and no K and V: prefix_cache() holds K and V")
    for part in ("vision_config", "audio_config"):
        if getattr(model.config, part, None) is not None:
            raise quire.Unsupported(
                f"{name} has a {part}: what such inputs leave in the cache depends on more than tokens"
            )
    for index, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind not in ("full_attention", "sliding_attention"):
            raise quire.Unsupported(
                f"layer {index} of {name} is {kind!r}: prefix_cache() holds full_attention and sliding_attention"
            )
    for rope in _rope_types(config):
        if rope in ("longrope", "dynamic"):
            raise quire.Unsupported(
                f"{name} has RoPE of type {rope!r}: K of its first tokens changes with the length of the text, so that no "
                "prefix can be used again; run it without a prefix cache"
            )
    device = model.get_input_embeddings().weight.device
    if device.type == "meta":
        raise quire.Unsupported(
            f"the embeddings of {name} have no data (they are on torch's meta device, as offloaded weights are): load the "
            "model without offloading"
        )
    for index, layer in enumerate(DynamicCache(config=config).layers):
        if getattr(layer, "sliding_window", 0) == 1:  # transformers' own cache then keeps everything, and its mask nothing
            raise quire.Unsupported(f"layer {index} of {name} has a window of 1 token: prefix_cache() holds 2 or more")
    probes = _run_probes(model)
    probe = probes[0]
    shapes = []
    for index, layer in enumerate(probe.layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise quire.Unsupported(
                f"layer {index} of {name} has a {type(layer).__name__}: prefix_cache() holds K and V"
            )
        if not layer.is_initialized:
            raise quire.Unsupported(f"layer {index} of {name} left nothing in past_key_values: it takes no cache")
        if layer.keys.device != device:
            raise quire.Unsupported(
                f"layer {index} of {name} lies on {layer.keys.device} and its embeddings on {device}: prefix_cache() holds "
                "models on one device"
            )
        window = layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else 0
        shapes.append(LayerShape(window, layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]))
    if not shapes:
        raise quire.Unsupported(f"{name} left nothing in past_key_values: it takes no cache")
    dtype = probe.layers[0].keys.dtype
    if dtype not in ELEMENTS:
        raise quire.Unsupported(
            f"{name} computes K and V in {dtype}: prefix_cache() holds float32, float16 and bfloat16"
        )
    _check_prefixes(name, probes)
    _check_windows(model, max(shape.window for shape in shapes), dtype)
    return shapes, dtype, device


def run_probe(model: Any, *pieces: list[int]) -> DynamicCache:
    """What a forward pass of a short text leaves behind, or several passes of its pieces. Raises what the model raises."""
    config = model.config.get_text_config(decoder=True)
    device = model.get_input_embeddings().weight.device
    cache = DynamicCache(config=config)
    in_training = [module for module in model.modules() if module.training]
    for module in in_training:
        module.training = False
    try:
        # Not compiled: that would take longer than all the rest.
        with torch.no_grad(), torch.autocast(device.type, enabled=False), torch.compiler.set_stance("force_eager"):
            for piece in pieces:
                text = torch.tensor([piece], device=device) % config.vocab_size
                model(input_ids=text, past_key_values=cache, use_cache=True)
    finally:
        for module in in_training:
            module.training = True
    return cache


# A text, another one with the same first token, and the first one again.
PROBES = (list(range(_PROBE_TOKENS)), [0, *range(_PROBE_TOKENS - 1, 0, -1)], list(range(_PROBE_TOKENS)))


def _run_probes(model: Any) -> list[DynamicCache]:
    """What three forward passes leave behind: of a text, of another one with the same first token, and of the first text
    in two pieces."""
    text, other, _ = PROBES
    half = _PROBE_TOKENS // 2
    try:
        return [run_probe(model, *pieces) for pieces in ([text], [other], [text[:half], text[half:]])]
    except quire.Error:
        raise
    except Exception as error:
        if not _runs_without_cache(model):
            raise quire.Unsupported(
                f"{type(model).__name__} cannot compute a text of {_PROBE_TOKENS} tokens, with a cache or without: "
                f"{type(error).__name__}: {error}"
            ) from error
        raise quire.Unsupported(
            f"{type(model).__name__} cannot go on behind a prefix in transformers' own DynamicCache, which a prefix cache "
            f"takes the place of: {type(error).__name__}: {error}"
        ) from error


def _runs_without_cache(model: Any) -> bool:
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(input_ids=torch.tensor([PROBES[0]], device=model.get_input_embeddings().weight.device), use_cache=False)
    except Exception:  # noqa: BLE001 - whatever it is, it is the model's
        return False
    return True


def is_same(one: DynamicCache, another: DynamicCache) -> bool:
    """The same text's K and V, computed in the same way."""
    dtype = one.layers[0].keys.dtype
    return _find_difference(one, another, _PROBE_TOKENS, torch.finfo(dtype).eps * (64 if dtype == torch.float32 else 4)) is None


def _find_difference(
    one: DynamicCache, another: DynamicCache, tokens: int, tolerance: float, held_tokens_min: int = _PROBE_TOKENS
) -> int | None:
    """The first layer in which K or V of the first tokens differ by more than a part of the largest one."""
    for index, (mine, theirs) in enumerate(zip(one.layers, another.layers)):
        for first, second in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
            if first.shape[-2] < held_tokens_min:
                continue  # a window that is shorter than the text
            first, second = first[..., :tokens, :].float(), second[..., :tokens, :].float()
            if not torch.allclose(first, second, rtol=0.0, atol=tolerance * float(first.abs().max())):
                return index
    return None


def _check_prefixes(name: str, probes: list[DynamicCache]) -> None:
    """K and V of a prefix must be the same whatever follows it, and those behind it the same as in one piece."""
    whole, other, in_pieces = probes
    dtype = whole.layers[0].keys.dtype
    layer = _find_difference(whole, other, 1, torch.finfo(dtype).eps * (64 if dtype == torch.float32 else 4))
    if layer is not None:
        raise quire.Unsupported(
            f"K and V of a token in layer {layer} of {name} change with the tokens behind it (attention in both directions, or "
            "activations quantised together): no prefix can be used again; run it without a prefix cache"
        )
    layer = _find_difference(whole, in_pieces, _PROBE_TOKENS, 1e-3 if dtype == torch.float32 else 0.1)
    if layer is not None:
        raise quire.Unsupported(
            f"K and V in layer {layer} of {name} are not the same in one forward pass and in two, with transformers' own "
            "DynamicCache too: no prefix can be used again; run it without a prefix cache"
        )


def _check_windows(model: Any, window: int, dtype: torch.dtype) -> None:
    """A cache cuts layers to the window that the configuration names; the model's own mask may know of none (Moshi)."""
    kinds = {plain_class(module) for module in model.modules()}
    if window == 0 or any("create_sliding_window_causal_mask" in names_in_forward(kind) for kind in kinds):
        return
    name = type(model).__name__
    text = list(range(2 * window + _PROBE_TOKENS))  # so that half of what there is to be seen is outside of the window
    try:
        whole, in_pieces = run_probe(model, text), run_probe(model, text[: 2 * window], text[2 * window :])
    except Exception as error:
        raise quire.Unsupported(
            f"{name} has a window of {window} tokens and cannot compute a text that is longer: {type(error).__name__}: {error}"
        ) from error
    layer = _find_difference(whole, in_pieces, len(text), 1e-3 if dtype == torch.float32 else 0.1, held_tokens_min=1)
    if layer is not None:
        raise quire.Unsupported(
            f"K and V in layer {layer} of {name} are not the same in one forward pass and in two, where a text is longer than "
            f"the window of {window} tokens, with transformers' own DynamicCache too: no prefix can be used again; run it "
            "without a prefix cache"
        )


def takes_positions(model: Any) -> bool:
    """Else its forward pass counts columns, and K of a padded row depends on the padding."""
    return "position_ids" in inspect.signature(type(model).forward).parameters


def _rope_types(config: Any) -> set[str]:
    """Of all layers: a configuration has one dictionary, or one for each kind of layer."""
    dictionaries = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    types = set()
    while dictionaries:
        entry = dictionaries.pop()
        if isinstance(entry, dict):
            types |= {entry[key] for key in ("rope_type", "type") if isinstance(entry.get(key), str)}
            dictionaries.extend(entry.values())
    return types
