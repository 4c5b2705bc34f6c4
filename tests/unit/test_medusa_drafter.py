"""The Medusa drafter's reading of rows, over logits that are written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scripted import ScriptedGraphs

from yggrt.core.passes import PassOutput
from yggrt.core.schema import MedusaDrafter as Parameters
from yggrt.core.search import trees_for
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.calibrate_medusa import calibrate_medusa
from yggrt.drafters.medusa import MedusaDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.replay import RecordedGraphs

HEADS, VOCAB = 3, 6


def parameters(**changes: Any) -> Parameters:
    fields: dict[str, Any] = {"temperatures": (1.0,) * HEADS, "coverage": (1.0,) * HEADS}
    return Parameters(**fields | changes)


def sure_of(tokens: Sequence[int]) -> torch.Tensor:
    """Logits [heads * ids] of heads that are sure of one token each."""
    return 9.0 * torch.nn.functional.one_hot(torch.tensor(tokens), VOCAB).float().flatten()


@dataclasses.dataclass
class Foreseeing(ScriptedGraphs):
    """Scripted graphs with heads that know `truth`: of the token at place p, head k names the
    token at p + 1 + k + `shift`."""

    truth: Sequence[int] = ()
    shift: int = 0

    def heads(self, place: int) -> torch.Tensor:
        places = [place + 2 + head + self.shift for head in range(HEADS)]
        return sure_of([self.truth[at] if at < len(self.truth) else 0 for at in places])

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        out = super().verify(cache, tree, length)
        hidden = torch.stack([self.heads(length + depth) for depth in tree.depths])
        return out._replace(hidden=hidden)

    def prefill(self, cache: Any, tokens: Sequence[int], length: int) -> PassOutput:
        out = super().prefill(cache, tokens, length)
        return out._replace(hidden=self.heads(length + len(tokens) - 1)[None])


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_head_k_speaks_of_the_token_k_behind_the_root(shift: int) -> None:
    prompt = [1, 2, 3, 4, 5]
    truth = [*prompt, *ScriptedGraphs().plain(prompt, 40)]
    # The script repeats nothing, so that another place has another token mostly.
    graphs = Foreseeing(truth=truth, shift=shift)
    engine = Engine(
        graphs, graphs.new_cache(), MedusaDrafter(parameters(), None),
        parse_tree_spec("egt:width=2,depth=3,children=2,verify=7"),
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip
    ids = [*prompt, engine.start(prompt)]
    accepted = []
    while len(ids) < len(truth) - HEADS - 1:
        step = engine.step()
        ids += step.tokens
        accepted.append(step.num_accepted)
    assert ids == truth[: len(ids)]
    if shift == 0:
        assert set(accepted) == {HEADS}
    else:
        assert sum(accepted) < 0.6 * HEADS * len(accepted)


def test_only_the_row_before_the_root_is_drafted_on() -> None:
    drafter = MedusaDrafter(parameters(), None)
    rows = torch.stack([sure_of([1, 2, 3]), sure_of([4, 5, 0])])

    def first() -> list[int]:
        return [one[0][0] for one in drafter.candidates([(), (7,), (7, 7)], 1) if one]

    drafter.start([1, 2, 3])
    assert first() == []
    drafter.observe(1, rows, (0, 1))
    # The verifier has run the last token; what it chose behind it is not committed yet.
    assert first() == []
    drafter.commit([2])
    assert first() == [4, 5, 0]
    drafter.commit([3])
    assert first() == []
    drafter.observe(3, rows, (0,))
    assert first() == [1, 2, 3]
    # Back to a prefix, and on with other tokens: the row is of a token that is gone.
    drafter.rewind(3)
    drafter.commit([5, 6])
    assert first() == []
    drafter.observe(2, rows, (0, 1))
    assert first() == [4, 5, 0]
    drafter.start([1, 2, 3, 4, 5])
    assert first() == []


def test_a_row_that_a_rewind_keeps_still_counts() -> None:
    drafter = MedusaDrafter(parameters(), None)
    drafter.start([1, 2])
    drafter.observe(1, sure_of([1, 2, 3])[None], (0,))
    drafter.commit([4, 5, 6])
    drafter.rewind(2)
    drafter.commit([4])
    assert drafter.candidates([()], 1)[0][0][0] == 1


def test_shares_are_scaled_and_ids_mapped() -> None:
    found = parameters(
        temperatures=(1.0, 2.0, 1.0), coverage=(0.5, 1.0, 1.0), token_ids=(2, 3, 5, 7, 11, 13)
    )
    drafter = MedusaDrafter(found, None)
    drafter.start([1])
    logits = torch.zeros(HEADS, VOCAB)
    logits[0, 1], logits[1, 2] = 3.0, 4.0
    drafter.observe(0, logits.flatten()[None], (0,))
    drafter.commit([1])
    [root], [below] = drafter.candidates([()], 1), drafter.candidates([(9,)], 1)
    e = torch.e
    assert root[0][0] == 3
    assert root[0][1] == pytest.approx(0.5 * e**3 / (e**3 + 5))
    assert below[0][0] == 5
    assert below[0][1] == pytest.approx(e**2 / (e**2 + 5))


def test_calibration_counts_what_heads_said_of_recorded_answers() -> None:
    """Two answers of five tokens; the first head is right three times of eight, once second."""
    output = [2, 3, 4, 5, 1]
    right = torch.stack([sure_of([3, 4, 5]), sure_of([4, 0, 0]), sure_of([5, 1, 0])])
    unsure = sure_of([0, 0, 0])
    unsure[1] = 4.0
    last = torch.zeros(HEADS * VOCAB)
    hidden = torch.cat([right, unsure[None], last[None]])
    wrong = torch.stack([sure_of([0, 0, 0])] * 5)
    recordings = [Recording([1], output, hidden), Recording([1, 1], output, wrong)]
    found = calibrate_medusa(recordings, HEADS, ())
    assert found.num_positions == 8
    assert found.agreement == pytest.approx(3 / 8)
    assert found.coverage == (1.0,) * HEADS
    mapped = calibrate_medusa(recordings[:1], HEADS, (0, 3, 4, 5, 6, 7))
    assert mapped.coverage[0] < 1


def test_replays_tell_the_answers_rows_alone() -> None:
    hidden = torch.stack([sure_of([3, 4, 5]), sure_of([4, 5, 1])])
    graphs = RecordedGraphs([9, 9, 9, 2, 3], (1, 4), hidden)
    assert torch.equal(graphs.prefill(graphs, [9, 9, 9], 0).hidden, hidden[:1])
    assert torch.equal(graphs.verify(graphs, TokenTree.single(2), 3).hidden, hidden[1:])


def test_trees_are_as_deep_as_there_are_heads() -> None:
    specs = trees_for(parameters(), (), (1, 4, 16), 8)
    assert {one.depth for one in specs if one.policy == "egt"} == {1, 2, HEADS}
    fixed = [format_tree_spec(one) for one in specs if one.policy == "medusa"]
    assert fixed == ["medusa:nodes=3", "medusa:nodes=15"]


def test_parameters_have_a_value_for_each_head() -> None:
    with pytest.raises(ValueError, match="2 heads have coverage, wanted 3"):
        parameters(coverage=(1.0, 1.0))
