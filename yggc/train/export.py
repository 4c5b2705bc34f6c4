"""A trained EAGLE-3 head in the layout of vllm-project/speculators, for engines that read that.

The layout is `Eagle3SpeculatorConfig` and the tensors of `Eagle3DraftModel` of speculators 0.9,
which read and train such heads: `layers.0.*`, `fc`, `norm`, `lm_head`, and the maps of ids `d2t`
and `t2d`. The embedding is left out, as engines then take the verifier's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from yggc.errors import RecipeError, SourceError
from yggc.models.eagle3 import Eagle3Config
from yggc.models.head_layouts import MEMBERS, OFFSETS
from yggc.models.medusa import MedusaConfig
from yggc.train.head import Head, read_head, replace_model

# Whose configuration the fields are.
SPECULATORS_VERSION = "0.9.0"
# Of the head's configuration, what is not its layer's.
_OF_HEAD = ("taps", "norm_before_residual", "draft_vocab_size", "model_type", "architectures")
_LAYER = "model.layers.0."


def export_head(folder: Path, output: Path, verifier: str, num_drafted: int) -> None:
    """Writes the EAGLE-3 head in `folder` to the new folder `output`.

    verifier: what the reader is to load beside it, a hub id or a path; num_drafted: tokens that a
    chain is to have. Raises SourceError for a folder without such a head, RecipeError for an
    output that exists.
    """
    head = read_head(folder)
    if not isinstance(head.config, Eagle3Config):
        why = "an EAGLE head with a norm before its layer"
        if isinstance(head.config, MedusaConfig):
            why = "one of Medusa heads"
        raise SourceError(
            f"{folder}: is {why}, which the layout of speculators has no place for, wanted an "
            "EAGLE-3 head",
            "train one with `yggc train eagle3`",
        )
    if output.exists():
        raise RecipeError(f"{output} exists already", "give a folder that does not exist yet")
    tensors, fields = _tensors(head), _fields(head.config, verifier, num_drafted)
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise RecipeError(
            f"{output}: cannot be made: {error.strerror}", "give another folder"
        ) from error
    replace_model(output, fields, tensors)


def _tensors(head: Head) -> dict[str, torch.Tensor]:
    tensors = {
        f"layers.0.{name.removeprefix(_LAYER)}" if name.startswith(_LAYER) else name: one
        for name, one in head.weights.items()
    }
    members = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    members[head.draft_ids] = True
    tensors[OFFSETS] = head.draft_ids - torch.arange(len(head.draft_ids))
    tensors[MEMBERS] = members
    return tensors


def _fields(config: Eagle3Config, verifier: str, num_drafted: int) -> dict[str, Any]:
    layer = {key: one for key, one in config.to_dict().items() if key not in _OF_HEAD}
    # Readers of before transformers 5 look for it here.
    layer["rope_theta"] = config.rope_parameters["rope_theta"]
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "dtype": "bfloat16",
        "draft_vocab_size": config.draft_vocab_size,
        "norm_before_residual": config.norm_before_residual,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": config.taps,
        "transformer_layer_config": {**layer, "model_type": LlamaConfig.model_type},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_drafted}],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
    }
