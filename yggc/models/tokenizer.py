"""The text side of a checkpoint: tokenizer JSON, special tokens, chat template, end-of-sequence
ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from yggc.errors import SourceError
from yggrt.core.schema import TextInfo

_DIRECTORY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def load_tokenizer(
    directory: Path, gguf_file: str | None = None
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model directory or of a GGUF file in it; None if a directory holds "
    "none."""
    if gguf_file is None and not any((directory / name).is_file() for name in _DIRECTORY_FILES):
        return None
    arguments = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, **arguments)
    except Exception as error:  # each tokenizer class checks its files in its own way
        raise SourceError(
            f"{directory / (gguf_file or '')}: its tokenizer cannot be loaded: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            "fetch the tokenizer files again; without any of them the model is built to work on "
            "ids",
        ) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise SourceError(
            f"{directory}: tokenizer {type(tokenizer).__name__} has no tokenizer.json form",
            "convert it with `tokenizer.save_pretrained` from a class that transformers backs "
            "with `tokenizers`",
        )
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> str | None:
    """Refuses a tokenizer that belongs to another model; a note if only added tokens lie beyond
    `vocab_size`.
    """
    beyond = sorted((i, token) for token, i in tokenizer.get_vocab().items() if i >= vocab_size)
    ordinary = [(i, token) for i, token in beyond if i not in tokenizer.added_tokens_decoder]
    if ordinary:
        raise SourceError(
            f"tokenizer: token {ordinary[0][1]!r} has id {ordinary[0][0]}, the model's vocabulary "
            f"has {vocab_size}",
            "the tokenizer belongs to another model",
        )
    if beyond:
        return f"added tokens beyond the model's vocabulary: {len(beyond)}, first {beyond[0][1]!r}"
    return None


def describe_text(tokenizer: PreTrainedTokenizerBase) -> TextInfo:
    """What the runtime needs beside tokenizer.json; `add_bos` is what the tokenizer does, not what
    a flag says.
    """
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a", add_special_tokens=True)["input_ids"]
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and full[:1] == [bos] and plain[:1] != [bos]
    return TextInfo(
        tokenizer="tokenizer.json",
        chat_template=_chat_template(tokenizer.chat_template),
        bos_token=tokenizer.bos_token or "",
        eos_token=tokenizer.eos_token or "",
        pad_token=tokenizer.pad_token or "",
        unk_token=tokenizer.unk_token or "",
        add_bos=adds_bos,
    )


def _chat_template(template: str | dict[str, str] | None) -> str:
    if isinstance(template, dict):
        return template.get("default", "")
    return template or ""


def end_ids(vocab_size: int, *stated: Any) -> tuple[int, ...]:
    """All end ids that any of the sources states (an id, a list or None), ascending, within the
    vocabulary.
    """
    ids: set[int] = set()
    for value in stated:
        ids.update(value if isinstance(value, Iterable) else () if value is None else (value,))
    return tuple(sorted(i for i in ids if 0 <= i < vocab_size))
