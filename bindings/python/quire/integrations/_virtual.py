# SPDX-License-Identifier: Apache-2.0
"""Virtual tokens, which PEFT's prompt learning puts before each prompt.

They are no tokens of the vocabulary: prompt tuning and P-tuning give their embeddings, prefix tuning their K and V. In a
prefix cache they stand for themselves: as many placeholders before the prompt, in a key space that is named by what the
virtual tokens are. So a prompt finds prefixes that were computed behind the same ones only.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import quire
from quire.integrations._identity import digest_of, refuse_training
from quire.integrations._model import LayerShape

_OF_EMBEDDINGS = ("PROMPT_TUNING", "P_TUNING")
_OF_STATES = ("PREFIX_TUNING",)


@dataclasses.dataclass
class VirtualTokens:
    count: int
    name: str  # of what they are
    embeddings: torch.Tensor | None  # [token][dim]
    states: list[tuple[torch.Tensor, torch.Tensor]] | None  # K and V by layer: [1][head][token][dim]

    def before(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of tokens with placeholders in front."""
        return torch.cat([tokens.new_zeros((tokens.shape[0], self.count)), tokens], dim=1)


def kind_of_virtual_tokens(owner: Any) -> str | None:
    """What a PeftModel puts before prompts; None: nothing. Raises when a prefix cache cannot serve it."""
    config = getattr(owner, "active_peft_config", None)
    if not getattr(config, "is_prompt_learning", False):
        return None
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind not in _OF_EMBEDDINGS + _OF_STATES:
        what = "depends on task_ids of each call" if kind == "MULTITASK_PROMPT_TUNING" else "is none of them"
        raise quire.Unsupported(
            f"the adapter in use is {kind}, which puts {config.num_virtual_tokens} tokens before each prompt that are none of "
            f"its input_ids: prefix_cache() serves prompt tuning, P-tuning and prefix tuning, and this {what}; choose another "
            "adapter, or leave out past_key_values"
        )
    return kind


@torch.no_grad()
def virtual_tokens_of(owner: Any, shapes: list[LayerShape], device: torch.device) -> VirtualTokens | None:
    """What PEFT puts before each prompt, as it is now."""
    kind = kind_of_virtual_tokens(owner)
    if kind is None:
        return None
    for name, module in owner.prompt_encoder[owner.active_adapter].named_modules():
        refuse_training(f"prompt_encoder.{name}" if name else "prompt_encoder", module)
    count = owner.active_peft_config.num_virtual_tokens
    if kind in _OF_STATES and any(shape.window for shape in shapes):
        raise quire.Unsupported(
            f"the adapter in use is {kind}, and the model has windows: PEFT then gives each window what it has room for of the "
            f"{count} tokens before each prompt; choose another adapter, or leave out past_key_values"
        )
    prompt = owner.get_prompt(batch_size=1)
    if isinstance(prompt, torch.Tensor):
        embeddings = prompt[0].detach().to(device)
        return VirtualTokens(count, f"{kind} {digest_of([('embeddings', embeddings)])}", embeddings, None)
    states = [(layer.keys.detach().to(device), layer.values.detach().to(device)) for layer in prompt.layers]
    held = [(keys.shape[1:], values.shape[1:]) for keys, values in states]
    if held != [((s.heads, count, s.key_dim), (s.heads, count, s.value_dim)) for s in shapes]:
        raise quire.Unsupported(
            f"the adapter in use is {kind}, and its K and V have other shapes than the model's, or not all layers have them: "
            "choose another adapter, or leave out past_key_values"
        )
    parts = [(f"{index}.{what}", part) for index, pair in enumerate(states) for what, part in zip("kv", pair)]
    return VirtualTokens(count, f"{kind} {digest_of(parts)}", None, states)
