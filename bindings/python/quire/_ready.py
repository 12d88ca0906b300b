# SPDX-License-Identifier: Apache-2.0
"""`await sequence.ready()`: an event loop that looks after the transfers of a cache while tasks wait for them."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire import Cache, Sequence, SequenceView

# A load may have a limit of time of its own, which the cache notices when it is told the time.
_TICK_S = 0.05


class _Pump:
    """Polls and applies for one cache on one event loop, as long as somebody waits."""

    def __init__(self, cache: Cache, loop: asyncio.AbstractEventLoop) -> None:
        self._cache = weakref.ref(cache)
        self._loop = loop
        # Of its own, so that the loop's entry is never that of a file that got the number of a closed cache's.
        self._fd = os.dup(cache.event_fd()) if cache.event_fd() >= 0 else -1
        self._waiters: set[asyncio.Event] = set()
        self.error: BaseException | None = None  # what nobody but the waiters would hear of
        if self._fd >= 0:
            loop.add_reader(self._fd, self.run)
        self._timer = loop.call_later(_TICK_S, self._tick)

    def add(self, waiter: asyncio.Event) -> None:
        self._waiters.add(waiter)

    def discard(self, waiter: asyncio.Event) -> bool:
        """True when nobody waits any more: the pump has stopped."""
        self._waiters.discard(waiter)
        if self._waiters:
            return False
        self._timer.cancel()
        if self._fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
        return True

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self.run()

    def run(self) -> None:
        cache = self._cache()
        try:
            if cache is not None and not cache.is_closed and self._fd >= 0:
                cache.apply(cache.poll())
        except Exception as error:  # noqa: BLE001 - each waiter raises it
            self.error = error
        for waiter in self._waiters:  # each looks at its own sequence, and sees what is wrong with the cache
            waiter.set()


_pumps: weakref.WeakKeyDictionary[Cache, dict[asyncio.AbstractEventLoop, _Pump]] = weakref.WeakKeyDictionary()


async def ready(sequence: Sequence) -> SequenceView:
    cache = sequence.cache
    view = cache.view(sequence)
    if view.is_waiting:
        return view
    if cache.wait_until_ready(sequence, 0):
        return cache.view(sequence)
    loop = asyncio.get_running_loop()
    pumps = _pumps.setdefault(cache, {})
    pump = pumps.get(loop)
    if pump is None:
        pump = pumps[loop] = _Pump(cache, loop)
    waiter = asyncio.Event()
    pump.add(waiter)
    try:
        while (view := cache.view(sequence)).is_loading and not view.is_ready:
            await waiter.wait()
            waiter.clear()
            if pump.error is not None:
                raise pump.error
    finally:
        if pump.discard(waiter) and pumps.get(loop) is pump:
            del pumps[loop]
    return view
