"""`yggc train eagle` from its options to the finished folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from yggc.errors import RecipeError, SourceError
from yggc.host import cpu_name
from yggc.models.checkpoint import Checkpoint, open_checkpoint
from yggc.models.eagle import head_config
from yggc.models.shards import SINGLE
from yggc.models.source import resolve_source
from yggc.report import Reporter
from yggc.train.batches import collate, pack
from yggc.train.card import write_card
from yggc.train.eagle import LossWeights
from yggc.train.features import Features, RecomputedFeatures, Verifier, store_features
from yggc.train.gang import Gang
from yggc.train.head import describe_verifier, read_head, replace_file
from yggc.train.initial import embedding_scale, fit_joint, new_head, take_over
from yggc.train.load import best_dtype
from yggc.train.loop import MICRO_TOKENS, Loop, LoopOptions, plan_steps
from yggc.train.prompts import read_excluded
from yggc.train.saved import Progress, SavedRun
from yggc.train.step import Frozen, StepOptions, Trainer
from yggc.train.texts import Row, Texts, frequent_ids, read_texts
from yggc.train.validate import HeldOut
from yggc.workdir import WorkDir, hash_file, hash_inputs

TRAINING = "training.json"
# What the scale, the first `fc` and each validation look at, at most.
SCALE_ROWS = 256
FIT_TOKENS = 1 << 18
VALIDATION_TOKENS = 1 << 14


@dataclass(frozen=True, slots=True)
class EagleOptions:
    """The command's options; what may change the result is compared when a run goes on."""

    verifier: str
    data: tuple[Path, ...]
    output: Path
    verifier_sha256: str = ""
    draft_vocab: int = 8192
    epochs: float = 4.0
    batch_tokens: int = 4096
    learning_rate: float = 4e-4
    warmup: int = 100
    num_steps: int = 4
    feature_weight: float = 1.0
    token_weight: float = 1.0
    decay: float = 0.8
    temperature: float = 1.0
    noise: float = 0.0
    detach: bool = False
    average: float = 0.998
    held_out: float = 0.02
    max_tokens: int = 1024
    validate_every: int = 100
    patience: int = 8
    seed: int = 0
    cache_features: Path | None = None
    first: Path | None = None
    exclude: tuple[Path, ...] = ()
    device: str = "cpu"
    dtype: str = "auto"
    num_threads: int = 1


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


def train_eagle(
    options: EagleOptions,
    work: WorkDir,
    reporter: Reporter,
    command: str,
    stop: Callable[[], bool],
) -> dict[str, Any] | None:
    """Trains a head and returns the record written to training.json; None if `stop()` ended it."""
    device = _device(options.device)
    chosen = best_dtype(device.type) if options.dtype == "auto" else options.dtype
    bfloat16 = chosen == "bfloat16"
    source = resolve_source(options.verifier, work, options.verifier_sha256)
    checkpoint = open_checkpoint(source)
    if options.first is not None:
        read_head(options.first)
    texts = _read(options, checkpoint, reporter)
    identity = describe_verifier(source)
    saved = SavedRun(options.output)
    saved.check_options(
        {
            **{key: one for key, one in asdict(options).items() if key not in _FREE},
            "first": None if options.first is None else hash_file(options.first / SINGLE),
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
    verifier = Verifier(checkpoint, device, dtype)
    with Gang(options.num_threads if device.type == "cpu" else 1) as gang:
        features = _features(options, verifier, texts, identity, gang, reporter)
        loop, trainer = _loop(
            options, checkpoint, verifier, texts, features, identity, bfloat16, saved
        )
        steps = plan_steps(texts.train, _loop_options(options, bfloat16))
        progress, finished = loop.run(steps, gang, reporter, stop)
    if not finished:
        return None
    record = _record(options, texts, progress, trainer, len(steps), identity, command)
    write_card(options.output / "README.md", record)
    text = json.dumps(record, indent=1) + "\n"
    replace_file(options.output / TRAINING, lambda path: path.write_text(text))
    saved.discard()
    return record


def _read(options: EagleOptions, checkpoint: Checkpoint, reporter: Reporter) -> Texts:
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
            f"none of {len(texts.train)} rows are held out, wanted some to choose the head by",
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
    options: EagleOptions,
    verifier: Verifier,
    texts: Texts,
    identity: Mapping[str, Any],
    gang: Gang,
    reporter: Reporter,
) -> Features:
    if options.cache_features is None:
        return RecomputedFeatures(verifier)
    # Features of another verifier or another precision are other features.
    key = hash_inputs({"files": identity["files"], "dtype": str(verifier.embedding.dtype)})[:16]
    rows = [*texts.train, *texts.held_out]
    return store_features(verifier, rows, options.cache_features / key, gang, reporter)


def _loop_options(options: EagleOptions, bfloat16: bool) -> LoopOptions:
    return LoopOptions(
        options.epochs,
        options.batch_tokens,
        options.warmup,
        options.validate_every,
        options.patience,
        options.seed,
        options.num_steps,
        bfloat16,
    )


def _loop(
    options: EagleOptions,
    checkpoint: Checkpoint,
    verifier: Verifier,
    texts: Texts,
    features: Features,
    identity: Mapping[str, Any],
    bfloat16: bool,
    saved: SavedRun,
) -> tuple[Loop, Trainer]:
    vocab_size = checkpoint.config.vocab_size
    num_ids = min(options.draft_vocab, vocab_size)
    draft_ids = torch.from_numpy(frequent_ids(texts.train, vocab_size, num_ids))
    model = new_head(head_config(checkpoint.config, num_ids), options.seed).to(verifier.device)
    scale = embedding_scale(verifier.embedding, texts.train[:SCALE_ROWS], features)
    chosen = verifier.head[draft_ids.to(verifier.device)].contiguous()
    frozen = Frozen(verifier.embedding, chosen, scale)
    if options.first is None:
        fit_joint(model, _first(texts.train, FIT_TOKENS), features, frozen)
    else:
        take_over(model, read_head(options.first), scale, str(options.first))
    trainer = Trainer(
        model,
        frozen,
        features,
        StepOptions(
            options.num_steps,
            LossWeights(
                options.feature_weight, options.token_weight, options.decay, options.temperature
            ),
            options.noise,
            options.detach,
            bfloat16,
        ),
        learning_rate=options.learning_rate,
        average=options.average,
        seed=options.seed,
    )
    held_out = None
    if texts.held_out:
        parts = _first(texts.held_out, VALIDATION_TOKENS)
        batches = [collate(part, features, verifier.device) for part in parts]
        held_out = HeldOut(batches, verifier.head, draft_ids.to(verifier.device))
    loop = Loop(
        trainer, frozen, saved, held_out, _loop_options(options, bfloat16),
        verifier=identity, draft_ids=draft_ids,
    )  # fmt: skip
    return loop, trainer


def _first(rows: tuple[Row, ...], num_tokens: int) -> list[list[Row]]:
    """Micro-batches of the first rows with so many response tokens, of one row at least."""
    chosen: list[Row] = []
    for row in rows:
        if chosen and num_tokens < row.num_response:
            break
        num_tokens -= row.num_response
        chosen.append(row)
    return pack(sorted(chosen, key=lambda row: row.num_response), MICRO_TOKENS)


def _record(
    options: EagleOptions,
    texts: Texts,
    progress: Progress,
    trainer: Trainer,
    num_planned: int,
    identity: Mapping[str, Any],
    command: str,
) -> dict[str, Any]:
    # Names, not places: a record travels with the head.
    plain: dict[str, Any] = {
        key: one.name if isinstance(one, Path) else one for key, one in asdict(options).items()
    }
    plain["data"] = [path.name for path in options.data]
    plain["exclude"] = [path.name for path in options.exclude]
    plain["verifier"] = identity["location"]
    return {
        "command": command,
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
