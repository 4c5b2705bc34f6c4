"""Plain-torch definitions of the operators: the oracles of the tests, in float32 or float64.

Each computes in the dtype of its floating inputs and makes no promise about bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PANEL = 16


def pack_panels(weight: Tensor) -> Tensor:
    """A matrix [N, K] in panels [ceil(N / 16), K, 16] of the same dtype, zero padded."""
    num_outputs, num_k = weight.shape
    num_panels = -(-num_outputs // PANEL)
    padded = weight.new_zeros(num_panels * PANEL, num_k)
    padded[:num_outputs] = weight
    return padded.view(num_panels, PANEL, num_k).transpose(1, 2).contiguous()


def unpack_panels(panels: Tensor, num_outputs: int) -> Tensor:
    """The inverse of pack_panels: [num_outputs, K]."""
    return panels.transpose(1, 2).reshape(-1, panels.shape[1])[:num_outputs]


def linear(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], sizes: Sequence[int]
) -> list[Tensor]:
    """x [..., K] times each packed weight [ceil(N/16), K, 16], plus its bias [N]."""
    products = linear_unbiased(x, weights, sizes)
    return [y + bias.to(x.dtype) for y, bias in zip(products, biases, strict=True)]


def linear_unbiased(x: Tensor, weights: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The same without biases."""
    return [
        x @ unpack_panels(weight, size).to(x.dtype).T
        for weight, size in zip(weights, sizes, strict=True)
    ]


def embedding(ids: Tensor, weight: Tensor, size: int) -> Tensor:
    """Rows `ids` [...] int64 of a packed matrix with `size` rows: [..., K] float32."""
    return unpack_panels(weight, size)[ids].float()


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    positions: Tensor,
    tree_mask: Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    """Attention of tree rows: q [1, Hq, V, Dk], caches [1, Hkv, S, D] -> [1, V, Hq, Dv].

    Row r sees slots 0..length-1 and, of slots length..length+V-1, those that `tree_mask` [V, V]
    bool names. The sequence index of a key is its position: prefix first, then the ancestors in
    row order. With a window only positions above positions[r] - window are seen, and always the
    row itself.
    """
    num_heads, num_rows = q.shape[1], q.shape[2]
    prefix = int(length)
    total = prefix + num_rows
    group = num_heads // k_cache.shape[1]
    keys = k_cache[:, :, :total].repeat_interleave(group, dim=1)
    values = v_cache[:, :, :total].repeat_interleave(group, dim=1)
    scores = (q @ keys.transpose(2, 3)) * scale
    if softcap != 0.0:
        scores = torch.tanh(scores / softcap) * softcap
    visible = torch.cat([tree_mask.new_ones(num_rows, prefix), tree_mask], dim=1)
    if window != 0:
        index = visible.long().cumsum(dim=1) - 1
        last = visible.sum(dim=1, keepdim=True) - 1
        visible = visible & ((index > positions[:, None] - window) | (index == last))
    scores = scores.masked_fill(~visible, float("-inf"))
    return (scores.softmax(dim=-1) @ values).transpose(1, 2).contiguous()


def kv_write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    """cache[0, h, slots[v]] = rows[0, h, v], in place."""
    cache[:, :, slots] = rows


def kv_commit(caches: Sequence[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Slot rows `sources` move to `targets` in every cache, all loads before any store."""
    for cache in caches:
        cache[:, :, targets] = cache[:, :, sources]
