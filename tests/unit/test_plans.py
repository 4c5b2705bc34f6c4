"""Stage plans: how many there are, and the period of an iteration by hand."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import product
from typing import Any

import msgspec
import pytest

from yggrt.core.errors import RequestError
from yggrt.core.plans import (
    StageTimes,
    canonical,
    format_plan,
    on_one_thread,
    parse_plan,
    period,
    plans,
    stages,
    timeline,
    why_invalid,
)
from yggrt.core.schema import Plan


def test_the_space_of_a_language_model_on_a_gpu() -> None:
    """Against a count of the rules as they are stated, raw combinations first."""
    axes: dict[str, tuple[Any, ...]] = {
        "tail": ("conditional", "padded", "ahead", "overlapped"),
        "head": ("late", "post_verify", "pre_verify"),
        "head_rows": (1, 4, "all"),
        "accept": ("host", "device"),
        "prune": ("off", "host", "device"),
        "streams": (1, 2),
        "graph": ("stage", "draft", "iteration"),
        "commit": ("now", "beside", "remap"),
        "wait": ("block", "event"),
        "mask": ("host", "device"),
    }
    seen = set()
    raw = 0
    for values in product(*axes.values()):
        raw += 1
        p = dict(zip(axes, values, strict=True))
        if p["head"] == "late":
            p["head_rows"] = 1
        host = "host" in (p["accept"], p["prune"], p["mask"]) or p["tail"] == "conditional"
        overlaps = p["tail"] == "overlapped" or p["commit"] == "beside"
        refused = (
            (p["graph"] == "iteration" and (host or p["commit"] == "beside"))
            or (p["graph"] != "stage" and p["mask"] == "host")
            or (p["streams"] == 1 and (overlaps or p["head"] == "pre_verify"))
            or (p["streams"] == 2 and not (overlaps or p["head"] != "late"))
            or (p["head"] == "pre_verify" and p["head_rows"] == 1 and p["tail"] == "conditional")
        )
        if p["graph"] == "iteration" or not host:
            p["wait"] = "event"
        if not refused:
            seen.add(tuple(map(str, p.values())))
    assert raw == 15552
    found = plans("lm", "cuda")
    assert len(found) == 3372
    assert {tuple(getattr(plan, name) for name in axes) for plan in found} == seen
    order = ("tail", "head", "head_rows", "accept", "prune", "streams", "commit")
    assert len({tuple(getattr(plan, name) for name in order) for plan in found}) == 594


def test_what_has_no_draft_pass_has_no_axes_of_one() -> None:
    for kind, device in product(("eagle", "none"), ("cpu", "cuda")):
        found = plans(kind, device)  # type: ignore[arg-type]
        assert {(plan.tail, plan.head) for plan in found} == {("conditional", "late")}
    assert len(plans("lm", "cpu")) == 32
    assert len(plans("eagle", "cpu")) == 4


def test_canonical_forms_stand() -> None:
    for kind, device in product(("lm", "eagle", "none"), ("cpu", "cuda")):
        for plan in plans(kind, device):  # type: ignore[arg-type]
            assert canonical(plan, kind) == plan  # type: ignore[arg-type]
            assert why_invalid(plan, kind, device) is None  # type: ignore[arg-type]
            assert parse_plan(format_plan(plan)) == plan


# A head 1.0, three bodies of 1.2, a tail of 1.2, pruning 0.3, verifying 12, accepting 0.5,
# committing 0.4; one iteration in five accepts down to a leaf.
TIMES = StageTimes(
    head_s=F(1), body_s=F(6, 5), tail_s=F(6, 5), prune_s=F(3, 10), mask_s=F(0), verify_s=F(12),
    accept_s=F(1, 2), commit_s=F(2, 5), p_full=F(1, 5), contention=F(21, 20),
)  # fmt: skip


def seconds(text: str, **changes: F) -> float:
    return period(stages(parse_plan(text), 4, msgspec.structs.replace(TIMES, **changes)))


def test_periods_by_hand() -> None:
    assert seconds("") == F(1804, 100)
    assert seconds("tail=ahead") == 19
    assert seconds("tail=padded") == 19
    assert seconds("tail=overlapped,streams=2") == F(184, 10)
    both = "tail=overlapped,head=post_verify,head_rows=all,streams=2"
    assert seconds(both, head_s=F(11, 10)) == 18
    assert seconds(both, head_s=F(8, 5)) == F(185, 10)


def test_what_leaves_no_trace_takes_no_time() -> None:
    assert seconds("prune=off") == F(1804, 100) - F(3, 10)
    assert seconds("commit=remap") == F(1804, 100) - F(2, 5)


def test_commits_off_the_way_hide() -> None:
    """Beside the next draft, which is longer, or while the host prunes, which takes 0.3."""
    assert seconds("commit=beside,streams=2") == F(1804, 100) - F(2, 5)
    assert seconds("commit=deferred") == F(1804, 100) - F(3, 10)


def test_heads_that_guessed_wrong_run_late() -> None:
    """Beside verifying, all stretched: 3.6 + 0.3 + 12.6 + 0.5 + miss + 0.4."""
    text = "tail=padded,head=pre_verify,head_rows=4,streams=2"
    miss = {"p_guess": F(3, 4), "late_head_s": F(1)}
    assert seconds(text, **miss) == F(6, 5) + F(18, 5) + F(3, 10) + F(126, 10) + F(1, 2) + F(
        1, 4
    ) + F(2, 5)


def test_one_thread_adds_everything_up() -> None:
    for plan in plans("lm", "cpu"):
        order = on_one_thread(stages(plan, 3, TIMES))
        assert period(order) == sum(stage.seconds for stage in order)


def test_no_place_does_two_things_and_nothing_starts_before_what_it_waits_for() -> None:
    for plan in plans("lm", "cuda"):
        order = stages(plan, 2, TIMES)
        names = [stage.name for stage in order]
        assert len(set(names)) == len(names)
        busy: dict[str, float] = {}
        for _, stage, start, end in timeline(order, 3):
            assert start >= busy.get(stage.on, 0)
            busy[stage.on] = end
            assert {*stage.after} <= set(names)
            assert {*stage.after_previous} <= set(names)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tail=never", "no 'tail=never'"),
        ("speed=2", "no 'speed=2'"),
        ("tail=ahead,tail=padded", "tail is given twice"),
    ],
)
def test_a_bad_plan_is_refused_by_name(text: str, wanted: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_plan(text)
    assert wanted in refused.value.message


def test_a_plan_of_another_device_is_refused() -> None:
    assert why_invalid(Plan(streams="2"), "lm", "cpu") == "streams is 2, there is 1 on cpu"
    assert "two streams" in str(why_invalid(Plan(tail="overlapped"), "lm", "cuda"))
