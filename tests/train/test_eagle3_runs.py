"""Whole runs of `yggc train eagle3` on a three-layer model: results, what goes on, refusals."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from safetensors import safe_open
from training import HIDDEN, VOCAB, read_log, run_command
from transformers import LlamaConfig, LlamaForCausalLM

from yggc.errors import RecipeError, SourceError
from yggc.models.checkpoint import open_checkpoint, open_drafter
from yggc.models.eagle3 import Eagle3Config, Eagle3ForCausalLM
from yggc.models.source import resolve_source
from yggc.report import Reporter
from yggc.train.eagle3_learner import Eagle3Options
from yggc.train.export import export_head
from yggc.train.features import Verifier
from yggc.train.head import read_head
from yggc.train.initial import new_head, take_over
from yggc.train.run import train
from yggc.train_eagle3_cli import layer_numbers
from yggc.workdir import WorkDir

DRAFT = 50
pytestmark = pytest.mark.tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers that change little, so that the next token hangs on the last one most of all:
    some of that can be learned from little text."""
    folder = tmp_path_factory.mktemp("verifier")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
        initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.1
            layer.mlp.down_proj.weight *= 0.1
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the model itself writes, sampled."""
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    writer = LlamaForCausalLM.from_pretrained(model)
    torch.manual_seed(1)
    lines = []
    for number in range(120):
        prompt = torch.randint(VOCAB, (1, 2 + number % 7))
        out = writer.generate(
            prompt, do_sample=True, top_k=0, temperature=0.8, max_new_tokens=6 + number % 24,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        lines.append({"ids": out[0].tolist(), "num_prompt": prompt.shape[1]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def head(model: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command leaves; its features are kept beside it."""
    folder = tmp_path_factory.mktemp("run")
    command = [
        sys.executable, "-m", "yggc", "train", "eagle3", "--verifier", str(model), "--data",
        str(text), "-o", str(folder / "head"), "--taps", "0,1,2", "--epochs", "4",
        "--batch-tokens", "256", "--warmup", "4", "--threads", "2", "--validate-every", "20",
        "--held-out", "0.15", "--draft-vocab", str(DRAFT), "--draft-steps", "3",
        "--patience", "0", "--learning-rate", "1e-2", "--cache-features", str(folder / "kept"),
    ]  # fmt: skip
    assert "features need" in run_command(command)
    return folder / "head"


def options(model: Path, text: Path, output: Path, **more: Any) -> Eagle3Options:
    """Of a run that hardly changes what it begins with."""
    fields: dict[str, Any] = {"learning_rate": 1e-6, "epochs": 0.2, "batch_tokens": 256}
    fields |= {"held_out": 0.15, "draft_vocab": DRAFT, "num_steps": 3, "taps": (0, 1, 2)}
    return Eagle3Options(verifier=str(model), data=(text,), output=output, **fields | more)


def test_a_run_learns_and_its_head_is_read(head: Path, model: Path, tmp_path: Path) -> None:
    log = read_log(head)
    checks = [one["validation"] for one in log if "validation" in one]
    # The first weights look at the token that a row stands for; chance is 1 in 60.
    assert checks[0]["top"][0][0] > 0.1
    begin, end = (sum(shares[0] for shares in one["top"]) for one in (checks[0], checks[-1]))
    assert end > 1.1 * begin
    losses = [one["loss"] for one in log if "loss" in one]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert all("feature" not in one and len(one["token"]) == 3 for one in log if "loss" in one)
    found = read_head(head)
    assert isinstance(found.config, Eagle3Config)
    assert found.config.taps == [0, 1, 2]
    work = WorkDir(tmp_path)
    verifier = open_checkpoint(resolve_source(str(model), work))
    drafter = open_drafter(resolve_source(str(head), work), verifier)
    assert drafter.shape("fc.weight") == (HIDDEN, 3 * HIDDEN)
    assert drafter.shape("lm_head.weight") == (DRAFT, HIDDEN)
    # Trained, and no longer the verifier's.
    ids = found.draft_ids
    theirs = verifier.read("lm_head.weight")[ids].bfloat16()
    assert not torch.equal(drafter.read("lm_head.weight"), theirs)
    assert not torch.equal(found.weights["norm.weight"], torch.ones(HIDDEN).bfloat16())
    card = (head / "README.md").read_text()
    assert card.startswith("---\nlicense: ")
    assert "# EAGLE-3 head for" in card
    assert "0, 1, 2 are given at a token" in card


def test_the_written_head_says_what_was_measured(
    head: Path, model: Path, text: Path, tmp_path: Path
) -> None:
    """Scales of training are folded into what is written: a run that begins with the head agrees
    with the verifier as the head did."""
    given = options(model, text, tmp_path / "head", first=head, rejected_weight=2.0)
    assert train(given, WorkDir(tmp_path / "work"), Reporter(quiet=True), "", lambda: False)
    first = next(one for one in read_log(tmp_path / "head") if "validation" in one)
    best = json.loads((head / "training.json").read_text())["best"]["validation"]
    for ours, wanted in zip(first["validation"]["top"], best["top"], strict=True):
        assert abs(ours[0] - wanted[0]) < 0.03


@pytest.mark.parametrize(
    ("taps", "is_first", "message"),
    [
        ((), False, r"read what layers \[2, 1, 0\] are given, wanted ascending ones of the"),
        (
            (0, 3),
            False,
            r"layers \[0, 3\] are given, wanted ascending ones of the verifier's 0..2",
        ),
        ((1, 2), True, r"reads what layers \[0, 1, 2\] are given, asked for is \[1, 2\]"),
    ],
)
def test_layers_that_do_not_fit_are_refused(
    head: Path, model: Path, tmp_path: Path, taps: tuple[int, ...], is_first: bool, message: str
) -> None:
    checkpoint = open_checkpoint(resolve_source(str(model), WorkDir(tmp_path)))
    given = options(model, Path(), tmp_path, taps=taps, first=head if is_first else None)
    with pytest.raises(SourceError, match=message):
        given.check(checkpoint)


@pytest.mark.parametrize("text", ["low", "1,", "1;2", "-1"])
def test_layers_are_numbers(text: str) -> None:
    with pytest.raises(RecipeError, match="wanted numbers of layers as in 2,15,27"):
        layer_numbers(text)
    assert layer_numbers("2, 15,27") == (2, 15, 27)


def test_a_head_begins_with_one_of_its_kind(model: Path, tmp_path: Path) -> None:
    other = bundles.random_head()
    folder = tmp_path / "eagle"
    shutil.copytree(other, folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "verifier": {}}))
    checkpoint = open_checkpoint(resolve_source(str(model), WorkDir(tmp_path / "work")))
    with pytest.raises(SourceError, match="a head of another kind, wanted one of `yggc train"):
        options(model, Path(), tmp_path, first=folder).check(checkpoint)


def test_the_verifier_gives_what_its_layers_are_given(model: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(resolve_source(str(model), WorkDir(tmp_path)))
    verifier = Verifier(checkpoint, torch.device("cpu"), torch.float32, (0, 2))
    ids = torch.tensor([[3, 5, 7], [9, 4, 1]])
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).model.eval()
    with torch.no_grad():
        out = reference(ids, output_hidden_states=True)
    wanted = [out.last_hidden_state, out.hidden_states[0], out.hidden_states[2]]
    assert torch.allclose(verifier.features(ids), torch.cat(wanted, -1), rtol=1e-5, atol=1e-5)
    assert torch.equal(verifier.norm, reference.norm.weight)


def test_an_exported_head_is_read_as_the_same(head: Path, model: Path, tmp_path: Path) -> None:
    run_command(
        [
            sys.executable, "-m", "yggc", "train", "export", str(head), "-o",
            str(tmp_path / "out"), "--verifier", "someone/model",
        ]
    )  # fmt: skip
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert config["speculators_config"]["verifier"]["name_or_path"] == "someone/model"
    verifier = open_checkpoint(resolve_source(str(model), WorkDir(tmp_path)))
    ours, theirs = (
        open_drafter(resolve_source(str(one), WorkDir(tmp_path)), verifier)
        for one in (head, tmp_path / "out")
    )
    assert theirs.draft_ids == ours.draft_ids
    assert theirs.tensor_names == ours.tensor_names
    for name in ours.tensor_names:
        assert torch.equal(theirs.read(name), ours.read(name)), name
    same = ("taps", "norm_before_residual", "head_dim", "rope_parameters", "rms_norm_eps")
    assert [getattr(theirs.config, key) for key in same] == [
        getattr(ours.config, key) for key in same
    ]
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight", "d2t", "t2d"} < names
    assert not any(name.startswith("model.") or name == "embed_tokens.weight" for name in names)


def test_only_eagle3_heads_are_exported_and_nothing_is_overwritten(
    head: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match="exists already"):
        export_head(head, tmp_path, "someone/model", 4)
    shipped = Path(__file__).parents[2] / "artifacts/drafters/smollm2-135m-eagle"
    with pytest.raises(SourceError, match="wanted an EAGLE-3 head"):
        export_head(shipped, tmp_path / "out", "someone/model", 4)
    assert not (tmp_path / "out").exists()


def test_a_first_head_gives_each_id_its_own_row(head: Path) -> None:
    """More text may have other frequent ids than the text that the head learned from."""
    first = read_head(head)
    ids = torch.arange(VOCAB)
    others = ids[~torch.isin(ids, first.draft_ids)]
    mixed = torch.cat([first.draft_ids[3:], others[:3]]).sort().values
    model = new_head(Eagle3ForCausalLM, first.config, 0)
    with torch.no_grad():
        model.lm_head.weight.fill_(7.0)
    take_over(model, first, "head", mixed)
    theirs = dict(zip(first.draft_ids.tolist(), first.weights["lm_head.weight"], strict=True))
    for token, row in zip(mixed.tolist(), model.lm_head.weight, strict=True):
        wanted = theirs[token].float() if token in theirs else torch.full((HIDDEN,), 7.0)
        assert torch.equal(row.detach(), wanted)


def test_excluded_prompts_are_recorded_by_name(model: Path, text: Path, tmp_path: Path) -> None:
    given = options(model, text, tmp_path / "head", exclude=(tmp_path / "evaluation.jsonl",))
    assert json.loads(json.dumps(given.compared()))["exclude"] == ["evaluation.jsonl"]
