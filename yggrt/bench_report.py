"""The numbers of a bench, in JSON types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median, quantiles
from typing import Any

from yggrt.bench_runs import Conversation, Measured, Run, Turn
from yggrt.engine_stats import Promised
from yggrt.interval import mean_with_interval


def report(measured: Measured, weight_bytes: int, bandwidth: float) -> dict[str, Any]:
    """The measurement in JSON types; times in ms, `bandwidth` in bytes/s."""
    conversations = measured.conversations
    turns = [turn for one in conversations for turn in one.turns]
    by_category: dict[str, list[Conversation]] = {}
    for one in conversations:
        by_category.setdefault(one.prompt.category, []).append(one)
    return {
        "plain": _way([turn.plain for turn in turns], weight_bytes, bandwidth),
        "tree": {
            # What the runs decoded with: a depth predictor has a tree of its own.
            "spec": turns[0].tree[0].done.stats.tree,
            **_way([turn.tree for turn in turns], weight_bytes, bandwidth),
        },
        **_speedup(conversations),
        "categories": {name: _category(some) for name, some in by_category.items()},
        "neighbour_spread": median(spread for turn in turns for spread in turn.spreads),
        "num_prompts": len(conversations),
        "num_turns": len(turns),
        "num_turns_left_out": measured.num_left_out,
        "interrupted": measured.is_interrupted,
        "warmup_s": measured.warmup_s,
        "weight_bytes": weight_bytes,
        "per_prompt": [_row(one, turn) for one in conversations for turn in one.turns],
    }


def reached_per_depth(histogram: Mapping[int, int]) -> list[int]:
    """Passes that reached depth 1, 2, and so on, from the passes by the depth they reached."""
    deepest = max(histogram, default=0)
    return [
        sum(count for reached, count in histogram.items() if reached >= depth)
        for depth in range(1, deepest + 1)
    ]


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear between the values; a single value is every percentile."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _way(runs: Sequence[Sequence[Run]], weight_bytes: int, bandwidth: float) -> dict[str, Any]:
    """Numbers of one way of decoding; `runs` by turn."""
    every = [run for turn in runs for run in turn]
    stats = [run.done.stats for run in every]
    num_passes = sum(one.num_passes for one in stats)
    stage_ms: dict[str, float] = {}
    tests: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    ranks: Counter[int] = Counter()
    children: Counter[int] = Counter()
    for one in stats:
        for name, ms in one.stage_ms.items():
            stage_ms[name] = stage_ms.get(name, 0.0) + ms
        tests.update(one.tests_histogram)
        accepted.update(one.accepted_histogram)
        ranks.update(one.ranks_histogram)
        children.update(one.children_histogram)
    tests_per_depth = reached_per_depth(tests)
    accepts_per_depth = reached_per_depth(accepted)
    tests_per_rank = reached_per_depth(children)
    decode_ms = sum(stage_ms.values())
    bytes_per_s = weight_bytes * num_passes / (stage_ms["verify"] / 1e3)
    tpots = [run.tpot_ms for run in every]
    gaps = [gap for run in every for gap in run.gaps_ms]
    ttfts = [one.ttft_ms for one in stats]
    return {
        "tpot_ms": median(median(run.tpot_ms for run in turn) for turn in runs),
        "tpot_p50_ms": median(tpots),
        "tpot_p95_ms": percentile(tpots, 95),
        "gap_p50_ms": median(gaps),
        "gap_p95_ms": percentile(gaps, 95),
        "prefill_ms": median(one.prefill_ms for one in stats),
        "ttft_ms": median(ttfts),
        "ttft_p95_ms": percentile(ttfts, 95),
        "mean_acceptance_length": sum(one.mean_acceptance_length * one.num_passes for one in stats)
        / num_passes,
        # Shares of the passes in which a drafted token was tested at depth 1, 2, and so on.
        "acceptance_per_depth": [
            num_accepts / num_tests
            for num_accepts, num_tests in zip_longest(
                accepts_per_depth, tests_per_depth, fillvalue=0
            )
        ],
        "tests_per_depth": tests_per_depth,
        # Shares of the visited rows with a first, a second child and so on that it was accepted.
        "acceptance_per_rank": [
            ranks[rank] / num_tests for rank, num_tests in enumerate(tests_per_rank)
        ],
        "tests_per_rank": tests_per_rank,
        "promised": _promised([one.promised for one in stats]),
        # Of the accepted tokens, those that each of two drafters had.
        "accepted": sum(one.accepted for one in stats),
        "accepted_first": sum(one.accepted_first for one in stats),
        "accepted_second": sum(one.accepted_second for one in stats),
        "num_tokens": sum(one.num_tokens for one in stats),
        "num_passes": num_passes,
        "num_plain_passes": sum(one.num_plain_passes for one in stats),
        "num_gated_passes": sum(one.num_gated_passes for one in stats),
        "num_rows": sum(one.num_rows for one in stats),
        "stage_share": {name: ms / decode_ms for name, ms in stage_ms.items()},
        "weight_bytes_per_s": bytes_per_s,
        "bandwidth_share": bytes_per_s / bandwidth,
    }


def _promised(every: Sequence[Mapping[int, Promised]]) -> list[dict[str, Any]]:
    """Passes with a tree by what they promised, least first."""
    found: dict[int, list[Promised]] = {}
    for one in every:
        for step, promised in one.items():
            found.setdefault(step, []).append(promised)
    return [
        {
            "num_passes": sum(one.num_passes for one in some),
            "expected": sum(one.expected for one in some),
            "accepted": sum(one.accepted for one in some),
        }
        for _, some in sorted(found.items())
    ]


def _speedup(conversations: Sequence[Conversation]) -> dict[str, Any]:
    """The mean over prompts and its interval; turns of one prompt are not independent, so prompts
    are what is drawn.
    """
    return mean_with_interval("speedup", [one.speedup for one in conversations])


def _category(conversations: Sequence[Conversation]) -> dict[str, Any]:
    turns = [turn for one in conversations for turn in one.turns]
    stats = [run.done.stats for turn in turns for run in turn.tree]
    num_passes = sum(one.num_passes for one in stats)
    return {
        "num_prompts": len(conversations),
        "plain_tpot_ms": _median_tpot(turn.plain for turn in turns),
        "tree_tpot_ms": _median_tpot(turn.tree for turn in turns),
        "mean_acceptance_length": sum(one.mean_acceptance_length * one.num_passes for one in stats)
        / num_passes,
        **_speedup(conversations),
    }


def _row(conversation: Conversation, turn: Turn) -> dict[str, Any]:
    tree = turn.tree[0].done.stats
    every = (*turn.plain, *turn.tree)
    return {
        "name": conversation.prompt.name,
        "category": conversation.prompt.category,
        "turn": turn.number,
        "num_prompt_tokens": tree.num_prompt_tokens,
        "num_tokens": tree.num_tokens,
        "plain_tpot_ms": median(run.tpot_ms for run in turn.plain),
        "tree_tpot_ms": median(run.tpot_ms for run in turn.tree),
        "prefill_ms": median(run.done.stats.prefill_ms for run in every),
        "ttft_ms": median(run.done.stats.ttft_ms for run in every),
        "mean_acceptance_length": tree.mean_acceptance_length,
        "num_gated_passes": tree.num_gated_passes,
        "speedup": turn.speedup,
    }


def _median_tpot(runs: Iterable[Sequence[Run]]) -> float:
    return median(median(run.tpot_ms for run in some) for some in runs)
