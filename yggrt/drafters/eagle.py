"""The EAGLE drafter: a head of one layer over the verifier's features, which are its last hidden
states, or for EAGLE-3 what its graphs make of the inputs of some layers.

Li et al., arXiv 2401.15077, 2406.16858 and 2503.01840. The row of a token reads the feature of
the token before it: the verifier's own where the verifier has run that token, the head's
prediction inside a tree. What was emitted since the last tree therefore runs again with the
verifier's features, in the same pass as the next root, so that no row of the context rests on a
prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yggrt.core import schema
from yggrt.core.passes import DraftGraphs, prefill_chunks
from yggrt.drafters.model import ModelDrafter, Path


class EagleDrafter(ModelDrafter):
    """Needs to `observe` every token that the verifier has run."""

    def __init__(self, graphs: DraftGraphs, parameters: schema.EagleDrafter) -> None:
        super().__init__(
            graphs, parameters.temperatures, parameters.coverage, parameters.token_ids
        )
        # Row t: what token t reads. The first token has none before it.
        self._features = torch.zeros(graphs.max_model_len + 1, graphs.feature_size)
        # What the head predicted at each node of the tree.
        self._predicted: dict[Path, torch.Tensor] = {}

    def observe(self, first: int, hidden: torch.Tensor, rows: Sequence[int]) -> None:
        start = first + 1
        end = min(start + len(rows), len(self._features))
        if end > start:
            self._features[start:end] = hidden[list(rows[: end - start])]

    def commit(self, tokens: Sequence[int]) -> None:
        if self._rows:
            # Of the tree the root alone was run on a feature of the verifier.
            self._length += 1
            self._rows, self._predicted = {}, {}
        self._ids += tokens

    def rewind(self, num_tokens: int) -> None:
        super().rewind(num_tokens)
        self._predicted = {}

    def _run_root(self) -> torch.Tensor:
        root, graphs, cache = len(self._ids) - 1, self._graphs, self._cache
        self._length = min(self._length, root)
        if root + 1 - self._length <= graphs.widths[-1]:
            tokens, features = self._ids[self._length :], self._features[self._length : root + 1]
            chain = [range(end) for end in range(1, len(tokens) + 1)]
            logits, hidden = graphs.draft(cache, tokens, chain, self._length, features)
        else:
            for first, last in prefill_chunks(graphs.prefill_buckets, self._length, root + 1):
                tokens, features = self._ids[first:last], self._features[first:last]
                _, logits, hidden, _ = graphs.prefill(cache, tokens, first, features)
        self._length = root
        self._rows, self._predicted = {(): 0}, {(): hidden[-1]}
        return logits[-1]

    def _run_nodes(self, nodes: Sequence[Path]) -> torch.Tensor:
        features = torch.stack(
            [self._predicted[path[:-1]] if path else self._features[len(self._ids) - 1]
             for path in nodes]
        )  # fmt: skip
        logits, hidden = self._graphs.draft(
            self._cache, self._node_tokens(nodes), self._node_rows(nodes), self._length, features
        )
        self._predicted.update(zip(nodes, hidden, strict=True))
        return logits
