"""How often drafted tokens are accepted, by depth and rank, and whether what trees promise comes
true; from benches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yggc.report_page.measured import Bench
from yggc.report_page.section import Picture, Section, Table
from yggc.report_page.svg import COLOURS, svg_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_BENCH = "No bench was given (`yggrt bench FILE --json > bench.json`, then `--bench bench.json`)"


@dataclass(frozen=True, slots=True)
class Reliability:
    """Mean tokens that `num_passes` passes promised, about as much each, and brought."""

    expected: float
    accepted: float
    num_passes: int


def reliability(bench: Bench) -> tuple[Reliability, ...]:
    """A point for each step of what trees promised."""
    return tuple(
        Reliability(one.expected / one.num_passes, one.accepted / one.num_passes, one.num_passes)
        for one in bench.tree.promised
    )


def promise_kept(bench: Bench) -> float | None:
    """Accepted over promised tokens of all passes with a tree; None if they promised nothing."""
    expected = sum(one.expected for one in bench.tree.promised)
    return sum(one.accepted for one in bench.tree.promised) / expected if expected else None


def acceptance_section(benches: Sequence[Bench]) -> Section:
    title = "Acceptance by depth and rank"
    if not benches:
        return Section(title, missing=f"{NO_BENCH}.")
    if not any(one.tree.tests_per_depth for one in benches):
        return Section(title, missing="No drafted token was tested in the benches.")
    rows = [
        (_name(benches, number), axis, str(place), f"{share:.3f}", str(num_tests))
        for number, one in enumerate(benches)
        for axis, first, shares, tests in (
            ("depth", 1, one.tree.acceptance_per_depth, one.tree.tests_per_depth),
            ("rank", 0, one.tree.acceptance_per_rank, one.tree.tests_per_rank),
        )
        for place, (share, num_tests) in enumerate(zip(shares, tests, strict=True), first)
    ]
    text = [
        "By depth: where the verifier had accepted all tokens above and a drafted one followed, "
        "how often it took one of them. By rank: of such places with more than so many drafted "
        "tokens, how often it took this one; rank 0 is the first, which the drafter holds for the "
        "best. A share of few tests says little.",
    ]
    if not any(one.tree.tests_per_rank for one in benches):
        text.append("The benches are of a version that did not count by rank.")
    svg = svg_of(lambda figure: draw_acceptance(figure, benches), title, 8.2, 3)
    table = Table(("bench", "by", "", "accepted", "tests"), tuple(rows), num_words=2)
    return Section(title, tuple(text), (Picture(svg, "Shares accepted where tested."),), (table,))


def draw_acceptance(figure: Figure, benches: Sequence[Bench]) -> None:
    by_depth, by_rank = figure.subplots(1, 2)
    for number, one in enumerate(benches):
        name, tree = _name(benches, number), one.tree
        for axes, first, shares in (
            (by_depth, 1, tree.acceptance_per_depth),
            (by_rank, 0, tree.acceptance_per_rank),
        ):
            axes.plot(range(first, first + len(shares)), shares, "o-", markersize=3, label=name)
    for axes, what in ((by_depth, "depth"), (by_rank, "rank")):
        axes.set(xlabel=what, ylabel="accepted where tested", ylim=(0, 1.02))
        axes.xaxis.get_major_locator().set_params(integer=True)
    by_depth.legend(fontsize=8)


def reliability_section(benches: Sequence[Bench]) -> Section:
    title = "Reliability of path probabilities"
    if not benches:
        return Section(title, missing=f"{NO_BENCH}.")
    with_trees = [one for one in benches if one.tree.promised]
    if not with_trees:
        return Section(
            title,
            missing="The benches hold no pass with a tree, or are of a version that did not count "
            "what trees promised.",
        )
    kept = ", ".join(
        f"{_name(with_trees, number)}: {share:.2f}"
        for number, one in enumerate(with_trees)
        if (share := promise_kept(one)) is not None
    )
    text = (
        "The path probabilities of the nodes that a pass verifies add up to the tokens that it is "
        "expected to accept, before the gate's trust. Passes are put together by that sum in "
        "steps of half a token; above the line a drafter is too modest, below it too sure.",
        f"Accepted over expected tokens: {kept}.",
    )
    svg = svg_of(lambda figure: draw_reliability(figure, with_trees), title, 4.4, 3.4)
    return Section(title, text, (Picture(svg, "Tokens a pass; large dots are many passes."),))


def draw_reliability(figure: Figure, benches: Sequence[Bench]) -> None:
    axes = figure.subplots()
    most = 0.5
    for number, (bench, colour) in enumerate(zip(benches, COLOURS * len(benches), strict=False)):
        points = reliability(bench)
        total = sum(one.num_passes for one in points)
        axes.scatter(
            [one.expected for one in points],
            [one.accepted for one in points],
            s=[12 + 160 * one.num_passes / total for one in points],
            color=colour,
            alpha=0.8,
            label=_name(benches, number),
        )
        most = max(most, *(max(one.expected, one.accepted) for one in points))
    axes.plot([0, most], [0, most], "--", linewidth=1, color=COLOURS[2])
    axes.set(xlabel="expected to be accepted", ylabel="accepted")
    axes.legend(fontsize=8)


def _name(benches: Sequence[Bench], number: int) -> str:
    """The tree of a bench; its place too, where several are of one."""
    spec = benches[number].tree.spec
    same = [one.tree.spec for one in benches].count(spec) > 1
    return f"{number + 1}: {spec}" if same else spec
