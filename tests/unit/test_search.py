"""The schedule search and the replay that feeds it."""

from __future__ import annotations

import pytest
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs, UselessDrafter

from yggrt.core.search import (
    Replay,
    choose_buckets,
    combine,
    distinct,
    first_trees,
    plain_replay,
    refined_trees,
    search_schedule,
)
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.drafters.calibrate import Recording
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.replay import replay

SECONDS = {1: 0.020, 4: 0.024, 8: 0.030, 16: 0.050}
SMALL = Replay("sequence:depth=3", 200, {(1, 30): 20, (4, 30): 80})
LARGE = Replay(
    "egt:width=4,depth=4,children=8,verify=16,frontier=global", 240, {(1, 30): 10, (16, 30): 70}
)
PLAIN = Replay("plain", 100, {(1, 30): 60, (1, 90): 40})


def at(rows, context):
    return SECONDS[rows]


def test_candidates_come_best_first_with_plain_among_them():
    candidates = search_schedule([LARGE, SMALL], PLAIN, at, 0.001)
    assert [candidate.tree for candidate in candidates] == [SMALL.tree, LARGE.tree, "plain"]
    small, large, plain = candidates
    assert small.tpot_ms == pytest.approx((20 * 21 + 80 * 25) / 200)
    assert large.tpot_ms == pytest.approx((10 * 21 + 70 * 51) / 240)
    assert (plain.tpot_ms, plain.speedup, plain.mean_acceptance_length) == (21.0, 1.0, 1.0)
    assert small.speedup == pytest.approx(21 / small.tpot_ms)
    assert small.mean_acceptance_length == 2


def test_plain_wins_where_trees_do_not_pay():
    assert search_schedule([LARGE], PLAIN, lambda rows, _: float(rows), 0.0)[0].tree == "plain"
    useless = Replay("t", 10, {(1, 5): 10})
    assert search_schedule([useless], PLAIN, lambda rows, _: 1.0, 0.0)[0].tree == "plain"


def test_each_pass_is_weighed_at_its_context_and_with_its_host_time():
    def latency(rows, context):
        return rows + context / 10

    one = Replay("t", 30, {(4, 10): 2, (4, 20): 8}, host_s=1.5)
    [tree, plain] = search_schedule([one], PLAIN, latency, 0.5)
    assert (tree.tree, plain.tree) == ("t", "plain")
    assert tree.tpot_ms == pytest.approx(1000 * (2 * 5 + 8 * 6 + 1.5 + 10 * 0.5) / 30)
    assert plain.tpot_ms == pytest.approx(1000 * (60 * (1 + 3) + 40 * (1 + 9) + 100 * 0.5) / 100)


def test_plain_decoding_of_recordings():
    found = plain_replay([([1, 2], [3, 4, 5]), ([1], [2]), ([1, 2, 3], [4, 5])])
    assert (found.num_tokens, found.passes) == (3, {(1, 2): 1, (1, 3): 2})


def test_trees_are_searched_in_two_rounds():
    first = first_trees((1, 4, 16))
    assert len(first) == len(set(first)) == 24
    assert all(1 < spec.verify <= min(16, 1 + spec.width * spec.depth) for spec in first)
    assert first_trees((1,)) == []
    wide = parse_tree_spec("egt:width=4,depth=4,verify=16")
    refined = [format_tree_spec(spec) for spec in refined_trees([wide], (1, 4, 8, 16))]
    assert refined == [
        "egt:width=4,depth=4,children=8,verify=4,frontier=global",
        "egt:width=4,depth=4,children=8,verify=8,frontier=global",
        "egt:width=4,depth=4,children=8,verify=16,frontier=level",
        "egt:width=4,depth=4,children=8,verify=16,frontier=global;prune=off",
    ]


def test_trees_that_did_the_same_are_one():
    twin = Replay("twin", SMALL.num_tokens, SMALL.passes, host_s=0.1)
    replays = [SMALL, twin, LARGE]
    candidates = search_schedule(replays, PLAIN, at, 0.001)
    assert distinct(candidates, replays, 5) == [SMALL.tree, LARGE.tree]
    assert distinct(candidates, replays, 1) == [SMALL.tree]


def test_a_tree_that_never_ran_is_left_out():
    empty = Replay("sequence:depth=1", 0, {})
    candidates = search_schedule([empty], PLAIN, at, 0.0)
    assert [candidate.tree for candidate in candidates] == ["plain"]


def test_combined_replays_add_up():
    both = combine([SMALL, Replay(SMALL.tree, 10, {(4, 30): 1, (8, 9): 2}, 0.25)])
    assert both == Replay(SMALL.tree, 210, {(1, 30): 20, (4, 30): 81, (8, 9): 2}, 0.25)
    assert both.passes_by_rows == {1: 20, 4: 81, 8: 2}


def test_buckets_that_hardly_ran_are_dropped_but_not_the_largest():
    assert choose_buckets(Replay("t", 0, {(1, 0): 500, (4, 0): 2, (8, 0): 490, (16, 0): 1})) == (
        1,
        8,
        16,
    )
    assert choose_buckets(Replay("t", 0, {(8, 0): 5})) == (1, 8)
    assert choose_buckets(Replay("t", 0, {})) == (1,)


@pytest.mark.parametrize("make_drafter", [RandomDrafter, OracleDrafter, UselessDrafter])
@pytest.mark.parametrize("tree", ["egt:width=4,depth=4,verify=16", "sequence:depth=8"])
def test_replay_predicts_what_the_engine_does(tree, make_drafter):
    graphs = ScriptedGraphs()
    spec = parse_tree_spec(tree)
    engine = Engine(graphs, graphs.new_cache(), make_drafter(), spec, at, 0.001, OpenGate())
    engine.start([1, 2, 3])
    while engine.room:
        engine.step()
    prompt, output = engine.ids[:3], engine.ids[3:]
    predicted = replay(
        make_drafter(), spec, [Recording(prompt, output)], graphs.row_counts,
        at, 0.001, OpenGate(),
    )  # fmt: skip
    assert predicted.num_tokens == engine.stats.num_tokens
    assert predicted.num_passes == engine.stats.num_passes
    ran = [rows for call, rows in graphs.calls if call == "verify"]
    assert predicted.passes_by_rows == {rows: ran.count(rows) for rows in ran}
    assert predicted.host_s > 0
    assert predicted.seconds(at, 0.0) - predicted.host_s == pytest.approx(
        sum(SECONDS[rows] for rows in ran)
    )
    # A pass's context is what was committed before it.
    contexts = sorted(context for _, context in predicted.passes)
    assert contexts[0] == 3
    assert contexts[-1] < graphs.max_model_len


def test_outputs_of_one_token_need_no_pass():
    spec = parse_tree_spec("sequence:depth=2")
    found = replay(
        RandomDrafter(),
        spec,
        [Recording([1], [2]), Recording([1], [])],
        (1, 4),
        lambda rows, context: 1.0,
        0.0,
        OpenGate(),
    )
    assert (found.num_passes, found.num_tokens, found.mean_acceptance_length) == (0, 0, 0)
