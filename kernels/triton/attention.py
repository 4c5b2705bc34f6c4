"""`tree_attention`: rows of a tree over a prefix that is split among programs.

Order of sums, which results depend on: the keys of a row are counted along its own sequence, the
prefix and then its ancestors. They are taken in chunks of `chunk_keys`, each one step of an online
softmax; `split_keys` of them, whole chunks, make a split that starts from nothing; the splits are
merged in order. No boundary depends on the number of rows, on the other rows or on the tree.

Two kernels. `_prefix_kernel` does the chunks that lie whole in the prefix, which all rows share,
for tiles of 16 (row, head) pairs. `_finish_kernel` takes one row: it merges the splits, goes on in
the one where the prefix ends with the row's remaining keys, gathered by slot, and divides. Both
call `_step` on tiles of one shape, so a key contributes the same bits in either.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from ygg_kernels.triton import checks
from ygg_kernels.triton.numerics import dot, emulates, narrow, tanh

# The smallest row count of a matrix instruction; fewer rows are padded, more take more tiles.
PAIRS = tl.constexpr(16)
ROWS = tl.constexpr(checks.MAX_ROWS)
SIZES = (16, 256)
OPERATOR = "tree_attention"


def chunk_keys(dtype: torch.dtype) -> int:
    """Keys in one step of the softmax."""
    return 16 if dtype == torch.float32 else 64


def split_keys(num_slots: int) -> int:
    """Keys in one split: at least 256, and no more than 32 splits in a cache of `num_slots`.

    All graphs of a bundle share their caches and so their splits.
    """
    return max(256, int(triton.next_power_of_2(triton.cdiv(num_slots, 32))))


@triton.jit
def _step(q, k, v, seen, best, total, acc, scale, softcap, SOFTCAP: tl.constexpr,
          EMULATE: tl.constexpr):  # fmt: skip
    """One chunk of keys: the next (largest score, sum of weights, weighted values)."""
    raw = dot(q, tl.trans(k), tl.zeros([PAIRS, k.shape[0]], tl.float32), EMULATE)
    factor = scale
    if SOFTCAP:
        raw = tanh(raw * (scale / softcap))
        factor = softcap
    new_best = tl.maximum(best, tl.max(tl.where(seen, raw * factor, float("-inf")), axis=1))
    # Nothing seen so far: every exponent below is -inf minus a finite number.
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    # Multiply-adds are spelled out: left to the compiler, the two kernels might fuse differently.
    weights = tl.where(seen, tl.exp(tl.fma(raw, factor, -base[:, None])), 0.0)
    old = tl.exp(best - base)
    total = tl.fma(total, old, tl.sum(weights, axis=1))
    acc = dot(narrow(weights, v.dtype, EMULATE), v, acc * old[:, None], EMULATE)
    return new_best, total, acc


@triton.jit
def _merge(best, total, acc, split_best, split_total, split_acc):
    """Two states of the softmax made one."""
    new_best = tl.maximum(best, split_best)
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    old = tl.exp(best - base)
    new = tl.exp(split_best - base)
    total = tl.fma(split_total, new, total * old)
    acc = tl.fma(split_acc, tl.broadcast_to(new[:, None], acc.shape), acc * old[:, None])
    return new_best, total, acc


@triton.jit
def _prefix_kernel(
    q, k_cache, v_cache, length, positions, partial, stats,
    q_head_stride, q_row_stride, num_rows, num_slots, scale, softcap, window,
    GROUP: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_heads = tl.num_programs(1) * GROUP
    start = split * SPLIT
    stop = tl.minimum(tl.load(length).to(tl.int32) // CHUNK * CHUNK, start + SPLIT)
    if start < stop:
        pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
        row = pair // GROUP
        head = kv_head * GROUP + pair % GROUP
        valid = row < num_rows
        position = tl.load(positions + row, mask=valid, other=2**30).to(tl.int32)
        keys = tl.arange(0, CHUNK)
        key_dims = tl.arange(0, KEY_BLOCK)
        value_dims = tl.arange(0, VALUE_BLOCK)
        q_tile = tl.load(
            q + head[:, None] * q_head_stride + row[:, None] * q_row_stride + key_dims[None, :],
            mask=valid[:, None] & (key_dims < KEY_SIZE)[None, :], other=0.0,
        )  # fmt: skip
        k_head = k_cache + kv_head.to(tl.int64) * num_slots * KEY_SIZE
        v_head = v_cache + kv_head.to(tl.int64) * num_slots * VALUE_SIZE
        first = start
        if WINDOW:
            # Chunks that no row of the tile sees would change nothing.
            lowest = tl.min(position, axis=0) - window + 1
            first = tl.maximum(start, lowest // CHUNK * CHUNK)
        best = tl.full([PAIRS], float("-inf"), tl.float32)
        total = tl.zeros([PAIRS], tl.float32)
        acc = tl.zeros([PAIRS, VALUE_BLOCK], tl.float32)
        for chunk in range(first, stop, CHUNK):
            slot = (chunk + keys).to(tl.int64)
            k_tile = tl.load(
                k_head + slot[:, None] * KEY_SIZE + key_dims[None, :],
                mask=(key_dims < KEY_SIZE)[None, :], other=0.0,
            )  # fmt: skip
            v_tile = tl.load(
                v_head + slot[:, None] * VALUE_SIZE + value_dims[None, :],
                mask=(value_dims < VALUE_SIZE)[None, :], other=0.0,
            )  # fmt: skip
            seen = (chunk + keys)[None, :] >= 0
            if WINDOW:
                seen = (chunk + keys)[None, :] > (position - window)[:, None]
            best, total, acc = _step(
                q_tile, k_tile, v_tile, seen, best, total, acc, scale, softcap, SOFTCAP, EMULATE
            )
        place = (split * num_rows + row) * num_heads + head
        tl.store(stats + place * 2, best, mask=valid)
        tl.store(stats + place * 2 + 1, total, mask=valid)
        tl.store(
            partial + place.to(tl.int64)[:, None] * VALUE_SIZE + value_dims[None, :], acc,
            mask=valid[:, None] & (value_dims < VALUE_SIZE)[None, :],
        )  # fmt: skip


@triton.jit
def _load_split(partial, stats, place, valid, value_dims, VALUE_SIZE: tl.constexpr):
    """The state that a split's program stored, or one that has seen nothing."""
    best = tl.load(stats + place * 2, mask=valid, other=float("-inf"))
    total = tl.load(stats + place * 2 + 1, mask=valid, other=0.0)
    acc = tl.load(
        partial + place.to(tl.int64)[:, None] * VALUE_SIZE + value_dims[None, :],
        mask=valid[:, None] & (value_dims < VALUE_SIZE)[None, :], other=0.0,
    )  # fmt: skip
    return best, total, acc


@triton.jit
def _finish_kernel(
    q, k_cache, v_cache, length, positions, tree_mask, partial, stats, out,
    q_head_stride, q_row_stride, num_rows, num_slots, scale, softcap, window,
    GROUP: tl.constexpr, HEAD_TILES: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1) // HEAD_TILES
    member = tl.program_id(1) % HEAD_TILES * PAIRS + tl.arange(0, PAIRS)
    valid = member < GROUP
    head = kv_head * GROUP + member
    num_heads = tl.num_programs(1) // HEAD_TILES * GROUP
    keys = tl.arange(0, CHUNK)
    key_dims = tl.arange(0, KEY_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    rows = tl.arange(0, ROWS)

    prefix = tl.load(length).to(tl.int32)
    position = tl.load(positions + row).to(tl.int32)
    ancestor = tl.load(
        tree_mask + row * num_rows + rows, mask=rows < num_rows, other=0
    ).to(tl.int32)  # fmt: skip
    rank = tl.cumsum(ancestor, axis=0) - 1
    num_keys = prefix + tl.sum(ancestor, axis=0)
    # The rows that this one sees, in order: entry i is the row of rank i.
    named = (ancestor[None, :] != 0) & (rank[None, :] == rows[:, None])
    drafted = prefix + tl.sum(tl.where(named, rows[None, :], 0), axis=1)
    whole = prefix // CHUNK * CHUNK

    q_tile = tl.load(
        q + head[:, None] * q_head_stride + row * q_row_stride + key_dims[None, :],
        mask=valid[:, None] & (key_dims < KEY_SIZE)[None, :], other=0.0,
    )  # fmt: skip
    k_head = k_cache + kv_head.to(tl.int64) * num_slots * KEY_SIZE
    v_head = v_cache + kv_head.to(tl.int64) * num_slots * VALUE_SIZE
    best = tl.full([PAIRS], float("-inf"), tl.float32)
    total = tl.zeros([PAIRS], tl.float32)
    acc = tl.zeros([PAIRS, VALUE_BLOCK], tl.float32)

    first = 0
    if WINDOW:
        # Splits that the row does not see would change nothing.
        first = tl.minimum(tl.maximum(position - window + 1, 0) // SPLIT, whole // SPLIT)
    for split in range(first, whole // SPLIT):
        place = (split * num_rows + row) * num_heads + head
        split_best, split_total, split_acc = _load_split(
            partial, stats, place, valid, value_dims, VALUE_SIZE
        )
        best, total, acc = _merge(best, total, acc, split_best, split_total, split_acc)

    for split in range(whole // SPLIT, tl.cdiv(num_keys, SPLIT)):
        place = (split * num_rows + row) * num_heads + head
        begun = split * SPLIT < whole
        split_best, split_total, split_acc = _load_split(
            partial, stats, place, valid & begun, value_dims, VALUE_SIZE
        )
        start = tl.maximum(split * SPLIT, whole)
        stop = tl.minimum((split + 1) * SPLIT, num_keys)
        for chunk in range(start, stop, CHUNK):
            index = chunk + keys
            exists = index < num_keys
            rank_wanted = tl.where(exists & (index >= prefix), index - prefix, 0)
            slot = tl.where(index < prefix, index, tl.gather(drafted, rank_wanted, 0)).to(tl.int64)
            k_tile = tl.load(
                k_head + slot[:, None] * KEY_SIZE + key_dims[None, :],
                mask=exists[:, None] & (key_dims < KEY_SIZE)[None, :], other=0.0,
            )  # fmt: skip
            v_tile = tl.load(
                v_head + slot[:, None] * VALUE_SIZE + value_dims[None, :],
                mask=exists[:, None] & (value_dims < VALUE_SIZE)[None, :], other=0.0,
            )  # fmt: skip
            seen = exists
            if WINDOW:
                seen = exists & ((index > position - window) | (index == num_keys - 1))
            split_best, split_total, split_acc = _step(
                q_tile, k_tile, v_tile, seen[None, :], split_best, split_total, split_acc,
                scale, softcap, SOFTCAP, EMULATE,
            )  # fmt: skip
        best, total, acc = _merge(best, total, acc, split_best, split_total, split_acc)

    tl.store(
        out + (row * num_heads + head)[:, None] * VALUE_SIZE + value_dims[None, :],
        narrow(acc / total[:, None], out.dtype.element_ty, EMULATE),
        mask=valid[:, None] & (value_dims < VALUE_SIZE)[None, :],
    )


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, length: Tensor, positions: Tensor,
    tree_mask: Tensor, scale: float, window: int, softcap: float,
) -> None:  # fmt: skip
    checks.require_shape(OPERATOR, "q", q, 1, "Hq", "V", "Dk")
    _, num_heads, num_rows, key_size = q.shape
    checks.require_rows(OPERATOR, num_rows)
    checks.require_shape(OPERATOR, "k_cache", k_cache, 1, "Hkv", "S", key_size)
    _, num_kv_heads, num_slots, _ = k_cache.shape
    checks.require_shape(OPERATOR, "v_cache", v_cache, 1, num_kv_heads, num_slots, "Dv")
    for name, size in (("key", key_size), ("value", v_cache.shape[3])):
        if not SIZES[0] <= size <= SIZES[1] or size % 8 != 0:
            wanted = f"a multiple of 8 from {SIZES[0]} to {SIZES[1]}"
            raise checks.refuse(OPERATOR, f"{name} head size", size, wanted)
    if num_heads % num_kv_heads != 0:
        raise checks.refuse(OPERATOR, "heads of q", num_heads, f"a multiple of {num_kv_heads}")
    checks.require_dtype(OPERATOR, "q", q, torch.bfloat16, torch.float16, torch.float32)
    checks.require_dtype(OPERATOR, "k_cache", k_cache, q.dtype)
    checks.require_dtype(OPERATOR, "v_cache", v_cache, q.dtype)
    if q.stride(3) != 1:
        raise checks.refuse(OPERATOR, "last stride of q", q.stride(3), 1)
    checks.require_shape(OPERATOR, "positions", positions, num_rows)
    checks.require_shape(OPERATOR, "tree_mask", tree_mask, num_rows, num_rows)
    if length.numel() != 1:
        raise checks.refuse(OPERATOR, "shape of length", list(length.shape), "one element")
    checks.require_dtype(OPERATOR, "length", length, torch.int64)
    checks.require_dtype(OPERATOR, "positions", positions, torch.int64)
    checks.require_dtype(OPERATOR, "tree_mask", tree_mask, torch.bool)
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        checks.require_contiguous(OPERATOR, name, tensor)
        checks.require_aligned(OPERATOR, name, tensor)
    checks.require_contiguous(OPERATOR, "positions", positions)
    checks.require_contiguous(OPERATOR, "tree_mask", tree_mask)
    checks.require_same_device(
        OPERATOR, q, k_cache=k_cache, v_cache=v_cache, length=length, positions=positions,
        tree_mask=tree_mask,
    )  # fmt: skip
    checks.require_finite(OPERATOR, "scale", scale, positive=True)
    checks.require_finite(OPERATOR, "softcap", softcap, positive=False)
    if window < 0:
        raise checks.refuse(OPERATOR, "window", window, "0 (none) or above")


@triton_op("ygg_cuda::tree_attention", mutates_args=())
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
    """`ygg_kernels.reference.tree_attention` for V 1 to 64, head sizes a multiple of 8, 16 to 256.

    q bfloat16, float16 or (for tests) float32, caches contiguous and of the same dtype; `length`
    [] or [1] int64 is read on the device and must satisfy length + V <= S. Result [1, V, Hq, Dv]
    in q's dtype. Raises KernelInputError.
    """
    _check(q, k_cache, v_cache, length, positions, tree_mask, scale, window, softcap)
    _, num_heads, num_rows, key_size = q.shape
    _, num_kv_heads, num_slots, value_size = v_cache.shape
    group = num_heads // num_kv_heads
    split = split_keys(num_slots)
    num_splits = triton.cdiv(num_slots, split)
    places = num_splits * num_rows * num_heads
    partial = torch.empty((places, value_size), dtype=torch.float32, device=q.device)
    stats = torch.empty((places, 2), dtype=torch.float32, device=q.device)
    out = torch.empty((1, num_rows, num_heads, value_size), dtype=q.dtype, device=q.device)
    key_block = triton.next_power_of_2(key_size)
    value_block = triton.next_power_of_2(value_size)
    head_tiles = triton.cdiv(group, PAIRS.value)
    # By what ptxas says (compile_check): other choices spill. Float32 has no matrix instruction,
    # so a warp holds more of a product. The last loop is too short to be worth a pipeline.
    warps, stages = (8, 2) if q.dtype == torch.float32 else (4, 1)
    wrap_triton(_prefix_kernel)[(triton.cdiv(num_rows * group, 16), num_kv_heads, num_splits)](
        q, k_cache, v_cache, length, positions, partial, stats,
        q.stride(1), q.stride(2), num_rows, num_slots, scale, softcap, window,
        GROUP=group, KEY_SIZE=key_size, VALUE_SIZE=value_size, KEY_BLOCK=key_block,
        VALUE_BLOCK=value_block, CHUNK=chunk_keys(q.dtype), SPLIT=split, WINDOW=window != 0,
        SOFTCAP=softcap != 0.0, EMULATE=emulates(q.dtype), num_warps=warps, num_stages=2,
    )  # fmt: skip
    wrap_triton(_finish_kernel)[(num_rows, num_kv_heads * head_tiles)](
        q, k_cache, v_cache, length, positions, tree_mask, partial, stats, out,
        q.stride(1), q.stride(2), num_rows, num_slots, scale, softcap, window,
        GROUP=group, HEAD_TILES=head_tiles, KEY_SIZE=key_size, VALUE_SIZE=value_size,
        KEY_BLOCK=key_block, VALUE_BLOCK=value_block, CHUNK=chunk_keys(q.dtype), SPLIT=split,
        WINDOW=window != 0, SOFTCAP=softcap != 0.0, EMULATE=emulates(q.dtype),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
