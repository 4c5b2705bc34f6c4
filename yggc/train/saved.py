"""Where a run stands, on disk: weights, optimiser, position in the data, and the log.

A checkpoint appears by a rename, so it is whole or absent; the log is cut to what belongs to it
when a run goes on. The order of the data and the noise follow from the seed and the step, so there
is no random state to keep.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from yggc.errors import SourceError
from yggc.models.shards import SINGLE
from yggc.train.head import replace_file
from yggc.train.step import Trainer

LOG = "log.jsonl"
_FOLDER, _OPTIONS = "checkpoint", "options.json"


@dataclass(slots=True)
class Progress:
    """step: steps done. best: the best validation so far, as logged. stale: validations since."""

    step: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    stale: int = 0


class SavedRun:
    """One output folder's checkpoint and log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Notes the options of a new run; SourceError if the folder holds a run with others."""
        path = self.folder / _OPTIONS
        if path.is_file():
            try:
                before = json.loads(path.read_bytes())
            except ValueError:
                before = {}
            if not isinstance(before, dict):
                before = {}
            # There was one kind before runs named theirs.
            before.setdefault("kind", "eagle")
            plain = json.loads(json.dumps(options))
            # Of another kind everything differs: that is what to say.
            for key in sorted(plain.keys() | before.keys(), key=lambda key: (key != "kind", key)):
                if plain.get(key) != before.get(key):
                    raise SourceError(
                        f"{self.folder}: holds a run with {key} {before.get(key)!r}, asked for is "
                        f"{plain.get(key)!r}",
                        "give the same options to go on, or another -o",
                    )
        elif (self.folder / SINGLE).exists():
            raise SourceError(
                f"{self.folder}: holds a model that this command did not write",
                "give another -o",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(options, indent=1, sort_keys=True) + "\n"
        replace_file(path, lambda partial: partial.write_text(text))

    def save(self, trainer: Trainer, progress: Progress) -> None:
        """Replaces the checkpoint."""
        target = self.folder / f"{_FOLDER}-{progress.step:08d}"
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        weights = {f"weights.{name}": one for name, one in trainer.parameters.items()}
        averaged = {f"averaged.{name}": one for name, one in trainer.averaged.items()}
        tensors = {name: one.detach().contiguous() for name, one in (weights | averaged).items()}
        replace_file(partial / "weights.safetensors", lambda path: save_file(tensors, path))
        state = trainer.optimizer.state_dict()
        replace_file(partial / "optimizer.pt", lambda path: torch.save(state, path))
        text = json.dumps(asdict(progress))
        replace_file(partial / "progress.json", lambda path: path.write_text(text))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        for old in self._checkpoints():
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, trainer: Trainer) -> Progress | None:
        """Puts the newest checkpoint into `trainer`; None if there is none.

        SourceError for one whose tensors do not fit.
        """
        found = self._checkpoints()
        if not found:
            return None
        try:
            tensors = load_file(found[-1] / "weights.safetensors")
            state = torch.load(found[-1] / "optimizer.pt", weights_only=True)
            progress = Progress(**json.loads((found[-1] / "progress.json").read_bytes()))
            with torch.no_grad():
                for name, parameter in trainer.parameters.items():
                    own = tensors[f"weights.{name}"]
                    if own.shape != parameter.shape:
                        raise ValueError(
                            f"{name} has shape {list(own.shape)}, wanted {list(parameter.shape)}"
                        )
                    parameter.copy_(own)
                    trainer.averaged[name].copy_(tensors[f"averaged.{name}"])
            trainer.optimizer.load_state_dict(state)
        except Exception as error:  # safetensors, pickle and JSON fail each in its own way
            raise SourceError(
                f"{found[-1]}: cannot go on from it: {' '.join(str(error).split())[:200]}",
                "remove it to begin anew, or give another -o",
            ) from error
        self._cut_log(progress.step)
        return progress

    def discard(self) -> None:
        """Removes the checkpoint of a finished run."""
        for path in self._checkpoints():
            shutil.rmtree(path)

    def log(self, entry: Mapping[str, Any]) -> None:
        with (self.folder / LOG).open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """The entries written so far; a last line that was cut off is left out."""
        path = self.folder / LOG
        entries: list[dict[str, Any]] = []
        for line in path.read_text().splitlines() if path.is_file() else ():
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
        return entries

    def _cut_log(self, step: int) -> None:
        kept = [entry for entry in self.read_log() if entry["step"] <= step]
        text = "".join(json.dumps(entry) + "\n" for entry in kept)
        replace_file(self.folder / LOG, lambda path: path.write_text(text))

    def _checkpoints(self) -> list[Path]:
        names = self.folder.glob(f"{_FOLDER}-*")
        return sorted(path for path in names if path.suffix != ".partial")
