"""The JSON of `yggrt bench` and `yggc compare`, as far as a report reads it, checked to be of the
report's bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from yggrt.core.errors import RequestError

Interval = tuple[float, float] | None
_SHOWN_DIGITS = 16


class Promised(msgspec.Struct, frozen=True):
    """Passes that promised about as much, added up."""

    num_passes: int
    expected: float
    accepted: int


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way of decoding in a bench; times in ms."""

    tpot_ms: float
    mean_acceptance_length: float
    num_passes: int
    accepted: int
    acceptance_per_depth: tuple[float, ...]
    tests_per_depth: tuple[int, ...]
    acceptance_per_rank: tuple[float, ...] = ()
    tests_per_rank: tuple[int, ...] = ()
    promised: tuple[Promised, ...] = ()
    num_gated_passes: int = 0
    spec: str = "plain"


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What `yggrt bench --json` prints. `digest`: of the bundle, "" before it was recorded."""

    bundle: str
    plain: Way
    tree: Way
    speedup: float
    speedup_interval: Interval
    num_prompts: int
    num_tokens: int
    digest: str = ""
    busy_share: float | None = None
    interrupted: bool = False


class ComparedBundle(msgspec.Struct, frozen=True):
    name: str
    digest: str


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    tpot_ms: float
    ratio: float
    ratio_interval: Interval
    is_bundle: bool
    mean_acceptance_length: float | None = None


class Missing(msgspec.Struct, frozen=True):
    title: str
    reason: str


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What `yggc compare --json` prints; ratios are against the row `reference`."""

    rows: tuple[ComparedRow, ...]
    reference: str
    prompts: tuple[str, ...]
    num_tokens: int
    bundles: tuple[ComparedBundle, ...] = ()
    missing: tuple[Missing, ...] = ()
    date: str = ""
    interrupted: bool = False


Report = TypeVar("Report", Bench, Compared)


def read_bench(path: Path, name: str, digest: str) -> Bench:
    """The bench in a file; RequestError if it is none, or of another bundle than that of this name
    and digest."""
    found = _read(path, Bench, "yggrt bench FILE --json")
    if not found.digest:
        raise _unmarked(path, "yggrt bench FILE --json")
    if found.digest != digest:
        raise _other(path, [(found.bundle, found.digest)], name, digest)
    return found


def read_comparison(path: Path, name: str, digest: str) -> Compared:
    """As `read_bench`, of a comparison in which the bundle takes part."""
    found = _read(path, Compared, "yggc compare FILE --json")
    if not found.bundles:
        raise _unmarked(path, "yggc compare FILE --json")
    if digest not in (one.digest for one in found.bundles):
        raise _other(path, [(one.name, one.digest) for one in found.bundles], name, digest)
    return found


def _read(path: Path, kind: type[Report], command: str) -> Report:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be read: {error.strerror or error}", f"make it with `{command} > ...`"
        ) from error
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise RequestError(
            f"{path}: is not what `{command}` prints: {error}", f"make it with `{command} > ...`"
        ) from error


def _unmarked(path: Path, command: str) -> RequestError:
    return RequestError(
        f"{path}: does not say by a digest which bundle it is of", f"run `{command}` again"
    )


def _other(path: Path, bundles: list[tuple[str, str]], name: str, digest: str) -> RequestError:
    found = ", ".join(f"{one} ({what[:_SHOWN_DIGITS]})" for one, what in bundles)
    return RequestError(
        f"{path}: is of {found}, the report is of {name} ({digest[:_SHOWN_DIGITS]})",
        "give files that were made with the bundle of the report",
    )
