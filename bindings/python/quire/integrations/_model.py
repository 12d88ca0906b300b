# SPDX-License-Identifier: Apache-2.0
"""What a transformers model is to a prefix cache: what its layers store, and which model it is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

import quire

ELEMENTS = {
    torch.float32: quire.ElementType.Fp32,
    torch.float16: quire.ElementType.Fp16,
    torch.bfloat16: quire.ElementType.Bf16,
}


@dataclasses.dataclass(frozen=True)
class LayerShape:
    window: int  # 0: attends to everything
    heads: int
    key_dim: int
    value_dim: int


def layer_shapes(model: Any) -> tuple[list[LayerShape], torch.dtype, torch.device]:
    """What each layer stores, as a forward pass of one token shows it."""
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise quire.Unsupported(f"{name} has an encoder: prefix_cache() holds decoders only")
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
    probe = DynamicCache(config=config)
    device = model.get_input_embeddings().weight.device
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        # Not compiled: that would take longer than all the rest.
        with torch.no_grad(), torch.autocast(device.type, enabled=False), torch.compiler.set_stance("force_eager"):
            token = torch.zeros((1, 1), dtype=torch.long, device=device)
            model(input_ids=token, past_key_values=probe, use_cache=True)
    finally:
        for module in in_training:
            module.training = True
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
        if window == 1:  # transformers' own cache then keeps everything, and its mask nothing
            raise quire.Unsupported(f"layer {index} of {name} has a window of 1 token: prefix_cache() holds 2 or more")
        shapes.append(LayerShape(window, layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]))
    if not shapes:
        raise quire.Unsupported(f"{name} left nothing in past_key_values: it takes no cache")
    dtype = probe.layers[0].keys.dtype
    if dtype not in ELEMENTS:
        raise quire.Unsupported(
            f"{name} computes K and V in {dtype}: prefix_cache() holds float32, float16 and bfloat16"
        )
    return shapes, dtype, device


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


def weights_of(model: Any) -> str:
    """Names the weights and buffers of a model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {_sum_of(tensor)}".encode())
    return digest.hexdigest()


# What a configuration says besides that K and V do not depend on. Their element type is part of the layout.
_BESIDES = {
    "architectures", "dtype", "torch_dtype", "use_cache", "name_or_path", "transformers_version", "return_dict",
    "output_attentions", "output_hidden_states", "id2label", "label2id", "problem_type", "finetuning_task",
}


def _relevant(config: Any) -> Any:
    if isinstance(config, dict):
        return {
            str(key): _relevant(value)
            for key, value in config.items()
            if not str(key).startswith("_") and not str(key).endswith(("token_id", "token_ids")) and key not in _BESIDES
        }
    return config


def configuration_of(model: Any) -> str:
    """Names everything else that K and V depend on besides tokens."""
    text = json.dumps(_relevant(model.config.to_dict()), sort_keys=True, default=str)
    return hashlib.sha256(f"{type(model).__name__} {text}".encode()).hexdigest()
