"""EAGLE-3 heads: the module against its definition, the layouts that are read, and heads that do
not fit their verifier."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from yggc.config import load_config
from yggc.errors import SourceError
from yggc.models.checkpoint import open_checkpoint, open_drafter
from yggc.models.eagle3 import Eagle3Config, Eagle3ForCausalLM
from yggc.models.head import HeadCheckpoint
from yggc.models.source import resolve_source
from yggc.models.taps import watch_layers
from yggc.workdir import WorkDir

pytestmark = pytest.mark.tiny

SIZE, VOCAB, DRAFT, MIDDLE, HEADS, GROUPS = 32, 60, 24, 48, 4, 2
NUM_LAYERS = 9
State = dict[str, torch.Tensor]
Change = Callable[[dict[str, Any], State], None]


# --- the module ----------------------------------------------------------------------------------


def random_state(config: Eagle3Config) -> State:
    draw = torch.Generator().manual_seed(11)
    state = Eagle3ForCausalLM(config).state_dict()
    return {
        name: torch.rand(one.shape, generator=draw) + 0.5
        if one.dim() == 1
        else torch.randn(one.shape, generator=draw) / math.sqrt(one.shape[1])
        for name, one in state.items()
    }


def small_config(**more: Any) -> Eagle3Config:
    return Eagle3Config(
        taps=[2, 4, 6], draft_vocab_size=DRAFT, vocab_size=VOCAB, hidden_size=SIZE,
        intermediate_size=MIDDLE, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
        rms_norm_eps=1e-5, **more,
    )  # fmt: skip


class Reference:
    """The head as the paper and the EAGLE repository's `cnets.py` define it, in float64 and one
    row at a time: row t has the embedding of token t and a feature of the token before."""

    def __init__(self, state: State, *, norm_before_residual: bool) -> None:
        self.state = {name: one.double() for name, one in state.items()}
        self.norm_before_residual = norm_before_residual
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt((x * x).mean() + 1e-5) * self.state[name]

    def rotated(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """x: [heads, dim], halves of a dimension are a pair."""
        half = x.shape[-1] // 2
        angles = position * 10000.0 ** (-torch.arange(half).double() / half)
        a, b = x[:, :half], x[:, half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def row(self, token: int, feature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits after the next row, and its feature for the one behind."""
        layer, position = "model.layers.0.", len(self.keys)
        weight = {n: self.state[f"{layer}self_attn.{n}_proj.weight"] for n in "qkvo"}
        embedding = self.state["model.embed_tokens.weight"][token]
        normed = self.norm(f"{layer}hidden_norm.weight", feature)
        wide = torch.cat([self.norm(f"{layer}input_layernorm.weight", embedding), normed])
        dim = SIZE // HEADS
        query = self.rotated((weight["q"] @ wide).view(HEADS, dim), position)
        self.keys.append(self.rotated((weight["k"] @ wide).view(GROUPS, dim), position))
        self.values.append((weight["v"] @ wide).view(GROUPS, dim))
        heads = []
        for head in range(HEADS):
            group = head * GROUPS // HEADS
            keys = torch.stack([one[group] for one in self.keys])
            values = torch.stack([one[group] for one in self.values])
            heads.append(torch.softmax(keys @ query[head] / math.sqrt(dim), 0) @ values)
        hidden = normed if self.norm_before_residual else feature
        hidden = hidden + weight["o"] @ torch.cat(heads)
        inner = self.norm(f"{layer}post_attention_layernorm.weight", hidden)
        gate, up, down = (
            self.state[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
        )
        gated = gate @ inner
        hidden = hidden + down @ (gated / (1 + torch.exp(-gated)) * (up @ inner))
        return self.state["lm_head.weight"] @ self.norm("norm.weight", hidden), hidden


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_the_module_is_its_definition(norm_before_residual: bool) -> None:
    """Five rows on features of the verifier, then three on what the head made."""
    config = small_config(norm_before_residual=norm_before_residual)
    state = random_state(config)
    model = Eagle3ForCausalLM(config).double().eval()
    model.load_state_dict(state)
    reference = Reference(state, norm_before_residual=norm_before_residual)
    draw = torch.Generator().manual_seed(12)
    tokens = torch.randint(VOCAB, (8,), generator=draw)
    taps = torch.randn(4, 3 * SIZE, generator=draw).double()
    fused = taps @ reference.state["fc.weight"].T
    with torch.no_grad():
        features = torch.cat([torch.zeros(1, SIZE).double(), model.fuse(taps)])
        assert torch.allclose(features[1:], fused, rtol=1e-12, atol=1e-12)
        for row in range(8):
            logits, hidden = reference.row(int(tokens[row]), features[row])
            if row < 4:
                continue
            found = model(tokens[None, : row + 1], features[None])
            # transformers' norms are in float32.
            assert torch.allclose(found.logits[0, -1], logits, rtol=1e-5, atol=1e-5)
            features = torch.cat([features, hidden[None]])


def test_layers_are_watched_where_transformers_counts_them() -> None:
    config = bundles.tiny_config()
    config.num_hidden_layers = 4
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    found: State = {}
    watch_layers(model.model, 4, (0, 2, 3), lambda i, hidden: found.__setitem__(str(i), hidden))
    with torch.no_grad():
        ids = torch.tensor([[3, 5, 7]])
        wanted = model(ids, output_hidden_states=True).hidden_states
    for place, layer in enumerate((0, 2, 3)):
        assert torch.equal(found[str(place)], wanted[layer])
    with pytest.raises(SourceError, match="has 0 lists of 5 layers, wanted one"):
        watch_layers(model.model, 5, (1,), lambda i, hidden: None)


# --- layouts -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier")
    config = bundles.tiny_config()
    config.update({"vocab_size": VOCAB, "hidden_size": SIZE, "intermediate_size": MIDDLE})
    config.num_hidden_layers = NUM_LAYERS
    torch.manual_seed(5)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def target_ids() -> torch.Tensor:
    return torch.arange(DRAFT) * 2 + 7


def published_state(layer: str) -> State:
    """What published heads hold, under their names."""
    state = random_state(small_config())
    del state["model.embed_tokens.weight"]
    renamed = {name.replace("model.layers.0.", layer): one for name, one in state.items()}
    members = torch.zeros(VOCAB, dtype=torch.bool)
    members[target_ids()] = True
    return {**renamed, "d2t": target_ids() - torch.arange(DRAFT), "t2d": members}


def layer_config() -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": SIZE, "intermediate_size": MIDDLE,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "num_hidden_layers": 1,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip


def eagle_repository() -> tuple[dict[str, Any], State]:
    """As `eagle/traineagle3/config.json` of SafeAILab/EAGLE and what its `cnets.py` saves."""
    config = {
        **layer_config(), "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
        "pad_token_id": 0, "torch_dtype": "float16", "use_cache": True,
        "transformers_version": "4.28.1", "draft_vocab_size": DRAFT,
    }  # fmt: skip
    return config, published_state("midlayer.")


def sglang() -> tuple[dict[str, Any], State]:
    """The EAGLE repository's, with layers as SGLang counts them."""
    config, state = eagle_repository()
    stated = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 3, 7]}
    return {**config, "eagle_config": stated}, state


def speculators() -> tuple[dict[str, Any], State]:
    """As an Eagle3Speculator of vllm-project/speculators saves itself."""
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0", "transformer_layer_config": layer_config(),
        "draft_vocab_size": DRAFT, "norm_before_residual": True, "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 8], "embed_requires_grad": False,
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": []},
    }  # fmt: skip
    state = published_state("layers.0.")
    return config, {**state, "embed_tokens.weight": torch.zeros(VOCAB, SIZE)}


Parts = Callable[[], tuple[dict[str, Any], State]]


def opened(parts: tuple[dict[str, Any], State], verifier: Path, tmp_path: Path) -> HeadCheckpoint:
    config, state = parts
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    work = WorkDir(tmp_path / "work")
    theirs = open_checkpoint(resolve_source(str(verifier), work))
    found = open_drafter(resolve_source(str(folder), work), theirs)
    assert isinstance(found, HeadCheckpoint)
    return found


@pytest.mark.parametrize(
    ("parts", "taps", "norm_before_residual"),
    [
        (eagle_repository, [2, 4, 6], False),
        (sglang, [1, 4, 8], False),
        (speculators, [1, 4, 8], True),
    ],
)
def test_published_layouts_are_read(
    verifier: Path, tmp_path: Path, parts: Parts, taps: list[int], norm_before_residual: bool
) -> None:
    head = opened(parts(), verifier, tmp_path)
    config = head.config
    assert isinstance(config, Eagle3Config)
    assert (config.taps, config.norm_before_residual) == (taps, norm_before_residual)
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (SIZE, MIDDLE, 8)
    assert (config.vocab_size, config.draft_vocab_size) == (VOCAB, DRAFT)
    assert head.draft_ids == tuple(target_ids().tolist())
    for name, value in random_state(small_config()).items():
        if name != "model.embed_tokens.weight":
            assert torch.equal(head.read(name), value), name
    # A copy of the embedding is not what is used.
    embedding = bundles.reference(verifier).get_input_embeddings().weight
    assert torch.equal(head.read("model.embed_tokens.weight"), embedding)


def test_a_head_says_that_it_is_one(tmp_path: Path) -> None:
    config, _ = eagle_repository()
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = {"verifier": "model.gguf", "target": "cpu", "output": "out.ygg"}
    resolved, _ = load_config(None, {**base, "drafter": f"{tmp_path}+ngram"})
    assert resolved.drafter_widths == (1, 4, 8)


# --- heads that do not fit -----------------------------------------------------------------------


def stated(**changes: Any) -> Change:
    return lambda config, state: config.update(changes)


def stored(**changes: torch.Tensor | None) -> Change:
    def change(config: dict[str, Any], state: State) -> None:
        for key, value in changes.items():
            name = key.replace("__", ".")
            if value is None:
                del state[name]
            else:
                state[name] = value

    return change


def moved(value: int) -> torch.Tensor:
    offsets = target_ids() - torch.arange(DRAFT)
    offsets[-1] = value
    return offsets


MISSHAPEN = r"has shape \[96, 32\], the configuration wants \[32, 96\]"
NARROW = r"has shape \[32, 32\], the configuration wants \[32, 64\]"
BAD = {
    "missing": (stored(fc__weight=None), "first 'fc.weight'"),
    "norm": (stored(norm__weight=None), "first 'norm.weight'"),
    "output head": (stored(lm_head__weight=None), "first 'lm_head.weight'"),
    "permuted": (stored(fc__weight=torch.zeros(3 * SIZE, SIZE)), MISSHAPEN),
    "narrow": (stored(midlayer__self_attn__q_proj__weight=torch.zeros(SIZE, SIZE)), NARROW),
    "foreign": (stored(midlayer__extra=torch.zeros(2)), "extra' is not part of an EAGLE-3 head"),
    "second layer": (stored(layers__1__x=torch.zeros(2)), "'layers.1.x' is not part of"),
    "no map": (stored(d2t=None, t2d=None), "gives 24 of 60 logits and has no tensor 'd2t'"),
    "far id": (stored(d2t=moved(40)), "'d2t' has the id 63, wanted 24 in 0..59"),
    "negative id": (stored(d2t=moved(-24)), "'d2t' has the id -1, wanted 24 in 0..59"),
    "twice": (stored(d2t=moved(7 + 2 * 22 - 23)), "'d2t' has 23 different ids"),
    "short map": (stored(d2t=torch.zeros(5, dtype=torch.int64)), "wanted 24 in 0..59"),
    "other members": (
        stored(t2d=torch.ones(VOCAB, dtype=torch.bool)),
        "'t2d' marks 60 of 60 ids, wanted the 24 of 'd2t'",
    ),
    "embedding": (
        stored(embed_tokens__weight=torch.zeros(VOCAB, 16)),
        r"'embed_tokens.weight' has shape \[60, 16\], wanted rows of 32",
    ),
    "verifier": (stated(target_hidden_size=64), "hidden_size 32 over a verifier's 64"),
    "hidden": (stated(hidden_size=64, head_dim=8), "hidden_size 64, this one has 32"),
    "vocabulary": (stated(vocab_size=61), "verifier with vocab_size 61, this one has 60"),
    "layers": (stated(num_hidden_layers=2), "has num_hidden_layers 2, wanted 1"),
    "architecture": (stated(model_type="qwen3"), "has model_type 'qwen3', wanted 'llama'"),
    "window": (stated(sliding_window=512), "has sliding_window, which is not covered: attention"),
    "norm of taps": (stated(norm_before_fc=True), "has norm_before_fc, which is not covered"),
    "last state": (
        stated(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state false",
    ),
    "taps": (
        stated(eagle_aux_hidden_state_layer_ids=[2, 4, 9]),
        r"reads what layers \[2, 4, 9\] are given, wanted ascending ones of the verifier's 0..8",
    ),
    "order": (stated(eagle_aux_hidden_state_layer_ids=[4, 2, 6]), r"layers \[4, 2, 6\] are"),
    "no numbers": (
        stated(eagle_aux_hidden_state_layer_ids=["low"]), "is no configuration of a head"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_head_that_does_not_fit_is_refused_by_name(
    verifier: Path, tmp_path: Path, case: str
) -> None:
    change, wanted = BAD[case]
    config, state = eagle_repository()
    change(config, state)
    with pytest.raises(SourceError, match=wanted):
        opened((config, state), verifier, tmp_path)


def test_a_shallow_verifier_has_no_such_layers(tmp_path: Path) -> None:
    config, state = eagle_repository()
    config.update({"vocab_size": 400, "hidden_size": 64})
    with pytest.raises(SourceError, match=r"layers \[2, 1, -1\] are given, which published heads"):
        opened((config, state), bundles.tiny_model(), tmp_path)
