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
from yggrt.core.plans import DraftKind
from yggrt.drafters.model import ModelDrafter, Output, Path


class EagleDrafter(ModelDrafter):
    """Needs to `observe` every token that the verifier has run."""

    def __init__(self, graphs: DraftGraphs, parameters: schema.EagleDrafter) -> None:
        super().__init__(
            graphs, parameters.temperatures, parameters.coverage, parameters.token_ids
        )
        # Row t: what token t reads. The first token has none before it.
        self._table = torch.zeros(graphs.max_model_len + 1, graphs.feature_size)
        self._features = self._table.unbind()
        # What was observed since the last tree and is not in the table yet: many passes may be
        # without one.
        self._observed: list[tuple[int, torch.Tensor, Sequence[int]]] = []
        # What the head predicted at each node of the tree.
        self._predicted: dict[Path, torch.Tensor] = {}

    @property
    def draft_kind(self) -> DraftKind:
        return "eagle"

    def observe(self, first: int, hidden: torch.Tensor, rows: Sequence[int]) -> None:
        self._observed.append((first + 1, hidden, rows))
        if len(rows) > 1 + self._graphs.widths[-1]:
            self._store()

    def _store(self) -> None:
        """Brings what was observed into the table."""
        for start, hidden, rows in self._observed:
            # What is beyond the head's context it never reads.
            kept = rows[: max(0, len(self._features) - start)]
            if isinstance(kept, range):
                self._table[start : start + len(kept)] = hidden[kept.start : kept.stop]
            else:
                for at, row in enumerate(kept, start):
                    self._features[at].copy_(hidden[row])
        self._observed.clear()

    def commit(self, tokens: Sequence[int]) -> None:
        if self._rows:
            # Of the tree the root alone was run on a feature of the verifier.
            self._length += 1
            self._rows, self._predicted = {}, {}
        self._ids += tokens

    def rewind(self, num_tokens: int) -> None:
        super().rewind(num_tokens)
        self._store()
        self._predicted = {}

    def _run_root(self) -> Output:
        self._store()
        root, graphs, cache = len(self._ids) - 1, self._graphs, self._cache
        self._length = min(self._length, root)
        first, tokens = self._length, self._ids[self._length :]
        if len(tokens) <= graphs.widths[-1]:
            chain = [range(end) for end in range(1, len(tokens) + 1)]
            features = self._features[first : root + 1]
            logits, hidden = graphs.draft(cache, tokens, chain, first, features)
            output = logits, len(tokens) - 1
        else:
            for begin, end in prefill_chunks(graphs.prefill_buckets, first, root + 1):
                features = self._features[begin:end]
                _, logits, hidden, _ = graphs.prefill(cache, self._ids[begin:end], begin, features)
            output = logits, 0
        self._length = root
        self._rows, self._predicted = {(): 0}, {(): hidden[-1]}
        return output

    def _run_nodes(self, nodes: Sequence[Path]) -> torch.Tensor:
        features = [
            self._predicted[path[:-1]] if path else self._features[len(self._ids) - 1]
            for path in nodes
        ]
        logits, hidden = self._graphs.draft(
            self._cache, self._node_tokens(nodes), self._node_rows(nodes), self._length, features
        )
        self._predicted.update(zip(nodes, hidden, strict=True))
        return logits
