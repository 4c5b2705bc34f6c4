"""The numbers of a comparison in JSON types, and its page in Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import Any

from yggc.compare.rows import Lineup, Row
from yggrt.bench_report import percentile
from yggrt.busy import warning
from yggrt.core.schema import Source
from yggrt.interval import mean_ratio, shown_ratio
from yggrt.prompts import Prompt
from yggrt.target import host_target
from yggrt.verify import first_difference


@dataclass(frozen=True, slots=True)
class Decoded:
    """What every row said to one prompt and how long it took."""

    prompt: Prompt
    tpot_ms: Mapping[Row, float]
    ttft_ms: Mapping[Row, float]
    ids: Mapping[Row, list[int]]


def report(
    lineup: Lineup,
    decoded: Sequence[Decoded],
    prefilled: Mapping[int, Mapping[Row, Sequence[float]]],
    *,
    source: Source,
    num_tokens: int,
    num_threads: int,
    busy_share: float,
    num_repeated: int,
    is_interrupted: bool,
) -> dict[str, Any]:
    """Rows by time per token. `ratio`: mean over prompts of the reference row's time over the
    row's; `behind`: of the row's time over that of the fastest row of a bundle.
    """
    times = {row: [one.tpot_ms[row] for one in decoded] for row in lineup.rows}
    reference = next((row for row in lineup.rows if row.bundle is None), lineup.rows[0])
    ours = [row for row in lineup.rows if row.bundle is not None]
    fastest = min(ours, key=lambda row: median(times[row]))
    rows = [
        {
            "title": row.title,
            "way": row.way,
            "is_bundle": row.bundle is not None,
            "tpot_ms": median(times[row]),
            "tpot_p95_ms": percentile(times[row], 95),
            "ttft_ms": median(one.ttft_ms[row] for one in decoded),
            **mean_ratio("ratio", times[reference], times[row]),
            **mean_ratio("behind", times[row], times[fastest]),
            "equal_share": _equal_share(row, lineup.rows, decoded),
            "tpots_ms": times[row],
        }
        for row in sorted(lineup.rows, key=lambda row: median(times[row]))
    ]
    host = host_target(num_threads)
    return {
        "date": date.today().isoformat(),
        "source": {"location": source.location, "sha256": source.files[-1].sha256},
        "num_tokens": num_tokens,
        "prompts": [one.prompt.name for one in decoded],
        "reference": reference.title,
        "fastest": fastest.title,
        "rows": rows,
        "prefill": [
            {
                "num_tokens": length,
                "rows": [
                    {"title": row.title.removesuffix(": plain"), "ttft_ms": median(taken)}
                    for row, taken in sorted(by_row.items(), key=lambda one: median(one[1]))
                ],
            }
            for length, by_row in prefilled.items()
        ],
        "missing": [{"title": one.title, "reason": one.reason} for one in lineup.missing],
        "notes": lineup.notes,
        "busy_share": busy_share,
        "num_repeated": num_repeated,
        "interrupted": is_interrupted,
        "host": {
            "device": host.tuned_for.device,
            "num_cores": os.cpu_count(),
            "num_threads": num_threads,
            "memory_bytes": host.tuned_for.memory_bytes,
            "system": f"{platform.system()} {platform.release()}",
            "python": sys.version.split()[0],
            "torch": host.must_match.torch,
        },
    }


def markdown(report: dict[str, Any], command: str) -> str:
    """The report as a page."""
    host = report["host"]
    reference = report["reference"].partition(" ")[0].rstrip(",")
    lines = [
        "# Beside other runtimes",
        "",
        f"`{command}`, {report['date']}. {host['device']}, {host['num_cores']} cores, "
        f"{host['memory_bytes'] / 2**30:.0f} GiB; {host['system']}, Python {host['python']}, "
        f"torch {host['torch']}. Model: {report['source']['location']}, sha256 "
        f"`{report['source']['sha256'][:16]}…`.",
        "",
        f"Greedy, batch 1, prompts: {len(report['prompts'])} x {report['num_tokens']} tokens, "
        f"{host['num_threads']} threads; every row in a process of its own, all rows in turns on "
        "each prompt, the order reversed for every other one. Medians over prompts; ratios are "
        "means of prompt by prompt ratios, in brackets their 95 % bootstrap interval.",
        "",
        f"| per token | ms | p95 | against {reference} | our fastest against it | equal tokens |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        title = f"**{row['title']}**" if row["title"] == report["fastest"] else row["title"]
        share = row["equal_share"]
        behind = "" if row["is_bundle"] else shown_ratio(row, "behind")
        lines.append(
            f"| {title} | {row['tpot_ms']:.2f} | {row['tpot_p95_ms']:.2f} | "
            f"{shown_ratio(row, 'ratio')} | {behind} | {'' if share is None else f'{share:.1%}'} |"
        )
    for prefill in report["prefill"]:
        lines += ["", f"| first token after {prefill['num_tokens']} tokens | ms |", "|---|---|"]
        lines += [f"| {row['title']} | {row['ttft_ms']:,.0f} |" for row in prefill["rows"]]
    lines += [
        "",
        "Equal tokens: share of the tokens before the first that differs from the plain decoding "
        "of a bundle that computes the same function; empty where none does. Trees equal their "
        "bundle's plain decoding without exception.",
    ]
    for text in report["notes"]:
        lines += ["", text]
    if report["missing"]:
        lines += ["", "Not measured:", ""]
        lines += [f"- {one['title']}: {one['reason']}" for one in report["missing"]]
    if num := report["num_repeated"]:
        lines += ["", f"{num} runs were repeated because other processes disturbed them."]
    if busy := warning(report["busy_share"]):
        lines += ["", f"{busy[0].upper()}{busy[1:]}."]
    if report["interrupted"]:
        lines += ["", "The comparison was interrupted: these are the prompts that were finished."]
    return "\n".join(lines) + "\n"


def _equal_share(row: Row, rows: Sequence[Row], decoded: Sequence[Decoded]) -> float | None:
    """Share of the tokens before the first that differs, over all prompts."""
    other = next((one for one in rows if one.way == "plain" and one.bundle == row.equals), None)
    if row.equals is None or other is None:
        return None
    num_equal = num_tokens = 0
    for one in decoded:
        ids, wanted = one.ids[row], one.ids[other]
        index = first_difference(wanted, ids)
        num_equal += len(ids) if index is None else index
        num_tokens += len(ids)
    return num_equal / num_tokens
