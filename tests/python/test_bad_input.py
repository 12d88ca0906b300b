# SPDX-License-Identifier: Apache-2.0
"""Whatever a caller gives: an exception that says what to do, and nothing has changed. Never a crash."""

import inspect
import itertools

import numpy as np
import pytest

import quire
from byte_engine import Engine, config, run_python, token_range


@pytest.fixture
def engine():
    made = Engine(config())
    yield made
    if not made.cache.is_closed:
        made.cache.check_invariants()


# Tokens

BAD_TOKENS = [
    (np.arange(4, dtype=np.float32), "float32: tokens are int32 or int64"),
    (np.arange(4, dtype=np.int16), "int16"),
    (np.arange(4, dtype=np.uint32), "uint32"),
    (np.arange(4, dtype=np.uint64), "uint64"),
    (np.array([True, False]), "bool"),
    (np.arange(8, dtype=np.int32)[::2], "not contiguous"),
    (np.arange(8, dtype=np.int32)[::-1], "not contiguous"),
    (np.zeros((2, 4), np.int32), "2 dimensions"),
    (np.array(5), "0 dimensions"),
    (np.array([1, 2, -3], np.int64), r"tokens\[2\] is -3: tokens lie from 0 to 2147483647"),
    (np.array([1, 2**31], np.int64), r"tokens\[1\] is 2147483648"),
    (np.array([1, -3], np.int32), "-3"),
    ([1, -1], r"tokens\[1\] is -1"),
    ([1, 2**31], "2147483648"),
    ([1, 2**100], r"tokens\[1\] is 1267650600228229401496703205376"),
    ([1, None], r"tokens\[1\] is None"),
    ([1, "a"], r"tokens\[1\] is 'a'"),
    ([1, 2.5], r"tokens\[1\] is 2.5"),
    ([[1, 2]], r"tokens\[0\] is \[1, 2\]"),
    ("hello", "of type str"),
    (b"hello", "uint8"),
    ({1, 2}, "of type set"),
    ({1: 2}, "of type dict"),
    (5, "of type int"),
    (object(), "of type object"),
    ((i for i in range(3)), "of type generator"),
]


@pytest.mark.parametrize("tokens, text", BAD_TOKENS, ids=[f"{i}-{text[:12]}" for i, (_, text) in enumerate(BAD_TOKENS)])
def test_tokens_that_are_none_are_refused_with_a_reason(engine, tokens, text):
    sequence = engine.admitted([1, 2, 3])
    calls = [
        lambda: engine.cache.begin(engine.space, tokens),
        lambda: engine.cache.lookup(engine.space, tokens),
        lambda: engine.cache.keep(engine.space, tokens),
        lambda: engine.cache.begin(engine.space, quire.Prompt(tokens)),
    ]
    for call in calls:
        with pytest.raises((quire.InvalidArgument, ValueError), match=text):
            call()
    with pytest.raises(quire.InvalidArgument):
        engine.cache.append(sequence, tokens)
    step = engine.plan(sequence)
    with pytest.raises((quire.InvalidArgument, TypeError)):
        engine.cache.finish_step(step, [quire.StepResult(tokens=tokens)])
    engine.cache.finish_step(step, [None])  # it is still in flight
    assert engine.cache.stats().sequence_count == 1


def test_none_is_no_prompt(engine):
    for call in (engine.cache.begin, engine.cache.lookup, engine.cache.keep):
        with pytest.raises((TypeError, quire.InvalidArgument)):
            call(engine.space, None)


def test_an_empty_prompt_is_an_empty_sequence_or_refused(engine):
    for tokens in ([], (), np.zeros(0, np.int32), np.zeros(0, np.int64)):
        try:
            sequence = engine.cache.begin(engine.space, tokens)
        except quire.InvalidArgument:
            continue
        assert engine.cache.view(sequence).token_count == 0


def test_a_sampled_token_may_be_a_numpy_scalar(engine):
    sequence = engine.admitted([1, 2, 3])
    for token in (np.int64(5), np.int32(6), np.uint8(7)):
        engine.cache.finish_step(engine.plan(sequence), [token])
    assert engine.cache.view(sequence).token_count == 6


def test_a_list_of_numpy_scalars_is_a_prompt(engine):
    assert engine.cache.view(engine.admitted(list(np.arange(5)))).token_count == 5


def test_a_prompt_that_is_too_long_is_refused_with_the_limit(engine):
    with pytest.raises(quire.InvalidArgument, match="1,000 tokens needs 250 pages of 4 tokens; the device pool has 32"):
        engine.cache.begin(engine.space, np.zeros(1000, np.int32))


def test_extra_keys_that_overlap_or_lie_outside_are_refused(engine):
    def keys(*ranges):
        return [quire.ExtraKey(begin=begin, end=end, item=b"x") for begin, end in ranges]

    for bad in (keys((0, 3), (2, 4)), keys((3, 2)), keys((2, 99))):
        with pytest.raises(quire.InvalidArgument):
            engine.cache.begin(engine.space, quire.Prompt([1, 2, 3, 4], bad))
    with pytest.raises(quire.InvalidArgument, match="33 bytes"):
        quire.ExtraKey(item=b"x" * 33)
    with pytest.raises(quire.InvalidArgument, match="ends with a zero"):
        quire.ExtraKey(item=b"img\0")
    assert quire.ExtraKey(item=bytes(32)) == quire.ExtraKey()
    for item in ("text", 5, None):
        with pytest.raises(TypeError):
            quire.ExtraKey(item=item)


# Sequences, steps and caches


def test_an_ended_sequence_is_refused_everywhere(engine):
    sequence = engine.admitted([1, 2, 3])
    engine.cache.end(sequence)
    cache = engine.cache
    calls = [
        lambda: cache.admit(sequence),
        lambda: cache.end(sequence),
        lambda: cache.view(sequence),
        lambda: cache.fork(sequence, 0),
        lambda: cache.rewind(sequence, 1),
        lambda: cache.append(sequence, [1]),
        lambda: cache.plan_step([sequence]),
        lambda: cache.plan_step([quire.StepEntry(sequence=sequence)]),
        lambda: cache.preempt(sequence, quire.Preempt.Drop),
        lambda: cache.resume(sequence),
        lambda: cache.set_window(sequence, quire.Window(visible_tokens=4)),
        lambda: cache.commit_tree(sequence, 0),
        lambda: cache.prepare_receive(sequence, 1),
        lambda: cache.receive_targets(sequence),
        lambda: cache.finish_receive(sequence),
        lambda: cache.abort_receive(sequence),
        lambda: cache.mark_send(sequence, 0, [], 0),
        lambda: cache.stop_loading(sequence),
        lambda: cache.wait_until_ready(sequence, 0),
    ]
    for call in calls:
        with pytest.raises(quire.InvalidArgument, match="has ended"):
            call()
    assert sequence.id is not None and "ended" in repr(sequence)


def test_a_sequence_of_another_cache_is_refused(engine):
    other = Engine(config())
    sequence = other.admitted([1, 2, 3])
    cache = engine.cache
    calls = [
        lambda: cache.admit(sequence),
        lambda: cache.end(sequence),
        lambda: cache.view(sequence),
        lambda: cache.fork(sequence, 0),
        lambda: cache.append(sequence, [1]),
        lambda: cache.plan_step([sequence]),
        lambda: cache.preempt(sequence, quire.Preempt.Drop),
    ]
    for call in calls:
        with pytest.raises(quire.InvalidArgument, match="another cache"):
            call()
    assert not sequence.has_ended and other.cache.view(sequence).token_count == 3


def test_a_step_of_another_cache_or_that_is_over_is_refused(engine):
    other = Engine(config())
    sequence = other.admitted([1, 2, 3])
    step = other.plan(sequence)
    for call in (
        lambda: engine.cache.finish_step(step, [None]),
        lambda: engine.cache.apply_copies(step),
        lambda: engine.cache.apply_saves(step),
        lambda: engine.cache.abort_step(step),
    ):
        with pytest.raises(quire.InvalidArgument, match="another cache"):
            call()
    other.cache.finish_step(step, [None])
    for call in (
        lambda: other.cache.finish_step(step, [None]),
        lambda: other.cache.abort_step(step),
        lambda: other.cache.apply_copies(step),
        lambda: other.cache.apply_saves(step),
    ):
        with pytest.raises(quire.InvalidArgument, match="is over"):
            call()


def test_results_that_do_not_fit_the_step_are_refused(engine):
    sequence = engine.admitted([1, 2, 3])
    step = engine.plan(sequence)
    bad = [
        [],
        [None, None],
        [quire.StepResult(accepted_count=1)],
        [quire.StepResult(tokens=[-5])],
        [-5],
        ["a"],
        [object()],
        [2**40],
    ]
    for results in bad:
        with pytest.raises((quire.InvalidArgument, TypeError)):
            engine.cache.finish_step(step, results)
    for results in (None, 5, {0: 1}):
        with pytest.raises((TypeError, quire.InvalidArgument)):
            engine.cache.finish_step(step, results)
    engine.cache.finish_step(step, [4])
    assert engine.cache.view(sequence).token_count == 4


def test_entries_that_cannot_be_planned_are_refused(engine):
    sequence = engine.admitted(token_range(0, 6))
    bad = [
        [],
        [5],
        ["a"],
        [sequence, sequence],
        [quire.StepEntry(sequence=sequence, token_count=7)],
        [quire.StepEntry(sequence=sequence, token_count=3, draft_count=1)],
        [quire.StepEntry(sequence=sequence, tree_parents=[0])],
        [quire.StepEntry(sequence=sequence, tree_parents=[-1, 5])],
        [quire.StepEntry(sequence=sequence, tree_parents=[-2])],
    ]
    for entries in bad:
        with pytest.raises((quire.InvalidArgument, TypeError)):
            engine.cache.plan_step(entries)
    with pytest.raises(TypeError):
        engine.cache.plan_step(None)
    with pytest.raises(quire.InvalidArgument, match="shape"):
        engine.cache.plan_step([sequence], quire.PlanShape(entries=2**32 - 1, tokens=2**32 - 1, columns=2**32 - 1))
    assert engine.cache.stats().planned_step_count == 0


def test_numbers_that_are_out_of_range_are_refused(engine):
    sequence = engine.admitted(token_range(0, 6))
    cache = engine.cache
    for call in (
        lambda: cache.rewind(sequence, 7),
        lambda: cache.rewind(sequence, 2**32 - 1),
        lambda: cache.fork(sequence, 7),
        lambda: cache.commit_tree(sequence, 3),
        lambda: cache.prepare_receive(sequence, 100),
        lambda: cache.set_window(sequence, quire.Window(visible_tokens=1, sink_tokens=5)),
        lambda: cache.group_stats(1),
        lambda: cache.device_memory(1),
        lambda: cache.geometry(1),
        lambda: cache.component_memory(1),
        lambda: cache.component_memory(0, 7),
        lambda: cache.component_memory(0, "none such"),
        lambda: cache.disk_status(9),
        lambda: cache.advance(-(2**62)),
    ):
        with pytest.raises((quire.InvalidArgument, quire.Unsupported)):
            call()
    for call in (
        lambda: cache.rewind(sequence, -1),
        lambda: cache.fork(sequence, -1),
        lambda: cache.fork(sequence, 2**32),
        lambda: cache.advance(2**63),
        lambda: cache.reclaim(-1),
        lambda: cache.reclaim(1.5),
        lambda: cache.reclaim("1"),
    ):
        with pytest.raises(TypeError):
            call()


def test_a_component_that_is_no_name_or_number_is_refused_with_those_there_are(engine):
    for component in (-1, 2**40, "none such", 7):
        with pytest.raises((quire.InvalidArgument, TypeError), match="has no component|component"):
            engine.cache.component_memory(0, component)
    for component in (None, 1.5, object()):
        with pytest.raises((quire.InvalidArgument, TypeError)):
            engine.cache.component_memory(0, component)


def test_a_key_space_of_nobody_is_refused(engine):
    other = quire.Cache.open(config())
    for i in range(3):
        foreign = other.key_space(quire.KeySpace(model=f"m{i}"))
    with pytest.raises(quire.InvalidArgument):
        engine.cache.begin(foreign, [1, 2])
    for space in (0, None, "m", quire.KeySpace(model="m")):
        with pytest.raises(TypeError):
            engine.cache.begin(space, [1, 2])


def hold_id():
    """Of another cache: the one of these tests has no host tier."""
    engine = Engine(config(host={"page_count": 8}))
    return engine.cache.hold_on_host(engine.space, [1, 2, 3, 4]).id


def arguments_for(name, engine, sequence, step):
    known = {
        "key_space": (quire.KeySpace(),) if name == "key_space" else (engine.space,),
        "prompt": ([1],),
        "added": ([1],),
        "sequence": (sequence,),
        "step": (step,),
        "layer": (quire.GroupLayer(),),
        "results": ([None],),
        "entries": ([sequence],),
        "completions": ([],),
        "reports": ([],),
        "window": (quire.Window(),),
        "how": (quire.Sleep.DropAll if name == "sleep" else quire.Preempt.Drop,),
        "keep": (None,),
        "hold": (hold_id() if name in ("held_prefix", "release_hold") else None,),
        "callback": (print,),
        "bytes": (np.zeros(8, np.uint8),),
        "page_ids": ([0],),
        "slots": ([],),
        "chunks": ([[1, 2, 3, 4]],),
    }
    text = getattr(quire.Cache, name).__doc__.splitlines()[0]
    parts = text[text.index("(") + 1 : text.rindex(") ->")].split(", ")
    needed = itertools.takewhile(lambda part: "=" not in part, parts)  # defaults come last
    names = [part.split(":")[0].strip() for part in needed if ":" in part]
    return [known.get(argument, (1,))[0] for argument in names]


def test_every_call_of_a_closed_cache_is_refused(engine):
    sequence = engine.admitted(token_range(0, 3))
    kept_id = engine.cache.keep(engine.space, [1]).id
    step = engine.plan(sequence)
    engine.cache.close()
    refused = 0
    for name, member in inspect.getmembers(quire.Cache):
        if name.startswith("_") or name in ("open", "close", "is_closed", "set_ready_callback", "now"):
            continue
        with pytest.raises(quire.InvalidArgument, match="closed|has ended"):
            if not callable(member):
                getattr(engine.cache, name)
            else:
                arguments = arguments_for(name, engine, sequence, step)
                getattr(engine.cache, name)(*(kept_id if given is None else given for given in arguments))
        refused += 1
    assert refused > 50
    assert repr(engine.cache) == "Cache(closed)"
    with sequence:
        pass  # ends quietly


def test_classes_that_quire_makes_are_not_made_by_callers():
    for name in ("Cache", "Sequence", "Step", "AttentionPlan", "GroupPlan", "Stats", "SequenceView", "PlanOutcome"):
        with pytest.raises(TypeError):
            getattr(quire, name)()


# Configurations


def test_a_field_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(TypeError, match="DeviceConfig has no field pages; it has pool, page_count"):
        quire.DeviceConfig(pages=5)
    made = quire.CacheConfig()
    with pytest.raises(AttributeError):
        made.page_count = 5
    with pytest.raises(AttributeError):
        made.device.pages = 5
    with pytest.raises(TypeError):
        quire.DeviceConfig(5)


@pytest.mark.parametrize("value", ["8", 1.5, None, [8], object()])
def test_a_field_of_another_type_is_refused_by_name(value):
    with pytest.raises(TypeError, match="DeviceConfig.page_count cannot be"):
        quire.DeviceConfig(page_count=value)
    made = quire.DeviceConfig()
    with pytest.raises(TypeError):
        made.page_count = value


@pytest.mark.parametrize("value", [-1, 2**32, 2**100])
def test_a_number_that_does_not_fit_its_field_is_refused(value):
    with pytest.raises((TypeError, ValueError, OverflowError), match="DeviceConfig.page_count cannot be"):
        quire.DeviceConfig(page_count=value)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"layout": None}, "layout is not set"),
        ({"device.page_count": 0}, "page_count|capacity_bytes"),
        ({"device.capacity_bytes": 1 << 30}, "page_count|capacity_bytes"),
        ({"page.page_tokens": 0}, "page_tokens"),
        ({"policy": "none such"}, "none such.*lru|lru"),
        ({"host.page_count": 8, "host.policy": "none such"}, "none such|lru"),
        ({"sequence_count_max": 0}, "sequence_count_max"),
        ({"step_tokens_max": 0}, "step_tokens_max"),
        ({"steps_in_flight_max": 0}, "steps_in_flight_max"),
        ({"disk.directories": ["/tmp/x"], "disk.capacity_bytes": 1 << 30}, "host"),
        ({"device.memory": quire.DeviceMemory.Adopted}, "adopted"),
        ({"device.memory": quire.DeviceMemory.Accelerator}, "accelerator"),
        ({"plan.cascade_levels_max": 0}, "cascade_levels_max"),
        ({"plan.layer_windows": [0]}, "layer_windows"),
        ({"device.adopted_memory": np.zeros(4096, np.uint8)}, "adopted"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_a_reason(changes, text):
    made = config()
    if "layout" in changes:
        made = quire.CacheConfig(device=quire.DeviceConfig(page_count=4))
    for name, value in changes.items():
        if value is None:
            continue
        target = made
        *path, field = name.split(".")
        for part in path:
            target = getattr(target, part)
        setattr(target, field, value)
    for call in (quire.Cache.open, lambda made: made.validate()):
        with pytest.raises((quire.InvalidArgument, quire.Unsupported), match=text):
            call(made)


def test_open_takes_a_configuration_and_nothing_else():
    for value in (None, 5, {}, quire.DeviceConfig()):
        with pytest.raises(TypeError):
            quire.Cache.open(value)


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(quire.InvalidArgument, match="llama-3-8b"):
        quire.preset("llama-4")
    with pytest.raises(TypeError):
        quire.preset(None)


def test_a_layout_that_makes_no_sense_is_refused_with_a_reason():
    with pytest.raises(quire.InvalidArgument):
        quire.ModelLayout.create("x", [])
    with pytest.raises(quire.InvalidArgument):
        quire.ModelLayout.opaque(0)
    with pytest.raises(quire.InvalidArgument, match="kv_heads|heads"):
        quire.ModelLayout.simple(quire.SimpleShape(layers=1, head_dim=8))
    group = quire.CacheGroup(name="a", layers=[0], components=[quire.Component(name="k", dim=8)])
    with pytest.raises(quire.InvalidArgument, match="'a'"):
        quire.ModelLayout.create("x", [group, group])


def test_a_directory_that_cannot_be_used_is_an_error_of_the_system(tmp_path):
    file = tmp_path / "file"
    file.write_text("in the way")
    disk = {"directories": [str(file)], "capacity_bytes": 64 << 20}
    with pytest.raises(quire.Io, match="file"):
        quire.Cache.open(config(16, 16, host={"page_count": 16}, disk=disk))
    with pytest.raises(OSError):
        quire.inspect_disk_store([str(tmp_path / "none such")])


# Memory of the caller's


def adopting(memory):
    device = {"memory": quire.DeviceMemory.Adopted, "adopted_memory": memory}
    return config(4, 8, device=device)


def read_only():
    memory = np.zeros(288, np.uint8)
    memory.flags.writeable = False
    return memory


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: np.zeros(287, np.uint8), "has 287 bytes, and the pool needs 288, its null page included"),
        (lambda: np.zeros(0, np.uint8), "has 0 bytes|is not contiguous"),
        (read_only, "written"),
        (lambda: np.zeros(576, np.uint8)[::2], "not contiguous"),
        (lambda: np.zeros((18, 32), np.uint8)[::2], "not contiguous in dimension 0"),
        (lambda: np.zeros((32, 9), np.uint8).T, "not contiguous"),
        (lambda: np.zeros(288, np.uint8)[::-1], "not contiguous"),
        (lambda: "memory", "of type str"),
        (lambda: b"x" * 288, "written"),
        (lambda: 5, "of type int"),
        (lambda: [0] * 288, "of type list"),
    ],
)
def test_memory_that_cannot_be_adopted_is_refused_with_a_reason(make, text):
    with pytest.raises(quire.InvalidArgument, match=text):
        quire.Cache.open(adopting(make()))


def test_memory_for_too_many_groups_is_refused():
    made = adopting(None)
    made.device.adopted_group_memory = [np.zeros(288, np.uint8)] * 2
    with pytest.raises(quire.InvalidArgument, match="2 tensors for 1 groups"):
        quire.Cache.open(made)
    made.device.adopted_memory = np.zeros(288, np.uint8)
    with pytest.raises(quire.InvalidArgument, match="adopted_memory and device.adopted_group_memory are both set"):
        quire.Cache.open(made)


def test_bytes_for_the_disk_that_cannot_be_used_are_refused(tmp_path):
    disk = {"directories": [str(tmp_path)], "capacity_bytes": 64 << 20}
    engine = Engine(config(16, 16, host={"page_count": 16}, disk=disk))
    tokens = token_range(0, 32)
    answers = []
    good = np.zeros(2 * 16 * 8, np.uint8)
    locked = good.copy()
    locked.flags.writeable = False
    for call, bad in (
        (engine.cache.get_from_disk, locked),
        (engine.cache.get_from_disk, good[:-1]),
        (engine.cache.get_from_disk, np.zeros(1024, np.uint8)[::2]),
        (engine.cache.put_on_disk, good[:-1]),
        (engine.cache.put_on_disk, np.zeros(1024, np.uint8)[::2]),
        (engine.cache.put_on_disk, "text"),
        (engine.cache.put_on_disk, [0] * 256),
    ):
        with pytest.raises((quire.InvalidArgument, TypeError)):
            call(engine.space, tokens, bad, answers.append)
    assert answers == []


# Exceptions


@pytest.mark.parametrize(
    "name, base",
    [
        ("InvalidArgument", ValueError),
        ("Unsupported", None),
        ("Unavailable", None),
        ("TimedOut", TimeoutError),
        ("Cancelled", None),
        ("Io", OSError),
        ("Corrupt", None),
    ],
)
def test_every_error_code_has_an_exception_that_others_know_too(name, base):
    kind = getattr(quire, name)
    assert issubclass(kind, quire.Error) and issubclass(kind, Exception)
    assert kind.__module__ == "quire" and kind.__doc__
    if base is not None:
        assert issubclass(kind, base)
    raised = kind("what was tried")
    assert str(raised) == "what was tried"


def test_a_failed_call_has_changed_nothing(engine):
    engine.request(token_range(0, 12))
    sequence = engine.admitted(token_range(0, 12))
    before = repr(engine.cache.stats()), repr(engine.cache.view(sequence))
    for call in (
        lambda: engine.cache.begin(engine.space, [1, -1]),
        lambda: engine.cache.rewind(sequence, 100),
        lambda: engine.cache.fork(sequence, 100),
        lambda: engine.cache.append(sequence, np.zeros((2, 2), np.int32)),
        lambda: engine.cache.plan_step([sequence, sequence]),
        lambda: engine.cache.resize(1),
    ):
        with pytest.raises(quire.Error):
            call()
    assert (repr(engine.cache.stats()), repr(engine.cache.view(sequence))) == before


# What might stop the process


RISKY = {
    "a group without pages": """
component = [quire.Component(name="n", element=quire.ElementType.Int32, dim=1)]
never = quire.GroupRetention(rule=quire.RetentionRule.None_)
layout = quire.ModelLayout.create("x", [
    quire.CacheGroup(name="far", layers=[0], components=component),
    quire.CacheGroup(name="state", kind=quire.GroupKind.Snapshot, layers=[1], components=component, slot_entries=1,
                     snapshot_entries=0, retention=never)])
cache = quire.Cache.open(config(4, 8, layout=layout))
for call in (cache.device_memory, cache.geometry, cache.component_memory):
    refused(lambda: call(1))
tensor = quire.AdoptedTensor(data=np.zeros((9, 4), np.uint8))
refused(lambda: quire.Cache.open(config(4, 8, layout=layout, device={"memory": quire.DeviceMemory.Adopted,
                                                                  "adopted_tensors": [[], [tensor]]})))
refused(lambda: quire.Cache.open(config(4, 8, layout=layout, device={"memory": quire.DeviceMemory.Adopted,
                                                                  "adopted_tensors": [[], [], [tensor]]})))
""",
    "an entry that is none": """
refused(lambda: engine.cache.plan_step([None]))
refused(lambda: engine.cache.plan_step([engine.admitted([1, 2]), None]))
refused(lambda: engine.cache.mark_send(engine.admitted([1, 2]), 0, [None], 0))
refused(lambda: engine.cache.offer(engine.space, [1, 2, 3, 4], [None]))
refused(lambda: quire.Prompt([1, 2], [None]))
refused(lambda: quire.ModelLayout.create("x", [None]))
refused(lambda: setattr(quire.DeviceConfig(), "adopted_tensors", [[None]]))
refused(lambda: setattr(quire.CacheGroup(), "components", [None]))
for name in ("admit", "end", "view", "resume", "stop_loading", "finish_receive", "abort_receive", "abort_step"):
    refused(lambda: getattr(engine.cache, name)(None))
refused(lambda: quire.flashinfer_view(None)); refused(lambda: quire.block_table_view(None))
refused(lambda: quire.ModelLayout.simple(None)); refused(lambda: quire.solve_budget(None, None))
refused(lambda: engine.cache.key_space(None)); refused(lambda: engine.cache.unkeep(None))
engine.cache.check_invariants()
""",
    "an entry without a sequence": """
for entry in (quire.StepEntry(), quire.StepEntry(sequence=5), quire.StepEntry(sequence=engine.cache)):
    try:
        engine.cache.plan_step([entry])
        raise SystemExit("was not refused")
    except (quire.InvalidArgument, TypeError) as error:
        assert "equence" in str(error), error
""",
    "an accelerator that is none": """
for thing in (3, "cuda:0", object()):
    refused(lambda: quire.Cache.open(config(device={"accelerator": thing})))
if not quire.has_cuda:
    refused(lambda: quire.open_cuda_device())
    refused(lambda: quire.cuda_device_count())
""",
    "adopted tensors of wrong shapes": """
for tensor in (quire.AdoptedTensor(), quire.AdoptedTensor(data=np.zeros(9)),
               quire.AdoptedTensor(data=np.zeros((3, 32), np.uint8)),
               quire.AdoptedTensor(data=np.zeros((9, 5), np.uint8)), quire.AdoptedTensor(data="x"),
               quire.AdoptedTensor(data=np.zeros((9, 32), np.uint8), component_index=9),
               quire.AdoptedTensor(data=np.zeros((9, 32), np.uint8), layer_index=9)):
    device = {"memory": quire.DeviceMemory.Adopted, "adopted_tensors": [[tensor]]}
    refused(lambda: quire.Cache.open(config(4, 8, device=device)))
""",
    "counts that nobody can hold": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
cache = quire.Cache.open(config())
mover = quire.Cache.open(config(host={"page_count": 8, "external_mover": True}))
pool = quire.Cache.open(config(device={"pool": quire.DevicePool.External}))
most = 2**32 - 1
assert cache.read_residency(0, most) == []
assert mover.take_transfers(most) == [] and mover.take_cancellations(most) == []
assert pool.take_released(most) == []
""",
    "pools that nobody has the memory for": """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
refused(lambda: quire.Cache.open(config(1024, 2**31, layout=quire.preset("llama-3-70b"))), (quire.Error, MemoryError))
""",
    "objects that were never initialised": """
import warnings
warnings.simplefilter("ignore")
for name in ("Cache", "Sequence", "Step", "Stats", "ModelLayout", "KeySpaceId", "AttentionPlan", "PlanOutcome"):
    kind = getattr(quire, name)
    try:
        made = kind.__new__(kind)
    except TypeError:
        continue
    for member in dir(made):
        if member.startswith("__") and member not in ("__repr__", "__hash__"): continue
        try:
            value = getattr(made, member)
            if callable(value): value()
        except (TypeError, quire.Error, RuntimeError):
            pass
    for call in (lambda: engine.cache.end(made), lambda: engine.cache.plan_step([made]), lambda: quire.Cache.open(made),
                 lambda: engine.cache.finish_step(made, [None])):
        try: call()
        except (TypeError, RuntimeError, quire.Error): pass
    del made
engine.cache.check_invariants()
""",
    "completions of nothing": """
cache = quire.Cache.open(config(host={"page_count": 8, "external_mover": True}))
cache.apply([quire.Completion()] * 1000, 0)
refused(lambda: cache.apply([None], 0))
refused(lambda: cache.apply(None, 0))
refused(lambda: cache.apply([quire.Completion()], "now"))
cache.check_invariants()
""",
    "a callback that is none": """
refused(lambda: engine.cache.lookup_on_disk(engine.space, [1], None))
disk = {"directories": [sys.argv[1]], "capacity_bytes": 64 << 20}
cache = quire.Cache.open(config(16, 16, host={"page_count": 16}, disk=disk))
space = cache.key_space(quire.KeySpace(model="m"))
refused(lambda: cache.lookup_on_disk(space, token_range(0, 32), 5))
refused(lambda: cache.set_ready_callback(5))
cache.close()
refused(lambda: cache.set_ready_callback(print))
""",
    "a list that changes while it is read": """
class Shrinking:
    def __init__(self, owner): self.owner = owner
    def __index__(self): self.owner.clear(); return 1
tokens = []
tokens.extend([1, Shrinking(tokens), 3, 4])
refused(lambda: engine.cache.begin(engine.space, tokens), (quire.Error, IndexError))
engine.cache.check_invariants()
""",
    "a deep recursion": """
def again(n):
    with engine.cache.begin(engine.space, [n % 100]) as sequence: return again(n + 1)
refused(lambda: again(0), (quire.Unavailable, RecursionError))
engine.cache.check_invariants()
""",
}

RISKY_BEGIN = """
import sys
import numpy as np
import quire
from byte_engine import *
engine = Engine(config())
def refused(call, kinds=(quire.Error, TypeError)):
    try:
        call()
    except kinds as error:
        assert "bad_cast" not in str(error), error
        return
    raise SystemExit("was not refused")
"""


@pytest.mark.parametrize("name", RISKY)
def test_nothing_stops_the_process(name, tmp_path):
    run_python(RISKY_BEGIN + RISKY[name], tmp_path)


def test_adopted_memory_that_is_empty_is_too_small():
    given = quire.CacheConfig(layout=quire.ModelLayout.opaque(8))
    given.device = quire.DeviceConfig(
        page_count=4, memory=quire.DeviceMemory.Adopted, adopted_memory=np.zeros(0, dtype=np.uint8)
    )
    with pytest.raises(quire.InvalidArgument, match="has 0 bytes, and the pool needs 640"):
        quire.Cache.open(given)
