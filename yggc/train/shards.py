"""A folder of training text: JSON lines in parts that appear whole, and a record of how they were
made.

`part-00000.jsonl` and so on hold the rows, `dropped.jsonl` the prompts whose answers were not
kept, `data.json` the record. Parts are never changed. A killed run loses the rows that are not yet
in a part; the same command goes on from there.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yggc.errors import RecipeError, StageError

# A part has so many rows, or those of so many seconds: little is lost.
ROWS_OF_PART, SECONDS_OF_PART = 200, 300.0
RECORD, DROPPED = "data.json", "dropped.jsonl"


class TextFolder:
    """The rows in `path`. `done` has the prompts that have an answer or were dropped, `counts`
    rows and tokens by category.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._rows: list[dict[str, Any]] = []
        self._dropped: list[dict[str, str]] = []
        self._num_parts = 0
        self._last_part = time.monotonic()

    @contextmanager
    def opened(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Holds the folder for this process; RecipeError if it was made with other options, or
        another process writes it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RecipeError(
                f"{self.path}: cannot be written: {error.strerror}", "choose another with -o"
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RecipeError(
                    f"{self.path}: another process is writing it",
                    "wait for it, or choose another folder with -o",
                ) from None
            self._check(options)
            self._read()
            yield
        finally:
            os.close(lock)

    def _check(self, options: Mapping[str, Any]) -> None:
        path = self.path / RECORD
        if not path.exists():
            if next(self.path.glob("part-*.jsonl"), None) is not None:
                raise RecipeError(
                    f"{self.path}: has parts and no {RECORD}", "choose another folder with -o"
                )
            return
        try:
            found = json.loads(path.read_bytes())["options"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecipeError(
                f"{path}: is not a record of training text", "choose another folder with -o"
            ) from error
        wanted = json.loads(json.dumps(options))
        for key in wanted:
            if found.get(key) != wanted[key]:
                raise RecipeError(
                    f"{self.path}: was made with {key} {found.get(key)!r}, now {wanted[key]!r}",
                    "give the same options to go on, or choose another folder with -o",
                )

    def _read(self) -> None:
        for path in sorted(self.path.glob("part-*.jsonl")):
            for row in _lines(path):
                self._count(row)
            self._num_parts = int(path.stem.removeprefix("part-")) + 1
        self._dropped = list(_lines(self.path / DROPPED))
        self.done.update(row["prompt_sha256"] for row in self._dropped)
        self.counts["dropped"] = len(self._dropped)

    def add(self, row: dict[str, Any]) -> None:
        """Takes a row; a part appears when there are enough."""
        self._rows.append(row)
        self._count(row)
        late = time.monotonic() - self._last_part >= SECONDS_OF_PART
        if len(self._rows) >= ROWS_OF_PART or late:
            self.flush()

    def drop(self, prompt_sha256: str, reason: str) -> None:
        """Marks a prompt as done without a row."""
        self._dropped.append({"prompt_sha256": prompt_sha256, "reason": reason})
        self.done.add(prompt_sha256)
        self.counts["dropped"] += 1

    def flush(self) -> None:
        """Writes what was taken since the last part."""
        if self._rows:
            text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in self._rows)
            write_whole(self.path / f"part-{self._num_parts:05d}.jsonl", text)
            self._num_parts += 1
            self._rows = []
            self._last_part = time.monotonic()
        if self._dropped:
            text = "".join(json.dumps(one) + "\n" for one in self._dropped)
            write_whole(self.path / DROPPED, text)

    def write_record(self, record: Mapping[str, Any]) -> None:
        write_whole(self.path / RECORD, json.dumps(record, indent=1) + "\n")

    def _count(self, row: Mapping[str, Any]) -> None:
        self.done.add(row["prompt_sha256"])
        category, num_prompt = row["category"], row["num_prompt"]
        self.counts[f"{category} rows"] += 1
        self.counts[f"{category} tokens"] += len(row["ids"]) - num_prompt
        self.counts["rows"] += 1
        self.counts["tokens"] += len(row["ids"]) - num_prompt
        self.counts["prompt tokens"] += num_prompt


def _lines(path: Path) -> Iterator[Any]:
    if not path.exists():
        return
    try:
        for line in path.read_bytes().splitlines():
            yield json.loads(line)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"{path}: cannot be read: {error}", "remove the damaged part and run again"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """`path` has all of `text`, or is as it was; StageError if the disk does not take it."""
    part = path.with_name(f".{path.name}.tmp")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise StageError(
            f"{path}: {'no space left' if full else f'cannot be written: {error.strerror}'}",
            "make room and run the same command again; finished parts are kept",
        ) from error
