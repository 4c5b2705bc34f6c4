"""What a forward pass over tree rows takes and gives: the boundary between the engine and whatever
computes.

Types only. The engine works on token ids, row indices and slot numbers; tensors pass through it
unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from yggrt.core.tree import TokenTree


class PassOutput(NamedTuple):
    """Outputs of one pass, one entry per row that was asked for (never the padding).

    ids: the verifier's most likely next token after each row, lowest id on ties.
    logits: [rows, vocab] float32. hidden: [rows, d] float32, what a head reads of the row, or what
    Medusa heads say of it.
    hazards: [rows, D_max] float32.
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
    prefill_buckets: row counts of the prefill graphs, ascending; the last is the most tokens of
    one `prefill` call.
    max_model_len: most tokens of a sequence, prompt and output together.
    """

    @property
    def row_counts(self) -> tuple[int, ...]: ...

    @property
    def prefill_buckets(self) -> tuple[int, ...]: ...

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
        """Runs a chain of tokens, at most the last of `prefill_buckets`, at slots `length..`;
        pads to the next bucket and gives the outputs of the last token alone, but `hidden` of
        all, unless it is what Medusa heads say."""
        ...

    def commit(self, cache: KvCache, length: int, path: Sequence[int]) -> None:
        """Moves the rows that tree row `path[i]` wrote to slot `length + 1 + i`; every load before
        any store."""
        ...


class DraftOutput(NamedTuple):
    """Outputs of a draft pass, one entry per node: logits [n, vocab] and hidden [n, d] float32."""

    logits: torch.Tensor
    hidden: torch.Tensor


class DraftGraphs(Protocol):
    """Forward passes of a model that drafts, over a tree that grows. One thread at a time.

    widths: nodes that one `draft` call can run, ascending, the first is 1. max_expanded: most
    nodes of one tree. prefill_buckets, max_model_len: as for Graphs. vocab_size: logits that it
    gives. feature_size: values of a feature that a head reads beside each token, 0 for a language
    model, which reads none. top_shares: the operator that makes candidates of logits (see
    `kernels/README.md`), None where the library is older.
    """

    @property
    def top_shares(self) -> Callable[..., Any] | None: ...

    @property
    def feature_size(self) -> int: ...

    @property
    def widths(self) -> tuple[int, ...]: ...

    @property
    def max_expanded(self) -> int: ...

    @property
    def prefill_buckets(self) -> tuple[int, ...]: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def new_cache(self) -> KvCache: ...

    def draft(
        self,
        cache: KvCache,
        tokens: Sequence[int],
        paths: Sequence[Sequence[int]],
        length: int,
        features: Iterable[torch.Tensor] = (),
    ) -> DraftOutput:
        """Runs n nodes over a prefix of `length` committed rows; `features` float32
        [feature_size] each, or one tensor of them, if that is not 0.

        `paths[i]` has the tree rows from the root down to node i, ascending, its own last: row r
        of the tree lies at slot `length + r`. All but those of this call were run before.
        """
        ...

    def prefill(
        self,
        cache: KvCache,
        tokens: Sequence[int],
        length: int,
        features: Iterable[torch.Tensor] = (),
    ) -> PassOutput:
        """As for Graphs, `features` as for `draft`."""
        ...

    def move(self, cache: KvCache, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Moves rows between slots; every load before any store."""
        ...


def prefill_chunks(buckets: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) that cover start..end, one per prefill pass.

    A pass takes the largest bucket that is at least half filled, so that few padding rows are
    computed; a rest goes to the smallest bucket that holds it.
    """
    while start < end:
        rest = end - start
        bucket = max((size for size in buckets if 2 * rest > size), default=buckets[0])
        last = min(start + bucket, end)
        yield start, last
        start = last
