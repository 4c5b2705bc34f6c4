"""Static trees: a fixed list of parents, filled with the drafter's guesses in rank order.

`static` spells the parents out. SpecInfer's expansions say them in short; Sequoia's and Medusa's
trees are made of the acceptance that was measured on a bundle's recordings, once, before decoding
begins. All grow alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import ClassVar

import msgspec

from yggrt.core.schema import TreeSpec
from yggrt.core.spec import MAX_SIZE, Values, size, sizes
from yggrt.core.static_trees import Parents, depths, specinfer_tree
from yggrt.core.tree import TokenTree
from yggrt.drafters import Candidate, Drafter
from yggrt.policies import Keys, Policy, Room

# Of Miao et al. (arXiv 2305.09781) the first; the others are of its kind, small to large.
EXPANSIONS = (
    (1, 1, 3, 1, 1, 1, 1, 1), (2, 1), (3, 1), (2, 2), (2, 1, 1), (3, 1, 1), (2, 2, 1), (4, 2, 1),
    (2, 1, 1, 1), (3, 2, 1, 1), (2, 2, 1, 1), (2, 2, 2, 1), (4, 2, 2, 1), (3, 1, 1, 1, 1),
    (2, 2, 1, 1, 1, 1), (4, 2, 1, 1, 1, 1), (8, 2, 1, 1),
)  # fmt: skip


def with_shape(spec: TreeSpec, parents: Parents) -> TreeSpec:
    """The spec with these parents, all of which are verified."""
    return msgspec.structs.replace(
        spec, parents=parents, depth=max(depths(parents)), verify=len(parents) + 1
    )


class FixedShape(Policy):
    """What all policies of fixed parents share."""

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        return inner_nodes(spec.parents)

    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        """The shape `spec.parents`, without the nodes that the drafter has no guess for or whose
        path probability is below `min_score`, and their descendants."""
        assert spec.parents, "a shape that is measured is resolved before it is grown"
        num_children = Counter(spec.parents)
        paths: dict[int, tuple[int, ...]] = {0: ()}  # of the spec's nodes that got a token
        chosen: dict[int, Candidate] = {0: (root_token, 1)}
        level = [0]
        while level:
            asked = [node for node in level if node in num_children]
            level = []
            most = max((num_children[node] for node in asked), default=0)
            found = drafter.candidates([paths[node] for node in asked], most) if asked else []
            for parent, guesses in zip(asked, found, strict=True):
                nodes = [node for node, p in enumerate(spec.parents, start=1) if p == parent]
                for node, (token, probability) in zip(nodes, guesses, strict=False):
                    score = chosen[parent][1] * probability
                    if score < min_score:
                        break
                    paths[node] = (*paths[parent], token)
                    chosen[node] = (token, score)
                    level.append(node)
        nodes = sorted(chosen)
        row_of = {node: row for row, node in enumerate(nodes)}
        return TokenTree(
            tuple(chosen[node][0] for node in nodes),
            (-1, *(row_of[spec.parents[node - 1]] for node in nodes[1:])),
            tuple(chosen[node][1] for node in nodes),
        )


def inner_nodes(parents: Parents) -> tuple[int, ...]:
    """How many nodes of each depth have children, the root first."""
    depth = depths(parents)
    inner = Counter(depth[node] for node in set(parents))
    return tuple(inner[level] for level in range(max(depth)))


def parents_of(text: str) -> Parents:
    """Reads ROW/ROW/...; raises ValueError where a row is not above its node."""
    try:
        parents = tuple(int(part) for part in text.split("/"))
    except ValueError:
        raise ValueError("wanted ROW/ROW/..., one row index per node") from None
    if len(parents) >= MAX_SIZE:
        raise ValueError(f"that is {len(parents)} nodes, at most {MAX_SIZE - 1}")
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}, wanted a row in 0..{node - 1}")
    return parents


class Static(FixedShape):
    """The parents are given."""

    keys: ClassVar[Keys] = {"parents": parents_of, "verify": size(2)}
    example = "static:parents=0/0/1/1/2/2"

    def read(self, values: Values) -> TreeSpec:
        spec = with_shape(TreeSpec(policy="static"), values["parents"])
        return msgspec.structs.replace(spec, verify=values.get("verify", spec.verify))

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        verify = {} if spec.verify == len(spec.parents) + 1 else {"verify": spec.verify}
        return {"parents": "/".join(map(str, spec.parents)), **verify}


class SpecInfer(FixedShape):
    """Every leaf of step i gets expansion[i] children (Miao et al., arXiv 2305.09781)."""

    keys: ClassVar[Keys] = {"expansion": sizes}
    example = "specinfer:expansion=1/1/3/1"

    def read(self, values: Values) -> TreeSpec:
        return _expanded(values["expansion"])

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return dict(spec.options)

    def settings(self, room: Room) -> list[TreeSpec]:
        return [_expanded(one) for one in EXPANSIONS]


def _expanded(expansion: tuple[int, ...]) -> TreeSpec:
    num_nodes = sum(prod(expansion[:end]) for end in range(1, len(expansion) + 1))
    if num_nodes >= MAX_SIZE:
        raise ValueError(f"{num_nodes} nodes, at most {MAX_SIZE - 1}")
    options = (("expansion", "/".join(map(str, expansion))),)
    return with_shape(TreeSpec(policy="specinfer", options=options), specinfer_tree(expansion))
