"""Directories in which heads are found: this project's, those of the EAGLE and the Medusa
repository, and those of vllm-project/speculators (`eagle` in releases before 0.4, `eagle3`).

Each layout says how its configuration becomes an EagleConfig, an Eagle3Config or a MedusaConfig
and its tensors' names those of the model; a tensor that is the verifier's becomes "".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from yggc.errors import SourceError
from yggc.heads import PUBLISHED_MEDUSA, is_head
from yggc.models.eagle import EagleConfig, HeadConfig
from yggc.models.eagle3 import Eagle3Config
from yggc.models.medusa import MedusaConfig
from yggc.models.shards import StoredTensor

# Maps between the head's ids and the verifier's: the id of each logit; that less the logit's
# place; whether each of the verifier's ids has a logit.
DRAFT_IDS = "draft_ids"
OFFSETS = "d2t"
MEMBERS = "t2d"
# Kept by some as copies: the verifier's own are used.
_OF_VERIFIER = ("embed_tokens.weight", "lm_head.weight")
# Of a configuration, what is not a Llama's.
_FOREIGN = {"model_type", "transformers_version", "architectures", "num_hidden_layers", "bias"}
# Of an EAGLE-3 head's: where it says which layers are read, and what else is not a Llama's.
_TAPS = "eagle_aux_hidden_state_layer_ids"
_STATED = {"draft_vocab_size", "norm_before_residual", "target_hidden_size", "eagle_config", _TAPS}
# What an EAGLE-3 head may be besides, and then is not covered.
_REFUSED = {
    "norm_before_fc": "a norm before `fc`",
    "fc_norm": "norms of each layer before `fc`",
    "norm_output": "a norm of what is drafted on",
    "sliding_window": "attention over a window",
    "embed_requires_grad": "embeddings of its own",
    "parallel_drafting": "drafting in parallel",
    "qkv_bias": "biases of queries, keys and values alone",
}


_NUM_BLOCKS = "medusa_num_layers"
_MEDUSA_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
Stored = Mapping[str, StoredTensor]


class Layout(NamedTuple):
    """`kind` of head; `config`: of a `config.json` and the tensors by name; `rename`: of one
    tensor; `ids`: the map that says which ids have logits.
    """

    kind: str
    config: Callable[[dict[str, Any], Stored], HeadConfig | MedusaConfig]
    rename: Callable[[str], str]
    ids: str = DRAFT_IDS

    @property
    def maps(self) -> tuple[str, ...]:
        """The tensors that are maps of ids."""
        return (OFFSETS, MEMBERS) if self.ids == OFFSETS else (DRAFT_IDS,)


def find_layout(folder: Path, config: dict[str, Any], names: Collection[str]) -> Layout | None:
    """The layout of a directory's head; None for one that holds a model of its own.

    Raises SourceError for a head of a kind that is not read.
    """
    if config.get("model_type") == EagleConfig.model_type:
        return Layout("an EAGLE head", _own_config, _own_name)
    if config.get("model_type") == Eagle3Config.model_type:
        return Layout("an EAGLE-3 head", _own3_config, _own_name)
    if config.get("model_type") == MedusaConfig.model_type:
        return Layout("Medusa heads", _own_medusa_config, _own_name)
    if PUBLISHED_MEDUSA in config:
        num_blocks = config.get(_NUM_BLOCKS, 1)
        return Layout("Medusa heads", _medusa_config, partial(_from_medusa, num_blocks))
    if "speculators_model_type" in config:
        kind = config["speculators_model_type"]
        if kind == "eagle":
            return Layout("an EAGLE head", _speculators_config, _from_speculators)
        if kind == "eagle3":
            return Layout("an EAGLE-3 head", _speculators3_config, _from_eagle3, OFFSETS)
        raise SourceError(
            f"{folder}: is a head of kind {kind!r}, wanted one of kind 'eagle' or 'eagle3'",
            "others are not read; train one with `yggc train eagle`",
        )
    if "midlayer.self_attn.q_proj.weight" in names:
        return Layout("an EAGLE-3 head", _eagle3_config, _from_eagle3, OFFSETS)
    if "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names:
        return Layout("an EAGLE head", _eagle_config, _from_eagle)
    if is_head(config):
        raise SourceError(
            f"{folder}: is a head without 'midlayer.self_attn.q_proj.weight', which those of the "
            "EAGLE repository have",
            "the files are incomplete, or in a layout that is not read",
        )
    return None


def _own_name(name: str) -> str:
    return name


def _own_config(config: dict[str, Any], names: Stored) -> EagleConfig:
    return EagleConfig(**{key: value for key, value in config.items() if key not in _FOREIGN})


def _own3_config(config: dict[str, Any], names: Stored) -> Eagle3Config:
    return Eagle3Config(**{key: value for key, value in config.items() if key not in _FOREIGN})


def _own_medusa_config(config: dict[str, Any], stored: Stored) -> MedusaConfig:
    return MedusaConfig(**{key: value for key, value in config.items() if key not in _FOREIGN})


def _medusa_config(config: dict[str, Any], stored: Stored) -> MedusaConfig:
    """Sizes are those of the first head's projection. Heads are counted in the file: some
    configurations state fewer.
    """
    num_blocks, num_heads = config.get(_NUM_BLOCKS, 1), config[PUBLISHED_MEDUSA]
    found = {int(name.partition(".")[0]) for name in stored if name.partition(".")[0].isdigit()}
    projection = stored.get(f"0.{num_blocks}.weight")
    if projection is None or len(projection.shape) != 2:
        shape = "is missing" if projection is None else f"has shape {list(projection.shape)}"
        raise SourceError(
            f"the first head's projection '0.{num_blocks}.weight' {shape}, wanted one row for "
            f"each id behind {num_blocks} blocks ({_NUM_BLOCKS})",
            "the files are incomplete, or config.json belongs to other heads",
        )
    if num_heads > len(found):
        raise SourceError(
            f"the file has {len(found)} Medusa heads, config.json states {num_heads} "
            f"({PUBLISHED_MEDUSA})",
            "fetch the files again",
        )
    vocab_size, hidden_size = projection.shape
    return MedusaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_heads=len(found),
        num_blocks=num_blocks,
        own_outputs=True,
    )


def _from_medusa(num_blocks: int, name: str) -> str:
    if found := _MEDUSA_BLOCK.fullmatch(name):
        head, block, which = found.groups()
        return f"heads.{head}.blocks.{block}.linear.{which}"
    head, dot, rest = name.partition(".")
    return f"heads.{head}.out.weight" if dot and rest == f"{num_blocks}.weight" else name


def _eagle_config(config: dict[str, Any], names: Stored) -> EagleConfig:
    fields = {key: value for key, value in config.items() if key not in _FOREIGN}
    return EagleConfig(
        **fields,
        fc_bias="fc.bias" in names,
        input_norm="layers.0.input_layernorm.weight" in names,
    )


def _from_eagle(name: str) -> str:
    if name.endswith(_OF_VERIFIER):
        return ""
    return f"model.{name}" if name.startswith("layers.") else name


def _eagle3_config(config: dict[str, Any], names: Stored) -> Eagle3Config:
    stated = config.get("eagle_config")
    more = stated if isinstance(stated, dict) else {}
    if more.get("use_aux_hidden_state") is False:
        raise SourceError(
            "the head's config.json has use_aux_hidden_state false, wanted a head that reads "
            "layers of its verifier",
            "take another head, or train one with `yggc train eagle`",
        )
    taps = config.get(_TAPS) or ()
    # SGLang, whose heads say it here, counts a layer by what it gives.
    taps = taps or [number + 1 for number in more.get(_TAPS) or ()]
    return _eagle3(config, config, taps)


def _speculators3_config(config: dict[str, Any], names: Stored) -> Eagle3Config:
    return _eagle3(_layer_of(config), config, config.get(_TAPS) or ())


def _eagle3(
    layer: Mapping[str, Any], config: Mapping[str, Any], taps: Collection[int]
) -> Eagle3Config:
    """layer: the fields of its decoder layer; config: what is said of the head."""
    for key, what in _REFUSED.items():
        if config.get(key) or layer.get(key):
            raise SourceError(
                f"the head's config.json has {key}, which is not covered: {what}",
                "take a head without it",
            )
    wanted = {"model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu"}
    for key, value in wanted.items():
        if layer.get(key, value) != value:
            raise SourceError(
                f"the head's config.json has {key} {layer[key]!r}, wanted {value!r}",
                "take a head of one Llama layer, or train one with `yggc train eagle`",
            )
    read, size = config.get("target_hidden_size"), layer.get("hidden_size")
    if read not in (None, size):
        raise SourceError(
            f"the head's config.json has hidden_size {size} over a verifier's {read}, wanted the "
            "same",
            "take a head of its verifier's hidden size",
        )
    fields = {key: value for key, value in layer.items() if key not in _FOREIGN | _STATED}
    return Eagle3Config(
        **fields,
        taps=[*taps],
        draft_vocab_size=config.get("draft_vocab_size") or 0,
        norm_before_residual=bool(config.get("norm_before_residual")),
    )


def _from_eagle3(name: str) -> str:
    if name == "embed_tokens.weight":
        return ""
    for theirs in ("midlayer.", "layers.0."):
        if name.startswith(theirs):
            return "model.layers.0." + name.removeprefix(theirs)
    return name


def _layer_of(config: Mapping[str, Any]) -> dict[str, Any]:
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise SourceError(
            "the head's config.json has no transformer_layer_config",
            "fetch the file again, or take a head of the EAGLE repository's layout",
        )
    return layer


def _speculators_config(config: dict[str, Any], names: Stored) -> EagleConfig:
    layer = _layer_of(config)
    if config.get("layernorms"):
        raise SourceError(
            "the head's config.json has layernorms true, wanted false: norms of its inputs and "
            "outputs are not covered",
            "take a head without them",
        )
    fields = {key: value for key, value in layer.items() if key not in _FOREIGN}
    return EagleConfig(
        **fields,
        fc_bias=any(name.endswith("fusion_fc.bias") for name in names),
        input_norm="transformer.input_layernorm.weight" in names,
    )


def _from_speculators(name: str) -> str:
    if name.endswith(_OF_VERIFIER):
        return ""
    for theirs, ours in (("fusion_fc.", "fc."), ("transformer.", "model.layers.0.")):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name
