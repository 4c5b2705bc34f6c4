"""The language-model drafter: a smaller causal model says what the verifier may say.

Keeps key and value rows of its own. Rows of drafted tokens that were accepted move to their place;
what was emitted and never run (the bonus token, an accepted node of the last growth step, all of a
plain pass) runs with the next root. So no pass depends on acceptance but the first of a tree,
which has one row or two, or catches up after plain passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from yggrt.core import schema
from yggrt.core.passes import DraftGraphs, prefill_chunks
from yggrt.drafters import Candidate, Noise

# Noise is asked for so many of a row's most likely tokens. A token beyond them would need far more
# noise than they have to be chosen, and leaving it out costs a match at most.
NOISE_POOL = 512

Path = tuple[int, ...]


class LmDrafter:
    """A Drafter over compiled graphs. `num_ids`: the verifier's ids; no other is drafted.

    A token of the verifier that the model has no row for is run as its last one: such context only
    makes worse guesses.
    """

    def __init__(self, graphs: DraftGraphs, parameters: schema.LmDrafter, num_ids: int) -> None:
        self._graphs = graphs
        self._cache = graphs.new_cache()
        self._temperatures = parameters.temperatures
        self._num_ids = min(num_ids, graphs.vocab_size)
        self._noise: Noise | None = None
        self._ids: list[int] = []
        # The first tokens of the context, so many, have their rows in the cache.
        self._length = 0
        # Nodes of the tree that have theirs behind them, by path; the root's is row 0.
        self._rows: dict[Path, int] = {}

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
        self._noise = noise

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

    def rewind(self, num_tokens: int) -> None:
        del self._ids[num_tokens:]
        self._length = min(self._length, num_tokens)
        self._rows = {}

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        asked = [tuple(path) for path in paths]
        root = len(self._ids) - 1
        known = [path for path in asked if root + len(path) < self.max_model_len]
        if not known:
            return [[] for _ in asked]
        found = iter(self._children(torch.stack(self._run(known)), known, num))
        return [next(found) if root + len(path) < self.max_model_len else [] for path in asked]

    def _run(self, paths: Sequence[Path]) -> list[torch.Tensor]:
        """Logits [num_ids] after each node; runs ancestors that nobody asked for first."""
        found: dict[Path, torch.Tensor] = {}
        if () not in self._rows:
            found[()] = self._run_root()
        above = {path[:end] for path in paths for end in range(1, len(path))} - self._rows.keys()
        waves = [list(nodes) for _, nodes in groupby(sorted(above, key=len), key=len)]
        waves.append([path for path in dict.fromkeys(paths) if path not in found])
        widest = self._graphs.widths[-1]
        for wave in waves:
            for begin in range(0, len(wave), widest):
                nodes = wave[begin : begin + widest]
                found.update(zip(nodes, self._run_nodes(nodes), strict=True))
        return [found[path] for path in paths]

    def _run_nodes(self, nodes: Sequence[Path]) -> torch.Tensor:
        for path in nodes:
            self._rows.setdefault(path, len(self._rows))
        assert len(self._rows) <= self.max_expanded, "the engine keeps trees below the limit"
        tokens = [path[-1] if path else self._ids[-1] for path in nodes]
        rows = [[self._rows[path[:end]] for end in range(len(path) + 1)] for path in nodes]
        return self._draft(tokens, rows)

    def _run_root(self) -> torch.Tensor:
        """Runs the root and whatever stands between it and the cache's rows."""
        root = len(self._ids) - 1
        self._length = min(self._length, root)
        pending = self._ids[self._length :]
        if len(pending) <= self._graphs.widths[-1]:
            chain = [range(end) for end in range(1, len(pending) + 1)]
            logits = self._draft(pending, chain)[-1]
        else:
            buckets, cache = self._graphs.prefill_buckets, self._cache
            for first, last in prefill_chunks(buckets, self._length, root + 1):
                tokens = self._embeddable(self._ids[first:last])
                logits = self._graphs.prefill(cache, tokens, first).logits[0, : self._num_ids]
        self._length = root
        self._rows = {(): 0}
        return logits

    def _draft(self, tokens: Sequence[int], rows: Sequence[Sequence[int]]) -> torch.Tensor:
        logits = self._graphs.draft(self._cache, self._embeddable(tokens), rows, self._length)
        return logits[:, : self._num_ids]

    def _embeddable(self, tokens: Sequence[int]) -> list[int]:
        last = self._graphs.vocab_size - 1
        return [min(token, last) for token in tokens]

    def _children(
        self, logits: torch.Tensor, paths: Sequence[Path], num: int
    ) -> list[list[Candidate]]:
        """The best children of nodes; logits [n, num_ids]."""
        last = len(self._temperatures) - 1
        temperatures = torch.tensor([self._temperatures[min(len(p), last)] for p in paths])
        if self._noise is None:
            return best_children(logits, temperatures, num)
        positions = [len(self._ids) + len(path) for path in paths]
        return coupled_children(logits, temperatures, num, self._noise, positions)


def best_children(
    logits: torch.Tensor, temperatures: torch.Tensor, num: int
) -> list[list[Candidate]]:
    """Per row of logits [n, vocab] the `num` most likely tokens and their shares at the row's
    temperature.
    """
    values, tokens = logits.topk(min(num, logits.shape[1]))
    scale = temperatures[:, None]
    shares = torch.exp(values / scale - torch.logsumexp(logits / scale, 1, keepdim=True))
    return _pairs(tokens, shares)


def coupled_children(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    num: int,
    noise: Noise,
    positions: Sequence[int],
) -> list[list[Candidate]]:
    """Per row the tokens that the drafter itself would choose first with the verifier's noise at
    that position.

    The verifier takes the largest of its logits / T + G. The drafter's logits / T + G has the same
    G, so they part only where the logits do. A calibrated temperature says by how much: take the
    verifier's logits for the drafter's plus Gumbel noise of that scale, and the chance of a token
    is its share in a softmax at that temperature, of the drafter's logits at T = 0 and of logits
    + T G here. Tokens outside the pool count in the sum as if they had no noise.
    """
    pool, tokens = logits.topk(min(NOISE_POOL, logits.shape[1]))
    scale = temperatures[:, None].double()
    gumbel = [noise(position, row) for position, row in zip(positions, tokens, strict=True)]
    perturbed = (pool + noise.temperature * torch.stack(gumbel)) / scale
    values, places = perturbed.topk(min(num, perturbed.shape[1]))
    best = values[:, :1]
    everything = torch.logsumexp(logits / scale, 1, keepdim=True)
    in_pool = torch.logsumexp(pool / scale, 1, keepdim=True)
    rest = torch.exp(everything - best) * -torch.expm1((in_pool - everything).clamp(max=0))
    total = torch.exp(perturbed - best).sum(1, keepdim=True) + rest
    return _pairs(tokens.gather(1, places), torch.exp(values - best) / total)


def _pairs(tokens: torch.Tensor, shares: torch.Tensor) -> list[list[Candidate]]:
    rows = zip(tokens.tolist(), shares.clamp(max=1.0).tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]
