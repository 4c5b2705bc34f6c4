"""Schedules scored without running them."""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

import pytest

from yggrt.core.plans import plans
from yggrt.core.schema import Candidate
from yggrt.core.search import Replay, first_trees
from yggrt.core.spec import parse_tree_spec
from yggrt.plan_costs import plan_candidates, stage_times

TREE = "egt:width=4,depth=3,children=8,verify=8,frontier=global"
# Four passes of ten tokens, two of which accepted three levels.
# The host took 26 seconds, drafting among them, for which it waits 5 a pass.
REPLAY = Replay(TREE, 10, {(8, 100): 3, (4, 100): 1}, F(26), num_full=2)  # type: ignore[arg-type]
UNSEEN: Any = F(1, 4)


def latency(rows: int, context: int) -> Any:
    return F(10 + rows)


def draft_step(nodes: int, context: int) -> Any:
    return F(1) if nodes == 1 else F(2)


def predicted(kind: Any) -> dict[str, Any]:
    found = Candidate(tree=TREE, mean_acceptance_length=2.5, tpot_ms=F(20), speedup=F(1))  # type: ignore[arg-type]
    shaped = parse_tree_spec(TREE)
    candidates = plan_candidates(found, shaped, REPLAY, kind, latency, draft_step, UNSEEN)
    return {one.tree.partition(";")[2]: one.tpot_ms for one in candidates}


def test_stage_times_are_those_of_the_passes() -> None:
    times = stage_times(parse_tree_spec(TREE), REPLAY, latency, draft_step, UNSEEN)
    assert times.verify_s == 17
    assert times.p_full == 0.5
    assert (times.head_s, times.body_s, times.tail_s) == (1, 2, 1)
    assert (times.prune_s, times.commit_s) == (F(3, 2), F(1, 4))
    ahead = stage_times(parse_tree_spec(TREE + ";tail=ahead"), REPLAY, latency, draft_step, UNSEEN)
    assert ahead.tail_s == 2


def test_plans_in_proportion_to_their_periods() -> None:
    """By default: half a leaf 0.5, head 1, two bodies 4, host 1.75, pass 17."""
    usual = F(1, 2) + 1 + 4 + F(7, 4) + 17
    found = predicted("lm")
    assert len(found) == 15
    assert found["tail=ahead"] == pytest.approx(20 * float((usual + F(3, 2)) / usual))
    four = found["head=post_verify,head_rows=4"]
    assert four == pytest.approx(20 * float((usual + 1) / usual))
    # On one thread nothing is gained by doing it later.
    assert found["commit=deferred"] == pytest.approx(20)


def test_without_a_model_plans_are_few() -> None:
    assert set(predicted("eagle")) == {"commit=deferred"}


def test_every_target_has_many_schedules() -> None:
    buckets = (1, 4, 8, 16)
    shapes = {
        (tree.width, tree.depth, rows)
        for tree in first_trees(buckets)
        for rows in (3, 4, 6, 8, 12, 16)
        if rows <= tree.verify
    }
    for kind in ("lm", "eagle", "none"):
        assert len(shapes) * len(plans(kind, "cpu")) >= 200


def test_a_shape_that_was_measured_keeps_its_name() -> None:
    """The tree's text says no shape; what it takes is the shape's."""
    found = Candidate(tree="medusa:nodes=4", mean_acceptance_length=2.5, tpot_ms=20.0, speedup=1.0)
    shaped = parse_tree_spec("static:parents=0/0/1/1")
    names = {
        one.tree: one.tpot_ms
        for one in plan_candidates(found, shaped, REPLAY, "lm", latency, draft_step, UNSEEN)
    }
    assert names["medusa:nodes=4;tail=ahead"] > 20
    assert names["medusa:nodes=4;commit=deferred"] == pytest.approx(20)
