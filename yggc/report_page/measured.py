"""The JSON of `yggrt bench`, of `yggc compare`, of libraries and of policies, and of `yggc train
depth`, as far as a report reads it, checked to be of the report's bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from yggrt.core.errors import RequestError
from yggrt.core.schema import DepthPredictor

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
    drafter: str | None = None
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


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its best setting. `speedup`: over plain decoding; `behind`: its time over that
    of the reference."""

    policy: str
    tree: str
    tpot_ms: float
    mean_acceptance_length: float
    speedup: float
    speedup_interval: Interval
    behind: float
    behind_interval: Interval


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    mean_acceptance_length: float


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Policies that verify at most `rows` rows."""

    rows: int
    policies: tuple[BudgetRow, ...]


class LadderRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder. `gain`: time of the step before over this one's."""

    step: str
    tree: str
    tpot_ms: float
    mean_acceptance_length: float
    speedup: float
    speedup_interval: Interval
    gain: float
    gain_interval: Interval


class AtTemperature(msgspec.Struct, frozen=True, kw_only=True):
    temperature: float
    policies: tuple[PolicyRow, ...]
    budgets: tuple[Budget, ...] = ()
    ladder: tuple[LadderRow, ...] = ()


class Refused(msgspec.Struct, frozen=True):
    policy: str
    reason: str


class ComparedPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """What `yggc compare --policies --json` prints."""

    bundle: str
    digest: str
    temperatures: tuple[AtTemperature, ...]
    reference: str
    prompts: tuple[str, ...]
    num_tokens: int
    refused: tuple[Refused, ...] = ()
    busy_share: float | None = None


class Scores(msgspec.Struct, frozen=True):
    log_loss: float
    tpot_ms: float


class Ablation(msgspec.Struct, frozen=True):
    """Hazards of one origin; `log_loss` None where nothing is predicted."""

    name: str
    log_loss: float | None
    tpot_ms: float


class Category(msgspec.Struct, frozen=True):
    """A prompt set, with the same hazards for every pass and with the predictor's."""

    category: str
    num_traces: int
    constant: Scores
    hidden: Scores


class SurvivalBin(msgspec.Struct, frozen=True):
    predicted: float
    observed: float
    num: int


class SurvivalAtDepth(msgspec.Struct, frozen=True):
    depth: int
    bins: tuple[SurvivalBin, ...]


class TrainedDepth(msgspec.Struct, frozen=True, kw_only=True):
    """What `yggc train depth --json` prints; times in ms."""

    predictor: DepthPredictor
    ablations: tuple[Ablation, ...]
    fixed_depth_ms: tuple[float, ...]
    reliability: tuple[SurvivalAtDepth, ...]
    categories: tuple[Category, ...]
    measured_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a report has beside the bundle."""

    benches: list[Bench] = field(default_factory=list)
    runtimes: list[Compared] = field(default_factory=list)
    policies: list[ComparedPolicies] = field(default_factory=list)
    depths: list[TrainedDepth] = field(default_factory=list)


class _Kind(msgspec.Struct):
    """Which of the two comparisons a file holds."""

    temperatures: msgspec.Raw = msgspec.Raw()


Report = TypeVar("Report", Bench, Compared, ComparedPolicies, TrainedDepth, _Kind)


def read_measured(
    benches: Sequence[Path],
    comparisons: Sequence[Path],
    name: str,
    digest: str,
    depths: Sequence[Path] = (),
    predictor: DepthPredictor | None = None,
) -> Measured:
    """What the files hold; RequestError if one holds something else, or of another bundle than
    that of this name, digest and depth predictor."""
    bench, compare = "yggrt bench FILE --json", "yggc compare FILE --json"
    found = Measured()
    for path in benches:
        one = _read(path, Bench, bench)
        _check(path, bench, [(one.bundle, one.digest)], name, digest)
        if one.drafter is not None:
            raise RequestError(
                f"{path}: the drafter was {one.drafter}, wanted the bundle's own",
                "run `yggrt bench` without --drafter",
            )
        found.benches.append(one)
    for path in comparisons:
        if _read(path, _Kind, compare).temperatures:
            policies = _read(path, ComparedPolicies, compare)
            _check(path, compare, [(policies.bundle, policies.digest)], name, digest)
            found.policies.append(policies)
        else:
            runtimes = _read(path, Compared, compare)
            bundles = [(one.name, one.digest) for one in runtimes.bundles]
            _check(path, compare, bundles, name, digest)
            found.runtimes.append(runtimes)
    for path in depths:
        trained = _read(path, TrainedDepth, "yggc train depth FILE -o NEW --json")
        if trained.predictor != predictor:
            raise RequestError(
                f"{path}: is of another depth predictor than that of {name}"
                + (", which has none" if predictor is None else ""),
                "give what `yggc train depth --json` printed when it wrote this bundle",
            )
        found.depths.append(trained)
    return found


def _check(
    path: Path, command: str, bundles: Sequence[tuple[str, str]], name: str, digest: str
) -> None:
    if not all(found for _, found in bundles) or not bundles:
        raise RequestError(
            f"{path}: does not say by a digest which bundle it is of", f"run `{command}` again"
        )
    if digest not in (found for _, found in bundles):
        of = ", ".join(f"{one} ({found[:_SHOWN_DIGITS]})" for one, found in bundles)
        raise RequestError(
            f"{path}: is of {of}, the report is of {name} ({digest[:_SHOWN_DIGITS]})",
            "give files that were made with the bundle of the report",
        )


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
