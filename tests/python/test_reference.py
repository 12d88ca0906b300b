# SPDX-License-Identifier: Apache-2.0
"""docs/python_api.md is what the package says of itself."""

from __future__ import annotations

import ast
import importlib.util
import pathlib

import pytest
import quire

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def load_script():
    spec = importlib.util.spec_from_file_location("python_reference", ROOT / "scripts" / "python_reference.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def stub_text() -> str:
    path = load_script().stub_path()
    if not path.exists():
        pytest.fail(f"there is no {path}: the package was installed without its stub (target _quire_stub)")
    return path.read_text(encoding="utf-8")


def test_the_reference_is_what_the_package_says():
    script = load_script()
    written = script.DOCUMENT.read_text(encoding="utf-8")
    assert script.reference(stub_text()) == written, "run scripts/python_reference.py with the package installed"


def test_the_stub_has_every_public_name():
    names = set()
    for node in ast.parse(stub_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    public = {name for name in dir(quire) if not name.startswith("_")} - {"integrations", "replay"}
    assert public - names == set()
    assert {name for name in names if not name.startswith("_")} - public == set()


def test_errors_of_the_stub_are_those_of_the_package():
    classes = {node.name: node for node in ast.parse(stub_text()).body if isinstance(node, ast.ClassDef)}
    errors = [c for c in vars(quire).values() if isinstance(c, type) and issubclass(c, quire.Error)]
    assert len(errors) == 8
    for error in errors:
        node = classes[error.__name__]
        assert [ast.unparse(base) for base in node.bases] == [base.__name__ for base in error.__bases__]
        assert ast.get_docstring(node) == error.__doc__
