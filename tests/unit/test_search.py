"""The schedule search and the replay that feeds it."""

from __future__ import annotations

import pytest
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs, UselessDrafter

from yggrt.core.search import Replay, choose_buckets, combine, search_schedule
from yggrt.core.spec import parse_tree_spec
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.replay import replay

SECONDS = {1: 0.020, 4: 0.024, 8: 0.030, 16: 0.050}
SMALL = Replay("sequence:depth=3", 200, {1: 20, 4: 80})
LARGE = Replay("egt:width=4,depth=4,children=8,verify=16,frontier=global", 240, {1: 10, 16: 70})


def test_candidates_come_best_first_with_plain_among_them():
    candidates = search_schedule([LARGE, SMALL], SECONDS.__getitem__, 0.001)
    assert [candidate.tree for candidate in candidates] == [SMALL.tree, LARGE.tree, "plain"]
    small, large, plain = candidates
    assert small.tpot_ms == pytest.approx((20 * 21 + 80 * 25) / 200)
    assert large.tpot_ms == pytest.approx((10 * 21 + 70 * 51) / 240)
    assert (plain.tpot_ms, plain.speedup, plain.mean_acceptance_length) == (21.0, 1.0, 1.0)
    assert small.speedup == pytest.approx(21 / small.tpot_ms)
    assert small.mean_acceptance_length == 2


def test_plain_wins_where_trees_do_not_pay():
    assert search_schedule([LARGE], lambda rows: float(rows), 0.0)[0].tree == "plain"
    assert search_schedule([Replay("t", 10, {1: 10})], lambda rows: 1.0, 0.0)[0].tree == "plain"


def test_a_tree_that_never_ran_is_left_out():
    empty = Replay("sequence:depth=1", 0, {})
    candidates = search_schedule([empty], SECONDS.__getitem__, 0.0)
    assert [candidate.tree for candidate in candidates] == ["plain"]


def test_combined_replays_add_up():
    both = combine([SMALL, Replay(SMALL.tree, 10, {4: 1, 8: 2})])
    assert both == Replay(SMALL.tree, 210, {1: 20, 4: 81, 8: 2})


def test_the_time_of_drafting_counts_where_a_tree_was_drafted():
    drafted = Replay(SMALL.tree, 200, {1: 20, 4: 80}, num_drafted=90, draft_s=0.01)
    assert drafted.seconds(SECONDS.__getitem__, 0.001) == pytest.approx(
        SMALL.seconds(SECONDS.__getitem__, 0.001) + 0.9
    )
    assert combine([drafted, drafted]).num_drafted == 180
    assert combine([drafted, drafted]).draft_s == 0.01
    # 200 tokens take 4.2 s plain and 3.3 s with this tree's drafts.
    assert search_schedule([drafted], SECONDS.__getitem__, 0.001)[0].tree == SMALL.tree
    slow = Replay(SMALL.tree, 200, {1: 20, 4: 80}, num_drafted=90, draft_s=0.03)
    assert search_schedule([slow], SECONDS.__getitem__, 0.001)[0].tree == "plain"


def test_buckets_that_hardly_ran_are_dropped_but_not_the_largest():
    assert choose_buckets(Replay("t", 0, {1: 500, 4: 2, 8: 490, 16: 1})) == (1, 8, 16)
    assert choose_buckets(Replay("t", 0, {8: 5})) == (1, 8)
    assert choose_buckets(Replay("t", 0, {})) == (1,)


@pytest.mark.parametrize("make_drafter", [RandomDrafter, OracleDrafter, UselessDrafter])
@pytest.mark.parametrize("tree", ["egt:width=4,depth=4,verify=16", "sequence:depth=8"])
def test_replay_predicts_what_the_engine_does(tree, make_drafter):
    graphs = ScriptedGraphs()
    spec = parse_tree_spec(tree)
    engine = Engine(
        graphs, graphs.new_cache(), make_drafter(), spec, SECONDS.__getitem__, 0.001, OpenGate()
    )
    engine.start([1, 2, 3])
    while engine.room:
        engine.step()
    prompt, output = engine.ids[:3], engine.ids[3:]
    predicted = replay(
        make_drafter(), spec, [(prompt, output)], graphs.row_counts,
        SECONDS.__getitem__, 0.001, OpenGate(),
    )  # fmt: skip
    assert predicted.num_tokens == engine.stats.num_tokens
    assert predicted.num_passes == engine.stats.num_passes
    ran = [rows for call, rows in graphs.calls if call == "verify"]
    assert predicted.passes_by_rows == {rows: ran.count(rows) for rows in ran}
    assert predicted.seconds(SECONDS.__getitem__, 0.0) == pytest.approx(
        sum(SECONDS[rows] for rows in ran)
    )


def test_outputs_of_one_token_need_no_pass():
    spec = parse_tree_spec("sequence:depth=2")
    found = replay(
        RandomDrafter(), spec, [([1], [2]), ([1], [])], (1, 4), lambda rows: 1.0, 0.0, OpenGate()
    )
    assert (found.num_passes, found.num_tokens, found.mean_acceptance_length) == (0, 0, 0)
