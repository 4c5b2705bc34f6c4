"""Acceptance: which drafted tokens the verifier emits, by keyed sample-match.

At every visited row the verifier's own next token is fixed by history (and, when sampling, by a
key) before any tree exists; the walk goes down if a child carries that token. So the tokens equal
plain decoding's whatever the tree is:
the tree only decides how many of them come out of one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from yggrt.core.passes import PassOutput
from yggrt.core.tree import TokenTree


class Choose(Protocol):
    """The token that the verifier emits after `row`; `position` is that token's place in prompt
    and output."""

    def __call__(self, row: int, position: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """Rows of the accepted nodes, the root not included, and the tokens emitted: theirs and one
    bonus token.

    `num_tests` counts the visited rows that had children: places where a draft could have been
    accepted.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    num_tests: int


def accept(tree: TokenTree, choose: Choose, first_position: int = 0) -> Accepted:
    """Walks from the root along the verifier's choices; `first_position` is the place of the first
    emitted token."""
    by_token: list[dict[int, int]] = [{} for _ in range(tree.num_nodes)]
    for row in range(1, tree.num_nodes):
        by_token[tree.parents[row]].setdefault(tree.tokens[row], row)
    path: list[int] = []
    tokens: list[int] = []
    row = num_tests = 0
    while True:
        token = choose(row, first_position + len(path))
        tokens.append(token)
        num_tests += bool(by_token[row])
        child = by_token[row].get(token)
        if child is None:
            return Accepted(tuple(path), tuple(tokens), num_tests)
        path.append(child)
        row = child


def greedy(out: PassOutput) -> Choose:
    """The most likely token at every row."""
    return lambda row, position, /: out.ids[row]
