# SPDX-License-Identifier: Apache-2.0
"""Errors say what was wrong, in the words of Python."""

import array
import pathlib

import numpy as np
import pytest

import quire
from byte_engine import config


@pytest.mark.parametrize(
    "kind, field, value, words",
    [
        (quire.DeviceConfig, "page_count", 2**40, "of type int: it is of type int from 0 to 4294967295"),
        (quire.DeviceConfig, "page_count", -1, "int from 0 to 4294967295"),
        (quire.DeviceConfig, "page_count", 1.5, "of type float: it is of type int from 0 to 4294967295"),
        (quire.DeviceConfig, "page_count", None, "of type NoneType: it is of type int from 0 to 4294967295"),
        (quire.DeviceConfig, "capacity_bytes", 2**64, "int from 0 to 18446744073709551615"),
        (quire.DeviceConfig, "group_page_counts", [1, 2**40], "sequence of int from 0 to 4294967295"),
        (quire.DeviceConfig, "memory", "host", "of type str: it is of type DeviceMemory"),
        (quire.HostConfig, "layer_bands", 2**16, "int from 0 to 65535"),
        (quire.HostConfig, "clean_reserve_pages", 2**32, "int from 0 to 4294967295, or None"),
        (quire.HostConfig, "checksums", "yes", "it is of type bool"),
        (quire.HostConfig, "region", 3, "it is of type HostRegionConfig"),
        (quire.SequenceOptions, "ttl_ns", 2**63, "int from -9223372036854775808 to 9223372036854775807, or None"),
        (quire.DiskConfig, "directories", [3], "it is of type .*PathLike"),
        (quire.DiskConfig, "directories", "/tmp/x", "of type str"),
        (quire.CacheConfig, "layout", "llama-3-8b", "it is of type ModelLayout | None"),
        (quire.CacheConfig, "policy", 3, "it is of type str"),
        (quire.Component, "initial", "x", "it is of type bytes"),
        (quire.CacheGroup, "components", [3], "sequence of Component"),
    ],
)
def test_a_field_says_what_it_takes(kind, field, value, words):
    for call in (lambda: kind(**{field: value}), lambda: setattr(kind(), field, value)):
        with pytest.raises(TypeError, match=f"{kind.__name__}.{field} cannot be .*{words}"):
            call()


def test_what_is_long_is_not_repeated():
    with pytest.raises(TypeError) as caught:
        quire.DeviceConfig(page_count=list(range(10_000)))
    assert len(str(caught.value)) < 400 and "of type list" in str(caught.value)


def test_directories_may_be_paths(tmp_path):
    made = quire.DiskConfig(directories=[tmp_path / "a", str(tmp_path / "b")])
    assert made.directories == (str(tmp_path / "a"), str(tmp_path / "b"))
    made.directories = (pathlib.PurePosixPath("/tmp/c"),)
    assert made.directories == ("/tmp/c",)
    for call in (quire.inspect_disk_store, quire.verify_disk_store):
        with pytest.raises(quire.Error, match="no_such_store"):
            call([tmp_path / "no_such_store"])


class NoMemory:
    """A tensor that has none to show, as torch's are on the device "meta"."""

    dtype = "mine.int32"

    def __dlpack__(self, **_):
        raise BufferError("there are no bytes")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize(
    "tokens, words, cause",
    [
        (np.arange(4, dtype=">i4"), "of type ndarray with dtype >i4, .* byte order", BufferError),
        (np.array([1, None]), "of type ndarray with dtype object, ", BufferError),
        (NoMemory(), "of type NoMemory with dtype mine.int32, .* there are no bytes", BufferError),
        (array.array("u", "abcd"), "of type array, whose buffer is of no type", None),
        ({1, 2}, "of type set, which has neither a buffer nor __dlpack__: give a NumPy array", None),
    ],
)
def test_arrays_that_cannot_be_read_say_why(tokens, words, cause):
    cache = quire.Cache.open(config())
    space = cache.key_space(quire.KeySpace(model="m"))
    with pytest.raises(quire.InvalidArgument, match=words) as caught:
        cache.begin(space, tokens)
    assert type(caught.value.__cause__) is (cause or type(None))


@pytest.mark.needs_torch
def test_tensors_that_cannot_be_read_say_why():
    import torch

    cache = quire.Cache.open(config())
    space = cache.key_space(quire.KeySpace(model="m"))
    for tokens, words in [
        (torch.arange(4, device="meta"), "of type Tensor with dtype torch.int64, .*[Mm]eta"),
        (torch.arange(4).to_sparse(), "of type Tensor with dtype torch.int64, .*strided"),
    ]:
        with pytest.raises(quire.InvalidArgument, match=words) as caught:
            cache.begin(space, tokens)
        assert caught.value.__cause__ is not None


@pytest.mark.needs_cuda
def test_tokens_on_a_gpu_are_refused():
    import torch

    cache = quire.Cache.open(config())
    space = cache.key_space(quire.KeySpace(model="m"))
    with pytest.raises(quire.InvalidArgument, match="cpu"):
        cache.begin(space, torch.arange(4, device="cuda"))


def test_names_are_written_as_in_python(tmp_path):
    with pytest.raises(quire.InvalidArgument) as caught:
        made = config()
        made.plan.page_tables = quire.PageTables.Csr
        made.device.memory = quire.DeviceMemory.Adopted
        quire.Cache.open(made)
    assert "::" not in str(caught.value)
    with pytest.raises(quire.InvalidArgument, match="is for ByteLayout.PageFirst: set it to 0"):
        quire.PoolGeometry.create(
            quire.PageGeometry.create(quire.ModelLayout.opaque(8).groups[0]),
            quire.PoolOptions(page_count=4, byte_layout=quire.ByteLayout.LayerFirst, page_stride_bytes=9999),
        )
    with pytest.raises(quire.InvalidArgument, match="'My::group'"):  # the caller's own
        quire.PageGeometry.create(quire.CacheGroup(name="My::group"))
    with pytest.raises(quire.Error, match="/A::b"):
        quire.inspect_disk_store([tmp_path / "A::b"])
