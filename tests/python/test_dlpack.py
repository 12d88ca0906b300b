# SPDX-License-Identifier: Apache-2.0
"""Memory that the cache and others look at together: NumPy always, torch where it is installed."""

import gc
import weakref

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, WRITE_THROUGH, Engine, config, drain, run_python, slots_of, token_range, values_of

try:
    import torch
except ImportError:  # conftest.py says so
    torch = None


def adopting(memory, page_tokens=4, page_count=8, **fields):
    device = {"memory": quire.DeviceMemory.Adopted, "adopted_memory": memory}
    return config(page_tokens, page_count, device=device, **fields)


def simple(element=quire.ElementType.Fp32, **fields):
    shape = quire.SimpleShape(layers=2, kv_heads=3, head_dim=4, element=element)
    return config(4, 8, layout=quire.ModelLayout.simple(shape), **fields)


# NumPy


def test_numpy_and_the_cache_see_the_same_memory():
    engine = Engine(config())
    first, second = (np.asarray(engine.cache.device_memory()) for _ in range(2))
    assert first.ctypes.data == second.ctypes.data and first.dtype == np.uint8
    assert first.size == engine.cache.geometry().pool_bytes
    first[40] = 77
    assert second[40] == 77
    tokens = token_range(0, 6)
    source = engine.admitted(tokens)
    engine.run(source, tokens)  # writes through NumPy
    fork = engine.cache.fork(source, 6)
    engine.cache.append(fork, [50])
    step = engine.plan(fork)  # copies through the cache
    page = engine.cache.view(fork).pages[1]
    copied = first.view(np.uint64)[page * 4 : page * 4 + 2]
    np.testing.assert_array_equal(copied, values_of(tokens)[4:])
    engine.cache.abort_step(step)


def test_dlpack_and_the_buffer_protocol_give_the_same_memory():
    cache = quire.Cache.open(simple())
    for give in (cache.device_memory, cache.component_memory):
        lent, buffer = np.from_dlpack(give()), np.asarray(give())  # older NumPy makes what it is lent read-only
        assert (lent.ctypes.data, lent.shape, lent.strides) == (buffer.ctypes.data, buffer.shape, buffer.strides)
        assert buffer.flags.writeable
        buffer[1] = 7
        np.testing.assert_array_equal(lent, buffer)


def test_memory_that_dlpack_has_lent_outlives_the_cache():
    engine = Engine(config())
    lent = np.from_dlpack(engine.cache.device_memory())
    np.asarray(engine.cache.device_memory())[9] = 5
    engine.cache.close()
    del engine
    gc.collect()
    assert lent[9] == 5


@pytest.mark.parametrize("byte_layout", [quire.ByteLayout.PageFirst, quire.ByteLayout.LayerFirst])
@pytest.mark.parametrize("head_order", [quire.HeadOrder.Nhd, quire.HeadOrder.Hnd])
def test_component_memory_has_the_strides_of_the_pool(byte_layout, head_order):
    made = simple(device={"byte_layout": byte_layout})
    made.page.head_order = head_order
    cache = quire.Cache.open(made)
    memory = np.asarray(cache.device_memory())
    geometry = cache.geometry()
    for index, name in enumerate(("k", "v")):
        array = np.asarray(cache.component_memory(0, name))
        assert array.shape == (9, 2, 4, 3, 4)  # page, layer, token, head, dim
        strides = geometry.page.components[index]
        expected = (geometry.page_stride, geometry.layer_stride, strides.token, strides.head, 4)
        assert array.strides == expected
        assert array.ctypes.data - memory.ctypes.data == strides.offset
        by_number = np.asarray(cache.component_memory(0, index))
        assert by_number.ctypes.data == array.ctypes.data
    k, v = (np.asarray(cache.component_memory(0, name)) for name in ("k", "v"))
    k[:], v[:] = 1, 2
    values = memory.view(np.float32)
    assert (values == 1).sum() == k.size and (values == 2).sum() == v.size  # they do not overlap, and fill the pool


@pytest.mark.parametrize(
    "element, dtype",
    [
        (quire.ElementType.Fp32, np.float32),
        (quire.ElementType.Fp16, np.float16),
        (quire.ElementType.Int8, np.int8),
        (quire.ElementType.Int32, np.int32),
        (quire.ElementType.Fp8, np.uint8),
    ],
)
def test_components_have_their_element_type(element, dtype):
    cache = quire.Cache.open(simple(element))
    assert np.asarray(cache.component_memory(0, "k")).dtype == dtype


def test_memory_that_is_nowhere_is_none():
    cache = quire.Cache.open(config(device={"memory": quire.DeviceMemory.None_}))
    assert cache.device_memory() is None and cache.component_memory() is None and cache.state_memory() is None


def test_an_adopted_array_is_the_device_tier():
    memory = np.zeros(9 * 4 * 8, np.uint8)
    engine = Engine(adopting(memory))
    assert np.asarray(engine.cache.device_memory()).ctypes.data == memory.ctypes.data
    tokens = token_range(0, 8)
    sequence = engine.admitted(tokens)
    step = engine.cache.plan_step([sequence]).step
    engine.compute(step, tokens)
    engine.cache.finish_step(step, [None])
    np.testing.assert_array_equal(memory.view(np.uint64)[slots_of(engine.cache.view(sequence), 4)], values_of(tokens))
    assert not memory[: 4 * 8].any()  # the null page


@pytest.mark.parametrize("shape, dtype", [((9, 4, 8), np.uint8), ((9, 8), np.float32), ((36,), np.int64)])
def test_an_adopted_array_has_any_shape_and_type(shape, dtype):
    memory = np.zeros(shape, dtype)
    assert Engine(adopting(memory)).cache.geometry().pool_bytes == memory.nbytes


def test_an_adopted_array_is_kept_when_its_variable_is_dropped():
    class Array(np.ndarray):
        pass  # can be told when it goes

    memory = np.zeros(9 * 4 * 8, np.uint8).view(Array)
    gone = weakref.ref(memory)
    engine = Engine(adopting(memory))
    del memory
    gc.collect()
    assert gone() is not None
    tokens = token_range(0, 8)
    sequence = engine.admitted(tokens)
    step = engine.cache.plan_step([sequence]).step
    engine.compute(step, tokens)
    engine.cache.finish_step(step, [None])
    engine.check(sequence, tokens)
    del sequence, step
    engine.cache.close()
    gc.collect()
    assert gone() is None


def test_an_adopted_array_lives_as_long_as_arrays_of_it():
    memory = np.zeros(9 * 4 * 8, np.uint8)
    engine = Engine(adopting(memory))
    view = np.asarray(engine.cache.device_memory())
    memory[5] = 9
    del memory
    engine.cache.close()
    del engine
    gc.collect()
    assert view[5] == 9
    view[:] = 1


def test_an_adopted_array_moves_to_the_host_and_back():
    memory = np.zeros(9 * 4 * 8, np.uint8)
    host = {"page_count": 32, "write_policy": quire.WritePolicy.WriteThrough}
    engine = Engine(adopting(memory, host=host))
    tokens = token_range(0, 16)
    sequence = engine.admitted(tokens)
    step = engine.cache.plan_step([sequence]).step
    engine.compute(step, tokens)
    engine.cache.finish_step(step, [None])
    engine.cache.end(sequence)
    drain(engine.cache)
    engine.cache.reclaim(100)
    memory[:] = 0
    sequence = engine.admitted(tokens)
    assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
    engine.check(sequence, tokens)


@pytest.mark.parametrize(
    "holder", ["nothing", "memory", "step", "array"]
)
def test_adopted_memory_is_kept_until_the_cache_has_stopped_using_it(holder):
    # Memory that is gone from the process when it is closed: whoever still copies from it is stopped by the system.
    program = """
import gc, mmap, sys, time
import numpy as np, quire
from byte_engine import *
tokens, token_bytes, pages = 64, 64 << 10, 15
memory = mmap.mmap(-1, (pages + 1) * tokens * token_bytes)
array = np.frombuffer(memory, np.uint8)
engine = Engine(config(tokens, pages, layout=quire.ModelLayout.opaque(token_bytes),
                       device={"memory": quire.DeviceMemory.Adopted, "adopted_memory": array},
                       host={"page_count": 32, "write_policy": quire.WritePolicy.WriteThrough}))
sequence = engine.admitted(np.arange(tokens * 14))
step = engine.cache.plan_step([sequence]).step
slots = step.plan.append_slots
view = np.asarray(engine.cache.device_memory()) if sys.argv[1] == "memory" else None
engine.cache.finish_step(step, [None])
engine.cache.poll()
assert engine.cache.stats().transfers_moving == 1
if sys.argv[1] != "step": del step
if sys.argv[1] != "array": del slots
engine.cache.close()
del array
gc.collect()
try:
    memory.close()
    gone = True
except BufferError:
    gone = False  # the cache has it still
if not gone:
    step = slots = view = sequence = engine = None
    gc.collect()
    memory.close()
"""
    run_python(program, holder)


def test_tokens_come_from_anything_that_speaks_dlpack():
    class Tensor:
        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **arguments):
            return self._array.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    engine = Engine(config())
    engine.request(token_range(0, 8))
    assert engine.cache.lookup(engine.space, Tensor(np.arange(8, dtype=np.int64))).matched_tokens == 8
    assert engine.cache.lookup(engine.space, memoryview(np.arange(8, dtype=np.int32))).matched_tokens == 8


def test_a_read_only_array_is_good_for_tokens():
    tokens = np.arange(8, dtype=np.int32)
    tokens.flags.writeable = False
    engine = Engine(config())
    assert engine.cache.lookup(engine.space, tokens).matched_tokens == 0


# torch


@pytest.mark.needs_torch
def test_torch_and_the_cache_see_the_same_memory():
    engine = Engine(config())
    tensor = torch.from_dlpack(engine.cache.device_memory())
    array = np.asarray(engine.cache.device_memory())
    assert tensor.data_ptr() == array.ctypes.data and tensor.dtype == torch.uint8
    tensor[10] = 5
    assert array[10] == 5
    array[11] = 6
    assert tensor[11] == 6


@pytest.mark.needs_torch
def test_torch_and_numpy_see_the_arrays_of_a_plan():
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("before 2.1, NumPy lends nobody what must not be written to")
    engine = Engine(config())
    step = engine.plan(engine.admitted(token_range(0, 9)))
    for array in (step.plan.append_slots, step.plan.query_positions, step.plan.seq_lens):
        assert torch.from_dlpack(array).data_ptr() == np.from_dlpack(array).ctypes.data == array.ctypes.data
    engine.cache.abort_step(step)


@pytest.mark.needs_torch
def test_torch_sees_bfloat16_components():
    cache = quire.Cache.open(simple(quire.ElementType.Bf16))
    k = torch.from_dlpack(cache.component_memory(0, "k"))
    assert k.dtype == torch.bfloat16 and k.shape == (9, 2, 4, 3, 4)
    k.fill_(1.5)
    raw = np.asarray(cache.device_memory()).view(np.uint16)
    assert (raw == 0x3FC0).sum() == k.numel()


@pytest.mark.needs_torch
def test_a_tensor_keeps_the_memory_after_close():
    engine = Engine(config())
    tensor = torch.from_dlpack(engine.cache.device_memory())
    engine.request(token_range(0, 8))
    before = tensor.clone()
    engine.cache.close()
    del engine
    gc.collect()
    assert torch.equal(tensor, before)


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_tokens_come_as_tensors(dtype):
    engine = Engine(config())
    tokens = torch.arange(8, dtype=getattr(torch, dtype))
    assert engine.request(tokens.tolist()) == 0
    assert engine.cache.lookup(engine.space, tokens).matched_tokens == 8
    with pytest.raises(quire.InvalidArgument, match="dimensions"):
        engine.cache.lookup(engine.space, tokens.reshape(2, 4))
    with pytest.raises(quire.InvalidArgument, match="contiguous"):
        engine.cache.lookup(engine.space, tokens[::2])
    with pytest.raises(quire.InvalidArgument, match="float32"):
        engine.cache.lookup(engine.space, tokens.float())


@pytest.mark.needs_torch
def test_a_sampled_token_comes_as_a_tensor():
    engine = Engine(config())
    sequence = engine.admitted([1, 2, 3])
    engine.cache.finish_step(engine.plan(sequence), [torch.tensor([7])])
    engine.cache.finish_step(engine.plan(sequence), [torch.tensor(8)])
    assert engine.cache.view(sequence).token_count == 5


@pytest.mark.needs_torch
def test_an_adopted_tensor_is_the_device_tier_and_is_kept():
    tensor = torch.zeros(9, 4, 8, dtype=torch.uint8)
    address = tensor.data_ptr()
    engine = Engine(adopting(tensor))
    del tensor
    gc.collect()
    assert torch.from_dlpack(engine.cache.device_memory()).data_ptr() == address
    tokens = token_range(0, 8)
    sequence = engine.admitted(tokens)
    step = engine.cache.plan_step([sequence]).step
    engine.compute(step, tokens)
    engine.cache.finish_step(step, [None])
    engine.check(sequence, tokens)


@pytest.mark.needs_torch
def test_a_tensor_whose_storage_is_freed_is_noticed():
    tensor = torch.zeros(9 * 4 * 8, dtype=torch.uint8)
    engine = Engine(adopting(tensor))
    sequence = engine.admitted([1, 2, 3])
    tensor.untyped_storage().resize_(0)
    with pytest.raises(quire.InvalidArgument, match="freed or moved"):
        engine.cache.plan_step([sequence])


@pytest.mark.needs_torch
def test_an_adopted_parameter_is_kept_like_any_tensor():
    tensor = torch.zeros(9 * 4 * 2, dtype=torch.float32, requires_grad=True)
    try:
        engine = Engine(adopting(tensor))
    except (quire.InvalidArgument, BufferError):  # torch lends none that needs a gradient
        return
    assert torch.from_dlpack(engine.cache.device_memory()).data_ptr() == tensor.data_ptr()


@pytest.mark.needs_torch
def test_the_interpreter_ends_with_tensors_alive():
    run_python("""
import torch, quire
from byte_engine import *
adopted = torch.zeros(33 * 32, dtype=torch.uint8)
engine = Engine(config(device={"memory": quire.DeviceMemory.Adopted, "adopted_memory": adopted}))
del adopted
tensor = torch.from_dlpack(engine.cache.device_memory())
other = torch.from_dlpack(Engine(config()).cache.device_memory())
sequence = engine.admitted(torch.arange(6))
step = engine.cache.plan_step([sequence]).step
""")


# jax and cupy


@pytest.mark.needs_jax
def test_jax_sees_the_same_bytes_and_is_never_written_to():
    import jax

    cache = quire.Cache.open(simple())
    memory = np.asarray(cache.device_memory())
    memory[:] = 5
    seen = jax.numpy.from_dlpack(cache.device_memory())
    assert seen.unsafe_buffer_pointer() == memory.ctypes.data and bool((seen == 5).all())
    space = cache.key_space(quire.KeySpace(model="m"))
    on_host = jax.devices("cpu")[0]
    sequence = cache.begin(space, jax.device_put(jax.numpy.arange(20), on_host))
    cache.admit(sequence)
    step = cache.plan_step([sequence]).step
    assert jax.numpy.asarray(step.plan.append_slots).shape == (20,)
    cache.abort_step(step)
    constant = jax.device_put(jax.numpy.zeros(9 * 4 * 8, "uint8"), on_host)
    with pytest.raises(quire.InvalidArgument, match="array of jax"):
        quire.Cache.open(adopting(constant))


@pytest.mark.needs_cupy
@pytest.mark.needs_cuda
def test_cupy_sees_the_same_memory_and_can_be_adopted():
    import cupy

    made = simple()
    made.device.memory = quire.DeviceMemory.Accelerator
    made.device.accelerator = quire.open_cuda_device(0)
    cache = quire.Cache.open(made)
    by_cupy, by_torch = cupy.from_dlpack(cache.component_memory()), torch.from_dlpack(cache.component_memory())
    by_cupy[3] = 7
    cupy.cuda.Device().synchronize()
    assert by_cupy.data.ptr == by_torch.data_ptr() and bool((by_torch[3] == 7).all())
    pool = cupy.zeros(cache.geometry().pool_bytes, cupy.uint8)
    made.device.memory, made.device.adopted_memory = quire.DeviceMemory.Adopted, pool
    assert cupy.from_dlpack(quire.Cache.open(made).device_memory()).data.ptr == pool.data.ptr


@pytest.mark.needs_cuda
def test_an_engines_tensors_on_a_gpu_are_the_device_tier():
    k, v = (torch.zeros(2, 17, 4, 2, 8, device="cuda") for _ in range(2))  # [layer][page][place][head][dim]
    parts = [(layer, component, tensor[layer]) for layer in range(2) for component, tensor in enumerate((k, v))]
    shape = quire.SimpleShape(name="toy", layers=2, kv_heads=2, head_dim=8, element=quire.ElementType.Fp32)
    engine = Engine(
        config(
            layout=quire.ModelLayout.simple(shape),
            page_count=16,
            partial_reuse_min_tokens=4,  # no copies
            host=WRITE_THROUGH,
            device={
                "memory": quire.DeviceMemory.Adopted,
                "accelerator": quire.open_cuda_device(0),
                "adopted_tensors": [
                    [quire.AdoptedTensor(layer_index=l, component_index=c, data=data) for l, c, data in parts]
                ],
            },
        )
    )

    def rows_of(tokens, layer, component):
        """Exact in float32, and of this layer and component alone."""
        rows = (values_of(tokens) % 2**20 + (2 * layer + component) * 2**20).astype("float32")
        return torch.from_numpy(rows).cuda()[:, None, None].expand(-1, 2, 8)

    for first in [100 * i for i in range(5)] * 3:
        tokens = token_range(first, 24)
        sequence = engine.cache.begin(engine.space, tokens)
        engine.cache.admit(sequence)
        assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
        view = engine.cache.view(sequence)
        found = torch.from_numpy(slots_of(view, 4)[: view.computed_tokens].astype("int64")).cuda()
        for layer, component, data in parts:
            right = rows_of(tokens, layer, component)[: view.computed_tokens]
            assert torch.equal(data.reshape(-1, 2, 8)[found], right)
        while (outcome := engine.cache.plan_step([sequence])).step is None:
            assert outcome.shortage.pages_leaving > 0
            drain(engine.cache)
        entry = outcome.step.plan.entries[0]
        slots = torch.from_numpy(entry.append_slots.astype("int64")).cuda()
        for layer, component, data in parts:
            data.view(-1, 2, 8)[slots] = rows_of(tokens, layer, component)[entry.position :]
        torch.cuda.synchronize()
        engine.cache.finish_step(outcome.step, [None])
        engine.cache.end(sequence)
        drain(engine.cache)
    assert engine.cache.stats().loaded_page_total > 0
