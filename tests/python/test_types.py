# SPDX-License-Identifier: Apache-2.0
"""What type checkers see of the package: the stub itself, and programs that use it."""

import subprocess
import sys
from pathlib import Path

import pytest

import quire

pytestmark = pytest.mark.needs_mypy

RIGHT = """
import pathlib

import quire

config = quire.CacheConfig(layout=quire.preset("llama-3-8b"), disk=quire.DiskConfig(directories=[pathlib.Path("/tmp")]))
config.device.group_page_counts = [1, 2]
layout: quire.ModelLayout | None = config.layout
groups: tuple[quire.CacheGroup, ...] = quire.preset("llama-3-8b").groups
accelerator: quire.Device | None = config.device.accelerator
directories: tuple[str, ...] = config.disk.directories
tensors: tuple[tuple[quire.AdoptedTensor, ...], ...] = config.device.adopted_tensors


def on_progress(progress: quire.VerifyProgress) -> bool:
    return progress.fault_count < 3


def use(sequence: quire.Sequence) -> dict[quire.SequenceId, bool]:
    report = quire.verify_disk_store(["/tmp/a", pathlib.Path("/tmp/b")], on_progress=on_progress)
    return {sequence.id: config == quire.CacheConfig() and report.is_clean}
"""

# What is wrong with a line stands behind it.
WRONG = """
import quire

config = quire.CacheConfig(layout=3)  # arg-type
config.device.page_count = "many"  # assignment
config.device.accelerator = 0  # assignment
quire.CacheConfig(pages=3)  # call-arg
quire.verify_disk_store(["/tmp"], on_progress=3)  # arg-type
{quire.PlanShape(): 1}[3]  # index
quire.preset("llama-3-8b").groups[0].components.append(3)  # attr-defined
"""


def mypy(path, tmp_path):
    """Its messages, as line and text."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(path)]
    # By a link: mypy takes no folder of installed packages there, and the package may not be installed.
    packages = tmp_path / "packages"
    packages.mkdir(exist_ok=True)
    if not (packages / "quire").exists():
        (packages / "quire").symlink_to(Path(quire.__file__).parent)
    environment = {"MYPYPATH": str(packages), "PATH": ""}
    made = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    return [line for line in made.stdout.splitlines() if ": error: " in line] or made.stderr.splitlines()


def test_the_stub_is_right_by_itself(tmp_path):
    assert mypy(tmp_path / "packages" / "quire" / "_quire.pyi", tmp_path) == []


def test_programs_are_checked(tmp_path):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT, encoding="utf-8")
    wrong.write_text(WRONG, encoding="utf-8")
    assert mypy(right, tmp_path) == []
    found = {int(text.split(":")[1]): text for text in mypy(wrong, tmp_path)}
    expected = {n: line.split("# ")[1] for n, line in enumerate(WRONG.splitlines(), 1) if "# " in line}
    assert sorted(found) == sorted(expected)
    for number, code in expected.items():
        assert found[number].endswith(f"[{code}]"), found[number]
