"""Whether a bundle's times and acceptance hold on this machine, and what to do where they do not.

docs/troubleshooting.md follows the findings line by line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from yggrt.bundle import Bundle
from yggrt.busy import BUSY_SHARE, BusyMeter
from yggrt.cache import Cache
from yggrt.core.errors import CheckFailed
from yggrt.core.objective import Objective, speedup
from yggrt.core.schema import Manifest
from yggrt.core.search import PLAIN
from yggrt.cores import usable_processors
from yggrt.latency import LatencyTable, Surface
from yggrt.loading import choose_threads, load_draft_graphs, load_graphs
from yggrt.measure import describe_jump, table_jumps, time_passes, verifier_passes
from yggrt.policies import tree_in
from yggrt.recordings import bundle_folds
from yggrt.scheduling import Costs, Run, measure_trees
from yggrt.target import check_target, host_target
from yggrt.tune import verify_rows

# T(V) / T(1) may differ from the manifest's by this much before choices are wrong.
CURVE_TOLERANCE = 0.25
HOST_SHARE = 0.1
IDLE_SHARE = 0.2
ACCEPTANCE_SHARE = 0.8
PROFILE_S = 8.0
RECORD_S = 6.0
MEASURE_S = 10.0
NUM_ROUNDS = 4
RETUNE = "run `yggrt tune FILE -o NEW.ygg` on this machine"

Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `wrong` means that the schedule should be chosen again."""

    name: str
    verdict: Verdict
    found: str
    advice: str
    values: dict[str, Any]

    def lines(self) -> Iterator[str]:
        yield f"{self.verdict:5}  {self.name}: {self.found}"
        if self.verdict != "ok":
            yield f"       {self.advice}"


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, in the order of docs/troubleshooting.md."""

    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": all(one.verdict != "wrong" for one in self.findings),
            "findings": [asdict(one) for one in self.findings],
        }

    def lines(self) -> Iterator[str]:
        for one in self.findings:
            yield from one.lines()

    def check(self) -> None:
        """Raises CheckFailed if a finding is wrong."""
        wrong = [one for one in self.findings if one.verdict == "wrong"]
        if wrong:
            raise CheckFailed(
                f"{len(wrong)} of {len(self.findings)} findings are wrong, the first: "
                f"{wrong[0].name}: {wrong[0].found}",
                wrong[0].advice,
            )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured. `plain` and `tree` decoded the same tokens in turns."""

    manifest: Manifest
    here: LatencyTable
    plain: Run
    tree: Run
    busy_share: float
    idle_share: float
    num_threads: int
    weights_bytes: int
    huge_bytes: int
    mapped: bool


def examine(
    bundle: Bundle,
    cache: Cache,
    *,
    num_threads: int | None = None,
    mapped: bool = False,
    on_note: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measures for about half a minute. Raises TargetError for a machine that the bundle does not
    run on."""
    manifest = bundle.manifest
    check_target(manifest.target, host_target())
    threads = choose_threads(num_threads, manifest.target.tuned_for)
    graphs = load_graphs(bundle, cache, num_threads=threads, mapped=mapped, on_note=on_note)
    huge_bytes = huge_page_bytes()
    progress("time graphs")
    busy = BusyMeter()
    contexts = sorted({point.context for point in manifest.latency})
    passes = [
        one
        for one in verifier_passes(graphs, verify_rows(manifest, graphs.row_counts))
        if one.kind != "prefill"
    ]
    measured = time_passes(passes, contexts[:2], NUM_ROUNDS, budget_s=PROFILE_S)
    here = LatencyTable.of(measured.points(manifest.graphs), manifest.graphs)
    folds = bundle_folds(bundle, graphs, RECORD_S, progress, load_draft_graphs(bundle, cache))
    schedule = manifest.schedule
    table = LatencyTable.of(manifest.latency, manifest.graphs)
    costs = Costs(table, schedule.rest_s, schedule.rest_s, table.draft_step)
    ways = [] if schedule.tree == PLAIN else [schedule.tree]
    processor_s, wall_s = time.process_time(), time.perf_counter()
    runs = measure_trees(
        graphs,
        [(drafter, list(islice(recordings, 4))) for drafter, recordings in folds],
        ways,
        costs,
        Objective(schedule.objective, schedule.rate),
        manifest.model.eos_ids,
        MEASURE_S,
        progress,
        schedule.ranks,
    )
    processor_s = time.process_time() - processor_s
    wall_s = time.perf_counter() - wall_s
    progress("")
    return diagnose(
        Evidence(
            manifest=manifest,
            here=here,
            plain=runs.get(PLAIN, Run()),
            tree=runs.get(schedule.tree, Run()),
            busy_share=busy.share(),
            idle_share=max(0.0, 1 - processor_s / (wall_s * threads)),
            num_threads=threads,
            weights_bytes=sum(spec.num_bytes for spec in manifest.weights.values()),
            huge_bytes=huge_bytes,
            mapped=mapped,
        )
    )


def diagnose(seen: Evidence) -> Report:
    """The findings of what was measured."""
    findings = [_busy(seen), _threads(seen), _memory(seen), _curve(seen), _jumps(seen)]
    if seen.plain.num_passes and seen.tree.num_passes and seen.manifest.schedule.tree != PLAIN:
        findings += [_drafting(seen), _acceptance(seen), _break_even(seen)]
    if seen.tree.num_passes:
        findings += [_host(seen), _idle(seen)]
    return Report(tuple(findings))


def huge_page_bytes() -> int:
    """This process's memory in anonymous huge pages; 0 where the system does not say."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(fields.get("AnonHugePages", "0 kB").split()[0]) * 1024


def _busy(seen: Evidence) -> Finding:
    share = seen.busy_share
    return Finding(
        "other processes",
        "note" if share > BUSY_SHARE else "ok",
        f"took {share:.0%} of the processors' time meanwhile",
        "what follows is unreliable: stop them or come back on a quiet machine",
        {"busy_share": share},
    )


def _threads(seen: Evidence) -> Finding:
    cores = usable_processors()
    tuned = seen.manifest.target.tuned_for.num_threads
    found = f"{seen.num_threads} threads, {cores} usable processors, tuned for {tuned} threads"
    values = {"num_threads": seen.num_threads, "num_cores": cores, "tuned_for": tuned}
    if seen.num_threads > cores:
        advice = f"threads wait for each other: run with --threads {cores}"
        return Finding("threads", "wrong", found, advice, values)
    verdict: Verdict = "ok" if seen.num_threads == tuned else "note"
    advice = f"times are of {tuned} threads: run with as many, or {RETUNE}"
    return Finding("threads", verdict, found, advice, values)


def _memory(seen: Evidence) -> Finding:
    share = seen.huge_bytes / seen.weights_bytes
    values = {"huge_bytes": seen.huge_bytes, "weights_bytes": seen.weights_bytes}
    if seen.mapped:
        found, advice = "the weights stay in the mapped file", "leave out --mapped where memory is"
        return Finding("huge pages", "note", found, advice, values)
    return Finding(
        "huge pages",
        "ok" if share > 0.9 else "note",
        f"{seen.huge_bytes / 1e6:.0f} MB for weights of {seen.weights_bytes / 1e6:.0f} MB",
        "passes read memory more slowly: set /sys/kernel/mm/transparent_hugepage/enabled to "
        "madvise, and leave memory free",
        values,
    )


def _curve(seen: Evidence) -> Finding:
    """T(V) / T(1) here over the manifest's: what the choice of rows rests on."""
    then, here = _surfaces(seen)
    context = here.contexts[0]
    verify = tree_in(seen.manifest, seen.manifest.schedule.tree).verify
    used = [rows for rows in here.rows if rows <= max(verify, 1)] or [1]
    curves = {
        name: {rows: one(rows, context) / one(1, context) for rows in here.rows}
        for name, one in (("here", here), ("manifest", then))
    }
    ratios = {rows: curves["here"][rows] / curves["manifest"][rows] for rows in here.rows}
    worst = max(used, key=lambda rows: abs(ratios[rows] - 1))
    plain = here(1, context) / then(1, context)
    rest = [
        f"{rows} rows take {curves['here'][rows]:.2f} of it (manifest: {wanted:.2f})"
        for rows, wanted in curves["manifest"].items()
        if rows > 1
    ]
    first = f"{1e3 * here(1, context):.2f} ms, {plain:.2f} of the manifest's"
    found = "; ".join([f"a plain pass takes {first}", *rest])
    wrong = abs(ratios[worst] - 1) > CURVE_TOLERANCE
    values = {**curves, "plain_ratio": plain, "worst_rows": worst, "worst_ratio": ratios[worst]}
    return Finding("time of a pass", "wrong" if wrong else "ok", found, RETUNE, values)


def _surfaces(seen: Evidence) -> tuple[Surface, Surface]:
    then = LatencyTable.of(seen.manifest.latency, seen.manifest.graphs)
    return then.surfaces["verify"], seen.here.surfaces["verify"]


def _jumps(seen: Evidence) -> Finding:
    known = {(one.axis, one.lower, one.upper) for one in seen.manifest.profile.jumps}
    new = [one for one in table_jumps(seen.here) if (one.axis, one.lower, one.upper) not in known]
    return Finding(
        "jumps",
        "note" if new else "ok",
        "; ".join(describe_jump(one) for one in new[:2]) or "none that the manifest lacks",
        "look for swapping, a machine that throttles or a busy one; if it stays, " + RETUNE,
        {"jumps": [(one.axis, one.at, one.lower, one.upper, one.ratio) for one in new]},
    )


def _drafting(seen: Evidence) -> Finding:
    """c: a drafted level's time over that of a plain pass."""
    depth = max(1, tree_in(seen.manifest, seen.manifest.schedule.tree).depth)
    plain_s = seen.plain.stage_s["verify"] / seen.plain.num_passes
    draft_s = seen.tree.stage_s["draft"] / seen.tree.num_passes
    cost = draft_s / depth / plain_s
    return Finding(
        "cost of drafting",
        "note" if draft_s > HOST_SHARE * plain_s else "ok",
        f"{1e3 * draft_s:.2f} ms for {depth} levels; a level is c = {cost:.3f} of a plain pass",
        "drafting is a large part of a pass: " + RETUNE,
        {"draft_s": draft_s, "cost_ratio": cost},
    )


def _acceptance(seen: Evidence) -> Finding:
    schedule = seen.manifest.schedule
    wanted = next(
        (c.mean_acceptance_length for c in schedule.candidates if c.tree == schedule.tree), None
    )
    found = f"{seen.tree.tokens_per_pass:.2f} tokens a pass, alpha {seen.tree.alpha:.2f}"
    values = {
        "mean_acceptance_length": seen.tree.tokens_per_pass,
        "alpha": seen.tree.alpha,
        "calibrated": wanted,
    }
    if wanted is None:
        return Finding("acceptance", "ok", found, "", values)
    low = seen.tree.tokens_per_pass - 1 < ACCEPTANCE_SHARE * (wanted - 1)
    return Finding(
        "acceptance",
        "note" if low else "ok",
        f"{found}; calibration had {wanted:.2f}",
        "these prompts are unlike those of the calibration: build with your own, --calibration",
        values,
    )


def _break_even(seen: Evidence) -> Finding:
    """Tokens a pass has to bring so that trees are no slower than plain decoding."""
    pass_s = seen.tree.seconds / seen.tree.num_passes
    needed = pass_s / seen.plain.token_s
    gain = speedup(seen.tree.tokens_per_pass, seen.plain.token_s, pass_s)
    return Finding(
        "break-even",
        "wrong" if seen.tree.token_s > seen.plain.token_s else "ok",
        f"a pass has to bring {needed:.2f} tokens and brings {seen.tree.tokens_per_pass:.2f}: "
        f"{gain:.2f} times plain decoding",
        f"trees are slower here: {RETUNE}, or run with --plain",
        {"needed": needed, "speedup": gain},
    )


def _host(seen: Evidence) -> Finding:
    run = seen.tree
    share = run.host_s * run.num_passes / run.seconds
    stages = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in run.stages_per_pass().items())
    return Finding(
        "host",
        "note" if share > HOST_SHARE else "ok",
        f"{share:.0%} of a pass, {1e3 * run.host_s:.2f} ms: {stages}",
        f"a smaller tree drafts in less: {RETUNE}",
        {"host_share": share, "stage_s": run.stages_per_pass()},
    )


def _idle(seen: Evidence) -> Finding:
    return Finding(
        "idle",
        "note" if seen.idle_share > IDLE_SHARE else "ok",
        f"this process's {seen.num_threads} threads had no processor to run on, or nothing to do, "
        f"{seen.idle_share:.0%} of the time",
        "threads wait: for other processes, for a container's processor limit, or for the "
        "disk where the weights are mapped",
        {"idle_share": seen.idle_share},
    )
