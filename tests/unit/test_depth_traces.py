"""Traces against the engine itself: what a pass of each depth would have brought."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
import torch
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs

from yggc.depth.gain import Gain
from yggc.depth.rows import Rows
from yggc.depth.scores import (
    Brings,
    Times,
    chosen_depths,
    measured_brings,
    oracle_depths,
    reliability,
    token_ms,
)
from yggc.depth.traces import Tracer, Traces
from yggrt.core.objective import RATIO
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.calibrate import Recording
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.replay import RecordedGraphs
from yggrt.scheduling import Costs

ROW_COUNTS = (1, 4, 8, 16)
PROMPT = [1, 2, 3]
COSTS = Costs(lambda rows, context: 1.0, 0.5, 0.0, lambda num, context: 0.1 * num)


def recording(num: int = 40) -> Recording:
    output = ScriptedGraphs().plain(PROMPT, num)
    return Recording(PROMPT, output, torch.zeros(len(PROMPT) + num - 1, 4))


def traced(tree: str, drafter: RandomDrafter, one: Recording) -> Traces:
    num = len(one.output) - 1
    inputs = torch.arange(num + 1, dtype=torch.float32)[:, None]
    rows = Rows(one, inputs, torch.zeros(num + 1))
    tracer = Tracer(parse_tree_spec(tree), ROW_COUNTS, COSTS, RATIO)
    return tracer.run([(7, drafter, rows, None)])


@pytest.mark.parametrize(
    "tree",
    [
        "sequence:depth=5",
        "egt:width=3,depth=4,children=4,verify=13",
        "egt:width=4,depth=4,children=2,verify=9",
        "egt:width=2,depth=5,children=4,verify=11,frontier=level",
    ],
)
@pytest.mark.parametrize("make", [RandomDrafter, OracleDrafter])
def test_every_depth_brings_what_the_engine_gets_there(
    tree: str, make: type[RandomDrafter]
) -> None:
    one = recording()
    ids = [*one.prompt, *one.output]
    traces = traced(tree, make(), one)
    spec = parse_tree_spec(tree)
    assert traces.tokens.shape == (len(traces), spec.depth + 1)
    assert traces.prompt.tolist() == [7] * len(traces)
    # Inputs count the rows that roots were chosen from.
    roots = [len(PROMPT) + int(at) for at in traces.inputs[:, 0]]
    assert roots[0] == len(PROMPT)
    for i, root in enumerate(roots):
        for depth in range(1, spec.depth + 1):
            graphs = RecordedGraphs(ids, ROW_COUNTS)
            engine = Engine(
                graphs, graphs, make(), msgspec.structs.replace(spec, depth=depth),
                COSTS.latency, COSTS.rest_s, OpenGate(), RATIO,
            )  # fmt: skip
            assert engine.start(ids[:root]) == ids[root]
            if engine.room > 1:
                assert len(engine.step().tokens) == traces.tokens[i, depth]
        assert traces.tokens[i, 0] == 1
        assert traces.rows[i, 0] == 1
        assert traces.known[i] == min(spec.depth, len(ids) - root - 1)
    # The next root is what a pass at full depth leads to, where rows cost nothing.
    steps = [b - a for a, b in pairwise(roots)]
    assert steps == traces.tokens[:-1, -1].tolist()
    assert traces.before.tolist() == [0, *(step - 1 for step in steps)]


def test_seconds_are_those_of_the_parts() -> None:
    traces = traced("egt:width=3,depth=3,children=4,verify=10", RandomDrafter(), recording())
    # Draft steps of 1, 3 and 3 nodes.
    wanted = [1.5, 1.6, 1.9, 2.2]
    assert traces.seconds.tolist() == [pytest.approx(wanted)] * len(traces)


def test_an_oracle_is_right_as_far_as_the_recording_goes() -> None:
    traces = traced("sequence:depth=5", OracleDrafter(), recording())
    assert torch.equal(traces.lengths, traces.known)


def by_hand() -> Traces:
    """Two passes: nothing right, and all of two levels. Passes take 1 s and half a level more."""
    long = torch.tensor
    seconds = torch.tensor([[1.0, 1.5, 2.0]] * 2, dtype=torch.float64)
    return Traces(
        inputs=torch.zeros(2, 1), entropy=torch.zeros(2), before=long([0, 0]),
        lengths=long([0, 2]), known=long([2, 2]), tokens=long([[1, 1, 1], [1, 2, 3]]),
        rows=long([[1, 2, 3]] * 2), seconds=seconds, context=long([32, 32]), prompt=long([0, 1]),
    )  # fmt: skip


def test_chosen_depths_and_what_they_take() -> None:
    traces = by_hand()
    times = Times(traces.seconds, RATIO, Brings(1.0, (1.0, 1.0)))
    # 1, 1.5/1.5 and (1 + .5 + .25)/2: the smaller depth on a tie.
    assert chosen_depths(torch.full((2, 2), 0.5), times).tolist() == [0, 0]
    # 1, 1.9/1.5, 2.71/2.
    assert chosen_depths(torch.full((2, 2), 0.9), times).tolist() == [2, 2]
    assert oracle_depths(traces, times).tolist() == [0, 2]
    assert token_ms(traces, torch.tensor([0, 2])) == pytest.approx(1e3 * 3 / 4)
    assert token_ms(traces, torch.tensor([2, 2])) == pytest.approx(1e3 * 4 / 4)


def test_reliability_by_hand() -> None:
    found = reliability(torch.tensor([[0.2, 0.5], [0.8, 0.5]]), by_hand())
    # Survival .2 and .8, then .1 and .4; reached: no and yes, twice.
    assert [one["depth"] for one in found] == [1, 2]
    assert found[0]["error"] == pytest.approx((0.2 + 0.2) / 2)
    assert found[1]["error"] == pytest.approx((0.1 + 0.6) / 2)
    assert sum(one["num"] for one in found[0]["bins"]) == 2


def test_what_a_level_brings_by_hand() -> None:
    """One pass of two reaches both levels; of the first it has one token more, of the second too,
    but for a drafter beside that brings two of them at depth 0."""
    traces = by_hand()
    assert measured_brings(traces) == Brings(1.0, (1.0, 1.0))
    beside = traces.tokens.clone()
    beside[1] = torch.tensor([2, 2, 3])
    fields = {name: getattr(traces, name) for name in Traces.__dataclass_fields__}
    found = measured_brings(Traces(**{**fields, "tokens": beside}))
    # None and one, and 16 passes at the half of both.
    assert found.base_tokens == 1.5
    assert found.worth == pytest.approx(((0 + 8) / 17, (1 + 8) / 17))


def test_a_gain_that_is_noise_alone_is_none() -> None:
    """Twice as quick and half as quick are no gain together; their plain mean would say 1.25."""
    gain = Gain("sequence:depth=2", (2.0, 0.5) * 8, {})
    assert gain.mean == pytest.approx(1.0)
    low, high = gain.interval
    assert low < 1 < high
    assert low * high == pytest.approx(1.0, rel=0.1)
    assert Gain("plain", (1.2, 1.25, 1.3), {}).interval[0] == pytest.approx(1.2, abs=0.01)
    assert Gain("plain", (3.0,), {}).interval[0] == 0.0
