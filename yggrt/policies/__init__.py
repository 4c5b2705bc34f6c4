"""Tree policies: choose which nodes to draft. They ask a drafter and never touch a model.

Each is a pure function of the root token, the spec, what the drafter answers and the least path
probability that a node may have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.policies import egt, lookahead, plain, sequence, static

Policy: TypeAlias = Callable[[int, TreeSpec, Drafter, float], TokenTree]


def policy_for(spec: TreeSpec) -> Policy:
    """The function that grows trees of this spec."""
    policies: dict[str, Policy] = {
        "plain": plain.grow,
        "egt": egt.grow,
        "sequence": sequence.grow,
        "static": static.grow,
        "lookahead": lookahead.grow,
    }
    return policies[spec.policy]
