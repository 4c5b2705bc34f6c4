"""Tree specs as one line of text: the same in a recipe, on a command line, in JSON and in
reports."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from yggrt.core.errors import RequestError
from yggrt.core.plans import format_plan, parse_plan
from yggrt.core.schema import Plan, TreeSpec

MAX_SIZE = 1024
EXAMPLES = (
    "plain",
    "egt:width=4,depth=4,children=8,verify=16,frontier=global",
    "sequence:depth=8",
    "static:parents=0/0/1/1/2/2",
    "lookahead:window=8,ngram=4,guesses=8",
    "sequence:depth=4;tail=ahead,commit=deferred",
)
FRONTIERS: dict[str, Literal["global", "level"]] = {"global": "global", "level": "level"}
KEYS = {
    "plain": (),
    "egt": ("width", "depth", "children", "verify", "frontier"),
    "sequence": ("depth", "verify"),
    "static": ("parents", "verify"),
    "lookahead": ("window", "ngram", "guesses"),
}


def parse_tree_spec(text: str) -> TreeSpec:
    """Reads `policy:key=value,...`, behind a semicolon the axes of its plan that are not at their
    defaults; raises RequestError that says what exists.

    egt needs width and depth (children 2 * width, verify width * depth + 1, frontier global unless
    given); sequence needs depth and static parents, and both verify all their nodes unless told
    otherwise. lookahead needs window, ngram and guesses and verifies 1 + (ngram - 1) * (window +
    guesses) rows.
    """
    shape, semicolon, plan = text.partition(";")
    if semicolon:
        return msgspec.structs.replace(parse_tree_spec(shape), plan=parse_plan(plan))
    policy, _, rest = text.strip().partition(":")
    if policy not in KEYS:
        raise _bad(text, f"no tree policy {policy!r}; there are {', '.join(KEYS)}")
    values: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if key not in KEYS[policy]:
            known = ", ".join(KEYS[policy]) or "none"
            raise _bad(text, f"{policy} has no key {key!r}; its keys are {known}")
        if not equals or key in values:
            raise _bad(text, f"{key!r} wants one value, as in {key}=...")
        if key not in ("frontier", "parents"):
            _check_size(text, key, value)
        values[key] = value
    if policy == "plain":
        return TreeSpec(policy="plain")
    if policy == "static":
        return _static(text, values)
    if policy == "lookahead":
        return _lookahead(text, values)
    depth = _size(text, values, "depth", None)
    if policy == "sequence":
        return TreeSpec(
            policy="sequence",
            depth=depth,
            verify=_size(text, values, "verify", depth + 1, least=2),
        )
    width = _size(text, values, "width", None)
    frontier = FRONTIERS.get(values.get("frontier", "global"))
    if frontier is None:
        raise _bad(text, f"frontier is {values['frontier']!r}, wanted {' or '.join(FRONTIERS)}")
    return TreeSpec(
        policy="egt",
        width=width,
        depth=depth,
        children=_size(text, values, "children", 2 * width),
        verify=_size(text, values, "verify", width * depth + 1, least=2),
        frontier=frontier,
    )


def format_tree_spec(spec: TreeSpec) -> str:
    """The line that `parse_tree_spec` reads back as `spec`."""
    if spec.plan != Plan():
        shape = format_tree_spec(msgspec.structs.replace(spec, plan=Plan()))
        return f"{shape};{format_plan(spec.plan)}"
    if spec.policy == "plain":
        return "plain"
    if spec.policy == "egt":
        return (
            f"egt:width={spec.width},depth={spec.depth},children={spec.children},"
            f"verify={spec.verify},frontier={spec.frontier}"
        )
    if spec.policy == "lookahead":
        return f"lookahead:window={spec.width},ngram={spec.depth + 1},guesses={spec.children}"
    if spec.policy == "sequence":
        head, full = f"sequence:depth={spec.depth}", spec.depth + 1
    else:
        head, full = (
            f"static:parents={'/'.join(map(str, spec.parents))}",
            len(spec.parents) + 1,
        )
    return head if spec.verify == full else f"{head},verify={spec.verify}"


def draft_steps(spec: TreeSpec) -> tuple[int, ...]:
    """Nodes that each step of drafting such a tree runs, at most: the root or the roots of the
    plan first, then those whose children a growth step asks for, last the plan's tail."""
    steps = _growth_steps(spec)
    if not steps:
        return ()
    plan = spec.plan
    roots = spec.verify if plan.head_rows == "all" else int(plan.head_rows)
    tail = (max(spec.width, steps[-1]),) if plan.tail == "ahead" else ()
    return (roots, *steps[1:], *tail)


def _growth_steps(spec: TreeSpec) -> tuple[int, ...]:
    if spec.policy in ("plain", "lookahead"):
        return ()
    if spec.policy == "sequence":
        return (1,) * spec.depth
    if spec.policy == "egt":
        return (1, *(spec.width,) * (spec.depth - 1))
    depths = [0]
    for parent in spec.parents:
        depths.append(depths[parent] + 1)
    inner = Counter(depths[node] for node in set(spec.parents))
    return tuple(inner[depth] for depth in range(spec.depth))


def _lookahead(text: str, values: dict[str, str]) -> TreeSpec:
    width = _size(text, values, "window", None)
    levels = _size(text, values, "ngram", None, least=2) - 1
    guesses = _size(text, values, "guesses", None)
    rows = 1 + levels * (width + guesses)
    if rows > MAX_SIZE:
        raise _bad(text, f"{rows} rows, at most {MAX_SIZE}")
    return TreeSpec(policy="lookahead", width=width, depth=levels, children=guesses, verify=rows)


def _static(text: str, values: dict[str, str]) -> TreeSpec:
    try:
        parents = tuple(int(part) for part in values["parents"].split("/"))
    except (KeyError, ValueError):
        raise _bad(text, "static wants parents=ROW/ROW/..., one row index per node") from None
    if len(parents) >= MAX_SIZE:
        raise _bad(text, f"{len(parents)} nodes, at most {MAX_SIZE - 1}")
    depths = [0]
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            raise _bad(text, f"node {node} has parent {parent}, wanted a row in 0..{node - 1}")
        depths.append(depths[parent] + 1)
    verify = _size(text, values, "verify", len(parents) + 1, least=2)
    return TreeSpec(policy="static", depth=max(depths), verify=verify, parents=parents)


def _size(
    text: str, values: dict[str, str], key: str, default: int | None, *, least: int = 1
) -> int:
    found = values.get(key)
    if found is None:
        if default is None:
            raise _bad(text, f"{key} is missing")
        return default
    if int(found) < least:
        raise _bad(text, f"{key} is {found!r}, wanted a whole number in {least}..{MAX_SIZE}")
    return int(found)


def _check_size(text: str, key: str, value: str) -> None:
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MAX_SIZE):
        raise _bad(text, f"{key} is {value!r}, wanted a whole number in 1..{MAX_SIZE}")


def _bad(text: str, problem: str) -> RequestError:
    return RequestError(f"tree spec {text!r}: {problem}", "examples: " + "  ".join(EXAMPLES))
