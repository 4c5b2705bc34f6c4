"""The language-model drafter: a smaller causal model says what the verifier may say.

Rows of drafted tokens that were accepted move to their place; what was emitted and never run (the
bonus token, an accepted node of the last growth step, all of a plain pass) runs with the next
root. So no pass depends on acceptance but the first of a tree, which has one row or two, or
catches up after plain passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yggrt.core import schema
from yggrt.core.passes import DraftGraphs, prefill_chunks
from yggrt.drafters.model import ModelDrafter, Output, Path


class LmDrafter(ModelDrafter):
    """`num_ids`: the verifier's ids; no other is drafted.

    A token of the verifier that the model has no row for is run as its last one: such context only
    makes worse guesses.
    """

    def __init__(self, graphs: DraftGraphs, parameters: schema.LmDrafter, num_ids: int) -> None:
        super().__init__(graphs, parameters.temperatures)
        self._num_ids = min(num_ids, graphs.vocab_size)

    def commit(self, tokens: Sequence[int]) -> None:
        if self._rows:
            # The last token always runs again: its outputs are what the next tree begins with.
            sources = []
            for end in range(1, len(tokens)):
                row = self._rows.get(tuple(tokens[:end]))
                if row is None:
                    break
                sources.append(self._length + row)
            first = self._length + 1
            self._length = first + len(sources)
            self._graphs.move(self._cache, sources, range(first, self._length))
            self._rows = {}
        self._ids += tokens

    def _run_root(self) -> Output:
        root = len(self._ids) - 1
        self._length = min(self._length, root)
        pending = self._ids[self._length :]
        if len(pending) <= self._graphs.widths[-1]:
            chain = [range(end) for end in range(1, len(pending) + 1)]
            output = self._draft(pending, chain), len(pending) - 1
        else:
            buckets, cache = self._graphs.prefill_buckets, self._cache
            for first, last in prefill_chunks(buckets, self._length, root + 1):
                tokens = self._embeddable(self._ids[first:last])
                output = self._known(self._graphs.prefill(cache, tokens, first).logits), 0
        self._length = root
        self._rows = {(): 0}
        return output

    def _run_nodes(self, nodes: Sequence[Path]) -> torch.Tensor:
        return self._draft(self._node_tokens(nodes), self._node_rows(nodes))

    def _draft(self, tokens: Sequence[int], rows: Sequence[Sequence[int]]) -> torch.Tensor:
        out = self._graphs.draft(self._cache, self._embeddable(tokens), rows, self._length)
        return self._known(out.logits)

    def _known(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if logits.shape[1] == self._num_ids else logits[:, : self._num_ids]

    def _embeddable(self, tokens: Sequence[int]) -> list[int]:
        last = self._graphs.vocab_size - 1
        return [min(token, last) for token in tokens]
