"""Runs of the commands of `yggc train` that fit a drafter: a verifier, its text, the command."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, HIDDEN = 60, 32


def save_verifier(folder: Path) -> Path:
    """A random two-layer model with sharp logits, and no tokenizer."""
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


def write_text(model: Path, path: Path) -> Path:
    """80 rows that the model itself writes, greedily."""
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


def run_command(command: Sequence[str], code: int = 0) -> str:
    """What the command says on stderr; AssertionError if it ends otherwise than with `code`."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stderr


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The log without what differs from run to run."""
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for entry in entries:
        entry.pop("tokens_per_s", None)
    return entries


def wait_for_checkpoint(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Until one of this step or a later one is there; AssertionError if the process ends first."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        names = [path.name for path in folder.glob("checkpoint-*") if path.suffix != ".partial"]
        if any(int(name.split("-")[1]) >= step for name in names):
            return
        time.sleep(0.002)
    raise AssertionError("no checkpoint appeared")


def kill_at(command: Sequence[str], folder: Path, step: int) -> None:
    """Runs the command until there is a checkpoint of this step, then kills it."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for_checkpoint(folder, step, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
