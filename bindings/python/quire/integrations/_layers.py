# SPDX-License-Identifier: Apache-2.0
"""K and V of a call of generate() under way, in plain tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer


class Layer(DynamicLayer):
    """transformers' own, begun with a prefix."""

    def begin(self, keys: torch.Tensor, values: torch.Tensor, columns: int) -> None:
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def shorten(self, tokens: int) -> None:
        if tokens > 0:
            self.keys = self.keys[..., :-tokens, :]
            self.values = self.values[..., :-tokens, :]

    @property
    def first_column(self) -> int:
        return 0


class WindowLayer(Layer):
    """Gives attention the last tokens, as transformers' own does, and keeps all that were computed until the call ends."""

    is_sliding = True

    def __init__(self, sliding_window: int) -> None:
        super().__init__()
        self.sliding_window = sliding_window
        self.cumulative_length = 0

    def begin(self, keys: torch.Tensor, values: torch.Tensor, columns: int) -> None:
        super().begin(keys, values, columns)
        self.cumulative_length = columns

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen = min(self.cumulative_length, self.sliding_window - 1) + key_states.shape[-2]
        self.cumulative_length += key_states.shape[-2]
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        return keys[:, :, -seen:], values[:, :, -seen:]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        offset = max(self.cumulative_length - self.sliding_window + 1, 0)
        return min(self.cumulative_length, self.sliding_window - 1) + query_length, offset

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_max_length(self) -> int:
        return self.sliding_window

    def activate_past_recording(self) -> None:
        pass  # nothing is forgotten

    def shorten(self, tokens: int) -> None:
        super().shorten(tokens)
        self.cumulative_length -= tokens

    @property
    def first_column(self) -> int:
        return self.cumulative_length - self.keys.shape[-2] if self.is_initialized else 0


@dataclasses.dataclass
class Row:
    """K and V of one row of the tensors, by the row's own tokens."""

    layers: list[Layer]
    index: int
    padding: int

    @property
    def first_token(self) -> int:
        """The first that all layers have."""
        return max(0, max(layer.first_column for layer in self.layers) - self.padding)

    def rows(self, layer_index: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.layers[layer_index]
        shift = self.padding - layer.first_column
        if begin + shift < 0:
            raise AssertionError("a window has lost what is to be remembered")
        part = slice(begin + shift, end + shift)
        # Without the graphs of a caller that has gradients on: pages would hold on to them.
        return layer.keys.detach()[self.index, :, part], layer.values.detach()[self.index, :, part]
