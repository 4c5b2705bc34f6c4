"""Tree policies of the bundle beside each other: at their own best settings, and at equal rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from yggc.report_page.measured import AtTemperature, ComparedPolicies, LadderRow, PolicyRow
from yggc.report_page.section import Picture, Section, Table, shown_interval
from yggc.report_page.svg import COLOURS, svg_of
from yggrt.busy import BUSY_SHARE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Policies"


def lengths_by_policy(found: AtTemperature) -> dict[str, list[tuple[int, float]]]:
    """Rows and mean acceptance length of each policy that has a tree of so many, fewest first."""
    lengths: dict[str, list[tuple[int, float]]] = {}
    for budget in sorted(found.budgets, key=lambda one: one.rows):
        for row in budget.policies:
            lengths.setdefault(row.policy, []).append((budget.rows, row.mean_acceptance_length))
    return lengths


def policies_section(comparisons: Sequence[ComparedPolicies]) -> Section:
    if not comparisons:
        return Section(
            TITLE,
            missing="No comparison of policies was given (`yggc compare FILE --policies all "
            "--json > policies.json`, then `--compare policies.json`).",
        )
    every = [(one, at) for one in comparisons for at in one.temperatures]
    text = tuple(line for one in comparisons for line in _lines(one))
    tables = [table for one, at in every for table in _tables(one, at)]
    pictures = []
    for number, (_, at) in enumerate(every, 1):
        title = f"{TITLE} {number}, T = {at.temperature:g}"
        height = max(2.8, 1.2 + 0.24 * len(at.policies))
        caption = (
            f"T = {at.temperature:g}: speed-up over plain decoding with its interval; tokens a "
            "pass at equal numbers of verified rows."
        )
        svg = svg_of(partial(draw_policies, at=at), title, 8.2, height)
        pictures.append(Picture(svg, caption))
    return Section(TITLE, text, tuple(pictures), tuple(tables))


def _lines(one: ComparedPolicies) -> Iterator[str]:
    yield (
        f"{len(one.prompts)} prompts x {one.num_tokens} tokens, all policies in turns on one "
        "engine, drafter and set of graphs, each with its own best setting. In brackets 95 % "
        "intervals over prompts: a difference counts where that excludes 1.00."
    )
    for refused in one.refused:
        yield f"Refused: {refused.policy}: {refused.reason}"
    if one.busy_share is not None and one.busy_share > BUSY_SHARE:
        yield f"Other processes took {one.busy_share:.0%} of the processors meanwhile."


def _timed(row: PolicyRow | LadderRow) -> tuple[str, ...]:
    return (
        row.tree,
        f"{row.tpot_ms:.2f}",
        f"{row.mean_acceptance_length:.2f}",
        f"{row.speedup:.2f}{shown_interval(row.speedup_interval)}",
    )


def _tables(one: ComparedPolicies, at: AtTemperature) -> Iterator[Table]:
    yield Table(
        (f"policy, T = {at.temperature:g}", "tree", "ms a token", "tokens a pass", "x plain",
         f"time over {one.reference}'s"),
        tuple(
            (
                row.policy,
                *_timed(row),
                f"{row.behind:.2f}{shown_interval(row.behind_interval)}",
            )
            for row in at.policies
        ),
        num_words=2,
    )  # fmt: skip
    if at.ladder:
        yield Table(
            (f"step, T = {at.temperature:g}", "tree", "ms a token", "tokens a pass", "x plain",
             "x the step before"),
            tuple(
                (
                    row.step,
                    *_timed(row),
                    f"{row.gain:.2f}{shown_interval(row.gain_interval)}",
                )
                for row in at.ladder
            ),
            num_words=2,
        )  # fmt: skip
    lengths = lengths_by_policy(at)
    budgets = sorted(one.rows for one in at.budgets)
    if lengths:
        yield Table(
            ("tokens a pass", *(f"{rows} rows" for rows in budgets)),
            tuple(
                (name, *(f"{known[rows]:.2f}" if rows in known else "" for rows in budgets))
                for name, points in lengths.items()
                for known in [dict(points)]
            ),
        )


def draw_policies(figure: Figure, at: AtTemperature) -> None:
    speeds, lengths = figure.subplots(1, 2)
    for place, row in enumerate(at.policies):
        low, high = row.speedup_interval or (row.speedup, row.speedup)
        speeds.plot([low, high], [place, place], color=COLOURS[0], linewidth=2)
        speeds.plot([row.speedup], [place], "o", markersize=5, color=COLOURS[0])
    speeds.axvline(1, linewidth=1, linestyle="--", color=COLOURS[3])
    speeds.set_yticks(range(len(at.policies)), labels=[row.policy for row in at.policies])
    speeds.invert_yaxis()
    speeds.set(xlabel="speed-up over plain decoding")
    for name, points in lengths_by_policy(at).items():
        lengths.plot(*zip(*points, strict=True), "o-", markersize=3, label=name)
    lengths.set(xlabel="rows verified at most", ylabel="tokens a pass")
    if at.budgets:
        lengths.legend(fontsize=8)
