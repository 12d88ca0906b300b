# SPDX-License-Identifier: Apache-2.0
"""Pages go to disk while nobody calls, so that they are there whatever becomes of the process."""

from __future__ import annotations

import threading
from typing import Protocol

import quire

# How long the thread waits for the disk before it looks whether it is to stop.
_SLICE_S = 0.2


class Report(Protocol):
    """Where a failure is said: LastCall."""

    error: str


class DiskWriter:
    """A thread that flushes a cache after each call of wake(). It holds the cache, not who uses it."""

    def __init__(self, cache: quire.Cache) -> None:
        self._cache = cache
        self._changed = threading.Condition()
        self._report: Report | None = None  # of the call whose pages are to be written
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="quire-writer", daemon=True)
        self._thread.start()

    def wake(self, report: Report) -> None:
        """There are new pages. What goes wrong with them is said in `report`."""
        with self._changed:
            self._report = report
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:  # which collects garbage, too
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._report is None and not self._is_stopping:
                    self._changed.wait()
                if self._is_stopping:
                    return
                report, self._report = self._report, None
            error = self._flush()
            if error and not report.error:
                report.error = error

    def _flush(self) -> str:
        """Until everything is written, or nothing more can be, or there are newer pages. Gives what went wrong."""
        try:
            while not self._cache.wait_until_flushed(_SLICE_S):
                with self._changed:
                    if self._is_stopping or self._report is not None:
                        return ""
            return ""
        except Exception as error:  # noqa: BLE001 - the thread goes on: the next pages may be written again
            return describe(str(error))


def describe(reason: str) -> str:
    return f"pages were not written to disk: {reason}"
