"""Medusa heads: the module against its definition, the layouts that are read, heads that do not
fit their verifier, and what a build of them would take."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from safetensors.torch import load_file, save_file
from ygg_kernels.build import build_library
from ygg_kernels.ops import load_library

from yggc.config import BuildConfig, load_config
from yggc.errors import SourceError
from yggc.estimate import estimate
from yggc.heads import Medusa
from yggc.models.adapt import adapt_medusa
from yggc.models.checkpoint import open_checkpoint, open_drafter
from yggc.models.head import HeadCheckpoint
from yggc.models.medusa import MedusaConfig, MedusaForCausalLM
from yggc.models.source import hub_config, resolve_source
from yggc.models.weights import packed_tensors
from yggc.workdir import WorkDir

pytestmark = pytest.mark.tiny

State = dict[str, torch.Tensor]
Parts = tuple[dict[str, Any], State]
Change = Callable[[dict[str, Any], State], None]
SIZE, VOCAB = 64, 400


# --- the module ----------------------------------------------------------------------------------


def random_state(config: MedusaConfig) -> State:
    draw = torch.Generator().manual_seed(11)
    state = MedusaForCausalLM(config).state_dict()
    return {name: torch.randn(one.shape, generator=draw) / 8 for name, one in state.items()}


def defined(state: State, config: MedusaConfig, hidden: torch.Tensor) -> torch.Tensor:
    """The paper's heads in float64, one block after another: [rows, heads, ids]."""
    found = []
    for head in range(config.num_heads):
        x = hidden.double()
        for block in range(config.num_blocks):
            name = f"heads.{head}.blocks.{block}.linear"
            z = x @ state[f"{name}.weight"].double().T + state[f"{name}.bias"].double()
            x = x + z / (1 + torch.exp(-z))
        x = x @ state[f"heads.{head}.out.weight"].double().T
        found.append(x if config.own_outputs else x @ state["lm_head.weight"].double().T)
    return torch.stack(found, 1)


@pytest.mark.parametrize("own_outputs", [False, True])
@pytest.mark.parametrize("num_blocks", [0, 1, 2])
def test_heads_are_their_definition_and_so_are_packed_ones(
    own_outputs: bool, num_blocks: int
) -> None:
    config = MedusaConfig(
        vocab_size=VOCAB, hidden_size=SIZE, draft_vocab_size=0 if own_outputs else 48,
        num_heads=3, num_blocks=num_blocks, own_outputs=own_outputs,
    )  # fmt: skip
    state = random_state(config)
    model = MedusaForCausalLM(config)
    model.load_state_dict(state)
    hidden = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    wanted = defined(state, config, hidden)
    assert wanted.shape[1:] == (3, VOCAB if own_outputs else 48)
    with torch.no_grad():
        found = model(hidden).double()
        assert torch.allclose(found, wanted.flatten(1), rtol=1e-4, atol=1e-4)
        library = build_library(bundles.WORK / "operators")
        operators = load_library(library.path, library.namespace)
        given = Medusa(config=config.to_dict(), dtype="float32", formats={}, integer=False)
        adapted = adapt_medusa(given, operators)
        packed = dict(packed_tensors(adapted, state.__getitem__, "float32"))
        for name, parameter in adapted.model.named_parameters():
            parameter.data = packed[name]
        # As in a graph: a batch of one.
        found = adapted.model(hidden[None])[0].double()
        assert torch.allclose(found, wanted.flatten(1), rtol=1e-4, atol=1e-4)
    assert adapted.kv_layers == ()


def test_new_heads_say_what_the_verifier_says_next() -> None:
    """Blocks of zeros pass their input on, weights and biases."""
    from yggc.train.medusa_learner import new_heads

    config = MedusaConfig(vocab_size=VOCAB, hidden_size=SIZE, num_heads=2, num_blocks=2)
    model = new_heads(config)
    hidden = torch.randn(3, SIZE)
    for head in model.heads:
        head.out.weight.data.copy_(torch.eye(SIZE))
        assert torch.equal(head(hidden), hidden)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert "lm_head.weight" not in trained
    assert len(trained) == 2 * (2 * 2 + 1)


# --- layouts -------------------------------------------------------------------------------------


def own() -> Parts:
    folder = bundles.fitted_medusa()
    config = json.loads((folder / "config.json").read_bytes())
    return config, load_file(folder / "model.safetensors")


def published_state(num_heads: int = 2, num_layers: int = 1) -> State:
    """What FasterDecoding's heads hold, under their names."""
    draw = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    state: State = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            state[f"{head}.{layer}.linear.weight"] = random(SIZE, SIZE)
            state[f"{head}.{layer}.linear.bias"] = random(SIZE)
        state[f"{head}.{num_layers}.weight"] = random(VOCAB, SIZE)
    return state


def published() -> Parts:
    """config.json as in FasterDecoding/medusa-vicuna-7b-v1.3."""
    config = {
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2,
        "medusa_num_layers": 1, "transformers_version": "4.31.0",
    }  # fmt: skip
    return config, published_state()


def saved(folder: Path, parts: Parts, file: str = "medusa_lm_head.safetensors") -> Path:
    config, state = parts
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".pt"):
        torch.save(state, folder / file)
    else:
        save_file(state, folder / file)
    return folder


def opened(folder: Path, tmp_path: Path) -> HeadCheckpoint:
    work = WorkDir(tmp_path / "work")
    verifier = open_checkpoint(resolve_source(str(bundles.tiny_model()), work))
    found = open_drafter(resolve_source(str(folder), work), verifier)
    assert isinstance(found, HeadCheckpoint)
    return found


@pytest.mark.parametrize("file", ["medusa_lm_head.safetensors", "medusa_lm_head.pt"])
def test_published_heads_are_read(tmp_path: Path, file: str) -> None:
    heads = opened(saved(tmp_path / "heads", published(), file), tmp_path)
    config = heads.config
    assert isinstance(config, MedusaConfig)
    assert config.own_outputs
    assert (config.num_heads, config.num_blocks) == (2, 1)
    assert (config.hidden_size, config.vocab_size, config.num_logits) == (SIZE, VOCAB, 2 * VOCAB)
    assert heads.draft_ids == ()
    assert heads.dtype == "float32"
    state = published_state()
    assert heads.num_parameters == sum(one.numel() for one in state.values())
    for head in range(2):
        for theirs, ours in (
            ("0.linear.weight", "blocks.0.linear.weight"),
            ("0.linear.bias", "blocks.0.linear.bias"),
            ("1.weight", "out.weight"),
        ):
            read = heads.read(f"heads.{head}.{ours}")
            assert torch.equal(read, state[f"{head}.{theirs}"])
    assert [one.name for one in heads.source.files] == ["config.json", file]
    heads.release()
    assert torch.equal(heads.read("heads.1.out.weight"), state["1.1.weight"])


def test_heads_are_counted_in_the_file_and_blocks_in_the_configuration(tmp_path: Path) -> None:
    config, _ = published()
    config["medusa_num_layers"] = 2
    parts = config, published_state(num_heads=5, num_layers=2)
    heads = opened(saved(tmp_path / "heads", parts), tmp_path)
    assert (heads.config.num_heads, heads.config.num_blocks) == (5, 2)
    assert heads.notes == ("config.json states 2 Medusa heads, the file has 5",)


def test_own_heads_take_rows_of_the_verifiers_output_head(tmp_path: Path) -> None:
    heads = opened(bundles.fitted_medusa(), tmp_path)
    embedding = load_file(bundles.tiny_model() / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(heads.read("lm_head.weight"), embedding[own()[1]["draft_ids"]])
    assert "model.embed_tokens.weight" not in heads.tensor_names
    assert heads.notes == ()


# --- heads that do not fit -----------------------------------------------------------------------


def stated(**changes: Any) -> Change:
    return lambda config, state: config.update(changes)


def stored(changes: dict[str, torch.Tensor | None]) -> Change:
    def change(config: dict[str, Any], state: State) -> None:
        for name, value in changes.items():
            if value is None:
                del state[name]
            else:
                state[name] = value

    return change


def no_map(config: dict[str, Any], state: State) -> None:
    del state["draft_ids"]


BAD_PUBLISHED = {
    "missing block": (stored({"1.0.linear.weight": None}), "first 'heads.1.blocks.0.linear.w"),
    "missing bias": (stored({"0.0.linear.bias": None}), "first 'heads.0.blocks.0.linear.bias'"),
    "missing projection": (stored({"1.1.weight": None}), "first 'heads.1.out.weight'"),
    "missing first": (stored({"0.1.weight": None}), "projection '0.1.weight' is missing"),
    "missing head": (stated(medusa_num_heads=3), "has 2 Medusa heads, config.json states 3"),
    "permuted": (
        stored({"1.1.weight": torch.zeros(SIZE, VOCAB)}),
        r"'heads.1.out.weight' has shape \[64, 400\], the configuration wants \[400, 64\]",
    ),
    "all permuted": (
        stored({f"{head}.1.weight": torch.zeros(SIZE, VOCAB) for head in range(2)}),
        r"tensor 'heads.0.blocks.0.linear.weight' has shape|hidden_size 400, this one has 64",
    ),
    "misshapen": (
        stored({"0.0.linear.bias": torch.zeros(SIZE + 1)}),
        r"linear.bias' has shape \[65\], the configuration wants \[64\]",
    ),
    "extra block": (
        stored({"0.1.linear.weight": torch.zeros(SIZE, SIZE)}),
        "'heads.0.blocks.1.linear.weight' is not part of Medusa heads",
    ),
    "extra": (stored({"embed.weight": torch.zeros(2)}), "'embed.weight' is not part of Medusa"),
    "gap": (
        stored({"2.0.linear.weight": None, "3.0.linear.weight": torch.zeros(SIZE, SIZE)}),
        "first 'heads.2.blocks.0.linear.weight'",
    ),
    "more blocks": (stated(medusa_num_layers=2), "projection '0.2.weight' is missing"),
    "vocabulary": (
        stored({f"{head}.1.weight": torch.zeros(VOCAB + 32, SIZE) for head in range(2)}),
        "for a verifier with vocab_size 432, this one has 400",
    ),
    "no number": (stated(medusa_num_heads="two"), "is no configuration of a head"),
}


@pytest.mark.parametrize("case", BAD_PUBLISHED)
def test_published_heads_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    change, wanted = BAD_PUBLISHED[case]
    config, state = published()
    if case == "gap":
        state |= {name: one for name, one in published_state(3).items() if name[0] == "2"}
    change(config, state)
    with pytest.raises(SourceError, match=wanted):
        opened(saved(tmp_path / "heads", (config, state)), tmp_path)


BAD_OWN = {
    "hidden": (stated(hidden_size=32), "for a verifier with hidden_size 32, this one has 64"),
    "vocabulary": (stated(vocab_size=401), "with vocab_size 401, this one has 400"),
    "map": (stored({"draft_ids": torch.arange(17, 401)}), "has the id 400, wanted 384 in 0..399"),
    "negative": (stored({"draft_ids": torch.arange(-1, 383)}), "has the id -1"),
    "twice": (stored({"draft_ids": torch.zeros(384, dtype=torch.int64)}), "1 different ids"),
    "no map": (no_map, "gives 384 of 400 logits and has no tensor 'draft_ids'"),
    "missing": (stored({"heads.2.out.weight": None}), "first 'heads.2.out.weight'"),
    "more heads": (stated(num_heads=4), "first 'heads.3.blocks.0.linear.weight'"),
    "fewer heads": (stated(num_heads=2), "tensor 'heads.2.blocks.0.linear.bias' is not part of"),
    "no heads": (stated(num_heads=0), "num_heads is 0, wanted a number in 1..32"),
    "absurd": (stated(num_heads=10**9), "num_heads is 1000000000, wanted a number in 1..32"),
}


@pytest.mark.parametrize("case", BAD_OWN)
def test_own_heads_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    change, wanted = BAD_OWN[case]
    config, state = own()
    change(config, state)
    folder = saved(tmp_path / "heads", (config, state), "model.safetensors")
    with pytest.raises(SourceError, match=wanted):
        opened(folder, tmp_path)


class Harmful:
    """What runs code where a pickle is read carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_pickles_run_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    for number, content in enumerate((Harmful(touched), [torch.zeros(2)], {"0.1.weight": 3})):
        folder = tmp_path / f"heads-{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(published()[0]))
        torch.save(content, folder / "medusa_lm_head.pt")
        with pytest.raises(SourceError, match="is no pickle of tensors by name alone"):
            opened(folder, tmp_path)
    (folder / "medusa_lm_head.pt").write_bytes(pickle.dumps({"a": 1})[:-1])
    with pytest.raises(SourceError, match="is no pickle of tensors by name alone"):
        opened(folder, tmp_path)
    assert not touched.exists()


def test_heads_are_no_verifier(tmp_path: Path) -> None:
    folder = saved(tmp_path / "heads", published())
    with pytest.raises(SourceError, match="is a head that drafts for a verifier"):
        open_checkpoint(resolve_source(str(folder), WorkDir(tmp_path / "work")))


def test_heads_on_the_hub_say_no_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "models--FasterDecoding--medusa-vicuna-7b-v1.3"
    saved(cached / "snapshots" / "commit", published())
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("commit")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="says no sizes of its Medusa heads"):
        hub_config("FasterDecoding/medusa-vicuna-7b-v1.3")


# --- options and sizes ---------------------------------------------------------------------------


def config_for(folder: Path, tmp_path: Path, **more: Any) -> tuple[BuildConfig, list[str]]:
    base = {"verifier": str(bundles.tiny_model()), "target": "cpu", "output": "out.ygg"}
    return load_config(None, {**base, "work_dir": str(tmp_path), "drafter": str(folder), **more})


def test_a_dry_run_has_no_graphs_of_the_heads_and_counts_their_logits(tmp_path: Path) -> None:
    heads = bundles.fitted_medusa()
    config, notes = config_for(heads, tmp_path, buckets=[1, 16])
    assert not any("drafter_widths" in note for note in notes)
    _, with_heads = estimate(config)
    plain, _ = config_for(Path("ngram"), tmp_path, buckets=[1, 16])
    _, without = estimate(plain)
    assert with_heads.graphs == without.graphs
    assert with_heads.kv_bytes == without.kv_bytes
    logits = 4 * 16 * 3 * 384
    assert with_heads.workspace_bytes == without.workspace_bytes + logits
    # Three heads of two matrices, and rows of the output head, in int8.
    wanted = 3 * 2 * SIZE * SIZE + 384 * SIZE
    assert 1 < (with_heads.weights_bytes - without.weights_bytes) / wanted < 1.3
    assert any("quant: auto is int8, for a head" in note for note in with_heads.notes)


def test_many_logits_are_worth_a_word(tmp_path: Path) -> None:
    config, state = own()
    config["num_heads"] = 32
    whole = {f"heads.{n}.{name[8:]}": one.clone() for n in range(32) for name, one in state.items()
             if name.startswith("heads.0.")}  # fmt: skip
    whole["draft_ids"] = state["draft_ids"]
    folder = saved(tmp_path / "heads", (config, whole), "model.safetensors")
    built, _ = config_for(folder, tmp_path, buckets=[1, 900])
    _, found = estimate(built)
    assert any("logits take 44 MB in every pass of 900 rows" in note for note in found.notes)


def test_widths_are_of_no_use_and_trees_of_any_size_are_taken(tmp_path: Path) -> None:
    heads = bundles.fitted_medusa()
    _, notes = config_for(heads, tmp_path, drafter_widths=[1, 4])
    assert "drafter_widths: of no use to Medusa heads, which have no graphs" in notes
    # More nodes than the graphs of a model that drafts would hold.
    wide = "egt:width=16,depth=3,verify=16"
    config, _ = config_for(Path(f"{heads}+ngram"), tmp_path, tree=wide)
    assert config.tree == wide
