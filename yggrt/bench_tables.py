"""The tables of a bench, for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_tables(report: dict[str, Any], console: Console) -> None:
    """The report for a person."""
    host = report["host"]
    console.print(
        f"{report['bundle']}: {report['verifier']}\n{report['tree']['spec']}\n{host['device']}, "
        f"{host['num_threads']} threads, torch {host['torch']}, reads "
        f"{host['read_bandwidth'] / 1e9:.1f} GB/s",
        markup=False,
        highlight=False,
    )
    ways = {"plain": report["plain"], "tree": report["tree"]}
    _print_times(ways, console)
    _print_passes(ways, console)
    depths = report["tree"]["acceptance_per_depth"]
    if depths:
        shares = ", ".join(f"{depth}: {share:.0%}" for depth, share in enumerate(depths, 1))
        console.print(f"\naccepted where tested, by depth: {shares}", highlight=False)
    if len(report["categories"]) > 1:
        _print_categories(report["categories"], console)
    _print_prompts(report["per_prompt"], console)
    console.print(
        f"\nspeedup {shown_speedup(report)} (mean of {report['num_prompts']} prompts, in brackets "
        f"95 % interval), warm-up {report['warmup_s']:.1f} s apart",
        markup=False,
        highlight=False,
    )


def shown_speedup(report: dict[str, Any]) -> str:
    """As in "1.92 [1.70, 2.13]"; without the interval if there is none."""
    interval = report["speedup_interval"]
    brackets = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    return f"{report['speedup']:.2f}{brackets}"


def _print_times(ways: dict[str, dict[str, Any]], console: Console) -> None:
    titles = ("ms", "per token", "p95", "between passes", "p95", "first token", "p95", "prefill")
    keys = ("tpot", "tpot_p95", "gap_p50", "gap_p95", "ttft", "ttft_p95", "prefill")
    rows = ((name, *(f"{way[f'{key}_ms']:.2f}" for key in keys)) for name, way in ways.items())
    _print_table(titles, rows, console)


def _print_passes(ways: dict[str, dict[str, Any]], console: Console) -> None:
    stages = list(dict.fromkeys(name for way in ways.values() for name in way["stage_share"]))
    titles = ("", "tokens/pass", "gated", *stages, "GB/s",
              "of reads")  # fmt: skip
    rows = (
        (
            name,
            f"{way['mean_acceptance_length']:.2f}",
            f"{way['num_gated_passes']}/{way['num_passes']}",
            *(f"{way['stage_share'].get(stage, 0.0):.1%}" for stage in stages),
            f"{way['weight_bytes_per_s'] / 1e9:.1f}",
            f"{way['bandwidth_share']:.0%}",
        )
        for name, way in ways.items()
    )
    _print_table(titles, rows, console)


def _print_categories(categories: dict[str, dict[str, Any]], console: Console) -> None:
    rows = (
        (name, str(one["num_prompts"]), *_numbers(one), shown_speedup(one))
        for name, one in categories.items()
    )
    titles = ("category", "prompts", "plain", "tree", "tokens/pass", "speedup")
    _print_table(titles, rows, console)


def _print_prompts(prompts: list[dict[str, Any]], console: Console) -> None:
    rows = (
        (
            row["name"],
            row["category"],
            str(row["turn"]),
            str(row["num_tokens"]),
            *_numbers(row),
            f"{row['speedup']:.2f}",
        )
        for row in prompts
    )
    titles = ("prompt", "category", "turn", "tokens", "plain", "tree", "tokens/pass", "speedup")
    _print_table(titles, rows, console)


def _numbers(row: dict[str, Any]) -> Iterable[str]:
    return (
        f"{row[name]:.2f}" for name in ("plain_tpot_ms", "tree_tpot_ms", "mean_acceptance_length")
    )


def _print_table(titles: Sequence[str], rows: Iterable[Sequence[str]], console: Console) -> None:
    """Words to the left, numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for title in titles:
        is_word = title in ("", "ms", "prompt", "category")
        table.add_column(title, justify="left" if is_word else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print()
    console.print(table)
