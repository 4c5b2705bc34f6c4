"""Names of policies on a command line."""

from __future__ import annotations

from yggrt.core.errors import RequestError
from yggrt.core.spec import policy_names

# Has a drafter and a recording of its own: see `yggc traces`.
NOT_REPLAYED = "lookahead"
# Any shape, and so no setting to try.
NO_SETTINGS = "static"


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
