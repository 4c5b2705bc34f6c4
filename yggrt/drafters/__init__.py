"""Drafters: guess what the verifier will say next. They see token ids, never text and never the
verifier.

A drafter that needs no graphs can stand in for a bundle's own: what is registered as an entry
point of the group `yggrt.drafters` makes a new one when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from yggrt.core.plans import DraftKind
    from yggrt.core.tree import TokenTree

# A token, and the probability that the verifier accepts it given that it accepted the parent.
Candidate = tuple[int, float]
UNLIMITED = sys.maxsize
GROUP = "yggrt.drafters"


class Noise(Protocol):
    """The verifier's own randomness, which a drafter may look at: it is fixed before any tree.

    Called with a position of prompt and output (the first token of the prompt is 0) and token ids
    [n] int64, gives the Gumbel noise [n] float64 that the verifier adds to the logits over
    `temperature` (above 0) when it chooses that position's token.
    """

    temperature: float

    def __call__(self, position: int, token_ids: torch.Tensor) -> torch.Tensor: ...


class Drafter(Protocol):
    """Proposes children of tree nodes on top of a committed context. Methods with a body are what
    a drafter does that needs no more than tokens.

    The context is prompt and output so far, the tree's root its last token. A proposal must not
    depend on what the verifier will choose, but for the noise it chooses by; then any drafter
    leaves the output as it is, and a good one makes it faster.

    max_expanded: most nodes of one tree whose children can be asked for. max_model_len: most
    tokens of a context that it drafts on. Both UNLIMITED where there is no limit. second: another
    drafter, whose guesses join the tree once it is grown; it is told everything by this one.
    draft_kind: which axes of a plan it has.
    """

    @property
    def draft_kind(self) -> DraftKind:
        return "none"

    @property
    def max_expanded(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def second(self) -> Drafter | None:
        return None

    def start(self, ids: Sequence[int]) -> None:
        """Forgets everything and takes `ids` as the context."""
        ...

    def couple(self, noise: Noise | None) -> None:
        """Tells the noise of the coming sequence; None for one that is decoded without."""
        return

    def observe(self, first: int, hidden: torch.Tensor, rows: Sequence[int]) -> None:
        """Tells what the verifier's graphs gave as hidden of the context's tokens from `first` on:
        rows `rows` of `hidden` [n, d] float32. Told once the verifier has run the tokens, before
        or after they are committed, and always before the next tree; of a prefill maybe its last
        token alone."""
        return

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        """At most `num` children of each node, best first; a node is the path of tokens that leads
        to it from the root, the root excluded.

        One call holds all nodes of a growth step, so that a model can run them together. Siblings
        differ, and their probabilities add up to at most 1. Leaves the context as it is.
        """
        ...

    def learn(self, tree: TokenTree, answers: Sequence[int]) -> None:
        """Tells the verifier's most likely token after each row of a pass that it has run."""
        return

    def run_tail(self, tree: TokenTree) -> None:
        """Runs nodes of a grown tree that were never asked for, so that they need not run later
        if they are accepted. Only a drafter of the kind `lm` is asked."""
        return

    def run_heads(self, tree: TokenTree, answers: Sequence[int], num: int) -> None:
        """Runs the token that `answers` has after each of at most `num` rows of a tree, one of
        which may be the next root. Only a drafter of the kind `lm` is asked."""
        return

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends emitted tokens to the context; ends the tree."""
        ...

    def rewind(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` of the context; ends the tree."""
        ...
