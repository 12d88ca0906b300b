#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a store's files, and extents, as docs/formats.md describes them. Written from that page and not from the C++.

    read_segment.py <directory>                    lists the manifest, the segments and their records
    read_segment.py --check <writer> <directory>   lets <writer> fill the directory and list what it finds there itself,
                                                   and compares; status 1 when the lists differ

It needs no more of Python than Debian's python3-minimal has. That has no zstd, so compressed payloads are not verified.
"""

import os
import re
import struct
import subprocess
import sys

import page_names

BLOCK = 4096
RECORD_HEADER = 192
PAYLOAD_MAX = 2**32
VERSION = 2
EXTENT_SALT = int.from_bytes(b"Extent1", "little")
MASK = 2**64 - 1
NO_NAME = bytes(32)

PAGE, KEY_SPACE, DROP_KEY_SPACE, DROP_PAGE, DROP_ALL = 1, 2, 3, 4, 5
NO_COMPRESSION, ZSTD = 0, 1


class Refused(Exception):
    """The bytes are not what they should be."""


class Unsupported(Refused):
    """A newer program wrote them."""


# ── checksums ──────────────────────────────────────────────────────────────────────────────────────────────────────

XXH3_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def xxh3(data, seed):
    """XXH3 with 64 bits and a seed, for the lengths that headers have: 17 to 240 bytes."""
    length = len(data)
    assert 17 <= length <= 240

    def mix16(at, secret_at):
        low, high = struct.unpack_from("<QQ", data, at)
        secret_low, secret_high = struct.unpack_from("<QQ", XXH3_SECRET, secret_at)
        product = (low ^ ((secret_low + seed) & MASK)) * (high ^ ((secret_high - seed) & MASK))
        return (product & MASK) ^ (product >> 64)

    def avalanche(value):
        value &= MASK
        value ^= value >> 37
        value = (value * 0x165667919E3779F9) & MASK
        return value ^ (value >> 32)

    total = length * 0x9E3779B185EBCA87
    if length <= 128:
        for i in range((length - 1) // 32 + 1):
            total += mix16(16 * i, 32 * i) + mix16(length - 16 * (i + 1), 32 * i + 16)
        return avalanche(total)
    total += sum(mix16(16 * i, 16 * i) for i in range(8))
    total = avalanche(total)
    total += sum(mix16(16 * i, 16 * (i - 8) + 3) for i in range(8, length // 16))
    return avalanche(total + mix16(length - 16, 136 - 17))


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


K = [mix64(i) >> 32 for i in range(256)]


def payload_checksum(payload):
    padded = payload + bytes(-len(payload) % 4)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    total = 0
    for j in range(0, len(words), 256):
        block = sum(K[i] * word for i, word in enumerate(words[j:j + 256]))
        total += (mix64(2**32 + j // 256) | 1) * block
    return mix64((total & MASK) ^ mix64(len(payload)))


# ── heads and records ──────────────────────────────────────────────────────────────────────────────────────────────


def check_zeros(data, *ranges):
    for begin, end in ranges:
        if any(data[begin:end]):
            raise Refused("bytes that must be 0 are not")


def check_head(block, magic, seed):
    if len(block) != BLOCK or block[:8] != magic:
        raise Refused("no such block")
    if struct.unpack_from("<Q", block, 56)[0] != xxh3(block[:56], seed):
        raise Refused("the checksum of a head does not fit")
    version = struct.unpack_from("<H", block, 8)[0]
    if version > VERSION:
        raise Unsupported(f"version {version}")
    if version == 0:
        raise Refused("there is no version 0")
    check_zeros(block, (10, 16), (64, BLOCK))


def read_manifest(block):
    check_head(block, b"QuireMan", 0)
    check_zeros(block, (40, 56))
    return {"store_id": block[16:32], "created_at_ns": struct.unpack_from("<q", block, 32)[0]}


def read_segment_header(block, store_id, segment_id):
    check_head(block, b"QuireSeg", 0)
    check_zeros(block, (48, 56))
    if block[16:32] != store_id:
        raise Refused("a segment of another store")
    own_id, salt = struct.unpack_from("<QQ", block, 32)
    if own_id != segment_id:
        raise Refused("a segment of another name")
    return salt


def record_bytes(stored_bytes):
    return (RECORD_HEADER + stored_bytes + BLOCK - 1) // BLOCK * BLOCK


def read_record_header(data, salt, offset, end):
    """Of the record that should lie at `offset`; None: wherever it says itself."""
    if len(data) < RECORD_HEADER or data[:8] != b"QuireRec":
        raise Refused("no record")
    header = data[:RECORD_HEADER]
    if struct.unpack_from("<Q", header, 184)[0] != xxh3(header[:184], salt):
        raise Refused("the checksum of a record header does not fit")
    check_zeros(header, (10, 12), (168, 184))
    record = dict(zip(
        ("kind", "compression", "page_index", "order", "offset", "layout", "payload_bytes", "stored_bytes", "checksum",
         "stored_at_ns", "name", "parent", "key_space"),
        struct.unpack_from("<BB2xIQQQQQQq32s32s32s", header, 8)))
    check_record(record)
    if offset is not None and record["offset"] != offset:
        raise Refused("a record in another place")
    if record["offset"] % BLOCK != 0 or record["offset"] == 0:
        raise Refused("a record where none can be")
    if record["offset"] + record_bytes(record["stored_bytes"]) > end:
        raise Refused("a record behind the end")
    return record


def check_record(record):
    kind = record["kind"]
    if kind not in (PAGE, KEY_SPACE, DROP_KEY_SPACE, DROP_PAGE, DROP_ALL):
        raise Refused("no such kind")
    if record["compression"] not in ((NO_COMPRESSION, ZSTD) if kind == PAGE else (NO_COMPRESSION,)):
        raise Refused("no such compression")

    if (record["name"] != NO_NAME) != (kind in (PAGE, DROP_PAGE)):
        raise Refused("a name that is missing, or too many")
    if (record["parent"] != NO_NAME) != (kind == PAGE):
        raise Refused("a parent that is missing, or too many")
    if record["key_space"] == NO_NAME and kind not in (DROP_PAGE, DROP_ALL):
        raise Refused("no key space")
    if record["key_space"] != NO_NAME and kind == DROP_ALL:
        raise Refused("a key space where there is none")
    if kind != PAGE and (record["layout"] != 0 or record["page_index"] != 0):
        raise Refused("only pages have these fields")

    payload_bytes, stored_bytes = record["payload_bytes"], record["stored_bytes"]
    if kind in (PAGE, KEY_SPACE):
        if payload_bytes == 0 or stored_bytes == 0 or payload_bytes > PAYLOAD_MAX:
            raise Refused("a payload of no possible length")
    elif payload_bytes != 0 or stored_bytes != 0 or record["checksum"] != 0:
        raise Refused("a payload where there is none")
    if record["compression"] == ZSTD:
        if stored_bytes >= payload_bytes:
            raise Refused("compression that makes it no smaller")
    elif stored_bytes != payload_bytes:
        raise Refused("a stored length that is not the payload's")


def read_footer(data, salt, segment_id):
    """The records of a sealed segment."""
    if len(data) < 2 * BLOCK:
        raise Refused("too short for a trailer")
    trailer = data[-BLOCK:]
    check_head(trailer, b"QuireEnd", salt)
    check_zeros(trailer, (40, 56))
    own_id, footer_offset, record_count = struct.unpack_from("<QQQ", trailer, 16)
    if own_id != segment_id:
        raise Refused("a trailer of another segment")
    if trailer[8:10] != data[8:10]:
        raise Refused("a trailer of another version")
    if footer_offset == 0 or footer_offset % BLOCK != 0 or footer_offset >= len(data):
        raise Refused("a footer where none can be")
    if record_count > footer_offset // BLOCK - 1:
        raise Refused("more records than there is room for")
    headers_end = footer_offset + RECORD_HEADER * record_count
    trailer_offset = (headers_end + BLOCK - 1) // BLOCK * BLOCK
    if trailer_offset != len(data) - BLOCK:
        raise Refused("a footer of another length")
    check_zeros(data, (headers_end, trailer_offset))
    records = []
    end = BLOCK
    for at in range(footer_offset, headers_end, RECORD_HEADER):
        record = read_record_header(data[at:at + RECORD_HEADER], salt, None, footer_offset)
        if record["offset"] < end:
            raise Refused("records that overlap or are out of order")
        end = record["offset"] + record_bytes(record["stored_bytes"])
        records.append(record)
    return records


def scan(data, salt):
    """The records of a segment without a footer."""
    offset = BLOCK
    while offset < len(data):
        try:
            record = read_record_header(data[offset:offset + RECORD_HEADER], salt, offset, len(data))
        except Refused:
            offset += BLOCK
            continue
        yield record
        offset += record_bytes(record["stored_bytes"])


def read_key_space(payload):
    if len(payload) < 8 or payload[0] > 1:
        raise Refused("no key space")
    check_zeros(payload, (1, 8))
    fields = []
    at = 8
    for _ in range(5):
        if len(payload) - at < 8:
            raise Refused("a key space that ends too early")
        length = struct.unpack_from("<Q", payload, at)[0]
        at += 8
        if length > len(payload) - at:
            raise Refused("a field behind the end")
        fields.append(payload[at:at + length])
        at += length
    if at != len(payload):
        raise Refused("bytes behind a key space")
    return payload[0] == 1, fields


def read_extent(data, page_count):
    """The headers of an extent's pages."""
    pages = []
    for i in range(page_count):
        page = read_record_header(data[i * RECORD_HEADER:], EXTENT_SALT, (i + 1) * BLOCK, 1 << 63)
        if page["kind"] != PAGE or page["compression"] != NO_COMPRESSION:
            raise Refused("no page of an extent")
        if i > 0:
            before = pages[-1]
            if any(page[field] != before[field] for field in ("key_space", "layout", "payload_bytes")):
                raise Refused("pages that do not belong together")
            if page["parent"] != before["name"] or page["page_index"] != before["page_index"] + 1:
                raise Refused("pages that do not follow each other")
        pages.append(page)
    if pages[0]["page_index"] % page_count != 0:
        raise Refused("an extent that begins in another one")
    if len(data) != page_count * (RECORD_HEADER + pages[0]["payload_bytes"]):
        raise Refused("an extent of another length")
    return pages


# ── listing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(record, data):
    begin = record["offset"] + RECORD_HEADER
    payload = data[begin:begin + record["stored_bytes"]]
    if record["compression"] == ZSTD:
        verdict = "compressed"
    elif record["kind"] in (DROP_KEY_SPACE, DROP_PAGE, DROP_ALL) or payload_checksum(payload) == record["checksum"]:
        verdict = "good"
    else:
        verdict = "damaged"
    line = " ".join(f"{field} {value.hex() if isinstance(value, bytes) else value}" for field, value in record.items())
    if record["kind"] == KEY_SPACE and verdict == "good":
        try:
            has_salt, fields = read_key_space(payload)
            verdict += f" salt {int(has_salt)} " + " ".join(field.hex() or "-" for field in fields)
        except Refused:
            verdict += " but no key space"
    return f"  {line} {verdict}"


def list_segment(data, store_id, segment_id):
    try:
        salt = read_segment_header(data[:BLOCK], store_id, segment_id)
    except Unsupported:
        yield f"segment {segment_id}: unsupported"
        return
    except Refused:
        yield f"segment {segment_id}: corrupt"
        return
    try:
        records = read_footer(data, salt, segment_id)
        yield f"segment {segment_id}: sealed"
    except Refused:
        records = scan(data, salt)
        yield f"segment {segment_id}: open"
    for record in records:
        yield describe(record, data)


def list_extent(data, extent_id, page_count):
    try:
        pages = read_extent(data, page_count)
    except Refused:
        yield f"extent {extent_id}: refused"
        return
    last = pages[-1]
    yield (f"extent {extent_id}: quire:1:{last['key_space'].hex()[:16]}:{last['layout']:016x}:{page_count}:"
           f"{last['name'].hex()}")
    for i, page in enumerate(pages):
        begin = page_count * RECORD_HEADER + i * page["payload_bytes"]
        is_good = payload_checksum(data[begin:begin + page["payload_bytes"]]) == page["checksum"]
        yield f"  page {page['page_index']} {'arrives' if is_good else 'is not what it was'}"


def read_file(directory, name):
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


def list_store(directory):
    manifest = read_manifest(read_file(directory, "quire-manifest"))
    yield f"store {manifest['store_id'].hex()} created_at_ns {manifest['created_at_ns']}"
    for name in sorted(os.listdir(directory)):
        match = re.fullmatch("segment-([0-7][0-9a-f]{15})", name)
        if match:
            yield from list_segment(read_file(directory, name), manifest["store_id"], int(match.group(1), 16))
    for name in sorted(os.listdir(directory)):
        match = re.fullmatch("extent-([0-9]+)-of-([0-9]+)", name)
        if match:
            yield from list_extent(read_file(directory, name), int(match.group(1)), int(match.group(2)))


def check_names(lines):
    """The pages of the first segment are those of a prompt that the writer and this script know."""
    names = [match.group(1) for match in re.finditer(r"^  kind 1 .* name ([0-9a-f]{64}) ", "\n".join(lines), re.M)]
    space = page_names.key_space_name("model", "2", "", "bf16", "yarn", "secret")
    wanted = page_names.page_names(page_names.root_name(space, 16), 16, list(range(64)), [(20, 40, bytes([7] * 32))])
    return names[:4] == [name.hex() for name in wanted]


def empty(directory):
    for name in os.listdir(directory):
        if name == "quire-manifest" or name.startswith(("segment-", "extent-")):
            os.remove(os.path.join(directory, name))


def check(writer, directory):
    os.makedirs(directory, exist_ok=True)
    empty(directory)
    result = subprocess.run([writer, directory], stdout=subprocess.PIPE, check=True)
    wanted = result.stdout.decode().splitlines()
    got = list(list_store(directory))
    differences = [(a, b) for a, b in zip(wanted, got) if a != b]
    for a, b in differences[:5]:
        print(f"the library: {a}\nthis reader: {b}\n")
    has_names = check_names(got)
    if not has_names:
        print("the pages of the first segment have other names")
    counts = {word: sum(word in line for line in got)
              for word in ("sealed", "open", "corrupt", "unsupported", "good", "damaged", "compressed",
                           "refused", "arrives", "is not what it was")}
    print(f"{len(wanted)} lines of the library, {len(got)} of this reader, {len(differences)} differ: {counts}")
    # A comparison of nothing would prove nothing.
    is_good = len(wanted) == len(got) and not differences and has_names and all(counts.values())
    if is_good:
        empty(directory)
    return is_good


def main(arguments):
    if len(arguments) == 3 and arguments[0] == "--check":
        return 0 if check(arguments[1], arguments[2]) else 1
    if len(arguments) != 1:
        print(__doc__)
        return 2
    for line in list_store(arguments[0]):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
