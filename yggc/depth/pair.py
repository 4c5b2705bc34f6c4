"""The compiled pair of a bundle: its graphs in memory, what they cost, who drafts and how tokens
are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from yggc.depth.options import DepthOptions
from yggc.depth.swap import swap_constants
from yggc.depth.tree import full_depth
from yggrt.bundle import Bundle
from yggrt.cache import Cache
from yggrt.core.objective import Objective
from yggrt.core.passes import DraftGraphs, Graphs
from yggrt.core.schema import Manifest, TreeSpec
from yggrt.core.spec import format_tree_spec
from yggrt.drafters import UNLIMITED, Drafter
from yggrt.drafters.calibrate import Recording
from yggrt.engine import Sampler
from yggrt.latency import LatencyTable
from yggrt.loading import choose_threads, load_draft_graphs, load_graphs
from yggrt.recordings import recorded_folds
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler as RequestSampler
from yggrt.scheduling import Costs


@dataclass(frozen=True, slots=True)
class Pair:
    """`base`: the tree whose depth is chosen, `full` that at full depth; `num_units`, `max_depth`:
    of the predictor in the graphs. `keyed_select`: the operator that quickens draws, if any."""

    bundle: Bundle
    graphs: Graphs
    draft: DraftGraphs | None
    costs: Costs
    objective: Objective
    base: TreeSpec
    full: TreeSpec
    num_units: int
    max_depth: int
    sampling: SamplingParams
    seed: int
    keyed_select: Any

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    def facts(self) -> dict[str, Any]:
        """What a predictor must have been made for."""
        return {
            "hidden_size": self.manifest.model.hidden_size,
            "max_depth": self.max_depth,
            "tree": format_tree_spec(self.full),
            "temperature": float(self.sampling.temperature),
        }

    def sampler(self, number: int, prompt: Sequence[int]) -> Sampler | None:
        """A new one for a prompt, always of the same draws; None where decoding is greedy."""
        if self.sampling.is_plain_greedy:
            return None
        return RequestSampler(
            self.sampling,
            prompt,
            vocab_size=self.manifest.model.vocab_size,
            seed=self.seed + number,
            keyed_select=self.keyed_select,
        )

    def drafters(self, recordings: Sequence[Recording]) -> list[tuple[int, Drafter]]:
        """Each recording's number and a drafter that does not know it; those of a drafter
        together."""
        numbers = {id(one): number for number, one in enumerate(recordings)}
        folds = recorded_folds(self.manifest, self.graphs, recordings, self.draft)
        return [(numbers[id(one)], drafter) for drafter, fold in folds for one in fold]


def load_pair(
    bundle: Bundle,
    cache: Cache,
    options: DepthOptions,
    base: TreeSpec,
    on_note: Callable[[str], None],
) -> Pair:
    """Loads the graphs; raises what that raises, and RecipeError where `base` is too small."""
    manifest = bundle.manifest
    schedule = manifest.schedule
    threads = choose_threads(options.num_threads, manifest.target.tuned_for)
    graphs = load_graphs(bundle, cache, num_threads=threads, mapped=False, on_note=on_note)
    draft = load_draft_graphs(bundle, cache)
    table = LatencyTable.of(manifest.latency, manifest.graphs)
    with swap_constants(bundle) as swap:
        num_units, max_depth = swap.num_units, swap.num_heads
    expanded = UNLIMITED if draft is None else draft.max_expanded
    return Pair(
        bundle=bundle,
        graphs=graphs,
        draft=draft,
        costs=Costs(table, schedule.rest_s, 0.0, table.draft_step),
        objective=Objective(schedule.objective, schedule.rate),
        base=base,
        full=full_depth(base, max_depth, graphs.row_counts[-1], expanded),
        num_units=num_units,
        max_depth=max_depth,
        sampling=SamplingParams(temperature=options.temperature),
        seed=options.fit.seed,
        keyed_select=getattr(graphs.operators, "keyed_select", None),
    )
