# SPDX-License-Identifier: Apache-2.0
"""What a call of generate() copies: no more than it has to, and the right bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from test_transformers import after, make_model, prefix_cache, same, tokens, torch

pytestmark = pytest.mark.needs_transformers


def count_copies(monkeypatch: Any, cache: Any) -> list[int]:
    """Tokens of each copy out of pages."""
    copied: list[int] = []
    copy_out = cache._store._copy_out

    def count(plan: Any, matched: int) -> Any:
        copied.append(matched)
        return copy_out(plan, matched)

    monkeypatch.setattr(cache._store, "_copy_out", count)
    return copied


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_a_prefix_is_copied_out_once(kind: str, monkeypatch: Any) -> None:
    model = make_model(kind)
    document = tokens(1, 100)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, document, cache, do_sample=False)
        copied = count_copies(monkeypatch, cache)
        same(model, after(document, 2, 9), cache, do_sample=False)
        assert copied == [96]


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_rows_with_one_prefix_share_its_copy(kind: str, monkeypatch: Any) -> None:
    model = make_model(kind)
    document = tokens(1, 100)
    with prefix_cache(model, device_bytes=8 << 20) as cache:
        same(model, document, cache, do_sample=False)
        copied = count_copies(monkeypatch, cache)
        rows = torch.cat([after(document, seed, 9) for seed in (2, 3, 4, 2)])
        same(model, rows, cache, do_sample=False)
        assert copied == [96]
        assert cache.last.reused_tokens == 4 * 96
        rows[1, :9] = 0  # padding in front of tokens 9 to 99 of the document, which is another text
        same(model, rows, cache, do_sample=False, attention_mask=(rows != 0).long())


@pytest.mark.parametrize("seed", range(6))
def test_a_window_layer_is_the_end_of_a_full_one(seed: int) -> None:
    from quire.integrations._layers import Layer, Row, WindowLayer

    draw = random.Random(seed)
    torch.manual_seed(seed)
    window = draw.choice([2, 3, 7, 20])
    full, narrow = Layer(), WindowLayer(window)
    rows, columns = 1, 0

    def some(count: int) -> tuple[Any, Any]:
        return torch.rand(rows, 2, count, 3), torch.rand(rows, 2, count, 5)

    lost = 0
    if draw.random() < 0.5:
        columns = draw.randrange(1, 30)
        keys, values = some(columns)
        full.begin(keys, values, columns)
        lost = max(0, columns - window + 1)
        narrow.begin(keys[:, :, lost:], values[:, :, lost:], columns)
    for _ in range(40):
        choice = draw.choice(["update", "update", "update", "shorten", "reorder", "repeat", "select"])
        if choice == "update":
            count = draw.choice([1, 1, 1, 4, 30])
            length, offset = narrow.get_mask_sizes(count)
            states = some(count)
            full.update(*states)
            columns += count
            for got, all_there_is in zip(narrow.update(*states), (full.keys, full.values)):
                assert torch.equal(got, all_there_is[:, :, offset : offset + length])
                assert offset + length == columns
            narrow.collect()
        elif columns == 0:
            continue
        elif choice == "shorten":
            count = min(draw.randrange(4), columns)
            # Not where the window before its last token begins ahead of what is there.
            assert narrow.can_shorten(count) == (lost == 0 or columns - count - (window - 1) >= lost)
            if not narrow.can_shorten(count):
                continue
            for layer in (full, narrow):
                layer.shorten(count)
            columns -= count
        elif choice == "repeat" and rows <= 2:
            rows *= 2
            for layer in (full, narrow):
                layer.batch_repeat_interleave(2)
        else:
            order = torch.tensor([draw.randrange(rows) for _ in range(rows)])
            for layer in (full, narrow):
                (layer.reorder_cache if choice == "reorder" else layer.batch_select_indices)(order)
        assert narrow.get_seq_length() == full.get_seq_length() == columns
        assert narrow.first_column == lost
        row = draw.randrange(rows)
        for got, right in zip(Row([narrow], row, 0).rows(0, lost, columns), Row([full], row, 0).rows(0, lost, columns)):
            assert torch.equal(got, right)
