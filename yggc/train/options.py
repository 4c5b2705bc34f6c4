"""What `yggc train data` was asked for, checked, and what of it must not change on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from yggc.errors import PreflightError, RecipeError
from yggc.models.checkpoint import Checkpoint
from yggc.train.prompts import DEFAULT_MIX, split_argument
from yggc.workdir import hash_file, hash_inputs


@dataclass(frozen=True)
class DataOptions:
    """What `yggc train data` was asked for. `dtype` auto is bfloat16 where the machine has it."""

    verifier: str
    output: Path
    prompts: tuple[str, ...] = ()
    sources: tuple[str, ...] = ("builtin", "packages")
    exclude: tuple[Path, ...] = ()
    mix: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_MIX))
    num_tokens: int = 1_000_000
    max_tokens: int = 256
    temperature: float = 0.7
    greedy_share: float = 0.5
    seed: int = 0
    batch: int = 256
    num_threads: int = 1
    device: str = "cpu"
    dtype: str = "auto"
    verifier_sha256: str = ""


def check_options(options: DataOptions) -> None:
    """Refuses values that nothing can be written with."""
    if not 0 <= options.greedy_share <= 1:
        raise RecipeError(f"--greedy-share is {options.greedy_share:g}, wanted 0 to 1")
    if not 0 < options.temperature < 100:
        raise RecipeError(
            f"--temperature is {options.temperature:g}, wanted a number above 0 and below 100",
            "for greedy rows alone give --greedy-share 1",
        )
    if options.device == "cuda" and not torch.cuda.is_available():
        raise PreflightError("--device cuda: torch finds no NVIDIA GPU", "give --device cpu")


def identity(options: DataOptions, checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    """What must be the same for a run to go on where another ended. Which packages are installed
    may change: prompts are known by their hashes.
    """
    return {
        "seed": options.seed,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "greedy_share": options.greedy_share,
        "mix": dict(options.mix),
        "sources": list(options.sources),
        "engine": dtype,
        "prompts": [_named(split_argument(one)[1]) for one in options.prompts],
        "exclude": [_named(path) for path in options.exclude],
        "verifier_sha256": hash_inputs(checkpoint.source.files),
    }


def _named(path: Path) -> dict[str, str]:
    return {"name": path.name, "sha256": hash_file(path)}
