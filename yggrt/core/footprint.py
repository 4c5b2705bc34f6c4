"""Memory that decoding takes beside torch itself: weights, caches and the workspace of a pass.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from yggrt.core.formats import cache_shapes
from yggrt.core.schema import DTYPE_BYTES, KvLayer

# Of the widest layer's inputs and outputs, so many are alive at once in a compiled graph.
_ALIVE = 4


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes at the context limit; the workspace is an estimate."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes


def beside(one: Footprint, other: Footprint, shared_bytes: int = 0) -> Footprint:
    """Two models in one process that run in turns and have `shared_bytes` of weights in common."""
    return Footprint(
        one.weights_bytes + other.weights_bytes - shared_bytes,
        one.kv_bytes + other.kv_bytes,
        max(one.workspace_bytes, other.workspace_bytes),
    )


def kv_bytes(layers: Iterable[KvLayer], num_slots: int, kv_dtype: str) -> int:
    """Bytes of one sequence's caches."""
    shapes = cache_shapes(layers, num_slots, kv_dtype)
    return sum(math.prod(shape) * DTYPE_BYTES[dtype] for dtype, shape in shapes)


def workspace_bytes(
    verify_rows: int, prefill_rows: int, vocab_size: int, widest: int, value_bytes: int = 4
) -> int:
    """Bytes that the larger of both passes computes in: its logits, which are float32, and some
    rows of the widest layer, which is `widest` values of `value_bytes` wide.
    """
    row = _ALIVE * widest * value_bytes
    return max(verify_rows * (4 * vocab_size + row), 4 * vocab_size + prefill_rows * row)
