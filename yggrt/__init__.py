"""Yggdrasil's runtime: loads a `.ygg` bundle and decodes with it, several tokens per pass,
exactly.

Public names are loaded on first use, so importing the package, or asking the command line for
help, is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yggrt.loading import load
    from yggrt.sampling.params import SamplingParams
    from yggrt.session import Completion, Piece, Session
    from yggrt.stats import Stats

__version__ = "0.1.0"
__all__ = ["Completion", "Piece", "SamplingParams", "Session", "Stats", "__version__", "load"]

_HOMES = {
    "load": "yggrt.loading",
    "Completion": "yggrt.session",
    "Piece": "yggrt.session",
    "SamplingParams": "yggrt.sampling.params",
    "Session": "yggrt.session",
    "Stats": "yggrt.stats",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
