"""What `yggc train depth` was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from yggc.depth.fit import FitOptions
from yggc.errors import PreflightError


@dataclass(frozen=True, slots=True)
class DepthOptions:
    """Flags of the command. `tree`: whose depth is chosen, the bundle's if None; `traces`: where
    traces are kept; `weights`: a folder for the predictor; `first`: one to take instead of
    training."""

    bundle: Path
    output: Path
    tree: str | None = None
    prompts: tuple[Path, ...] = ()
    exclude: tuple[Path, ...] = ()
    limit: int | None = None
    temperature: float = 0.0
    max_tokens: int = 64
    smoothing: float = 0.0
    fit: FitOptions = field(default_factory=FitOptions)
    traces: Path | None = None
    weights: Path | None = None
    first: Path | None = None
    num_threads: int | None = None


def check_folders(options: DepthOptions) -> None:
    """Before minutes of work: PreflightError for what cannot be written."""
    for flag, path in (
        ("--output", options.output),
        ("--traces", options.traces),
        ("--weights", options.weights),
    ):
        if path is not None and not path.absolute().parent.is_dir():
            raise PreflightError(
                f"{flag} {path}: no such folder {path.absolute().parent}",
                "make it, or correct the path",
            )
        if path is None or not path.exists():
            continue
        if path.is_dir() != (flag == "--weights"):
            found, wanted = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
            raise PreflightError(
                f"{flag} {path}: is {found}, wanted {wanted}", "give another path"
            )
