"""Storage formats of matrices and of key and value caches: names, codes and sizes. Pure.

A matrix [N, K] lies in panels of 16 output columns. `float32` and `bfloat16` panels are tensors
[ceil(N/16), K, 16]; a quantised matrix is a uint8 tensor [ceil(N/16), K/group, panel_bytes] that
holds the codes and scales of GGUF's blocks of the same name in another order
(`yggc.models.blocks` knows it).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yggrt.core.schema import KvLayer

PANEL = 16


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """`code` is what the operators call it, `group` the inputs that share a scale block,
    `panel_bytes` the bytes of one group in one panel; a float format has groups of one.
    """

    name: str
    code: int
    group: int
    panel_bytes: int

    @property
    def is_quantised(self) -> bool:
        return self.group > 1

    def num_bytes(self, num_outputs: int, num_inputs: int) -> int:
        """Bytes of a packed [num_outputs, num_inputs] matrix."""
        return -(-num_outputs // PANEL) * (num_inputs // self.group) * self.panel_bytes


_ALL = (
    MatrixFormat("float32", 0, 1, 64),
    MatrixFormat("bfloat16", 1, 1, 32),
    MatrixFormat("q4_0", 2, 32, 288),
    MatrixFormat("q4_1", 3, 32, 320),
    MatrixFormat("q5_0", 4, 32, 352),
    MatrixFormat("q5_1", 5, 32, 384),
    MatrixFormat("q8_0", 6, 32, 544),
    MatrixFormat("q4_k", 7, 256, 2368),
    MatrixFormat("q5_k", 8, 256, 2880),
    MatrixFormat("q6_k", 9, 256, 3360),
)
FORMATS = {one.name: one for one in _ALL}


def quantised_format(dtype: str, shape: tuple[int, ...]) -> str | None:
    """Name of the format of a stored weight, None for one that is not quantised: the panels of no
    two formats have the same number of bytes.
    """
    if dtype != "uint8" or len(shape) != 3:
        return None
    found = (one.name for one in _ALL if one.is_quantised and one.panel_bytes == shape[2])
    return next(found, None)


def cache_shapes(
    layers: Iterable[KvLayer], num_slots: int, kv_dtype: str
) -> list[tuple[str, tuple[int, int, int, int]]]:
    """Dtype and shape [1, heads, slots, row] of every cache: per layer the keys', then the
    values'. An int8 row is its codes and one float32 scale, in bytes.
    """
    dtype, more = ("uint8", 4) if kv_dtype == "int8" else (kv_dtype, 0)
    return [
        (dtype, (1, layer.num_heads, num_slots, dim + more))
        for layer in layers
        for dim in (layer.key_dim, layer.value_dim)
    ]
