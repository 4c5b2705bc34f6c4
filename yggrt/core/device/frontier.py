"""Equal-growth trees: `yggrt.policies.egt` on the device.

Every step takes W rows of the table, whether the pool fills them or not; what it does not fill is
absent, has no children, and is dropped by `prune`. Rows that exist have the host's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from yggrt.core.device.ranking import best_first

ABSENT = -1.0
# Above any token id: a key is a row and, below it, a token.
_TOKENS = 2**32

Frontier: TypeAlias = Literal["global", "level"]


class Drafted(NamedTuple):
    """Rows of a tree, the root first. tokens, parents, depths [n] int64; parents of the root and
    of absent rows are rows too. scores [n] float64: path probabilities, ABSENT for absent rows.
    ancestors [n, N] bool: the rows above each, itself included, of the N that there will be.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    ancestors: Tensor


class Pool(NamedTuple):
    """Candidates: tokens and parents' rows [n] int64, scores [n] float64, ABSENT for none."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor


# The tree so far and the first of its newest rows -> tokens and probabilities [rows, k] of their
# children.
Propose: TypeAlias = Callable[[Drafted, int], tuple[Tensor, Tensor]]


def grow(
    root: Tensor,
    width: int,
    depth: int,
    frontier: Frontier,
    propose: Propose,
    min_score: Tensor,
    last_depth: Tensor,
) -> Drafted:
    """A tree of 1 + depth * width rows over the token `root` [1]. No node has a score below
    `min_score` [1] float64, none deeper than `last_depth` [1] int64 has children. `propose` is
    asked once a step, for the rows of the step before."""
    tree = _root(root, 1 + depth * width)
    rest: Pool | None = None
    first = 0
    for step in range(depth):
        offered = _offered(tree, first, propose(tree, first), min_score, last_depth)
        if rest is not None and frontier == "global":
            offered = Pool(*(torch.cat(parts) for parts in zip(rest, offered, strict=True)))
        first = len(tree.tokens)
        taken, rest = _select(offered, width, (depth - step - 1) * width)
        tree = _with(tree, taken)
    return tree


def clip_depth(tree: Drafted, max_depth: Tensor) -> Drafted:
    """The tree, what is deeper than `max_depth` [1] int64 absent."""
    return tree._replace(scores=torch.where(tree.depths <= max_depth, tree.scores, ABSENT))


def _root(token: Tensor, num_rows: int) -> Drafted:
    none = torch.zeros_like(token)
    itself = torch.arange(num_rows, device=token.device) == 0
    return Drafted(token, none, none, torch.ones_like(token, dtype=torch.float64), itself[None])


def _offered(
    tree: Drafted,
    first: int,
    found: tuple[Tensor, Tensor],
    min_score: Tensor,
    last_depth: Tensor,
) -> Pool:
    """The children of the rows from `first` on."""
    tokens, probabilities = found
    above = tree.scores[first:, None]
    scores = above * probabilities
    # Not the sign of a product: an absent parent's with a share of 0 has none.
    expanded = (above >= 0) & (tree.depths[first:, None] <= last_depth)
    scores = torch.where(expanded & (scores >= min_score), scores, ABSENT)
    rows = torch.arange(first, len(tree.tokens), device=tokens.device)
    parents = rows[:, None].expand_as(tokens)
    return Pool(tokens.flatten(), parents.flatten(), scores.flatten())


def _select(pool: Pool, num: int, num_more: int) -> tuple[Pool, Pool]:
    """The `num` best of the pool, absent ones where it has fewer, and of the rest the best
    `num_more`, which are all that later steps can take."""
    missing = max(0, num - len(pool.tokens))
    if missing:
        nothing = pool.tokens.new_zeros(missing)
        absent = pool.scores.new_full((missing,), ABSENT)
        padding = Pool(nothing, nothing, absent)
        pool = Pool(*(torch.cat(parts) for parts in zip(pool, padding, strict=True)))
    order = best_first(pool.scores, pool.parents * _TOKENS + pool.tokens)
    taken, rest = order[:num], order[num : num + num_more]
    return Pool(*(part[taken] for part in pool)), Pool(*(part[rest] for part in pool))


def _with(tree: Drafted, taken: Pool) -> Drafted:
    first, num = len(tree.tokens), len(taken.tokens)
    columns = torch.arange(tree.ancestors.shape[1], device=taken.tokens.device)
    rows = torch.arange(first, first + num, device=taken.tokens.device)
    ancestors = tree.ancestors[taken.parents] | (columns == rows[:, None])
    depths = tree.depths[taken.parents] + 1
    more = Drafted(taken.tokens, taken.parents, depths, taken.scores, ancestors)
    return Drafted(*(torch.cat(parts) for parts in zip(tree, more, strict=True)))
