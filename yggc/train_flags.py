"""What the commands of `yggc train` have in common: flags, and what happens before torch comes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from yggrt.threads import wait_briefly

VerifierSha256: TypeAlias = Annotated[
    str, typer.Option(help="SHA-256 that a single-file verifier must have.", metavar="HEX")
]
Exclude: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        help="Evaluation prompts that must not be trained on (repeatable); those of `yggrt "
        "bench` never are.",
        metavar="FILE",
    ),
]
Threads: TypeAlias = Annotated[
    int | None, typer.Option("--threads", "-t", help="Default: usable physical cores.", min=1)
]
Device: TypeAlias = Annotated[str, typer.Option(help="cpu or cuda.")]
Dtype: TypeAlias = Annotated[
    str, typer.Option(help="auto, float32 or bfloat16 (auto where the machine has it).")
]
WorkFolder: TypeAlias = Annotated[
    str | None, typer.Option("--work-dir", help="Where fetched models are kept.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON and no progress.")
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")
]


DraftVocab: TypeAlias = Annotated[
    int, typer.Option(help="Ids that can be drafted: the text's most frequent.", min=1)
]
Decay: TypeAlias = Annotated[float, typer.Option(help="Of a draft step's loss, each step.")]
Detach: TypeAlias = Annotated[
    bool, typer.Option("--detach", help="No gradients from a draft step into the last.")
]
FirstHead: TypeAlias = Annotated[
    Path | None,
    typer.Option("--from", help="Begin with this head instead of a regression.", metavar="DIR"),
]


def numbers_in(text: str) -> tuple[int, ...] | None:
    """Of "2,15,27"; None for anything else than numbers."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else None


def check_device(device: str, dtype: str) -> None:
    """Raises RecipeError for a device or dtype that there is not."""
    from yggc.errors import RecipeError

    for flag, value, wanted in (
        ("--device", device, ("cpu", "cuda")),
        ("--dtype", dtype, ("auto", "float32", "bfloat16")),
    ):
        if value not in wanted:
            raise RecipeError(f"{flag} is {value!r}, wanted {' or '.join(wanted)}")


def prepare_process() -> None:
    """Settings that torch and transformers read when they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    wait_briefly()
