# SPDX-License-Identifier: Apache-2.0
"""`await sequence.ready()`: an event loop that looks after the transfers of a cache while tasks wait for them."""

from __future__ import annotations

import asyncio
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
        self._fd = cache.event_fd()
        self._waiters: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: asyncio.Event) -> None:
        if not self._waiters:
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self.run)
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._waiters.add(waiter)

    def discard(self, waiter: asyncio.Event) -> None:
        self._waiters.discard(waiter)
        if self._waiters:
            return
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self.run()

    def run(self) -> None:
        cache = self._cache()
        try:
            if cache is not None and not cache.is_closed and self._fd >= 0:
                cache.apply(cache.poll())
        finally:
            for waiter in self._waiters:  # each looks at its own sequence, and sees what is wrong with the cache
                waiter.set()


_pumps: weakref.WeakKeyDictionary[Cache, dict[int, _Pump]] = weakref.WeakKeyDictionary()


async def ready(sequence: Sequence) -> SequenceView:
    cache = sequence.cache
    view = cache.view(sequence)
    if not view.is_loading:
        return view
    if cache.event_fd() >= 0:  # else a mover of the engine's own is looked after elsewhere
        cache.apply(cache.poll())
    loop = asyncio.get_running_loop()
    pumps = _pumps.setdefault(cache, {})
    pump = pumps.get(id(loop))
    if pump is None or pump._loop is not loop:
        pump = pumps[id(loop)] = _Pump(cache, loop)
    waiter = asyncio.Event()
    pump.add(waiter)
    try:
        while (view := cache.view(sequence)).is_loading:
            await waiter.wait()
            waiter.clear()
    finally:
        pump.discard(waiter)
    return view
