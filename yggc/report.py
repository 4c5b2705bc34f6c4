"""What a build tells its user: progress and notes on stderr, the result on stdout.

On a terminal a bar with the time left; elsewhere plain lines without a spinner; with `quiet`
nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from yggc.stages.profile import Profile

# Between two plain progress lines of one stage.
LINE_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build made. `sizes` in bytes by part, `seconds` by stage, `cached` the stages that
    were reused.

    `schedule` holds what was chosen, as plain values: tree, buckets, predicted tokens per pass and
    so on. `output` is None when the build was told to stop before `pack`.
    """

    name: str
    output: Path | None
    sizes: Mapping[str, int]
    seconds: Mapping[str, float]
    cached: tuple[str, ...] = ()
    schedule: Mapping[str, Any] = field(default_factory=dict)
    stopped_after: str = ""

    def to_json(self) -> str:
        """One line of JSON with every field."""
        return json.dumps(asdict(self), default=str)


class StageProgress:
    """Counts the steps of one stage."""

    def __init__(self, reporter: Reporter, name: str, total: int | None) -> None:
        self._reporter = reporter
        self._name = name
        self._total = total
        self._done = 0
        self._start = self._last_line = time.monotonic()
        self._task: TaskID | None = None
        if reporter.bars is not None:
            self._task = reporter.bars.add_task(name, total=total, note="")

    def advance(self, num: int = 1, note: str = "") -> None:
        """`num` more steps are done; `note` says which."""
        self._done += num
        if self._reporter.bars is not None and self._task is not None:
            self._reporter.bars.update(self._task, advance=num, note=escape(note))
            return
        now = time.monotonic()
        if now - self._last_line >= LINE_INTERVAL_S or self._done == self._total:
            self._last_line = now
            self._reporter.line(f"{self._name} {self._state(now)}{f' ({note})' if note else ''}")

    def _state(self, now: float) -> str:
        if self._total is None:
            return str(self._done)
        left_s = (
            (now - self._start) / self._done * (self._total - self._done) if self._done else 0.0
        )
        left = f", about {left_s:.0f} s left" if left_s >= 1 else ""
        return f"{self._done}/{self._total}{left}"

    def close(self) -> float:
        """Ends the bar; seconds since the start."""
        if self._reporter.bars is not None and self._task is not None:
            self._reporter.bars.remove_task(self._task)
        return time.monotonic() - self._start


class Reporter:
    """Progress of one build. `seconds` holds what each finished stage took."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.quiet = quiet
        self.bars: Progress | None = None
        self.seconds: dict[str, float] = {}
        self._open = 0

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[StageProgress]:
        """`with reporter.stage("freeze", total=6) as progress: progress.advance(1, "verify_8")`;
        may be nested.
        """
        self._begin(name)
        progress = StageProgress(self, name, total)
        try:
            yield progress
        except BaseException:
            progress.close()
            raise
        else:
            seconds = progress.close()
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.line(f"{name} done in {seconds:.1f} s")
        finally:
            self._end()

    def _begin(self, name: str) -> None:
        if self._open == 0 and not self.quiet and self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self.bars = Progress(*columns, console=self.console, transient=True)
            self.bars.start()
        elif self.bars is None:
            self.line(f"{name} ...")
        self._open += 1

    def _end(self) -> None:
        self._open -= 1
        if self._open == 0 and self.bars is not None:
            self.bars.stop()
            self.bars = None

    def say(self, text: str) -> None:
        """One line for the user, above any bar."""
        self.line(text)

    def line(self, text: str) -> None:
        if not self.quiet:
            self.console.print(escape(text), soft_wrap=True, highlight=False)


def print_result(result: BuildResult, as_json: bool) -> None:
    """The closing table, or one line of JSON, on stdout."""
    if as_json:
        sys.stdout.write(result.to_json() + "\n")
        return
    console = Console(highlight=False)
    console.print(escape(str(result.output or result.name)), soft_wrap=True)
    table = Table("stage", "seconds", "taken")
    table.columns[1].justify = "right"
    for stage, seconds in result.seconds.items():
        table.add_row(
            escape(stage),
            f"{seconds:.1f}",
            "from an earlier build" if stage in result.cached else "now",
        )
    console.print(table)
    sizes = Table("part", "MB")
    sizes.columns[1].justify = "right"
    for part, num_bytes in result.sizes.items():
        sizes.add_row(escape(part), f"{num_bytes / 1e6:.1f}")
    if result.sizes:
        console.print(sizes)
    for key, value in result.schedule.items():
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        console.print(f"{escape(key)}: {escape(shown)}", soft_wrap=True)
    if result.stopped_after:
        console.print(f"stopped after {result.stopped_after}, as asked")


def print_profile(path: str, digest: str, profile: Profile, as_json: bool) -> None:
    """The measured points as a table, or one line of JSON, on stdout."""
    import msgspec

    notes = profile.notes
    if as_json:
        plain = {"profile": path, "digest": digest, **msgspec.to_builtins(profile)}
        sys.stdout.write(json.dumps(plain) + "\n")
        return
    console = Console(highlight=False)
    table = Table("graph", "rows", "context", "median ms", "spread ms")
    for point in profile.latency:
        times = (f"{1e3 * seconds:.2f}" for seconds in (point.median_s, point.spread_s))
        table.add_row(point.graph, str(point.rows), str(point.context), *times)
    console.print(table)
    console.print(
        f"{escape(path)}: fingerprint {digest[:16]}, {notes.num_rounds} rounds, warm-up "
        f"{notes.warmup_s:.2f} s, other processes {notes.busy_share or 0.0:.0%}",
        soft_wrap=True,
    )
