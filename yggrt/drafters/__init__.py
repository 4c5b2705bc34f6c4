"""Drafters: guess what the verifier will say next. They see token ids, never text and never the
verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Proposes children of tree nodes on top of a committed context.

    The context is prompt and output so far, the tree's root its last token. A proposal must not
    depend on what the verifier will choose; then any drafter leaves the output as it is, and a
    good one makes it faster.
    """

    def start(self, ids: Sequence[int]) -> None:
        """Forgets everything and takes `ids` as the context."""
        ...

    def candidates(self, path_tokens: Sequence[int], num: int) -> list[tuple[int, float]]:
        """At most `num` children of the node that `path_tokens` (the root excluded) leads to, best
        first.

        Each is a token, different from its siblings, and the probability that the verifier accepts
        it given that it accepted the node; siblings' probabilities add up to at most 1. Leaves the
        context as it is.
        """
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens to the context."""
        ...

    def rewind(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` of the context."""
        ...
