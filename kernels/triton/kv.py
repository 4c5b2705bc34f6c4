"""`kv_commit`: accepted rows move behind the prefix, all loads before any store."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from ygg_kernels.triton import checks

OPERATOR = "kv_commit"
ROWS = tl.constexpr(checks.MAX_ROWS)


@triton.jit
def _commit_kernel(
    cache, sources, targets, num_moves, num_slots, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    move = tl.arange(0, ROWS)
    dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + move, mask=move < num_moves, other=-1)
    target = tl.load(targets + move, mask=move < num_moves, other=-1)
    moves = (source >= 0) & (source < num_slots) & (target >= 0) & (target < num_slots)
    mask = moves[:, None] & (dims < SIZE)[None, :]
    head = cache + tl.program_id(0).to(tl.int64) * num_slots * SIZE
    rows = tl.load(head + source[:, None] * SIZE + dims[None, :], mask=mask, other=0)
    # A row may be the source of one move and the target of another, in another warp.
    tl.debug_barrier()
    tl.store(head + target[:, None] * SIZE + dims[None, :], rows, mask=mask)


@triton_op("ygg_cuda::kv_commit", mutates_args={"caches"})
def kv_commit(caches: list[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Slot rows `sources` [n] int64 move to `targets` [n] int64 in every cache [1, H, S, D].

    n is 0 to 64. A move whose source or target is no slot of the cache is left out, so a list may
    be padded with -1. Targets must differ. Raises KernelInputError.
    """
    checks.require_shape(OPERATOR, "sources", sources, "n")
    if sources.shape[0] > checks.MAX_ROWS:
        raise checks.refuse(OPERATOR, "number of moves", sources.shape[0], "0 to 64")
    for name, tensor in (("sources", sources), ("targets", targets)):
        checks.require_shape(OPERATOR, name, tensor, sources.shape[0])
        checks.require_dtype(OPERATOR, name, tensor, torch.int64)
        checks.require_contiguous(OPERATOR, name, tensor)
    for cache in caches:
        checks.require_shape(OPERATOR, "a cache", cache, 1, "H", "S", "D")
        checks.require_dtype(
            OPERATOR, "a cache", cache, torch.bfloat16, torch.float16, torch.float32
        )
        checks.require_contiguous(OPERATOR, "a cache", cache)
        checks.require_same_device(OPERATOR, cache, sources=sources, targets=targets)
        _, num_heads, num_slots, size = cache.shape
        wrap_triton(_commit_kernel)[(num_heads, triton.cdiv(size, 64))](
            cache, sources, targets, sources.shape[0], num_slots,
            SIZE=size, BLOCK=64, num_warps=4, num_stages=1,
        )  # fmt: skip
