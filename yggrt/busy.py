"""How much of this machine other processes took while something was timed."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import perf_counter

# Above this share of the processors' time a measurement deserves a warning.
BUSY_SHARE = 0.05
# The same for the difference of two equal runs that followed each other, over their mean.
SPREAD = 0.1
_WAITING = (3, 4)  # idle and iowait in a line of /proc/stat
_IN_USER = (8, 9)  # guest times, which user and nice hold already


class BusyMeter:
    """Measures from its making, or from `restart`.

    Counts the processors that this process may run on, from /proc/stat (Linux): time that went to
    other processes or that the hypervisor gave to others (steal). `own` holds ids of child
    processes that do measured work. Ticks are 10 ms: below about a second the figure is coarse.
    """

    def __init__(self, own: Collection[int] = ()) -> None:
        self._own = tuple(own)
        self._cpus = os.sched_getaffinity(0)
        self.restart()

    def restart(self) -> None:
        self._start_s, self._busy_s, self._own_s = self._read()

    def share(self) -> float:
        """Share of the processors' time, 0..1, that others took since the start."""
        now_s, busy_s, own_s = self._read()
        available_s = (now_s - self._start_s) * len(self._cpus)
        taken_s = (busy_s - self._busy_s) - (own_s - self._own_s)
        return min(1.0, max(0.0, taken_s / available_s)) if available_s else 0.0

    def _read(self) -> tuple[float, float, float]:
        """Clock, busy time of the processors, processor time of our own processes; seconds."""
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        busy = busy_ticks(Path("/proc/stat").read_text(), self._cpus)
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        for pid in self._own:
            # The time of a child that has ended is in that of all children by now.
            with suppress(FileNotFoundError):
                own += tick_s * process_ticks(Path(f"/proc/{pid}/stat").read_text())
        return perf_counter(), tick_s * busy, own


def busy_ticks(stat: str, cpus: Collection[int]) -> int:
    """Ticks that `cpus` spent on anything but waiting, of a text in the form of /proc/stat."""
    names = {f"cpu{cpu}" for cpu in cpus}
    total = 0
    for line in stat.splitlines():
        name, *ticks = line.split()
        if name in names:
            total += sum(
                int(tick)
                for place, tick in enumerate(ticks)
                if place not in (*_WAITING, *_IN_USER)
            )
    return total


def process_ticks(stat: str) -> int:
    """User and system ticks of a text in the form of /proc/PID/stat, ended threads included."""
    # The name in parentheses may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def warning(share: float, spread: float = 0.0) -> str | None:
    """One line if others took more of the processors (`share`), or equal runs that followed each
    other differ by more of their time (`spread`), than measurements bear.
    """
    reasons = []
    if share > BUSY_SHARE:
        reasons.append(f"other processes took {share:.0%} of the processors' time")
    if spread > SPREAD:
        reasons.append(f"equal runs one after the other differ by {spread:.0%}")
    if not reasons:
        return None
    return f"the machine was busy while this was timed ({', '.join(reasons)}): repeat it when idle"
