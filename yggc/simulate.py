"""What trees would do, without a pass of the verifier: replays over recordings or traces, and what
they take by the bundle's own times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yggc.traces import Traces
from yggrt.bundle import Bundle
from yggrt.cache import Cache
from yggrt.core.errors import RequestError
from yggrt.core.objective import RATIO
from yggrt.core.schema import Candidate, LookaheadDrafter, Manifest, MedusaDrafter, TreeSpec
from yggrt.core.search import DEPTHS, WIDTHS, Replay, combine, plain_replay, search_schedule
from yggrt.core.spec import format_tree_spec
from yggrt.drafters import Noise
from yggrt.drafters.calibrate import Recording
from yggrt.gate import Gate, OpenGate, RunningGate
from yggrt.loading import load_draft_graphs, load_parts
from yggrt.policies import Room
from yggrt.recordings import bundle_folds, with_needed_hidden
from yggrt.replay import replay
from yggrt.scheduling import Fold
from yggrt.session import Parts

# Settings are tried on so many recorded tokens, the best few on all.
QUICK_TOKENS = 512
NUM_REFINED = 3


@dataclass(frozen=True, slots=True)
class Simulator:
    """Replays trees of a bundle. `folds`: drafters with what they are tried on; `unseen_s`:
    seconds of a pass that replays do not run; `noise`: what the tokens were chosen with."""

    parts: Parts
    folds: Sequence[Fold]
    unseen_s: float
    noise: Noise | None = None

    def replay(self, spec: TreeSpec, *, gated: bool = True) -> Replay:
        """What a session would do; without `gated`, one that drafts in every pass and verifies
        all rows that it may. RequestError for a tree that the bundle cannot hold."""
        parts = self.parts
        shaped = parts.resolve(spec)
        found = []
        for drafter, recordings in self.folds:
            gate: Gate = RunningGate() if gated else OpenGate()
            found.append(
                replay(
                    drafter,
                    shaped,
                    recordings,
                    parts.graphs.row_counts,
                    parts.latency if gated else lambda rows, context: 1.0,
                    parts.rest_s,
                    gate,
                    parts.objective if gated else RATIO,
                    parts.draft_step,
                    self.noise,
                )
            )
        return combine(found)

    def predict(self, replays: Iterable[Replay]) -> tuple[Candidate, ...]:
        """Plain decoding and the replayed trees, the least predicted time per token first."""
        plain = plain_replay(one for _, recordings in self.folds for one in recordings)
        return search_schedule(replays, plain, self.parts.latency, self.unseen_s)

    def fastest(
        self,
        specs: Sequence[TreeSpec],
        progress: Callable[[str], None] = lambda text: None,
        *,
        gated: bool = True,
    ) -> TreeSpec:
        """The spec with the least predicted time per token."""

        def seconds(simulator: Simulator, spec: TreeSpec) -> float:
            one = simulator.replay(spec, gated=gated)
            total_s = one.seconds(simulator.parts.latency, simulator.unseen_s)
            return total_s / max(1, one.num_tokens)

        return self._best(specs, seconds, progress)

    def longest(
        self,
        specs: Sequence[TreeSpec],
        progress: Callable[[str], None] = lambda text: None,
    ) -> tuple[TreeSpec, float]:
        """The spec with the largest mean acceptance length without a gate, and that length."""

        def length(simulator: Simulator, spec: TreeSpec) -> float:
            return -simulator.replay(spec, gated=False).mean_acceptance_length

        best = self._best(specs, length, progress)
        return best, -length(self, best)

    def _best(
        self,
        specs: Sequence[TreeSpec],
        cost: Callable[[Simulator, TreeSpec], float],
        progress: Callable[[str], None],
    ) -> TreeSpec:
        total = sum(len(one.output) for _, recordings in self.folds for one in recordings)
        every = max(1, round(total / QUICK_TOKENS))
        rounds = [replace(self, folds=[(one, some[::every]) for one, some in self.folds])]
        if every > 1:
            rounds.append(self)
        left = list(specs)
        for simulator in rounds:
            costs = {}
            for spec in left:
                progress(format_tree_spec(spec))
                costs[spec] = cost(simulator, spec)
            left = sorted(left, key=costs.__getitem__)[:NUM_REFINED]
        return left[0]


def check_replayable(manifest: Manifest) -> None:
    """Raises RequestError for a Lookahead bundle: what its window asks the verifier is no text,
    so recordings do not have it."""
    if isinstance(manifest.schedule.drafter, LookaheadDrafter):
        raise RequestError(
            "the bundle's drafter is lookahead, whose trees depend on what its window is answered",
            "`yggrt bench --tree lookahead:...` measures them; another drafter's bundle can be "
            "simulated",
        )


def simulator_of(
    bundle: Bundle,
    cache: Cache,
    traces: Traces | None,
    *,
    num_threads: int | None = None,
    on_note: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], None] = lambda text: None,
) -> Simulator:
    """Over the bundle's own recordings with drafters that do not know them, or over traces with
    the drafter that it ships."""
    check_replayable(bundle.manifest)
    parts = load_parts(bundle, cache, num_threads=num_threads, mapped=True, on_note=on_note)
    if traces is None:
        draft = load_draft_graphs(bundle, cache)
        folds = bundle_folds(bundle, parts.graphs, float("inf"), progress, draft)
        noise = None
    else:
        recordings: Sequence[Recording] = traces.recordings
        if isinstance(bundle.manifest.schedule.drafter, MedusaDrafter):
            # The logits of all heads would make large files; one pass over the ids gives them.
            recordings = with_needed_hidden(bundle.manifest, parts.graphs, recordings, None)
        folds = [(parts.drafter, recordings)]
        noise = traces.noise
    if not any(len(one.output) > 1 for _, recordings in folds for one in recordings):
        raise RequestError(
            "no recorded output has two tokens, so there is no pass to replay",
            "record longer ones with `yggc traces`",
        )
    return Simulator(parts, folds, unseen_seconds(bundle.manifest), noise)


def unseen_seconds(manifest: Manifest) -> float:
    """Of a pass, beside verifying, drafting and accepting."""
    schedule = manifest.schedule
    if not schedule.stage_s:
        return schedule.rest_s
    return schedule.stage_s.get("commit", 0.0) + max(0.0, schedule.stage_s.get("other", 0.0))


def room_of(manifest: Manifest, parts: Parts) -> Room:
    """What trees a bundle has room for."""
    widths = {graph.max_rows for graph in manifest.graphs if graph.kind == "draft"}
    return Room(
        row_counts=parts.graphs.row_counts,
        widths=tuple(sorted(widths)) or WIDTHS,
        max_depth=min(manifest.model.max_depth, DEPTHS[-1]),
        max_expanded=parts.drafter.max_expanded,
    )


def within(room: Room, max_rows: int) -> Room:
    """The room of trees that verify at most `max_rows` rows, one of its graphs or not."""
    counts = sorted({*(count for count in room.row_counts if count < max_rows), max_rows})
    return replace(room, row_counts=tuple(counts))


def describe(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """In JSON types."""
    return [
        {
            "tree": one.tree,
            "mean_acceptance_length": one.mean_acceptance_length,
            "tpot_ms": one.tpot_ms,
            "speedup": one.speedup,
        }
        for one in candidates
    ]
