"""Whole runs of `yggc train eagle` on a two-layer model: results, interruptions, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training import (
    HIDDEN,
    VOCAB,
    kill_at,
    read_log,
    run_command,
    wait_for_checkpoint,
)

from yggc.train.head import read_head

pytestmark = pytest.mark.tiny


def command(model: Path, text: Path, output: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "yggc", "train", "eagle", "--verifier", str(model), "--data",
        str(text), "-o", str(output), "--epochs", "6", "--batch-tokens", "256", "--warmup", "4",
        "--validate-every", "5", "--held-out", "0.15", "--draft-vocab", "50", "--threads", "2",
        "--noise", "0.1", "--patience", "0", "--learning-rate", "2e-3", *more,
    ]  # fmt: skip


def run(*arguments: Any, code: int = 0) -> str:
    return run_command(command(*arguments), code)


@pytest.fixture(scope="module")
def whole(model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole") / "head"
    run(model, text, folder)
    return folder


def test_a_run_learns_and_leaves_a_whole_head(whole: Path, model: Path) -> None:
    checks = [one["validation"] for one in read_log(whole) if "validation" in one]
    assert checks[-1]["top"][0][0] > checks[0]["top"][0][0]
    losses = [one["loss"] for one in read_log(whole) if "loss" in one]
    assert sum(losses[-5:]) < sum(losses[:5])
    head = read_head(whole)
    assert head.config.hidden_size == HIDDEN
    assert head.draft_ids.dtype == torch.int64
    assert torch.equal(head.draft_ids, head.draft_ids.sort().values)
    assert {one.dtype for one in head.weights.values()} == {torch.bfloat16}
    assert set(head.weights) == {
        "fc.weight",
        *(f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"model.layers.0.{n}_layernorm.weight" for n in ("input", "post_attention")),
    }
    assert head.verifier["location"] == model.name
    assert sorted(path.name for path in whole.iterdir()) == [
        "README.md", "config.json", "log.jsonl", "model.safetensors", "options.json",
        "training.json",
    ]  # fmt: skip
    best = json.loads((whole / "training.json").read_text())["best"]
    card = (whole / "README.md").read_text()
    assert f"| 1 | {best['validation']['top'][0][0]:.3f} |" in card
    assert str(model.parent) not in card + (whole / "training.json").read_text()


def test_a_killed_run_goes_on_to_the_same_losses(
    model: Path, text: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "head"
    for wanted in (5, 15):
        kill_at(command(model, text, folder), folder, wanted)
        assert read_head(folder).config.hidden_size == HIDDEN
    assert "going on from step" in run(model, text, folder)
    assert read_log(folder) == read_log(whole)
    ours, wanted_weights = (load_file(one / "model.safetensors") for one in (folder, whole))
    assert all(torch.equal(ours[name], one) for name, one in wanted_weights.items())


def test_kept_features_give_the_same_run(
    model: Path, text: Path, whole: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "features"
    said = run(model, text, tmp_path / "a", "--cache-features", str(cache))
    assert "features need" in said
    # Padding of other lengths rounds the verifier's sums in another order.
    ours, wanted = (
        [one["loss"] for one in read_log(folder) if "loss" in one]
        for folder in (tmp_path / "a", whole)
    )
    np.testing.assert_allclose(ours, wanted, rtol=0.03)
    # Nor does the number of threads change anything.
    again = run(model, text, tmp_path / "b", "--cache-features", str(cache), "--threads", "1")
    assert "features need" not in again
    assert read_log(tmp_path / "b") == read_log(tmp_path / "a")


def test_a_finished_run_is_not_repeated_and_other_options_are_refused(
    model: Path, text: Path, whole: Path
) -> None:
    before = (whole / "model.safetensors").stat().st_mtime_ns
    assert "is trained already" in run(model, text, whole)
    said = run(model, text, whole, "--decay", "0.5", code=2)
    assert "holds a run with decay 0.8, asked for is 0.5" in said
    assert (whole / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_may_begin_with_a_head(model: Path, text: Path, whole: Path, tmp_path: Path) -> None:
    run(model, text, tmp_path / "head", "--from", str(whole), "--learning-rate", "1e-5")
    first = next(one for one in read_log(tmp_path / "head") if "validation" in one)
    best = json.loads((whole / "training.json").read_text())["best"]["validation"]
    assert abs(first["validation"]["top"][0][0] - best["top"][0][0]) < 0.03


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_head(
    model: Path, text: Path, tmp_path: Path
) -> None:
    said = run(model, text, tmp_path / "head", "--feature-weight", "1e38", code=2)
    assert "wanted numbers" in said
    assert "Traceback" not in said
    assert read_head(tmp_path / "head").config.hidden_size == HIDDEN


def test_rejected_positions_weigh_more_if_asked_for(
    model: Path, text: Path, whole: Path, tmp_path: Path
) -> None:
    run(model, text, tmp_path / "head", "--loss-weight", "rejected", "--epochs", "1")
    ours, plain = (
        next(one for one in read_log(folder) if "loss" in one)
        for folder in (tmp_path / "head", whole)
    )
    assert ours["feature"] == plain["feature"]
    assert ours["token"][0] > plain["token"][0]
    said = run(model, text, whole, "--loss-weight", "rejected", code=2)
    assert "holds a run with rejected_weight None, asked for is 2.0" in said
    said = run(model, text, whole, "--rejected-weight", "3", code=2)
    assert "--rejected-weight is 3, and --loss-weight is uniform" in said
    said = run(model, text, whole, "--loss-weight", "focal", code=2)
    assert "--loss-weight is 'focal', wanted uniform or rejected" in said


def test_a_foreign_tokenizer_is_refused_before_anything_is_written(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"ids": [1, 2, VOCAB + 7], "num_prompt": 1}) + "\n")
    said = run(model, path, tmp_path / "head", code=2)
    assert f"id {VOCAB + 7} at 2 is none of the verifier's {VOCAB} ids" in said
    assert not (tmp_path / "head").exists()


def test_excluding_needs_a_tokenizer(model: Path, text: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Add two numbers."}\n')
    said = run(model, text, tmp_path / "head", "--exclude", str(prompts), code=2)
    assert "has no tokenizer, --exclude wants to read prompts" in said


def test_an_interrupt_writes_a_checkpoint(model: Path, text: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(model, text, tmp_path / "head", "--epochs", "2000"), stderr=subprocess.PIPE
    )
    wait_for_checkpoint(tmp_path / "head", 5, process)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"the same command goes on from here" in said
    assert list((tmp_path / "head").glob("checkpoint-*"))
