"""Lookahead decoding: the verifier's own guesses at several positions at once become n-grams.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv
2402.02057), section 3. A window of W columns and N - 1 levels rides along in every pass: row
(r, i) stands at position root + 1 + r + i and sees the context, the root, level 0 up to column i
and its own column above it. The most likely tokens behind the last level end W new n-grams, which
go into a pool by their first token, and become the window's new last level (one Jacobi step). In
the same pass the pool's n-grams that begin with the root are verified.

Every row's visible rows are its ancestors, so window and guesses are one token tree, and a window
row that happens to be right may be accepted like any other.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from yggrt.core.tree import TokenTree
from yggrt.drafters import UNLIMITED, Candidate, Drafter

# Of the pool's n-grams with one first token, so many are kept: the last ones.
POOL_SIZE = 32


class LookaheadDrafter(Drafter):
    """The window and the pool of one sequence. Its trees are made by the policy of the same name;
    asked for candidates, it says what the pool's n-grams go on with.
    """

    max_expanded = UNLIMITED
    max_model_len = UNLIMITED

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}
        self._window: list[list[int]] = []
        self._sent: TokenTree | None = None
        self._last_level: list[int] = []

    def start(self, ids: Sequence[int]) -> None:
        self._pool, self._window, self._sent = {}, [], None
        self._ids = list(ids)

    def commit(self, tokens: Sequence[int]) -> None:
        self._ids += tokens

    def rewind(self, num_tokens: int) -> None:
        del self._ids[num_tokens:]

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        return [self._continuations(tuple(path), num) for path in paths]

    def _continuations(self, path: tuple[int, ...], num: int) -> list[Candidate]:
        found: dict[int, None] = {}
        for guess in reversed(self._pool.get(self._ids[-1], {})):
            if guess[: len(path)] == path and len(guess) > len(path):
                found.setdefault(guess[len(path)])
        tokens = list(found)[:num]
        return [(token, 1 / (1 + len(tokens))) for token in tokens]

    def tree(self, width: int, levels: int, guesses: int) -> TokenTree:
        """The next pass: the root, the newest `guesses` n-grams that begin with it, joined where
        they agree, and the window, the tree's last width * levels rows.
        """
        root = self._ids[-1]
        tokens, parents = [root], [-1]
        children: dict[tuple[int, int], int] = {}
        for guess in [*reversed(self._pool.get(root, {}))][:guesses]:
            row = 0
            for token in guess[:levels]:
                if (row, token) not in children:
                    children[row, token] = len(tokens)
                    tokens.append(token)
                    parents.append(row)
                row = children[row, token]
        if len(self._window) != levels or len(self._window[0]) != width:
            # Anything will do to begin with; what was said is likelier than chance.
            draw = random.Random(len(self._ids))
            self._window = [draw.choices(self._ids, k=width) for _ in range(levels)]
        above = [0] * width
        for level, row_tokens in enumerate(self._window):
            for column, token in enumerate(row_tokens):
                before = above[column] if level or not column else above[column - 1]
                parents.append(before)
                above[column] = len(tokens)
                tokens.append(token)
        self._last_level = above
        scores = (1.0, *[0.0] * (len(tokens) - 1))
        self._sent = TokenTree(tuple(tokens), tuple(parents), scores)
        return self._sent

    def learn(self, tree: TokenTree, answers: Sequence[int]) -> None:
        # A pass whose tree was cut short has no window to learn from.
        if tree is not self._sent:
            return
        newest = [answers[row] for row in self._last_level]
        for column, last in enumerate(newest):
            first, *rest = (level[column] for level in self._window)
            kept = self._pool.setdefault(first, {})
            guess = (*rest, last)
            kept.pop(guess, None)
            kept[guess] = None
            if len(kept) > POOL_SIZE:
                del kept[next(iter(kept))]
        self._window = [*self._window[1:], newest]
