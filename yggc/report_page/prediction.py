"""Predicted against measured time per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from yggc.report_page.measured import Bench
from yggc.report_page.section import Picture, Section
from yggc.report_page.svg import COLOURS, svg_of
from yggrt.core.schema import Candidate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Predicted and measured"
# A rank correlation of fewer says nothing.
MIN_RANKED = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """Time per token of one schedule in ms; `source`: where it was measured."""

    tree: str
    predicted_ms: float
    measured_ms: float
    source: str


def pairs(candidates: Sequence[Candidate], benches: Sequence[Bench]) -> tuple[Pair, ...]:
    """Every schedule with both, of the build and of the benches."""
    predicted = {one.tree: one.tpot_ms for one in candidates}
    found = [
        Pair(one.tree, one.tpot_ms, one.measured_tpot_ms, "build")
        for one in candidates
        if one.measured_tpot_ms is not None
    ]
    for bench in benches:
        found += [
            Pair(way.spec, predicted[way.spec], way.tpot_ms, "bench")
            for way in (bench.plain, bench.tree)
            if way.spec in predicted
        ]
    return tuple(found)


def median_error(found: Sequence[Pair]) -> float:
    """Median of |predicted - measured| / measured; of one pair at least."""
    return float(np.median([abs(one.predicted_ms / one.measured_ms - 1) for one in found]))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's: the correlation of the ranks, equal values sharing the mean of theirs. None for
    fewer than MIN_RANKED values, or if one side is all equal."""
    if len(first) < MIN_RANKED or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    column = np.asarray(values)[:, None]
    return np.asarray((column > column.T).sum(1) + (column == column.T).sum(1) / 2)


def prediction_section(candidates: Sequence[Candidate], benches: Sequence[Bench]) -> Section:
    found = pairs(candidates, benches)
    if not found:
        return Section(
            TITLE, missing="No schedule has both: the build measured none, and no bench is of one "
            "that the build kept a prediction of."
        )  # fmt: skip
    by_source = {
        source: [one for one in found if one.source == source]
        for source in dict.fromkeys(one.source for one in found)
    }
    text = (
        "Predictions are for the calibration texts. The build measured short runs of some of them "
        "in turns with plain decoding; a bench runs other texts, of which a prediction knows "
        "nothing.",
        *(f"Measured by {source}: {_quality(some)}." for source, some in by_source.items()),
    )
    svg = svg_of(lambda figure: draw_pairs(figure, found), TITLE, 4.2, 3.6)
    return Section(TITLE, text, (Picture(svg, "ms per token; the line is where both agree."),))


def _quality(found: Sequence[Pair]) -> str:
    correlation = rank_correlation(
        [one.predicted_ms for one in found], [one.measured_ms for one in found]
    )
    ranked = (
        "too few or equal ones for a rank correlation"
        if correlation is None
        else f"rank correlation (Spearman) {correlation:.2f}"
    )
    return f"{len(found)} schedules, median error {median_error(found):.1%}, {ranked}"


def draw_pairs(figure: Figure, found: Sequence[Pair]) -> None:
    axes = figure.subplots()
    for source, marker, colour in (("build", "o", COLOURS[0]), ("bench", "s", COLOURS[1])):
        here = [one for one in found if one.source == source]
        if here:
            axes.scatter(
                [one.predicted_ms for one in here],
                [one.measured_ms for one in here],
                marker=marker,
                color=colour,
                label=f"measured by {source}",
            )
    most = 1.1 * max(max(one.predicted_ms, one.measured_ms) for one in found)
    axes.plot([0, most], [0, most], "--", linewidth=1, color=COLOURS[2])
    axes.set(xlabel="predicted, ms", ylabel="measured, ms", xlim=(0, most), ylim=(0, most))
    axes.legend()
