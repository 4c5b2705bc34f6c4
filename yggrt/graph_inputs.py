"""Inputs of compiled graphs, in memory that each call writes anew.

A pass leaves the processor's caches full of weights, and the first torch call of its kind after it
takes 45 us and more; writing a few numbers takes 15 (docs/log.md). So nothing here calls torch
once the memory is there, but to copy features.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import torch

_CODES = {torch.int64: "q", torch.float32: "f"}


class Numbers:
    """A tensor [num], num at least 1, whose values are set without a call of torch."""

    def __init__(self, num: int, dtype: torch.dtype = torch.int64) -> None:
        self._code = _CODES[dtype]
        memory = array(self._code, [0] * num)
        self.tensor = torch.frombuffer(memory, dtype=dtype)
        # Other than the array it cannot change its size, and move.
        self._values = memoryview(memory)

    def set(self, values: Iterable[float]) -> torch.Tensor:
        """Takes `num` values; gives the tensor."""
        self._values[:] = array(self._code, values)
        return self.tensor


class NumbersBySize:
    """Numbers for as many values as there are; the last of a size stand until the next."""

    def __init__(self, dtype: torch.dtype = torch.int64) -> None:
        self._dtype = dtype
        self._kept: dict[int, Numbers] = {}

    def set(self, values: Sequence[float]) -> torch.Tensor:
        """Values of at least one, as a tensor."""
        kept = self._kept.get(len(values))
        if kept is None:
            kept = self._kept[len(values)] = Numbers(len(values), self._dtype)
        return kept.set(values)


class GraphInputs:
    """What a graph of `rows` rows is given before its caches, `columns` tree rows to see for each.

    feature_size: values of a feature; 0 for a graph that reads none.
    """

    def __init__(self, rows: int, columns: int, feature_size: int) -> None:
        self._tokens, self._positions, self._slots = (Numbers(rows) for _ in range(3))
        self._length, self._row = Numbers(1), Numbers(1)
        mask = bytearray(rows * columns)
        self._mask_tensor = torch.frombuffer(mask, dtype=torch.bool).view(rows, columns)
        self._mask = memoryview(mask)
        self._features = torch.zeros(rows, feature_size) if feature_size else None
        self._feature_rows = () if self._features is None else self._features.unbind()

    def set(
        self,
        tokens: Iterable[int],
        positions: Iterable[int],
        slots: Iterable[int],
        length: int,
        mask: Iterable[bytes | bytearray],
        row: int | None = None,
        features: Iterable[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """The tensors in the graph's order. All have an entry for every row, padding too, but
        `features`, where old ones stand behind those given. `mask`: per row a byte for each
        column, 1 if it is seen.
        """
        tensors = [
            self._tokens.set(tokens),
            self._positions.set(positions),
            self._slots.set(slots),
            self._length.set([length]),
            self._mask_tensor,
        ]
        self._mask[:] = b"".join(mask)
        if row is not None:
            tensors.append(self._row.set([row]))
        if self._features is not None:
            for into, feature in zip(self._feature_rows, features, strict=False):
                into.copy_(feature)
            tensors.append(self._features)
        return tensors
