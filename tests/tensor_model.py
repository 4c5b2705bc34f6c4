"""Models of integers for the device's programs: every bit of a row's logits is a hash of the rows
that it sees.

A KV row is a hash of its token and position, a row's logits are one of the sum of all rows that
its mask and length let it see, so a wrong slot, position, mask, length or commit shows as other
logits. Integer sums have no order, so the host may run fewer rows than the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from yggrt.core.passes import DraftOutput, PassOutput
from yggrt.core.tree import TokenTree

MAX_DEPTH = 4


def mixed(words: Tensor) -> Tensor:
    for shift in (29, 31, 32):
        words = (words ^ (words >> shift & (1 << (64 - shift)) - 1)) * 0x5851F42D4C957F2D
    return words


class HashModel(torch.nn.Module):
    """A graph over one cache [1, 1, S, 1] int64. Logits are multiples of `step`, so that some are
    equal; a model with `blur` adds that much of its own to those of the others of its seed."""

    def __init__(self, seed: int, vocab: int, *, spread: float, step: float, blur: float) -> None:
        super().__init__()
        self.seed, self.vocab = seed, vocab
        self.spread, self.step, self.blur = spread, step, blur

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, length: Tensor, mask: Tensor,
        cache: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        # As the operators in real graphs.
        assert all(one.is_contiguous() for one in (tokens, positions, slots, length, mask))
        rows = mixed(mixed(tokens + self.seed) + positions)
        cache[:, :, slots] = rows[None, None, :, None]
        columns = torch.arange(cache.shape[2], device=length.device) - length
        in_tree = (columns >= 0) & (columns < mask.shape[1])
        in_mask = mask[:, columns.clamp(0, mask.shape[1] - 1)]
        visible = (columns < 0) | (in_tree & in_mask)
        digests = (cache[0, 0, :, 0] * visible).sum(1)
        logits = self._noise(digests, self.vocab, 1)
        if self.blur:
            logits = logits + self.blur * self._noise(digests, self.vocab, 2)
        logits = (logits * self.spread / self.step).round() * self.step
        hazards = self._noise(digests, MAX_DEPTH, 3).clamp(-0.5, 0.5) + 0.5
        return logits.argmax(1), logits, logits[:, :1], hazards

    def _noise(self, digests: Tensor, num: int, kind: int) -> Tensor:
        """[rows, num] float32 of no mean."""
        numbers = torch.arange(num, device=digests.device)
        words = mixed(digests[:, None] + numbers * 8 + kind)
        return (words >> 40).float() / 2**23

    def new_cache(self, num_slots: int) -> Tensor:
        return torch.zeros(1, 1, num_slots, 1, dtype=torch.int64)


def run(
    model: HashModel,
    cache: Tensor,
    tokens: Sequence[int],
    paths: Sequence[Sequence[int]],
    length: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The model on tree rows, each given by the rows from the root down to it."""
    mask = torch.zeros(len(paths), max(path[-1] for path in paths) + 1, dtype=torch.bool)
    for row, path in enumerate(paths):
        mask[row, list(path)] = True
    positions = [length + len(path) - 1 for path in paths]
    slots = [length + path[-1] for path in paths]
    return model(
        torch.tensor(tokens), torch.tensor(positions), torch.tensor(slots),
        torch.tensor([length]), mask, cache,
    )  # fmt: skip


@dataclass
class HashGraphs:
    """The Graphs protocol over a HashModel."""

    model: HashModel
    row_counts: tuple[int, ...]
    num_slots: int
    max_model_len: int
    prefill_buckets: tuple[int, ...] = (4, 16)

    def new_cache(self) -> Any:
        return self.model.new_cache(self.num_slots)

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        paths = [tree.path(row) for row in range(tree.num_nodes)]
        ids, *rest = run(self.model, cache, tree.tokens, paths, length)
        return PassOutput(ids.tolist(), *rest)

    def prefill(self, cache: Any, tokens: Sequence[int], length: int, _: Any = ()) -> PassOutput:
        paths = [range(end) for end in range(1, len(tokens) + 1)]
        ids, *rest = run(self.model, cache, tokens, paths, length)
        return PassOutput(ids.tolist()[-1:], *(part[-1:] for part in rest))

    def commit(self, cache: Any, length: int, path: Sequence[int]) -> None:
        self.move(cache, [length + row for row in path], range(length + 1, length + 1 + len(path)))

    def move(self, cache: Any, sources: Sequence[int], targets: Sequence[int]) -> None:
        cache[:, :, list(targets)] = cache[:, :, list(sources)]


@dataclass
class HashDraftGraphs(HashGraphs):
    """The DraftGraphs protocol; `top_shares` as of an operator library."""

    widths: tuple[int, ...] = (1, 8)
    max_expanded: int = 64
    feature_size: int = 0
    top_shares: Callable[..., Any] | None = None

    @property
    def vocab_size(self) -> int:
        return self.model.vocab

    def draft(
        self,
        cache: Any,
        tokens: Sequence[int],
        paths: Sequence[Sequence[int]],
        length: int,
        features: Iterable[Tensor] = (),
    ) -> DraftOutput:
        _, logits, hidden, _ = run(self.model, cache, tokens, paths, length)
        return DraftOutput(logits, hidden)
