"""Reads training text: JSON lines of token ids that the verifier wrote itself, plain or gzipped.

A row has `ids` (prompt and response) and `num_prompt`, and may have `prompt_sha256`; other keys
are taken no notice of.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from yggc.errors import SourceError

# A response is cut to this many tokens at least, or its row is left out.
MIN_RESPONSE = 2
# The suffix of files that are read through gzip.
GZIPPED = ".gz"


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids (int32) of a prompt and its response; `digest` is the SHA-256 of both,
    `prompt_sha256` (hex) that of the prompt's text, "" where it is not known.
    """

    ids: np.ndarray[Any, np.dtype[np.int32]]
    num_prompt: int
    digest: bytes
    prompt_sha256: str = ""

    @property
    def num_response(self) -> int:
        return len(self.ids) - self.num_prompt


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows to train on and rows held out, in the order of the files.

    `notes` are things a user should be told.
    """

    train: tuple[Row, ...]
    held_out: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all rows in order, and of which are held out."""
        total = hashlib.sha256()
        for part in (self.train, self.held_out):
            total.update(len(part).to_bytes(8, "little"))
            for row in part:
                total.update(row.digest)
        return total.hexdigest()


def find_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files named, and for a directory its parts as `yggc train data` names them, else its
    `*.jsonl` and `*.jsonl.gz`; SourceError if there is none.
    """
    files: list[Path] = []
    for path in paths:
        parts = sorted(path.glob("part-*.jsonl"))
        every = sorted([*path.glob("*.jsonl"), *path.glob(f"*.jsonl{GZIPPED}")])
        found = (parts or every) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            what = f"has no .jsonl or .jsonl{GZIPPED} files" if path.is_dir() else "no such file"
            raise SourceError(
                f"training text {path}: {what}, wanted JSON lines of token ids",
                "`yggc train data` writes such text",
            )
        files += found
    return tuple(files)


def read_texts(
    paths: Sequence[Path],
    vocab_size: int,
    *,
    max_tokens: int,
    held_out: float,
    excluded: Callable[[Row], bool] | None = None,
) -> Texts:
    """All rows of the files, each once. Rows longer than `max_tokens` are cut at the end.

    A share `held_out` of the prompts, chosen by the SHA-256 of the prompt's ids, is kept from
    training with all its responses. Raises SourceError for a file that is not such text, for ids
    that `vocab_size` does not have, and if nothing is left to train on.
    """
    kept: dict[bytes, Row] = {}
    counts = {"short": 0, "excluded": 0, "double": 0}
    files = find_files(paths)
    for file in files:
        for row in _read_file(file, vocab_size, max_tokens):
            if row.num_response < MIN_RESPONSE:
                counts["short"] += 1
            elif row.digest in kept:
                counts["double"] += 1
            elif excluded is not None and excluded(row):
                counts["excluded"] += 1
            else:
                kept[row.digest] = row
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in kept.values():
        parts[_is_held_out(row, held_out)].append(row)
    if not parts[0]:
        named = ", ".join(str(path) for path in paths)
        raise SourceError(
            f"training text {named}: no row to train on among {len(kept)} usable ones",
            "give rows with a response of two tokens or more, as `yggc train data` writes them",
        )
    reasons = {
        "short": "without a response",
        "excluded": "whose prompt is excluded",
        "double": "that are there twice",
    }
    notes = tuple(
        f"left out {number} rows {reasons[reason]}" for reason, number in counts.items() if number
    )
    return Texts(tuple(parts[0]), tuple(parts[1]), notes)


def frequent_ids(rows: Sequence[Row], vocab_size: int, num: int) -> np.ndarray[Any, Any]:
    """The `num` ids most frequent in the responses (ties: the smaller id), int64 ascending."""
    counts = np.zeros(vocab_size, np.int64)
    for row in rows:
        counts += np.bincount(row.ids[row.num_prompt :], minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[:num]).astype(np.int64)


def _is_held_out(row: Row, share: float) -> bool:
    digest = hashlib.sha256(row.ids[: row.num_prompt].tobytes()).digest()
    return int.from_bytes(digest[:8], "little") < share * 2.0**64


def _read_file(file: Path, vocab_size: int, max_tokens: int) -> Iterator[Row]:
    try:
        with gzip.open(file) if file.suffix == GZIPPED else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parse(f"{file}:{number}", line, vocab_size, max_tokens)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceError(
            f"training text {file}: is no whole gzip file: {error}",
            "compress it again, or give the plain file",
        ) from error
    except OSError as error:
        raise SourceError(
            f"training text {file}: cannot be read: {error.strerror}", "check the path"
        ) from error


def _parse(where: str, line: bytes, vocab_size: int, max_tokens: int) -> Row:
    try:
        fields = json.loads(line)
        ids = np.array(fields["ids"], dtype=np.int64)
        num_prompt = fields["num_prompt"]
        if ids.ndim != 1 or not isinstance(num_prompt, int):
            raise ValueError("`ids` is no list of numbers, or `num_prompt` is no number")
        if not 0 < num_prompt <= len(ids):
            raise ValueError(f"num_prompt is {num_prompt} of {len(ids)} ids")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SourceError(
            f"{where}: is no row of training text: {what[:200]}",
            "wanted a JSON object with `ids` and `num_prompt`, as `yggc train data` writes it",
        ) from error
    foreign = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(foreign):
        raise SourceError(
            f"{where}: id {ids[foreign[0]]} at {foreign[0]} is none of the verifier's "
            f"{vocab_size} ids",
            "the text belongs to another tokenizer; write it with this verifier",
        )
    cut = ids[:max_tokens].astype(np.int32)
    digest = hashlib.sha256(num_prompt.to_bytes(4, "little") + cut.tobytes()).digest()
    return Row(cut, min(num_prompt, len(cut)), digest, str(fields.get("prompt_sha256", "")))
