"""Checks of the command line's values, before anything heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from yggc.compare.protocol import BASELINES, Library
from yggc.policies import check_policies
from yggrt.core.errors import RequestError


def check_baselines(names: Sequence[str] | None) -> tuple[Library, ...]:
    """The libraries that are named, all if none is."""
    for name in names or ():
        if name not in BASELINES:
            raise RequestError(
                f"--baseline is {name!r}, wanted one of {', '.join(BASELINES)}",
                "leave it out to compare with all that are installed",
            )
    return tuple(one for one in BASELINES if not names or one in names)


def check_output(path: Path) -> None:
    """Raises RequestError if no page can be written there: before the work, not after it."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RequestError(
            f"{path}: no page can be written there", "give a file in a folder that exists"
        )


def check_one_bundle(
    policies: str | None,
    num_bundles: int,
    beside: Mapping[str, object],
    of_policies: Mapping[str, object],
) -> tuple[str, ...]:
    """The policies to compare, none for a comparison of libraries. `beside`: what only the one
    takes by flag, `of_policies` the other; None where it was not given."""
    names = check_policies(policies)
    for flag, value in (beside if names else of_policies).items():
        if value is not None:
            wanted = "without" if names else "with"
            raise RequestError(
                f"{flag} is given {'with' if names else 'without'} --policies",
                f"it goes {wanted} --policies",
            )
    if names and num_bundles != 1:
        raise RequestError(
            f"--policies and {num_bundles} bundles, wanted one", "compare them one after another"
        )
    return names
