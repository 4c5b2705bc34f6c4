"""How many processors this process may use: its CPU set, and the quota of its control groups,
which the CPU set does not show. Linux; elsewhere the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_processors() -> int:
    """Logical processors, at least 1."""
    return _within_quota(len(_cpu_set()))


def usable_cores() -> int:
    """Physical cores, at least 1: hyper-threads count once."""
    cores = set()
    for cpu in _cpu_set():
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(path.read_text().strip() if path.is_file() else str(cpu))
    return _within_quota(len(cores))


def quota_processors(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> float | None:
    """Processors that the quotas of this process's control groups, and of those they are in, come
    to; None without a quota. Version 1 and 2; `own` is in the form of /proc/self/cgroup.
    """
    return min(_quotas(cgroups, own), default=None)


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base = cgroups
        elif "cpu" in controllers.split(","):
            base = cgroups / "cpu"
        else:
            continue
        # In a container the path may be the host's, and then only the root is there.
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(base):
                yield from _quota_of(folder)


def _quota_of(folder: Path) -> Iterator[float]:
    """As the files of either version say; nothing where there is none."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return
    if quota.isdecimal() and period.isdecimal() and int(period):
        yield int(quota) / int(period)


def _cpu_set() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _within_quota(num: int) -> int:
    quota = quota_processors()
    return max(1, num if quota is None else min(num, int(quota)))
