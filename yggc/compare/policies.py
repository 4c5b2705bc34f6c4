"""Tree policies of one bundle on the same prompts: the same engine, drafter and graphs.

Each policy runs with the setting that replays of the bundle's calibration answers find fastest;
the prompts that are timed have no part in that. Their answers are then replayed with every policy
at equal numbers of verified rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from yggc.simulate import Simulator, check_replayable, room_of, unseen_seconds, within
from yggrt.bench_report import percentile
from yggrt.bundle import Bundle
from yggrt.busy import BusyMeter
from yggrt.cache import Cache
from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.passes import DraftGraphs
from yggrt.core.schema import TreeSpec
from yggrt.core.search import PLAIN
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.drafters import UNLIMITED
from yggrt.drafters.calibrate import Recording
from yggrt.interval import mean_ratio
from yggrt.loading import load_draft_graphs, load_parts, open_session
from yggrt.policies import Room, settings_of
from yggrt.recordings import bundle_folds, folds_of, with_needed_hidden
from yggrt.sampling.noise import KeyedNoise
from yggrt.session import Completion, Parts, Session
from yggrt.target import host_target
from yggrt.verify import first_difference

SEED = 0
WARMUP_TOKENS = 8
# Calibration answers that are decoded again at a temperature.
NUM_CALIBRATION = 12
REFERENCE = "egt"
# The steps of the ladder and the policy of each; those in the middle draft in every pass and
# verify every row.
LADDER = {PLAIN: PLAIN, "chain": "sequence", "tree": "egt", "pruned tree": "egt"}
UNPRUNED = ("chain", "tree")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. `prompts`: names and ids; `budgets`: rows to verify at most; `ladder`:
    what chains, trees and pruning add one by one."""

    names: tuple[str, ...]
    prompts: Sequence[tuple[str, list[int]]]
    num_tokens: int
    temperatures: tuple[float, ...]
    budgets: tuple[int, ...]
    num_threads: int | None
    ladder: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding, with an engine and a gate of its own."""

    spec: TreeSpec
    session: Session
    gated: bool = True


@dataclass(slots=True)
class Timing:
    """What a way of decoding did to every prompt; the quicker of the two runs of each counts."""

    tpots_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_passes: int = 0

    def add(self, runs: Sequence[Completion]) -> None:
        best = min(runs, key=_tpot_ms)
        self.tpots_ms.append(_tpot_ms(best))
        self.num_tokens += len(best.ids) - 1
        self.num_passes += best.stats.num_passes


def compare_policies(
    bundle: Bundle,
    cache: Cache,
    request: Request,
    *,
    on_note: Progress = lambda text: None,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """The report in JSON types; times in ms. Raises RequestError if not one policy fits, and
    CheckFailed if one changes a token."""
    check_replayable(bundle.manifest)
    parts = load_parts(
        bundle, cache, num_threads=request.num_threads, mapped=False, on_note=on_note
    )
    room = room_of(bundle.manifest, parts)
    names, refused = _fitting(request.names, room, parts)
    if request.ladder:
        _, missing = _fitting(LADDER.values(), room, parts)
        if missing:
            raise RequestError(f"--ladder: {missing[0]['policy']}: {missing[0]['reason']}", "")
    draft = load_draft_graphs(bundle, cache)
    busy = BusyMeter()
    found = [
        _at_temperature(bundle, parts, draft, room, names, request, temperature, progress)
        for temperature in request.temperatures
    ]
    progress("")
    return {
        "bundle": bundle.manifest.name,
        "digest": bundle.digest,
        "prompts": [name for name, _ in request.prompts],
        "num_tokens": request.num_tokens,
        "num_threads": torch.get_num_threads(),
        "device": host_target().tuned_for.device,
        "reference": _reference(names),
        "refused": refused,
        "busy_share": busy.share(),
        "temperatures": found,
    }


def _settings(name: str, room: Room, parts: Parts) -> list[TreeSpec]:
    return [spec for spec in settings_of(name, room) if parts.holds(spec)]


def _fitting(
    names: Iterable[str], room: Room, parts: Parts
) -> tuple[list[str], list[dict[str, str]]]:
    names = tuple(names)
    fitting = [name for name in names if name != PLAIN and _settings(name, room, parts)]
    limited = room.max_expanded < UNLIMITED
    nodes = f" and a drafter's of {room.max_expanded} nodes" if limited else ""
    why = (
        f"no tree of it fits verify graphs of {room.max_rows} rows{nodes}; build with a larger "
        f"--max-verify{' or --drafter-widths' if limited else ''}"
    )
    refused = [{"policy": name, "reason": why} for name in names if name not in (*fitting, PLAIN)]
    if not fitting:
        raise RequestError(f"no policy of {', '.join(names)} has a tree: {why}", "")
    return fitting, refused


def _at_temperature(
    bundle: Bundle,
    parts: Parts,
    draft: DraftGraphs | None,
    room: Room,
    names: Sequence[str],
    request: Request,
    temperature: float,
    progress: Progress,
) -> dict[str, Any]:
    progress(f"T = {temperature:g}: calibration answers")
    known = _calibrated(bundle, parts, draft, temperature)
    steps = LADDER if request.ladder else {}
    ways: dict[str, Way] = {}
    for title, name in {**{name: name for name in (PLAIN, *names)}, **steps}.items():
        gated = title not in UNPRUNED
        spec = known.fastest(
            _settings(name, room, parts), lambda tree: progress(f"simulate {tree}"), gated=gated
        )
        ways[title] = Way(spec, open_session(bundle, parts, spec), gated)
    options = _options(temperature)
    probe = request.prompts[0][1]
    for way in ways.values():
        way.session.generate(probe, max_tokens=WARMUP_TOKENS, gated=way.gated, **options)
    timings, recordings = _take_turns(ways, request, options, progress)
    if request.budgets:
        recordings = with_needed_hidden(bundle.manifest, parts.graphs, recordings, draft)
    said = replace(known, folds=[(parts.drafter, recordings)])
    return {
        "temperature": temperature,
        "policies": _rows((PLAIN, *names), ways, timings, _reference(names)),
        "ladder": _ladder(tuple(steps), ways, timings),
        "budgets": [
            {"rows": rows, "policies": _at_budget(known, said, names, room, rows, progress)}
            for rows in request.budgets
            if rows <= room.max_rows
        ],
    }


def _calibrated(
    bundle: Bundle, parts: Parts, draft: DraftGraphs | None, temperature: float
) -> Simulator:
    """Over the calibration answers, at a temperature made anew, with drafters that have not seen
    them."""
    manifest = bundle.manifest
    unseen_s = unseen_seconds(manifest)
    recorded = manifest.schedule.recordings
    if not temperature or not recorded:
        return Simulator(
            parts, bundle_folds(bundle, parts.graphs, float("inf"), draft=draft), unseen_s
        )
    session = open_session(bundle, parts, parse_tree_spec(manifest.schedule.tree))
    answers = [
        Recording(
            one.prompt_ids,
            session.generate(
                one.prompt_ids, max_tokens=len(one.output_ids), **_options(temperature)
            ).ids,
        )
        for one in recorded[:NUM_CALIBRATION]
    ]
    folds = folds_of(manifest, parts.graphs, answers, draft)
    return Simulator(parts, folds, unseen_s, KeyedNoise(SEED, 0, temperature))


def _take_turns(
    ways: dict[str, Way], request: Request, options: dict[str, Any], progress: Progress
) -> tuple[dict[str, Timing], list[Recording]]:
    """Every way on every prompt, forwards and then backwards."""
    timings = {name: Timing() for name in ways}
    recordings = []
    for number, (title, ids) in enumerate(request.prompts, 1):
        runs: dict[str, list[Completion]] = {name: [] for name in ways}
        for name in (*ways, *reversed(ways)):
            progress(f"{number}/{len(request.prompts)} {title}: {name}")
            done = ways[name].session.generate(
                ids, max_tokens=request.num_tokens, gated=ways[name].gated, **options
            )
            runs[name].append(done)
            index = first_difference(runs[PLAIN][0].ids, done.ids)
            if index is not None:
                raise CheckFailed(
                    f"{name}, prompt {title}: token {index} is not that of plain decoding",
                    "`yggrt verify --prompts` shows the tokens and how close they are",
                )
        recordings.append(Recording(ids, runs[PLAIN][0].ids))
        for name, some in runs.items():
            timings[name].add(some)
    return timings, recordings


def _at_budget(
    known: Simulator,
    said: Simulator,
    names: Sequence[str],
    room: Room,
    rows: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Mean acceptance lengths with at most `rows` verified rows and no gate: the setting is chosen
    on the calibration answers, the length is that of the prompts."""
    found = []
    for name in names:
        settings = [
            spec
            for spec in _settings(name, within(room, rows), known.parts)
            if known.parts.resolve(spec).verify <= rows
        ]
        if not settings:
            continue
        best, _ = known.longest(settings, lambda tree: progress(f"{rows} rows: {tree}"))
        length = said.replay(best, gated=False).mean_acceptance_length
        tree = format_tree_spec(best)
        found.append({"policy": name, "tree": tree, "mean_acceptance_length": length})
    return sorted(found, key=lambda one: -one["mean_acceptance_length"])


def _rows(
    names: Sequence[str], ways: dict[str, Way], timings: dict[str, Timing], reference: str
) -> list[dict[str, Any]]:
    """By time per token. `behind`: time over the reference's."""
    rows = [
        {
            "policy": name,
            **_described(ways[name], timings[name], timings[PLAIN]),
            **mean_ratio("behind", timings[name].tpots_ms, timings[reference].tpots_ms),
        }
        for name in names
    ]
    return sorted(rows, key=lambda row: row["tpot_ms"])


def _ladder(
    steps: Sequence[str], ways: dict[str, Way], timings: dict[str, Timing]
) -> list[dict[str, Any]]:
    """In the order of the steps. `gain`: time of the step before over this one's."""
    return [
        {
            "step": step,
            **_described(ways[step], timings[step], timings[PLAIN]),
            **mean_ratio("gain", timings[before].tpots_ms, timings[step].tpots_ms),
        }
        for before, step in zip((PLAIN, *steps), steps, strict=False)
    ]


def _described(way: Way, timing: Timing, plain: Timing) -> dict[str, Any]:
    """`speedup`: over plain decoding."""
    return {
        "tree": format_tree_spec(way.spec),
        "tpot_ms": median(timing.tpots_ms),
        "tpot_p95_ms": percentile(timing.tpots_ms, 95),
        "mean_acceptance_length": timing.num_tokens / timing.num_passes,
        **mean_ratio("speedup", plain.tpots_ms, timing.tpots_ms),
    }


def _reference(names: Sequence[str]) -> str:
    return REFERENCE if REFERENCE in names else names[0]


def _options(temperature: float) -> dict[str, Any]:
    seed = SEED if temperature else None
    return {"temperature": temperature, "seed": seed, "ignore_eos": True}


def _tpot_ms(done: Completion) -> float:
    assert done.stats.tpot_ms is not None, "outputs go on to the last token asked for"
    return done.stats.tpot_ms
