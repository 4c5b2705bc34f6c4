"""Which tree to ship: replayed acceptance against a latency table. Pure; shared by the compiler
and `yggrt tune`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from yggrt.core.schema import Candidate


@dataclass(frozen=True, slots=True)
class Replay:
    """What one tree spec did over recorded outputs: passes by the row count of their graph, tokens
    they emitted.

    `num_tokens` does not count the token that prefill gives. `num_drafted` passes had a tree grown
    for them, which takes `draft_s` seconds each.
    """

    tree: str
    num_tokens: int
    passes_by_rows: Mapping[int, int]
    num_drafted: int = 0
    draft_s: float = 0.0

    @property
    def num_passes(self) -> int:
        return sum(self.passes_by_rows.values())

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per pass, the bonus token included; 0 without a pass."""
        return self.num_tokens / self.num_passes if self.num_passes else 0.0

    def seconds(self, latency: Callable[[int], float], rest_s: float) -> float:
        """Predicted time of all passes."""
        passes_s = sum(num * (latency(rows) + rest_s) for rows, num in self.passes_by_rows.items())
        return passes_s + self.num_drafted * self.draft_s


def combine(replays: Iterable[Replay]) -> Replay:
    """The sum of replays of one tree over different recordings; at least one."""
    parts = list(replays)
    passes: Counter[int] = Counter()
    for part in parts:
        passes.update(part.passes_by_rows)
    return Replay(
        parts[0].tree,
        sum(part.num_tokens for part in parts),
        passes,
        sum(part.num_drafted for part in parts),
        parts[0].draft_s,
    )


def search_schedule(
    replays: Iterable[Replay], latency: Callable[[int], float], rest_s: float
) -> tuple[Candidate, ...]:
    """Every tree and plain decoding, the least time per token first; on a tie plain, then the
    given order.

    `latency` gives seconds of a verify pass by row count, `rest_s` the host's own seconds per
    pass.
    """
    plain_s = latency(1) + rest_s
    candidates = [_candidate("plain", 1.0, plain_s, plain_s)]
    for replay in replays:
        if not replay.num_passes:
            continue
        token_s = replay.seconds(latency, rest_s) / replay.num_tokens
        candidates.append(_candidate(replay.tree, replay.mean_acceptance_length, token_s, plain_s))
    return tuple(sorted(candidates, key=lambda candidate: candidate.tpot_ms))


def choose_buckets(replay: Replay, min_share: float = 0.01) -> tuple[int, ...]:
    """Row counts worth a graph: 1, the largest used, and those that at least `min_share` of the
    passes ran in."""
    least = min_share * replay.num_passes
    used = {rows for rows, num in replay.passes_by_rows.items() if num >= least}
    return tuple(sorted({1, max(replay.passes_by_rows, default=1)} | used))


def _candidate(tree: str, tokens_per_pass: float, token_s: float, plain_s: float) -> Candidate:
    return Candidate(
        tree=tree,
        mean_acceptance_length=tokens_per_pass,
        tpot_ms=1000 * token_s,
        speedup=plain_s / token_s,
    )
