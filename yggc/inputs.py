"""What a bundle is made of beside its sources: written into its manifest, and compared with a
recipe by `yggc matrix`.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from ygg_kernels.build import OPERATOR_SOURCES, TRITON_DIR

from yggc.aot import compiler_digest, packing_digest
from yggc.config import NO_MODEL, OPTIONS, PLUS_NGRAM, BuildConfig
from yggc.errors import RecipeError
from yggc.workdir import hash_file, hash_inputs
from yggrt.core.schema import BuildInputs

# Where and on what a bundle is built, and what `sources` of the manifest says with hashes.
_NO_OPTIONS = {
    "name", "target", "output", "work_dir", "jobs",
    "verifier", "verifier_sha256", "drafter_sha256",
}  # fmt: skip
SHIPPED_PROMPTS = "calibration.jsonl"


def calibration_file(config: BuildConfig) -> Path:
    """The calibration prompts."""
    if config.calibration == "shipped":
        return Path(str(files("ygg_artifacts.prompts") / SHIPPED_PROMPTS))
    return Path(config.calibration)


def build_inputs(config: BuildConfig) -> BuildInputs:
    """What a build of `config`, whose target is resolved, depends on. RecipeError for a file of
    prompts or times that cannot be read.
    """
    plain = _plain(config)
    options = {key: plain[key] for key in OPTIONS if key not in _NO_OPTIONS}
    options["drafter"] = _drafter_kind(config)
    options["calibration"] = _digest(calibration_file(config), "calibration")
    if config.profile:
        options["profile"] = _digest(Path(config.profile), "profile")
    return BuildInputs(
        options=options,
        compiler_digest=_compiler_digest(config),
        transformers=version("transformers"),
    )


def _plain(config: BuildConfig) -> dict[str, Any]:
    """As a manifest that is read again holds it."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return plain


def _drafter_kind(config: BuildConfig) -> str:
    """The drafter without the name of a model, which is a source."""
    if config.drafter in NO_MODEL or config.self_layers is not None:
        return config.drafter
    return f"model{PLUS_NGRAM}" if config.joins_ngram else "model"


def _compiler_digest(config: BuildConfig) -> str:
    """Of the code that stages are kept by, and of what is packed as it is."""
    operators = sorted(TRITON_DIR.glob("*.py")) if config.on_gpu else OPERATOR_SOURCES
    digest = hashlib.sha256()
    for path in operators:
        digest.update(path.read_bytes() + b"\0")
    bench = (files("ygg_artifacts.prompts") / "bench.jsonl").read_bytes()
    packed = hashlib.sha256(bench).hexdigest()
    return hash_inputs([compiler_digest(), packing_digest(), digest.hexdigest(), packed])


def _digest(path: Path, option: str) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise RecipeError(
            f"{option} {path}: cannot be read: {error.strerror}", "check the path"
        ) from error
