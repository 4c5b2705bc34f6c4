"""Choices by the objective: `yggrt.core.objective` on the device, values in, index out.

Times come from a table that lies there: a row for each block of context lengths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowCosts(NamedTuple):
    """What row counts cost, ascending: `rows` [C] int64, and by block of context `seconds` [B, C]
    float64 of verifying and `rest_s` [B] float64 of all else, drafting included."""

    rows: Tensor
    seconds: Tensor
    rest_s: Tensor


class DepthCosts(NamedTuple):
    """What depths 0..L cost: `seconds` [B, L + 1] float64 of a pass. `base_tokens` [1] and `worth`
    [L] float64: as for `choose_depth` on the host. `smoothing` [1] float64: the share of hazards
    that those of the pass before keep."""

    seconds: Tensor
    base_tokens: Tensor
    worth: Tensor
    smoothing: Tensor


def block_of(length: Tensor, num_blocks: int, block: int) -> Tensor:
    """The table's row [1] int64 for `length` [1] committed rows, `block` lengths a row."""
    return (length // block).clamp(max=num_blocks - 1)


def choose_num_rows(
    scores: Tensor, trust: Tensor, costs: RowCosts, block: Tensor, rate: Tensor | None = None
) -> Tensor:
    """Index [1] int64 of the row count with the largest objective, the smaller on a tie.

    `scores` [N] float64: path probabilities of a tree's rows, the root's among them, below 0 for
    absent ones. `trust` [1] float64 is the factor on them, but the root's. `rate` [1] float64:
    tokens per second of whole texts, for the lagrangian; without it the ratio is taken.
    """
    falling = scores.clamp(min=0).sort(descending=True).values
    # The root stands first, whatever the trust: its token is the bonus.
    values = torch.cat([torch.ones_like(trust), trust * falling[1:]])
    tokens = values.cumsum(0)[(costs.rows - 1).clamp(max=len(scores) - 1)]
    seconds = costs.rest_s[block] + costs.seconds[block][0]
    return _best(tokens, seconds, rate)


def choose_depth(
    hazards: Tensor, costs: DepthCosts, block: Tensor, rate: Tensor | None = None
) -> Tensor:
    """The depth [1] int64 with the largest objective, the smaller on a tie, by hazards [L or more]
    float64 of the last accepted row."""
    levels = costs.worth * hazards[: len(costs.worth)].cumprod(0)
    tokens = torch.cat([costs.base_tokens, levels]).cumsum(0)
    return _best(tokens, costs.seconds[block][0], rate)


def _best(tokens: Tensor, seconds: Tensor, rate: Tensor | None) -> Tensor:
    values = tokens / seconds if rate is None else tokens - rate * seconds
    return values.argmax(0, keepdim=True)
