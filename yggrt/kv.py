"""Preallocated key and value caches of one sequence."""

from __future__ import annotations

import torch

from yggrt.core.schema import ModelInfo


class KvCache:
    """Per layer keys [1, heads, slots, key_dim] and values [1, heads, slots, value_dim], float32,
    one slot per token.

    `slots` exceeds the context limit by the largest graph's rows, so that a full pass fits at the
    end of the context.
    """

    def __init__(self, model: ModelInfo) -> None:
        self.max_model_len = model.max_model_len
        dtype = getattr(torch, model.kv_dtype)
        # Padding rows read slots that no row has written; zeros keep them finite.
        self.tensors: list[torch.Tensor] = [
            torch.zeros(1, layer.num_heads, model.num_slots, dim, dtype=dtype)
            for layer in model.kv_layers
            for dim in (layer.key_dim, layer.value_dim)
        ]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)
