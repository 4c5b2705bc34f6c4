"""Two drafters for one tree: a model grows it, n-grams join it before it is pruned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from yggrt.core import schema
from yggrt.drafters import Candidate, Drafter, Noise
from yggrt.drafters.calibrate import Recording, held_out

if TYPE_CHECKING:
    import torch

    from yggrt.core.plans import DraftKind
    from yggrt.core.tree import TokenTree


class JoinedDrafter(Drafter):
    """Grows trees with `first`, whose limits it has, and tells `second` all that it is told."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._first, self._second = first, second

    @property
    def draft_kind(self) -> DraftKind:
        return self._first.draft_kind

    @property
    def max_expanded(self) -> int:
        return self._first.max_expanded

    @property
    def max_model_len(self) -> int:
        return self._first.max_model_len

    @property
    def second(self) -> Drafter:
        return self._second

    def start(self, ids: Sequence[int]) -> None:
        self._first.start(ids)
        self._second.start(ids)

    def couple(self, noise: Noise | None) -> None:
        self._first.couple(noise)
        self._second.couple(noise)

    def observe(self, first: int, hidden: torch.Tensor, rows: Sequence[int]) -> None:
        self._first.observe(first, hidden, rows)
        self._second.observe(first, hidden, rows)

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        return self._first.candidates(paths, num)

    def run_tail(self, tree: TokenTree) -> None:
        self._first.run_tail(tree)

    def run_heads(self, tree: TokenTree, answers: Sequence[int], num: int) -> None:
        self._first.run_heads(tree, answers, num)

    def commit(self, tokens: Sequence[int]) -> None:
        self._first.commit(tokens)
        self._second.commit(tokens)

    def rewind(self, num_tokens: int) -> None:
        self._first.rewind(num_tokens)
        self._second.rewind(num_tokens)


def joined_folds(
    first: Drafter, parameters: schema.NgramDrafter, recordings: Sequence[Recording]
) -> list[tuple[JoinedDrafter, Sequence[Recording]]]:
    """Folds of the recordings, each with n-grams beside `first` that have not seen them."""
    return [(JoinedDrafter(first, one), fold) for one, fold in held_out(parameters, recordings)]
