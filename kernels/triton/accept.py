"""`accept`: the walk of keyed sample-match, on the device. As `yggrt.core.accept` does it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from ygg_kernels.triton import checks

OPERATOR = "accept"
ROWS = tl.constexpr(checks.MAX_ROWS)


@triton.jit
def _accept_kernel(choices, tokens, parents, path, count, bonus, num_rows):
    rows = tl.arange(0, ROWS)
    exists = rows < num_rows
    token = tl.load(tokens + rows, mask=exists, other=-1)
    parent = tl.load(parents + rows, mask=exists, other=-1)
    tl.store(path + rows, tl.full([ROWS], -1, tl.int64), mask=exists)
    # The path is written over by other threads than those that cleared it.
    tl.debug_barrier()
    row = 0
    length = 0
    choice = tl.load(choices)
    child = tl.min(
        tl.where(exists & (parent == 0) & (token == choice) & (rows > 0), rows, ROWS), axis=0
    )
    while child < ROWS:
        row = child
        tl.store(path + length, child.to(tl.int64))
        length += 1
        choice = tl.load(choices + row)
        # A child stands below its parent in the table, so the walk ends whatever the table says.
        child = tl.min(
            tl.where(exists & (parent == row) & (token == choice) & (rows > row), rows, ROWS),
            axis=0,
        )
    tl.store(count, length)
    tl.store(bonus, choice)


@triton_op("ygg_cuda::accept", mutates_args=())
def accept(choices: Tensor, tokens: Tensor, parents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the accepted nodes [V] padded with -1, their count [1] and the bonus token [1].

    `choices`, `tokens` and `parents` [V] int64: the verifier's token after each row, the row's own
    token, the row of its parent (the root is row 0; parents stand above their children). Of equal
    siblings the first counts. All results int64. Raises KernelInputError.
    """
    checks.require_shape(OPERATOR, "choices", choices, "V")
    num_rows = choices.shape[0]
    checks.require_rows(OPERATOR, num_rows)
    for name, tensor in (("choices", choices), ("tokens", tokens), ("parents", parents)):
        checks.require_shape(OPERATOR, name, tensor, num_rows)
        checks.require_dtype(OPERATOR, name, tensor, torch.int64)
        checks.require_contiguous(OPERATOR, name, tensor)
    checks.require_same_device(OPERATOR, choices, tokens=tokens, parents=parents)
    path, count, bonus = (
        torch.empty((size,), dtype=torch.int64, device=choices.device) for size in (num_rows, 1, 1)
    )
    wrap_triton(_accept_kernel)[(1,)](
        choices, tokens, parents, path, count, bonus, num_rows, num_warps=1, num_stages=1
    )
    return path, count, bonus
