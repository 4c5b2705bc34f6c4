"""What all drafters that run a model share: which nodes of the tree have rows behind the committed
ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import torch

from yggrt.core.passes import DraftGraphs
from yggrt.drafters import Candidate, Drafter, Noise
from yggrt.drafters.children import Children

Path: TypeAlias = tuple[int, ...]
# Logits of a pass, [rows, vocab], and which row is meant.
Output: TypeAlias = tuple[torch.Tensor, int]


class ModelDrafter(Drafter, ABC):
    """A Drafter over compiled graphs that keeps key and value rows of its own.

    temperatures, coverage, token_ids: as in `schema.HeadDrafter`. The first `_length` tokens of
    the context have their rows in the cache; nodes of the tree that have theirs behind them are in
    `_rows` by path, the root's is row 0.
    """

    def __init__(
        self,
        graphs: DraftGraphs,
        temperatures: Sequence[float],
        coverage: Sequence[float] = (1.0,),
        token_ids: Sequence[int] = (),
    ) -> None:
        self._graphs = graphs
        self._cache = graphs.new_cache()
        self._children = Children(temperatures, coverage, token_ids, graphs.top_shares)
        self._ids: list[int] = []
        self._length = 0
        self._rows: dict[Path, int] = {}
        # What a root gave that ran before it was one.
        self._root: Output | None = None

    @property
    def max_expanded(self) -> int:
        return self._graphs.max_expanded

    @property
    def max_model_len(self) -> int:
        return self._graphs.max_model_len

    def start(self, ids: Sequence[int]) -> None:
        self.rewind(0)
        self.commit(ids)

    def couple(self, noise: Noise | None) -> None:
        self._children.noise = noise

    def rewind(self, num_tokens: int) -> None:
        del self._ids[num_tokens:]
        self._length = min(self._length, num_tokens)
        self._rows, self._root = {}, None

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        asked = [tuple(path) for path in paths]
        root = len(self._ids) - 1
        known = [path for path in asked if root + len(path) < self.max_model_len]
        if not known:
            return [[] for _ in asked]
        logits, depths = _together(self._outputs(known)), [len(path) for path in known]
        found = iter(self._children.of(logits, depths, num, len(self._ids)))
        return [next(found) if root + len(path) < self.max_model_len else [] for path in asked]

    def logits(self, paths: Sequence[Path]) -> list[torch.Tensor]:
        """The model's logits after each node; runs ancestors that nobody asked for first. No node
        is beyond `max_model_len`."""
        return [logits[row] for logits, row in self._outputs(paths)]

    def _outputs(self, paths: Sequence[Path]) -> list[Output]:
        found: dict[Path, Output] = {}
        if self._root is not None:
            found[()], self._root = self._root, None
        elif () not in self._rows:
            found[()] = self._run_root()
        above = {path[:end] for path in paths for end in range(1, len(path))} - self._rows.keys()
        waves = [list(nodes) for _, nodes in groupby(sorted(above, key=len), key=len)]
        waves.append([path for path in dict.fromkeys(paths) if path not in found])
        widest = self._graphs.widths[-1]
        for wave in waves:
            for begin in range(0, len(wave), widest):
                nodes = wave[begin : begin + widest]
                for path in nodes:
                    self._rows.setdefault(path, len(self._rows))
                assert len(self._rows) <= self.max_expanded, "the engine keeps trees below it"
                logits = self._run_nodes(nodes)
                found.update((path, (logits, row)) for row, path in enumerate(nodes))
        return [found[path] for path in paths]

    @abstractmethod
    def _run_root(self) -> Output:
        """Runs the root and whatever stands between it and the cache's rows, makes it row 0 of the
        tree and returns the logits after it."""

    @abstractmethod
    def _run_nodes(self, nodes: Sequence[Path]) -> torch.Tensor:
        """Logits [n, vocab] after nodes that are in `_rows`, like all above them."""

    def _node_rows(self, nodes: Sequence[Path]) -> list[list[int]]:
        """The tree rows from the root down to each node."""
        return [[self._rows[path[:end]] for end in range(len(path) + 1)] for path in nodes]

    def _node_tokens(self, nodes: Sequence[Path]) -> list[int]:
        return [path[-1] if path else self._ids[-1] for path in nodes]


def _together(outputs: Sequence[Output]) -> torch.Tensor:
    """The logits of all, [n, vocab]; those of one pass, in its order, are not copied."""
    logits, first = outputs[0]
    if all(one is logits and row == first + i for i, (one, row) in enumerate(outputs)):
        some = logits if len(logits) == len(outputs) else logits[first : first + len(outputs)]
        return some.contiguous()
    return torch.stack([one[row] for one, row in outputs])
