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
        # As lazy_initialization() does, without making the empty tensors that it begins with.
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values = keys, values
        self.is_initialized = True

    def collect(self) -> None:
        """After a forward pass: what could not be done while torch.compile() was looking."""

    def can_shorten(self, tokens: int) -> bool:
        return True

    def shorten(self, tokens: int) -> None:
        if tokens > 0 and self.is_initialized:
            self.keys = self.keys[..., :-tokens, :]
            self.values = self.values[..., :-tokens, :]

    @property
    def first_column(self) -> int:
        """The first that history() has."""
        return 0

    def history(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All that the call has."""
        return self.keys, self.values


class WindowLayer(Layer):
    """Gives attention the last tokens, as transformers' own does, and keeps all that were computed until the call ends.

    keys and values are what the next token sees. What was computed lies apart, in the pieces in which it came: joining
    them at each step would make steps longer with the text, which a window is there to avoid.
    """

    is_sliding = True

    def __init__(self, sliding_window: int) -> None:
        super().__init__()
        self.sliding_window = sliding_window
        self.cumulative_length = 0
        self._pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._last_piece: tuple[torch.Tensor, torch.Tensor] | None = None  # until collect()

    def begin(self, keys: torch.Tensor, values: torch.Tensor, columns: int) -> None:
        super().begin(keys, values, columns)
        self._pieces = [(keys, values)]
        self.cumulative_length = columns

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.collect()
        # Copies: what a model hands out may be part of something larger, or be written over by its next step. They go
        # to the list in collect(): torch.compile() would compile anew for each length that it has.
        self._last_piece = (key_states.detach().clone(), value_states.detach().clone())
        self.cumulative_length += key_states.shape[-2]
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        self._narrow()
        return keys, values

    def collect(self) -> None:
        if self._last_piece is not None:
            self._pieces.append(self._last_piece)
            self._last_piece = None

    def _narrow(self) -> None:
        self.keys = self.keys[..., -self.sliding_window + 1 :, :]
        self.values = self.values[..., -self.sliding_window + 1 :, :]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        offset = max(self.cumulative_length - self.sliding_window + 1, 0)
        return min(self.cumulative_length, self.sliding_window - 1) + query_length, offset

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_max_length(self) -> int:
        return self.sliding_window

    def activate_past_recording(self) -> None:
        pass  # nothing is forgotten

    @property
    def first_column(self) -> int:
        return self.cumulative_length - sum(keys.shape[-2] for keys, _ in self._pieces)

    def history(self) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self._pieces) > 1:
            self._pieces = [self._last_columns(self.cumulative_length)]
        return self._pieces[0]

    def _last_columns(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """No less than `count`, or all there are."""
        first = len(self._pieces)
        while first > 0 and count > 0:
            first -= 1
            count -= self._pieces[first][0].shape[-2]
        keys, values = zip(*self._pieces[first:])
        return torch.cat(keys, dim=-2), torch.cat(values, dim=-2)

    def can_shorten(self, tokens: int) -> bool:
        # A prefix that was found begins where its last token's window does: that of an earlier token is not there.
        columns = self.cumulative_length - tokens
        return columns - self.first_column >= min(columns, self.sliding_window - 1)

    def shorten(self, tokens: int) -> None:
        if tokens <= 0 or not self._pieces:
            return
        self.cumulative_length -= tokens
        while tokens > 0 and self._pieces:
            keys, values = self._pieces.pop()
            kept = max(0, keys.shape[-2] - tokens)
            tokens -= keys.shape[-2] - kept
            if kept or not self._pieces:
                self._pieces.append((keys[..., :kept, :], values[..., :kept, :]))
                break
        self.keys, self.values = self._last_columns(self.sliding_window - 1)
        self._narrow()

    # Rows come and go in beam search: of everything, at each step.

    def _change_rows(self, change: Any, *args: Any) -> None:
        if not self._pieces:
            return
        self.keys, self.values = self.history()
        change(*args)
        self._pieces = [(self.keys, self.values)]
        self._narrow()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._change_rows(super().reorder_cache, beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change_rows(super().batch_repeat_interleave, repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._change_rows(super().batch_select_indices, indices)


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
        keys, values = layer.history()
        return keys.detach()[self.index, :, part], values.detach()[self.index, :, part]
