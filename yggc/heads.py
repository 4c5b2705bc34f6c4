"""What a directory says of the head in it, from its `config.json` alone, and the heads that come
with the compiler. Imports nothing heavy: options are checked before models are read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

# The `model_type`s of EagleConfig in yggc.models.eagle, Eagle3Config in yggc.models.eagle3 and
# MedusaConfig in yggc.models.medusa, and what types a head's maps of ids have.
HEAD = "ygg_eagle"
HEAD_3 = "ygg_eagle3"
MEDUSA = "ygg_medusa"
# How the configuration of Medusa's own repository is known.
PUBLISHED_MEDUSA = "medusa_num_heads"
# Of tokens beyond these nothing is known, and a larger number is a mistake.
MAX_HEADS = 32
MAX_BLOCKS = 32
HEAD_TYPES = ("I64", "BOOL")


class Taps(msgspec.Struct, frozen=True, kw_only=True):
    """What a head has of its verifier's graphs: features made of the inputs of some layers.

    layers: which, ascending; 0 is given the embeddings. form, integer: of the product that makes a
    feature of them, as for PackedLinear.
    """

    layers: tuple[int, ...]
    form: str
    integer: bool


class Medusa(msgspec.Struct, frozen=True, kw_only=True):
    """Medusa heads inside the verifier's graphs.

    config: JSON form of their MedusaConfig. dtype, formats: of their matrices, as for GraphJob.
    integer: whether quantised ones multiply activations rounded to int8.
    """

    config: dict[str, Any]
    dtype: str
    formats: dict[str, str]
    integer: bool


def are_layers(taps: Sequence[int], num_layers: int) -> bool:
    """Whether a head can read these layers of a verifier with so many."""
    ascending = all(a < b for a, b in itertools.pairwise(taps))
    return bool(taps) and ascending and taps[0] >= 0 and taps[-1] < num_layers


def is_head(config: Any) -> bool:
    """Whether a `config.json` says that it is of a head, which drafts for a verifier and is no
    model of its own; those of the EAGLE repository say so from EAGLE-3 on.
    """
    if not isinstance(config, dict):
        return False
    stated = {"speculators_model_type", "draft_vocab_size", PUBLISHED_MEDUSA} & config.keys()
    return config.get("model_type") in (HEAD, HEAD_3, MEDUSA) or bool(stated)


def is_medusa(config: Any) -> bool:
    """Whether a `config.json` is of Medusa heads."""
    if not isinstance(config, dict):
        return False
    return config.get("model_type") == MEDUSA or PUBLISHED_MEDUSA in config


def is_head_folder(folder: Path) -> bool:
    """As `is_head`, of a directory; false for anything that is none."""
    return is_head(_config(folder))


def is_medusa_folder(folder: Path) -> bool:
    """As `is_medusa`, of a directory; false for anything that is none."""
    return is_medusa(_config(folder))


def heads_for(sha256: str) -> list[Path]:
    """Heads that come with the compiler for the verifier in a file of this hash."""
    return [folder for folder, theirs in _shipped() if sha256 and theirs == sha256]


def _shipped() -> Iterator[tuple[Path, str]]:
    root = Path(str(files("ygg_artifacts"))) / "drafters"
    for folder in sorted(root.glob("*/")):
        verifier = (_config(folder) or {}).get("verifier")
        hashes = verifier.get("files") if isinstance(verifier, dict) else None
        if isinstance(hashes, dict):
            yield from ((folder, str(sha256)) for sha256 in hashes.values())


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
