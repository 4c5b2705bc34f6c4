"""The depth of a pass from hazards, and an engine whose drafts are as deep as they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scripted import LogitGraphs, OracleDrafter, RandomDrafter, ScriptedGraphs

from yggrt.core.objective import RATIO, Objective
from yggrt.core.schema import DepthPredictor
from yggrt.core.spec import parse_tree_spec
from yggrt.depth import DepthChoice
from yggrt.drafters import Drafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler

TREES = ("sequence:depth=4", "egt:width=3,depth=4,children=4,verify=13")


def predictor(tree: str = TREES[0], **changes: Any) -> DepthPredictor:
    values: dict[str, Any] = {
        "tree": tree, "temperature": 0.0, "rows": (1, 4, 4, 8, 8), "is_on": True,
        "base_tokens": 1.0, "worth": (1.0,) * 4,
        "num_traces": 300, "num_prompts": 20, "log_loss": 0.5, "constant_log_loss": 0.6,
        "calibration_error": (0.01,) * 4, "against": "sequence:depth=2", "num_measured": 8,
        "gain": 1.1, "gain_interval": (1.05, 1.15), **changes,
    }  # fmt: skip
    return DepthPredictor(**values)


def choice(step_s: float, verify: Callable[[int, int], float], **options: Any) -> DepthChoice:
    objective = options.pop("objective", RATIO)
    return DepthChoice(predictor(**options), verify, lambda num, context: step_s, 0.0, objective)


@pytest.mark.parametrize(("step_s", "best"), [(2.0, 3), (4.0, 2)])
def test_the_depth_with_the_most_tokens_a_second(step_s: float, best: int) -> None:
    """Passes of 2 D + 20 and 4 D + 20: theory's numbers."""
    depth = choice(step_s, lambda rows, context: 20.0)
    depth.observe(torch.tensor([0.9, 0.8, 0.5, 0.5, 0.99]))
    spec, draft_s = depth.choose(32)
    assert (spec.depth, draft_s) == (best, best * step_s)
    assert spec.policy == "sequence"


def test_rows_count_as_their_depth_needs_them() -> None:
    """From depth 3 on a pass takes the larger graph."""
    depth = choice(0.1, lambda rows, context: {1: 10.0, 4: 11.0, 8: 30.0}[rows])
    depth.observe(torch.tensor([0.9, 0.9, 0.9, 0.9]))
    assert depth.choose(32)[0].depth == 2


def test_levels_count_for_what_they_bring() -> None:
    """n-grams beside that say the first level anyway leave a second that is worth its time."""
    hazards, brings = torch.tensor([0.9, 0.9, 0.1, 0.1]), {"base_tokens": 1.9}
    for worth, best in (((1.0, 1.0, 1.0, 1.0), 2), ((0.1, 0.1, 1.0, 1.0), 0), ((0, 1, 0, 0), 2)):
        depth = choice(1.0, lambda rows, context: 10.0, worth=worth, **brings)
        depth.observe(hazards)
        assert depth.choose(32)[0].depth == best


def test_where_nothing_will_be_right_nothing_is_drafted() -> None:
    depth = choice(1.0, lambda rows, context: 10.0)
    depth.observe(torch.tensor([0.01, 0.9, 0.9, 0.9]))
    assert depth.choose(32)[0].depth == 0


def test_a_lagrangian_pays_at_its_rate() -> None:
    """A level is worth drafting while its survival exceeds the rate times its seconds."""
    hazards = torch.tensor([0.9, 0.8, 0.5, 0.5])  # survival .9 .72 .36 .18
    for rate, best in ((0.1, 4), (0.2, 3), (0.4, 2), (0.5, 0)):
        depth = choice(
            1.0 if rate != 0.5 else 2.0,
            lambda rows, context: 20.0,
            objective=Objective("lagrangian", rate),
        )
        depth.observe(hazards)
        assert depth.choose(32)[0].depth == best


def test_hazards_are_smoothed_over_the_passes_of_a_sequence() -> None:
    depth = choice(0.0, lambda rows, context: 1.0, smoothing=0.25)
    for row in ([0.8, 0.4, 0.0, 1.0], [0.4, 0.8, 0.0, 1.0]):
        depth.observe(torch.tensor(row))
    assert depth._hazards == pytest.approx([0.5, 0.7, 0.0, 1.0])
    depth.start()
    depth.observe(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert depth._hazards == pytest.approx([0.1, 0.2, 0.3, 0.4])


def hazards_of(rows: list[int]) -> torch.Tensor:
    """Any hazards, of a row's digest."""
    return torch.stack(
        [torch.rand(6, generator=torch.Generator().manual_seed(row)) for row in rows]
    )


@dataclass
class HazardGraphs(ScriptedGraphs):
    def _output(self, rows: list[int]) -> Any:
        return super()._output(rows)._replace(hazards=hazards_of(rows))


@dataclass
class HazardLogitGraphs(LogitGraphs):
    def _output(self, rows: list[int]) -> Any:
        return super()._output(rows)._replace(hazards=hazards_of(rows))


def engine(tree: str, graphs: ScriptedGraphs, drafter: Drafter, is_on: bool = True) -> Engine:
    def latency(rows: int, context: int) -> float:
        return 1.0

    def step(num: int, context: int) -> float:
        return 0.3

    depth = DepthChoice(predictor(tree), latency, step, 0.0)
    return Engine(
        graphs, graphs.new_cache(), drafter, depth.spec, latency, 0.0, OpenGate(),
        draft_step=step, depth=depth if is_on else None,
    )  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", [RandomDrafter, OracleDrafter])
def test_tokens_are_plain_decodings_at_every_depth(
    tree: str, drafter: type[RandomDrafter]
) -> None:
    graphs = HazardGraphs()
    one = engine(tree, graphs, drafter())
    ids = [one.start([1, 2, 3])]
    while one.room:
        ids += one.step().tokens
    assert ids == graphs.plain([1, 2, 3], 61)
    chosen = one.stats.depth_histogram
    assert len(chosen) > 2
    # The room for one last token is not drafted in.
    assert sum(chosen.values()) in (one.stats.num_passes, one.stats.num_passes - 1)


@pytest.mark.parametrize("tree", TREES)
def test_sampled_tokens_are_plain_decodings_too(tree: str) -> None:
    outputs = []
    for way in (tree, "plain"):
        graphs = HazardLogitGraphs()
        one = engine(tree, graphs, RandomDrafter(), is_on=way != "plain")
        if way == "plain":
            one = Engine(
                graphs, graphs.new_cache(), RandomDrafter(), parse_tree_spec("plain"),
                lambda rows, context: 1.0, 0.0, OpenGate(),
            )  # fmt: skip
        sampler = Sampler(SamplingParams(temperature=0.6), [4, 2], vocab_size=6, seed=5)
        ids = [one.start([4, 2], sampler=sampler)]
        while one.room:
            ids += one.step().tokens
        outputs.append(ids)
    assert outputs[0] == outputs[1]


def test_a_draft_is_as_deep_as_was_chosen() -> None:
    """An oracle's chain is accepted whole, so a pass emits its depth and one more."""
    graphs = HazardGraphs()
    one = engine("sequence:depth=4", graphs, OracleDrafter())
    one.start([1, 2, 3])
    seen = set()
    while one.room > 6:
        before = dict(one.stats.depth_histogram)
        num = len(one.step().tokens)
        [depth] = [d for d, n in one.stats.depth_histogram.items() if n != before.get(d, 0)]
        assert num == depth + 1
        seen.add(depth)
    assert len(seen) > 2
