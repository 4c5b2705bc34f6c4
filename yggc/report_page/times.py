"""Times of passes by their rows: measured, made monotone, and as reading plus computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from yggc.report_page.section import Picture, Section, Table
from yggc.report_page.svg import COLOURS, WARNING, svg_of
from yggrt.core.schema import VERIFIER_KINDS, GraphKind, Manifest
from yggrt.inspect import model_weights
from yggrt.latency import LatencyTable
from yggrt.measure import describe_jump

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[GraphKind, str] = {
    "verify": "T(V): a verify pass of V rows",
    "draft": "T_d(W): a draft step of W nodes",
}


# By kind and context: `read` and `compute` in ms.
Fits = dict[tuple[GraphKind, int], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of a kind of graph by rows at one context, in ms: medians and interquartile ranges as
    measured, and the medians made monotone. `jumps`: pairs of neighbouring row counts."""

    kind: GraphKind
    context: int
    rows: tuple[int, ...]
    median_ms: tuple[float, ...]
    spread_ms: tuple[float, ...]
    monotone_ms: tuple[float, ...]
    jumps: tuple[tuple[int, int], ...]


def curves(manifest: Manifest) -> tuple[Curve, ...]:
    """One for each kind of KINDS and context that was measured."""
    kinds = {graph.name: graph.kind for graph in manifest.graphs}
    surfaces = LatencyTable(manifest.latency, kinds).surfaces
    points = {
        (kinds[one.graph], one.rows, one.context): one
        for one in manifest.latency
        if kinds.get(one.graph) in KINDS
    }
    found = []
    for kind in KINDS:
        for context in sorted({at for name, _, at in points if name == kind}):
            here = sorted(rows for name, rows, at in points if (name, at) == (kind, context))
            medians = [points[kind, rows, context].median_s for rows in here]
            spreads = [points[kind, rows, context].spread_s for rows in here]
            found.append(
                Curve(
                    kind=kind,
                    context=context,
                    rows=tuple(here),
                    median_ms=tuple(1e3 * one for one in medians),
                    spread_ms=tuple(1e3 * one for one in spreads),
                    monotone_ms=tuple(1e3 * surfaces[kind](rows, context) for rows in here),
                    jumps=tuple(
                        (jump.lower, jump.upper)
                        for jump in manifest.profile.jumps
                        if (jump.kind, jump.axis, jump.at) == (kind, "rows", context)
                    ),
                )
            )
    return tuple(found)


def read_and_compute(rows: Sequence[int], times: Sequence[float]) -> tuple[float, float]:
    """`read` and `compute` of the line read + compute * rows with the least sum of squared
    relative errors; two row counts at least."""
    weights = 1 / np.asarray(times)
    columns = np.stack([weights, weights * np.asarray(rows)], axis=1)
    (read, compute), *_ = np.linalg.lstsq(columns, np.ones(len(times)))
    return float(read), float(compute)


def times_section(manifest: Manifest) -> Section:
    title = "Times of a pass"
    found = curves(manifest)
    fits = {
        (one.kind, one.context): read_and_compute(one.rows, one.median_ms)
        for one in found
        if len(one.rows) > 1
    }
    table = Table(
        ("graphs", "context", "rows", "read, ms", "compute, ms a row"),
        tuple(
            (one.kind, str(one.context), ", ".join(map(str, one.rows)), *_shown(fits, one))
            for one in found
        ),
    )
    text = [
        "Medians with half their interquartile range to either side, at every context that was "
        "measured; thick lines are the medians made monotone in rows and context, which is what "
        "is computed with. The dashed line is read + compute x rows, fitted at the shortest "
        "context by least squares of relative errors: an interpretation, which nothing is chosen "
        "by.",
        _reading(manifest),
    ]
    jumps = [describe_jump(jump) for jump in manifest.profile.jumps]
    text += [f"Jump: {one}." for one in jumps] or ["No jumps were found in the curves."]
    picture = Picture(
        svg_of(lambda figure: draw_times(figure, found, fits), title, 8.2, 3.4),
        "Time of a pass by its rows; where a curve jumps it is drawn in red.",
    )
    return Section(title, tuple(text), (picture,), (table,))


def draw_times(
    figure: Figure,
    found: Sequence[Curve],
    fits: Fits,
) -> None:
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found)]
    for axes, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        here = [one for one in found if one.kind == kind]
        for one, colour in zip(here, COLOURS * len(here), strict=False):
            _draw_curve(axes, one, colour)
        fit = fits.get((kind, here[0].context))
        if fit is not None:
            ends = np.geomspace(here[0].rows[0], here[0].rows[-1], 40)
            axes.plot(ends, fit[0] + fit[1] * ends, "--", color=COLOURS[0], linewidth=1)
        rows = sorted({rows for one in here for rows in one.rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(rows, labels=[str(one) for one in rows])
        axes.minorticks_off()
        axes.set(title=KINDS[kind], xlabel="rows", ylabel="ms", ylim=(0, None))
        axes.legend(title="context", fontsize=8)


def _draw_curve(axes: Any, one: Curve, colour: str) -> None:
    half = [spread / 2 for spread in one.spread_ms]
    axes.errorbar(one.rows, one.median_ms, yerr=half, fmt="o", markersize=3, color=colour,
                  elinewidth=1, capsize=2)  # fmt: skip
    axes.plot(one.rows, one.monotone_ms, color=colour, linewidth=1.8, label=str(one.context))
    for pair in one.jumps:
        ends = [one.median_ms[one.rows.index(rows)] for rows in pair if rows in one.rows]
        if len(ends) == len(pair):
            axes.plot(pair, ends, color=WARNING, linewidth=1.8)


def _shown(fits: Fits, one: Curve) -> tuple[str, str]:
    fit = fits.get((one.kind, one.context))
    return (f"{fit[0]:.3f}", f"{fit[1]:.4f}") if fit else ("one row count", "")


def _reading(manifest: Manifest) -> str:
    tuned = manifest.target.tuned_for
    num_bytes = sum(one.num_bytes for one in model_weights(manifest, VERIFIER_KINDS).values())
    if not tuned.read_bandwidth:
        return "The memory's bandwidth was not measured."
    return (
        f"Reading the verifier's {num_bytes / 1e6:,.0f} MB of weights once takes "
        f"{1e3 * num_bytes / tuned.read_bandwidth:.2f} ms at the {tuned.read_bandwidth / 1e9:.1f} "
        "GB/s that the build measured."
    )
