"""Where the model is that a bundle was built from, and whether it is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from yggc.config import PLUS_NGRAM
from yggc.errors import SourceError
from yggc.models.source import ResolvedSource, resolve_source
from yggc.workdir import WorkDir
from yggrt.core.schema import HeadDrafter, Manifest, Source


def recorded(manifest: Manifest, role: str) -> Source | None:
    """The manifest's record of the verifier's or the drafter's source."""
    return next((source for source in manifest.sources if source.role == role), None)


def check_same_verifier(manifests: Sequence[Manifest]) -> Source:
    """The source that all bundles were built from; SourceError if they differ."""
    first, *others = (recorded(manifest, "verifier") for manifest in manifests)
    assert first is not None, "every manifest names its verifier"
    for other, manifest in zip(others, manifests[1:], strict=True):
        assert other is not None, "every manifest names its verifier"
        if problem := source_difference(first, other):
            raise SourceError(
                f"bundles {manifests[0].name} and {manifest.name} were built from different "
                f"models: {problem}",
                "compare them one after another",
            )
    return first


def find_source(
    source: Source, configured: str, given: str | None, work: WorkDir
) -> ResolvedSource:
    """The files that `source` records, on disk: at `given`, or where the build took them from.

    `configured` is what the build was told (a path, for directories and files). Raises SourceError
    if they are not there or their hashes differ.
    """
    text = given
    if text is None:
        is_local = source.kind in ("directory", "gguf")
        text = configured if is_local else source.location
        if source.kind == "hub":
            text = f"{source.location}@{source.revision}"
        if is_local and not Path(text).expanduser().exists():
            raise SourceError(
                f"the bundle was built from {text}, which is not there",
                "give the model with --source PATH",
            )
    found = resolve_source(text, work)
    if problem := source_difference(source, found.record(source.role)):
        raise SourceError(
            f"{text} is not what the bundle was built from: {problem}",
            "give the right model with --source PATH",
        )
    return found


def find_drafter(
    manifests: Sequence[Manifest], verifier: Source, given: str | None, work: WorkDir
) -> ResolvedSource | str:
    """The model that the first bundle with one drafts with, or why there is none to assist with.

    Raises SourceError for a model that is given and is not the recorded one.
    """
    for manifest in manifests:
        source = recorded(manifest, "drafter")
        if source is None:
            continue
        if source_difference(verifier, source) is None:
            return "not applicable, the bundle's drafter is part of the verifier"
        if isinstance(manifest.schedule.drafter, HeadDrafter):
            return "not applicable, the bundle's drafter is a head over the verifier"
        text = str(manifest.config.get("drafter", "")).removesuffix(PLUS_NGRAM)
        try:
            return find_source(source, text, given, work)
        except SourceError as error:
            if given is not None:
                raise
            return f"{error.message}; --drafter-source PATH gives it"
    return "not applicable, the bundle's drafter is no model"


def source_difference(wanted: Source, found: Source) -> str | None:
    """The first file that differs; a single file may have another name."""
    if len(wanted.files) == len(found.files) == 1:
        [one], [other] = wanted.files, found.files
        if one.sha256 == other.sha256:
            return None
        return f"sha256 is {other.sha256}, wanted {one.sha256}"
    hashes = {file.name: file.sha256 for file in found.files}
    for file in wanted.files:
        if hashes.get(file.name) != file.sha256:
            return (
                f"{file.name} has sha256 {hashes.get(file.name, 'none (no such file)')}, "
                f"wanted {file.sha256}"
            )
    return None
