"""Tree policies: choose which nodes to draft. They ask a drafter and never touch a model.

A policy is a class that is registered as an entry point of the group `yggrt.policies` under the
name that its specs begin with, those of this package like those of any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from yggrt.core.errors import RequestError
from yggrt.core.schema import Manifest, RankAcceptance, TreeSpec
from yggrt.core.spec import Convert, Values, find_policy, format_tree_spec, parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters import UNLIMITED, Drafter
from yggrt.latency import LatencyTable

# Context length at which passes are weighed where a shape is chosen for good.
MIDDLING_CONTEXT = 256

# Of a policy's specs, in their order, each with what reads its value.
Keys: TypeAlias = Mapping[str, Convert]
Grow: TypeAlias = Callable[[int, TreeSpec, Drafter, float], TokenTree]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a bundle where a shape is chosen from it. `row_counts`: of its verify
    graphs; `max_expanded`: of its drafter; `latency`, `rest_s`, `draft_step`: as for the engine.
    """

    ranks: RankAcceptance
    row_counts: tuple[int, ...]
    max_expanded: int
    latency: Callable[[int, int], float]
    rest_s: float
    draft_step: Callable[[int, int], float]

    def seconds(self, num_rows: int, steps: Sequence[int]) -> float:
        """Of a pass that verifies `num_rows` rows, at most the largest graph's, and runs `steps`
        nodes through the drafter one after another."""
        rows = min(count for count in self.row_counts if count >= num_rows)
        drafting = sum(self.draft_step(num, MIDDLING_CONTEXT) for num in steps)
        return self.latency(rows, MIDDLING_CONTEXT) + self.rest_s + drafting


@dataclass(frozen=True, slots=True)
class Room:
    """What trees a bundle has room for: `row_counts` of its graphs, `widths` that one pass of the
    drafter runs, levels and nodes that it may be asked for."""

    row_counts: tuple[int, ...]
    widths: tuple[int, ...]
    max_depth: int
    max_expanded: int

    @property
    def max_rows(self) -> int:
        return self.row_counts[-1]


class Policy(ABC):
    """One way to shape trees. Has no state: what it does depends on its arguments alone."""

    keys: ClassVar[Keys] = {}
    example: ClassVar[str]

    @abstractmethod
    def read(self, values: Values) -> TreeSpec:
        """The spec of what a text says, its `depth` and `verify` (most levels and rows of a tree)
        set; raises ValueError that says what is wrong."""

    @abstractmethod
    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        """The values that `read` makes the spec of, in the order of the keys."""

    @abstractmethod
    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        """Nodes whose children each step of growing asks for, at most; the root first."""

    @abstractmethod
    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        """A tree over the root. No node that is expanded may have a path probability below
        `min_score`; the engine verifies the best `spec.verify` rows at most."""

    def shape(self, spec: TreeSpec, measured: Measured) -> TreeSpec:
        """The spec with its shape, where that is taken from measured acceptance."""
        return spec

    def settings(self, room: Room) -> list[TreeSpec]:
        """Specs to choose the best of, none with more rows than the room has; none where there
        is nothing to choose by."""
        return []


def policy_for(spec: TreeSpec) -> Grow:
    """The function that grows trees of this spec."""
    grow: Grow = find_policy(spec.policy).grow
    return grow


def resolve(spec: TreeSpec, measured: Measured) -> TreeSpec:
    """The spec with a fixed shape, if its policy takes that from measured acceptance; any other
    is its own. Raises RequestError if nothing was measured or no such tree exists."""
    policy: Policy = find_policy(spec.policy)
    try:
        return policy.shape(spec, measured)
    except ValueError as error:
        raise RequestError(
            f"tree {format_tree_spec(spec)}: {error}",
            "`yggrt tune` measures acceptance by rank anew, `yggc build` too",
        ) from error


def find_shape(spec: TreeSpec, measured: Measured) -> TreeSpec | None:
    """As `resolve`; None where what was measured gives the spec no shape, as when nothing was ever
    right."""
    try:
        return resolve(spec, measured)
    except RequestError:
        return None


def tree_in(manifest: Manifest, tree: str) -> TreeSpec:
    """A tree spec with the shape that it has in this bundle. Raises what `resolve` raises."""
    latency = LatencyTable.of(manifest.latency, manifest.graphs)
    columns = (
        one.shape[1]
        for graph in manifest.graphs
        if graph.kind == "draft"
        for one in graph.inputs
        if one.name == "mask"
    )
    measured = Measured(
        ranks=manifest.schedule.ranks,
        row_counts=latency.surfaces["verify"].rows,
        max_expanded=max(columns, default=UNLIMITED),
        latency=latency,
        rest_s=manifest.schedule.rest_s,
        draft_step=latency.draft_step,
    )
    return resolve(parse_tree_spec(tree), measured)


def settings_of(name: str, room: Room) -> list[TreeSpec]:
    """Specs of a policy to choose the best of, without those that the room cannot hold and trees
    of which it holds no more than the root."""
    policy: Policy = find_policy(name)
    return [
        spec
        for spec in dict.fromkeys(policy.settings(room))
        if spec.verify <= room.max_rows
        and (spec.verify > 1 or not spec.depth)
        and spec.depth <= room.max_depth
        and sum(policy.steps(spec)) <= room.max_expanded
    ]
