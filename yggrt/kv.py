"""Preallocated key and value caches of one sequence."""

from __future__ import annotations

from yggrt.core.formats import cache_shapes
from yggrt.core.schema import ModelInfo
from yggrt.weights import TORCH_DTYPES, zeros_in_huge_pages


class KvCache:
    """Per layer keys [1, heads, slots, key_dim] and values [1, heads, slots, value_dim], one slot
    per token: float32, bfloat16, or int8 as uint8 rows of 4 bytes more (`core.formats`).

    `slots` exceeds the context limit by the largest graph's rows, so that a full pass fits at the
    end of the context.
    """

    def __init__(self, model: ModelInfo) -> None:
        self.max_model_len = model.max_model_len
        shapes = cache_shapes(model.kv_layers, model.num_slots, model.kv_dtype)
        # Padding rows read slots that no row has written; zeros keep them finite.
        self.tensors = zeros_in_huge_pages(
            [(TORCH_DTYPES[dtype], shape) for dtype, shape in shapes]
        )

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)
