"""`yggc train distill`: its loss against torch's, whole runs on a two-layer model, and a bundle
that drafts with what came out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import bundles
import numpy as np
import pytest
import torch
from drafting import decode, prompts
from families import families
from safetensors.torch import load_file
from tiny_tokenizers import CHATML, byte_level, metaspace
from training import VOCAB, kill_at, read_log, run_command, save_verifier, write_text
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from yggc.models.checkpoint import open_checkpoint
from yggc.models.drafter import check_same_tokens
from yggc.models.source import resolve_source
from yggc.models.tokenizer import load_tokenizer
from yggc.train.batches import collate
from yggc.train.cross_entropy import TrainedHeadCrossEntropy
from yggc.train.distill import hidden_states
from yggc.train.features import StoredFeatures
from yggc.train.load import read_model
from yggc.train.student import write_student
from yggc.train.texts import Row
from yggc.workdir import WorkDir
from yggrt.loading import load


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_loss_and_its_gradients_are_torchs_in_float64(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((300, 16), (40, 16), (300, 24), (40, 24))
    hidden, head, features, verifier = (torch.randn(*one, generator=generator) for one in shapes)
    leaves = [one.requires_grad_() for one in (hidden, head)]
    ours = TrainedHeadCrossEntropy.apply(hidden, head, features, verifier, temperature, None)
    exact = [one.detach().double().requires_grad_() for one in leaves]
    target = torch.softmax(features.double() @ verifier.double().T / temperature, -1)
    logits = exact[0] @ exact[1].T
    wanted = torch.nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    divergence = torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction="batchmean")
    entropy = torch.special.entr(target).sum(-1).mean()
    torch.testing.assert_close(ours.double(), divergence + entropy, rtol=1e-5, atol=1e-5)
    found, right = (
        torch.autograd.grad(3 * loss, of) for loss, of in ((ours, leaves), (wanted, exact))
    )
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


def test_rejected_rows_weigh_more() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((300, 8), (6, 8), (300, 8), (6, 8))
    hidden, head, features, verifier = (torch.randn(*one, generator=generator) for one in shapes)
    head.requires_grad_()
    ours = TrainedHeadCrossEntropy.apply(hidden, head, features, verifier, 0.5, 4.0)
    logits, target = hidden @ head.T, features @ verifier.T
    rejected = logits.argmax(-1) != target.argmax(-1)
    assert 0 < rejected.sum() < len(rejected)
    weights = 1 + 3 * rejected.float()
    by_row = torch.nn.functional.cross_entropy(
        logits, (target / 0.5).softmax(-1), reduction="none"
    )
    wanted = (by_row * weights / weights.mean()).mean()
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    found, right = (torch.autograd.grad(one, head)[0] for one in (ours, wanted))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6)


def test_a_batch_has_the_hidden_states_of_its_rows_alone() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    generator = np.random.default_rng(1)
    rows = [
        Row(generator.integers(0, 50, num).astype(np.int32), num_prompt, bytes([num]))
        for num_prompt, num in ((3, 9), (7, 10), (1, 8))
    ]
    features = {row.digest: torch.zeros(len(row.ids), 16, dtype=torch.bfloat16) for row in rows}
    batch = collate(rows, StoredFeatures(features), torch.device("cpu"))
    with torch.no_grad():
        found = hidden_states(model, batch)
        for index, row in enumerate(rows):
            ids = torch.from_numpy(row.ids).long()[None, :-1]
            wanted = model.model(ids).last_hidden_state[0, row.num_prompt - 1 :]
            torch.testing.assert_close(found[index, : row.num_response], wanted)


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_the_tokenizer_that_is_written_is_the_verifiers(make: Any, tmp_path: Path) -> None:
    folder = save_verifier(tmp_path / "verifier")
    given = PreTrainedTokenizerFast(tokenizer_object=make(), eos_token="</s>")
    given.chat_template = CHATML
    # Ids beyond the model's vocabulary would be refused.
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": len(given)}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.save_pretrained(folder)
    given.save_pretrained(folder)
    verifier = open_checkpoint(resolve_source(str(folder), WorkDir(tmp_path / "work")))
    write_student(tmp_path, read_model(verifier, torch.float32), {}, verifier)
    found = load_tokenizer(tmp_path)
    assert found is not None
    check_same_tokens(verifier.tokenizer, found)
    assert found.backend_tokenizer.to_str() == given.backend_tokenizer.to_str()
    assert (found.chat_template, found.eos_token) == (CHATML, "</s>")
    assert str(tmp_path) not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("name", families())
def test_layers_of_every_family_are_read_back_as_they_were_named(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    given = AutoModelForCausalLM.from_config(families()[name]).bfloat16()
    given.save_pretrained(tmp_path / "verifier")
    work = WorkDir(tmp_path / "work")
    verifier = open_checkpoint(resolve_source(str(tmp_path / "verifier"), work))
    student = read_model(verifier, torch.float32, (1,))
    write_student(tmp_path, student, {}, verifier)
    found = open_checkpoint(resolve_source(str(tmp_path), work))
    assert found.config.num_hidden_layers == 1
    for key in ("layer_types", "no_rope_layers"):
        if getattr(given.config, key, None):
            assert getattr(found.config, key) == getattr(given.config, key)[1:2]
    state, taken = given.state_dict(), 0
    for one in found.tensor_names:
        source = one.replace(".0.", ".1.", 1)
        taken += source != one
        assert torch.equal(found.read(one), state[source])
    assert taken >= 4


NEW = ("--layers", "1", "--hidden-size", "32", "--heads", "2")


def command(model: Path, text: Path, output: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "yggc", "train", "distill", "--verifier", str(model), "--data",
        str(text), "-o", str(output), "--epochs", "8", "--batch-tokens", "256", "--warmup", "4",
        "--validate-every", "5", "--held-out", "0.15", "--threads", "2", "--patience", "0",
        "--learning-rate", "5e-3", *more,
    ]  # fmt: skip


@pytest.mark.tiny
def test_a_killed_run_goes_on_to_the_same_losses_and_leaves_an_ordinary_model(
    model: Path, text: Path, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_command(command(model, text, whole, *NEW))
    kill_at(command(model, text, killed, *NEW), killed, 10)
    assert "going on from step" in run_command(command(model, text, killed, *NEW))
    assert read_log(killed) == read_log(whole)
    ours, wanted = (load_file(one / "model.safetensors") for one in (killed, whole))
    assert all(torch.equal(ours[name], one) for name, one in wanted.items())

    checks = [one["validation"] for one in read_log(whole) if "validation" in one]
    assert checks[-1]["top"][0][0] > checks[0]["top"][0][0]
    losses = [one["loss"] for one in read_log(whole) if "loss" in one]
    assert sum(losses[-5:]) < sum(losses[:5])
    # A chain has right in a row what first choices say, wherever a draft begins.
    assert checks[-1]["chain"] <= 4 * checks[-1]["top"][0][0] + 0.1
    made = AutoModelForCausalLM.from_pretrained(whole)
    assert made.dtype == torch.bfloat16
    assert made.get_output_embeddings().weight is made.get_input_embeddings().weight
    card = (whole / "README.md").read_text()
    best = json.loads((whole / "training.json").read_text())["best"]["validation"]
    assert f"| 1 | {best['top'][0][0]:.3f} |" in card
    assert str(model.parent) not in card + (whole / "training.json").read_text()

    said = run_command(
        [*command(model, text, whole)[:4], "eagle", *command(model, text, whole)[5:]], code=2
    )
    assert "holds a run with kind 'distill', asked for is 'eagle'" in said


@pytest.mark.tiny
def test_all_layers_of_the_verifier_are_the_verifier(
    model: Path, text: Path, tmp_path: Path
) -> None:
    folder, more = tmp_path / "all", ("--dtype", "float32", "--learning-rate", "1e-9")
    run_command(command(model, text, folder, "--from-layers", "0,1", *more))
    first = next(one["validation"] for one in read_log(folder) if "validation" in one)
    assert first["top"][0][0] > 0.98
    found = load_file(folder / "model.safetensors")
    for name, one in load_file(model / "model.safetensors").items():
        torch.testing.assert_close(found.pop(name), one.bfloat16(), rtol=0.01, atol=1e-6)
    assert not found


@pytest.mark.tiny
def test_what_does_not_fit_is_refused_before_anything_is_written(
    model: Path, text: Path, tmp_path: Path
) -> None:
    output = tmp_path / "student"
    for more, wanted in (
        (("--from-layers", "0,2"), "--from-layers has 2, the verifier's layers are 0 to 1"),
        (("--from-layers", "0,x"), "--from-layers is '0,x', wanted numbers of layers"),
        (("--from-layers", "0", "--layers", "3"), "--layers is of a new model"),
        (("--hidden-size", "30", "--heads", "4"), "--hidden-size is 30, wanted a multiple of 8"),
    ):
        said = run_command(command(model, text, output, *more), code=2)
        assert wanted in said
        assert "Traceback" not in said
    assert not output.exists()
    config = GraniteConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, logits_scaling=8.0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "granite")
    said = run_command(command(tmp_path / "granite", text, output, "--from-layers", "0"), code=2)
    assert "its logits are not its output head times its last hidden states" in said


@pytest.mark.tiny
def test_a_bundle_that_drafts_with_it_decodes_as_plain(tmp_path: Path) -> None:
    verifier = bundles.tiny_model()
    text = write_text(verifier, tmp_path / "text.jsonl")
    folder = bundles.CACHE / "tiny-distilled"
    if not folder.exists():
        run_command(command(verifier, text, folder, *NEW))
    session = load(bundles.tiny_drafted("distilled", f"{folder}+ngram"))
    for prompt in prompts(3, (5, 17)):
        for options in ({}, {"temperature": 1.0, "seed": 3}):
            plain = decode(session, prompt, 24, tree="plain", **options)
            for tree in ("sequence:depth=4", "egt:width=4,depth=4,children=8,verify=16"):
                assert decode(session, prompt, 24, tree=tree, **options) == plain
