"""Directories in which heads are found: this project's, that of the EAGLE repository, and that of
vllm-project/speculators (releases before 0.4, whose configuration says `eagle`).

Each layout says how its configuration becomes an EagleConfig and its tensors' names those of
EagleForCausalLM; a tensor that is the verifier's becomes "".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from yggc.errors import SourceError
from yggc.heads import is_head
from yggc.models.eagle import EagleConfig

# Kept by some as copies: the verifier's own are used.
_OF_VERIFIER = ("embed_tokens.weight", "lm_head.weight")
# Of a configuration, what is not a Llama's.
_FOREIGN = {"model_type", "transformers_version", "architectures", "num_hidden_layers", "bias"}


class Layout(NamedTuple):
    """`config`: of a `config.json` and the names of the tensors; `rename`: of one tensor."""

    name: str
    config: Callable[[dict[str, Any], Collection[str]], EagleConfig]
    rename: Callable[[str], str]


def find_layout(folder: Path, config: dict[str, Any], names: Collection[str]) -> Layout | None:
    """The layout of a directory's head; None for one that holds a model of its own.

    Raises SourceError for a head of a kind that is not read.
    """
    if config.get("model_type") == EagleConfig.model_type:
        return Layout("this project", _own_config, lambda name: name)
    if is_head(config):
        kind = config.get("speculators_model_type")
        if kind != "eagle":
            raise SourceError(
                f"{folder}: is a head of kind {kind!r}, wanted one of kind 'eagle'",
                "EAGLE-3 and Medusa heads are not read yet; train one with `yggc train eagle`",
            )
        return Layout("speculators", _speculators_config, _from_speculators)
    if "fc.weight" in names and "layers.0.self_attn.q_proj.weight" in names:
        return Layout("EAGLE", _eagle_config, _from_eagle)
    if "midlayer.self_attn.q_proj.weight" in names:
        raise SourceError(
            f"{folder}: is an EAGLE-3 head, wanted one of EAGLE-1 or EAGLE-2",
            "it is not read yet; train one with `yggc train eagle`",
        )
    return None


def _own_config(config: dict[str, Any], names: Collection[str]) -> EagleConfig:
    return EagleConfig(**{key: value for key, value in config.items() if key not in _FOREIGN})


def _eagle_config(config: dict[str, Any], names: Collection[str]) -> EagleConfig:
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


def _speculators_config(config: dict[str, Any], names: Collection[str]) -> EagleConfig:
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise SourceError(
            "the head's config.json has no transformer_layer_config",
            "fetch the file again, or take a head of the EAGLE repository's layout",
        )
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
