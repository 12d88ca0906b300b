# SPDX-License-Identifier: Apache-2.0
"""Classes of plain fields are values: equality, hashes, copies and pickles go by their fields."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import quire
from byte_engine import Engine, config, token_range
from test_names import CONFIGURABLE, filled

PICKLABLE = [name for name in CONFIGURABLE if name not in ("StepResult", "DeviceConfig", "CacheConfig")]


@pytest.fixture
def engine():
    return Engine(config())


def full_config():
    """A configuration that another process can open, with nothing at its default that need not be."""
    made = quire.CacheConfig(layout=quire.preset("gemma-3-27b"))
    made.page.page_tokens = 32
    made.device.capacity_bytes = 1 << 30
    made.device.memory = quire.DeviceMemory.None_
    made.disk.directories = ["/tmp/a", "/tmp/b"]
    made.disk.group_retention = [quire.GroupRetention(rule=quire.RetentionRule.Every, interval_tokens=64)]
    made.host.region.numa_node = 1
    made.plan.layer_windows = [128, 256]
    made.keep_pages_max = 9
    return made


# Equality and hashes


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_what_has_the_same_fields_is_equal(name):
    kind = getattr(quire, name)
    assert kind() == kind()
    assert not (kind() != kind())
    assert kind() != 3 and kind() != None and not (kind() == "x")  # noqa: E711
    if name == "StepResult":
        return
    made = filled(kind)
    assert made == copy.copy(made)
    for field in kind._fields:
        if field == "id":
            continue
        assert kind(**{field: getattr(made, field)}) != kind(), field


@pytest.mark.parametrize("name", CONFIGURABLE)
def test_what_can_be_changed_has_no_hash(name):
    with pytest.raises(TypeError, match="unhashable"):
        hash(getattr(quire, name)())


def test_a_tensor_is_equal_to_itself_alone():
    memory = np.zeros(4, np.uint8)
    made = quire.DeviceConfig(adopted_memory=memory, adopted_group_memory=[memory, None])
    assert made == quire.DeviceConfig(adopted_memory=memory, adopted_group_memory=[memory, None])
    assert made != quire.DeviceConfig(adopted_memory=memory, adopted_group_memory=[memory.copy(), None])
    assert made != quire.DeviceConfig(adopted_memory=memory.copy(), adopted_group_memory=[memory, None])
    assert quire.AdoptedTensor(data=memory) == quire.AdoptedTensor(data=memory)
    assert quire.AdoptedTensor(data=memory) != quire.AdoptedTensor(data=memory.copy())


def test_what_nobody_can_change_has_the_hash_of_its_fields(engine):
    stats, again = engine.cache.stats(), engine.cache.stats()
    assert stats == again and hash(stats) == hash(again) and len({stats, again}) == 1
    engine.request(token_range(0, 20))
    assert engine.cache.stats() != stats
    lookup = engine.cache.lookup(engine.space, token_range(0, 20))
    assert {lookup: 1}[engine.cache.lookup(engine.space, token_range(0, 20))] == 1
    records = engine.cache.read_residency()
    assert len(set(records)) == len(records)


def test_layouts_are_equal_when_their_groups_are():
    for name in quire.preset_names():
        assert quire.preset(name) == quire.preset(name) and hash(quire.preset(name)) == hash(quire.preset(name))
    assert len({quire.preset(name) for name in quire.preset_names()}) == len(quire.preset_names())
    assert quire.ModelLayout.opaque(8) != quire.ModelLayout.opaque(9)
    assert quire.ModelLayout.opaque(8) != 8


# Copies


def test_layouts_can_be_copied():
    layout = quire.preset("llama-3-8b")
    assert copy.copy(layout) == copy.deepcopy(layout) == layout
    assert copy.deepcopy({"layout": [layout]})["layout"][0] == layout


def test_a_copy_is_another_one():
    made = full_config()
    other = copy.deepcopy(made)
    assert other == made
    other.device.page_count = 3
    assert other != made and made.device.page_count == 0


# Pickles


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", PICKLABLE)
def test_everything_that_callers_make_can_be_pickled(name, protocol):
    made = filled(getattr(quire, name))
    # Memory, geometries, devices and movers belong to their process.
    for field in ("data", "memory", "geometry", "device_memory", "device_geometry", "accelerator", "device", "records"):
        if field in made._fields and (name, field) != ("SwapOrder", "records"):  # of an order they are numbers
            setattr(made, field, None)
    if "rank_movers" in made._fields:
        made.rank_movers = []
    again = pickle.loads(pickle.dumps(made, protocol))
    assert type(again) is type(made) and again == made and repr(again) == repr(made)


def test_configurations_can_be_pickled():
    made = full_config()
    again = pickle.loads(pickle.dumps(made))
    assert again == made and repr(again) == repr(made)
    assert pickle.loads(pickle.dumps(quire.CacheConfig())) == quire.CacheConfig()
    assert pickle.loads(pickle.dumps(quire.CacheConfig())).layout is None


@pytest.mark.parametrize("name", quire.preset_names())
def test_every_preset_can_be_pickled(name):
    layout = quire.preset(name)
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert (again.token_bytes, again.layer_count) == (layout.token_bytes, layout.layer_count)
    assert again.groups == layout.groups


def test_what_a_cache_says_can_be_pickled(engine):
    sequence = engine.admitted(token_range(0, 20))
    kept = engine.cache.stats()
    group = engine.cache.group_stats(0)
    values = [kept, group, engine.space, sequence.id, engine.cache.view(sequence)]
    values += engine.cache.read_residency()
    for value in values:
        again = pickle.loads(pickle.dumps(value))
        assert type(again) is type(value) and again == value and repr(again) == repr(value)


@pytest.mark.parametrize("value", [quire.Tier.Host, quire.RetentionRule.None_, quire.ElementType.Int32])
def test_enumerations_can_be_pickled(value):
    assert pickle.loads(pickle.dumps(value)) is value


def opened_in_a_worker(made, space):
    with quire.Cache.open(made) as cache:
        cache.key_space(space)
        return cache.stats(), cache.layout


def test_a_configuration_can_be_sent_to_a_process_that_is_spawned():
    made = full_config()
    made.context_tokens_max = 1024
    made.plan.layer_windows = []
    made.disk = quire.DiskConfig()  # off
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        stats, layout = pool.apply(opened_in_a_worker, (made, quire.KeySpace(model="m", salt="s")))
    assert layout == made.layout and stats.page_count > 0 and stats.key_space_count == 1


def test_what_cannot_be_sent_says_so(engine):
    class Accelerator:
        def __reduce__(self):
            raise TypeError("this accelerator stays here")

    with pytest.raises(TypeError, match="this accelerator stays here"):
        pickle.dumps(quire.CacheConfig(device=quire.DeviceConfig(accelerator=Accelerator())))
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match="lambda|local"):
        pickle.dumps(quire.DeviceConfig(adopted_memory=lambda: None))
    with pytest.raises(TypeError, match="cannot pickle '.*Sequence' object"):
        pickle.dumps(quire.StepEntry(sequence=engine.admitted([1, 2, 3])))
    with pytest.raises(TypeError, match="cannot pickle '.*Cache' object"):
        pickle.dumps(engine.cache)


@pytest.mark.needs_cuda
def test_a_device_stays_in_its_process():
    with pytest.raises(TypeError, match="send its index, and call open_cuda_device"):
        pickle.dumps(quire.CacheConfig(device=quire.DeviceConfig(accelerator=quire.open_cuda_device(0))))


def test_a_pickle_of_something_else_is_refused():
    made = quire.PlanShape.__new__(quire.PlanShape)
    with pytest.raises(TypeError, match="PlanShape has no field pages; it has entries, tokens, columns"):
        made.__setstate__({"pages": 3})
    made = quire.PlanShape.__new__(quire.PlanShape)
    with pytest.raises(TypeError, match="PlanShape.entries cannot be 'many'"):
        made.__setstate__({"entries": "many"})


# Lists


def test_lists_in_lists_are_tuples_too():
    tensor = quire.AdoptedTensor(layer_index=3)
    made = quire.CacheConfig(device=quire.DeviceConfig(adopted_tensors=[[tensor, tensor], []]))
    assert made.device.adopted_tensors == ((tensor, tensor), ())
    assert isinstance(quire.preset("gemma-3-27b").groups, tuple)
    assert isinstance(quire.preset("gemma-3-27b").groups[0].layers, tuple)


def test_elements_are_copies_and_assigned_together():
    group = quire.CacheGroup(components=[quire.Component(name="k", dim=8), quire.Component(name="v", dim=8)])
    components = group.components
    components[0].dim = 99
    assert group.components[0].dim == 8
    group.components = components
    assert group.components[0].dim == 99


def test_prompts_are_values():
    key = quire.ExtraKey(begin=1, end=2, item=b"a picture")
    prompt = quire.Prompt([1, 2, 3], [key])
    assert repr(prompt).startswith("Prompt(tokens=[1, 2, 3], extra_keys=(ExtraKey(")
    for other in (copy.copy(prompt), copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):
        assert other == prompt and other is not prompt
    assert prompt != quire.Prompt([1, 2, 3]) and prompt != 5
    with pytest.raises(TypeError):
        hash(prompt)
