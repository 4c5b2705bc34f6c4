"""From recordings to a schedule, over scripted graphs and drafters that are right or wrong by
design."""

from __future__ import annotations

from dataclasses import dataclass
from time import sleep
from typing import Any

import pytest
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs, UselessDrafter

from yggrt.core.passes import PassOutput
from yggrt.core.schema import NgramDrafter, Schedule
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters.calibrate import Recording, calibrate_ngram, held_out
from yggrt.scheduling import (
    Costs,
    Limits,
    Run,
    decode,
    find_schedule,
    measure_trees,
    measured_costs,
    record_answers,
)

TREE = "egt:width=4,depth=4,children=8,verify=16,frontier=global"
SHIPPED = NgramDrafter(max_match=1, acceptance=((0.5,) * 6,))
SECONDS = {1: 0.0060, 4: 0.0061, 8: 0.0062, 16: 0.0064}
QUICK = Limits(replay_tokens=200, replay_s=20.0, measure_s=0.2)


@dataclass
class SlowGraphs(ScriptedGraphs):
    """Passes take the time that the table says."""

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        sleep(SECONDS[min(count for count in self.row_counts if count >= tree.num_nodes)])
        return super().verify(cache, tree, length)


def latency(rows: int, context: int) -> float:
    return SECONDS[rows]


COSTS = Costs(latency, 0.0003, 0.0001)


def recorded(num: int = 4) -> list[Recording]:
    graphs = ScriptedGraphs()
    prompts = [[i % 6, (2 * i) % 6, 3] for i in range(num)]
    return [Recording(prompt, graphs.plain(prompt, 24)) for prompt in prompts]


def search(make_drafter: type[RandomDrafter], **options: Any) -> Schedule:
    recordings = recorded()
    folds = [(make_drafter(), recordings[i::2]) for i in range(2)]
    return find_schedule(
        SlowGraphs(),
        folds,
        options.pop("costs", COSTS),
        SHIPPED,
        **{
            "buckets": (1, 4, 8, 16),
            "trees": None,
            "form": "ratio",
            "eos_ids": (),
            "limits": QUICK,
            **options,
        },
    )


def test_a_good_drafter_gets_a_tree_and_the_numbers_of_the_best_five() -> None:
    schedule = search(OracleDrafter)
    assert schedule.tree != "plain"
    measured = [one for one in schedule.candidates if one.measured_tpot_ms is not None]
    assert len(measured) == len(schedule.candidates) == 6
    assert measured[0].tree == schedule.tree
    assert [one.measured_tpot_ms for one in measured] == sorted(
        one.measured_tpot_ms for one in measured
    )
    [plain] = [one for one in measured if one.tree == "plain"]
    assert plain.measured_speedup == 1.0
    wanted = plain.measured_tpot_ms / measured[0].measured_tpot_ms
    assert measured[0].measured_speedup == pytest.approx(wanted)
    assert set(schedule.buckets) <= {1, 4, 8, 16}
    assert set(schedule.stage_s) == {"draft", "accept", "commit", "other"}
    assert schedule.rest_s == pytest.approx(sum(schedule.stage_s.values()), rel=0.01)
    assert schedule.drafter is SHIPPED


def test_a_useless_drafter_gets_plain_decoding() -> None:
    schedule = search(UselessDrafter, costs=Costs(lambda rows, context: rows / 10, 0.0, 0.0))
    plain = next(one for one in schedule.candidates if one.tree == "plain")
    assert plain.tpot_ms == min(one.tpot_ms for one in schedule.candidates)


def test_the_recordings_travel_in_the_order_they_were_dealt_from() -> None:
    recordings = recorded(6)
    parameters = calibrate_ngram(recordings)
    schedule = find_schedule(
        SlowGraphs(), held_out(parameters, recordings), COSTS, parameters, buckets=(1, 4),
        trees=[parse_tree_spec("sequence:depth=3")], form="ratio", eos_ids=(), limits=QUICK,
    )  # fmt: skip
    travelled = [Recording(list(r.prompt_ids), list(r.output_ids)) for r in schedule.recordings]
    assert travelled == recordings
    # Dealt again they give the folds that the parameters were measured on.
    again = held_out(schedule.drafter, travelled)
    assert [fold for _, fold in again] == [fold for _, fold in held_out(parameters, recordings)]


def test_a_tree_that_is_asked_for_is_taken_whatever_is_measured() -> None:
    schedule = search(UselessDrafter, trees=[parse_tree_spec(TREE)])
    assert schedule.tree == TREE
    assert {one.tree for one in schedule.candidates} == {TREE, "plain"}
    assert search(UselessDrafter, trees=[parse_tree_spec("plain")]).tree == "plain"


def test_graphs_of_one_row_decode_plainly() -> None:
    schedule = search(OracleDrafter, buckets=(1,))
    assert (schedule.tree, schedule.buckets) == ("plain", (1,))


def test_answers_of_one_token_leave_plain_decoding() -> None:
    folds = [(RandomDrafter(), [Recording([1, 2], [3]), Recording([2], [])])]
    schedule = find_schedule(
        SlowGraphs(), folds, COSTS, SHIPPED, buckets=(1, 4), trees=None, form="lagrangian",
        eos_ids=(), limits=QUICK,
    )  # fmt: skip
    assert schedule.tree == "plain"
    assert [one.tree for one in schedule.candidates] == ["plain"]


def test_the_lagrangian_records_the_rate_it_was_chosen_at() -> None:
    schedule = search(OracleDrafter, form="lagrangian")
    assert schedule.objective == "lagrangian"
    best = min(one.tpot_ms for one in schedule.candidates)
    assert schedule.rate == pytest.approx(1000 / best, rel=0.2)
    assert search(OracleDrafter).rate == 0.0


def test_measured_runs_emit_the_recorded_tokens_in_turns() -> None:
    recordings = recorded(2)
    graphs = SlowGraphs()
    tree = "sequence:depth=3"
    from yggrt.core.objective import RATIO

    runs = measure_trees(graphs, [(OracleDrafter(), recordings)], [tree], COSTS, RATIO, (), 0.0)
    # A first prompt is always measured: 23 tokens after the first, counted once of two runs.
    assert runs["plain"].num_tokens == runs[tree].num_tokens == 23
    assert runs["plain"].num_passes == 23
    assert runs[tree].tokens_per_pass > 1.5
    assert 0 < runs[tree].alpha <= 1
    assert runs["plain"].host_s < runs["plain"].token_s


def test_decoding_ends_at_eos_inside_a_path() -> None:
    graphs = ScriptedGraphs()
    said = graphs.plain([1, 2, 3], 20)
    at = next(i for i in range(4, 20) if said[i] not in said[:i])
    from yggrt.engine import Engine
    from yggrt.gate import OpenGate

    engine = Engine(
        graphs, graphs.new_cache(), OracleDrafter(), parse_tree_spec(TREE),
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip
    ids, run = decode(engine, [1, 2, 3], 20, {said[at]})
    assert ids == said[: at + 1]
    assert run.num_tokens == at


def test_host_costs_come_from_a_run_that_drafts() -> None:
    recordings, run = record_answers(
        ScriptedGraphs(), RandomDrafter(), [[1, 2], [3]], 12, (), budget_s=0.0
    )
    assert [one.output for one in recordings] == [ScriptedGraphs().plain([1, 2], 12)]
    costs = measured_costs(latency, run)
    assert costs.rest_s >= costs.unseen_s > 0
    assert measured_costs(latency, Run()).rest_s == 0.0
