"""One iteration of the packed schedule on the time axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from yggc.report_page.section import Picture, Section, Table
from yggc.report_page.svg import COLOURS, svg_of
from yggrt.core.schema import Manifest
from yggrt.core.spec import draft_steps
from yggrt.latency import LatencyTable
from yggrt.policies import MIDDLING_CONTEXT, tree_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "One iteration"
Lane = Literal["drafter's graphs", "verifier's graph", "host"]
LANES: tuple[Lane, ...] = ("drafter's graphs", "verifier's graph", "host")


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one lane, in ms from the iteration's start."""

    lane: Lane
    name: str
    start_ms: float
    ms: float


def iteration(manifest: Manifest, context: int = MIDDLING_CONTEXT) -> tuple[Bar, ...]:
    """The stages of a pass that drafts and verifies all that the packed tree may, one after the
    other. Times of graphs are those of the latency table, of the host those that the build
    measured; where it measured none, all of them together."""
    schedule = manifest.schedule
    spec = tree_in(manifest, schedule.tree)
    latency = LatencyTable.of(manifest.latency, manifest.graphs)
    stages = {name: 1e3 * seconds for name, seconds in schedule.stage_s.items()}
    steps = draft_steps(spec)
    graph_ms = [1e3 * latency.draft_step(num, context) for num in steps]
    rows = latency.surfaces["verify"].rows
    bucket = min((one for one in rows if one >= spec.verify), default=rows[-1])
    parts: list[tuple[Lane, str, float]] = []
    if any(graph_ms):
        for number, (num, ms) in enumerate(zip(steps, graph_ms, strict=True), 1):
            parts.append(("drafter's graphs", f"draft step {number}, W = {num}", ms))
    # The draft stage holds the drafter's graphs, too.
    host_ms = max(0.0, stages.get("draft", 0.0) - sum(graph_ms))
    if steps or host_ms:
        parts.append(("host", "draft", host_ms))
    verify_ms = 1e3 * latency(bucket, context)
    parts.append(("verifier's graph", f"verify {spec.verify} rows in {bucket}", verify_ms))
    if stages:
        parts += [("host", name, stages[name]) for name in stages if name != "draft"]
    else:
        parts.append(("host", "all of the host", 1e3 * schedule.rest_s))
    bars = []
    start = 0.0
    for lane, name, ms in parts:
        bars.append(Bar(lane, name, start, ms))
        start += ms
    return tuple(bars)


def iteration_section(manifest: Manifest) -> Section:
    bars = iteration(manifest)
    total = sum(one.ms for one in bars)
    text = (
        f"{manifest.schedule.tree}, at {MIDDLING_CONTEXT} tokens of context: {total:.2f} ms for a "
        "pass that drafts and verifies all that this schedule may; the gate and the choice of "
        "rows make many passes smaller. Graphs: as in the latency table. Host: means of the short "
        "runs at the build; of their drafting what the table says of the drafter's graphs is left "
        "out. Nothing overlaps on this target.",
    )
    rows = tuple(
        (one.name, one.lane, f"{one.start_ms:.3f}", f"{one.ms:.3f}", f"{one.ms / total:.1%}")
        for one in bars
    )
    table = Table(("stage", "where", "from, ms", "takes, ms", "share"), rows, num_words=2)
    svg = svg_of(lambda figure: draw_iteration(figure, bars), TITLE, 8.2, 1.9)
    return Section(TITLE, text, (Picture(svg, "Stages of one pass in order."),), (table,))


def draw_iteration(figure: Figure, bars: tuple[Bar, ...]) -> None:
    axes = figure.subplots()
    lanes = [lane for lane in LANES if any(one.lane == lane for one in bars)]
    names = list(dict.fromkeys(one.name.split(" ")[0] for one in bars))
    seen: set[str] = set()
    for one in bars:
        name = one.name.split(" ")[0]
        axes.barh(
            lanes.index(one.lane),
            one.ms,
            left=one.start_ms,
            height=0.7,
            color=COLOURS[names.index(name) % len(COLOURS)],
            label=None if name in seen else name,
        )
        seen.add(name)
    axes.set_yticks(range(len(lanes)), labels=lanes)
    axes.invert_yaxis()
    axes.set(xlabel="ms")
    axes.legend(ncols=len(names), fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))
