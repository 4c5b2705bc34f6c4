"""A trained head as a folder: its configuration, its own weights, the ids it drafts.

`model.safetensors` holds what was trained under the model's names in bfloat16, `fc` and the
decoder layer and for EAGLE-3 a norm and an output head, for Medusa the heads, and `draft_ids`
(int64, ascending): logit i of the head is that of token draft_ids[i]. What is the verifier's is
not in it; `config.json` says which verifier.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from safetensors.torch import save

from yggc.errors import SourceError, StageError
from yggc.models.eagle import EagleConfig, HeadConfig
from yggc.models.eagle3 import Eagle3Config
from yggc.models.head_layouts import DRAFT_IDS
from yggc.models.medusa import MedusaConfig
from yggc.models.shards import SINGLE
from yggc.models.source import ResolvedSource

CONFIG = "config.json"
AnyHeadConfig: TypeAlias = HeadConfig | MedusaConfig
_KINDS: dict[str, type[AnyHeadConfig]] = {
    kind.model_type: kind for kind in (EagleConfig, Eagle3Config, MedusaConfig)
}


@dataclass(frozen=True, slots=True)
class Head:
    """What `read_head` finds. `verifier` is the record that `describe_verifier` made."""

    config: AnyHeadConfig
    weights: Mapping[str, torch.Tensor]
    draft_ids: torch.Tensor
    verifier: Mapping[str, Any]


def describe_verifier(source: ResolvedSource) -> dict[str, Any]:
    """Which model a head belongs to: where it came from, and its files' SHA-256."""
    return {
        "kind": source.kind,
        "location": source.location,
        "revision": source.revision,
        "license": source.license,
        "files": {file.name: file.sha256 for file in source.files},
    }


def write_head(
    folder: Path,
    config: AnyHeadConfig,
    weights: Mapping[str, torch.Tensor],
    draft_ids: torch.Tensor,
    verifier: Mapping[str, Any],
    fc_scale: torch.Tensor | None = None,
) -> None:
    """Replaces the folder's head, weights last; each file is whole or as it was.

    fc_scale: what the inputs of `fc` were multiplied by in training; `fc` takes it over.
    """
    stored = {name: one.detach().float().cpu().clone() for name, one in weights.items()}
    if fc_scale is not None:
        stored["fc.weight"] *= fc_scale.cpu()
    tensors = {name: one.to(torch.bfloat16).contiguous() for name, one in stored.items()}
    tensors[DRAFT_IDS] = draft_ids.cpu()
    fields = {**config.to_dict(), "dtype": "bfloat16", "verifier": dict(verifier)}
    replace_model(folder, fields, tensors, {"model_type": config.model_type})


def read_head(folder: Path) -> Head:
    """The head in `folder`; SourceError if it is not whole."""
    try:
        fields = json.loads((folder / CONFIG).read_bytes())
        kind = _KINDS.get(fields.get("model_type"))
        if kind is None:
            raise ValueError(f"model_type is {fields.get('model_type')!r}")
        verifier = fields.pop("verifier")
        config = kind(**fields)
        with safe_open(folder / SINGLE, framework="pt", device="cpu") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        draft_ids = weights.pop(DRAFT_IDS)
    except Exception as error:  # JSON, safetensors and the configuration fail each in its own way
        raise SourceError(
            f"{folder}: is no trained head: {' '.join(str(error).split())[:200]}",
            "give a folder that `yggc train` wrote for a head",
        ) from error
    if len(draft_ids) != config.draft_vocab_size:
        raise SourceError(
            f"{folder}: has {len(draft_ids)} draft ids, the configuration says "
            f"{config.draft_vocab_size}",
            "weights and configuration belong to different heads",
        )
    return Head(config, weights, draft_ids, verifier)


def replace_model(
    folder: Path,
    config: Mapping[str, Any],
    tensors: dict[str, torch.Tensor],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Replaces a folder's `config.json`, then its weights; each file is whole or as it was."""
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    replace_file(folder / CONFIG, lambda path: path.write_text(text))
    # Written as bytes: safetensors' own files are for their owner alone, whatever the umask says.
    stored = save(tensors, {"format": "pt", **metadata})
    replace_file(folder / SINGLE, lambda path: path.write_bytes(stored))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """`write(temporary)`, then a rename; StageError if the disk is full, and nothing is left."""
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        os.replace(partial, path)
    except Exception as error:
        # safetensors reports the operating system's errors as its own.
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and "os error 28" not in str(error):
            raise
        raise StageError(
            f"no space left while writing {path}",
            "free some; the same command goes on from the last checkpoint",
        ) from error
    finally:
        partial.unlink(missing_ok=True)
