#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_test.py <repository> <compiler>...: what users' compilers say of the public headers and of the examples.

- All of them compile without a warning under the flags that strict projects use.
- Members of public structs that users fill in have initialisers, so that {.one = 1} is no warning either.
- Each source of refused/ does not compile, with an error that has the words behind its "error: "; with -DRIGHT, which
  is the same thing done right, it does.

Compilers that are not installed are left out, but for the first.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
# What the library fills in, and users just read.
READ_ONLY_HEADERS = {"disk_store.h", "introspect.h", "plan.h", "stats.h"}
# Without a value that could be meant: it must be given.
REQUIRED_TYPES = {"ModelLayout", "PageGeometry"}
MEMBER = re.compile(r"^ +((?:const )?[A-Za-z_][\w:]*(?:<.*>)?(?: const)?[ *&]+)(\w+);")
NOT_A_TYPE = {"using", "return", "friend", "class", "struct", "enum", "static"}

failures: list[str] = []


def compile_source(compiler: str, root: pathlib.Path, source: pathlib.Path, *options: str) -> subprocess.CompletedProcess:
    command = [compiler, *FLAGS, *options, f"-I{root / 'include'}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check_warnings(compiler: str, root: pathlib.Path, folder: pathlib.Path) -> None:
    headers = sorted((root / "include" / "quire").glob("*.h"))
    everything = folder / "every_header.cc"
    everything.write_text("".join(f'#include "quire/{header.name}"\n' for header in headers), encoding="utf-8")
    sources = [everything, *sorted((root / "examples").glob("*.cc"))]
    if len(sources) < 5:
        failures.append(f"there are no examples in {root}")
    for source in sources:
        done = compile_source(compiler, root, source, "-Werror")
        if done.returncode != 0:
            failures.append(f"{compiler}, {source.name}:\n{done.stderr}")


def members_without_a_value(text: str) -> list[str]:
    """Of structs, not of classes, whose members are private."""
    found = []
    scopes: list[str] = []
    for line in text.splitlines():
        member = MEMBER.match(line)
        kind = member.group(1).split()[0] if member else ""
        if member and scopes and scopes[-1] == "struct" and kind not in NOT_A_TYPE | REQUIRED_TYPES:
            found.append(line.strip())
        if re.match(r"^ *(private|protected):", line) and scopes:
            scopes[-1] = "private"
        for word, brace in re.findall(r"\b(struct|class|enum|namespace)\b[^;{}()]*\{|([{}])", line.split("//")[0]):
            if word or brace == "{":
                scopes.append(word or brace)
            elif scopes:
                scopes.pop()
    return found


def check_members(root: pathlib.Path) -> None:
    if members_without_a_value("struct A {\n  int b = 0;\n  std::string c;\n};") != ["std::string c;"]:
        failures.append("the search for members without an initialiser does not find one")
    for header in sorted((root / "include" / "quire").glob("*.h")):
        if header.name in READ_ONLY_HEADERS:
            continue
        for line in members_without_a_value(header.read_text(encoding="utf-8")):
            failures.append(f"{header.name}: give it an initialiser, such as = {{}}: {line}")


def check_refused(compiler: str, root: pathlib.Path) -> None:
    sources = sorted(pathlib.Path(__file__).with_name("refused").glob("*.cc"))
    if not sources:
        failures.append("there are no sources in refused/")
    for source in sources:
        words = re.search(r"error: (.*)", source.read_text(encoding="utf-8"))
        assert words, f"{source} has no line with 'error: ' and the words that a compiler says"
        right = compile_source(compiler, root, source, "-Werror", "-DRIGHT")
        if right.returncode != 0:
            failures.append(f"{compiler}, {source.name} with -DRIGHT:\n{right.stderr}")
        wrong = compile_source(compiler, root, source)
        if wrong.returncode == 0 or not re.search(words.group(1), wrong.stderr):
            failures.append(f"{compiler}, {source.name} should say '{words.group(1)}':\n{wrong.stderr}")


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    compilers = [c for i, c in enumerate(sys.argv[2:]) if i == 0 or shutil.which(c)]
    check_members(root)
    with tempfile.TemporaryDirectory() as folder:
        for compiler in compilers:
            check_warnings(compiler, root, pathlib.Path(folder))
            check_refused(compiler, root)
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures with {', '.join(compilers)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
