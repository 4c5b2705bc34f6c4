"""How logits become candidates: the most likely tokens of a row with the chance that each is the
verifier's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from yggrt.core.shares import NOISE_POOL, coupled_shares, shares_of
from yggrt.drafters import Candidate, Noise
from yggrt.graph_inputs import NumbersBySize

# An operator: logits [n, vocab] and temperatures [n] float32, k -> places [n, k] int64 of the k
# largest of each row, and their shares [n, k] float32.
TopShares: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]
]


class Children:
    """Candidates by what was measured of a drafter: temperatures, coverage and token_ids as in
    `schema.HeadDrafter`. `noise` is the verifier's, None where it decodes without.
    """

    def __init__(
        self,
        temperatures: Sequence[float],
        coverage: Sequence[float],
        token_ids: Sequence[int],
        top_shares: TopShares | None,
    ) -> None:
        self.temperatures, self._coverage = temperatures, coverage
        self._token_ids = tuple(token_ids)
        self._token_id_tensor = torch.tensor(token_ids) if token_ids else None
        self._top_shares = top_shares
        self._scales = NumbersBySize(torch.float32)
        self.noise: Noise | None = None

    def of(
        self, logits: torch.Tensor, depths: Sequence[int], num: int, num_ids: int
    ) -> list[list[Candidate]]:
        """The best `num` children of nodes at `depths`, the root's being 0, by logits [n, vocab];
        `num_ids`: tokens of the context, the root the last.
        """
        temperatures = self._scales.set([_at(self.temperatures, depth) for depth in depths])
        if self.noise is None:
            found = best_children(logits, temperatures, num, self._token_ids, self._top_shares)
        else:
            positions, ids = [num_ids + depth for depth in depths], self._token_id_tensor
            found = coupled_children(logits, temperatures, num, self.noise, positions, ids)
        covered = [_at(self._coverage, depth) for depth in depths]
        return [
            [(token, share * probability) for token, probability in children]
            for share, children in zip(covered, found, strict=True)
        ]


def _at(values: Sequence[float], depth: int) -> float:
    """The value for the children of a node at a depth; the last stands for deeper ones."""
    return values[min(depth, len(values) - 1)]


def best_children(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    num: int,
    token_ids: Sequence[int] = (),
    top_shares: TopShares | None = None,
) -> list[list[Candidate]]:
    """Per row of logits [n, vocab] the `num` most likely tokens and their shares at the row's
    temperature; `token_ids` has the verifier's ids of the columns where they are not its own,
    `top_shares` is an operator library's.
    """
    num = min(num, logits.shape[1])
    if top_shares is not None:
        return _pairs(*top_shares(logits, temperatures, num), token_ids)
    values, columns = logits.topk(num)
    return _pairs(columns, shares_of(values, logits, temperatures), token_ids)


def coupled_children(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    num: int,
    noise: Noise,
    positions: Sequence[int],
    token_ids: torch.Tensor | None = None,
) -> list[list[Candidate]]:
    """Per row the tokens that the drafter itself would choose first with the verifier's noise at
    that position, and the chances that the verifier does (see `coupled_shares`). `token_ids` has
    the verifier's ids of the columns where they are not its own.
    """
    pool, columns = logits.topk(min(NOISE_POOL, logits.shape[1]))
    tokens = columns if token_ids is None else token_ids[columns]
    gumbel = [noise(position, row) for position, row in zip(positions, tokens, strict=True)]
    places, shares = coupled_shares(
        pool, logits, torch.stack(gumbel), noise.temperature, temperatures, num
    )
    return _pairs(tokens.gather(1, places), shares)


def _pairs(
    columns: torch.Tensor, shares: torch.Tensor, token_ids: Sequence[int] = ()
) -> list[list[Candidate]]:
    found = []
    for row, row_shares in zip(columns.tolist(), shares.tolist(), strict=True):
        tokens = [token_ids[column] for column in row] if token_ids else row
        # Rounding may leave a share above 1.
        found.append(
            [(token, min(1.0, one)) for token, one in zip(tokens, row_shares, strict=True)]
        )
    return found
