"""What `yggrt bench` found of each bundle on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yggc.diff.fields import Pair
from yggc.diff.side import Side
from yggc.report_page.measured import Bench, read_measured


def read_benches(
    old: Side, new: Side, bench_old: Path | None, bench_new: Path | None
) -> dict[str, Pair] | None:
    """The old and the new value of each number, None of a bundle without bench; None if both are.

    Raises RequestError for a file that is no bench, or not that bundle's.
    """
    if bench_old is None and bench_new is None:
        return None
    before, after = _shown(old, bench_old), _shown(new, bench_new)
    return {name: [before.get(name), after.get(name)] for name in before or after}


def _shown(side: Side, path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    [bench] = read_measured([path], [], side.manifest.name, side.digest).benches
    return _numbers(bench)


def _numbers(bench: Bench) -> dict[str, Any]:
    return {
        "plain_tpot_ms": bench.plain.tpot_ms,
        "tree_tpot_ms": bench.tree.tpot_ms,
        "speedup": bench.speedup,
        "speedup_interval": bench.speedup_interval and list(bench.speedup_interval),
        "mean_acceptance_length": bench.tree.mean_acceptance_length,
        "acceptance_per_depth": list(bench.tree.acceptance_per_depth),
        "num_prompts": bench.num_prompts,
        "num_tokens": bench.num_tokens,
    }
