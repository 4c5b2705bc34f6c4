"""The Medusa drafter: heads in the verifier's graphs, each of which guesses one token further on.

Cai et al., arXiv 2401.10774. What the graphs give as hidden of a token are the logits of all
heads: the verifier chose the token behind it, which is the root of the next tree, and head d
guesses the token d + 1 behind the root. So drafting runs nothing, and nodes of one depth have the
same children whatever their path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yggrt.core import schema
from yggrt.drafters import UNLIMITED, Candidate, Drafter, Noise
from yggrt.drafters.children import Children, TopShares


class MedusaDrafter(Drafter):
    """Needs to `observe` the last token that the verifier has run; without it, it has no guess."""

    max_expanded = max_model_len = UNLIMITED

    def __init__(self, parameters: schema.MedusaDrafter, top_shares: TopShares | None) -> None:
        self._num_heads = parameters.num_heads
        self._children = Children(
            parameters.temperatures, parameters.coverage, parameters.token_ids, top_shares
        )
        self._num_ids = 0
        # The logits [heads, ids] of the token at a place of the context.
        self._logits, self._place = torch.empty(0), -1
        # What was asked of this tree, by depth and number.
        self._found: dict[tuple[int, int], list[Candidate]] = {}

    def start(self, ids: Sequence[int]) -> None:
        self.rewind(0)
        self.commit(ids)

    def couple(self, noise: Noise | None) -> None:
        self._children.noise = noise

    def observe(self, first: int, hidden: torch.Tensor, rows: Sequence[int]) -> None:
        self._place = first + len(rows) - 1
        self._logits = hidden[rows[-1]].view(self._num_heads, -1)

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        # The token before the root: another one's row guesses other places.
        if self._place != self._num_ids - 2:
            return [[] for _ in paths]
        asked = {len(path) for path in paths if len(path) < self._num_heads}
        missing = [depth for depth in asked if (depth, num) not in self._found]
        if missing:
            depths = range(min(missing), max(missing) + 1)
            logits = self._logits[depths.start : depths.stop]
            found = self._children.of(logits, depths, num, self._num_ids)
            self._found.update(
                ((depth, num), one) for depth, one in zip(depths, found, strict=True)
            )
        return [self._found.get((len(path), num), []) for path in paths]

    def commit(self, tokens: Sequence[int]) -> None:
        self._num_ids += len(tokens)
        self._found = {}

    def rewind(self, num_tokens: int) -> None:
        self._num_ids = min(self._num_ids, num_tokens)
        self._found = {}
        if self._place >= self._num_ids:
            self._place = -1
