"""Whole runs of `yggc train eagle` on a two-layer model: results, interruptions, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from yggc.train.head import read_head

VOCAB, HIDDEN = 60, 32
pytestmark = pytest.mark.tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the model itself writes, greedily."""
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    writer = LlamaForCausalLM.from_pretrained(model)
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(80):
        prompt = torch.from_numpy(generator.integers(0, VOCAB, (1, int(generator.integers(2, 9)))))
        out = writer.generate(
            prompt, do_sample=False, max_new_tokens=int(generator.integers(4, 30)), pad_token_id=0
        )
        lines.append({"ids": out[0].tolist(), "num_prompt": prompt.shape[1]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(model: Path, text: Path, output: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "yggc", "train", "eagle", "--verifier", str(model), "--data",
        str(text), "-o", str(output), "--epochs", "6", "--batch-tokens", "256", "--warmup", "4",
        "--validate-every", "5", "--held-out", "0.15", "--draft-vocab", "50", "--threads", "2",
        "--noise", "0.1", "--patience", "0", "--learning-rate", "2e-3", *more,
    ]  # fmt: skip


def run(*arguments: Any, code: int = 0) -> str:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stderr


def read_log(folder: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for entry in entries:
        entry.pop("tokens_per_s", None)
    return entries


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
        process = subprocess.Popen(
            command(model, text, folder), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            _wait_for_checkpoint(folder, wanted, process)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert read_head(folder).config.hidden_size == HIDDEN
    assert "going on from step" in run(model, text, folder)
    assert read_log(folder) == read_log(whole)
    ours, wanted_weights = (load_file(one / "model.safetensors") for one in (folder, whole))
    assert all(torch.equal(ours[name], one) for name, one in wanted_weights.items())


def _wait_for_checkpoint(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        names = [path.name for path in folder.glob("checkpoint-*") if path.suffix != ".partial"]
        if any(int(name.split("-")[1]) >= step for name in names):
            return
        time.sleep(0.002)
    raise AssertionError("no checkpoint appeared")


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
    _wait_for_checkpoint(tmp_path / "head", 5, process)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"the same command goes on from here" in said
    assert list((tmp_path / "head").glob("checkpoint-*"))
