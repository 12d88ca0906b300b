# SPDX-License-Identifier: Apache-2.0
"""Everything in the public headers has the same name in Python; what has not stands here, with the reason."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import quire
from byte_engine import config

INCLUDE = Path(__file__).parents[2] / "include" / "quire"
HEADERS = [
    "budget.h",
    "cache.h",
    "cache_group.h",
    "chunk_index.h",
    "config.h",
    "device.h",
    "disk_store.h",
    "entry_formats.h",
    "introspect.h",
    "key_space.h",
    "layout.h",
    "metrics.h",
    "mover.h",
    "plan.h",
    "policy.h",
    "result.h",
    "state_slots.h",
    "stats.h",
    "swap.h",
    "transfer.h",
    "types.h",
    "version.h",
]
KERNELS = "kernels and what they are called with, for engines in C++"
HEADER_EXCEPTIONS = {
    "device_kernels.h": KERNELS,
    "device_plan_buffer.h": KERNELS,
    "host_kernels.h": KERNELS,
    "quantised_kernels.h": KERNELS,
    "quire.h": "includes the others",
    "redis_inspect.h": "what servers have is for the tool",
    "redis_store.h": "servers are named by RemoteConfig",
    "remote_store.h": "stores of one's own are C++",
    "swap_kernels.h": KERNELS,
}

ROWS = "rows of NumPy arrays in plans"
ARGUMENTS = "its fields are arguments in Python"
POLICY = "of policies of one's own, which are C++"
BACKEND = "for backends of accelerators, which are C++"
STRUCT_EXCEPTIONS = {
    "Error": "exceptions, one class for each ErrorCode",
    "Offer": ARGUMENTS,
    "InspectOptions": ARGUMENTS,
    "VerifyOptions": ARGUMENTS,
    "PageCopy": ROWS,
    "TokenMove": ROWS,
    "PageDelta": ROWS,
    "TreeNode": ROWS,
    "StateCopy": ROWS,
    "StateSend": ROWS,
    "Id": "page and run ids are int in Python",
    "PageHandle": "an int in Python, and None where there is none",
    "PolicyLimits": POLICY,
    "Retention": POLICY,
    "PageChange": POLICY,
    "DeviceStream": BACKEND,
    "DeviceEvent": BACKEND,
    "CopyList": BACKEND,
    "HoldOptions": ARGUMENTS,
    "PageName": "bytes in Python",
    "RankReport": ARGUMENTS,
    "WaitOptions": "timeout_s in Python; the clock is the system's",
}
FIELD_EXCEPTIONS = {
    ("CacheConfig", "custom_policy"): "a policy of one's own is C++",
    ("RemoteConfig", "store"): "a store of one's own is C++",
    ("AdoptedTensor", "page_stride"): "of the tensor",
    ("Step", "cache"): "a pointer, for the check that Python makes too",
    ("BlockTableView", "columns"): "the second dimension of block_table",
}
ENUM_EXCEPTIONS = {"ErrorCode": "exceptions, one class for each"}
CLASS_EXCEPTIONS = {
    "Cache": "compared below",
    "Policy": POLICY,
    "Id": "page and run ids are int in Python",
}
METHOD_EXCEPTIONS = {
    "set_owner_thread": "any thread may call in Python",
    "prompt_buffer": "begin() converts tokens into it",
    "config": "layout and context_tokens_max are properties; the rest is what the caller gave",
}
FUNCTION_EXCEPTIONS = {
    "to_string": "enumerators have names: Tier.Host.name",
    "fail": "makes an Error; Python raises",
    "describe": "describe_budget",
    "make_policy": POLICY,
    "is_of_lower_tier": "kinds have names that say so",
}
PYTHON_ONLY_METHODS = {
    "close": "the destructor",
    "component_memory": "an array in place of offsets",
    "context_tokens_max": "of config()",
    "is_closed": "asks whether close() was called",
    "layout": "of config()",
    "now": "what waits tell the cache",
}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def body_at(text, start):
    """What stands between the brace at `start` and its match."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1 : i]
    raise AssertionError("braces do not match")


def statements(body):
    """Split at semicolons and blocks of the outermost level."""
    depth, begin = 0, 0
    for i, character in enumerate(body):
        depth += {"{": 1, "}": -1, "(": 1, ")": -1}.get(character, 0)
        if depth == 0 and (character == ";" or (character == "}" and "(" in body[begin:i])):
            yield body[begin:i].strip()
            begin = i + 1


def headers():
    for name in HEADERS:
        yield name, without_comments((INCLUDE / name).read_text())


def structs():
    found = {}
    for _, text in headers():
        for match in re.finditer(r"\bstruct (\w+)\s*\{", text):
            fields = []
            for statement in statements(body_at(text, match.end() - 1).split("private:")[0]):
                if getter := re.search(r"(\w+)\(\) const$", statement.split("{")[0].strip()):
                    if re.search(rf"\b{getter[1]}_;", text):  # a member that is read by a call of its name
                        fields.append(getter[1])
                declared = re.split(r"=|\{", statement, maxsplit=1)[0].strip()
                if not declared or "(" in declared or re.match(r"(friend|static|using|\[\[|enum|explicit)", declared):
                    continue
                if name := re.search(r"(\w+)$", declared):
                    fields.append(name[1])
            found[match[1]] = fields
    return found


def enums():
    found = {}
    for _, text in headers():
        for match in re.finditer(r"enum class (\w+)[^{;]*\{", text):
            body = body_at(text, match.end() - 1)
            found[match[1]] = [part.strip().split("=")[0].strip() for part in body.split(",") if part.strip()]
    return found


def cache_methods():
    text = dict(headers())["cache.h"]
    body = body_at(text, re.search(r"class Cache \{", text).end() - 1).split("private:")[0]
    names = set()
    for statement in statements(body):
        flat = " ".join(statement.split()).replace("[[nodiscard]]", "").replace("public:", "")
        if "operator" in flat or "(" not in flat:
            continue
        name = re.search(r"([~\w]+)$", flat[: flat.index("(")].strip())
        if name and not name[1].startswith("~") and name[1] != "Cache":
            names.add(name[1])
    return names


def without_bodies(text):
    """What stands outside of all braces but those of the namespace."""
    body = body_at(text, re.search(r"namespace quire \{", text).end() - 1)
    kept, depth = [], 0
    for character in body:
        depth += character == "{"
        if depth == 0:
            kept.append(character)
        depth -= character == "}"
        if depth == 0 and character == "}":
            kept.append(";")
    return "".join(kept)


def function_names(statements_of):
    names = set()
    for statement in statements_of:
        flat = " ".join(statement.split())
        if "(" not in flat or "=" in flat.split("(")[0]:
            continue
        if re.search(r"\boperator\b|^(friend|using|template|struct|class|enum)\b|#", flat):
            continue
        if name := re.search(r"([~\w]+)$", flat[: flat.index("(")].strip()):
            names.add(name[1])
    return names


def free_functions():
    names = set()
    for _, text in headers():
        flat = re.sub(r"\[\[\w+\]\]", "", without_bodies(re.sub(r"^#.*$", "", text, flags=re.M)))
        names |= function_names(flat.split(";"))
    return {name for name in names if not name.startswith("QUIRE")}


def methods():
    """Of every class and struct, those that anybody may call."""
    found = {}
    for _, text in headers():
        for match in re.finditer(r"\b(?:struct|class) (\w+)(?: final)?(?: : [^{;]*)?\s*\{", text):
            body = body_at(text, match.end() - 1).split("private:")[0]
            made = [re.sub(r"\[\[\w+\]\]|public:|virtual", "", part) for part in statements(body)]
            names = {name for name in function_names(made) if "~" not in name and name != match[1]}
            if names:
                found[match[1]] = names
    return found


def test_the_parser_sees_what_the_headers_have():
    assert structs()["KeySpace"] == ["model", "revision", "adapter", "element", "rope", "salt"]
    assert len(structs()["Stats"]) > 70 and len(structs()["CacheConfig"]) > 20
    assert enums()["Tier"] == ["Device", "Host", "Disk", "Remote"]
    assert {"open", "plan_step", "config", "flush", "check_invariants"} <= cache_methods()
    assert len(cache_methods()) > 55
    assert {"has_pages", "encode", "use_format", "preset", "ring_entry", "open_cuda_device"} <= free_functions()
    assert methods()["Cache"] == cache_methods()
    assert {"create", "offset_of", "pool_of"} <= methods()["StateSlots"]
    assert methods()["KeySpace"] == {"canonical_form"}


def test_every_header_is_looked_at():
    assert {path.name for path in INCLUDE.glob("*.h")} == set(HEADERS) | set(HEADER_EXCEPTIONS)


def test_every_function_has_its_name():
    missing = {name for name in free_functions() if not callable(getattr(quire, name, None))}
    assert missing == set(FUNCTION_EXCEPTIONS)


def test_every_method_has_its_name():
    missing = set()
    backend = methods()["Device"] - {"index", "name", "multiprocessor_count", "create_stream", "destroy_stream"}
    backend -= {"pci_bus_id"}
    backend -= {"register_host", "unregister_host", "synchronize"}
    for name, names in methods().items():
        if name in STRUCT_EXCEPTIONS or name in CLASS_EXCEPTIONS:
            continue
        missing |= {(name, method) for method in names if not hasattr(getattr(quire, name), method)}
    missing.remove(("SwapConfig", "double"))  # a std::function<double()>: the clock of tests in C++
    # Host pages are C++; the tier below a mover is too.
    assert missing == {("Mover", "host_pages")} | {("Device", name) for name in backend}


def test_every_struct_has_a_class_of_its_name():
    missing = {name for name, fields in structs().items() if fields and not hasattr(quire, name)}
    assert missing == set(STRUCT_EXCEPTIONS) - {"Error"}


@pytest.mark.parametrize("name", sorted(name for name, fields in structs().items() if fields and hasattr(quire, name)))
def test_every_field_has_its_name(name):
    if name in STRUCT_EXCEPTIONS:
        return
    known = set(dir(getattr(quire, name)))
    missing = {field for field in structs()[name] if field not in known and (name, field) not in FIELD_EXCEPTIONS}
    assert missing == set()
    stale = {field for (of, field) in FIELD_EXCEPTIONS if of == name and field in known}
    assert stale == set()


def test_no_class_has_fields_that_the_struct_has_not():
    for name, fields in structs().items():
        made = getattr(quire, name, None)
        if name in STRUCT_EXCEPTIONS or not hasattr(made, "_fields"):
            continue
        assert set(made._fields) <= set(fields), name


def test_every_enum_has_its_values_in_order():
    for name, values in enums().items():
        if name in ENUM_EXCEPTIONS:
            continue
        if name == "StateCopyKind":
            continue  # below
        made = getattr(quire, name)
        names = [("None_" if value == "None" else value) for value in values]  # None is a word of Python's
        assert list(made.__members__) == names, name
        assert [getattr(made, value).value for value in names] == list(range(len(names)))


def test_the_kinds_of_state_copies_have_names():
    assert list(quire.StateCopyKind.__members__) == enums()["StateCopyKind"]


def test_every_method_of_a_cache_has_its_name():
    known = {name for name in dir(quire.Cache) if not name.startswith("_")}
    assert cache_methods() - known == set(METHOD_EXCEPTIONS)
    assert known - cache_methods() == set(PYTHON_ONLY_METHODS)


def test_every_error_code_is_an_exception():
    for name in enums()["ErrorCode"]:
        assert issubclass(getattr(quire, name), quire.Error)


def test_the_functions_beside_the_classes_are_there():
    for name in ("preset", "preset_names", "policy_names", "layer_range", "solve_budget", "flashinfer_view"):
        assert callable(getattr(quire, name))
    assert quire.layer_range(3, 4) == [3, 4, 5, 6]
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", quire.__version__)
    assert f'"{quire.__version__}"' in (INCLUDE / "version.h").read_text()
    assert (quire.NULL_PAGE, quire.NO_SLOT) == (0, -1)


# Values that differ from the defaults, for every field of a configuration


def other_value(value, made, field):
    """A value of the same type that is not `value`."""
    special = {
        ("CacheConfig", "layout"): lambda: quire.ModelLayout.opaque(24),
        ("DeviceConfig", "adopted_memory"): lambda: np.zeros(4, np.uint8),
        ("DeviceConfig", "adopted_group_memory"): lambda: [np.zeros(4, np.uint8)],
        ("DeviceConfig", "adopted_state_memory"): lambda: np.zeros(4, np.uint8),
        ("DeviceConfig", "adopted_tensors"): lambda: [[quire.AdoptedTensor(layer_index=3)]],
        ("DeviceConfig", "accelerator"): lambda: object(),
        ("AdoptedTensor", "data"): lambda: np.zeros(4, np.uint8),
        ("AdoptedTensor", "component_index"): lambda: 1,
        ("HostConfig", "clean_reserve_pages"): lambda: 7,
        ("HostRegionConfig", "numa_node"): lambda: 1,
        ("CacheConfig", "keep_pages_max"): lambda: 9,
        ("CacheConfig", "partial_reuse_min_tokens"): lambda: 3,
        ("CacheConfig", "lost_page_count_max"): lambda: 11,
        ("ChunkConfig", "pinned_pages_max"): lambda: 6,
        ("MoverPart", "geometry"): lambda: object(),
        ("MoverPart", "memory"): lambda: np.zeros(4, np.uint8),
        ("MoverPart", "tensors"): lambda: [quire.AdoptedTensor(layer_index=2)],
        ("MoverPool", "parts"): lambda: [quire.MoverPart()],
        ("MoverConfig", "device_geometry"): lambda: object(),
        ("MoverConfig", "device_memory"): lambda: np.zeros(4, np.uint8),
        ("MoverConfig", "pools"): lambda: [quire.MoverPool(host_page_count=4)],
        ("MoverConfig", "accelerator"): lambda: object(),
        ("SwapConfig", "device"): lambda: object(),
        ("SwapConfig", "layers"): lambda: [[]],
        ("SwapConfig", "records"): lambda: np.zeros(4, np.uint8),
        ("SwapStreams", "copies"): lambda: 11,
        ("SwapStreams", "kernels"): lambda: 12,
        ("SwapStreams", "more_kernels"): lambda: 13,
        ("SwapOrder", "device_pages"): lambda: [1, 2],
        ("SwapOrder", "records"): lambda: [3, 4],
        ("SwapOrder", "expected"): lambda: [5, 1 << 63],
        ("SwapOrder", "after"): lambda: 14,
        ("SwapOrder", "path"): lambda: quire.SwapPath.Staged,
        ("MetricsConfig", "port"): lambda: 9100,
        ("MetricsConfig", "start_time_seconds"): lambda: 1.5,
        **{
            (name, field): lambda: quire.SwapPaths(few_pages_max=3)
            for name in ("HostConfig", "MoverConfig", "SwapConfig")
            for field in ("load_paths", "store_paths")
        },
        ("HostConfig", "group_page_counts"): lambda: [4, 5],
        ("HostConfig", "hold_pages_max"): lambda: 7,
        ("HostConfig", "rank_movers"): lambda: [object()],
        ("CacheConfig", "expected_requests"): lambda: [quire.ExpectedRequest(context_tokens=5)],
        ("DiskConfig", "rank_index"): lambda: 1,
        ("RemoteConfig", "rank_index"): lambda: 1,
        ("RemoteConfig", "urls"): lambda: ["unix:///tmp/a", "unix:///tmp/b"],
        ("RemoteConfig", "group_retention"): lambda: [quire.GroupRetention(interval_tokens=64)],
        ("TransferStreams", "given"): lambda: [quire.SwapStreams(copies=8)],
        ("DeviceConfig", "group_page_counts"): lambda: [4, 5],
        ("DiskConfig", "directories"): lambda: ["/tmp/a", "/tmp/b"],
        ("DiskConfig", "group_retention"): lambda: [quire.GroupRetention(interval_tokens=64)],
        ("DiskConfig", "group_capacity_bytes"): lambda: [1 << 40],
        ("PlanConfig", "layer_windows"): lambda: [128, 256],
        ("CacheGroup", "layers"): lambda: [1, 4],
        ("CacheGroup", "components"): lambda: [quire.Component(name="k", dim=8)],
        ("Component", "record_offset"): lambda: 16,
        ("EntryFormat", "components"): lambda: [quire.Component(name="k", dim=8)],
        ("RowLocation", "page"): lambda: 3,
        ("GroupPages", "page_ids"): lambda: [3, 0],
        ("Component", "initial"): lambda: b"\x01\x02",
        ("SequenceOptions", "match_tokens_max"): lambda: 12,
        ("SequenceOptions", "ttl_ns"): lambda: 1 << 50,
        ("SequenceOptions", "priority"): lambda: -3,
        ("BudgetRequest", "mix"): lambda: [quire.ExpectedRequest(context_tokens=5)],
        ("ReceiveTargets", "windows"): lambda: [quire.WindowRun(group=1, position=5)],
        ("ExtraKey", "item"): lambda: b"x" * 32,
        ("Completion", "id"): lambda: None,
    }
    if (type(made).__name__, field) in special:
        return special[type(made).__name__, field]()
    if isinstance(value, bool):
        return not value
    if hasattr(type(value), "__members__"):
        return next(other for other in type(value).__members__.values() if other != value)
    if isinstance(value, int):
        return value + 5
    if isinstance(value, float):
        return value / 2
    if isinstance(value, str):
        return value + "x"
    if hasattr(value, "_fields"):
        return filled(type(value))
    raise AssertionError(f"{type(made).__name__}.{field} = {value!r}: say what else it may be")


def filled(kind):
    """One with no field at its default."""
    made = kind()
    for field in kind._fields:
        if (other := other_value(getattr(made, field), made, field)) is not None:
            setattr(made, field, other)
    return made


def text_of(value):
    """Comparable, also where a class has no equality."""
    if hasattr(value, "_fields"):
        return {field: text_of(getattr(value, field)) for field in value._fields}
    if isinstance(value, (list, tuple)):
        return [text_of(item) for item in value]
    if isinstance(value, np.ndarray) or type(value) is object:
        return id(value)
    return repr(value)


def is_made_by_callers(kind):
    try:
        kind()
    except TypeError:
        return False
    return True


CONFIGURABLE = sorted(
    name
    for name, kind in vars(quire).items()
    if inspect.isclass(kind) and hasattr(kind, "_fields") and name != "StepEntry" and is_made_by_callers(kind)
)


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_every_field_can_be_set_and_read_back(name):
    kind = getattr(quire, name)
    if name == "StepResult":
        made = kind(tokens=[1, 2], accepted_count=1, discard=True)
        assert (made.tokens, made.accepted_count, made.discard) == ([1, 2], 1, True)
        return
    default, made = kind(), filled(kind)
    for field in kind._fields:
        if field == "id":
            continue
        before, after = text_of(getattr(default, field)), text_of(getattr(made, field))
        assert before != after, field
        copied = kind(**{field: getattr(made, field)})  # by keyword, alone
        assert text_of(getattr(copied, field)) == after, field
        for other in kind._fields:
            if other != field:
                assert text_of(getattr(copied, other)) == text_of(getattr(default, other)), (field, other)
    assert all(f"{field}=" in repr(made) for field in kind._fields)


def test_the_structs_of_a_configuration_are_all_looked_at():
    assert {"CacheConfig", "DeviceConfig", "HostConfig", "DiskConfig", "PlanConfig", "PageOptions"} <= set(CONFIGURABLE)
    assert {"RemoteConfig"} <= set(CONFIGURABLE)
    assert {"HostRegionConfig", "SequenceOptions", "CacheGroup", "Component", "BudgetRequest"} <= set(CONFIGURABLE)
    assert {"ChunkConfig", "ChunkIndexConfig", "MoverConfig", "SwapConfig", "MetricsConfig"} <= set(CONFIGURABLE)


def test_nested_structs_are_changed_in_place():
    made = quire.CacheConfig()
    made.device.page_count = 5
    made.host.region.huge_pages = False
    assert (made.device.page_count, made.host.region.huge_pages) == (5, False)
    device = made.device
    del made
    assert device.page_count == 5  # lives without the configuration it is part of


def test_what_is_given_to_a_constructor_is_copied():
    device = quire.DeviceConfig(page_count=4)
    made = quire.CacheConfig(device=device)
    device.page_count = 9
    assert made.device.page_count == 4


def test_a_list_is_given_back_as_a_tuple_that_nobody_appends_to_in_vain():
    assert quire.PlanConfig(layer_windows=[1, 2]).layer_windows == (1, 2)


def test_open_works_on_a_copy():
    made = config(4, 8, context_tokens_max=16)
    cache = quire.Cache.open(made)
    made.device.page_count = 100
    made.policy = "no such policy"
    made.layout = quire.ModelLayout.opaque(99)
    assert made.context_tokens_max == 16
    stats = cache.stats()
    assert stats.page_count == 8 and cache.layout.token_bytes == 8
    cache.close()
    made.policy = "lru"
    assert quire.Cache.open(made).stats().page_count == 100


def test_open_fills_nothing_into_the_callers_configuration():
    made = config(4, 8)
    before = text_of(made)
    assert quire.Cache.open(made).context_tokens_max > 0
    assert text_of(made) == before and made.context_tokens_max == 0


def test_what_a_configuration_says_is_what_the_cache_does():
    made = config(
        8,
        12,
        sequence_count_max=2,
        step_tokens_max=10,
        key_space_count_max=3,
        keep_count_max=1,
        keep_pages_max=2,
        steps_in_flight_max=1,
        extra_key_count_max=1,
        residency_record_count_max=4,
    )
    cache = quire.Cache.open(made)
    assert cache.geometry().page.options.page_tokens == 8
    space = cache.key_space(quire.KeySpace(model="m"))
    a, b = cache.begin(space, list(range(16))), cache.begin(space, [1])
    with pytest.raises(quire.Unavailable, match="sequence_count_max"):
        cache.begin(space, [1])
    cache.end(b)
    cache.admit(a)
    with pytest.raises(quire.InvalidArgument, match="step_tokens_max"):
        cache.plan_step([a])
    for count in (8, 8):
        cache.finish_step(cache.plan_step([quire.StepEntry(sequence=a, token_count=count)]).step, [None])
    keys = [quire.ExtraKey(begin=i, end=i + 1, item=b"a") for i in range(2)]
    with pytest.raises(quire.Error, match="extra_key_count_max"):
        cache.begin(space, quire.Prompt([1, 2, 3], keys))
    kept = cache.keep(space, list(range(8)))
    with pytest.raises(quire.Unavailable, match="keep_count_max"):
        cache.keep(space, list(range(8)))
    cache.unkeep(kept.id)
    cache.append(a, list(range(8)))
    cache.finish_step(cache.plan_step([a]).step, [None])
    with pytest.raises(quire.Unavailable, match="keep_pages_max"):
        cache.keep(space, list(range(16)) + list(range(8)))
    for _ in range(8):
        cache.reclaim(1)
    assert len(cache.read_residency()) <= 4


@pytest.mark.parametrize(
    "kind, field",
    [
        (quire.DeviceConfig, "adopted_memory"),
        (quire.DeviceConfig, "accelerator"),
        (quire.DeviceConfig, "adopted_state_memory"),
        (quire.AdoptedTensor, "data"),
        (quire.StepEntry, "sequence"),
    ],
)
def test_what_is_none_by_default_can_be_set_back_to_none(kind, field):
    made = kind()
    assert getattr(made, field) is None
    setattr(made, field, None)


@pytest.mark.parametrize("kind, field", [(quire.CacheConfig, "keep_pages_max"), (quire.SequenceOptions, "ttl_ns")])
def test_an_optional_number_can_be_set_back_to_none(kind, field):
    made = kind(**{field: 3})
    setattr(made, field, None)
    assert getattr(made, field) is None
