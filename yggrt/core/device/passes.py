"""What the graphs of an iteration are given, made on the device.

A graph takes tokens, positions, slots [V] int64, length [1] int64, mask [V, M] bool and its
caches, and gives ids, logits, hidden and hazards, as `schema.GraphSpec` says. Row r of a tree lies
at slot `length + r`, the root at slot `length`, in the verifier's caches and in the drafter's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from yggrt.core.device.frontier import Drafted
from yggrt.core.device.pruning import Pruned

# One pass: its five inputs, then the caches, which it writes -> ids, logits, hidden, hazards.
Forward: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


class PassInputs(NamedTuple):
    """The inputs of a graph before its caches."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    length: Tensor
    mask: Tensor


def head_inputs(previous: Tensor, root: Tensor, length: Tensor) -> PassInputs:
    """The drafter's pass of the last two tokens of the context, `previous` [1] and `root` [1].

    Always both: of `previous` the row may be missing, as an accepted leaf was never run; where it
    is there it is written again with the same bits. `length` is that of the verifier, at least 1;
    the drafter's prefix ends one row before.
    """
    places = torch.cat([length - 1, length])
    visible = torch.ones(2, 2, dtype=torch.bool, device=root.device).tril()
    return PassInputs(torch.cat([previous, root]), places, places, length - 1, visible)


def step_inputs(
    tree: Drafted, first: int, num_columns: int, length: Tensor, max_model_len: int
) -> PassInputs:
    """The drafter's pass of the rows from `first` on, `num_columns` of the tree to see."""
    rows = torch.arange(first, len(tree.tokens), device=length.device)
    return PassInputs(
        tree.tokens[first:],
        (length + tree.depths[first:]).clamp(max=max_model_len - 1),
        length + rows,
        length,
        # Operators take dense tensors alone.
        tree.ancestors[first:, :num_columns].contiguous(),
    )


def verify_inputs(tree: Pruned, length: Tensor, max_model_len: int) -> PassInputs:
    """The verifier's pass over a pruned tree; padding stands at the last position."""
    rows = torch.arange(len(tree.tokens), device=length.device)
    last = max_model_len - 1
    positions = torch.where(rows < tree.num_rows, length + tree.depths, last)
    return PassInputs(tree.tokens, positions.clamp(max=last), length + rows, length, tree.mask)
