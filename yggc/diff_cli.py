"""`yggc diff`: two bundles beside each other, and a gate on their speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from yggrt.core.errors import RequestError
from yggrt.terminal import INTERRUPTED, Interrupt, progress, reports_errors, silent, warn


@reports_errors
def diff(
    old: Annotated[Path, typer.Argument(help="The bundle before.", metavar="OLD.ygg")],
    new: Annotated[Path, typer.Argument(help="The bundle after.", metavar="NEW.ygg")],
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time both in turns on this machine, old, new, new, old."),
    ] = False,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            help="Measure, and exit 1 if all of the interval says that the new bundle's time per "
            "token is more than so much longer, as in 5%.",
            metavar="PERCENT",
        ),
    ] = None,
    bench_old: Annotated[
        Path | None,
        typer.Option(help="What `yggrt bench OLD.ygg --json` printed.", metavar="JSON"),
    ] = None,
    bench_new: Annotated[
        Path | None,
        typer.Option(help="What `yggrt bench NEW.ygg --json` printed.", metavar="JSON"),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSON lines or text with one prompt a line (repeatable; default: the bundle's).",
            metavar="FILE",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="The first so many prompts of each file.", min=1)
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2)] = 64,
    repeats: Annotated[int, typer.Option(help="Rounds of old, new, new, old.", min=1)] = 1,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", help="Default: what the old bundle was tuned for.", min=1),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON and no progress.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Says what differs between two bundles: inputs, schedule, sizes, times, acceptance, speed.

    Runs neither of them without --measure or --fail-if-slower.
    """
    most = None if fail_if_slower is None else _share(fail_if_slower)

    from yggc.diff.benches import read_benches
    from yggc.diff.compared import compare_sides
    from yggc.diff.paired import Request, check_not_slower, measure_pair
    from yggc.diff.side import read_side
    from yggc.diff.tables import print_tables
    from yggrt.busy import warning
    from yggrt.cache import open_cache

    cache = open_cache(None)
    before, after = read_side(old, cache), read_side(new, cache)
    report = compare_sides(before, after)
    report["bench"] = read_benches(before, after, bench_old, bench_new)
    report["paired"] = None
    if measure or most is not None:
        chosen = tuple(prompts or ())
        request = Request(chosen, limit, max_tokens, repeats, threads, most is not None)
        with Interrupt() as interrupt:
            report["paired"] = measure_pair(
                before,
                after,
                request,
                cache,
                on_note=warn,
                progress=silent if as_json else progress,
                cancelled=interrupt.requested,
            )
        if busy := warning(report["paired"]["busy_share"]):
            warn(busy)
    if as_json:
        print(json.dumps(report))
    else:
        from rich.console import Console

        print_tables(report, Console(soft_wrap=not sys.stdout.isatty()))
    if report["paired"] is not None and report["paired"]["interrupted"]:
        raise typer.Exit(INTERRUPTED)
    if most is not None:
        check_not_slower(report["paired"], most)


def _share(text: str) -> float:
    """The share that a percentage names; RequestError for anything else."""
    try:
        number, sign, rest = text.partition("%")
        share = float(number) / 100
    except ValueError:
        share, sign, rest = -1.0, "", ""
    if sign != "%" or rest or not 0 <= share < float("inf"):
        raise RequestError(
            f"--fail-if-slower is {text!r}, wanted a percentage of at least 0",
            "as in --fail-if-slower 5%",
        )
    return share
