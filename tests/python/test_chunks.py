# SPDX-License-Identifier: Apache-2.0
"""Pages found by their own tokens, in a cache and in an index of one's own: the scenarios of cache_chunks_test.cc."""

from __future__ import annotations

import gc
import pickle
import random
import threading

import numpy as np
import pytest

import quire
from byte_engine import WRITE_THROUGH, Engine, HandMover, config, rows, token_range, values_of

Status = quire.ChunkStatus


def engine_with_chunks(page_count=16, **fields):
    fields.setdefault("chunks", quire.ChunkConfig(page_count_max=100))
    return Engine(config(4, page_count, **fields))


def find(engine, *chunks):
    return engine.cache.lookup_chunks(engine.space, list(chunks))


def test_a_document_is_found_wherever_it_stands():
    engine = engine_with_chunks()
    text = token_range(100, 18)
    engine.request(text)
    assert find(engine, text).exact_pages == 0  # nobody has asked for it to be found
    assert engine.cache.add_chunks(engine.space, text).inserted_pages == 4
    assert engine.cache.add_chunks(engine.space, np.array(text)).known_pages == 4
    match = find(engine, token_range(900, 4), quire.Chunk(text[8:16]), quire.Prompt(text[:5]))
    assert [page.status for page in match.pages] == [Status.NotMatchExact] + [Status.Partial] * 3
    assert (match.exact_pages, match.partial_pages, match.dropped_tokens) == (0, 3, 1)
    assert (match.recompute_tokens, match.scratch_pages) == (3, 1)
    assert match.status(0) == Status.NotMatchExact and match.status(99) == Status.NotMatchPartial
    assert match.pages[0].handle is None
    first_token = rows(engine.cache)[match.pages[1].handle * 4]
    assert first_token == values_of(text)[8]
    assert engine.cache.stats().chunk_pages == 4
    assert pickle.loads(pickle.dumps(match.pages)) == match.pages


def test_an_evicted_page_is_not_found():
    engine = engine_with_chunks(8)
    text = token_range(100, 32)
    engine.request(text)
    engine.cache.add_chunks(engine.space, text)
    assert find(engine, text[8:12]).partial_pages == 1
    engine.request(token_range(500, 32))
    assert find(engine, text[8:12]).partial_pages == 0


def test_what_is_pinned_stays_until_the_pin_is_dropped():
    engine = engine_with_chunks(8)
    text = token_range(100, 16)
    engine.request(text)
    engine.cache.add_chunks(engine.space, text)
    with engine.cache.pin_chunks(engine.space, [text[8:16]]).pin as pin:
        assert pin
        for i in range(1, 10):
            engine.request(token_range(1000 * i, 16))
        assert find(engine, text).exact_pages == 4
        assert engine.cache.stats().chunk_pinned_pages == 4
        with pytest.raises(quire.Unavailable, match="ChunkPins live"):
            engine.cache.reset()
    assert not pin and engine.cache.stats().chunk_pinned_pages == 0
    pinned = engine.cache.pin_chunks(engine.space, [text])
    assert pinned.match.exact_pages == 4
    del pinned, pin
    gc.collect()
    assert engine.cache.reclaim(100) == 8
    engine.cache.check_invariants()


def test_a_pin_may_be_dropped_on_another_thread_and_later_than_the_cache():
    engine = engine_with_chunks()
    text = token_range(100, 16)
    engine.request(text)
    engine.cache.add_chunks(engine.space, text)
    pinned = [engine.cache.pin_chunks(engine.space, [text])]
    thread = threading.Thread(target=pinned.clear)
    thread.start()
    thread.join()
    assert engine.cache.stats().chunk_pinned_pages == 0
    late = engine.cache.pin_chunks(engine.space, [text])
    engine.cache.close()
    del engine
    gc.collect()
    late.pin.reset()


def test_salts_keep_tenants_apart():
    engine = engine_with_chunks()
    text = token_range(100, 16)
    engine.request(text)
    engine.cache.add_chunks(engine.space, text)
    other = engine.cache.key_space(quire.KeySpace(model="test", salt="another tenant"))
    assert engine.cache.lookup_chunks(other, [text[4:12]]).partial_pages == 0
    key = quire.ExtraKey(begin=1, end=3, item=b"x" * 32)
    assert find(engine, quire.Chunk(text[4:12], [key])).partial_pages == 1


def test_misuse_is_refused_with_the_reason():
    plain = Engine(config())
    with pytest.raises(quire.Unsupported, match="chunks.page_count_max"):
        plain.cache.add_chunks(plain.space, [1, 2, 3, 4])
    engine = engine_with_chunks()
    with pytest.raises(quire.InvalidArgument, match="only whole pages"):
        find(engine, [1, 2, 3])
    with pytest.raises(quire.Error, match=r"chunks\[1\]"):
        find(engine, [1, 2, 3, 4], "text")
    with pytest.raises(quire.InvalidArgument, match="no chunks"):
        find(engine)
    with pytest.raises(quire.InvalidArgument, match="recompute_ratio"):
        Engine(config(4, 16, chunks=quire.ChunkConfig(page_count_max=1, recompute_ratio=2.0)))
    space = engine.space
    engine.cache.drop(space)
    with pytest.raises(quire.InvalidArgument, match="dropped"):
        engine.cache.pin_chunks(space, [[1, 2, 3, 4]])


def test_a_page_that_went_to_the_host_has_to_be_added_again():
    engine = engine_with_chunks(8, host={**WRITE_THROUGH, "external_mover": True})
    mover = HandMover(engine.cache)
    text = token_range(100, 16)

    def request(tokens):
        sequence = engine.admitted(tokens)
        mover.settle()
        step = engine.plan(sequence)
        engine.compute(step, tokens)
        engine.cache.finish_step(step, [None])
        engine.cache.end(sequence)
        mover.settle()

    request(text)
    engine.cache.add_chunks(engine.space, text)
    engine.cache.reclaim(100)
    assert find(engine, text).exact_pages == 0
    request(text)
    assert engine.cache.stats().loaded_page_total > 0
    assert find(engine, text).exact_pages == 0
    assert engine.cache.add_chunks(engine.space, text).inserted_pages == 4


def test_every_page_that_is_found_holds_what_was_asked_for():
    draws = random.Random(5)
    engine = engine_with_chunks(12)
    documents = [token_range(100 * i, 8) for i in range(5)]
    pins = []
    for _ in range(300):
        text = [token for _ in range(draws.randint(1, 3)) for token in draws.choice(documents)]
        try:
            engine.request(text)
            engine.cache.add_chunks(engine.space, text)
        except AssertionError:  # short of pages that are pinned
            pins.clear()
        asked = [draws.choice(documents) for _ in range(2)]
        try:
            pinned = engine.cache.pin_chunks(engine.space, asked)
        except quire.Unavailable:
            pins.clear()
            continue
        pins.append(pinned)
        del pins[:-2]
        memory = rows(engine.cache)
        expected = values_of([token for document in asked for token in document])
        for i, page in enumerate(pinned.match.pages):
            if page.status == Status.Exact:
                held = memory[page.handle * 4 : page.handle * 4 + 4]
                np.testing.assert_array_equal(held, expected[4 * i : 4 * i + 4])
        engine.cache.check_invariants()


# An index of one's own


def test_an_index_of_ones_own():
    engine = Engine(config())
    index = quire.ChunkIndex.create(quire.ChunkIndexConfig(page_tokens=4, page_count_max=3))
    text = token_range(0, 12)
    assert index.insert(engine.space, text, [7, None, 2**64 - 2]).inserted_pages == 2
    assert [page.handle for page in index.lookup(engine.space, [text]).pages] == [7, None, 2**64 - 2]
    assert index.lookup(engine.space, [text[8:]]).pages[0].status == Status.Partial
    assert index.touch(7) and not index.touch(8)
    assert [handle for handle, _ in index.visit_pages()] == [2**64 - 2, 7]
    assert index.insert(engine.space, token_range(50, 8), [1, 2]).replaced_pages == 1
    assert index.erase(7) and not index.erase(7)
    assert index.page_count == 2 and index.config.page_count_max == 3
    index.check_invariants()
    assert index.drop(engine.space) == 2
    index.clear()
    with pytest.raises(quire.InvalidArgument, match="handles for 3 whole pages"):
        index.insert(engine.space, text, [1])
    with pytest.raises(TypeError):
        index.insert(engine.space, text, [1, 2, -1])
    with pytest.raises(quire.InvalidArgument, match="page_count_max is 0"):
        quire.ChunkIndex.create(quire.ChunkIndexConfig())
