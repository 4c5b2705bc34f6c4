"""Times tokens as they arrive."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

from yggc.compare.protocol import Timed


class Stopwatch:
    """Starts when made; every arrival may bring several tokens."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._start = perf_counter()
        self._first = self._last = self._start
        self._num_first = 0

    def arrived(self, ids: Iterable[int]) -> None:
        now = perf_counter()
        if not self._ids:
            self._first = now
        self._last = now
        self._ids.extend(ids)
        self._num_first = self._num_first or len(self._ids)

    def timed(self) -> Timed:
        num_later = len(self._ids) - self._num_first
        tpot_ms = 1e3 * (self._last - self._first) / num_later if num_later else None
        return Timed(self._ids, 1e3 * (self._first - self._start), tpot_ms)
