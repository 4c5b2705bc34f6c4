"""The compiler as one list of stages. Each takes the records before it and leaves a record and a
folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from yggc.config import BuildConfig
from yggc.context import Context
from yggc.errors import RecipeError
from yggc.report import BuildResult, Reporter
from yggc.stages import adapt, freeze, load, pack, profile, search
from yggc.stages.profile import Fingerprint, Profile
from yggc.workdir import WorkDir, hash_inputs
from yggrt import __version__
from yggrt.core.schema import Manifest, Record

RECORD_FILE = "record.json"


def _always(record: Any) -> bool:
    return True


class Stage(NamedTuple):
    """`key` says what the output depends on, `run` makes it; inputs are the records of all stages
    before. `reusable` says whether a later build may take a record as it is.
    """

    name: str
    record: type[Record]
    key: Callable[..., Any]
    run: Callable[..., Record]
    reusable: Callable[[Any], bool] = _always


STAGES = (
    Stage("load", load.Loaded, load.key, load.run),
    Stage("adapt", adapt.AdaptedModel, adapt.key, adapt.run),
    Stage("profile", profile.Profile, profile.key, profile.run, profile.reusable),
    Stage("search", search.Searched, search.key, search.run),
    Stage("freeze", freeze.Frozen, freeze.key, freeze.run),
)
STAGE_NAMES = (*(stage.name for stage in STAGES), "pack")


def build(config: BuildConfig, reporter: Reporter, stop_after: str | None = None) -> BuildResult:
    """Builds what `config` asks for; stages whose inputs have not changed are taken from the work
    directory.

    Raises the YggError of whatever the user can fix; then no bundle is written and finished stages
    are kept.
    """
    if stop_after is not None and stop_after not in STAGE_NAMES:
        raise RecipeError(
            f"--stop-after {stop_after!r}: no such stage", f"stages are {', '.join(STAGE_NAMES)}"
        )
    work = WorkDir(Path(config.work_dir))
    work.sweep()
    context = Context(config, work, reporter)
    records: list[Record] = []
    seconds: dict[str, float] = {}
    cached: list[str] = []
    for stage in STAGES:
        started = perf_counter()
        record, fresh = _run_stage(stage, context, records)
        records.append(record)
        seconds[stage.name] = perf_counter() - started
        if not fresh:
            cached.append(stage.name)
        if stage.name == stop_after:
            return BuildResult(
                config.name, None, {}, seconds, tuple(cached), stopped_after=stage.name
            )
    started = perf_counter()
    with reporter.stage("pack"):
        manifest = pack.run(context, *records)  # type: ignore[arg-type]
    seconds["pack"] = perf_counter() - started
    return _result(config, manifest, seconds, tuple(cached))


def profile_build(config: BuildConfig, reporter: Reporter) -> tuple[Fingerprint, Profile]:
    """Measures the graphs of a build anew, whatever an earlier build has kept, and says what the
    profile is good for."""
    work = WorkDir(Path(config.work_dir))
    work.sweep()
    context = Context(config, work, reporter)
    records: list[Any] = []
    for stage in STAGES[: STAGE_NAMES.index("profile")]:
        records.append(_run_stage(stage, context, records)[0])
    with reporter.stage("profile"):
        measured = profile.run(context, work.root, *records)
    return profile.fingerprint(context, *records), measured


def _run_stage(stage: Stage, context: Context, records: list[Record]) -> tuple[Record, bool]:
    """The stage's record, and whether it was made now."""
    inputs = hash_inputs([__version__, stage.name, stage.key(context, *records)])
    output = context.work.stage(stage.name, inputs)
    if output.done and not _is_reusable(stage, output.path):
        output.discard()
    fresh = not output.done

    def produce(folder: Path) -> None:
        with context.reporter.stage(stage.name):
            record = stage.run(context, folder, *records)
        (folder / RECORD_FILE).write_bytes(msgspec.json.encode(record))

    folder = output.ensure(produce)
    context.folders[stage.name] = folder
    return _read_record(stage, folder), fresh


def _is_reusable(stage: Stage, folder: Path) -> bool:
    """Also not for a record that another state of the compiler wrote and this one cannot read."""
    try:
        return stage.reusable(_read_record(stage, folder))
    except (OSError, msgspec.DecodeError):
        return False


def _read_record(stage: Stage, folder: Path) -> Record:
    record: Record = msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=stage.record)
    return record


def _result(
    config: BuildConfig, manifest: Manifest, seconds: dict[str, float], cached: tuple[str, ...]
) -> BuildResult:
    output = Path(config.output)
    weights = sum(spec.num_bytes for spec in manifest.weights.values())
    total = output.stat().st_size
    schedule = manifest.schedule
    best = (
        next(c for c in schedule.candidates if c.tree == schedule.tree)
        if any(c.tree == schedule.tree for c in schedule.candidates)
        else None
    )
    chosen: dict[str, Any] = {"tree": schedule.tree, "buckets": list(schedule.buckets)}
    if best is not None:
        chosen["predicted mean acceptance length"] = best.mean_acceptance_length
        chosen["predicted ms/token"] = best.tpot_ms
        chosen["predicted speedup"] = best.speedup
        if best.measured_tpot_ms is not None and best.measured_speedup is not None:
            chosen["measured ms/token"] = best.measured_tpot_ms
            chosen["measured speedup"] = best.measured_speedup
    sizes = {"weights": weights, "everything else": total - weights, "bundle": total}
    return BuildResult(config.name, output, sizes, seconds, cached, chosen)
