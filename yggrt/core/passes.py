"""What a forward pass over tree rows takes and gives: the boundary between the engine and whatever
computes.

Types only. The engine works on token ids, row indices and slot numbers; tensors pass through it
unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from yggrt.core.tree import TokenTree


class PassOutput(NamedTuple):
    """Outputs of one pass, one entry per row that was asked for (never the padding).

    ids: the verifier's most likely next token after each row, lowest id on ties.
    logits: [rows, vocab] float32. hidden: [rows, d]. hazards: [rows, D_max] float32.
    """

    ids: list[int]
    logits: torch.Tensor
    hidden: torch.Tensor
    hazards: torch.Tensor


class KvCache(Protocol):
    """Key and value rows of one sequence, one slot per token. Owned by the graphs that made it."""


class Graphs(Protocol):
    """Forward passes of one verifier. One decoding thread at a time.

    row_counts: row counts that `verify` can run, ascending, the first is 1.
    prefill_rows: most tokens of one `prefill` call.
    max_model_len: most tokens of a sequence, prompt and output together.
    """

    @property
    def row_counts(self) -> tuple[int, ...]: ...

    @property
    def prefill_rows(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    def new_cache(self) -> KvCache: ...

    def verify(self, cache: KvCache, tree: TokenTree, length: int) -> PassOutput:
        """Runs the tree's rows at slots `length..` over a prefix of `length` committed rows.

        Pads to the next row count. Raises RequestError if the tree has more rows than the largest
        row count.
        """
        ...

    def prefill(self, cache: KvCache, tokens: Sequence[int], length: int) -> PassOutput:
        """Runs a chain of 1..prefill_rows tokens at slots `length..`; gives the outputs of its
        last token alone."""
        ...

    def commit(self, cache: KvCache, length: int, path: Sequence[int]) -> None:
        """Moves the rows that tree row `path[i]` wrote to slot `length + 1 + i`; every load before
        any store."""
        ...
