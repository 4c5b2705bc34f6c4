"""How fast this machine reads memory and multiplies: the two numbers that bound a pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from yggrt.memory import huge_pages

# Far more than any cache holds.
READ_BYTES = 512 << 20
_PRODUCT_SIZE = 1024
_REPEATS = 7


def measure_read_bandwidth(num_threads: int) -> float:
    """Bytes per second of a sum over 512 MB of float32 in huge pages, the median of seven."""
    with _threads(num_threads):
        data = torch.frombuffer(huge_pages(READ_BYTES), dtype=torch.float32).fill_(1.0)
        return READ_BYTES / _median_seconds(lambda: data.sum())


def measure_flops(num_threads: int) -> float:
    """FLOP/s of a float32 product of two 1024 x 1024 matrices, the median of seven."""
    with _threads(num_threads):
        left = torch.rand(_PRODUCT_SIZE, _PRODUCT_SIZE)
        right = torch.rand(_PRODUCT_SIZE, _PRODUCT_SIZE)
        return 2 * _PRODUCT_SIZE**3 / _median_seconds(lambda: left @ right)


def _median_seconds(run: Callable[[], object]) -> float:
    run()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
