"""One of the two bundles, as far as it is read without running it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yggrt.bundle import Bundle
from yggrt.cache import Cache
from yggrt.core.schema import Candidate, Manifest, Source
from yggrt.inspect import describe_bundle


@dataclass(frozen=True, slots=True)
class Side:
    """`described`: what `yggrt inspect` says of the bundle, in JSON types."""

    path: Path
    manifest: Manifest
    described: dict[str, Any]

    @property
    def digest(self) -> str:
        found: str = self.described["file"]["digest"]
        return found

    @property
    def chosen(self) -> Candidate | None:
        """What the search knew of the schedule's tree; None of one that was given."""
        schedule = self.manifest.schedule
        return next((one for one in schedule.candidates if one.tree == schedule.tree), None)

    def source(self, role: str) -> Source | None:
        """The record of the verifier's or the drafter's source."""
        return next((one for one in self.manifest.sources if one.role == role), None)


def read_side(path: Path, cache: Cache) -> Side:
    """Opens and checks a bundle and reads all but its weights; or BundleError."""
    with Bundle.open(path, cache=cache) as bundle:
        return Side(path, bundle.manifest, describe_bundle(bundle))
