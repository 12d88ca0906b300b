#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/python_api.md from the stub of the Python package, which is made from the package itself.

    python scripts/python_reference.py            # of the installed package
    python scripts/python_reference.py --check    # says whether the document is what it would write
    python scripts/python_reference.py --stub build/…/_quire.pyi

SUBJECTS has every public name once; a name that it lacks is an error.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
import sys
import textwrap

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "python_api.md"

SUBJECTS = {
    "Cache": ["Cache", "policy_names"],
    "Sequences and steps": [
        "KeySpace", "Prompt", "ExtraKey", "SequenceOptions", "Lookup", "Admission", "Miss", "Sequence", "SequenceView",
        "Window", "StepEntry", "PlanOutcome", "Shortage", "Step", "StepLoad", "GroupLayer", "StepResult", "Kept",
        "HeldPrefix", "ExternalMatch", "OfferOutcome", "GroupPages", "GroupPage",
        "KeySpaceId", "SequenceId", "KeepId", "HoldId",
    ],
    "Plans": [
        "AttentionPlan", "AttentionPlanEntry", "GroupPlan", "CascadeLevel", "LayerWindowPlan", "PlanShape", "SlotRun",
        "SendRun", "WindowRun", "ReceiveTargets", "flashinfer_view", "FlashInferView", "block_table_view",
        "BlockTableView", "NULL_PAGE", "NO_SLOT",
    ],
    "Configuration": [
        "CacheConfig", "DeviceConfig", "AdoptedTensor", "HostConfig", "HostRegionConfig", "TransferStreams", "DiskConfig",
        "RemoteConfig",
        "ChunkConfig", "PlanConfig", "PageOptions", "Device", "open_cuda_device", "open_host_device",
        "cuda_device_count", "has_cuda", "__version__",
    ],
    "Layouts": [
        "preset", "preset_names", "ModelLayout", "SimpleShape", "CacheGroup", "Component", "GroupRetention", "GroupReplay",
        "layer_range", "element_bytes", "fp32_pattern", "bf16_pattern", "int32_pattern", "has_slot", "has_pages",
        "boundary_multiple", "is_reusable", "lookback_tokens", "solve_budget", "BudgetRequest", "ExpectedRequest",
        "Budget", "TierBudget", "GroupBudget", "describe_budget", "pages_of_request",
    ],
    "Where bytes lie": [
        "PageGeometry", "HeadRange", "ComponentStrides", "PoolGeometry", "PoolOptions", "PoolStrides", "RowLocation",
        "StateSlots", "StatePart", "StateRow", "ring_entry",
    ],
    "Entry formats": [
        "EntryFormat", "use_format", "MixedRow", "fp8_arrays", "fp8_arrays_with_positions", "fp8_rows_then_scales",
        "fp8_records", "index_keys_fp8", "index_keys_mxfp4", "index_keys_nvfp4", "CompressorRow", "compressor_fp32",
        "compressor_bf16", "compressor_running", "plain_rows",
    ],
    "Stats and introspection": ["Stats", "GroupStats", "RunView", "ResidencyRecord", "HostRegionStatus", "DiskStatus",
                                "RemoteTierStatus"],
    "Transfers": [
        "Completion", "RankAgreement", "TransferPlan", "PageTransfer", "TransferId", "encode", "decode", "encoded_bytes", "DiskAnswer",
        "DirectBytes", "DirectPart",
    ],
    "Movers": ["Mover", "MoverConfig", "MoverPool", "MoverPart"],
    "Swaps with a device": [
        "SwapEngine", "SwapConfig", "SwapOrder", "SwapStreams", "SwapTicket", "SwapReport", "SwapPaths", "Fragment",
        "fragments_of", "SwapTiming", "measure_swaps", "choose_paths",
    ],
    "Chunks": [
        "Chunk", "ChunkMatch", "ChunkPage", "PinnedChunks", "ChunkPin", "ChunkInsertion", "ChunkIndex",
        "ChunkIndexConfig",
    ],
    "Metrics": ["MetricsServer", "MetricsConfig"],
    "Disk store": [
        "inspect_disk_store", "DiskStoreReport", "DiskDirectoryReport", "DiskSegmentReport", "DiskKeySpaceReport",
        "DiskLayoutReport", "DiskAgeReport", "verify_disk_store", "VerifyProgress", "VerifyReport", "DiskFault",
    ],
    "Errors": [
        "Error", "InvalidArgument", "Unsupported", "Unavailable", "TimedOut", "Cancelled", "Io", "Corrupt",
    ],
    "Enumerations": [
        "Tier", "Publish", "Prefetch", "MissReason", "Preempt", "Sleep", "DevicePool", "DeviceMemory", "WritePolicy",
        "TierAccess", "RedisCluster", "PageTables", "ElementType", "Sharding", "Placement", "GroupKind", "WindowForm", "RetentionRule", "HeadOrder",
        "ByteLayout", "StateCopyKind", "SendTime", "TransferKind", "TransferPriority", "TransferOutcome", "TransferFault", "ResidencyCause",
        "DiskSegmentState", "DiskRepair", "ChunkStatus", "SwapPath", "StreamPriority", "TimedCall",
    ],
}  # fmt: skip

# Methods of Cache, by what one does with them.
CACHE_METHODS = {
    "Life": ["open", "close", "is_closed", "key_space"],
    "Sequences": ["lookup", "page_names", "begin", "admit", "wait_until_ready", "append", "end", "view"],
    "Steps": [
        "plan_step", "apply_copies", "apply_saves", "finish_step", "abort_step", "wait_for_layer", "wait_on", "band_of",
        "lost_entries",
    ],
    "Changing sequences": ["fork", "rewind", "set_window", "commit_tree", "preempt", "resume"],
    "From cache to cache": ["prepare_receive", "receive_targets", "finish_receive", "abort_receive", "mark_send"],
    "What is cached": [
        "keep", "unkeep", "hold_on_host", "held_prefix", "release_hold", "advance", "now", "drop", "reset", "reclaim",
        "resize", "sleep", "wake",
    ],
    "Host tier": [
        "poll", "apply", "report_to_ranks", "apply_ranks", "event_fd", "set_ready_callback", "stop_loading",
        "pause_transfers", "resume_transfers", "take_transfers", "take_cancellations", "host_region",
    ],
    "Disk tier": [
        "flush", "wait_until_flushed", "disk_status", "remote_status", "lookup_on_disk", "direct_bytes", "put_on_disk", "get_from_disk",
    ],
    "Chunks": ["add_chunks", "lookup_chunks", "pin_chunks"],
    "External pools": ["offer", "match", "take_released"],
    "Memory": [
        "geometry", "device_memory", "component_memory", "state_slots", "state_memory", "layout", "context_tokens_max",
    ],
    "Looking at it": [
        "stats", "group_stats", "visit_runs", "visit_group_pages", "read_residency", "check_invariants",
    ],
}  # fmt: skip

INTRODUCTION = """# Python reference

Every public name of `quire` itself, made from the package by `scripts/python_reference.py`; a test compares. For
`quire.integrations.transformers` and `quire.replay` see [Python](python.md).
[Python](python.md) is the introduction, with what differs from C++. Names and meanings are those of the C++ headers,
which begin with [cache.h](../include/quire/cache.h); [the glossary](glossary.md) has the words.

- A class *made with its fields* has a constructor that takes each of them by name, and its fields can be set; the others
  are read-only.
- Where a list is asked for, a tuple or any other sequence will do. `prompt` and other tokens are a `Prompt`, an array of
  int32 or int64, or a list of int.
- `array[int32]` is a NumPy array of that type.
"""


def is_public(name: str) -> bool:
    return not name.startswith("_")


def type_text(node: ast.expr | None) -> str:
    text = "" if node is None else ast.unparse(node)
    text = re.sub(r"numpy\.typing\.NDArray\[numpy\.(\w+)\]", r"array[\1]", text)
    return text.replace("_Sequence[", "list[")


def text_of(node: ast.ClassDef | ast.FunctionDef) -> str:
    return flat(ast.get_docstring(node) or "")


def flat(text: str) -> str:
    """On one line, with names of two underscores as code: they would be bold."""
    return re.sub(r"(?<!`)__\w+__", r"`\g<0>`", " ".join(text.split()))


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 120, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def sentence(text: str) -> str:
    return text if not text or text.endswith((".", ":")) else text + "."


def arguments_text(function: ast.FunctionDef) -> str:
    given = [a for a in [*function.args.posonlyargs, *function.args.args] if a.arg != "self"]
    defaults: list[ast.expr | None] = [None] * (len(given) - len(function.args.defaults)) + list(function.args.defaults)
    parts = []
    for argument, default in zip(given, defaults):
        part = argument.arg
        if argument.annotation is not None and ast.unparse(argument.annotation) != "object":
            part += ": " + type_text(argument.annotation)
        if default is not None:
            part += (" = " if ":" in part else "=") + ast.unparse(default)
        parts.append(part)
    return ", ".join(parts)


def result_text(function: ast.FunctionDef) -> str:
    text = type_text(function.returns)
    return "" if text in ("None", "") else f" -> {text}"


def has_decorator(function: ast.FunctionDef, name: str) -> bool:
    return any(ast.unparse(decorator).endswith(name) for decorator in function.decorator_list)


def method_line(owner: str, function: ast.FunctionDef) -> str:
    text = text_of(function)
    if has_decorator(function, "property"):
        signature = f"{function.name}: {type_text(function.returns)}"
    else:
        prefix = f"{owner}." if has_decorator(function, "staticmethod") else ""
        signature = f"{prefix}{function.name}({arguments_text(function)}){result_text(function)}"
    return f"- `{signature}`" + (f"\\\n{wrapped(text, '  ')}" if text else "")


def function_part(function: ast.FunctionDef) -> list[str]:
    signature = f"{function.name}({arguments_text(function)}){result_text(function)}"
    return [f"### {function.name}()", f"`{signature}`", wrapped(sentence(text_of(function)))]


def enum_part(node: ast.ClassDef) -> list[str]:
    lines = ["| value | |", "|---|---|"]
    for index, item in enumerate(node.body):
        if not isinstance(item, ast.Assign):
            continue
        following = node.body[index + 1] if index + 1 < len(node.body) else None
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = flat(str(following.value.value))
        lines.append(f"| `{ast.unparse(item.targets[0])}` | {cell(text)} |")
    return [f"### {node.name}", wrapped(sentence(text_of(node))), "\n".join(lines)]


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef]:
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    return [item for item in functions if is_public(item.name) and not has_decorator(item, ".setter")]


def cache_part(node: ast.ClassDef) -> list[str]:
    methods = {method.name: method for method in methods_of(node)}
    listed = [name for names in CACHE_METHODS.values() for name in names]
    if sorted(listed) != sorted(methods):
        sys.exit(f"CACHE_METHODS and the stub differ in {sorted(set(listed) ^ set(methods))}")
    text = sentence(text_of(node)) + " A context manager: the end of the block closes it."
    parts = [f"### {node.name}", wrapped(text)]
    for title, names in CACHE_METHODS.items():
        parts += [f"**{title}**", "\n".join(method_line(node.name, methods[name]) for name in names)]
    return parts


def class_part(node: ast.ClassDef) -> list[str]:
    if node.name == "Cache":
        return cache_part(node)
    methods = methods_of(node)
    fields = [method for method in methods if has_decorator(method, "property")]
    others = [method for method in methods if method not in fields]
    constructor = next((i for i in node.body if isinstance(i, ast.FunctionDef) and i.name == "__init__"), None)
    texts = [sentence(text_of(node))]
    if constructor is not None and constructor.args.kwonlyargs:
        texts.append("Made with its fields.")
    elif constructor is not None:
        texts.append(f"Made with `{node.name}({arguments_text(constructor)})`.")
    parts = [f"### {node.name}", wrapped(" ".join(filter(None, texts)))]
    if fields:
        lines = ["| field | type | |", "|---|---|---|"]
        for field in fields:
            lines.append(f"| `{field.name}` | `{cell(type_text(field.returns))}` | {cell(text_of(field))} |")
        parts.append("\n".join(lines))
    if others:
        parts.append("\n".join(method_line(node.name, method) for method in others))
    return parts


def errors_part(nodes: list[ast.ClassDef]) -> list[str]:
    lines = ["| exception | is also | |", "|---|---|---|"]
    for node in nodes:
        bases = [ast.unparse(base) for base in node.bases if ast.unparse(base) != "Error"]
        also = ", ".join(f"`{base}`" for base in bases)
        lines.append(f"| `{node.name}` | {also} | {cell(text_of(node))} |")
    return ["All others are an `Error` too.", "\n".join(lines)]


def reference(stub: str) -> str:
    names: dict[str, ast.stmt] = {}
    for node in ast.parse(stub).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names[ast.unparse(node.target)] = node
    listed = [name for subject in SUBJECTS.values() for name in subject]
    twice = {name for name in listed if listed.count(name) > 1}
    unknown = {name for name in names if is_public(name)} ^ {name for name in listed if is_public(name)}
    if twice or unknown:
        sys.exit(f"SUBJECTS and the stub differ in {sorted(unknown)}; named twice: {sorted(twice)}")

    parts = [INTRODUCTION.strip()]
    links = [f"[{title}](#{title.lower().replace(' ', '-')})" for title in SUBJECTS]
    parts += ["Subjects:", "\n".join(f"- {link}" for link in links)]
    for title, subject in SUBJECTS.items():
        parts.append(f"## {title}")
        if title == "Errors":
            parts += errors_part([names[name] for name in subject])
            continue
        constants = []
        for name in subject:
            node = names[name]
            if isinstance(node, ast.FunctionDef):
                parts += function_part(node)
            elif isinstance(node, ast.ClassDef):
                is_enum = any("Enum" in ast.unparse(base) for base in node.bases)
                parts += enum_part(node) if is_enum else class_part(node)
            else:
                value = f" = {ast.unparse(node.value)}" if node.value is not None and name.isupper() else ""
                constants.append(f"- `{name}: {ast.unparse(node.annotation)}{value}`")
        if constants:
            parts += ["### Constants", "\n".join(constants)]
    return "\n\n".join(part for part in parts if part) + "\n"


def stub_path() -> pathlib.Path:
    import quire

    return pathlib.Path(quire.__file__).parent / "_quire.pyi"


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes docs/python_api.md from the package's stub.")
    parser.add_argument("--stub", type=pathlib.Path, help="another than that of the installed package")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 when the document is another one")
    arguments = parser.parse_args()
    text = reference((arguments.stub or stub_path()).read_text(encoding="utf-8"))
    if not arguments.check:
        DOCUMENT.write_text(text, encoding="utf-8")
    elif not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != text:
        sys.exit(f"{DOCUMENT} is not what the package says: run scripts/python_reference.py")


if __name__ == "__main__":
    main()
