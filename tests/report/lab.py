"""A manifest with times, recordings and candidates that figures can be worked out from by hand,
and benches of it; nothing loads its code."""

from __future__ import annotations

from typing import Any

import msgspec
from bundle.small import graph, manifest

from yggc.report_page.measured import Bench
from yggrt.core.schema import (
    Candidate,
    DepthPredictor,
    Golden,
    LatencyJump,
    LatencyPoint,
    LmDrafter,
    Manifest,
    ProfileNotes,
)

TREE = "egt:width=2,depth=2,children=4,verify=4,frontier=global"


def points(graph_name: str, rows: int, times_ms: dict[int, float]) -> list[LatencyPoint]:
    """Times by context; ranges of a tenth of them."""
    return [
        LatencyPoint(
            graph=graph_name,
            rows=rows,
            context=context,
            median_s=ms / 1e3,
            spread_s=ms / 1e4,
        )
        for context, ms in times_ms.items()
    ]


def lab(**schedule: Any) -> Manifest:
    """n-grams draft; verify graphs of 1, 4 and 8 rows take 10, 12 and 18 ms."""
    small = manifest()
    graphs = (graph("w001", 1), graph("w004", 4), graph("w008", 8), graph("p008", 8, "prefill"))
    latency = [
        *points("w001", 1, {8: 10.0, 32: 12.0}),
        *points("w004", 4, {8: 12.0, 32: 13.0}),
        *points("w008", 8, {8: 18.0, 32: 17.0}),
    ]
    jump = LatencyJump(kind="verify", axis="rows", at=8, lower=4, upper=8, ratio=1.5)
    chosen: dict[str, Any] = {
        "tree": TREE,
        "rest_s": 0.001,
        "stage_s": {"draft": 0.002, "accept": 0.0005, "commit": 0.0003, "other": 0.0002},
        "candidates": (
            candidate("plain", 1.0, 10.0, 1.0, 10.0, 1.0),
            candidate(TREE, 2.0, 8.0, 1.25, 10.0, 1.0),
            candidate("sequence:depth=3", 1.8, 9.0, 1.1, 9.0, 1.2),
            candidate("sequence:depth=2", 1.7, 7.0, 1.4, None, None),
        ),
        "recordings": tuple(
            Golden(prompt_ids=(1, 2, 3, 4), output_ids=(5, 6, 7, 1, 2, 3, 4, 5, 6, 7) * 2)
            for _ in range(4)
        ),
    }
    return msgspec.structs.replace(
        small,
        graphs=graphs,
        latency=tuple(latency),
        profile=ProfileNotes(busy_share=0.01, num_rounds=3, jumps=(jump,)),
        schedule=msgspec.structs.replace(small.schedule, **(chosen | schedule)),
    )


def drafted_lab() -> Manifest:
    """A model drafts: steps of 1 and 2 nodes take 2 and 3 ms."""
    made = lab(drafter=LmDrafter(temperatures=(1.0,), agreement=0.7, num_positions=50))
    draft = [
        msgspec.structs.replace(graph(name, rows), kind="draft")
        for name, rows in (("d001", 1), ("d002", 2))
    ]
    latency = [*points("d001", 1, {8: 2.0}), *points("d002", 2, {8: 3.0})]
    return msgspec.structs.replace(
        made,
        graphs=(*made.graphs, *draft),
        latency=(*made.latency, *latency),
        drafter=made.model,
    )


def candidate(
    tree: str,
    tokens: float,
    tpot_ms: float,
    speedup: float,
    measured_ms: float | None,
    measured_speedup: float | None,
) -> Candidate:
    return Candidate(
        tree=tree,
        mean_acceptance_length=tokens,
        tpot_ms=tpot_ms,
        speedup=speedup,
        measured_tpot_ms=measured_ms,
        measured_speedup=measured_speedup,
    )


DEPTH = DepthPredictor(
    tree="sequence:depth=2",
    temperature=0.0,
    rows=(1, 2, 4),
    base_tokens=1.0,
    worth=(0.6, 0.5),
    is_on=False,
    num_traces=900,
    num_prompts=64,
    log_loss=0.6125,
    constant_log_loss=0.6625,
    calibration_error=(0.02, 0.03),
    against="sequence:depth=1",
    num_measured=12,
    gain=0.994,
    gain_interval=(0.98, 1.01),
)


def depth_json(**changes: Any) -> dict[str, Any]:
    """What training DEPTH printed."""
    return {
        "output": "new.ygg",
        "predictor": msgspec.to_builtins(DEPTH),
        "ablations": [
            {"name": "constant", "log_loss": 0.6625, "tpot_ms": 6.0},
            {"name": "hidden", "log_loss": 0.6125, "tpot_ms": 5.9},
            {"name": "who knows L", "log_loss": None, "tpot_ms": 5.5},
        ],
        "fixed_depth_ms": [10.0, 7.0, 6.5],
        "depth_shares": [0.1, 0.4, 0.5],
        "reliability": [
            {"depth": 1, "error": 0.02, "bins": [
                {"predicted": 0.2, "observed": 0.25, "num": 30},
                {"predicted": 0.8, "observed": 0.75, "num": 90},
            ]},
        ],
        "categories": [
            {"category": "code", "num_traces": 120,
             "constant": {"log_loss": 0.7, "tpot_ms": 5.0},
             "hidden": {"log_loss": 0.6, "tpot_ms": 4.75}},
        ],
        "measured_ms": {"sequence:depth=1": 16.0, "with the predictor": 16.096},
        "ratios": [0.99, 1.0],
        "num_prompts": {"train": 40, "validate": 12, "test": 12},
        **changes,
    }  # fmt: skip


def bench_json(**changes: Any) -> dict[str, Any]:
    """What a bench of TREE prints, as far as it is read."""
    plain = {
        "tpot_ms": 11.0,
        "mean_acceptance_length": 1.0,
        "num_passes": 100,
        "num_gated_passes": 0,
        "accepted": 0,
        "acceptance_per_depth": [],
        "tests_per_depth": [],
    }
    tree = {
        **plain,
        "spec": TREE,
        "tpot_ms": 8.8,
        "mean_acceptance_length": 1.9,
        "num_gated_passes": 3,
        "accepted": 90,
        "acceptance_per_depth": [0.6, 0.5],
        "tests_per_depth": [100, 60],
        "acceptance_per_rank": [0.5, 0.125],
        "tests_per_rank": [160, 80],
        "promised": [
            {"num_passes": 40, "expected": 10.0, "accepted": 20},
            {"num_passes": 60, "expected": 80.0, "accepted": 70},
        ],
    }
    return {
        "bundle": "small",
        "digest": "d" * 64,
        "plain": plain,
        "tree": tree,
        "speedup": 1.25,
        "speedup_interval": [1.2, 1.3],
        "num_prompts": 4,
        "num_tokens": 32,
        "busy_share": 0.0,
        "unread": "by a report",
        **changes,
    }


def policies_json(**changes: Any) -> dict[str, Any]:
    """What a comparison of two policies at one temperature prints, as far as it is read."""
    plain = {
        "policy": "plain",
        "tree": "plain",
        "tpot_ms": 6.0,
        "mean_acceptance_length": 1.0,
        "speedup": 1.0,
        "speedup_interval": [1, 1],
        "behind": 1.5,
        "behind_interval": [1.4, 1.6],
    }
    egt = {
        **plain,
        "policy": "egt",
        "tree": TREE,
        "tpot_ms": 4.0,
        "mean_acceptance_length": 2.25,
        "speedup": 1.5,
        "speedup_interval": [1.4, 1.625],
        "behind": 1.0,
        "behind_interval": None,
    }
    lengths = {8: {"egt": 2.0}, 4: {"egt": 1.5, "sequence": 1.25}}
    budgets = [
        {
            "rows": rows,
            "policies": [
                {"policy": name, "tree": "", "mean_acceptance_length": length}
                for name, length in known.items()
            ],
        }
        for rows, known in lengths.items()
    ]
    return {
        "bundle": "small",
        "digest": "d" * 64,
        "prompts": ["1", "2"],
        "num_tokens": 12,
        "reference": "egt",
        "refused": [{"policy": "medusa", "reason": "no tree of it fits"}],
        "busy_share": 0.0,
        "temperatures": [{"temperature": 0.6, "policies": [egt, plain], "budgets": budgets}],
        **changes,
    }


def bench(**changes: Any) -> Bench:
    return msgspec.convert(bench_json(**changes), Bench)
