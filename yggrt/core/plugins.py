"""What this package and others register under a group of entry points, found by name."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from yggrt.core.errors import RequestError


def names(group: str) -> tuple[str, ...]:
    """What is registered, in alphabetical order."""
    return tuple(sorted(_entries(group)))


@cache
def load(group: str, name: str) -> Any:
    """What `find` finds, called: one instance for all."""
    return find(group, name)()


def find(group: str, name: str) -> Any:
    """The class or function that is registered so. Raises RequestError for one that is not there,
    that two packages register or that cannot be imported."""
    what = group.rpartition(".")[2]
    found = _entries(group).get(name, ())
    if not found:
        known = ", ".join(names(group)) or "none: install the package again"
        raise RequestError(
            f"none of the {what} is called {name!r}; there are {known}",
            f"packages register others as entry points of {group}",
        )
    owners = sorted({one.dist.name if one.dist else "?" for one in found})
    if len(found) > 1:
        raise RequestError(
            f"{name!r} of the {what} is registered {len(found)} times, by {', '.join(owners)}",
            "remove one of these packages",
        )
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise RequestError(
            f"{name!r} of the {what} does not load: {error}",
            f"install the package {owners[0]} again, or remove it",
        ) from error


@cache
def _entries(group: str) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for one in entry_points(group=group):
        found.setdefault(one.name, []).append(one)
    return found
