# SPDX-License-Identifier: Apache-2.0
"""`await sequence.ready()`: event loops whose tasks wait for loads."""

import asyncio
import threading

import numpy as np
import pytest

import quire
from byte_engine import DEADLINE_S, WRITE_THROUGH, Engine, config, drain, engine_with_a_load, token_range


def test_several_tasks_wait_for_their_loads_on_one_event_loop():
    engine = Engine(config(4, 64, host=WRITE_THROUGH))
    texts = [token_range(100 * i, 12) for i in range(4)]
    for text in texts:
        engine.request(text)
    drain(engine.cache)
    engine.cache.reclaim(100)

    async def serve(text):
        sequence = engine.admitted(text)
        view = await sequence.ready()
        assert not view.is_loading and view.computed_tokens == 12
        engine.check(sequence, text)
        return sequence

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(serve, texts)), DEADLINE_S)

    assert len(asyncio.run(main())) == 4
    assert engine.cache.stats().host_hit_tokens == 48


def engine_with_a_slow_load():
    """What is cached is on the host alone, and takes a while to come back."""
    layout = quire.ModelLayout.opaque(16 << 10)
    engine = Engine(config(64, 32, layout=layout, host=WRITE_THROUGH))
    tokens = np.arange(64 * 24)
    engine.cache.finish_step(engine.cache.plan_step([engine.admitted(tokens)]).step, [None])
    drain(engine.cache)
    return engine, tokens


def until(attempt):
    """Loads end when they end: tries until one was caught on its way."""
    for _ in range(100):
        if attempt():
            return
    raise AssertionError("no load was ever on its way")


def test_a_cancelled_waiter_leaves_the_others_waiting():
    engine, tokens = engine_with_a_slow_load()

    async def main():
        first, second = engine.admitted(tokens), engine.admitted(tokens)
        tasks = [asyncio.ensure_future(sequence.ready()) for sequence in (first, second)]
        await asyncio.sleep(0)  # both have begun
        tasks[0].cancel()
        view = await asyncio.wait_for(tasks[1], DEADLINE_S)
        assert view.computed_tokens == tokens.size
        await asyncio.gather(tasks[0], return_exceptions=True)
        return tasks[0].cancelled()

    def attempt():
        engine.cache.reclaim(100)
        return asyncio.run(main())

    until(attempt)
    engine.cache.check_invariants()


def test_all_waiters_cancelled_leave_a_loop_that_watches_nothing():
    engine, tokens = engine_with_a_slow_load()

    async def main():
        sequence = engine.admitted(tokens)
        task = asyncio.ensure_future(sequence.ready())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not asyncio.get_running_loop().remove_reader(engine.cache.event_fd())
        assert engine.cache.wait_until_ready(sequence, DEADLINE_S)
        return task.cancelled()

    def attempt():
        engine.cache.reclaim(100)
        return asyncio.run(main())

    until(attempt)


def test_two_event_loops_one_after_the_other():
    engine, _ = engine_with_a_load(token_range(0, 16), external=False)

    async def main():
        sequence = engine.admitted(token_range(0, 16))
        view = await asyncio.wait_for(sequence.ready(), DEADLINE_S)
        engine.cache.end(sequence)
        engine.cache.reclaim(100)
        return view.host_tokens

    assert [asyncio.run(main()) for _ in range(3)] == [16, 16, 16]


def test_two_event_loops_at_the_same_time():
    engine = Engine(config(4, 64, host=WRITE_THROUGH))
    for i in range(2):
        engine.request(token_range(100 * i, 12))
    drain(engine.cache)

    async def main(text):
        for _ in range(10):
            sequence = engine.admitted(text)
            view = await asyncio.wait_for(sequence.ready(), DEADLINE_S)
            assert view.computed_tokens == 12
            engine.cache.end(sequence)
            engine.cache.reclaim(100)

    outcome = []

    def run(i):
        outcome.append(asyncio.run(main(token_range(100 * i, 12))))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert outcome == [None, None]


def test_a_cache_that_is_closed_meanwhile_tells_those_who_wait():
    async def main():
        engine, tokens = engine_with_a_slow_load()
        engine.cache.reclaim(100)
        sequence = engine.admitted(tokens)
        task = asyncio.ensure_future(sequence.ready())
        await asyncio.sleep(0)
        engine.cache.close()
        try:
            await asyncio.wait_for(task, DEADLINE_S)
        except quire.InvalidArgument as error:
            return "closed" in str(error)
        return False

    until(lambda: asyncio.run(main()))


def test_tasks_wait_for_loads_that_the_engine_moves_itself():
    tokens = token_range(0, 16)
    engine, mover = engine_with_a_load(tokens)

    async def main():
        sequence = engine.admitted(tokens)
        task = asyncio.ensure_future(sequence.ready())
        await asyncio.sleep(0)
        mover.settle()
        return (await asyncio.wait_for(task, DEADLINE_S)).computed_tokens

    assert asyncio.run(main()) == 16


def test_a_sequence_that_loads_nothing_is_ready_at_once_in_every_configuration():
    async def main(made):
        view = await Engine(made).admitted([1, 2, 3]).ready()
        return view.is_loading

    for made in (config(), config(host={**WRITE_THROUGH, "external_mover": True})):
        assert asyncio.run(main(made)) is False
