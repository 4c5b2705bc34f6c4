"""Stage plans: in which order, and beside what, the stages of one iteration run.

An iteration is a head draft (the root), body drafts, a tail draft (rows of the last step's leaves,
so that the drafter has them whatever is accepted), pruning, building the mask, verifying,
accepting and committing key and value rows. Guan et al., "Yggdrasil" (arXiv 2512.23858), give the
stages and the two drafts ahead of time; the axes and rules are this project's. A plan never
changes what is emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, get_args

import msgspec

from yggrt.core.errors import RequestError
from yggrt.core.schema import Plan, TreeSpec

# What drafts: `lm` a language model with rows of its own, `eagle` a head whose accepted rows are
# computed again with the next root, `none` anything without passes of its own.
DraftKind = Literal["lm", "eagle", "none"]
Device = Literal["cpu", "cuda"]
Place = Literal["host", "stream 0", "stream 1"]

_AXES: dict[str, tuple[str, ...]] = {
    field.name: get_args(field.type) for field in msgspec.structs.fields(Plan)
}
# One stream, graphs that are called one by one, acceptance in Python.
_CPU: dict[str, tuple[str, ...]] = {
    "tail": ("conditional", "ahead"),
    "head": ("late", "post_verify"),
    "head_rows": ("1", "4", "all"),
    "accept": ("host",),
    "prune": ("off", "host"),
    "streams": ("1",),
    "graph": ("stage",),
    "commit": ("now", "deferred"),
    "wait": ("block",),
    "mask": ("host",),
}
_CUDA = _AXES | {"commit": ("now", "beside", "remap")}
AXES: dict[Device, Mapping[str, tuple[str, ...]]] = {"cpu": _CPU, "cuda": _CUDA}


def plans(kind: DraftKind, device: Device) -> list[Plan]:
    """Every valid plan in its canonical form, each once, in the order of the axes."""
    axes = AXES[device]
    found = (
        canonical(Plan(**dict(zip(axes, values, strict=True))), kind)  # type: ignore[arg-type]
        for values in product(*axes.values())
    )
    return list(dict.fromkeys(plan for plan in found if why_invalid(plan, kind, device) is None))


def canonical(plan: Plan, kind: DraftKind) -> Plan:
    """The plan without differences that change nothing: a late head has one row; what no draft
    pass exists for is at its default; without work of the host there is nothing to wait for."""
    changes: dict[str, str] = {}
    if kind != "lm":
        changes |= {"tail": "conditional", "head": "late"}
    if changes.get("head", plan.head) == "late":
        changes["head_rows"] = "1"
    if plan.graph == "iteration" or not _needs_host(plan, changes.get("tail", plan.tail)):
        changes["wait"] = "event"
    return msgspec.structs.replace(plan, **changes)


def why_invalid(plan: Plan, kind: DraftKind, device: Device) -> str | None:
    """Why a canonical plan cannot run, None if it can."""
    for name, values in AXES[device].items():
        # A canonical form waits by event where there is nothing to wait for.
        waits = name != "wait" or _needs_host(plan, plan.tail)
        if waits and getattr(plan, name) not in values:
            return f"{name} is {getattr(plan, name)}, there is {', '.join(values)} on {device}"
    if device == "cpu":
        return None
    if plan.graph == "iteration" and _needs_host(plan, plan.tail):
        return "a captured iteration leaves nothing to the host"
    if plan.graph == "iteration" and plan.commit == "beside":
        return "a captured iteration commits within itself"
    if plan.graph != "stage" and plan.mask == "host":
        return "a captured draft loop builds its masks on the device"
    overlaps = plan.tail == "overlapped" or plan.commit == "beside"
    if plan.streams == "1" and (overlaps or plan.head == "pre_verify"):
        return "overlap wants two streams"
    if plan.streams == "2" and not (overlaps or plan.head != "late"):
        return "two streams want something that overlaps"
    if plan.head == "pre_verify" and plan.head_rows == "1" and plan.tail == "conditional":
        return "a head of one row ahead of verifying wants the tail's rows"
    return None


def why_not_run(spec: TreeSpec, kind: DraftKind, device: Device = "cpu") -> str | None:
    """Why a tree's plan cannot run where `kind` drafts, None if it can; also for one that says
    what changes nothing there."""
    kind = "none" if spec.policy in ("plain", "lookahead") else kind
    same = canonical(spec.plan, kind)
    why = why_invalid(same, kind, device)
    if why is None and same != spec.plan:
        own = "" if kind == "lm" else ": no model with rows of its own drafts"
        why = f"here it is the same as {format_plan(same) or 'the default'}{own}"
    return why


def _needs_host(plan: Plan, tail: str) -> bool:
    return "host" in (plan.accept, plan.prune, plan.mask) or tail == "conditional"


def parse_plan(text: str) -> Plan:
    """Reads `axis=value,...`, axes left out at their defaults; raises RequestError that says what
    exists."""
    values: dict[str, str] = {}
    for item in filter(None, text.strip().split(",")):
        name, _, value = item.partition("=")
        if value not in _AXES.get(name, ()):
            known = "; ".join(f"{axis}={'|'.join(of)}" for axis, of in _AXES.items())
            raise RequestError(f"plan {text!r}: no {item!r}", f"axes and values: {known}")
        if name in values:
            raise RequestError(f"plan {text!r}: {name} is given twice", f"give one {name}=...")
        values[name] = value
    return Plan(**values)  # type: ignore[arg-type]


def format_plan(plan: Plan) -> str:
    """The line that `parse_plan` reads back: what differs from the default, "" for that."""
    default = Plan()
    return ",".join(
        f"{name}={getattr(plan, name)}"
        for name in _AXES
        if getattr(plan, name) != getattr(default, name)
    )


class StageTimes(msgspec.Struct, frozen=True):
    """Seconds of the stages of one iteration. `head_s` is that of the plan's head rows, `body_s`
    one growth step's, `tail_s` what the leaves' rows take, `verify_s` the pass over V rows.
    p_full: share of iterations that accept down to a leaf of the last step. p_guess: share in
    which a head that ran before verifying ran the right root. contention: how much longer a pass
    takes beside another one. Any numbers, fractions too.
    """

    head_s: float
    body_s: float
    tail_s: float
    prune_s: float
    mask_s: float
    verify_s: float
    accept_s: float
    commit_s: float
    p_full: float = 0
    p_guess: float = 0
    late_head_s: float = 0
    contention: float = 1


class Stage(msgspec.Struct, frozen=True):
    """A stage of an iteration: where it runs, how long, and the stages that it waits for, in its
    own iteration and in the one before."""

    name: str
    on: Place
    seconds: float
    after: tuple[str, ...] = ()
    after_previous: tuple[str, ...] = ()


def stages(plan: Plan, depth: int, times: StageTimes) -> list[Stage]:
    """The stages of an iteration that drafts `depth` levels, at least one, in the order in which
    they are issued."""
    device: Place = "stream 0"
    found: list[Stage] = []
    # What the first stage waits for of the iteration before.
    begin: tuple[str, ...] = ("commit" if plan.commit in ("now", "remap") else "accept",)
    if plan.head != "late":
        begin = (*begin, "next head")

    def add(name: str, on: Place, seconds: float, *after: str) -> str:
        nonlocal begin
        found.append(Stage(name, on, seconds, after, () if after else begin))
        return name

    def place(where: str) -> Place:
        return "host" if where == "host" else device

    last: tuple[str, ...] = ()
    if plan.tail in ("conditional", "padded"):
        share = times.p_full if plan.tail == "conditional" else 1
        last = (add("tail", device, share * times.tail_s, *last),)
    if plan.head == "late":
        last = (add("head", device, times.head_s, *last),)
    for step in range(1, depth):
        last = (add(f"body {step}", device, times.body_s, *last),)
    grown = last
    if plan.tail == "ahead":
        last = (add("tail", device, times.tail_s, *last),)
    if plan.prune != "off":
        last = (add("prune", place(plan.prune), times.prune_s, *last),)
    last = (add("mask", place(plan.mask), times.mask_s, *last),)
    if plan.commit == "deferred":
        found.append(Stage("commit", device, times.commit_s, (), ("accept",)))
        last = (*last, "commit")
    beside = plan.tail == "overlapped" or plan.head == "pre_verify"
    stretch = times.contention if beside else 1
    if plan.tail == "overlapped":
        add("tail", "stream 1", stretch * times.tail_s, *grown)
    if plan.head == "pre_verify":
        add("next head", "stream 1", stretch * times.head_s, *grown)
    waits = ("commit",) if plan.commit == "beside" else ()
    found.append(Stage("verify", device, stretch * times.verify_s, last, waits))
    verified = "verify"
    if plan.head == "post_verify":
        add("next head", device, times.head_s, verified)
    last = (add("accept", place(plan.accept), times.accept_s, verified),)
    if plan.head == "pre_verify":
        miss_s = (1 - times.p_guess) * times.late_head_s
        last = (add("late head", device, miss_s, *last, "next head"),)
    if plan.tail == "overlapped":
        last = (*last, "tail")
    if plan.commit != "deferred":
        on: Place = "stream 1" if plan.commit == "beside" else device
        add("commit", on, 0 if plan.commit == "remap" else times.commit_s, *last)
    return found


def on_one_thread(order: Sequence[Stage]) -> list[Stage]:
    """The same stages where host and passes share one thread."""
    return [msgspec.structs.replace(stage, on="host") for stage in order]


def timeline(order: Sequence[Stage], iterations: int) -> Iterator[tuple[int, Stage, float, float]]:
    """(iteration, stage, start, end) of every stage: each starts when its place is free and all
    that it waits for has ended, places take stages in the order of issue (list scheduling)."""
    free: dict[str, float] = {}
    ended: dict[str, float] = {}
    for iteration in range(iterations):
        before, ended = ended, {}
        for stage in order:
            waits = [ended[name] for name in stage.after]
            waits += [before[name] for name in stage.after_previous if name in before]
            start = max([free.get(stage.on, 0), *waits])
            free[stage.on] = ended[stage.name] = start + stage.seconds
            yield iteration, stage, start, ended[stage.name]


def period(order: Sequence[Stage], iterations: int = 4) -> float:
    """Seconds from the end of an iteration to the end of the next, once they repeat."""
    ends: dict[int, float] = {}
    for iteration, _, _, end in timeline(order, iterations):
        ends[iteration] = max(ends.get(iteration, 0), end)
    return ends[iterations - 1] - ends[iterations - 2]
