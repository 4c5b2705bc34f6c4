"""What every command does at its edges: errors in one line, Ctrl-C, a closed pipe, colours."""

from __future__ import annotations

import errno
import functools
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

import typer
from typer.core import TyperGroup

from yggrt.core.errors import YggError

INTERRUPTED = 130
PIPE_CLOSED = 141
RED, YELLOW = "31;1", "33"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# typer brings its own copy of click or uses the installed one, by its version.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]


class ReportingGroup(TyperGroup):
    """Commands whose wrong arguments are reported as all errors are, in one line and a tip."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = (args, prog_name, complete_var, False, windows_expand_args)
        if not standalone_mode:
            return super().main(*given, **extra)
        try:
            code = super().main(*given, **extra)
        except _UsageError as error:
            # A group without arguments asks for its help in this way.
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                text = error.format_message().rstrip(".")
                path = error.ctx.command_path if error.ctx else prog_name
                report_error(
                    YggError(text[:1].lower() + text[1:], f"`{path} --help` describes the options")
                )
            sys.exit(error.exit_code)
        except typer.Abort:
            sys.exit(1)
        sys.exit(code or 0)


def prepare_streams() -> None:
    """Makes stdout and stderr fit for writing, whatever they were started with."""
    # Python's stand-in for a closed descriptor is None; what is written then goes nowhere, as was
    # asked.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows a question mark in its place.
            stream.reconfigure(errors="replace")


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Ends the command with one line per error of the user's, and its traceback if `verbose`.

    Any other exception is a bug of ours and keeps its traceback.
    """

    @functools.wraps(command)
    def guarded(**arguments: Any) -> None:
        try:
            command(**arguments)
            sys.stdout.flush()
        except YggError as error:
            if arguments.get("verbose"):
                traceback.print_exception(error)
            report_error(error)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # The reader went away; nothing more can be said, also not at interpreter exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            # Files that a command opens itself are reported where that is done.
            if error.errno not in _FULL or error.filename:
                raise
            report_error(
                YggError(
                    f"the output cannot be written: {error.strerror}",
                    "make room where stdout goes, or send it elsewhere",
                )
            )
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(2) from None

    return guarded


def report_error(error: YggError) -> None:
    sys.stderr.write(f"{paint('ERROR', RED)} {error.message}\n")
    if error.tip:
        sys.stderr.write(f"{paint('TIP', YELLOW)} {error.tip}\n")


def note(text: str) -> None:
    """A line for a person, beside the results."""
    sys.stderr.write(f"{text}\n")


def warn(text: str) -> None:
    note(f"{paint('WARNING', YELLOW)} {text}")


def progress(text: str) -> None:
    """A line that the next one overwrites, "" removes it; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def paint(text: str, code: str, stream: TextIO | None = None) -> str:
    """`text` in colour if the stream is a terminal and NO_COLOR is not set."""
    stream = stream or sys.stderr
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


class Interrupt:
    """While entered, the first Ctrl-C only makes `requested` true; the second is a
    KeyboardInterrupt.

    A pass is never cut in half, so the session stays usable and its statistics true.
    """

    def __init__(self) -> None:
        self._requested = False
        self._before: Any = None

    def requested(self) -> bool:
        return self._requested

    def __enter__(self) -> Self:
        self._requested = False
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True


def silent(text: str) -> None:
    """Progress that nobody reads."""
