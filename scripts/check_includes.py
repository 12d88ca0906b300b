#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and says which include breaks which rule; and that nothing is built on an example.

    check_includes.py <repository>    checks every C++ source and CMakeLists.txt in it; status 1 when a rule is broken
    check_includes.py --self-test     checks that what is good passes and what is bad is found

It needs no more of Python than Debian's python3-minimal has.
"""

import os
import re
import sys

# Which modules of src/ a module may include besides itself, and of include/quire everything but cache.h. The order is
# from the bottom up: a module never includes one that stands below it in this table. `metrics` is a library of its own,
# which uses the cache as an engine does.
MODULES = {
    "base": [],
    "layout": ["base"],
    "pool": ["base", "layout"],
    "prefix": ["base", "layout"],
    "policy": ["base", "layout"],
    "attention": ["base", "layout"],
    "wire": ["base", "layout"],
    "kernels": ["base", "layout"],
    "chunks": ["base", "layout"],
    "store": ["base", "layout", "wire", "kernels"],
    "remote": ["base", "layout", "wire"],
    "sequence": ["base", "layout", "pool", "prefix"],
    "transfer": ["base", "layout", "wire", "store"],
    "tiers": ["base", "layout", "pool", "prefix", "store", "sequence", "transfer"],
    "cache": ["base", "layout", "pool", "prefix", "policy", "attention", "wire", "kernels", "store", "sequence",
              "transfer", "tiers"],
    "metrics": ["base"],
    "testing": ["base", "layout", "pool", "prefix", "policy", "attention", "wire", "kernels", "store", "remote",
                "sequence", "transfer", "tiers"],
}

# The headers of other projects, by how their names begin, and who may include them. `test` stands for tests and
# benchmarks, `tool` for tools/, `src` for every module of the library, `public` for include/quire; else it is one module.
THIRD_PARTY = {
    "tl/": {"public", "src", "test", "tool"},
    "xxhash.h": {"src", "test"},
    "openssl/": {"src", "test"},
    "liburing.h": {"src", "test"},
    "zstd.h": {"src", "test"},
    "prometheus/": {"metrics"},
    "CLI/": {"tool"},
    "fmt/": {"tool"},
    "simdjson.h": {"tool", "test"},
    "nlohmann/": {"tool", "test"},
    "gtest/": {"test"},
    "gmock/": {"test"},
    "rapidcheck": {"test"},
    "benchmark/": {"test"},
    "hiredis/": {"test"},
    "nanobind/": {"tool"},
}

TOOL = os.path.join("tools", "quire")

# The engine that tests share with the tool's demo, and the part of it that must know nothing of what it judges.
ENGINE = os.path.join("tools", "tiny_engine")
ORACLE = tuple(os.path.join(ENGINE, name) for name in
               ("model.h", "model.cc", "draws.h", "oracle.h", "oracle.cc", "oracle_arithmetic.h", "oracle_fp8.h"))

# The one example that a test includes: a store, which must do what every store must.
STORE_EXAMPLE = "examples/shared_directory_store.h"

# Folders whose code sees what a user sees.
USERS = ("tools", "bindings", "integrations", "examples", os.path.join("tests", "consumer"))

SOURCE = re.compile(r"\.(h|cc|cu|cuh)$")
BUILD_FILE = re.compile(r"^CMakeLists\.txt$")
COMMENT = re.compile(r"#.*")  # of a CMakeLists.txt
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
STANDARD_CPP = re.compile(r"^[a-z_0-9]+$")  # <vector>
SYSTEM = re.compile(r"^((sys|linux|arpa|netinet)/)?[a-z0-9_]+\.h$")  # <sys/mman.h>, <immintrin.h>
CUDA = re.compile(r"^(cuda|cub/|thrust/|cooperative_groups|nv|driver_types\.h|vector_types\.h|device_launch_parameters\.h"
                  r"|math_constants\.h|mma\.h|sm_)")
CUDA_SOURCE = (".cu", ".cuh")  # what nvcc compiles; everything else is the host compiler's


def kind_of(path):
    """What a file is: public, a module's name, test or tool. None for files without rules."""
    parts = path.split(os.sep)
    # A test beside its source is a test wherever that is; what tests of the tool share is called test_….h.
    if path.endswith(("_test.cc", "_test.cu")) or path.startswith(os.path.join(TOOL, "test_")):
        return "test"
    if any(path.startswith(folder + os.sep) for folder in USERS):
        return "tool"
    if parts[0] in ("tests", "bench"):
        return "test"
    if path.startswith(os.path.join("include", "quire") + os.sep):
        return "public"
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return None


def broken_rule(path, bracket, name, exists):
    """The rule that `#include <name>` or `#include "name"` in `path` breaks, or None. `exists` answers for paths."""
    kind = kind_of(path)
    if kind is None:
        return "the file is in no module: a source belongs in src/<module>/"
    if kind not in MODULES and kind not in ("public", "test", "tool"):
        return f"the module {kind} is not in the table of scripts/check_includes.py"

    if bracket == "<":
        return broken_rule_of_foreign_header(path, kind, name)
    if name.endswith(CUDA_SOURCE) and not path.endswith(CUDA_SOURCE):
        return "only .cu and .cuh files include .cuh files"
    if ".." in name.split("/"):
        return "includes go by the path from src/ or include/, in tests also by tests/… or bench/…, never through .."
    if name.startswith("examples/"):
        return None if kind == "test" and name == STORE_EXAMPLE else "nothing includes an example"
    if path in ORACLE and os.path.join(ENGINE, name) not in ORACLE:
        return "the oracle shares nothing with the engine but the weights"
    if name.startswith("quire/"):
        return broken_rule_of_public_header(path, kind, name, exists)
    if kind == "public":
        return "a public header includes public headers only, by their path quire/…"
    if kind == "tool" and name.startswith("test_"):
        return "only tests include what tests share"
    if kind in ("tool", "test") and exists(os.path.join(os.path.dirname(path), name)):
        return None
    if kind == "test" and exists(os.path.join(TOOL, name)):
        return None
    if kind == "test" and name.startswith(("tests/", "bench/", ENGINE + "/")) and exists(name):
        return None
    if kind == "tool" and path.startswith(TOOL) and name == os.path.join(ENGINE, "demo.h"):
        return None  # the demo ends with it
    if not exists(os.path.join("src", name)):
        return "there is no such file under src/ or include/; other projects' headers go in <>"

    module = name.split("/")[0]
    if kind == "test" or module == kind:
        return None
    if kind == "tool":
        if module == "wire" and os.path.basename(path).startswith("inspect"):
            return None
        return "tools, bindings, integrations and examples include include/quire only"
    if module == "testing":
        return "only tests and benchmarks include testing"
    if module not in MODULES[kind]:
        may = ", ".join(MODULES[kind]) or "no other module"
        return f"{kind} may include {may}, not {module}"
    return None


def broken_rule_of_public_header(path, kind, name, exists):
    if not exists(os.path.join("include", name)):
        return "there is no such public header"
    # cache.h and quire.h, which includes it, stand above all modules but their own and the metrics of a cache.
    is_below_cache = kind in MODULES and kind not in ("cache", "metrics")
    is_value_header = kind == "public" and os.path.basename(path) not in ("cache.h", "metrics.h", "quire.h")
    if name in ("quire/cache.h", "quire/quire.h") and (is_below_cache or is_value_header):
        return f"{name} is above {'the other public headers' if is_value_header else kind}"
    return None


def broken_rule_of_foreign_header(path, kind, name):
    if name.startswith("quire/"):
        return "quire's own headers go in quotes"
    if CUDA.match(name):
        return None if path.endswith(CUDA_SOURCE) else "only .cu and .cuh files include CUDA headers"
    if STANDARD_CPP.match(name):
        return None
    role = "src" if kind in MODULES else kind
    for prefix, roles in THIRD_PARTY.items():
        if name.startswith(prefix):
            is_allowed = role in roles or kind in roles or (kind == "testing" and "test" in roles)
            return None if is_allowed else f"{name} is not for {kind}"
    if role == "public":
        return "a public header includes the standard library, tl::expected and quire/… only"
    if SYSTEM.match(name):
        return None
    return "the header is not in the table of scripts/check_includes.py"


def lacks_own_header(path, first, exists):
    """Whether `path` should include its own header first, and `first` is another one or None. A header that is included
    so compiles alone, which is why tests/CMakeLists.txt does not check that once more."""
    if not path.startswith("src" + os.sep) or not path.endswith((".cc", ".cu")):
        return False
    own = path[:-len(".cc")] + (".h" if path.endswith(".cc") else ".cuh")
    return exists(own) and (first is None or os.path.join("src", first) != own)


def broken_rule_of_build_file(path, text):
    """The rule that a CMakeLists.txt breaks, or None. The root's adds the examples, and tests run and show them."""
    text = COMMENT.sub("", text)
    folder = path.split(os.sep)[0]
    if folder == "examples":
        return "an example is a program, so that nothing can link it" if "add_library" in text else None
    if folder not in ("CMakeLists.txt", "tests") and "examples" in text:
        return "nothing is built on an example"
    return None


def files_in(root, pattern):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f != "build" and not f.startswith("."))
        for file in sorted(files):
            if pattern.search(file):
                yield os.path.relpath(os.path.join(folder, file), root)


def check(root):
    def exists(path):
        return os.path.exists(os.path.join(root, path))

    file_count = include_count = error_count = 0
    for path in files_in(root, BUILD_FILE):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            rule = broken_rule_of_build_file(path, file.read())
        if rule:
            error_count += 1
            print(f"{path}: {rule}")
    for path in files_in(root, SOURCE):
        file_count += 1
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        first = INCLUDE.search(text)
        if lacks_own_header(path, first and first.group(2), exists):
            error_count += 1
            print(f"{path}: its own header is included before all others")
        for match in INCLUDE.finditer(text):
            include_count += 1
            bracket, name = match.groups()
            rule = broken_rule(path, bracket, name, exists)
            if rule:
                error_count += 1
                line = text.count("\n", 0, match.start()) + 1
                close = ">" if bracket == "<" else '"'
                print(f"{path}:{line}: #include {bracket}{name}{close}: {rule}")
    print(f"{include_count} includes in {file_count} files, {error_count} against the rules")
    return error_count == 0 and file_count > 0


def self_test():
    good = [
        ("include/quire/types.h", "<cstdint>"),
        ("include/quire/result.h", "<tl/expected.hpp>"),
        ("include/quire/cache.h", '"quire/types.h"'),
        ("include/quire/quire.h", '"quire/cache.h"'),
        ("src/base/hash.cc", "<xxhash.h>"),
        ("src/base/hash.cc", "<sys/mman.h>"),
        ("src/base/sha256.cc", "<openssl/sha.h>"),
        ("src/chunks/chunk_index.cc", '"quire/types.h"'),
        ("src/store/system_files.cc", "<liburing.h>"),
        ("src/store/file_store.cc", "<zstd.h>"),
        ("src/wire/page_name_test.cc", "<openssl/evp.h>"),
        ("src/metrics/metrics_server.cc", "<prometheus/exposer.h>"),
        ("src/metrics/families.cc", '"quire/cache.h"'),
        ("include/quire/metrics.h", '"quire/cache.h"'),
        ("src/pool/page_pool.cc", '"pool/page_pool.h"'),
        ("src/pool/page_pool.cc", '"base/check.h"'),
        ("src/sequence/sequence.cc", '"prefix/prefix_tree.h"'),
        ("src/cache/cache.cc", '"quire/cache.h"'),
        ("src/cache/cache.cc", '"prefix/prefix_tree.h"'),
        ("src/kernels/gather.cu", "<cuda_runtime.h>"),
        ("src/kernels/gather.cu", '"kernels/launch.cuh"'),
        ("src/kernels/gather.cu", '"kernels/pieces.h"'),
        ("src/kernels/launch.cuh", "<cuda_runtime.h>"),
        ("src/kernels/launch.cuh", '"base/check.h"'),
        ("src/kernels/gather_test.cu", "<gtest/gtest.h>"),
        ("tests/gpu/device_buffer.cu", "<cuda_runtime.h>"),
        ("tests/gpu/device_buffer.cu", '"tests/gpu/device_buffer.h"'),
        ("src/pool/page_pool_test.cc", '"testing/workloads.h"'),
        ("src/pool/page_pool_test.cc", "<gtest/gtest.h>"),
        ("tests/model/tree_model_test.cc", '"prefix/prefix_tree.h"'),
        ("tests/model/cache_model_test.cc", '"tests/cache/cache_fixture.h"'),
        ("tests/transfer/remote_store_contract_test.cc", '"examples/shared_directory_store.h"'),
        ("bench/lookup.cc", "<benchmark/benchmark.h>"),
        ("tools/quire/main.cc", '"commands.h"'),
        ("tools/quire/main.cc", "<CLI/CLI.hpp>"),
        ("tools/quire/inspect.cc", '"wire/page_file.h"'),
        ("tools/quire/trace.cc", "<simdjson.h>"),
        ("tools/quire/report.cc", "<nlohmann/json.hpp>"),
        ("tools/quire/trace_test.cc", "<gtest/gtest.h>"),
        ("tools/quire/trace_test.cc", '"testing/workloads.h"'),
        ("tools/quire/trace_test.cc", '"commands.h"'),
        ("tools/quire/report_test.cc", "<nlohmann/json.hpp>"),
        ("tools/quire/report_test.cc", '"test_traces.h"'),
        ("tools/quire/test_traces.h", "<gtest/gtest.h>"),
        ("tests/tool/report_samples.cc", '"commands.h"'),
        ("tools/tiny_engine/oracle.cc", '"oracle.h"'),
        ("tools/tiny_engine/oracle.h", '"model.h"'),
        ("tools/tiny_engine/engine.cc", '"quire/types.h"'),
        ("tests/engine/engine_random_test.cc", '"tools/tiny_engine/oracle.h"'),
        ("tools/quire/demo.cc", '"tools/tiny_engine/demo.h"'),
    ]
    bad = [
        ("include/quire/types.h", '"base/check.h"'),
        ("include/quire/types.h", '"quire/cache.h"'),
        ("include/quire/types.h", "<unistd.h>"),
        ("include/quire/types.h", "<fmt/format.h>"),
        ("include/quire/types.h", "<openssl/evp.h>"),
        ("include/quire/types.h", "<liburing.h>"),
        ("include/quire/types.h", "<zstd.h>"),
        ("include/quire/metrics.h", "<prometheus/exposer.h>"),
        ("src/cache/cache.cc", "<prometheus/exposer.h>"),
        ("src/metrics/families.cc", '"pool/page_pool.h"'),
        ("tools/quire/inspect.cc", "<openssl/evp.h>"),
        ("tools/quire/inspect.cc", "<liburing.h>"),
        ("tools/quire/inspect.cc", "<zstd.h>"),
        ("src/base/check.cc", '"pool/page_pool.h"'),
        ("src/base/check.cc", '"quire/cache.h"'),
        ("src/pool/page_pool.cc", '"prefix/prefix_tree.h"'),
        ("src/prefix/prefix_tree.cc", '"policy/lru.h"'),
        ("src/chunks/chunk_index.cc", '"prefix/prefix_tree.h"'),
        ("src/prefix/prefix_tree.cc", '"../base/check.h"'),
        ("src/prefix/prefix_tree.cc", '"prefix/no_such_file.h"'),
        ("src/prefix/prefix_tree.cc", "<quire/types.h>"),
        ("src/prefix/prefix_tree.cc", "<boost/any.hpp>"),
        ("src/store/host_store.cc", "<cuda_runtime.h>"),
        ("include/quire/device.h", "<cuda_runtime_api.h>"),
        ("include/quire/device_kernels.h", "<driver_types.h>"),
        ("src/kernels/pieces.h", "<cuda>"),
        ("src/kernels/gather.cc", '"kernels/launch.cuh"'),
        ("src/kernels/pieces.h", '"kernels/launch.cuh"'),
        ("tests/gpu/device_buffer.h", "<cuda_runtime.h>"),
        ("tests/gpu/append_test.cc", '"kernels/launch.cuh"'),
        ("src/kernels/gather.cu", '"pool/page_pool.h"'),
        ("src/kernels/gather.cu", '"quire/cache.h"'),
        ("src/kernels/gather.cu", "<gtest/gtest.h>"),
        ("src/kernels/launch.cuh", '"store/host_store.h"'),
        ("src/strange/new.cu", "<vector>"),
        ("src/transfer/queue.cc", '"pool/page_pool.h"'),
        ("src/cache/cache.cc", '"testing/workloads.h"'),
        ("src/cache/cache.cc", "<gtest/gtest.h>"),
        ("src/testing/workloads.cc", '"cache/cache_impl.h"'),
        ("src/cache/cache.cc", '"tests/cache/cache_fixture.h"'),
        ("src/strange/new.cc", "<vector>"),
        ("src/stray.cc", "<vector>"),
        ("tools/quire/tree.cc", '"prefix/prefix_tree.h"'),
        ("tools/quire/tree.cc", '"wire/page_file.h"'),
        ("tools/quire/trace.cc", "<gtest/gtest.h>"),
        ("tools/quire/trace.cc", '"testing/workloads.h"'),
        ("tools/quire/trace.cc", '"test_traces.h"'),
        ("src/cache/cache.cc", '"commands.h"'),
        ("include/quire/stats.h", "<nlohmann/json.hpp>"),
        ("src/wire/page_file.cc", "<nlohmann/json.hpp>"),
        ("src/wire/page_file.cc", "<simdjson.h>"),
        ("tests/consumer/main.cc", '"base/check.h"'),
        ("tools/tiny_engine/oracle.cc", '"quire/types.h"'),
        ("tools/tiny_engine/oracle.cc", '"engine.h"'),
        ("tools/tiny_engine/engine.cc", '"base/check.h"'),
        ("src/cache/cache.cc", '"tools/tiny_engine/oracle.h"'),
        ("tools/quire/demo.cc", '"tools/tiny_engine/engine.h"'),
        ("tools/quire/demo.cc", '"examples/engine_loop.h"'),
        ("tests/engine/engine_random_test.cc", '"examples/engine_loop.h"'),
    ]
    existing = {
        "include/quire/types.h", "include/quire/cache.h", "src/base/check.h", "src/pool/page_pool.h",
        "src/prefix/prefix_tree.h", "src/policy/lru.h", "src/testing/workloads.h", "src/cache/cache_impl.h",
        "src/wire/page_file.h", "tools/quire/commands.h", "tools/quire/test_traces.h",
        "tests/cache/cache_fixture.h", "tools/tiny_engine/model.h", "tools/tiny_engine/oracle.h",
        "tools/tiny_engine/engine.h", "src/kernels/launch.cuh", "src/kernels/pieces.h", "src/store/host_store.h",
        "tests/gpu/device_buffer.h", "examples/engine_loop.h",
    }
    wrong = []
    for cases, want_broken in ((good, False), (bad, True)):
        for path, include in cases:
            rule = broken_rule(path, include[0], include[1:-1], existing.__contains__)
            if bool(rule) != want_broken:
                wrong.append(f"{path}: #include {include}: {rule or 'was let through'}")
    for first, is_wrong in (("base/check.h", False), ("quire/types.h", True), ("check.h", True), (None, True)):
        if lacks_own_header("src/base/check.cc", first, existing.__contains__) != is_wrong:
            wrong.append(f"src/base/check.cc: {first} as its first include")
    for first, is_wrong in (("kernels/launch.cuh", False), ("cuda_runtime.h", True)):
        if lacks_own_header("src/kernels/launch.cu", first, existing.__contains__) != is_wrong:
            wrong.append(f"src/kernels/launch.cu: {first} as its first include")
    if lacks_own_header("src/base/no_header.cc", "quire/types.h", existing.__contains__):
        wrong.append("src/base/no_header.cc: has no header to include")
    for path, text, is_wrong in (
            ("CMakeLists.txt", "add_subdirectory(examples)", False),
            ("examples/CMakeLists.txt", "add_executable(quickstart quickstart.cc)", False),
            ("examples/CMakeLists.txt", "add_library(parts STATIC parts.cc)", True),
            ("tests/tool/CMakeLists.txt", "add_test(NAME restart COMMAND t ../../examples/restart.cc)", False),
            ("tools/quire/CMakeLists.txt", "add_library(parts demo.cc) # not one of the examples", False),
            ("tools/quire/CMakeLists.txt", "target_sources(quire_tool PRIVATE ../../examples/restart.cc)", True)):
        if bool(broken_rule_of_build_file(path, text)) != is_wrong:
            wrong.append(f"{path}: {text}")
    print("\n".join(wrong) if wrong else f"{len(good)} good and {len(bad)} bad includes are told apart")
    return not wrong


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(0 if (self_test() if sys.argv[1] == "--self-test" else check(sys.argv[1])) else 1)
