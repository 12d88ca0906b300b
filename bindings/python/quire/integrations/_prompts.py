# SPDX-License-Identifier: Apache-2.0
"""What a call of generate() is given: its prompts, and what of them is padding."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers

import quire


def check_tokens(input_ids: Any) -> torch.Tensor:
    """Tokens of [row][column], on the processor."""
    if not isinstance(input_ids, torch.Tensor):
        raise quire.InvalidArgument(f"input_ids is a {type(input_ids).__name__}: give a tensor of [row][column]")
    if input_ids.ndim != 2:
        raise quire.InvalidArgument(f"input_ids has {input_ids.ndim} dimensions: give [row][column]")
    if 0 in input_ids.shape:
        rows, columns = input_ids.shape
        raise quire.InvalidArgument(f"input_ids has {rows} rows of {columns} tokens: give one or more of both")
    if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.dtype == torch.bool:
        raise quire.InvalidArgument(f"input_ids is of {input_ids.dtype}: give integers")
    return input_ids.detach().to("cpu", torch.int64).contiguous()


def paddings_of(tokens: torch.Tensor, attention_mask: Any) -> list[int]:
    """Padding columns in front of each row."""
    if attention_mask is None:
        return [0] * tokens.shape[0]
    shape = tuple(attention_mask.shape) if isinstance(attention_mask, torch.Tensor) else type(attention_mask).__name__
    if shape != tuple(tokens.shape):
        raise quire.Unsupported(
            f"attention_mask is {shape} and input_ids {tuple(tokens.shape)}: give a mask of [row][column] with the whole "
            "prompt"
        )
    mask = attention_mask.detach().to("cpu") != 0
    paddings = [int(padding) for padding in (~mask).sum(dim=1)]
    for row, padding in enumerate(paddings):
        if not bool(mask[row, padding:].all()):
            raise quire.Unsupported(
                f"row {row} of attention_mask has padding behind tokens: pad on the left "
                "(tokenizer.padding_side='left')"
            )
    return paddings


# Arguments of a forward pass that K and V do not depend on, or that the cache looks at.
OF_FORWARD = {
    "input_ids", "attention_mask", "position_ids", "cache_position", "past_key_values", "use_cache", "labels", "logits_to_keep",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
    "tokenizer", "assistant_tokenizer", "trust_remote_code",  # of generate(), which hands them on
}
_OF_GENERATE = (
    set(inspect.signature(transformers.GenerationMixin.generate).parameters) | OF_FORWARD
) - {"position_ids", "cache_position", "labels", "kwargs"}


def refuse_others(model: Any, call: str, arguments: dict[str, Any], known: set[str]) -> None:
    """Refuses arguments that reach the forward pass and are not known to leave K and V as they are."""
    if isinstance(arguments.get("logits_to_keep"), torch.Tensor):
        raise quire.Unsupported(
            f"{call} was given logits_to_keep as a tensor of columns: with a prefix cache a forward pass computes other columns "
            "than without; give a number"
        )
    parameters: Any = None
    for name, value in arguments.items():
        if value is None or name in known:
            continue
        if parameters is None:
            parameters = inspect.signature(type(model).forward).parameters
        default = parameters[name].default if name in parameters else None
        if isinstance(value, (bool, int, float, str)) and type(value) is type(default) and value == default:
            continue
        raise quire.Unsupported(
            f"{call} was given {name}: K and V may depend on it, and a prefix cache finds prompts by their input_ids alone; "
            f"leave out {name}, or past_key_values"
        )


def prompt_of(model: Any, arguments: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
    """The prompts of a call of generate(), and its other arguments, a mask among them."""
    arguments = dict(arguments)
    inputs, input_ids = arguments.pop("inputs", None), arguments.pop("input_ids", None)
    input_ids = inputs if inputs is not None else input_ids
    refuse_others(model, "generate()", arguments, _OF_GENERATE | vars(transformers.GenerationConfig()).keys())
    if input_ids is None:
        raise quire.InvalidArgument("generate() was given no input_ids: a prefix cache finds prompts by them")

    def option(name: str) -> Any:
        if name in arguments:
            return arguments[name]
        return getattr(arguments.get("generation_config") or model.generation_config, name, None)

    if option("prefill_chunk_size") is not None:
        raise quire.Unsupported(
            "prefill_chunk_size is set: transformers then computes the prompt from its first token on, whatever the cache "
            "has of it; leave it out"
        )
    if arguments.get("use_cache") is False:
        raise quire.Unsupported(
            "use_cache is False: transformers then computes the whole text for each token; leave it out, or past_key_values"
        )
    arguments["use_cache"] = True  # some models leave it out unless they are told
    if arguments.get("attention_mask") is None:
        arguments["attention_mask"] = _mask_of(check_tokens(input_ids), option).to(input_ids.device)
    return input_ids, arguments


def _mask_of(tokens: torch.Tensor, option: Any) -> torch.Tensor:
    """The mask that generate() would make up: padding is what says so and is no end of a text."""
    pad, end = option("pad_token_id"), option("eos_token_id")
    ends = end if isinstance(end, (list, tuple)) else [end]
    if pad is None or pad in ends:
        return torch.ones_like(tokens)
    mask = (tokens != pad).long()
    for row in range(tokens.shape[0]):
        padding = int((mask[row] == 0).sum())
        if not bool(mask[row, padding:].all()):
            raise quire.InvalidArgument(
                f"row {row} of input_ids has the padding token {pad} behind other tokens, and generate() was given no "
                "attention_mask: give one that says what is padding"
            )
    return mask
