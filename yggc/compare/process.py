"""The comparison's end of a worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Self

import msgspec

from yggc.compare.protocol import Answer, Ask, Failed, Ready, Setup, Timed


class WorkerError(Exception):
    """A worker that said no or that ended; `signal_name` if a signal ended it."""

    def __init__(self, reason: str, signal_name: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.signal_name = signal_name


class Worker:
    """A library with a loaded model in a process of its own; raises WorkerError from `__init__`
    and `decode`. Ctrl-C does not reach it.
    """

    def __init__(self, setup: Setup) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "yggc.compare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": str(setup.num_threads)},
        )
        try:
            answer = self._ask(setup)
        except BaseException:
            self.close()
            raise
        assert isinstance(answer, Ready), answer
        self.title = answer.title

    @property
    def pid(self) -> int:
        return self._process.pid

    def decode(self, ask: Ask) -> Timed:
        answer = self._ask(ask)
        assert isinstance(answer, Timed), answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, message: Setup | Ask) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message).decode() + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._ended()
        answer = msgspec.json.decode(line, type=Answer)
        if isinstance(answer, Failed):
            raise WorkerError(answer.reason)
        return answer

    def _ended(self) -> WorkerError:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return WorkerError(f"ended by {name}", name)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()] or ["no message"]
        return WorkerError(f"ended with status {code}: {lines[-1][:300]}")
