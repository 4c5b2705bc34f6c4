"""Drafters and prefixes for exactness tests: full trees around the recorded output, so that rows
are accepted at every depth.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from yggrt.core.passes import prefill_chunks
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters import UNLIMITED, Candidate, Drafter, Noise
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.session import Session


class RecordedDrafter(Drafter):
    """The recorded next token at a random rank among random siblings, at every node and depth.

    Off the record, siblings alone: such nodes can be accepted only if the verifier happens to say
    them.
    """

    max_expanded = max_model_len = UNLIMITED

    def __init__(self, prompt: Sequence[int], recorded: Sequence[int], vocab_size: int) -> None:
        self._record = [*prompt, *recorded]
        self._vocab_size = vocab_size
        self._context: list[int] = []

    def start(self, ids: Sequence[int]) -> None:
        self._context = list(ids)

    def couple(self, noise: Noise | None) -> None:
        return

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        return [self._children(path, num) for path in paths]

    def _children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        history = [*self._context, *path_tokens]
        rng = random.Random(len(history))
        tokens = rng.sample(range(self._vocab_size), num)
        known = len(history) < len(self._record) and history == self._record[: len(history)]
        if known and self._record[len(history)] not in tokens:
            tokens[rng.randrange(num)] = self._record[len(history)]
        # The recorded token is the likelier one, else growth would seldom follow it down.
        likely = self._record[len(history)] if known else None
        shares = [0.6 if token == likely else 0.3 / num for token in tokens]
        return sorted(zip(tokens, shares, strict=True), key=lambda pair: -pair[1])

    def commit(self, tokens: Sequence[int]) -> None:
        self._context += tokens

    def rewind(self, num_tokens: int) -> None:
        del self._context[num_tokens:]


def prompts(num: int, lengths: tuple[int, ...], seed: int = 5) -> list[list[int]]:
    """Random ids of the tiny model, of these lengths in turn."""
    rng = random.Random(seed)
    return [[rng.randrange(3, 400) for _ in range(lengths[i % len(lengths)])] for i in range(num)]


def decode(session: Session, prompt: Sequence[int], num: int, **options: Any) -> list[int]:
    """Output whatever the gate and end tokens would say."""
    options = {"gated": False, "ignore_eos": True, **options}
    return session.generate(prompt, max_tokens=num, **options).ids


def fill(graphs: Any, cache: Any, prefix: list[int]) -> None:
    """Runs `prefix` through the prefill graphs into an empty cache."""
    for start, end in prefill_chunks(graphs.prefill_buckets, 0, len(prefix)):
        graphs.prefill(cache, prefix[start:end], start)


def full_tree_ids(session: Session, tree: str, prompt: list[int], plain: list[int]) -> list[int]:
    """Output under trees full of random siblings around `plain`."""
    graphs: Any = session.graphs
    drafter = RecordedDrafter(prompt, plain, graphs.model.vocab_size)
    spec = parse_tree_spec(tree)
    engine = Engine(
        graphs, graphs.new_cache(), drafter, spec, lambda rows, context: 1.0, 0.0, OpenGate()
    )
    ids = [engine.start(prompt)]
    while len(ids) < len(plain):
        ids += engine.step().tokens
    assert engine.stats.accepted > 0 or len(plain) < 3
    return ids[: len(plain)]


def random_tree(rng: random.Random, num_rows: int, vocab_size: int, max_depth: int) -> TokenTree:
    """A tree of random shape and tokens."""
    parents, depths = [-1], [0]
    for row in range(1, num_rows):
        parent = rng.choice([r for r in range(row) if depths[r] < max_depth])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    tokens = tuple(rng.randrange(vocab_size) for _ in parents)
    return TokenTree(tokens, tuple(parents), (1.0,) * num_rows)
