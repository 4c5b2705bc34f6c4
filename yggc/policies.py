"""Policies on a command line: their names, and whether a build has graphs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from yggrt.core.errors import RequestError
from yggrt.core.search import WIDTHS
from yggrt.core.spec import policy_names
from yggrt.drafters import UNLIMITED
from yggrt.policies import Room, settings_of

if TYPE_CHECKING:
    from yggc.config import BuildConfig

# Has a drafter and a recording of its own: see `yggc traces`.
NOT_REPLAYED = "lookahead"
# Any shape, and so no setting to try.
NO_SETTINGS = "static"
# Rows of the largest graph of a bundle to compare policies with.
LAB_ROWS = 64


def check_policies(text: str | None) -> tuple[str, ...]:
    """The policies that are named with commas between them, each once; all that have settings to
    try for `all`, none without a text. Raises RequestError for one that is not installed."""
    if text is None:
        return ()
    known = policy_names()
    if text == "all":
        return tuple(name for name in known if name not in (NOT_REPLAYED, NO_SETTINGS))
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise RequestError(
                f"--policies has {name!r}; there are {', '.join(known)}",
                "as in --policies sequence,specinfer,sequoia, or all",
            )
        if name == NOT_REPLAYED:
            raise RequestError(
                "--policies has lookahead, whose trees depend on what its window was answered",
                "`yggrt bench --drafter lookahead --tree lookahead:...` measures them",
            )
        if name == NO_SETTINGS:
            raise RequestError(
                "--policies has static, which has any shape and no settings to choose among",
                "give its trees with --tree static:parents=...",
            )
    return names


def check_room(names: Sequence[str], config: BuildConfig) -> None:
    """Raises RequestError for a policy of which the build's graphs hold no tree."""
    room = Room(
        row_counts=config.buckets,
        widths=config.drafter_widths if config.has_draft_model else WIDTHS,
        max_depth=config.max_depth,
        max_expanded=config.most_expanded if config.has_draft_model else UNLIMITED,
    )
    for name in names:
        if not settings_of(name, room):
            raise RequestError(
                f"--policies has {name!r}, no tree of which fits verify graphs of {room.max_rows} "
                f"rows and {room.max_depth} levels",
                "ask for a larger --max-verify or max_depth",
            )
