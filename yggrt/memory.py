"""Memory of this machine, and a file's bytes in huge pages of it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from yggrt.core.errors import RequestError

_CGROUP = Path("/sys/fs/cgroup")
HUGE_PAGE = 2 << 20
_READ_BYTES = 16 << 20
_READ_THREADS = 4


def available_memory_bytes() -> int:
    """Bytes that can be allocated without swapping, within a container's limit."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, current = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.is_file() and current.is_file() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(text) - int(current.read_text())))
    return available


def has_room_for(num_bytes: int) -> bool:
    """Whether `num_bytes` more are at most half of what is available."""
    return 2 * num_bytes <= available_memory_bytes()


def huge_pages(num_bytes: int) -> memoryview:
    """Zeroed memory of this process's own, in huge pages where the system has them: a pass reads
    every weight and key once, and looking up small pages takes a good part of that time.

    Starts on a huge page. The view keeps the memory alive. Raises RequestError if the system has
    not as much.
    """
    # Private: memory that processes share has a huge-page policy of its own, mostly "never".
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=flags)
    except OSError as error:
        raise RequestError(
            f"{num_bytes / 1e6:.0f} MB of memory cannot be had: {error.strerror}",
            "free memory or raise this process's limit; --mapped leaves weights in the file, and "
            "a build with a smaller --max-model-len has smaller caches",
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel built without huge pages knows no such advice.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    start = -_address(memory) % HUGE_PAGE
    return memoryview(memory)[start : start + num_bytes]


def read_into_huge_pages(descriptor: int, num_bytes: int) -> memoryview:
    """The first `num_bytes` of an open file in `huge_pages`."""
    view = huge_pages(num_bytes)

    def fill(begin: int) -> None:
        at, end = begin, min(begin + _READ_BYTES, num_bytes)
        while at < end:
            read = os.preadv(descriptor, [view[at:end]], at)
            if read == 0:
                raise EOFError(f"the file ended at byte {at}, wanted {num_bytes}")
            at += read

    # Fresh pages are cleared as they are filled, which one core does slower than memory allows.
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        for _ in pool.map(fill, range(0, num_bytes, _READ_BYTES)):
            pass
    return view


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
