"""Keyed sample-match: `yggrt.core.accept` and `yggrt.sampling.draw` on the device.

Here are greedy decoding and sampling at a temperature. Top-k, top-p, min-p, penalties, biases,
constraints, callbacks and log-probabilities look at a row once it is known to be emitted, on the
host: requests that ask for one run stage by stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from yggrt.core.device.noise import Draw, stream_keys, uniform
from yggrt.core.device.pruning import Pruned
from yggrt.core.gumbel import gumbel

# choices, tokens, parents [V] int64 -> rows of the accepted nodes [V] int64 padded with -1, their
# count [1] and the bonus token [1]; of equal siblings the first counts.
Accept: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Emitted(NamedTuple):
    """What came of a pass; D is the depth that the tree can have.

    path [D + 1] int64: the root's row 0 and the rows accepted below it, then -1. tokens [D + 1]
    int64: theirs but the root's, the bonus token, then -1. num_accepted, bonus [1] int64.
    """

    path: Tensor
    tokens: Tensor
    num_accepted: Tensor
    bonus: Tensor


def drawn(logits: Tensor, depths: Tensor, num_depths: int, position: Tensor, draw: Draw) -> Tensor:
    """The token [V] int64 that the verifier draws after each row: argmax of logits [V, vocab]
    float32 over the temperature plus keyed noise, the lowest id on ties.

    `position` [1] int64: the place in prompt and output of the token behind the root; a row at
    depth [V] d, below `num_depths`, chooses the one d places on. Noise belongs to a position, so
    rows of one depth share it. Portable logarithms, as where the host's quick ones leave a doubt;
    scores are rounded to float32 over the temperature and added in float64, as there.
    """
    scores = logits / draw.temperature.to(torch.float32)
    places = position + torch.arange(num_depths, device=logits.device)
    token_ids = torch.arange(logits.shape[1], device=logits.device)
    noise = gumbel(uniform(stream_keys(draw.key, places)[:, None], token_ids))
    return (scores.to(torch.float64) + noise[depths]).argmax(1)


def walk(
    choices: Tensor, tokens: Tensor, parents: Tensor, max_depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept (see there) in plain torch, of a tree with at most `max_depth` levels below its root:
    so many steps, and so many rows [max_depth]."""
    num_rows = len(tokens)
    rows = torch.arange(num_rows, device=tokens.device)
    row = rows[:1]
    path = []
    for _ in range(max_depth):
        child = (parents == row) & (tokens == choices[row]) & (rows > row)
        below = torch.where(child, rows, num_rows).amin(0, keepdim=True)
        # Where the walk has ended it stands still, for nothing below has changed.
        found = below < num_rows
        path.append(torch.where(found, below, -1))
        row = torch.where(found, below, row)
    accepted = torch.cat(path)
    return accepted, (accepted >= 0).sum(0, keepdim=True), choices[row]


def emitted(
    tree: Pruned, choices: Tensor, max_depth: int, accept: Accept | None = None
) -> Emitted:
    """Walks down the verifier's choices [V]; the tree has `max_depth` levels, at least 1, below
    its root at most. `accept`: the target's operator."""
    if accept is None:
        path, num_accepted, bonus = walk(choices, tree.tokens, tree.parents, max_depth)
    else:
        path, num_accepted, bonus = accept(choices, tree.tokens, tree.parents)
    # The operator's table has a place for every row, of which a tree fills as many as it is deep.
    path = pad(path, (0, max(0, max_depth - len(path))), value=-1)[:max_depth]
    places = torch.arange(max_depth + 1, device=path.device)
    below = tree.tokens[path.clamp(min=0)]
    tokens = torch.where(places < num_accepted, pad(below, (0, 1)), -1)
    tokens = torch.where(places == num_accepted, bonus, tokens)
    return Emitted(pad(path, (1, 0)), tokens, num_accepted, bonus)
