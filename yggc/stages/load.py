"""load: resolve the verifier's source, read its configuration and its text side; weights stay
where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from yggc.config import resolve_for_model
from yggc.context import Context
from yggc.models.checkpoint import context_limit, empty_model
from yggc.models.formats import choose_formats, model_footprint
from yggc.preflight import preflight
from yggrt.core.schema import Record, Source, TextInfo

TOKENIZER_MEMBER = "tokenizer.json"


class Loaded(Record, frozen=True):
    """What the later stages know of the verifier. `config` is transformers' JSON form; `dtype`,
    `quant`, `activations`, `kv_dtype` and `max_model_len` are resolved; `formats` names the
    quantised matrices.
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


# Where a model lay and who saved it: two copies of one model must share their graphs.
_NOT_THE_MODEL = {"_name_or_path", "_model_name_or_path", "transformers_version"}


def _shape_of(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}


def key(context: Context) -> Any:
    config = context.config
    numbers = [config.dtype, config.quant, config.activations, config.kv_dtype]
    return [context.checkpoint.source.record("verifier"), *numbers, config.max_model_len]


def run(context: Context, out: Path) -> Loaded:
    """Writes `tokenizer.json` into `out` if the model has one."""
    checkpoint = context.checkpoint
    config, notes = resolve_for_model(
        context.config,
        model_limit=context_limit(checkpoint.config),
        stored_dtype=checkpoint.dtype,
        is_gguf=checkpoint.source.is_gguf,
        is_quantised=bool(checkpoint.stored_formats),
    )
    model = empty_model(checkpoint.config)
    formats, more = choose_formats(model, config, checkpoint)
    preflight(config, model_footprint(model, config, formats))
    text = checkpoint.text_info()
    tokenizer = checkpoint.tokenizer_json()
    if tokenizer is not None:
        (out / TOKENIZER_MEMBER).write_bytes(tokenizer)
        text = msgspec.structs.replace(text, tokenizer=TOKENIZER_MEMBER)
    for note in (*notes, *more, *checkpoint.notes):
        context.reporter.say(note)
    return Loaded(
        source=checkpoint.source.record("verifier"),
        config=_shape_of(checkpoint.config.to_dict()),
        text=text,
        eos_ids=checkpoint.eos_ids(),
        num_parameters=checkpoint.num_parameters,
        dtype=config.dtype,
        quant=config.quant,  # type: ignore[arg-type]
        formats=formats,
        activations=config.activations,  # type: ignore[arg-type]
        kv_dtype=config.kv_dtype,  # type: ignore[arg-type]
        max_model_len=config.max_model_len,
    )
