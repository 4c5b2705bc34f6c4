"""Which tree's depth is chosen, and how deep it is traced."""

from __future__ import annotations

import msgspec

from yggc.errors import RecipeError
from yggrt.core.schema import LookaheadDrafter, Manifest, MedusaDrafter, Plan, TreeSpec
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec


def base_tree(manifest: Manifest, tree: str | None) -> TreeSpec:
    """The tree whose depth is chosen, under the default plan: it is traced and timed so.
    RecipeError for one that has no depth to choose."""
    spec = parse_tree_spec(tree or manifest.schedule.tree)
    spec = msgspec.structs.replace(spec, plan=Plan())
    name = "--tree" if tree else "the bundle's tree"
    if isinstance(manifest.schedule.drafter, LookaheadDrafter) or spec.policy == "lookahead":
        raise RecipeError(
            f"{name} is {format_tree_spec(spec)} and its drafter lookahead, which fills all its "
            "rows in every pass, wanted a drafter that grows a tree level by level",
            "build with another --drafter",
        )
    if isinstance(manifest.schedule.drafter, MedusaDrafter):
        raise RecipeError(
            "Medusa heads draft in this bundle, at no cost that depends on the depth, wanted a "
            "drafter that runs for every level",
            "nothing is lost: what a pass verifies is chosen in every pass anyway",
        )
    if spec.policy not in ("egt", "sequence"):
        raise RecipeError(
            f"{name} is {format_tree_spec(spec)}, which has no depth to choose, wanted an "
            "equal-growth tree or a chain",
            "give one, as in --tree egt:width=4,depth=4 or --tree sequence:depth=4",
        )
    return spec


def full_depth(spec: TreeSpec, max_depth: int, max_rows: int, max_expanded: int) -> TreeSpec:
    """The tree at the most levels that hazards, verify rows and draft graphs hold; RecipeError
    where that leaves nothing to choose."""
    for depth in range(max_depth, 1, -1):
        full = msgspec.structs.replace(
            spec, depth=depth, verify=min(max_rows, 1 + spec.width * depth)
        )
        if sum(draft_steps(full)) <= max_expanded and full.verify > depth:
            return full
    raise RecipeError(
        f"{format_tree_spec(spec)}: at most one level fits {max_depth} hazards, {max_rows} rows "
        f"and {max_expanded} drafted nodes, wanted two or more to choose from",
        "build with a larger bucket or larger --drafter-widths",
    )
