"""What training the depth predictor found: what it brings, and how far its words hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from yggc.report_page.measured import TrainedDepth
from yggc.report_page.section import Picture, Section, Table, shown_interval
from yggc.report_page.svg import COLOURS, svg_of
from yggrt.core.schema import DepthPredictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Depth predictor"


def depth_section(predictor: DepthPredictor | None, trained: Sequence[TrainedDepth]) -> Section:
    """Of the bundle's record, and of what its training printed."""
    if predictor is None:
        return Section(
            TITLE,
            missing="None was trained for this bundle (`yggc train depth FILE -o NEW`): every "
            "draft has the depth of its tree.",
        )
    tables = [_by_depth(predictor)]
    pictures = []
    for number, one in enumerate(trained, 1):
        tables += _tables(one)
        if one.reliability:
            title = f"{TITLE} {number}"
            svg = svg_of(partial(draw_survival, trained=one), title, 4.4, 3.4)
            pictures.append(Picture(svg, "Drafts that get so deep; large dots are many passes."))
    text = list(_lines(predictor))
    if not trained:
        text.append(
            "Ablations and reliability are in what training prints (`yggc train depth … --json > "
            "depth.json`, then `--depth depth.json`)."
        )
    return Section(TITLE, tuple(text), tuple(pictures), tuple(tables))


def _lines(one: DepthPredictor) -> Iterator[str]:
    gain = f"{one.gain:.3f}{shown_interval(one.gain_interval, 3)}"
    yield (
        f"It is {'on' if one.is_on else 'off'}: on {one.num_measured} held-out prompts "
        f"{one.against} takes {gain} times as long a token as the predictor's choice of depth in "
        f"{one.tree}, at temperature {one.temperature:g}"
        + ("." if one.is_on else "; it ships on only where the interval lies above 1.")
    )
    yield (
        f"{one.num_traces} traces of {one.num_prompts} prompts. Log-loss a hazard "
        f"{one.log_loss:.4f} nats, of the same hazards for every pass {one.constant_log_loss:.4f}."
    )


def _by_depth(one: DepthPredictor) -> Table:
    """Depth 0 is a plain pass: it emits `base_tokens` and promises nothing."""
    rows = [("0", str(one.rows[0]), f"{one.base_tokens:.3f}", "")]
    rows += [
        (str(depth), str(num), f"{worth:.3f}", f"{error:.3f}")
        for depth, (num, worth, error) in enumerate(
            zip(one.rows[1:], one.worth, one.calibration_error, strict=False), 1
        )
    ]
    return Table(
        ("depth", "rows verified", "tokens it adds where reached", "error of survival"),
        tuple(rows),
    )


def _tables(one: TrainedDepth) -> Iterator[Table]:
    rows = [
        (row.name, "" if row.log_loss is None else f"{row.log_loss:.4f}", f"{row.tpot_ms:.3f}")
        for row in one.ablations
    ]
    rows += [
        (f"depth {depth} in every pass", "", f"{time_ms:.3f}")
        for depth, time_ms in enumerate(one.fixed_depth_ms)
    ]
    yield Table(("hazards of", "log-loss", "predicted ms a token"), tuple(rows))
    yield Table(
        ("prompt set", "passes", "log-loss, constant", "log-loss", "ms a token, constant",
         "ms a token"),
        tuple(
            (
                row.category,
                str(row.num_traces),
                f"{row.constant.log_loss:.3f}",
                f"{row.hidden.log_loss:.3f}",
                f"{row.constant.tpot_ms:.3f}",
                f"{row.hidden.tpot_ms:.3f}",
            )
            for row in one.categories
        ),
    )  # fmt: skip
    yield Table(
        ("measured", "ms a token"),
        tuple((way, f"{time_ms:.3f}") for way, time_ms in one.measured_ms.items()),
    )


def draw_survival(figure: Figure, trained: TrainedDepth) -> None:
    axes = figure.subplots()
    colours = COLOURS * len(trained.reliability)
    for one, colour in zip(trained.reliability, colours, strict=False):
        total = sum(point.num for point in one.bins)
        axes.scatter(
            [point.predicted for point in one.bins],
            [point.observed for point in one.bins],
            s=[8 + 120 * point.num / total for point in one.bins],
            color=colour,
            alpha=0.8,
            label=f"depth {one.depth}",
        )
    axes.plot([0, 1], [0, 1], "--", linewidth=1, color=COLOURS[3])
    axes.set(xlabel="predicted", ylabel="observed", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.legend(fontsize=8)
