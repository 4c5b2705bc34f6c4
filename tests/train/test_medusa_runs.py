"""Whole runs of `yggc train medusa` on a two-layer model: results, what goes on, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bundles
import pytest
import torch
from safetensors.torch import load_file
from training import HIDDEN, kill_at, read_log, run_command

from yggc.errors import SourceError
from yggc.models.checkpoint import open_checkpoint, open_drafter
from yggc.models.medusa import MedusaConfig
from yggc.models.source import resolve_source
from yggc.report import Reporter
from yggc.train.export import export_head
from yggc.train.head import read_head
from yggc.train.medusa_learner import MedusaOptions
from yggc.train.run import train
from yggc.workdir import WorkDir

pytestmark = pytest.mark.tiny

HEADS, DRAFT = 3, 50


def command(model: Path, text: Path, output: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "yggc", "train", "medusa", "--verifier", str(model), "--data",
        str(text), "-o", str(output), "--epochs", "6", "--batch-tokens", "256", "--warmup", "4",
        "--validate-every", "5", "--held-out", "0.15", "--draft-vocab", str(DRAFT), "--heads",
        str(HEADS), "--threads", "2", "--patience", "0", "--learning-rate", "1e-2", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing stopped; its features are kept beside it."""
    folder = tmp_path_factory.mktemp("whole")
    kept = ("--cache-features", str(folder / "kept"))
    assert "features need" in run_command(command(model, text, folder / "head", *kept))
    return folder / "head"


def test_a_run_learns_and_its_heads_are_read(whole: Path, model: Path, tmp_path: Path) -> None:
    log = read_log(whole)
    checks = [one["validation"] for one in log if "validation" in one]
    assert all(len(one["top"]) == HEADS for one in checks)
    begin, end = (sum(shares[0] for shares in one["top"]) for one in (checks[0], checks[-1]))
    # It begins with regressions, which know something already; chance is 1 in 60.
    assert checks[0]["top"][0][0] > 2 / 60
    assert end > begin
    losses = [one for one in log if "loss" in one]
    assert sum(one["loss"] for one in losses[-5:]) < sum(one["loss"] for one in losses[:5])
    assert all(len(one["token"]) == HEADS for one in losses)
    found = read_head(whole)
    assert isinstance(found.config, MedusaConfig)
    assert set(found.weights) == {
        f"heads.{head}.{name}"
        for head in range(HEADS)
        for name in ("blocks.0.linear.weight", "blocks.0.linear.bias", "out.weight")
    }
    # Zeros to begin with.
    assert all(float(one.abs().max()) > 0 for one in found.weights.values())
    work = WorkDir(tmp_path)
    verifier = open_checkpoint(resolve_source(str(model), work))
    drafter = open_drafter(resolve_source(str(whole), work), verifier)
    assert drafter.shape("lm_head.weight") == (DRAFT, HIDDEN)
    theirs = verifier.read("lm_head.weight")[found.draft_ids]
    assert torch.equal(drafter.read("lm_head.weight"), theirs)
    card = (whole / "README.md").read_text()
    assert "# Medusa heads for" in card
    assert f"| {HEADS} | " in card
    record = json.loads((whole / "training.json").read_text())
    assert record["kind"] == "medusa"
    assert record["parameters"] == HEADS * (2 * HIDDEN * HIDDEN + HIDDEN)


def test_a_killed_run_goes_on_to_the_same_losses(
    model: Path, text: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "head"
    kept = ("--cache-features", str(whole.parent / "kept"))
    for wanted in (5, 15):
        kill_at(command(model, text, folder, *kept), folder, wanted)
    assert "going on from step" in run_command(command(model, text, folder, *kept))
    assert read_log(folder) == read_log(whole)
    ours, wanted_weights = (load_file(one / "model.safetensors") for one in (folder, whole))
    assert all(torch.equal(ours[name], one) for name, one in wanted_weights.items())


def options(model: Path, text: Path, output: Path, first: Path) -> MedusaOptions:
    return MedusaOptions(
        verifier=str(model), data=(text,), output=output, learning_rate=1e-6, epochs=0.2,
        batch_tokens=256, held_out=0.15, draft_vocab=DRAFT, num_steps=HEADS, first=first,
        rejected_weight=2.0,
    )  # fmt: skip


def test_a_run_may_begin_with_heads(model: Path, text: Path, whole: Path, tmp_path: Path) -> None:
    given = options(model, text, tmp_path / "head", whole)
    assert train(given, WorkDir(tmp_path / "work"), Reporter(quiet=True), "", lambda: False)
    first = next(one for one in read_log(tmp_path / "head") if "validation" in one)
    best = json.loads((whole / "training.json").read_text())["best"]["validation"]
    for ours, wanted in zip(first["validation"]["top"], best["top"], strict=True):
        assert abs(ours[0] - wanted[0]) < 0.03


def test_another_kind_or_number_of_heads_is_refused(
    model: Path, text: Path, whole: Path, tmp_path: Path
) -> None:
    said = run_command(command(model, text, whole, "--heads", "2"), code=2)
    assert "holds a run with num_steps 3, asked for is 2" in said
    checkpoint = open_checkpoint(resolve_source(str(model), WorkDir(tmp_path)))
    shipped = bundles.HEAD
    with pytest.raises(SourceError, match="a head of another kind, wanted one of `yggc train med"):
        options(model, text, tmp_path / "head", shipped).check(checkpoint)
    with pytest.raises(SourceError, match="Medusa heads, which the layout of speculators has no"):
        export_head(whole, tmp_path / "out", "someone/model", 4)
