"""Predicted speed-up over width and depth of a draft, as far as the manifest alone can tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from yggc.report_page.section import Picture, Section
from yggc.report_page.svg import svg_of
from yggrt.core.objective import Objective
from yggrt.core.schema import Candidate, Manifest, NgramDrafter
from yggrt.core.search import PLAIN, combine, first_trees, plain_replay, search_schedule
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.calibrate import Recording, held_out
from yggrt.gate import RunningGate
from yggrt.latency import LatencyTable
from yggrt.replay import replay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Enough for a map, some seconds of replaying.
REPLAY_TOKENS = 400
TITLE = "Predicted speed-up by width and depth"


@dataclass(frozen=True, slots=True)
class Cell:
    """The best that was predicted of one width and depth, and the most rows that such a tree
    verifies."""

    speedup: float
    tokens_per_pass: float
    verify: int


Map = Mapping[tuple[int, int], Cell]


def replayed_map(manifest: Manifest, num_tokens: int = REPLAY_TOKENS) -> Map:
    """Trees that n-grams draft, replayed over about `num_tokens` of the recorded answers.

    A pass takes the measured time of its rows at its context and the schedule's host time, none
    of this machine's, so that the same manifest gives the same map.
    """
    schedule = manifest.schedule
    assert isinstance(schedule.drafter, NgramDrafter), "only n-grams are replayed without graphs"
    recordings = [Recording(one.prompt_ids, one.output_ids) for one in schedule.recordings]
    total = sum(len(one.output) for one in recordings)
    folds = held_out(schedule.drafter, recordings[:: max(1, round(total / num_tokens))])
    latency = LatencyTable.of(manifest.latency, manifest.graphs)
    verify = [graph for graph in manifest.graphs if graph.kind == "verify"]
    counts = {rows for one in verify for rows in range(one.min_rows, one.max_rows + 1)}
    row_counts = tuple(sorted(counts))
    objective = Objective(schedule.objective, schedule.rate)
    replays = [
        replace(
            combine(
                replay(
                    drafter, tree, some, row_counts, latency, schedule.rest_s, RunningGate(),
                    objective,
                )
                for drafter, some in folds
            ),
            host_s=0.0,
        )
        for tree in first_trees(row_counts)
    ]  # fmt: skip
    plain = plain_replay(one for _, some in folds for one in some)
    if not plain.num_tokens:
        return {}
    return recorded_map(search_schedule(replays, plain, latency, schedule.rest_s))


def recorded_map(candidates: Iterable[Candidate]) -> Map:
    """The best prediction of every width and depth that the candidates have; plain decoding has
    neither."""
    found: dict[tuple[int, int], Cell] = {}
    for one in candidates:
        spec = parse_tree_spec(one.tree)
        if spec.policy not in ("egt", "sequence"):
            continue
        at = spec.width, spec.depth
        if at not in found or one.speedup > found[at].speedup:
            found[at] = Cell(one.speedup, one.mean_acceptance_length, spec.verify)
    return found


def map_section(manifest: Manifest) -> Section:
    schedule = manifest.schedule
    is_ngram = isinstance(schedule.drafter, NgramDrafter)
    if is_ngram and schedule.recordings:
        found = replayed_map(manifest)
        what = (
            "Each cell is an equal-growth tree of this width and depth, replayed over recorded "
            "calibration answers by the engine's own code, with n-grams that have not seen the "
            "text. V is chosen pass by pass, as when decoding, up to what the tree fills of the "
            "largest graph; a pass takes the measured time of its rows at its context and the "
            "packed schedule's time outside graphs, whatever the tree."
        )
    else:
        found = recorded_map(schedule.candidates)
        what = (
            "Each cell is the best prediction that the build kept for this width and depth; it "
            "keeps those of its shortlist, and what a model drafts cannot be replayed without its "
            "graphs. Cells without a number were not kept."
        )
    if not found:
        return Section(
            TITLE,
            missing="The manifest keeps neither recorded answers that n-grams could be replayed "
            f"over nor a predicted tree beside {PLAIN} decoding.",
        )
    (width, depth), best = max(found.items(), key=lambda one: one[1].speedup)
    text = (
        what,
        f"The best cell: width {width}, depth {depth}, at most {best.verify} rows, "
        f"{best.speedup:.2f}x plain decoding with {best.tokens_per_pass:.2f} tokens a pass.",
    )
    svg = svg_of(lambda figure: draw_map(figure, found), TITLE, 5.2, 3.2)
    return Section(TITLE, text, (Picture(svg, "Speed-up over plain decoding, predicted."),))


def draw_map(figure: Figure, found: Map) -> None:
    widths, depths = (sorted({at[axis] for at in found}) for axis in (0, 1))
    grid = np.full((len(widths), len(depths)), np.nan)
    for (width, depth), cell in found.items():
        grid[widths.index(width), depths.index(depth)] = cell.speedup
    axes = figure.subplots()
    axes.pcolormesh(grid, cmap="viridis")
    # White on the dark part of the colours, black on the light one.
    middle = np.nanmin(grid) + 0.6 * (np.nanmax(grid) - np.nanmin(grid))
    for (i, j), value in np.ndenumerate(grid):
        if not np.isnan(value):
            axes.text(j + 0.5, i + 0.5, f"{value:.2f}", ha="center", va="center",
                      color="white" if value <= middle else "black")  # fmt: skip
    _name(axes.set_xticks, depths)
    _name(axes.set_yticks, widths)
    axes.grid(False)
    axes.set(xlabel="depth D", ylabel="width W")


def _name(set_ticks: object, values: Sequence[int]) -> None:
    assert callable(set_ticks)
    set_ticks([place + 0.5 for place in range(len(values))], labels=[str(one) for one in values])
