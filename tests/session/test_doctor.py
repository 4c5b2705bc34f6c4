"""What `doctor` says about measured numbers; the measuring is tested on real bundles in e2e."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
from bundle.small import graph, manifest

from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.schema import Candidate, LatencyJump, LatencyPoint, Manifest, ProfileNotes
from yggrt.doctor import Evidence, Report, diagnose
from yggrt.latency import LatencyTable
from yggrt.loading import choose_threads
from yggrt.scheduling import Run
from yggrt.target import host_target

TREE = "egt:width=4,depth=2,children=8,verify=8,frontier=global"

NARROW = "egt:width=2,depth=2,children=4,verify=4,frontier=global"


def points(*seconds: float) -> tuple[LatencyPoint, ...]:
    return tuple(
        LatencyPoint(graph=f"v{rows:03d}", rows=rows, context=64, median_s=s, spread_s=0.0)
        for rows, s in zip((1, 4, 8), seconds, strict=True)
    )


def tuned(tree: str = TREE) -> Manifest:
    base = manifest()
    candidate = Candidate(tree=tree, mean_acceptance_length=2.0, tpot_ms=10.0, speedup=1.6)
    return msgspec.structs.replace(
        base,
        graphs=tuple(graph(f"v{rows:03d}", rows) for rows in (1, 4, 8)),
        latency=points(0.010, 0.011, 0.014),
        schedule=msgspec.structs.replace(base.schedule, tree=tree, candidates=(candidate,)),
    )


PLAIN_RUN = Run(
    100, 1.05, 100, 0, 0, {"draft": 0.0, "verify": 1.0, "accept": 0.01, "commit": 0.01}
)
TREE_RUN = Run(
    100, 0.70, 50, 60, 48, {"draft": 0.03, "verify": 0.65, "accept": 0.005, "commit": 0.005}
)


def examined(**changes: Any) -> Report:
    bundle = changes.pop("manifest", tuned())
    here = changes.pop("here", points(0.010, 0.011, 0.014))
    seen = {
        "manifest": bundle,
        "here": LatencyTable.of(here, bundle.graphs),
        "plain": PLAIN_RUN,
        "tree": TREE_RUN,
        "busy_share": 0.0,
        "idle_share": 0.01,
        "num_threads": bundle.target.tuned_for.num_threads,
        "weights_bytes": 100,
        "huge_bytes": 100,
        "mapped": False,
    }
    return diagnose(Evidence(**{**seen, **changes}))


def verdicts(report: Report) -> dict[str, str]:
    return {one.name: one.verdict for one in report.findings}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def test_a_machine_as_tuned_for_is_well() -> None:
    report = examined()
    assert set(verdicts(report).values()) == {"ok"}
    assert list(verdicts(report)) == [
        "other processes", "threads", "huge pages", "time of a pass", "jumps",
        "cost of drafting", "acceptance", "break-even", "host", "idle",
    ]  # fmt: skip
    report.check()
    values = {one.name: one.values for one in report.findings}
    # 0.03 s over 50 passes and 2 levels, of a plain pass of 10 ms.
    assert values["cost of drafting"]["cost_ratio"] == pytest.approx(0.03)
    assert values["acceptance"]["mean_acceptance_length"] == pytest.approx(98 / 50)
    assert values["acceptance"]["alpha"] == pytest.approx(0.8)
    assert values["break-even"]["needed"] == pytest.approx(0.014 / 0.0105)
    assert values["host"]["host_share"] == pytest.approx(0.05 / 0.70)


@pytest.mark.parametrize(
    ("name", "verdict", "changes"),
    [
        ("other processes", "note", {"busy_share": 0.3}),
        ("threads", "note", {"num_threads": 1}),
        ("threads", "wrong", {"num_threads": 4}),
        ("huge pages", "note", {"huge_bytes": 10}),
        ("huge pages", "note", {"mapped": True}),
        ("time of a pass", "wrong", {"here": points(0.010, 0.014, 0.020)}),
        # Twice as slow throughout: the same choices are best.
        ("time of a pass", "ok", {"here": points(0.020, 0.022, 0.028)}),
        ("jumps", "note", {"here": points(0.010, 0.011, 0.060), "manifest": tuned(NARROW)}),
        ("idle", "note", {"idle_share": 0.5}),
        (
            "acceptance",
            "note",
            {"tree": Run(100, 0.9, 80, 100, 20, {**TREE_RUN.stage_s, "verify": 0.85})},
        ),
        (
            "break-even",
            "wrong",
            {"tree": Run(100, 1.2, 80, 100, 20, {**TREE_RUN.stage_s, "verify": 1.1})},
        ),
        ("host", "note", {"tree": Run(100, 0.8, 50, 60, 48, {**TREE_RUN.stage_s, "draft": 0.2})}),
        (
            "cost of drafting",
            "note",
            {"tree": Run(100, 0.8, 50, 60, 48, {**TREE_RUN.stage_s, "draft": 0.2})},
        ),
    ],
)
def test_each_disturbance_is_found_and_comes_with_advice(
    name: str, verdict: str, changes: dict[str, Any]
) -> None:
    report = examined(**changes)
    [finding] = [one for one in report.findings if one.name == name]
    assert finding.verdict == verdict
    assert len(list(finding.lines())) == (1 if verdict == "ok" else 2)
    if verdict == "wrong":
        with pytest.raises(CheckFailed) as caught:
            report.check()
        assert caught.value.exit_code == 1
        assert caught.value.tip == finding.advice
    assert report.to_json()["ok"] == (verdict != "wrong")


def test_a_jump_that_the_build_saw_is_no_news() -> None:
    seen = LatencyJump(kind="verify", axis="rows", at=64, lower=4, upper=8, ratio=5.0)
    bundle = msgspec.structs.replace(tuned(), profile=ProfileNotes(jumps=(seen,)))
    report = examined(manifest=bundle, here=points(0.010, 0.011, 0.060))
    assert verdicts(report)["jumps"] == "ok"


def test_a_plain_schedule_has_no_trees_to_judge() -> None:
    report = examined(manifest=tuned("plain"), tree=PLAIN_RUN)
    assert "break-even" not in verdicts(report)
    assert verdicts(report)["host"] == "ok"


@pytest.mark.parametrize("asked", [0, -1, 1025, 99999999999])
def test_numbers_of_threads_out_of_range(asked: int) -> None:
    tuned = host_target(2).tuned_for
    with pytest.raises(RequestError, match=f"number of threads is {asked}, wanted 1 to 1024"):
        choose_threads(asked, tuned)
