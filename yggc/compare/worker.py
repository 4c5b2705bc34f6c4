"""`python -m yggc.compare.worker`: one library, alone in a process.

Thread pools of different libraries (OpenMP runtimes, TBB, llama.cpp's own) crash or spin beside
each other in one process, and a library that crashes ends no other. Answers go to the stdout that
the process was started with; whatever libraries print goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

import msgspec

from yggc.compare.protocol import Answer, Ask, Engine, Failed, Library, Ready, Setup


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        try:
            if engine is None:
                engine = _load(msgspec.json.decode(line, type=Setup))
                _answer(answers, Ready(engine.title))
            else:
                _answer(answers, engine.decode(msgspec.json.decode(line, type=Ask)))
        # Whatever a library refuses is its row of the report; the traceback goes with it.
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            _answer(answers, Failed(f"{type(error).__name__}: {text}"))


def _load(setup: Setup) -> Engine:
    engines: dict[Library, Callable[[Setup], Engine]] = {
        "yggrt": _yggrt,
        "transformers": _transformers,
        "llama.cpp": _llama_cpp,
        "openvino": _openvino,
    }
    return engines[setup.library](setup)


def _yggrt(setup: Setup) -> Engine:
    from yggc.compare.with_yggrt import YggrtEngine

    return YggrtEngine(setup)


def _transformers(setup: Setup) -> Engine:
    from yggc.compare.with_transformers import TransformersEngine

    return TransformersEngine(setup)


def _llama_cpp(setup: Setup) -> Engine:
    from yggc.compare.with_llama_cpp import LlamaCppEngine

    return LlamaCppEngine(setup)


def _openvino(setup: Setup) -> Engine:
    from yggc.compare.with_openvino import OpenVinoEngine

    return OpenVinoEngine(setup)


def _answer(stream: TextIO, answer: Answer) -> None:
    stream.write(msgspec.json.encode(answer).decode() + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
