"""What the engine counts of its passes, and tells of each to whom it may concern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from yggrt.core.accept import Accepted
from yggrt.core.tree import TokenTree, followed

Stage = Literal["prefill", "draft", "verify", "accept", "commit"]
STAGES: tuple[Stage, ...] = get_args(Stage)
# Width of the bins of expected tokens that passes are counted in.
PROMISED_STEP = 0.5


class Pass(NamedTuple):
    """Why a pass emitted what it did: the tree that was drafted, the rows of it that were verified
    (again as a tree; both are the root alone where nothing was drafted), what was accepted of
    those, and the gate before the pass.
    """

    drafted: TokenTree
    verified: TokenTree
    accepted: Accepted
    gate_open: bool
    trust: float


class Promised(NamedTuple):
    """Passes with a tree, added up: what the path probabilities of their verified nodes promised
    to be accepted, and what was."""

    num_passes: int = 0
    expected: float = 0.0
    accepted: int = 0


@dataclass(slots=True)
class EngineStats:
    """Counts since the last start. The token that prefill gives belongs to no pass and is not
    counted.

    num_gated: passes in which the gate kept the drafter out. num_beyond: passes without a draft
    because the sequence had outgrown the drafter's context. num_drafted: passes with a tree grown
    for them, whether it was verified or not. num_tests: visited rows that had a drafted child;
    tests_histogram: passes by how many they had, one at each depth from 1 on. depth_histogram:
    passes with a tree by the depth that was chosen for it. accepted_first,
    accepted_second: accepted tokens that the tree of the drafter and that of the second had, some
    of them both. ranks_histogram: accepted nodes by their place among the children of their
    parent, 0 the first; children_histogram: visited rows by how many children they had, at least
    one. promised: passes with a tree by their expected tokens in steps of PROMISED_STEP, before
    the gate's trust.
    """

    num_passes: int = 0
    num_plain_passes: int = 0
    num_gated: int = 0
    num_beyond: int = 0
    num_drafted: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    num_tests: int = 0
    num_reused: int = 0
    accepted_first: int = 0
    accepted_second: int = 0
    accepted_histogram: Counter[int] = field(default_factory=Counter)
    tests_histogram: Counter[int] = field(default_factory=Counter)
    rows_histogram: Counter[int] = field(default_factory=Counter)
    ranks_histogram: Counter[int] = field(default_factory=Counter)
    children_histogram: Counter[int] = field(default_factory=Counter)
    promised: dict[int, Promised] = field(default_factory=dict)
    depth_histogram: Counter[int] = field(default_factory=Counter)
    stage_s: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @property
    def accepted(self) -> int:
        """Drafted tokens accepted."""
        return sum(num * count for num, count in self.accepted_histogram.items())

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per verify pass, the bonus token included; 0 before the first pass."""
        return self.num_tokens / self.num_passes if self.num_passes else 0.0

    @property
    def alpha(self) -> float:
        """Accepts over tests; 0 before the first test."""
        return self.accepted / self.num_tests if self.num_tests else 0.0

    def record(
        self,
        tree: TokenTree,
        accepted: Accepted,
        expected: float,
        drafted: bool,
        gated: bool,
        grown: Sequence[TokenTree],
    ) -> None:
        """Counts a pass that verified `tree`, of whose nodes `expected` were to be accepted by
        their path probabilities; `grown`: the trees of two drafters that it was
        joined of, none where one drafts."""
        num_accepted = len(accepted.path)
        self.num_passes += 1
        self.num_plain_passes += tree.num_nodes == 1
        self.num_gated += gated
        self.num_drafted += drafted
        self.num_rows += tree.num_nodes
        self.num_tokens += len(accepted.tokens)
        self.num_tests += accepted.num_tests
        self.accepted_histogram[num_accepted] += 1
        self.tests_histogram[accepted.num_tests] += 1
        self.rows_histogram[tree.num_nodes] += 1
        if grown:
            first, second = (followed(one, accepted.tokens[:num_accepted]) for one in grown)
            self.accepted_first += first
            self.accepted_second += second
        if tree.num_nodes > 1:
            self._record_tree(tree.parents, accepted.path, expected)

    def _record_tree(self, parents: Sequence[int], path: Sequence[int], expected: float) -> None:
        for row in path:
            self.ranks_histogram[parents[:row].count(parents[row])] += 1
        for row in (0, *path):
            if num_children := parents.count(row):
                self.children_histogram[num_children] += 1
        step = int(expected / PROMISED_STEP)
        before = self.promised.get(step, Promised())
        self.promised[step] = Promised(
            before.num_passes + 1, before.expected + expected, before.accepted + len(path)
        )
