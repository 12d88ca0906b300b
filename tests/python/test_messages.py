# SPDX-License-Identifier: Apache-2.0
"""Errors say what was wrong, in the words of Python."""

import pathlib

import pytest

import quire


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
