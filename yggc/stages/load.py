"""load: resolve where the models come from, read their configurations and text sides; weights stay
where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from yggc.config import BuildConfig, resolve_for_model
from yggc.context import Context
from yggc.heads import HEAD_3, MEDUSA, Medusa, Taps, heads_for, is_head
from yggc.models.checkpoint import Checkpoint, context_limit, empty_model
from yggc.models.drafter import (
    check_same_tokens,
    drafter_options,
    plan_drafter,
)
from yggc.models.formats import choose_formats, model_footprint
from yggc.models.head import FUSE, HeadCheckpoint
from yggc.preflight import preflight
from yggrt.core.footprint import Footprint
from yggrt.core.schema import Record, Source, TextInfo

TOKENIZER_MEMBER = "tokenizer.json"


class Loaded(Record, frozen=True):
    """What the later stages know of the verifier, and of a model that drafts. `config` is
    transformers' JSON form; `dtype`, `quant`, `activations`, `kv_dtype` and `max_model_len` are
    resolved; `formats` names the quantised matrices. The text side is the verifier's alone.
    `draft_ids`: the verifier's id of each logit of a head, empty if they are its own.
    """

    source: Source
    config: dict[str, Any]
    text: TextInfo
    eos_ids: tuple[int, ...]
    num_parameters: int
    dtype: str
    quant: Literal["none", "int8", "int4", "keep"]
    formats: dict[str, str]
    activations: Literal["float32", "int8"]
    kv_dtype: Literal["float32", "bfloat16", "int8"]
    max_model_len: int
    drafter: Loaded | None = None
    draft_ids: tuple[int, ...] = ()

    @property
    def taps(self) -> Taps | None:
        """What the drafter reads inside this verifier; None for none, or its last hidden state."""
        head = self.drafter
        if head is None or head.config["model_type"] != HEAD_3:
            return None
        return Taps(
            layers=tuple(head.config["taps"]),
            form=head.formats.get(FUSE, head.dtype),
            integer=head.activations == "int8",
        )

    @property
    def medusa(self) -> Medusa | None:
        """The drafter's part in this verifier's graphs, if it is Medusa heads."""
        heads = self.drafter
        if heads is None or heads.config["model_type"] != MEDUSA:
            return None
        return Medusa(
            config=heads.config,
            dtype=heads.dtype,
            formats=heads.formats,
            integer=heads.activations == "int8",
        )


# Where a model lay and who saved it: two copies of one model must share their graphs.
_NOT_THE_MODEL = {"_name_or_path", "_model_name_or_path", "transformers_version"}
# What a head says of its verifier and of its file.
_NOT_THE_HEAD = {"verifier", "dtype", "architectures", "initializer_range"}


def _shape_of(config: dict[str, Any]) -> dict[str, Any]:
    without = _NOT_THE_MODEL | (_NOT_THE_HEAD if is_head(config) else set())
    return {key: value for key, value in config.items() if key not in without}


def key(context: Context) -> Any:
    config = context.config
    numbers = [config.dtype, config.quant, config.activations, config.kv_dtype]
    drafter = []
    if config.has_draft_model:
        drafter = [
            context.drafter_checkpoint.source.record("drafter"),
            config.self_layers,
            config.drafter_dtype,
            config.drafter_quant,
        ]
    verifier = context.checkpoint.source.record("verifier")
    return [verifier, *numbers, config.max_model_len, drafter]


def run(context: Context, out: Path) -> Loaded:
    """Writes `tokenizer.json` into `out` if the verifier has one."""
    checkpoint = context.checkpoint
    config, notes = resolve(context.config, checkpoint)
    model = empty_model(checkpoint.config)
    formats, more = choose_formats(model, config, checkpoint)
    notes += more
    footprint = model_footprint(model, config, formats)
    loaded = _loaded("verifier", config, checkpoint, checkpoint.config.to_dict(), formats)
    if config.has_draft_model:
        drafter, total, more = _load_drafter(context, config, loaded, footprint)
        loaded = msgspec.structs.replace(loaded, drafter=drafter)
        notes += [f"drafter: {note}" for note in more]
        footprint = total
    preflight(config, footprint)
    text = checkpoint.text_info()
    tokenizer = checkpoint.tokenizer_json()
    if tokenizer is not None:
        (out / TOKENIZER_MEMBER).write_bytes(tokenizer)
        text = msgspec.structs.replace(text, tokenizer=TOKENIZER_MEMBER)
    if config.drafter == "ngram":
        notes.append(_suggestion(checkpoint))
    for note in (*notes, *checkpoint.notes):
        context.reporter.say(note)
    return msgspec.structs.replace(loaded, text=text, eos_ids=checkpoint.eos_ids())


def _suggestion(checkpoint: Checkpoint) -> str:
    """What would draft better than n-grams for this verifier."""
    files = checkpoint.source.files
    known = heads_for(files[0].sha256) if len(files) == 1 else []
    if known:
        return f"drafter: a trained one for this verifier is at hand: --drafter {known[0]}+ngram"
    return "drafter: ngram; `yggc train eagle` makes a better one, see docs/drafters.md"


def resolve(config: BuildConfig, checkpoint: Checkpoint) -> tuple[BuildConfig, list[str]]:
    """The configuration without any "auto" that hangs on the model, and what was chosen."""
    return resolve_for_model(
        config,
        model_limit=context_limit(checkpoint.config),
        stored_dtype=checkpoint.dtype,
        is_gguf=checkpoint.source.is_gguf,
        is_quantised=bool(checkpoint.stored_formats),
    )


def _load_drafter(
    context: Context, config: BuildConfig, verifier: Loaded, taken: Footprint
) -> tuple[Loaded, Footprint, list[str]]:
    """The drafter, what both models take together, and what a user should be told; `taken` is what
    the verifier takes."""
    checkpoint = context.drafter_checkpoint
    head = checkpoint if isinstance(checkpoint, HeadCheckpoint) else None
    layers = config.self_layers
    if layers is None and head is None:
        check_same_tokens(context.checkpoint.tokenizer, checkpoint.tokenizer)
    options, notes = drafter_options(config, checkpoint.config, context_limit(checkpoint.config))
    options, more = resolve(options, checkpoint)
    theirs = (context.checkpoint.config, verifier.formats, taken)
    plan = plan_drafter(config, options, checkpoint.config, checkpoint, theirs)
    loaded = _loaded("drafter", options, checkpoint, plan.shape.to_dict(), plan.formats)
    if head is not None:
        loaded = msgspec.structs.replace(loaded, draft_ids=head.draft_ids)
    if layers is not None:
        model = empty_model(plan.shape)
        count = sum(parameter.numel() for parameter in model.parameters())
        return msgspec.structs.replace(loaded, num_parameters=count), plan.total, notes
    return loaded, plan.total, [*notes, *more, *plan.notes, *checkpoint.notes]


def _loaded(
    role: Literal["verifier", "drafter"],
    config: BuildConfig,
    checkpoint: Checkpoint,
    shape: dict[str, Any],
    formats: dict[str, str],
) -> Loaded:
    return Loaded(
        source=checkpoint.source.record(role),
        config=_shape_of(shape),
        text=TextInfo(),
        eos_ids=(),
        num_parameters=checkpoint.num_parameters,
        dtype=config.dtype,
        quant=config.quant,  # type: ignore[arg-type]
        formats=formats,
        activations=config.activations,  # type: ignore[arg-type]
        kv_dtype=config.kv_dtype,  # type: ignore[arg-type]
        max_model_len=config.max_model_len,
    )
