"""Which tree to ship: what trees did over recorded outputs, against a latency table. Pure; shared
by the compiler and `yggrt tune`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from yggrt.core.schema import Candidate, MedusaDrafter, ModelDrafter, Plan, TreeSpec
from yggrt.core.spec import parse_tree_spec

PLAIN = "plain"
WIDTHS = (1, 2, 4, 8)
DEPTHS = (1, 2, 3, 4, 6, 8)
# Columns, n-gram length and guesses of Lookahead's windows.
WINDOWS = ((4, 3, 3), (8, 4, 8), (15, 5, 15))


@dataclass(frozen=True, slots=True)
class Replay:
    """What one tree spec did over recorded outputs.

    `passes`: how many ran, by the row count of their graph and the length of their context;
    `num_tokens`: what they emitted, without the token that prefill gives; `host_s`: measured
    seconds of all of them beside the verify graph, as far as a replay runs it; `num_full`: passes
    that accepted as many tokens as the tree has levels.
    """

    tree: str
    num_tokens: int
    passes: Mapping[tuple[int, int], int]
    host_s: float = 0.0
    num_full: int = 0

    @property
    def num_passes(self) -> int:
        return sum(self.passes.values())

    @property
    def passes_by_rows(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for (rows, _), num in self.passes.items():
            found[rows] += num
        return found

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per pass, the bonus token included; 0 without a pass."""
        return self.num_tokens / self.num_passes if self.num_passes else 0.0

    def seconds(self, latency: Callable[[int, int], float], rest_s: float) -> float:
        """Predicted time of all passes; `rest_s`: of a pass, beside the graph and `host_s`."""
        verify_s = sum(num * latency(*key) for key, num in self.passes.items())
        return verify_s + self.host_s + self.num_passes * rest_s


def combine(replays: Iterable[Replay]) -> Replay:
    """The sum of replays of one tree over different recordings; at least one."""
    parts = list(replays)
    passes: Counter[tuple[int, int]] = Counter()
    for part in parts:
        passes.update(part.passes)
    return Replay(
        parts[0].tree,
        sum(part.num_tokens for part in parts),
        passes,
        sum(part.host_s for part in parts),
        sum(part.num_full for part in parts),
    )


def plain_replay(recordings: Iterable[Sequence[Any]]) -> Replay:
    """Plain decoding of (prompt, output, ...) ids: one row per token after the first."""
    passes: Counter[tuple[int, int]] = Counter()
    for prompt, output, *_ in recordings:
        passes.update((1, len(prompt) + i) for i in range(len(output) - 1))
    return Replay(PLAIN, passes.total(), passes)


def search_schedule(
    replays: Iterable[Replay],
    plain: Replay,
    latency: Callable[[int, int], float],
    rest_s: float,
) -> tuple[Candidate, ...]:
    """Every tree and plain decoding, the least time per token first; on a tie plain, then the
    given order.

    `latency` gives seconds of a verify pass by row count and context length, `rest_s` the seconds
    of a pass that a replay does not see. Replays that no pass ran in are left out.
    """
    plain_s = plain.seconds(latency, rest_s) / plain.num_tokens
    candidates = [
        Candidate(
            tree=one.tree,
            mean_acceptance_length=one.mean_acceptance_length,
            tpot_ms=1000 * token_s,
            speedup=plain_s / token_s,
        )
        for one in (plain, *replays)
        if one.num_passes
        for token_s in [one.seconds(latency, rest_s) / one.num_tokens]
    ]
    return tuple(sorted(candidates, key=lambda candidate: candidate.tpot_ms))


def choose_buckets(replay: Replay, min_share: float = 0.01) -> tuple[int, ...]:
    """Row counts worth a graph: 1, the largest used, and those that at least `min_share` of the
    passes ran in."""
    by_rows = replay.passes_by_rows
    least = min_share * replay.num_passes
    used = {rows for rows, num in by_rows.items() if num >= least}
    return tuple(sorted({1, max(by_rows, default=1)} | used))


def first_trees(buckets: Sequence[int], widths: Sequence[int] = WIDTHS) -> list[TreeSpec]:
    """Equal-growth trees of these widths and every depth, global frontier, each verified in the
    largest bucket that it can fill: what is pruned in a pass depends on the pass."""
    largest = buckets[-1]
    return [
        TreeSpec(
            policy="egt",
            width=width,
            depth=depth,
            children=2 * width,
            verify=min(largest, 1 + width * depth),
        )
        for width in widths
        for depth in DEPTHS
        if largest > 1
    ]


def trees_for(
    drafter: ModelDrafter, widths: Sequence[int], buckets: Sequence[int], max_depth: int
) -> list[TreeSpec]:
    """The trees to try with a model that drafts; `widths` are those of its graphs."""
    if isinstance(drafter, MedusaDrafter):
        # Beside trees as deep as there are heads, for each bucket the one of Medusa's order.
        fixed = [parse_tree_spec(f"medusa:nodes={rows - 1}") for rows in buckets if rows > 1]
        return [*model_trees(WIDTHS, buckets, drafter.num_heads), *fixed]
    return model_trees(widths, buckets, max_depth)


def model_trees(widths: Sequence[int], buckets: Sequence[int], max_depth: int) -> list[TreeSpec]:
    """Plain decoding, chains, and equal-growth trees of every width that a draft graph has, to
    `max_depth`. The engine verifies as much of a tree as pays, so each may fill the largest
    bucket."""
    trees = [TreeSpec(policy="plain")]
    for depth in sorted({max_depth, *(depth for depth in DEPTHS if depth < max_depth)}):
        for width in widths:
            rows = min(buckets[-1], 1 + width * depth)
            if rows > 1:
                egt = TreeSpec(
                    policy="egt", width=width, depth=depth, children=2 * width, verify=rows
                )
                chain = TreeSpec(policy="sequence", depth=depth, verify=rows)
                trees.append(chain if width == 1 else egt)
    return trees


def window_trees(buckets: Sequence[int]) -> list[TreeSpec]:
    """Plain decoding, and Lookahead's windows of several sizes that fit the largest bucket."""
    windows = [
        TreeSpec(policy="lookahead", width=width, depth=ngram - 1, children=guesses, verify=rows)
        for width, ngram, guesses in WINDOWS
        for rows in [1 + (ngram - 1) * (width + guesses)]
        if rows <= buckets[-1]
    ]
    return [TreeSpec(policy="plain"), *windows]


def refined_trees(best: Iterable[TreeSpec], buckets: Sequence[int]) -> list[TreeSpec]:
    """Neighbours of the best trees: the smaller buckets, the other frontier, and all of what was
    drafted verified."""
    found = []
    for spec in best:
        found += [
            msgspec.structs.replace(spec, verify=bucket)
            for bucket in buckets
            if 1 < bucket < spec.verify
        ]
        if spec.policy == "egt" and spec.width > 1:
            found.append(msgspec.structs.replace(spec, frontier="level"))
        found.append(msgspec.structs.replace(spec, plan=Plan(prune="off")))
    return list(dict.fromkeys(found))


def distinct(candidates: Iterable[Candidate], replays: Iterable[Replay], num: int) -> list[str]:
    """The first `num` trees that did not all do the same over the recordings; plain decoding is
    not one."""
    by_tree = {one.tree: one for one in replays}
    seen: set[tuple[object, ...]] = set()
    chosen: list[str] = []
    for candidate in candidates:
        if candidate.tree == PLAIN:
            continue
        one = by_tree[candidate.tree]
        did = (one.num_tokens, *sorted(one.passes.items()))
        if did not in seen and len(chosen) < num:
            seen.add(did)
            chosen.append(candidate.tree)
    return chosen
