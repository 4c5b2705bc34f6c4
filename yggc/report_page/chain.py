"""What theory makes of the measured acceptance and cost of drafting: the best chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yggc.report_page.acceptance import NO_BENCH
from yggc.report_page.measured import Bench
from yggc.report_page.section import Picture, Section, Table, shown_interval
from yggc.report_page.svg import COLOURS, svg_of
from yggrt.core.objective import best_chain_depth, chain_speedup, chain_tokens
from yggrt.core.schema import HeadDrafter, LmDrafter, Manifest
from yggrt.core.spec import draft_steps
from yggrt.latency import LatencyTable
from yggrt.policies import MIDDLING_CONTEXT, tree_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Chains in theory"
MAX_DEPTH = 60
SHOWN_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain's acceptance probability and the cost of a draft step over that of a plain pass;
    `source` says where the probability is from."""

    alpha: float
    cost_ratio: float
    source: str

    def speedup(self, depth: int) -> float:
        """With rows that cost nothing (Leviathan et al., theorem 3.8)."""
        return chain_speedup(self.alpha, depth, self.cost_ratio)

    @property
    def best_depth(self) -> int:
        """g*, of 0 to MAX_DEPTH."""
        return best_chain_depth(self.alpha, self.cost_ratio, MAX_DEPTH)

    def speedup_with_rows(self, depth: int, seconds: Callable[[int], float]) -> float:
        """With `seconds` of a verify pass by its rows."""
        pass_s = seconds(depth + 1) + depth * self.cost_ratio * seconds(1)
        return chain_tokens(self.alpha, depth) * seconds(1) / pass_s


def alpha_of(manifest: Manifest, bench: Bench | None) -> tuple[float, str] | None:
    """The probability that a drafter's first choice is accepted where it is tested, and where it
    is known from; None if it is not."""
    if bench is not None and bench.tree.acceptance_per_rank:
        tests = bench.tree.tests_per_rank[0]
        share = bench.tree.acceptance_per_rank[0]
        return share, f"the first choice at {tests} tests of the bench of {bench.tree.spec}"
    drafter = manifest.schedule.drafter
    if isinstance(drafter, LmDrafter | HeadDrafter) and drafter.num_positions:
        places = f"{drafter.num_positions} positions of the calibration answers"
        return drafter.agreement, f"the first choice at {places}"
    return None


def cost_of(manifest: Manifest, context: int = MIDDLING_CONTEXT) -> tuple[float, str]:
    """A draft step over a plain pass, and of what it is: the drafter's graph of one row, or for
    n-grams the host's drafting of the packed tree by its depth."""
    latency = LatencyTable.of(manifest.latency, manifest.graphs)
    plain_s = latency(1, context)
    if "draft" in latency.surfaces:
        return latency.draft_step(1, context) / plain_s, "the drafter's graph of one row"
    schedule = manifest.schedule
    num_steps = len(draft_steps(tree_in(manifest, schedule.tree)))
    drafting_s = schedule.stage_s.get("draft", 0.0)
    if not num_steps or not drafting_s:
        return 0.0, "nothing: a drafter without graphs whose host time was not measured by depth"
    return drafting_s / num_steps / plain_s, f"the host's drafting, over {num_steps} levels"


def chain_section(manifest: Manifest, benches: Sequence[Bench]) -> Section:
    counted = next((one for one in benches if one.tree.acceptance_per_rank), None)
    known = alpha_of(manifest, counted)
    if known is None:
        return Section(
            TITLE,
            missing=f"How often a first choice is accepted is not known: {NO_BENCH[0].lower()}"
            f"{NO_BENCH[1:]}, and the manifest has no agreement of a model that drafts.",
        )
    cost, what = cost_of(manifest)
    chain = Chain(known[0], cost, known[1])
    best = chain.best_depth
    latency = LatencyTable.of(manifest.latency, manifest.graphs)

    def seconds(rows: int) -> float:
        return latency(rows, MIDDLING_CONTEXT)

    text = (
        f"alpha = {chain.alpha:.3f}: {chain.source}. c = {chain.cost_ratio:.3f}: {what}, over a "
        f"plain pass, at {MIDDLING_CONTEXT} tokens of context.",
        "A chain of g tokens, each accepted with probability alpha once it is reached, is faster "
        "by (1 - alpha^(g + 1)) / ((1 - alpha)(g c + 1)) if rows cost nothing (Leviathan et al., "
        f"arXiv 2211.17192): best at g* = {best}, {chain.speedup(best):.2f}x"
        + (" (plain decoding: alpha is not above c)." if not best else ".")
        + " The second curve puts the measured T(g + 1) in place of T(1), interpolated between "
        "graphs. Neither knows the gate, the host beside drafting, or that a text is easy here "
        "and hard there.",
        *(_of_trees(one) for one in benches if one.tree.tests_per_depth),
    )
    table = Table(
        ("measured", "depth", "theory, rows free", "theory, T(V)", "measured"),
        tuple(_measured(manifest, benches, chain, seconds)),
    )
    svg = svg_of(lambda figure: draw_chain(figure, chain, seconds), TITLE, 5.2, 3.2)
    picture = Picture(svg, "Speed-up over plain decoding by the length of a chain.")
    return Section(TITLE, text, (picture,), (table,) if table.rows else ())


def _of_trees(bench: Bench) -> str:
    tests = sum(bench.tree.tests_per_depth)
    return (
        f"The tree {bench.tree.spec} as a whole: {bench.tree.accepted} accepted of {tests} tests, "
        f"{bench.tree.accepted / tests:.3f}; it is tested with all its tokens at a place, a chain "
        "with one."
    )


def _measured(
    manifest: Manifest,
    benches: Sequence[Bench],
    chain: Chain,
    seconds: Callable[[int], float],
) -> list[tuple[str, ...]]:
    shown = [
        (f"build: {one.tree}", one.tree, f"{one.measured_speedup:.2f}")
        for one in manifest.schedule.candidates
        if one.measured_speedup is not None
    ]
    shown += [
        (
            f"bench: {one.tree.spec}",
            one.tree.spec,
            f"{one.speedup:.2f}{shown_interval(one.speedup_interval)}",
        )
        for one in benches
    ]
    depths = {tree: tree_in(manifest, tree).depth for _, tree, _ in shown}
    return [
        (
            name,
            str(depths[tree]),
            f"{chain.speedup(depths[tree]):.2f}",
            f"{chain.speedup_with_rows(depths[tree], seconds):.2f}",
            measured,
        )
        for name, tree, measured in shown
        if depths[tree]
    ]


def draw_chain(figure: Figure, chain: Chain, seconds: Callable[[int], float]) -> None:
    axes = figure.subplots()
    depths = range(max(SHOWN_DEPTH, min(chain.best_depth + 2, MAX_DEPTH)) + 1)
    axes.plot(depths, [chain.speedup(one) for one in depths], "o-", markersize=3,
              label="rows cost nothing")  # fmt: skip
    axes.plot(depths, [chain.speedup_with_rows(one, seconds) for one in depths], "s-",
              markersize=3, label="measured T(V)")  # fmt: skip
    best = chain.best_depth
    axes.plot([best], [chain.speedup(best)], "*", markersize=11, color=COLOURS[2], label="g*")
    axes.axhline(1, linewidth=1, linestyle="--", color=COLOURS[3])
    axes.set(xlabel="tokens in the chain, g", ylabel="speed-up")
    axes.legend()
