"""load: resolve the verifier's source, read its configuration and its text side; weights stay
where they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from yggc.config import resolve_for_model
from yggc.context import Context
from yggc.preflight import preflight
from yggrt.core.schema import Record, Source, TextInfo

TOKENIZER_MEMBER = "tokenizer.json"


class Loaded(Record, frozen=True):
    """What the later stages know of the verifier. `config` is transformers' JSON form; `dtype` and
    `max_model_len` are resolved.
    """

    source: Source
    config: dict[str, Any]
    text: TextInfo
    eos_ids: tuple[int, ...]
    num_parameters: int
    dtype: str
    max_model_len: int


# Where a model lay and who saved it: two copies of one model must share their graphs.
_NOT_THE_MODEL = {"_name_or_path", "_model_name_or_path", "transformers_version"}


def _shape_of(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}


def key(context: Context) -> Any:
    config = context.config
    return [context.checkpoint.source.record("verifier"), config.dtype, config.max_model_len]


def run(context: Context, out: Path) -> Loaded:
    """Writes `tokenizer.json` into `out` if the model has one."""
    checkpoint = context.checkpoint
    config, notes = resolve_for_model(
        context.config,
        model_limit=int(getattr(checkpoint.config, "max_position_embeddings", 1 << 30)),
        stored_dtype=checkpoint.dtype,
        is_gguf=checkpoint.source.is_gguf,
    )
    preflight(config, checkpoint.num_parameters)
    text = checkpoint.text_info()
    tokenizer = checkpoint.tokenizer_json()
    if tokenizer is not None:
        (out / TOKENIZER_MEMBER).write_bytes(tokenizer)
        text = msgspec.structs.replace(text, tokenizer=TOKENIZER_MEMBER)
    for note in (*notes, *checkpoint.notes):
        context.reporter.say(note)
    return Loaded(
        source=checkpoint.source.record("verifier"),
        config=_shape_of(checkpoint.config.to_dict()),
        text=text,
        eos_ids=checkpoint.eos_ids(),
        num_parameters=checkpoint.num_parameters,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
    )
