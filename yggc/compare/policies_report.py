"""The comparison of policies as a page."""

from __future__ import annotations

from typing import Any

from yggrt.busy import warning
from yggrt.interval import shown_ratio


def markdown(report: dict[str, Any], command: str) -> str:
    """Of `compare_policies`' report."""
    reference = report["reference"]
    lines = [
        f"# Tree policies of {report['bundle']}",
        "",
        f"`{command}`. {report['device']}, {report['num_threads']} threads; "
        f"{len(report['prompts'])} prompts x {report['num_tokens']} tokens, batch 1, all ways in "
        "turns on each prompt, forwards and backwards, the quicker run of both. One engine, "
        "drafter and set of graphs; each policy with the setting that replays of the calibration "
        "answers find fastest. Medians over prompts; ratios are means of prompt by prompt ratios, "
        "in brackets their 95 % bootstrap interval: a difference counts if that excludes 1.00.",
    ]
    for one in report["temperatures"]:
        lines += [
            "",
            f"## T = {one['temperature']:g}",
            "",
            "| policy | ms per token | tokens/pass | over plain | "
            f"over {reference}'s time | tree |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['policy']} | {row['tpot_ms']:.2f} | {row['mean_acceptance_length']:.2f} | "
            f"{shown_ratio(row, 'speedup')} | {shown_ratio(row, 'behind')} | `{row['tree']}` |"
            for row in one["policies"]
        ]
        if one["ladder"]:
            lines += _ladder_lines(one["ladder"])
        if one["budgets"]:
            lines += _budget_lines(one["budgets"])
    if report["refused"]:
        lines += ["", "Refused:", ""]
        lines += [f"- {one['policy']}: {one['reason']}" for one in report["refused"]]
    if busy := warning(report["busy_share"]):
        lines += ["", f"{busy[0].upper()}{busy[1:]}."]
    return "\n".join(lines) + "\n"


def _ladder_lines(steps: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "One thing after another, each with the setting that is fastest with it; chain and tree "
        "verify every row in every pass:",
        "",
        "| step | ms per token | tokens/pass | over plain | over the step before | tree |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['step']} | {row['tpot_ms']:.2f} | {row['mean_acceptance_length']:.2f} | "
        f"{shown_ratio(row, 'speedup')} | {shown_ratio(row, 'gain')} | `{row['tree']}` |"
        for row in steps
    ]


def _budget_lines(budgets: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(row["policy"] for one in budgets for row in one["policies"]))
    lines = [
        "",
        "Mean acceptance length with at most so many rows verified, the root among them, drafting "
        "in every pass (replayed):",
        "",
        "| policy | " + " | ".join(f"{one['rows']} rows" for one in budgets) + " |",
        "|---" * (len(budgets) + 1) + "|",
    ]
    for name in names:
        found = [
            next((row for row in one["policies"] if row["policy"] == name), None)
            for one in budgets
        ]
        cells = ["" if row is None else f"{row['mean_acceptance_length']:.2f}" for row in found]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines
