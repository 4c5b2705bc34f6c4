"""Which fields of two records differ, and which of those only measuring can tell apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from yggrt.core.schema import Manifest

# What a clock made: two builds of the same inputs differ in it.
MEASURED_TABLES = ("latency", "profile")
MEASURED_TARGET = ("read_bandwidth", "flops")
MEASURED_SCHEDULE = ("rest_s", "stage_s", "rate", "candidates")

Pair = list[Any]


def changed(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Pair]:
    """The old and the new value of each field that differs, by its dotted name; None where one
    has no such field. Lists are compared whole."""
    before, after = dict(_flat(old or {})), dict(_flat(new or {}))
    return {
        name: [before.get(name), after.get(name)]
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


def differing(old: Manifest, new: Manifest) -> list[str]:
    """Dotted names of the manifest's fields that differ and were not measured; a member of the
    bundle differs in its `sha256`."""
    return list(changed(_unmeasured(old), _unmeasured(new)))


def _unmeasured(manifest: Manifest) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    for name in MEASURED_TABLES:
        del plain[name]
    for name in MEASURED_TARGET:
        del plain["target"]["tuned_for"][name]
    for name in MEASURED_SCHEDULE:
        del plain["schedule"][name]
    # Offsets count from the start of the file, where the manifest lies with all its numbers.
    start = min((one["offset"] for one in plain["weights"].values()), default=0)
    for one in plain["weights"].values():
        one["offset"] -= start
    return plain


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, one in value.items():
        name = f"{prefix}{key}"
        if isinstance(one, Mapping) and one:
            yield from _flat(one, f"{name}.")
        else:
            yield name, one
