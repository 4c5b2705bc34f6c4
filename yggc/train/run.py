"""A command that trains a drafter, from its options to the finished folder."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from yggc.errors import RecipeError, SourceError
from yggc.host import cpu_name
from yggc.models.checkpoint import Checkpoint, open_checkpoint
from yggc.models.source import resolve_source
from yggc.report import Reporter
from yggc.train.batches import collate, first_batches
from yggc.train.card import write_card
from yggc.train.features import Features, RecomputedFeatures, Verifier, store_features
from yggc.train.gang import Gang
from yggc.train.head import describe_verifier, replace_file
from yggc.train.learner import Learner
from yggc.train.load import best_dtype
from yggc.train.loop import Loop, LoopOptions, plan_steps
from yggc.train.prompts import read_excluded
from yggc.train.saved import Progress, SavedRun
from yggc.train.step import Trainer
from yggc.train.texts import Row, Texts, read_texts
from yggc.train.validate import HeldOut
from yggc.workdir import WorkDir, hash_inputs

TRAINING = "training.json"
# What each validation looks at, at most.
VALIDATION_TOKENS = 1 << 14
# Not part of what a run computes.
_FREE = (
    "output",
    "data",
    "cache_features",
    "num_threads",
    "verifier",
    "verifier_sha256",
    "device",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a learner is made in. `identity` is `describe_verifier`'s record."""

    checkpoint: Checkpoint
    verifier: Verifier
    texts: Texts
    features: Features
    identity: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions(ABC):
    """The options that all kinds of drafters share; a subclass adds its own and its learner.
    rejected_weight: of a position's token loss where a draft would be rejected, beside 1 for the
    others; None for equal weights.

    Every field but those of `_FREE` may change the result and is compared when a run goes on.
    """

    kind: ClassVar[str]

    verifier: str
    data: tuple[Path, ...]
    output: Path
    verifier_sha256: str = ""
    epochs: float = 4.0
    batch_tokens: int = 4096
    learning_rate: float = 4e-4
    warmup: int = 100
    temperature: float = 1.0
    average: float = 0.998
    held_out: float = 0.02
    max_tokens: int = 1024
    validate_every: int = 100
    patience: int = 8
    seed: int = 0
    rejected_weight: float | None = None
    cache_features: Path | None = None
    exclude: tuple[Path, ...] = ()
    device: str = "cpu"
    dtype: str = "auto"
    num_threads: int = 1

    @abstractmethod
    def check(self, checkpoint: Checkpoint) -> None:
        """Refuses what does not fit the verifier, before anything long is done."""

    @abstractmethod
    def learner(self, setting: Setting) -> Learner:
        """The drafter with its first weights, on the verifier's device."""

    def tapped(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """The verifier's layers whose inputs the drafter reads beside its last hidden states."""
        return ()

    def compared(self) -> dict[str, Any]:
        """What a run that goes on must have as it was."""
        fields = {key: one for key, one in asdict(self).items() if key not in _FREE}
        # What they exclude is seen in the text's digest.
        fields["exclude"] = [one.name for one in self.exclude]
        return {"kind": self.kind, **fields}


def train(
    options: TrainOptions,
    work: WorkDir,
    reporter: Reporter,
    command: str,
    stop: Callable[[], bool],
) -> dict[str, Any] | None:
    """Trains a drafter and returns the record written to training.json; None if `stop()` ended
    it.
    """
    device = _device(options.device)
    chosen = best_dtype(device.type) if options.dtype == "auto" else options.dtype
    bfloat16 = chosen == "bfloat16"
    source = resolve_source(options.verifier, work, options.verifier_sha256)
    checkpoint = open_checkpoint(source)
    options.check(checkpoint)
    texts = _read(options, checkpoint, reporter)
    identity = describe_verifier(source)
    saved = SavedRun(options.output)
    saved.check_options(
        {
            **options.compared(),
            "bfloat16": bfloat16,
            "hidden_size": checkpoint.config.hidden_size,
            "text": texts.digest,
            "verifier": identity["files"],
        }
    )
    done = _finished(options.output)
    if done is not None:
        reporter.say(f"{options.output}: is trained already")
        return done

    torch.set_num_threads(1)
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    verifier = Verifier(checkpoint, device, dtype, options.tapped(checkpoint))
    with Gang(options.num_threads if device.type == "cpu" else 1) as gang:
        features = _features(options, verifier, texts, identity, gang, reporter)
        learner = options.learner(Setting(checkpoint, verifier, texts, features, identity))
        trainer = Trainer(
            learner,
            features,
            device,
            bfloat16=bfloat16,
            learning_rate=options.learning_rate,
            average=options.average,
            seed=options.seed,
        )
        held_out = _held_out(texts, features, verifier, learner)
        loop_options = LoopOptions(
            options.epochs,
            options.batch_tokens,
            options.warmup,
            options.validate_every,
            options.patience,
            options.seed,
        )
        steps = plan_steps(texts.train, loop_options)
        loop = Loop(trainer, saved, held_out, loop_options)
        progress, finished = loop.run(steps, gang, reporter, stop)
    if not finished:
        return None
    record = _record(options, texts, progress, trainer, len(steps), identity, command)
    write_card(options.output / "README.md", record, learner.about(record["parameters"]))
    text = json.dumps(record, indent=1) + "\n"
    replace_file(options.output / TRAINING, lambda path: path.write_text(text))
    saved.discard()
    return record


def _read(options: TrainOptions, checkpoint: Checkpoint, reporter: Reporter) -> Texts:
    limit = getattr(checkpoint.config, "max_position_embeddings", options.max_tokens)
    texts = read_texts(
        options.data,
        checkpoint.config.vocab_size,
        max_tokens=min(options.max_tokens, limit),
        held_out=options.held_out,
        excluded=_exclusion(options.exclude, checkpoint),
    )
    for note in (*checkpoint.notes, *texts.notes):
        reporter.say(note)
    trained = sum(row.num_response for row in texts.train)
    held = sum(row.num_response for row in texts.held_out)
    reporter.say(
        f"{len(texts.train)} rows with {trained} response tokens to train on, "
        f"{len(texts.held_out)} with {held} held out"
    )
    if not texts.held_out and options.held_out > 0:
        raise SourceError(
            f"none of {len(texts.train)} rows are held out, wanted some to choose the drafter by",
            "give more text, or a larger --held-out; --held-out 0 trains without",
        )
    return texts


def _exclusion(paths: tuple[Path, ...], checkpoint: Checkpoint) -> Callable[[Row], bool] | None:
    """Whether a row's prompt belongs to an evaluation; None for a model without a tokenizer."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        if paths:
            raise SourceError(
                f"{checkpoint.source.location}: has no tokenizer, --exclude wants to read prompts",
                "leave --exclude out",
            )
        return None
    excluded = read_excluded(paths)

    def is_excluded(row: Row) -> bool:
        # The chat template stands around the text, so short prompts are known by their hash alone.
        prompt = tokenizer.decode(row.ids[: row.num_prompt].tolist(), skip_special_tokens=True)
        return excluded.has_hash(row.prompt_sha256) or prompt in excluded

    return is_excluded


def _features(
    options: TrainOptions,
    verifier: Verifier,
    texts: Texts,
    identity: Mapping[str, Any],
    gang: Gang,
    reporter: Reporter,
) -> Features:
    if options.cache_features is None:
        return RecomputedFeatures(verifier)
    # Features of another verifier, another precision or other layers are other features.
    parts: dict[str, Any] = {
        "files": identity["files"],
        "dtype": str(verifier.embedding.dtype),
        **({"taps": verifier.taps} if verifier.taps else {}),
    }
    key = hash_inputs(parts)[:16]
    rows = [*texts.train, *texts.held_out]
    return store_features(verifier, rows, options.cache_features / key, gang, reporter)


def _held_out(
    texts: Texts, features: Features, verifier: Verifier, learner: Learner
) -> HeldOut | None:
    if not texts.held_out:
        return None
    parts = first_batches(texts.held_out, VALIDATION_TOKENS)
    batches = [collate(part, features, verifier.device) for part in parts]
    return HeldOut(batches, verifier.head, learner.draft_ids)


def _record(
    options: TrainOptions,
    texts: Texts,
    progress: Progress,
    trainer: Trainer,
    num_planned: int,
    identity: Mapping[str, Any],
    command: str,
) -> dict[str, Any]:
    # Names, not places: a record travels with the drafter.
    plain: dict[str, Any] = {
        key: one.name if isinstance(one, Path) else one for key, one in asdict(options).items()
    }
    plain["data"] = [path.name for path in options.data]
    plain["exclude"] = [path.name for path in options.exclude]
    plain["verifier"] = identity["location"]
    return {
        "command": command,
        "kind": options.kind,
        "verifier": dict(identity),
        "options": plain,
        "text": {
            "rows": len(texts.train),
            "response_tokens": sum(row.num_response for row in texts.train),
            "held_out_rows": len(texts.held_out),
            "sha256": texts.digest,
        },
        "parameters": sum(one.numel() for one in trainer.parameters.values()),
        "steps": progress.step,
        "planned_steps": num_planned,
        "tokens": progress.num_tokens,
        "seconds": round(progress.seconds, 1),
        "machine": cpu_name() if options.device == "cpu" else torch.cuda.get_device_name(),
        "threads": options.num_threads,
        "best": progress.best,
    }


def _finished(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / TRAINING).read_bytes())
    except (OSError, ValueError):
        return None
    return found


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise RecipeError("--device is cuda, and torch finds no GPU here", "leave it out")
    return torch.device(name)
