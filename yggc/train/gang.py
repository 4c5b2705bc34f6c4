"""Threads that each run whole passes on their own part of a batch.

Operators that share one pass among threads meet after each of thousands of short regions; on a
machine with other work the meeting costs more than the second processor brings (docs/log.md). Here
each thread computes alone, and the parts meet once per batch. What a part computes depends on no
number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class Gang:
    """`with Gang(2) as gang: gang.map(work, parts)`: results in the order of the parts."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(
            num_threads,
            thread_name_prefix="train",
            initializer=torch.set_num_threads,
            initargs=(1,),
        )

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        return self._pool.map(work, items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
