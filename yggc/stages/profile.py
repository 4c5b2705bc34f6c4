"""profile: compile the candidate graphs and time each over contexts; what is timed is what is
shipped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import torch

from yggc.aot import GLUE_ISA
from yggc.context import Context
from yggc.errors import RecipeError
from yggc.stages.adapt import AdaptedModel
from yggc.stages.graphs import bind_graphs, graph_jobs
from yggc.stages.load import Loaded
from yggc.workdir import hash_inputs
from yggrt.busy import BUSY_SHARE
from yggrt.core.schema import LatencyPoint, ProfileNotes, Record, Target
from yggrt.measure import (
    drafter_passes,
    profile_warnings,
    spread_contexts,
    time_passes,
    verifier_passes,
)
from yggrt.measure_host import measure_flops, measure_read_bandwidth
from yggrt.target import host_target

NUM_ROUNDS = 5
BUDGET_S = 60.0
PROFILE_FORMAT = 1


class Profile(Record, frozen=True):
    """The machine, with what was measured of it, and the time of a pass by rows and context."""

    target: Target
    latency: tuple[LatencyPoint, ...]
    notes: ProfileNotes


class Fingerprint(Record, frozen=True):
    """What a profile is good for: this device and number of threads, and graphs of this content
    (digests by name)."""

    device: str
    num_threads: int
    graphs: dict[str, str]
    format: int = PROFILE_FORMAT

    @property
    def digest(self) -> str:
        return hash_inputs(msgspec.to_builtins(self))


class SavedProfile(Record, frozen=True):
    """A profile as `yggc profile` writes it; `digest` is the fingerprint's."""

    digest: str
    fingerprint: Fingerprint
    profile: Profile


def fingerprint(context: Context, loaded: Loaded, adapted: AdaptedModel) -> Fingerprint:
    """What a profile of this build would be good for, on this machine."""
    threads = context.config.threads
    return Fingerprint(
        device=host_target(threads).tuned_for.device,
        num_threads=threads,
        graphs={job.name: job.key for job in graph_jobs(context, loaded, adapted)},
    )


def key(context: Context, loaded: Loaded, adapted: AdaptedModel) -> Any:
    threads = context.config.threads
    jobs = [job.key for job in graph_jobs(context, loaded, adapted)]
    saved = ""
    if context.config.profile:
        saved = hashlib.sha256(_read(Path(context.config.profile))).hexdigest()
    return [jobs, threads, host_target(threads), saved]


def run(context: Context, out: Path, loaded: Loaded, adapted: AdaptedModel) -> Profile:
    if context.config.profile:
        wanted = fingerprint(context, loaded, adapted)
        return read_profile(Path(context.config.profile), wanted)
    threads = context.config.threads
    bound = bind_graphs(context, loaded, adapted)
    torch.set_num_threads(threads)
    rows = [r for r in context.config.buckets if r in bound.graphs.row_counts]
    passes = verifier_passes(bound.graphs, rows)
    if bound.draft is not None:
        passes += drafter_passes(bound.draft)
    with context.reporter.stage("time graphs") as progress:
        measured = time_passes(
            passes,
            spread_contexts(adapted.model.max_model_len),
            NUM_ROUNDS,
            budget_s=BUDGET_S,
            on_pass=progress.advance,
        )
    notes = measured.notes(bound.specs)
    for line in profile_warnings(notes):
        context.reporter.say(line)
    return Profile(
        target=_measured_target(context, threads),
        latency=measured.points(bound.specs),
        notes=notes,
    )


def reusable(profile: Profile) -> bool:
    """Whether another build may go by these times: not if others used the machine meanwhile."""
    return (profile.notes.busy_share or 0.0) <= BUSY_SHARE


def write_profile(path: Path, found: Fingerprint, profile: Profile) -> None:
    """Raises RecipeError if the file cannot be written."""
    saved = SavedProfile(digest=found.digest, fingerprint=found, profile=profile)
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(saved, order="sorted")) + b"\n")
    except OSError as error:
        raise RecipeError(
            f"{path}: cannot be written: {error.strerror}", "name another file with -o"
        ) from error


def read_profile(path: Path, wanted: Fingerprint) -> Profile:
    """The profile in a file of `yggc profile`; RecipeError if it is not one or was measured on
    another machine, with other threads or of other graphs."""
    try:
        saved = msgspec.json.decode(_read(path), type=SavedProfile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecipeError(
            f"{path}: is no profile: {error}", "write one with `yggc profile … -o FILE`"
        ) from error
    found = saved.fingerprint
    if found == wanted and saved.digest == wanted.digest:
        return saved.profile
    parts = ("format", "device", "num_threads", "graphs")
    what = [part for part in parts if getattr(found, part) != getattr(wanted, part)]
    raise RecipeError(
        f"{path}: fingerprint {saved.digest[:16]}, wanted {wanted.digest[:16]}: "
        f"{' and '.join(what) or 'digest'} differ",
        "measure this build on this machine: `yggc profile` with the same options, or leave out "
        "--profile",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecipeError(
            f"profile {path}: cannot be read: {error.strerror or error}",
            "write one with `yggc profile … -o FILE`, or leave out --profile",
        ) from error


def _measured_target(context: Context, threads: int) -> Target:
    """This host, its ISA narrowed to what the code uses, its bandwidth and arithmetic measured."""
    host = host_target(threads)
    used = set(context.library.isa_flags) | (
        set(GLUE_ISA) if host.must_match.machine == "x86_64" else set()
    )
    return Target(
        name=context.config.target,
        must_match=msgspec.structs.replace(host.must_match, isa=tuple(sorted(used))),
        tuned_for=msgspec.structs.replace(
            host.tuned_for,
            read_bandwidth=measure_read_bandwidth(threads),
            flops=measure_flops(threads),
        ),
    )
