"""The comparison of two manifests in JSON types: every pair is the old and the new value."""

from __future__ import annotations

from typing import Any

from yggc.compare.source import source_difference
from yggc.diff.curves import curves
from yggc.diff.fields import Pair, changed, differing
from yggc.diff.side import Side
from yggrt.busy import BUSY_SHARE
from yggrt.core.consistency import CODE_PREFIX, WEIGHTS_NAME
from yggrt.core.schema import HeadDrafter, LmDrafter

# Of a schedule's record; the rest is shown as acceptance and speed, or is long.
SCHEDULE = ("tree", "drafter", "buckets", "objective", "rate", "rest_s", "stage_s", "num_scored")


def compare_sides(old: Side, new: Side) -> dict[str, Any]:
    """`same_bytes`: one digest. `differing`: what differs beside the measured tables, so that
    nothing is there if the two are builds of the same inputs. `not_compared`: what cannot be, and
    why."""
    before, after = old.described, new.described
    reasons = dict(_not_compared(old, new))
    return {
        "old": before["file"],
        "new": after["file"],
        "same_bytes": old.digest == new.digest,
        "differing": differing(old.manifest, new.manifest),
        "not_compared": [{"what": what, "why": why} for what, why in reasons.items()],
        "sources": _sources(old, new),
        "target": changed(before["target"], after["target"]),
        "model": changed(
            {"verifier": before["verifier"], **before["model"]},
            {"verifier": after["verifier"], **after["model"]},
        ),
        "drafter": changed(before["drafter"], after["drafter"]),
        "text": changed(before["text"], after["text"]),
        "config": changed(before["config"], after["config"]),
        "inputs": changed(_inputs(before), _inputs(after)),
        "schedule": changed(_schedule(old), _schedule(new)),
        "sizes": _pairs(_sizes(old), _sizes(new)),
        "memory": _pairs(before["memory"], after["memory"]),
        "curves": curves(old, new, comparable="times" not in reasons),
        "acceptance": _pairs(_acceptance(old), _acceptance(new)),
        "speed": _pairs(_speed(old), _speed(new)),
        "members": _members(old, new),
    }


def _pairs(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Pair]:
    return {name: [old.get(name), new.get(name)] for name in dict.fromkeys([*old, *new])}


def _not_compared(old: Side, new: Side) -> list[tuple[str, str]]:
    found = []
    before, after = old.manifest.target.tuned_for, new.manifest.target.tuned_for
    machines = [f"{one.device}, {one.num_threads} threads" for one in (before, after)]
    if old.manifest.target.name != new.manifest.target.name or machines[0] != machines[1]:
        what = f"they were measured on different machines ({machines[0]}; {machines[1]})"
        found.append(("times", f"{what}: shown side by side, without ratios"))
    for name, side in (("old", old), ("new", new)):
        busy = side.manifest.profile.busy_share or 0.0
        if busy > BUSY_SHARE:
            why = f"other processes took {busy:.0%} of the processors while it was measured"
            found.append((f"the {name} bundle's times", f"{why}: they are doubtful"))
    one, other = old.source("verifier"), new.source("verifier")
    if one is not None and other is not None and (problem := source_difference(one, other)):
        found.append(("acceptance", f"the verifiers are different models: {problem}"))
    elif _prompts(old) != _prompts(new):
        found.append(("acceptance", "it was measured on different calibration prompts"))
    return found


def _prompts(side: Side) -> list[tuple[int, ...]]:
    return [one.prompt_ids for one in side.manifest.schedule.recordings]


def _sources(old: Side, new: Side) -> dict[str, str]:
    """By role, what differs; roles that are the same are left out."""
    found = {}
    for role in ("verifier", "drafter"):
        one, other = old.source(role), new.source(role)
        if one is None or other is None:
            if one is not other:
                which, model = ("new", other) if one is None else ("old", one)
                assert model is not None, "one of them is a model"
                found[role] = f"only the {which} bundle has one: {model.location}"
        elif problem := source_difference(one, other):
            found[role] = problem
    return found


def _inputs(described: dict[str, Any]) -> dict[str, Any]:
    """What a bundle was made of beside its sources and its configuration; empty of older ones."""
    inputs = described["inputs"] or {}
    return {name: inputs[name] for name in inputs if name != "options"}


def _schedule(side: Side) -> dict[str, Any]:
    schedule = side.described["schedule"]
    found = {name: schedule[name] for name in SCHEDULE}
    # Tables of acceptance are shown as such, token ids are thousands.
    found["drafter"] = schedule["drafter"]["kind"]
    found["beside"] = "ngram" if schedule["ngram"] else None
    found["depth"] = None if schedule["depth"] is None else schedule["depth"]["is_on"]
    return found


def _sizes(side: Side) -> dict[str, int]:
    """Bytes of the file and of what it holds."""
    members = side.manifest.members
    graphs = sum(graph["num_bytes"] for graph in side.described["graphs"])
    code = sum(one.num_bytes for name, one in members.items() if name.startswith(CODE_PREFIX))
    weights = members[WEIGHTS_NAME].num_bytes
    total: int = side.described["file"]["num_bytes"]
    return {
        "file": total,
        "weights": weights,
        "graphs": graphs,
        "operators": code - graphs,
        "everything else": total - weights - code,
    }


def _acceptance(side: Side) -> dict[str, Any]:
    schedule = side.manifest.schedule
    found: dict[str, Any] = {
        "mean_acceptance_length": side.chosen and side.chosen.mean_acceptance_length,
        "by_rank": list(schedule.ranks.pooled),
    }
    if isinstance(schedule.drafter, LmDrafter | HeadDrafter):
        found["agreement"] = schedule.drafter.agreement
    if isinstance(schedule.drafter, HeadDrafter):
        found["coverage"] = list(schedule.drafter.coverage)
    if schedule.depth is not None:
        found["depth_gain"] = schedule.depth.gain
    return found


def _speed(side: Side) -> dict[str, Any]:
    """What the search knew of the schedule's tree, in ms per token."""
    names = ("tpot_ms", "speedup", "measured_tpot_ms", "measured_speedup")
    return {name: side.chosen and getattr(side.chosen, name) for name in names}


def _members(old: Side, new: Side) -> dict[str, Any]:
    before, after = old.manifest.members, new.manifest.members
    both = [name for name in before if name in after]
    return {
        "num_equal": sum(before[name] == after[name] for name in both),
        "changed": [name for name in both if before[name] != after[name]],
        "only_old": [name for name in before if name not in after],
        "only_new": [name for name in after if name not in before],
    }
