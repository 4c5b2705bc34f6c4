"""The language-model drafter: a smaller causal model says what the verifier may say.

Rows of drafted tokens that were accepted move to their place; what was emitted and never run (the
bonus token, an accepted node of the last growth step, all of a plain pass) runs with the next
root. So no pass depends on acceptance but the first of a tree, which has one row or two, or
catches up after plain passes. A plan may have the last step's nodes run ahead of verifying
(`run_tail`), or what may be the next root behind it (`run_heads`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yggrt.core import schema
from yggrt.core.passes import DraftGraphs, prefill_chunks
from yggrt.core.plans import DraftKind
from yggrt.core.tree import TokenTree
from yggrt.drafters.model import ModelDrafter, Output, Path


class LmDrafter(ModelDrafter):
    """`num_ids`: the verifier's ids; no other is drafted.

    A token of the verifier that the model has no row for is run as its last one: such context only
    makes worse guesses.
    """

    def __init__(self, graphs: DraftGraphs, parameters: schema.LmDrafter, num_ids: int) -> None:
        super().__init__(graphs, parameters.temperatures)
        self._num_ids = min(num_ids, graphs.vocab_size)
        # Logits of roots that may come.
        self._heads: dict[Path, Output] = {}

    @property
    def draft_kind(self) -> DraftKind:
        return "lm"

    def run_tail(self, tree: TokenTree) -> None:
        paths = tree.token_paths()
        # Only what hangs on nodes that were run: what joined the tree may be long.
        missing = [path for path in paths if path not in self._rows and path[:-1] in self._rows]
        self._run_more(missing[: self._graphs.widths[-1]])

    def run_heads(self, tree: TokenTree, answers: Sequence[int], num: int) -> None:
        paths = tree.token_paths()
        likely = sorted(range(tree.num_nodes), key=lambda row: (-tree.scores[row], row))
        roots = [
            (*paths[row], answers[row])
            for row in likely
            if answers[row] >= 0 and paths[row] in self._rows
        ]
        self._heads = self._run_more([path for path in roots if path not in self._rows][:num])

    def _run_more(self, paths: Sequence[Path]) -> dict[Path, Output]:
        """Rows for nodes whose parents have theirs, where there is room; what they gave."""
        root, room = len(self._ids) - 1, self.max_expanded - len(self._rows)
        within = [path for path in paths if root + len(path) < self.max_model_len][: max(0, room)]
        return dict(zip(within, self._outputs(within), strict=True)) if within else {}

    def commit(self, tokens: Sequence[int]) -> None:
        if self._rows:
            head = self._heads.get(tuple(tokens))
            # Without it the last token runs again: its outputs are what the next tree begins with.
            sources = []
            for end in range(1, len(tokens) + (head is not None)):
                row = self._rows.get(tuple(tokens[:end]))
                if row is None:
                    break
                sources.append(self._length + row)
            first = self._length + 1
            self._graphs.move(self._cache, sources, range(first, first + len(sources)))
            self._length = first + len(sources) - (head is not None)
            self._rows = {} if head is None else {(): 0}
            self._root, self._heads = head, {}
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
