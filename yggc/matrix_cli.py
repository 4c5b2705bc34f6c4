"""`yggc matrix`: which bundles have to be built again, as a CI matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from yggrt.terminal import note, reports_errors

_BUNDLES = (".ygg", ".json")


@reports_errors
def matrix(
    recipes: Annotated[
        list[Path], typer.Argument(help="Recipes; a recipe may be for several targets.")
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="Earlier bundles, their manifest.json, or folders of bundles (repeatable, or one "
            "after another).",
            metavar="BUNDLES",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            "--target",
            help="Leave out all but these targets (repeatable).",
            metavar="TARGET",
        ),
    ] = None,
    changed_only: Annotated[
        bool, typer.Option("--changed-only", help="Leave out what need not be built again.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help='Print one line of JSON: {"include": [...]}.')
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Says for every recipe and target whether its bundle has changed, and why. Builds and fetches
    nothing."""
    import msgspec

    from yggc.errors import RecipeError
    from yggc.matrix import build_matrix
    from yggc.targets import resolve_target

    # What a shell makes of `--against *.ygg`: the first is the option's, the others follow.
    more = [path for path in recipes if path.suffix in _BUNDLES]
    if more and not against:
        raise RecipeError(
            f"{more[0]} is no recipe, wanted .toml files", "give bundles behind --against"
        )
    chosen = [path for path in recipes if path not in more]
    wanted = {resolve_target(one, dry_run=True)[0] for one in target or ()}
    entries, unknown = build_matrix(chosen, [*(against or ()), *more])
    for one in unknown:
        note(
            f"{one.path}: {one.manifest.name} for {one.manifest.target.name} is of no recipe here"
        )
    if wanted:
        entries = [entry for entry in entries if entry.target in wanted]
    if changed_only:
        entries = [entry for entry in entries if entry.changed]
    if as_json:
        print(json.dumps({"include": msgspec.to_builtins(entries)}))
        return
    for entry in entries:
        state = "; ".join(entry.reasons) if entry.changed else "unchanged"
        print(f"{entry.name} ({entry.recipe}, {entry.target}): {state}")
