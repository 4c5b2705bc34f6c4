"""The comparison for a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from yggc.diff.fields import Pair
from yggrt.interval import shown_ratio

if TYPE_CHECKING:
    from rich.console import Console

# Longer values are cut: --json has them whole.
_MOST_SHOWN = 80
_MOST_NAMES = 12
FIELDS = ("target", "model", "drafter", "text", "config", "inputs", "schedule")


def print_tables(report: dict[str, Any], console: Console) -> None:
    """Sections in which nothing differs are left out."""
    for side in ("old", "new"):
        file = report[side]
        about = f"{file['path']}, {file['num_bytes']:,} bytes, digest {file['digest'][:16]}"
        _say(console, f"{side}: {file['name']}, {about}, {file['built_by']}")
    _say(console, _verdict(report))
    for one in report["not_compared"]:
        _say(console, f"{one['what']}: {one['why']}")
    _print_sources(report, console)
    for name in FIELDS:
        _print_pairs(name, report[name], console)
    _print_sizes(report["sizes"] | report["memory"], console)
    _print_curves(report["curves"], console)
    _print_pairs("acceptance", _different(report["acceptance"]), console)
    _print_pairs("speed as the build knew it", _different(report["speed"]), console)
    if report["bench"] is not None:
        _print_pairs("bench, each in a run of its own", report["bench"], console)
    _print_members(report["members"], console)
    if report["paired"] is not None:
        _print_paired(report["paired"], console)


def _verdict(report: dict[str, Any]) -> str:
    if report["same_bytes"]:
        return "The bundles are the same, byte for byte."
    if not report["differing"]:
        return "The bundles differ in measured tables alone: builds of the same inputs."
    parts = dict.fromkeys(name.partition(".")[0] for name in report["differing"])
    return f"The bundles differ in {', '.join(parts)}, beside what was measured."


def _print_sources(report: dict[str, Any], console: Console) -> None:
    if report["sources"]:
        _table("sources", ("role", "difference"), report["sources"].items(), console)


def _print_pairs(title: str, pairs: Mapping[str, Pair], console: Console) -> None:
    if pairs:
        rows = ((name, *map(_value, pair)) for name, pair in pairs.items())
        _table(title, ("field", "old", "new"), rows, console)


def _different(pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _print_sizes(sizes: Mapping[str, Pair], console: Console) -> None:
    rows = (
        (name, f"{old:,}", f"{new:,}", f"{new / old - 1:+.1%}" if old else "")
        for name, (old, new) in _different(sizes).items()
    )
    _table("sizes and memory, bytes", ("part", "old", "new", "change"), rows, console)


def _print_curves(curves: dict[str, Any], console: Console) -> None:
    """One line for each row count: milliseconds from the shortest to the longest context."""
    ratios = {(one["kind"], one["rows"]): f"{one['ratio']:.2f}x" for one in curves["ratios"]}
    by_rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in curves["points"]:
        by_rows.setdefault((one["kind"], one["rows"]), []).append(one)
    rows = (
        (key[0], str(key[1]), *(_span(some, side) for side in (0, 1)), ratios.get(key, ""))
        for key, some in by_rows.items()
    )
    titles = ("graph", "rows", "old ms", "new ms", "median new/old")
    _table("time of a pass, from short to long contexts", titles, rows, console)
    for side in ("old", "new"):
        if alone := curves[f"only_{side}"]:
            names = [f"{kind} {rows} at {context}" for kind, rows, context in alone]
            _say(console, f"only the {side} bundle was timed at: {_names(names)}")


def _span(points: Sequence[dict[str, Any]], side: int) -> str:
    first, last = points[0]["ms"][side], points[-1]["ms"][side]
    return f"{first:.2f}" if len(points) == 1 else f"{first:.2f}-{last:.2f}"


def _print_members(members: dict[str, Any], console: Console) -> None:
    kinds = {"changed": "changed", "only_old": "only in old", "only_new": "only in new"}
    for key, title in kinds.items():
        if members[key]:
            _say(console, f"members {title}: {_names(members[key])}")


def _print_paired(paired: dict[str, Any], console: Console) -> None:
    rows: Iterator[Sequence[str]] = (
        (one["name"], *(f"{ms:.2f}" for ms in one["tpot_ms"]), f"{one['time_ratio']:.3f}")
        for one in paired["per_prompt"]
    )
    titles = ("prompt", "old ms/token", "new ms/token", "new/old")
    _table("in turns on this machine", titles, rows, console)
    _say(
        console,
        f"time per token, new over old: {shown_ratio(paired, 'time_ratio')} (geometric mean of "
        f"{paired['num_prompts']} prompts x {paired['num_tokens']} tokens, in brackets 95 % "
        f"interval); {paired['num_equal']} of the answers are the same; {paired['device']}, "
        f"{paired['num_threads']} threads",
    )


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        value = ", ".join(map(_value, value)) or "none"
    text = str(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _table(
    title: str, titles: Sequence[str], rows: Iterable[Sequence[str]], console: Console
) -> None:
    """Nothing without rows. Words to the left, numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    shown = list(rows)
    if not shown:
        return
    table = Table(box=None)
    for name in titles:
        is_number = name in ("rows", "change") or "/" in name or " ms" in name
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row))
    console.print()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(table)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
