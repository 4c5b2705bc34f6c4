"""Which bundles have to be built again: every recipe and target beside an earlier bundle.

A bundle is an entry's if it has the entry's name and target. Compared are the hashes of its
sources, the options of the recipe, the compiler, and torch and transformers; never times of files
nor what was measured. An entry of which it cannot be told is one that changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from yggc.config import BuildConfig, for_target, load_config, read_recipe, recipe_targets
from yggc.errors import RecipeError
from yggc.inputs import build_inputs
from yggc.models.source import resolve_source, source_kind
from yggc.targets import resolve_target
from yggc.workdir import WorkDir
from yggrt import __version__
from yggrt.bundle import Bundle
from yggrt.core.errors import BundleError
from yggrt.core.schema import Manifest, Source

Role = Literal["verifier", "drafter"]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NUM_DIGITS = 12


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One bundle of the build matrix. `reasons`: what changed since the bundle before, empty if
    nothing did.
    """

    recipe: str
    target: str
    name: str
    changed: bool
    reasons: tuple[str, ...]


class Previous(NamedTuple):
    """An earlier bundle, or its manifest in a file of its own."""

    path: Path
    manifest: Manifest


def build_matrix(
    recipes: Sequence[Path], against: Sequence[Path]
) -> tuple[list[Entry], list[Previous]]:
    """An entry for each recipe and target, in the order given, and the bundles that are none's.

    `against`: bundles, manifests (`.json`) and folders of bundles. Raises RecipeError for a recipe
    that cannot be read, two entries of one name and target, or two bundles for one; BundleError
    for a bundle that cannot be read; SourceError for a model that is not where the recipe says.
    """
    before = _by_entry(_read(against))
    configs: dict[tuple[str, str], tuple[Path, BuildConfig]] = {}
    for recipe in recipes:
        for config in _configs(recipe):
            key = config.name, config.target
            if key in configs:
                raise RecipeError(
                    f"recipes {configs[key][0]} and {recipe} both make {key[0]!r} for {key[1]}",
                    "give each recipe once, and each bundle a name of its own",
                )
            configs[key] = recipe, config
    entries = [
        _entry(recipe, config, before[key].manifest if key in before else None)
        for key, (recipe, config) in configs.items()
    ]
    return entries, [one for key, one in before.items() if key not in configs]


def _configs(recipe: Path) -> Iterator[BuildConfig]:
    for target in recipe_targets(recipe) or (None,):
        config, _ = load_config(recipe, {"target": target})
        yield for_target(config, resolve_target(config.target, dry_run=True)[0])


def _read(against: Iterable[Path]) -> Iterator[Previous]:
    for path in against:
        if path.is_dir():
            yield from _read(sorted(path.glob("*.ygg")))
        elif path.suffix == ".json":
            yield Previous(path, _read_json(path))
        else:
            yield Previous(path, Bundle.read_manifest(path))


def _read_json(path: Path) -> Manifest:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be opened: {error.strerror}",
            "give a bundle, its manifest.json, or a folder of bundles",
        ) from error
    return Manifest.from_json(data, str(path))


def _by_entry(bundles: Iterable[Previous]) -> dict[tuple[str, str], Previous]:
    found: dict[tuple[str, str], Previous] = {}
    for one in bundles:
        key = one.manifest.name, one.manifest.target.name
        if key in found:
            raise RecipeError(
                f"{found[key].path} and {one.path} are both {key[0]!r} for {key[1]}",
                "give --against one bundle for each, the one that is in use",
            )
        found[key] = one
    return found


def _entry(recipe: Path, config: BuildConfig, manifest: Manifest | None) -> Entry:
    reasons = tuple(_reasons(recipe, config, manifest))
    return Entry(
        recipe=str(recipe),
        target=config.target,
        name=config.name,
        changed=bool(reasons),
        reasons=reasons,
    )


def _reasons(recipe: Path, config: BuildConfig, manifest: Manifest | None) -> Iterator[str]:
    if manifest is None:
        yield "no bundle before"
        return
    yield from _of_sources(config, manifest)
    if manifest.inputs is None:
        yield (
            f"recipe: format {manifest.format_version} of the bundle before does not say what it "
            "was made of"
        )
        return
    now = build_inputs(config)
    stated = read_recipe(recipe)
    if stated.get("threads", "auto") == "auto":
        # As many as the building machine has, which may be another one.
        now.options.pop("threads")
    yield from _of_options(manifest.inputs.options, now.options)
    built_by = f"yggc {__version__}"
    if manifest.built_by != built_by:
        yield f"compiler: {built_by}, was {manifest.built_by}"
    if manifest.inputs.compiler_digest != now.compiler_digest:
        yield (
            f"compiler: sources {_short(now.compiler_digest)}, were "
            f"{_short(manifest.inputs.compiler_digest)}"
        )
    for library, was in (
        ("torch", manifest.target.must_match.torch),
        ("transformers", manifest.inputs.transformers),
    ):
        # Builds of one version for CPUs and for GPUs differ in what follows a plus.
        installed = _public(version(library))
        if installed != _public(was):
            yield f"{library}: {installed}, was {_public(was)}"


def _of_options(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key, value in now.items():
        if key not in was:
            yield f"recipe: {key} is {_shown(value)}, the bundle before did not have it"
        elif was[key] != value:
            yield f"recipe: {key} is {_shown(value)}, was {_shown(was[key])}"


def _of_sources(config: BuildConfig, manifest: Manifest) -> Iterator[str]:
    asked: list[tuple[Role, str, str]] = [
        ("verifier", config.verifier, config.verifier_sha256),
    ]
    if config.has_draft_model and config.self_layers is None:
        asked.append(("drafter", config.draft_model, config.drafter_sha256))
    before = {source.role: source for source in manifest.sources}
    for role, text, sha256 in asked:
        was = before.get(role)
        if was is None:
            yield f"{role}: is {text}, the bundle before had none"
        elif (reason := _of_source(role, text, sha256.lower(), was, config)) is not None:
            yield f"{role}: {reason}"


def _of_source(role: Role, text: str, sha256: str, was: Source, config: BuildConfig) -> str | None:
    """How what a recipe names differs from what a bundle was made of. Nothing is fetched: of a
    model on the hub its commit tells, of a file in a wheel the wheel's version and the hash that
    the recipe may give.
    """
    kind = source_kind(text)
    if kind == "hub":
        repo, _, revision = text.partition("@")
        if was.location != repo:
            return f"is {repo}, was {was.location}"
        if not _COMMIT.fullmatch(revision):
            return f"{text} may have changed: it is not pinned to a commit ({repo}@{was.revision})"
        if was.revision != revision:
            return f"{repo} is at {_short(revision)}, was at {_short(was.revision)}"
        return None
    if kind == "wheel":
        if was.location != text:
            return f"is {text}, was {was.location}"
        now = {was.files[0].name: sha256 or was.files[0].sha256}
    elif kind == "gguf" and sha256:
        now = {Path(text).name: sha256}
    else:
        work = WorkDir(Path(config.work_dir))
        found = resolve_source(text, work, sha256, f"{role}_sha256")
        now = {file.name: file.sha256 for file in found.record(role).files}
    return _of_files({file.name: file.sha256 for file in was.files}, now)


def _of_files(was: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The files that differ; a single file may have another name."""
    if len(was) == len(now) == 1 and set(was.values()) == set(now.values()):
        return None
    changes = []
    for name in sorted(was.keys() | now.keys()):
        if name not in was:
            changes.append(f"{name} is new")
        elif name not in now:
            changes.append(f"{name} is gone")
        elif was[name] != now[name]:
            changes.append(f"{name} has sha256 {_short(now[name])}, had {_short(was[name])}")
    return "; ".join(changes) or None


def _short(digest: str) -> str:
    return digest[:_NUM_DIGITS]


def _public(text: str) -> str:
    return text.partition("+")[0]


def _shown(value: Any) -> str:
    text = str(value) if value != "" else "empty"
    return _short(text) if re.fullmatch(r"[0-9a-f]{64}", text) else text
