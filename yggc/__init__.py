"""The compiler: a language model and a drafter become one `.ygg` file. Names load on first use."""

from __future__ import annotations

from typing import Any

__all__ = ["BuildConfig", "BuildResult", "build"]


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import; `yggc --help` must not wait for them.
    if name == "build":
        from yggc.pipeline import build

        return build
    if name == "BuildConfig":
        from yggc.config import BuildConfig

        return BuildConfig
    if name == "BuildResult":
        from yggc.report import BuildResult

        return BuildResult
    raise AttributeError(f"module 'yggc' has no attribute {name!r}")
