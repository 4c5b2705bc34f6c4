"""Hazards: their loss by hand and in float64, fits to drafts whose law is known, and the files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from yggc.depth.files import (
    Traced,
    onnx_model,
    read_predictor,
    read_traces,
    write_predictor,
    write_traces,
)
from yggc.depth.fit import Examples, FitOptions, calibrated, correlation, fit
from yggc.depth.hazards import (
    Predictor,
    hazard_losses,
    hazard_mask,
    log_loss,
    unconditional_hazards,
)
from yggc.depth.prompts import split_prompts
from yggc.depth.swap import packed_constants
from yggc.depth.traces import Traces
from yggc.errors import SourceError
from yggrt.drafters.calibrate import Recording

# Stopped after one, never stopped and cut off by the recording, stopped at once.
LENGTHS, KNOWN = torch.tensor([1, 3, 0]), torch.tensor([3, 3, 4])


def test_the_mask_has_what_a_draft_says_something_of() -> None:
    assert hazard_mask(LENGTHS, KNOWN, 4).tolist() == [
        [True, True, False, False],
        [True, True, True, False],
        [True, False, False, False],
    ]


def test_the_loss_by_hand() -> None:
    rows = [[0.9, 0.8, 0.3, 0.3], [0.9, 0.8, 0.5, 0.3], [0.9, 0.1, 0.1, 0.1]]
    hazards = torch.tensor(rows, dtype=torch.float64)
    losses = hazard_losses(torch.logit(hazards), LENGTHS, KNOWN)
    wanted = [
        [-math.log(0.9), -math.log(0.2), 0, 0],
        [-math.log(0.9), -math.log(0.8), -math.log(0.5), 0],
        [-math.log(0.1), 0, 0, 0],
    ]
    torch.testing.assert_close(
        losses, torch.tensor(wanted, dtype=torch.float64), atol=1e-7, rtol=0
    )
    mean = log_loss(torch.logit(hazards), LENGTHS, KNOWN)
    assert mean == pytest.approx(sum(map(sum, wanted)) / 6, rel=1e-6)


def test_the_loss_is_that_of_the_definition_in_float64() -> None:
    generator = torch.Generator().manual_seed(1)
    known = torch.randint(1, 6, (50,), generator=generator)
    lengths = torch.minimum(torch.randint(0, 6, (50,), generator=generator), known)
    logits = torch.randn(50, 6, generator=generator)
    wanted = 0.0
    for row in range(50):
        for d in range(1, 7):
            if d <= min(lengths[row] + 1, known[row]):
                share = 1 / (1 + math.exp(-float(logits[row, d - 1])))
                wanted -= math.log(share if lengths[row] >= d else 1 - share)
    assert float(hazard_losses(logits, lengths, known).sum()) == pytest.approx(wanted, rel=1e-6)
    # Nothing behind the mask has a gradient.
    logits.requires_grad_()
    hazard_losses(logits, lengths, known).sum().backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad != 0, hazard_mask(lengths, known, 6))


def test_unconditional_hazards_by_hand() -> None:
    """2 of 3 reach the first level, 1 of 2 the second, 1 of 1 the third; half a one each way."""
    found = unconditional_hazards(LENGTHS, KNOWN, 4)
    assert found.tolist() == pytest.approx([2.5 / 4, 1.5 / 3, 1.5 / 2, 0.5])


def test_correlation_by_hand() -> None:
    columns = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, -2.0], [3.0, 6.0, 1.0]])
    # The first two are one line, the third is at right angles to both.
    assert float(correlation(columns)) == pytest.approx(2 / 6, abs=1e-6)


# --- fits ----------------------------------------------------------------------------------------

DEPTH, SIZE = 4, 8


def drawn(num: int, seed: int, *, noise: bool = False) -> tuple[Examples, torch.Tensor]:
    """Drafts whose hazards are a known function of their rows, or of nothing."""
    generator = torch.Generator().manual_seed(seed)
    law = torch.randn(DEPTH, SIZE, generator=torch.Generator().manual_seed(0)) / SIZE**0.5
    rows = torch.randn(num, SIZE, generator=generator)
    logits = 0.8 + 2 * rows @ law.T if not noise else torch.tensor([1.0, 0.5, 0.0, -0.5])
    hazards = torch.sigmoid(logits).expand(num, -1)
    right = torch.rand(num, DEPTH, generator=generator) < hazards
    lengths = right.long().cumprod(1).sum(1)
    # Scales and offsets of columns must not matter.
    scaled = 5 * rows * torch.arange(1, SIZE + 1) + 3
    return Examples(scaled, lengths, torch.full((num,), DEPTH)), hazards


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_known_law_is_found() -> None:
    train, held_out, (test, true) = drawn(3000, 1)[0], drawn(1000, 2)[0], drawn(4000, 3)
    predictor = fit(train, held_out, DEPTH, 64, FitOptions())
    found = predictor.hazards(test.rows)
    assert float((found - true).abs().mean()) < 0.06
    constant = unconditional_hazards(train.lengths, train.known, DEPTH)

    def loss(hazards: torch.Tensor) -> float:
        return log_loss(torch.logit(hazards), test.lengths, test.known)

    best, worst = loss(true), loss(constant.expand(len(test), -1))
    assert loss(found) < best + 0.15 * (worst - best)
    # Of those with survival about s, a share of about s got so far.
    survival = found.cumprod(1)
    for d in range(DEPTH):
        share, hit = survival[:, d], (test.lengths > d).float()
        groups = share.sort().indices.split(500)
        away = [abs(float(share[g].mean() - hit[g].mean())) for g in groups]
        assert sum(away) / len(away) < 0.04


def test_where_rows_say_nothing_hazards_are_constant() -> None:
    train, held_out, (test, _) = (
        drawn(n, seed, noise=True) for n, seed in ((800, 4), (300, 5), (2000, 6))
    )
    predictor = fit(train[0], held_out[0], DEPTH, 64, FitOptions())
    constant = unconditional_hazards(train[0].lengths, train[0].known, DEPTH)
    found = predictor.hazards(test.rows)
    loss = log_loss(torch.logit(found), test.lengths, test.known)
    flat = log_loss(torch.logit(constant).expand(len(test), -1), test.lengths, test.known)
    assert loss == pytest.approx(flat, abs=0.01)
    assert float((found - constant).abs().mean()) < 0.05


def test_calibration_undoes_logits_that_are_too_sure_and_keeps_heads_without_traces() -> None:
    held_out, true = drawn(4000, 7)
    logits = torch.logit(true)
    sure = Predictor(torch.eye(DEPTH), torch.zeros(DEPTH), torch.eye(DEPTH), torch.zeros(DEPTH))
    # silu is undone so that logits come out three times as large, less one.
    rows = torch.stack([_inverse_silu(3 * logits[:, d] - 1) for d in range(DEPTH)], 1)
    usable = (3 * logits - 1 > 0).all(1)
    given = Examples(rows[usable], held_out.lengths[usable], held_out.known[usable])
    found = calibrated(sure, given)
    scale, shift = found.decode_weight.diagonal(), found.decode_bias
    assert scale[:2].tolist() == pytest.approx([1 / 3] * 2, abs=0.12)
    assert shift[:2].tolist() == pytest.approx([1 / 3] * 2, abs=0.35)
    never = Examples(given.rows, torch.zeros_like(given.lengths), torch.ones_like(given.known))
    kept = calibrated(sure, never)
    assert kept.decode_weight[1:].equal(sure.decode_weight[1:])
    assert kept.decode_bias[1:].equal(sure.decode_bias[1:])


def _inverse_silu(values: torch.Tensor) -> torch.Tensor:
    """For values from 0 on, by bisection."""
    low, high = torch.zeros_like(values), values.clamp(min=0) + 2
    for _ in range(60):
        middle = (low + high) / 2
        above = torch.nn.functional.silu(middle) > values
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low


def test_equal_seeds_give_equal_predictors() -> None:
    train, held_out = drawn(300, 8)[0], drawn(100, 9)[0]
    one, other = (fit(train, held_out, DEPTH, 16, FitOptions(epochs=5)) for _ in range(2))
    assert torch.equal(one.encode_weight, other.encode_weight)
    assert torch.equal(one.decode_weight, other.decode_weight)


def test_prompts_are_dealt_whole() -> None:
    split = split_prompts(50, seed=3)
    assert (len(split.train), len(split.validate), len(split.test)) == (30, 10, 10)
    assert sorted([*split.train, *split.validate, *split.test]) == list(range(50))


# --- files ---------------------------------------------------------------------------------------


def some_predictor() -> Predictor:
    generator = torch.Generator().manual_seed(11)
    sizes = ((64, SIZE), (64,), (DEPTH, 64), (DEPTH,))
    return Predictor(*(torch.randn(size, generator=generator) for size in sizes))


def test_packed_constants_are_the_graphs_panels() -> None:
    predictor = some_predictor()
    packed = packed_constants(predictor)
    assert packed["predictor.encode.weight"].shape == (4, SIZE, 16)
    assert packed["predictor.decode.weight"].shape == (1, 64, 16)
    assert packed["predictor.encode.weight"][1, 5, 3] == predictor.encode_weight[19, 5]
    assert packed["predictor.decode.weight"][0, 7, DEPTH:].eq(0).all()


FACTS = {"hidden_size": SIZE, "max_depth": DEPTH, "tree": "sequence:depth=4", "temperature": 0.0}


def test_files_hold_the_predictor_and_what_it_is_for(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    predictor = some_predictor()
    write_predictor(tmp_path, predictor, FACTS)
    again = read_predictor(tmp_path, FACTS)
    assert torch.equal(again.encode_weight, predictor.encode_weight)
    model = onnx.load(tmp_path / "predictor.onnx")
    assert [one.name for one in model.graph.output] == ["hazards"]
    assert {one.key: json.loads(one.value) for one in model.metadata_props} == FACTS
    rows = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(2))
    from onnx.reference import ReferenceEvaluator

    [given] = ReferenceEvaluator(model).run(None, {"hidden": rows.numpy()})
    torch.testing.assert_close(torch.from_numpy(given), predictor.hazards(rows))
    for key, value in (("hidden_size", 576), ("max_depth", 8), ("temperature", 0.6)):
        with pytest.raises(SourceError) as refused:
            read_predictor(tmp_path, {**FACTS, key: value})
        assert f"is {FACTS[key]!r}, this run's is {value!r}" in refused.value.message
    with pytest.raises(SourceError, match="cannot be read"):
        read_predictor(tmp_path / "nowhere", FACTS)


def test_an_onnx_model_that_is_off_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setattr(Predictor, "hazards", lambda self, rows: torch.zeros(len(rows), DEPTH))
    with pytest.raises(AssertionError, match="ONNX model is"):
        onnx_model(some_predictor(), FACTS)


def test_traces_are_kept_with_what_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "traces.safetensors"
    before, lengths, known, context, prompt = torch.arange(10).view(5, 2).unbind()
    traces = Traces(
        torch.randn(2, SIZE), torch.rand(2), before, lengths, known, torch.ones(2, 3).long(),
        torch.zeros(2, 3).long(), torch.ones(2, 3).double(), context, prompt,
    )  # fmt: skip
    recordings = [Recording([1, 2], [3]), Recording([4], [5, 6])]
    facts = {"bundle": "ab12", "temperature": 0.0}
    write_traces(path, Traced(traces, recordings, ["code", "prose"]), facts)
    again = read_traces(path, facts)
    assert again.recordings == recordings
    assert again.categories == ["code", "prose"]
    assert torch.equal(again.traces.inputs, traces.inputs)
    assert torch.equal(again.traces.context, context)
    with pytest.raises(SourceError, match="its bundle is 'ab12', this run's is 'cd34'"):
        read_traces(path, {**facts, "bundle": "cd34"})


def test_without_onnx_weights_are_refused_before_anything_runs(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        f"sys.argv = ['yggc', 'train', 'depth', 'no.ygg', '-o', '{tmp_path}/out.ygg', "
        f"'--weights', '{tmp_path}/weights']\n"
        "from yggc.cli import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "needs onnx, which is not installed" in done.stderr
    assert "yggdrasil-decode[onnx]" in done.stderr
