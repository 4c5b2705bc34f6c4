"""Finds and checks the safetensors files of a model directory by their headers; reads no tensor
data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from yggc.errors import SourceError
from yggc.heads import PUBLISHED_MEDUSA

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# What published Medusa heads lie in, of which the first is taken.
MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
PICKLE = ".pt"
MAX_HEADER_BYTES = 100_000_000
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_NAMES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}
_FETCH_TIP = "the file is incomplete or damaged; fetch it again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies; `dtype` is safetensors' name."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def find_weights(directory: Path, config: dict[str, Any]) -> tuple[Path, ...]:
    """As `find_shards`, of a directory with this `config.json` that may hold published Medusa
    heads.
    """
    found = [directory / name for name in MEDUSA_FILES if (directory / name).is_file()]
    return (found[0],) if found and PUBLISHED_MEDUSA in config else find_shards(directory)


def find_shards(directory: Path) -> tuple[Path, ...]:
    """The weight files of a Hugging Face directory; SourceError if one is missing or none is
    usable.
    """
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    if (directory / INDEX).is_file():
        try:
            weight_map = json.loads((directory / INDEX).read_bytes())["weight_map"]
            names = sorted(set(weight_map.values()))
            if not all(isinstance(name, str) for name in names):
                raise ValueError(f"a file name in it is {names[0]!r}, wanted a string")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(
                f"{directory / INDEX}: is not a valid index: {error}", _FETCH_TIP
            ) from error
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise SourceError(
                f"{directory}: {len(missing)} of {len(names)} weight files named in {INDEX} are "
                "missing, "
                f"first {missing[0]!r}",
                "fetch the missing files",
            )
        return tuple(directory / name for name in names)
    found = sorted(
        path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern)
    )
    if found:
        raise SourceError(
            f"{directory}: holds PyTorch pickles ({found[0]}), wanted {SINGLE}: a pickle can run "
            "code when read",
            "save it again with `model.save_pretrained(directory)`, or take a revision with "
            "safetensors",
        )
    others = sorted(path.name for path in directory.glob("*.safetensors")) or [
        "no safetensors file"
    ]
    raise SourceError(
        f"{directory}: has {others[0]}, wanted {SINGLE} or {INDEX}",
        "point at the directory of one whole model",
    )


def read_header(path: Path, also: Collection[str] = ()) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, after checking that header and data fill the file
    exactly; `also`: types beside those of weights that may occur.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise SourceError(
                f"{path}: is {size} bytes with a header of {length}, not a whole safetensors file",
                _FETCH_TIP,
            )
        try:
            header = json.loads(file.read(length))
            entries = {
                name: (
                    StoredTensor(path, item["dtype"], tuple(item["shape"])),
                    item["data_offsets"][1],
                )
                for name, item in header.items()
                if name != "__metadata__"
            }
            wanted = 8 + length + max((end for _, end in entries.values()), default=0)
        except (
            ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError
        ) as error:  # fmt: skip
            raise SourceError(f"{path}: its header is not valid: {error!r}", _FETCH_TIP) from error
    if size != wanted:
        raise SourceError(f"{path}: is {size} bytes, its header describes {wanted}", _FETCH_TIP)
    for name, (stored, _) in entries.items():
        if str(stored.dtype) not in (*DTYPE_BYTES, *also):
            raise SourceError(
                f"{path}: tensor {name!r} has type {stored.dtype}, wanted one of "
                f"{', '.join(DTYPE_BYTES)}",
                "take the checkpoint that was not quantised",
            )
    try:
        # The library's own check: shapes, offsets and their order.
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise SourceError(f"{path}: its header is not valid: {error}", _FETCH_TIP) from error
    return {name: stored for name, (stored, _) in entries.items()}


def read_headers(files: tuple[Path, ...], also: Collection[str] = ()) -> dict[str, StoredTensor]:
    """The tensors of all weight files together."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        tensors |= read_pickle(file) if file.suffix == PICKLE else read_header(file, also)
    return tensors


def read_pickle(path: Path) -> dict[str, StoredTensor]:
    """As `read_header`, of a PyTorch pickle with tensors by name."""
    return {
        name: StoredTensor(path, _NAMES[str(one.dtype)], tuple(one.shape))
        for name, one in load_pickle(path).items()
    }


def load_pickle(path: Path) -> dict[str, Any]:
    """The tensors of a PyTorch pickle by name, mapped and not read. SourceError for a file that
    holds anything else: nothing in it is run.
    """
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}")
        for name, one in found.items():
            if not (isinstance(name, str) and isinstance(one, torch.Tensor)):
                raise ValueError(f"{name!r} in it is a {type(one).__name__}")
            if str(one.dtype) not in _NAMES:
                raise ValueError(f"{name!r} in it has type {one.dtype}")
    except Exception as error:  # torch fails in its own ways
        raise SourceError(
            f"{path}: is no pickle of tensors by name alone: {' '.join(str(error).split())[:160]}",
            f"save the tensors as {MEDUSA_FILES[0]}, or fetch the file again",
        ) from error
    return found
