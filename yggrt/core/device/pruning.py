"""Pruning to the rows of a graph: `yggrt.core.tree.prune` on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from yggrt.core.device.frontier import Drafted
from yggrt.core.device.ranking import best_first


class Pruned(NamedTuple):
    """The V rows of a verify pass, the root first, then the kept rows in the order that they were
    drafted in, then padding.

    rows, tokens, parents, depths [V] int64: the row in the drafted tree, and what stands there;
    padding has row 0, token 0, parent -1 and depth 0, and the root's parent is -1. scores [V]
    float64, 0 for padding. mask [V, V] bool: the ancestors of each row, itself included; padding
    sees itself. num_rows [1] int64: rows that are none.
    """

    rows: Tensor
    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    mask: Tensor
    num_rows: Tensor


def prune(tree: Drafted, num_rows: int) -> Pruned:
    """The `num_rows` best rows that exist, by score, then smaller depth, then smaller row; all of
    them if there are no more. They hold their ancestors, as no score is above its parent's."""
    total = len(tree.tokens)
    places = torch.arange(total, device=tree.tokens.device)
    order = best_first(tree.scores, tree.depths * total + places)
    best = torch.zeros_like(places).scatter(0, order[:num_rows], 1)
    kept = best * (tree.scores >= 0)
    # What is left out goes to a place behind the others'.
    place = torch.where(kept > 0, kept.cumsum(0) - 1, num_rows)
    rows = places.new_zeros(num_rows + 1).scatter(0, place, places)[:num_rows]
    num_kept = kept.sum(0, keepdim=True)
    here = torch.arange(num_rows, device=places.device)
    exists = here < num_kept
    above = place[tree.parents[rows]]
    mask = tree.ancestors[rows][:, rows] & exists[:, None] & exists
    return Pruned(
        rows,
        torch.where(exists, tree.tokens[rows], 0),
        torch.where(exists & (here > 0), above, -1),
        torch.where(exists, tree.depths[rows], 0),
        torch.where(exists, tree.scores[rows], 0.0),
        mask | (here == here[:, None]),
        num_kept,
    )
