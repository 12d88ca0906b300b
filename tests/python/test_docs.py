# SPDX-License-Identifier: Apache-2.0
"""The Python code in the documents runs, block after block, and so do the examples.

A block that needs more than NumPy says so behind its fence: ```python needs_torch. It runs behind all blocks before it
that need no more than it does.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest

from quire.replay import read_trace, replay

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = ["README.md", "docs/python.md", "docs/write_an_engine_in_python.md"]
ENGINE = "docs/write_an_engine_in_python.md"
NEEDS = ["needs_torch", "needs_transformers", "needs_cuda"]
# A thread that fails is one more failure.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
BLOCK = re.compile(r"^```python(?: (?P<needs>\w+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(document: str) -> list[tuple[int, str | None, str]]:
    """Line, need and code of each block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start("code")), m["needs"], m["code"]) for m in BLOCK.finditer(text)]


def with_need(need: str) -> list[str]:
    return [document for document in DOCUMENTS if any(has == need for _, has, _ in blocks_of(document))]


def run_blocks(document: str, needs: set[str | None], folder: pathlib.Path, names: dict[str, Any]) -> None:
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        for line, need, code in blocks_of(document):
            if need in needs:
                # Blank lines in front, so that a failure names the line of the document.
                exec(compile("\n" * line + code, str(ROOT / document), "exec"), names)  # noqa: S102
    finally:
        os.chdir(before)


def test_every_fence_is_a_block_that_is_known():
    for document in DOCUMENTS:
        fences = re.findall(r"^```py.*$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)
        blocks = blocks_of(document)
        assert len(fences) == len(blocks) > 0, document
        assert {need for _, need, _ in blocks} <= {None, *NEEDS}, document


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if None in {need for _, need, _ in blocks_of(d)}])
def test_the_code_of_documents_runs(document, tmp_path, capsys):
    run_blocks(document, {None}, tmp_path, {"__name__": "document"})
    if document == ENGINE:
        text = (ROOT / document).read_text(encoding="utf-8")
        (expected,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert capsys.readouterr().out == expected


@pytest.mark.needs_torch
@pytest.mark.parametrize("document", with_need("needs_torch"))
def test_the_code_of_documents_that_needs_torch_runs(document, tmp_path):
    run_blocks(document, {None, "needs_torch"}, tmp_path, {"__name__": "document"})


@pytest.mark.needs_cuda
@pytest.mark.parametrize("document", with_need("needs_cuda"))
def test_the_code_of_documents_that_needs_a_gpu_runs(document, tmp_path):
    run_blocks(document, {None, "needs_torch", "needs_cuda"}, tmp_path, {"__name__": "document"})


@pytest.mark.needs_transformers
@pytest.mark.parametrize("document", with_need("needs_transformers"))
def test_the_code_of_documents_that_needs_transformers_runs(document, tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    names: dict[str, Any] = {"__name__": "document"}
    if document == "README.md":  # whose reader has a model
        torch.manual_seed(0)
        shape = dict(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        names["model"] = LlamaForCausalLM(LlamaConfig(**shape, pad_token_id=0)).eval()
        prompt = torch.randint(3, 256, (1, 100))
        names["inputs"] = dict(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4)
    run_blocks(document, {None, "needs_torch", "needs_transformers"}, tmp_path, names)
    if document == "README.md":
        assert names["cache"].last.reused_tokens == 96
        names["cache"].close()


def test_the_engine_has_sixty_lines_at_most():
    _, _, code = blocks_of(ENGINE)[0]
    assert "class Engine" in code
    assert code.count("\n") <= 60


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_example(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / "python" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_tokens_trace(path: pathlib.Path) -> None:
    """Two tenants whose chats begin alike and grow, with answers, and one that is too long for small pools."""
    lines = []
    for i in range(60):
        for tenant, priority in (("ann", 0), ("bob", 2)):
            first = i % 7 * 1000
            prompt = [*range(1, 101), *range(first, first + 2 * i)]
            lines.append(dict(timestamp=250.5 * i, key_space=tenant, priority=priority, tokens=prompt, output=[7, i, i]))
    lines.append(dict(tokens=list(range(700))))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_hashes_trace(path: pathlib.Path) -> None:
    lines = []
    for i in range(80):
        ids = [10**12, 10**12 + 1, *(100 * (i % 9) + j for j in range(i % 9 + i // 10)), 10**6 + i]
        lines.append(dict(timestamp=40 * i, input_length=512 * len(ids) - i, output_length=9, hash_ids=ids))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


# Hit tokens as `./quire replay --json` has them, for each policy, by capacity.
REPLAYED: dict[str, dict[str, dict[int, int]]] = {
    "tokens": {
        "lru": {640: 11600, 1200: 13364, 2000: 16652},
        "fifo": {640: 11600, 1200: 13492, 2000: 16652},
        "lfu": {640: 13106, 1200: 15264, 2000: 16652},
        "slru": {640: 13172, 1200: 15108, 2000: 16652},
        "s3fifo": {640: 12656, 1200: 14900, 2000: 16652},
        "arc": {640: 11728, 1200: 13492, 2000: 16652},
        "priority": {640: 11996, 1200: 14928, 2000: 16652},
    },
    "hashes": {
        "lru": {20480: 80896, 51200: 312320},
        "fifo": {20480: 80896, 51200: 312320},
        "lfu": {20480: 80896, 51200: 327168},
        "slru": {20480: 80896, 51200: 314880},
        "s3fifo": {20480: 149504, 51200: 333824},
        "arc": {20480: 80896, 51200: 314880},
        "priority": {20480: 80896, 51200: 312320},
    },
}


@pytest.mark.parametrize("form", ["tokens", "hashes"])
def test_a_replay_finds_what_the_tool_finds(form, tmp_path):
    path = tmp_path / "trace.jsonl"
    {"tokens": write_tokens_trace, "hashes": write_hashes_trace}[form](path)
    requests, unit_tokens = read_trace(path)
    assert unit_tokens == {"tokens": 1, "hashes": 512}[form]
    found = {
        policy: {capacity: sum(replay(requests, unit_tokens, policy, capacity)) for capacity in by_capacity}
        for policy, by_capacity in REPLAYED[form].items()
    }
    assert found == REPLAYED[form]


def test_the_replay_prints_a_table(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_tokens_trace(path)
    printed = run_example("replay_trace.py", path, "--policy", "lru,arc", "--capacity-tokens", "640,2k").splitlines()
    assert printed[0].startswith("121 requests, ")
    assert printed[2].split() == ["640", "2k"]
    for line, policy in zip(printed[3:], ("lru", "arc")):
        rates = [REPLAYED["tokens"][policy][capacity] for capacity in (640, 2000)]
        prompt_tokens = int(re.search(r"([\d,]+) prompt tokens", printed[0])[1].replace(",", ""))
        assert line.split() == [policy, *(f"{rate / prompt_tokens:.4f}" for rate in rates)]


def test_a_replay_of_a_bad_trace_names_the_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"tokens": [1, 2]}\n{"tokens": [1,\n', encoding="utf-8")
    example = str(ROOT / "examples" / "python" / "replay_trace.py")
    done = subprocess.run([sys.executable, example, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"InvalidArgument: {path}:2: ")


@pytest.mark.needs_transformers
def test_the_second_chat_computes_its_question(tmp_path):
    first_time = run_example("chat_twice.py", "--tokens", 64, "--directory", tmp_path).splitlines()
    assert first_time[1].endswith("0 of 84 tokens were there")
    assert first_time[2].endswith("64 of 94 tokens were there")
    second_time = run_example("chat_twice.py", "--tokens", 64, "--directory", tmp_path).splitlines()
    assert second_time[1].endswith("80 of 84 tokens were there")
