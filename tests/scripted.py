"""Graphs without a model: every row's next token is a fixed function of the tokens it can see.

A KV row is a digest of the row's token, position and whole visible context, as a real one is. A
row computed from what lies in the slots (not from what the engine believes) therefore shows a
wrong slot, length, mask or commit as a wrong token, then and ever after.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from yggrt.core.passes import PassOutput
from yggrt.core.tree import TokenTree
from yggrt.drafters import UNLIMITED, Candidate, Drafter, Noise

JUNK = -1


@dataclass
class ScriptedCache:
    """Slot -> digest of the KV row in it."""

    slots: list[int]


def digest(visible: Sequence[int], token: int, position: int) -> int:
    """The KV row of `token` at `position` over the rows it sees."""
    return hash((token, position, *visible)) & 0x7FFFFFFFFFFF


@dataclass
class ScriptedGraphs:
    """The Graphs protocol over `next_token(digest of a row) -> token`."""

    row_counts: tuple[int, ...] = (1, 4, 8, 16)
    prefill_buckets: tuple[int, ...] = (2, 4)
    max_model_len: int = 64
    vocab_size: int = 6
    calls: list[tuple[str, int]] = field(default_factory=list)

    def new_cache(self) -> ScriptedCache:
        return ScriptedCache([JUNK] * (self.max_model_len + self.row_counts[-1]))

    def next_token(self, row: int) -> int:
        return random.Random(row).choices(
            range(self.vocab_size), weights=range(self.vocab_size, 0, -1)
        )[0]

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        assert tree.num_nodes <= self.row_counts[-1]
        bucket = min(count for count in self.row_counts if count >= tree.num_nodes)
        self.calls.append(("verify", bucket))
        prefix = cache.slots[:length]
        rows: list[int] = []
        for row in range(tree.num_nodes):
            ancestors = tree.path(row)[:-1]
            position = length + len(ancestors)
            assert position < self.max_model_len, f"position {position} is beyond the context"
            rows.append(digest(prefix + [rows[a] for a in ancestors], tree.tokens[row], position))
        padding = [JUNK] * (bucket - tree.num_nodes)
        cache.slots[length : length + bucket] = rows + padding
        return self._output(rows)

    def prefill(self, cache: Any, tokens: Sequence[int], length: int) -> PassOutput:
        assert 1 <= len(tokens) <= self.prefill_buckets[-1]
        self.calls.append(("prefill", len(tokens)))
        for position, token in enumerate(tokens, start=length):
            cache.slots[position] = digest(cache.slots[:position], token, position)
        return self._output([cache.slots[length + len(tokens) - 1]])

    def commit(self, cache: Any, length: int, path: Sequence[int]) -> None:
        self.calls.append(("commit", len(path)))
        assert all(a < b for a, b in zip([0, *path], path, strict=False))
        loaded = [cache.slots[length + row] for row in path]
        cache.slots[length + 1 : length + 1 + len(path)] = loaded

    def plain(self, ids: Sequence[int], num_tokens: int) -> list[int]:
        """What plain decoding emits after `ids`, from the definition alone; JUNK-free by
        construction."""
        rows: list[int] = []
        tokens = list(ids)
        for position in range(len(ids) + num_tokens - 1):
            rows.append(digest(rows, tokens[position], position))
            if position >= len(ids) - 1:
                tokens.append(self.next_token(rows[-1]))
        return tokens[len(ids) :]

    def _output(self, rows: list[int]) -> PassOutput:
        nothing: Any = None
        return PassOutput([self.next_token(row) for row in rows], nothing, nothing, nothing)


@dataclass
class LogitGraphs(ScriptedGraphs):
    """ScriptedGraphs with logits: random ones, seeded by the digest of the row."""

    spread: float = 2.0

    def logits(self, row: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(row)
        return torch.randn(self.vocab_size, generator=generator) * self.spread

    def next_token(self, row: int) -> int:
        return int(self.logits(row).argmax())

    def _output(self, rows: list[int]) -> PassOutput:
        nothing: Any = None
        logits = torch.stack([self.logits(row) for row in rows])
        return PassOutput(logits.argmax(1).tolist(), logits, nothing, nothing)


@dataclass
class RandomDrafter(Drafter):
    """Random distinct guesses: full trees, some of them right. Checks that it is told the true
    context."""

    vocab_size: int = 6
    seed: int = 0
    edge: Callable[[int], float] = lambda num: 0.9 / num
    context: list[int] = field(default_factory=list)

    max_expanded = max_model_len = UNLIMITED

    def start(self, ids: Sequence[int]) -> None:
        self.context = list(ids)

    def couple(self, noise: Noise | None) -> None:
        return

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        return [self.children(path, num) for path in paths]

    def children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        rng = random.Random(hash((self.seed, len(self.context), *path_tokens)))
        tokens = rng.sample(range(self.vocab_size), min(num, self.vocab_size))
        return [(token, self.edge(len(tokens))) for token in tokens]

    def commit(self, tokens: Sequence[int]) -> None:
        self.context.extend(tokens)

    def rewind(self, num_tokens: int) -> None:
        assert num_tokens <= len(self.context)
        del self.context[num_tokens:]


@dataclass
class OracleDrafter(RandomDrafter):
    """The right token with random siblings, at every depth; the right one comes at a random
    rank."""

    graphs: ScriptedGraphs = field(default_factory=ScriptedGraphs)

    def children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        guesses = super().children(path_tokens, num)
        right = self.graphs.plain([*self.context, *path_tokens], 1)[0]
        if all(token != right for token, _ in guesses):
            place = random.Random(len(self.context) + len(path_tokens)).randrange(len(guesses))
            guesses[place] = (right, guesses[place][1])
        return guesses


@dataclass
class UselessDrafter(RandomDrafter):
    """Sure of tokens that the verifier never emits."""

    def children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        return [(self.vocab_size + i, 0.95 if i == 0 else 0.05 / num) for i in range(num)]
