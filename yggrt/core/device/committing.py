"""Which cache rows move after a pass, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from yggrt.core.device.acceptance import Emitted
from yggrt.core.device.choice import DepthCosts

# Caches [1, H, S, D], source and target slots [n] int64: rows move in every cache, all loads
# before any store.
KvCommit: TypeAlias = Callable[[list[Tensor], Tensor, Tensor], None]


class Context(NamedTuple):
    """Where a pass begins. previous, root [1] int64: the last two tokens of prompt and output.
    length [1] int64, at least 1: the verifier's committed rows, which is the root's position.
    hazards [L] float64: of the row that the root follows, smoothed; None without a predictor."""

    previous: Tensor
    root: Tensor
    length: Tensor
    hazards: Tensor | None = None


def moves(path: Tensor, num_moved: Tensor, length: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Source and target slots [n] int64 that bring the tree rows `path` [n] int64, of which the
    first `num_moved` [1] count, behind a prefix of `length` [1] rows and the root.

    All others move to where they are, and so do rows that are not below `num_rows`: nothing was
    written for them. Targets differ.
    """
    places = torch.arange(len(path), device=path.device)
    targets = length + 1 + places
    moved = (places < num_moved) & (path >= 0) & (path < num_rows)
    return torch.where(moved, length + path, targets), targets


def following(
    context: Context, emitted: Emitted, hazards: Tensor, costs: DepthCosts | None
) -> Context:
    """Where the next pass begins: the bonus token is its root. `hazards` [L or more] float32: of
    the last accepted row."""
    num = emitted.num_accepted
    last = emitted.tokens[(num - 1).clamp(min=0)]
    previous = torch.where(num > 0, last, context.root)
    length = context.length + num + 1
    if costs is None or context.hazards is None:
        return Context(previous, emitted.bonus, length)
    now = hazards[: len(costs.worth)].to(torch.float64)
    share = costs.smoothing
    smoothed = share * context.hazards + (1 - share) * now
    return Context(previous, emitted.bonus, length, smoothed)
