#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Page names as docs/formats.md defines them, written from that page and not from the C++.

    page_names.py            prints the names that src/wire/page_name_test.cc expects
    page_names.py <file>     checks that the file has each of them; status 1 when one is missing

It needs no more of Python than Debian's python3-minimal has.
"""

import hashlib
import struct
import sys


def key_space_name(model="", revision="", adapter="", element="", rope="", salt=""):
    form = b"quire key space 1"
    for field in (model, revision, adapter, element, rope, salt):
        text = field.encode("utf-8")
        form += struct.pack("<Q", len(text)) + text
    return hashlib.sha256(form).digest()


def root_name(key_space, page_tokens):
    return hashlib.sha256(b"quire root 1" + key_space + struct.pack("<I", page_tokens)).digest()


def page_names(root, page_tokens, tokens, extra_keys=()):
    """extra_keys: (begin, end, item of 32 bytes), ascending."""
    names = []
    parent = root
    for begin in range(0, len(tokens) // page_tokens * page_tokens, page_tokens):
        end = begin + page_tokens
        keys = [key for key in extra_keys if key[0] < end and key[1] > begin]
        form = b"quire page 1" + parent + struct.pack(f"<{page_tokens}I", *tokens[begin:end])
        form += struct.pack("<I", len(keys))
        for key_begin, key_end, item in keys:
            form += struct.pack("<II", key_begin, key_end) + item
        parent = hashlib.sha256(form).digest()
        names.append(parent)
    return names


def golden():
    """What is named, and its name."""
    empty = key_space_name()
    space = key_space_name("llama-3-8b", "main", "poet", "bf16", "linear:8", "tenant 7")
    yield "empty key space", empty
    yield "key space", space
    yield "root of empty, 16", root_name(empty, 16)
    yield "root, 4", root_name(space, 4)
    tokens = [0, 1, 2, 3, 128000, 5, 6, 2147483647, 8, 9, 10, 11]
    for name in page_names(root_name(space, 4), 4, tokens):
        yield "page", name
    keys = [(2, 5, bytes(range(32))), (5, 6, bytes([255] * 32))]
    for name in page_names(root_name(space, 4), 4, tokens, keys):
        yield "page with extra keys", name
    yield "page 6250 of 100,000 tokens", page_names(root_name(empty, 16), 16, list(range(100000)))[-1]
    yield "large page with extra keys", page_names(root_name(empty, 2048), 2048, list(range(4096)), keys)[-1]


def main(arguments):
    if not arguments:
        for what, name in golden():
            print(f"{what:30} {name.hex()}")
        return 0
    with open(arguments[0], encoding="utf-8") as file:
        text = file.read()
    missing = [(what, name.hex()) for what, name in golden() if name.hex() not in text]
    for what, name in missing:
        print(f"{arguments[0]} does not have {name}, the name of: {what}")
    print(f"{len(list(golden())) - len(missing)} names are there, {len(missing)} are not")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
