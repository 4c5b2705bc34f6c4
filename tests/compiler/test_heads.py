"""Heads on disk: the layouts that are read, and heads that do not fit their verifier."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from safetensors.torch import load_file, save_file

from yggc.config import load_config
from yggc.errors import RecipeError, SourceError
from yggc.models.checkpoint import Checkpoint, open_checkpoint, open_drafter
from yggc.models.eagle import EagleConfig
from yggc.models.source import resolve_source
from yggc.workdir import WorkDir

pytestmark = pytest.mark.tiny

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def opened(folder: Path, tmp_path: Path) -> Checkpoint:
    work = WorkDir(tmp_path / "work")
    verifier = open_checkpoint(resolve_source(str(bundles.tiny_model()), work))
    return open_drafter(resolve_source(str(folder), work), verifier)


def parts() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    folder = bundles.random_head()
    config = json.loads((folder / "config.json").read_bytes())
    return config, load_file(folder / "model.safetensors")


def saved(tmp_path: Path, config: dict[str, Any], state: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    return folder


# --- layouts -------------------------------------------------------------------------------------


def whole_head() -> dict[str, torch.Tensor]:
    """A head without norm at its input, over all ids, as published ones are."""
    _, state = parts()
    del state["draft_ids"], state["model.layers.0.input_layernorm.weight"]
    return {**state, "fc.bias": torch.randn(64, generator=torch.Generator().manual_seed(4))}


def eagle_repository(tmp_path: Path) -> Path:
    """config.json of a Llama, as in yuhuili/EAGLE-llama2-chat-7B, in safetensors."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bias": True,
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 400, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 256, "hidden_act": "silu", "rope_theta": 10000.0,
        "rope_scaling": None, "pad_token_id": 0, "torch_dtype": "float16",
    }  # fmt: skip
    state = {name.removeprefix("model."): value for name, value in whole_head().items()}
    return saved(tmp_path, config, {**state, "embed_tokens.weight": torch.zeros(400, 64)})


def speculators(tmp_path: Path) -> Path:
    """config.json of an EagleSpeculator of vllm-project/speculators 0.1."""
    layer = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 400,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 256, "rope_theta": 10000.0,
    }  # fmt: skip
    config = {
        "architectures": ["EagleSpeculator"], "speculators_model_type": "eagle",
        "speculators_version": "0.1.0", "fusion_bias": True, "layernorms": False,
        "transformer_layer_architecture": "LlamaDecoderLayer", "transformer_layer_config": layer,
        "speculators_config": {"algorithm": "eagle", "proposal_methods": []},
    }  # fmt: skip

    def renamed(name: str) -> str:
        if name.startswith("fc."):
            return f"fusion_{name}"
        return name.replace("model.layers.0.", "transformer.")

    state = {renamed(name): value for name, value in whole_head().items()}
    return saved(tmp_path, config, {**state, "lm_head.weight": torch.zeros(400, 64)})


@pytest.mark.parametrize("layout", [eagle_repository, speculators])
def test_published_layouts_are_read(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    head = opened(layout(tmp_path), tmp_path)
    config = head.config
    assert isinstance(config, EagleConfig)
    assert config.fc_bias
    assert not config.input_norm
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (64, 96, 16)
    assert config.num_key_value_heads == 2
    assert config.draft_vocab_size == config.vocab_size == 400
    assert config.rope_parameters["rope_theta"] == 10000.0
    for name, value in whole_head().items():
        assert torch.equal(head.read(name), value)
    # Their copies of the verifier's tensors are not what is used.
    embedding = load_file(bundles.tiny_model() / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(head.read("model.embed_tokens.weight"), embedding)
    assert torch.equal(head.read("lm_head.weight"), embedding)


def test_chosen_ids_take_rows_of_the_verifiers_output_head(tmp_path: Path) -> None:
    head = opened(bundles.random_head(), tmp_path)
    embedding = load_file(bundles.tiny_model() / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(head.read("lm_head.weight"), embedding[parts()[1]["draft_ids"]])


@pytest.mark.parametrize(
    ("config", "names", "message"),
    [
        ({"speculators_model_type": "dflash"}, ["fc.weight"], "a head of kind 'dflash', wanted"),
        ({"draft_vocab_size": 9}, ["fc.weight"], "without 'midlayer.self_attn.q_proj.weight'"),
        ({"speculators_model_type": "eagle"}, ["fc.weight"], "no transformer_layer_config"),
        (
            {"speculators_model_type": "eagle", "transformer_layer_config": {}, "layernorms": 1},
            ["fc.weight"],
            "layernorms true, wanted false",
        ),
    ],
)
def test_other_heads_are_refused_by_kind(
    tmp_path: Path, config: dict[str, Any], names: list[str], message: str
) -> None:
    folder = saved(tmp_path, config, {name: torch.zeros(2) for name in names})
    with pytest.raises(SourceError, match=message):
        opened(folder, tmp_path)


# --- heads that do not fit -----------------------------------------------------------------------


def spoil(**changes: Any) -> Change:
    def change(config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        for key, value in changes.items():
            if key in config:
                config[key] = value
            elif value is None:
                del state[key.replace("__", ".")]
            else:
                state[key.replace("__", ".")] = value

    return change


BAD = {
    "missing": (spoil(fc__weight=None), "first 'fc.weight'"),
    "transposed": (
        spoil(fc__weight=torch.zeros(128, 64)),
        r"'fc.weight' has shape \[128, 64\], the configuration wants \[64, 128\]",
    ),
    "foreign": (spoil(midlayer__q=torch.zeros(2)), "'midlayer.q' is not part of an EAGLE head"),
    "hidden": (spoil(hidden_size=32), "for a verifier with hidden_size 32, this one has 64"),
    "vocabulary": (spoil(vocab_size=500), "for a verifier with vocab_size 500, this one has 400"),
    "size": (spoil(hidden_size="wide"), "is no configuration of a head"),
    "map": (spoil(draft_ids=torch.arange(17, 401)), "has the id 400, wanted 384 in 0..399"),
    "twice": (spoil(draft_ids=torch.zeros(384, dtype=torch.int64)), "1 different ids"),
    "no map": (spoil(draft_ids=None), "gives 384 of 400 logits and has no tensor 'draft_ids'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_head_that_does_not_fit_is_refused_by_name(tmp_path: Path, case: str) -> None:
    change, wanted = BAD[case]
    config, state = parts()
    change(config, state)
    folder = saved(tmp_path, config, state)
    with pytest.raises(SourceError, match=wanted):
        opened(folder, tmp_path)


def test_a_head_is_no_verifier(tmp_path: Path) -> None:
    source = resolve_source(str(bundles.random_head()), WorkDir(tmp_path))
    with pytest.raises(SourceError, match="is a head that drafts for a verifier"):
        open_checkpoint(source)


# --- options -------------------------------------------------------------------------------------

BASE = {"verifier": "model.gguf", "target": "cpu", "output": "out.ygg"}


@pytest.mark.parametrize("drafter", ["ngram+ngram", "lookahead+ngram", "+ngram", ""])
def test_drafters_that_cannot_be_joined(drafter: str) -> None:
    with pytest.raises(RecipeError, match="wanted ngram, lookahead, a model"):
        load_config(None, {**BASE, "drafter": drafter})


def test_a_head_is_run_wide_unless_told_otherwise() -> None:
    head = f"{bundles.random_head()}+ngram"
    config, notes = load_config(None, {**BASE, "drafter": head})
    assert config.drafter_widths == (1, 4, 8)
    assert any("drafter_widths: auto is 1, 4, 8" in note for note in notes)
    assert config.joins_ngram
    assert config.draft_model == str(bundles.random_head())
    config, _ = load_config(None, {**BASE, "drafter": head, "drafter_widths": [1, 4]})
    assert config.drafter_widths == (1, 4)
