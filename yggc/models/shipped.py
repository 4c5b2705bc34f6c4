"""Configurations of published models that come with the compiler, so that a build of one can be
planned where the model is not: `artifacts/configs`, each with where its values are from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec


class ShippedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`source.toml` beside a `config.json`. `source` is the model as a recipe names it, without
    its revision; `revision` the commit, of a file its SHA-256; `read_from` says where the values
    were read. `matrices` and `vocabulary`: formats in which a GGUF file stores them, else "".
    """

    source: str
    revision: str
    license: str
    read_from: str
    matrices: str = ""
    vocabulary: str = ""


def shipped_configs() -> Iterator[tuple[Path, ShippedConfig]]:
    """Each folder, with what is said of it."""
    root = Path(str(files("ygg_artifacts"))) / "configs"
    for path in sorted(root.glob("*/source.toml")):
        yield path.parent, msgspec.convert(tomllib.loads(path.read_text()), ShippedConfig)


def find_shipped(source: str, revision: str = "") -> tuple[Path, ShippedConfig] | None:
    """The configuration of `source`, unless `revision` names another one than it is of."""
    for folder, config in shipped_configs():
        if config.source == source and revision.lower() in ("", config.revision):
            return folder, config
    return None
