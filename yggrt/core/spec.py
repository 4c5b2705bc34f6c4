"""Tree specs as one line of text: the same in a recipe, on a command line, in JSON and in
reports.

What the text of a policy says the policy itself knows; it is found by its name among the entry
points of the group `yggrt.policies`, where those of this package and of others stand alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from yggrt.core import plugins
from yggrt.core.errors import RequestError
from yggrt.core.plans import format_plan, parse_plan
from yggrt.core.schema import Plan, TreeSpec

GROUP = "yggrt.policies"
MAX_SIZE = 1024
_MAX_SHOWN = 60

# Reads one value; raises ValueError that says what is wanted.
Convert: TypeAlias = Callable[[str], Any]


class Form(Protocol):
    """How specs of a policy are written. keys: in their order, each with what reads its value.
    example: a spec."""

    @property
    def keys(self) -> Mapping[str, Convert]: ...

    @property
    def example(self) -> str: ...

    def read(self, values: Values) -> TreeSpec:
        """The spec of converted values; raises ValueError that says what is wrong."""
        ...

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        """What `read` makes the spec of."""
        ...

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        """As `draft_steps`."""
        ...


class Values(dict[str, Any]):
    """Converted values by key; asking for one that was not given raises ValueError."""

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"{key} is missing")


def size(least: int = 1) -> Convert:
    """A whole number from `least` to MAX_SIZE."""

    def convert(text: str) -> int:
        whole = text.isascii() and text.isdigit()
        if not whole or not least <= int(text[:9]) <= MAX_SIZE:
            raise ValueError(f"wanted a whole number in {least}..{MAX_SIZE}")
        return int(text)

    return convert


def sizes(text: str) -> tuple[int, ...]:
    """Whole numbers with slashes between them, as in 1/1/3."""
    return tuple(size()(part) for part in text.split("/"))


def share(text: str) -> float:
    """A number above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise ValueError("wanted a number between 0 and 1")
    return value


def choice(*options: str) -> Convert:
    """One of some words."""

    def convert(text: str) -> str:
        if text not in options:
            raise ValueError(f"wanted {' or '.join(options)}")
        return text

    return convert


def policy_names() -> tuple[str, ...]:
    """All tree policies that are installed."""
    return plugins.names(GROUP)


def find_policy(name: str) -> Any:
    """The policy of this name, a `yggrt.policies.Policy`; RequestError if there is none."""
    return plugins.load(GROUP, name)


def examples() -> tuple[str, ...]:
    """A spec of every policy that loads."""
    found = []
    for name in policy_names():
        with suppress(RequestError):
            found.append(find_policy(name).example)
    return tuple(found)


def parse_tree_spec(text: str) -> TreeSpec:
    """Reads `policy:key=value,...`, behind a semicolon the axes of its plan that are not at their
    defaults; raises RequestError that says what exists.

    Which keys a policy has and what they are where they are not given: docs/policies.md.
    """
    shape, semicolon, plan = text.partition(";")
    if semicolon:
        return msgspec.structs.replace(parse_tree_spec(shape), plan=parse_plan(plan))
    name, _, rest = text.strip().partition(":")
    if name not in policy_names():
        known = ", ".join(policy_names()) or "none: install the package again"
        raise RequestError(
            f"tree spec {_shown(text)!r}: no tree policy {name!r}; there are {known}",
            "examples: " + "  ".join(examples()),
        )
    policy: Form = find_policy(name)
    values = Values()
    try:
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if key not in policy.keys:
                known = ", ".join(policy.keys) or "none"
                raise ValueError(f"{name} has no key {key!r}; its keys are {known}")
            if not equals or key in values:
                raise ValueError(f"{key!r} wants one value, as in {key}=...")
            try:
                values[key] = policy.keys[key](value)
            except ValueError as error:
                raise ValueError(f"{key} is {_shown(value)!r}, {error}") from None
        spec = msgspec.structs.replace(policy.read(values), policy=name)
        if spec.verify > MAX_SIZE:
            raise ValueError(f"{spec.verify} rows, at most {MAX_SIZE}")
    except ValueError as error:
        raise RequestError(
            f"tree spec {_shown(text)!r}: {error}", f"as in {policy.example}"
        ) from error
    return spec


def format_tree_spec(spec: TreeSpec) -> str:
    """The line that `parse_tree_spec` reads back as `spec`."""
    written = find_policy(spec.policy).write(spec)
    values = ",".join(f"{key}={value}" for key, value in written.items())
    plan = f";{format_plan(spec.plan)}" if spec.plan != Plan() else ""
    return (f"{spec.policy}:{values}" if values else spec.policy) + plan


def shape_of(text: str) -> str:
    """A tree spec without its plan, but for what the plan says of pruning: trees that verify the
    same rows."""
    spec = parse_tree_spec(text)
    return format_tree_spec(msgspec.structs.replace(spec, plan=Plan(prune=spec.plan.prune)))


def draft_steps(spec: TreeSpec) -> tuple[int, ...]:
    """Nodes that each step of drafting such a tree runs, at most: the root or the roots of the
    plan first, then those whose children a growth step asks for, last the plan's tail."""
    steps: tuple[int, ...] = find_policy(spec.policy).steps(spec)
    if not steps:
        return ()
    plan = spec.plan
    roots = spec.verify if plan.head_rows == "all" else int(plan.head_rows)
    tail = (max(spec.width, steps[-1]),) if plan.tail == "ahead" else ()
    return (roots, *steps[1:], *tail)


def _shown(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
