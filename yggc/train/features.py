"""The verifier's features: its last hidden states, what its output head reads, and beside them
what a head reads of its layers.

Computed by transformers' model, in bfloat16 where the machine multiplies it natively, and kept in
shards if a folder is given. A shard holds whole rows and names them by their digest, so a run that
was killed, or one with more text, computes only what is missing.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from yggc.errors import SourceError, StageError
from yggc.models.checkpoint import Checkpoint
from yggc.models.taps import watch_layers
from yggc.report import Reporter
from yggc.train.gang import Gang
from yggc.train.head import replace_file
from yggc.train.load import read_model
from yggc.train.texts import Row

# Tokens of one pass of the verifier, and rows of one shard.
PASS_TOKENS = 4096
SHARD_TOKENS = 1 << 16


class Verifier:
    """The frozen model: `embedding` [vocab, hidden] and `head` [vocab, hidden], and features.

    taps: the layers whose inputs are kept beside the last hidden states. Raises SourceError for a
    verifier whose logits are not its output head times its last hidden states.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        taps: Sequence[int] = (),
    ) -> None:
        self.device, self.taps = device, tuple(taps)
        self._checkpoint = checkpoint
        model = read_model(checkpoint, dtype)
        self._model = model.requires_grad_(False).to(device)
        self.embedding: torch.Tensor = model.get_input_embeddings().weight
        self.head: torch.Tensor = model.get_output_embeddings().weight
        # Several threads run the model at once.
        self._seen = threading.local()
        decoder, num_layers = model.get_decoder(), checkpoint.config.num_hidden_layers
        if taps:
            watch_layers(decoder, num_layers, taps, self._see)
        self._check_head(model.get_output_embeddings())

    @property
    @torch.no_grad()
    def norm(self) -> torch.Tensor:
        """Weight [hidden] of the norm before the output head, ones where the family has none that
        scales alone."""
        norm = getattr(self._model.get_decoder(), "norm", None)
        weight = getattr(norm, "weight", None)
        ones = torch.ones(self.head.shape[1], device=self.device)
        if norm is None or weight is None or weight.shape != ones.shape:
            return ones
        # Some families scale by one more than the weight, or also shift.
        probe = torch.linspace(-1, 2, len(ones), device=self.device)[None]
        plain = probe / probe.square().mean().sqrt() * weight.float()
        close = torch.allclose(norm(probe.to(weight)).float(), plain, rtol=0.05, atol=0.05)
        found: torch.Tensor = weight.float() if close else ones
        return found

    @torch.no_grad()
    def features(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` [B, S] int64, padded on the right with any id -> [B, S, (1 + taps) hidden]: the
        last hidden states, then what each tapped layer is given.
        """
        out: torch.Tensor = self._model.get_decoder()(
            input_ids=ids, use_cache=False
        ).last_hidden_state
        if not self.taps:
            return out
        return torch.cat([out, *(self._seen.inputs[i] for i in range(len(self.taps)))], dim=-1)

    def _see(self, place: int, hidden: torch.Tensor) -> None:
        if place == 0:
            self._seen.inputs = {}
        self._seen.inputs[place] = hidden

    @torch.no_grad()
    def _check_head(self, head: nn.Module) -> None:
        ids = torch.arange(min(8, self.embedding.shape[0]), device=self.device)[None]
        logits = self._model(input_ids=ids, use_cache=False).logits.float()
        last = self.features(ids)[..., : self.head.shape[1]]
        plain = last.float() @ self.head.float().T
        close = torch.allclose(logits, plain, rtol=0.05, atol=0.05 * logits.std().item())
        if getattr(head, "bias", None) is not None or not close:
            raise SourceError(
                f"{self._checkpoint.source.location}: its logits are not its output head times "
                "its last hidden states (it scales, caps or shifts them), wanted plain ones",
                "a trained drafter for this family is not covered",
            )


class Features(Protocol):
    """Where a batch's features come from: bfloat16 [tokens, (1 + num_taps) hidden] on the CPU for
    each row, as `Verifier.features` orders them."""

    @property
    def num_taps(self) -> int: ...

    def get(self, rows: Sequence[Row]) -> list[torch.Tensor]: ...


class RecomputedFeatures:
    """Runs the verifier whenever features are asked for; nothing is kept."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    @property
    def num_taps(self) -> int:
        return len(self._verifier.taps)

    def get(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        return list(_run(self._verifier, rows))


class StoredFeatures:
    """Features that were computed before, mapped from their files."""

    def __init__(self, held: Mapping[bytes, torch.Tensor], num_taps: int = 0) -> None:
        self._held, self.num_taps = held, num_taps

    def get(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        return [self._held[row.digest] for row in rows]


def store_features(
    verifier: Verifier, rows: Sequence[Row], folder: Path, gang: Gang, reporter: Reporter
) -> StoredFeatures:
    """The features of all rows; those that `folder` holds are taken, the others computed and
    written to it.

    `folder` must belong to this verifier and its taps alone. Raises StageError if the disk cannot
    hold them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held, num_taps = read_shards(folder), len(verifier.taps)
    missing = [row for row in rows if row.digest not in held]
    total = sum(len(row.ids) for row in missing)
    if not missing:
        return StoredFeatures(held, num_taps)
    _check_space(folder, total * (1 + num_taps) * verifier.head.shape[1] * 2, reporter)
    missing.sort(key=lambda row: len(row.ids))
    pending: dict[bytes, torch.Tensor] = {}
    with reporter.stage("features", total=total) as progress:
        batches = list(_batches(missing))
        done = gang.map(lambda batch: list(_run(verifier, batch)), batches)
        for batch, found in zip(batches, done, strict=True):
            for row, features in zip(batch, found, strict=True):
                pending[row.digest] = features
                progress.advance(len(row.ids))
            if sum(map(len, pending.values())) >= SHARD_TOKENS:
                _write(folder, pending)
                pending = {}
        if pending:
            _write(folder, pending)
    return StoredFeatures(read_shards(folder), num_taps)


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    # Sorted by length, so little of a pass is padding.
    batch: list[Row] = []
    for row in rows:
        if batch and (len(batch) + 1) * len(row.ids) > PASS_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _run(verifier: Verifier, batch: Sequence[Row]) -> Iterator[torch.Tensor]:
    ids = torch.zeros(len(batch), max(len(row.ids) for row in batch), dtype=torch.int64)
    for index, row in enumerate(batch):
        ids[index, : len(row.ids)] = torch.from_numpy(row.ids)
    # A row never sees the padding behind it.
    features = verifier.features(ids.to(verifier.device)).to("cpu", torch.bfloat16)
    for index, row in enumerate(batch):
        yield features[index, : len(row.ids)].clone()


def read_shards(folder: Path) -> dict[bytes, torch.Tensor]:
    """What the folder holds, mapped and not read; SourceError for a damaged shard."""
    held: dict[bytes, torch.Tensor] = {}
    for path in sorted(folder.glob("features-*.safetensors")):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                features = file.get_tensor("features")
                rows: list[Any] = json.loads(file.metadata()["rows"])
        except Exception as error:  # safetensors has an exception of its own for each damage
            raise SourceError(
                f"{path}: is no shard of features: {' '.join(str(error).split())[:200]}",
                "remove it; it is computed again",
            ) from error
        parts = features.split([length for _, length in rows])
        held.update(
            (bytes.fromhex(digest), part) for (digest, _), part in zip(rows, parts, strict=True)
        )
    return held


def _write(folder: Path, rows: Mapping[bytes, torch.Tensor]) -> None:
    taken = [int(path.stem.split("-")[1]) for path in folder.glob("features-*.safetensors")]
    path = folder / f"features-{1 + max(taken, default=0):05d}.safetensors"
    names = [(digest.hex(), len(features)) for digest, features in rows.items()]
    tensors = {"features": torch.cat(list(rows.values()))}
    metadata = {"rows": json.dumps(names)}
    replace_file(path, lambda partial: save_file(tensors, partial, metadata))


def _check_space(folder: Path, wanted: int, reporter: Reporter) -> None:
    free = shutil.disk_usage(folder).free
    reporter.say(f"features need {wanted / 1e9:.2f} GB in {folder}, {free / 1e9:.2f} GB are free")
    if wanted > free * 0.98:
        raise StageError(
            f"{folder}: features need {wanted / 1e9:.2f} GB, {free / 1e9:.2f} GB are free",
            "free some, choose another folder, or leave out --cache-features",
        )
