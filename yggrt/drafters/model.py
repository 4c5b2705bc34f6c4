"""What all drafters that run a model share: which nodes of the tree have rows behind the committed
ones, and how logits become candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import torch

from yggrt.core.passes import DraftGraphs
from yggrt.drafters import Candidate, Drafter, Noise
from yggrt.graph_inputs import NumbersBySize

# Noise is asked for so many of a row's most likely tokens. A token beyond them would need far more
# noise than they have to be chosen, and leaving it out costs a match at most.
NOISE_POOL = 512

Path: TypeAlias = tuple[int, ...]
# Logits of a pass, [rows, vocab], and which row is meant.
Output: TypeAlias = tuple[torch.Tensor, int]
# An operator: logits [n, vocab] and temperatures [n] float32, k -> places [n, k] int64 of the k
# largest of each row, and their shares [n, k] float32.
TopShares: TypeAlias = Callable[
    [torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]
]


class ModelDrafter(Drafter, ABC):
    """A Drafter over compiled graphs that keeps key and value rows of its own.

    temperatures, coverage, token_ids: as in `schema.EagleDrafter`. The first `_length` tokens of
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
        self._temperatures, self._coverage = temperatures, coverage
        self._token_ids = tuple(token_ids)
        self._token_id_tensor = torch.tensor(token_ids) if token_ids else None
        self._scales = NumbersBySize(torch.float32)
        self._noise: Noise | None = None
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
        self._noise = noise

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
        found = iter(self._children(_together(self._outputs(known)), known, num))
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

    def _children(
        self, logits: torch.Tensor, paths: Sequence[Path], num: int
    ) -> list[list[Candidate]]:
        """The best children of nodes; logits [n, vocab]."""
        temperatures = self._scales.set([_at_depth(self._temperatures, path) for path in paths])
        if self._noise is None:
            operator = self._graphs.top_shares
            found = best_children(logits, temperatures, num, self._token_ids, operator)
        else:
            positions, ids = [len(self._ids) + len(path) for path in paths], self._token_id_tensor
            found = coupled_children(logits, temperatures, num, self._noise, positions, ids)
        covered = [_at_depth(self._coverage, path) for path in paths]
        return [
            [(token, share * probability) for token, probability in children]
            for share, children in zip(covered, found, strict=True)
        ]


def _together(outputs: Sequence[Output]) -> torch.Tensor:
    """The logits of all, [n, vocab]; those of one pass, in its order, are not copied."""
    logits, first = outputs[0]
    if all(one is logits and row == first + i for i, (one, row) in enumerate(outputs)):
        some = logits if len(logits) == len(outputs) else logits[first : first + len(outputs)]
        return some.contiguous()
    return torch.stack([one[row] for one, row in outputs])


def _at_depth(values: Sequence[float], path: Path) -> float:
    """The value for the children of a node; the last stands for deeper ones."""
    return values[min(len(path), len(values) - 1)]


def best_children(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    num: int,
    token_ids: Sequence[int] = (),
    top_shares: TopShares | None = None,
) -> list[list[Candidate]]:
    """Per row of logits [n, vocab] the `num` most likely tokens and their shares at the row's
    temperature; `token_ids` has the verifier's ids of the columns where they are not its own,
    `top_shares` is an operator library's.
    """
    num = min(num, logits.shape[1])
    if top_shares is not None:
        return _pairs(*top_shares(logits, temperatures, num), token_ids)
    values, columns = logits.topk(num)
    scale = temperatures[:, None]
    shares = torch.exp(values / scale - torch.logsumexp(logits / scale, 1, keepdim=True))
    return _pairs(columns, shares, token_ids)


def coupled_children(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    num: int,
    noise: Noise,
    positions: Sequence[int],
    token_ids: torch.Tensor | None = None,
) -> list[list[Candidate]]:
    """Per row the tokens that the drafter itself would choose first with the verifier's noise at
    that position.

    The verifier takes the largest of its logits / T + G. The drafter's logits / T + G has the same
    G, so they part only where the logits do. A calibrated temperature says by how much: take the
    verifier's logits for the drafter's plus Gumbel noise of that scale, and the chance of a token
    is its share in a softmax at that temperature, of the drafter's logits at T = 0 and of logits
    + T G here. Tokens outside the pool count in the sum as if they had no noise. `token_ids` has
    the verifier's ids of the columns where they are not its own.
    """
    pool, columns = logits.topk(min(NOISE_POOL, logits.shape[1]))
    tokens = columns if token_ids is None else token_ids[columns]
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


def _pairs(
    columns: torch.Tensor, shares: torch.Tensor, token_ids: Sequence[int] = ()
) -> list[list[Candidate]]:
    found = []
    for row, row_shares in zip(columns.tolist(), shares.tolist(), strict=True):
        tokens = [token_ids[column] for column in row] if token_ids else row
        # Rounding may leave a share above 1.
        found.append(
            [(token, min(1.0, one)) for token, one in zip(tokens, row_shares, strict=True)]
        )
    return found
