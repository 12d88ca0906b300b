# SPDX-License-Identifier: Apache-2.0
"""Tests that need what is not there are one skip that says how many they are."""

from __future__ import annotations

import importlib

import pytest

_NEEDS = {
    "needs_mypy": ("mypy",),
    "needs_torch": ("torch",),
    "needs_transformers": ("torch", "transformers"),
    "needs_peft": ("torch", "transformers", "peft"),
    "needs_jax": ("jax",),
    "needs_cupy": ("cupy",),
    "needs_cuda": ("torch",),
    "needs_nixl": ("nixl_cu12",),
}


def pytest_configure(config: pytest.Config) -> None:
    for name, modules in _NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {' and '.join(modules)}")


def _why_not(name: str) -> str | None:
    for module in _NEEDS[name]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            return f"cannot be run without {' and '.join(_NEEDS[name])}: {error}"
    if name == "needs_cuda":
        import quire
        import torch

        if not torch.cuda.is_available():
            return "need a GPU that torch can use"
        if not quire.has_cuda:
            return "need a quire that was built with CUDA"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in _NEEDS:
        marked = [item for item in items if item.get_closest_marker(name) is not None]
        if not marked or (why := _why_not(name)) is None:
            continue
        for item in marked[1:]:
            items.remove(item)
        count = "1 TEST" if len(marked) == 1 else f"{len(marked)} TESTS"
        marked[0].add_marker(pytest.mark.skip(reason=f"{count} {why}"))
