"""Stages of every pass of one run as Chrome trace events, which ui.perfetto.dev opens.

The format is the "Trace Event Format" of the Chromium project: complete events (`X`) that nest by
their times, in microseconds, metadata (`M`) and counters (`C`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from yggrt.core.errors import RequestError
from yggrt.session import Session

_TRACK: dict[str, Any] = {"pid": 1, "tid": 1}


@dataclass
class _Recorder:
    """Stages of the pass that runs, in whole nanoseconds since `start_s`."""

    start_s: float
    stages: list[tuple[str, int, int]] = field(default_factory=list)

    def on_stage(self, stage: str, start_s: float, end_s: float) -> None:
        self.stages.append((stage, self.ns(start_s), self.ns(end_s)))

    def ns(self, at_s: float) -> int:
        return round((at_s - self.start_s) * 1e9)

    def take(self) -> list[tuple[str, int, int]]:
        stages, self.stages = self.stages, []
        return stages


def trace_run(
    session: Session, ids: Sequence[int], num_tokens: int, title: str, about: dict[str, Any]
) -> dict[str, Any]:
    """Decodes once with the session's tree; a trace of a request, its passes and their stages.

    `about` is kept as it is, for whoever reads the file later.
    """
    recorder = _Recorder(perf_counter())
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", **_TRACK, "args": {"name": f"yggrt: {title}"}},
        {"ph": "M", "name": "thread_name", **_TRACK, "args": {"name": "decoding"}},
    ]
    passes: list[dict[str, Any]] = []
    stream = session.stream(ids, max_tokens=num_tokens, on_stage=recorder.on_stage)
    for number, piece in enumerate(stream):
        stages = recorder.take()
        args = {"pass": number, "tokens": len(piece.ids)}
        begin, end = stages[0][1], stages[-1][2]
        passes.append(_event("pass" if number else "first token", "pass", begin, end, args))
        passes.extend(_event(name, "stage", start, stop) for name, start, stop in stages)
        counter = {"ph": "C", "name": "tokens per pass", "ts": end / 1e3, **_TRACK}
        passes.append({**counter, "args": {"tokens": len(piece.ids)}})
    assert session.last is not None, "a stream that was read to its end"
    stats = session.last.stats
    about_run = {"tokens": stats.num_tokens, "tree": stats.tree, "prompt tokens": len(ids)}
    events.append(_event("request", "request", 0, recorder.ns(perf_counter()), about_run))
    return {"traceEvents": events + passes, "displayTimeUnit": "ms", "otherData": about}


def check_trace_path(path: Path) -> None:
    """Raises RequestError if no file can be written there: before the work, not after it."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RequestError(
            f"{path}: no trace can be written there", "give a file in a folder that exists"
        )
    if path.exists() and not _is_trace(path):
        raise RequestError(
            f"{path}: exists and is no trace, so it is not overwritten",
            "give a new file, or that of an earlier trace",
        )


def _is_trace(path: Path) -> bool:
    start = b'{"traceEvents"'
    try:
        with path.open("rb") as file:
            return file.read(len(start)) in (start, b"")
    except OSError:
        return False


def write_trace(trace: dict[str, Any], path: Path) -> None:
    """Raises RequestError if the file cannot be written."""
    try:
        path.write_text(json.dumps(trace))
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be written: {error.strerror or error}", "choose another file"
        ) from error


def _event(
    name: str, category: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", "name": name, "cat": category, **times, **_TRACK, "args": args or {}}
