"""What an iteration takes under each plan, from what graphs and stages of the host were measured
to take: how the search scores schedules that it does not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from yggrt.core.plans import DraftKind, StageTimes, on_one_thread, period, plans, stages
from yggrt.core.schema import Candidate, Plan, TreeSpec
from yggrt.core.search import Replay
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec

# Seconds by rows or nodes, and context.
Latency: TypeAlias = Callable[[int, int], float]


def stage_times(
    spec: TreeSpec, replay: Replay, latency: Latency, draft_step: Latency, unseen_s: float
) -> StageTimes:
    """Times of the stages of an iteration of `spec` under its plan, over the passes of a replay of
    the same tree. `unseen_s`: seconds of a pass that a replay does not run."""
    num = replay.num_passes
    context = round(sum(at * count for (_, at), count in replay.passes.items()) / num)
    steps = draft_steps(spec)
    default = draft_steps(msgspec.structs.replace(spec, plan=Plan()))
    if spec.plan.tail == "ahead" and steps:
        tail_s = draft_step(steps[-1], context)
    else:
        # The leaf runs with the root.
        tail_s = draft_step(2, context) - draft_step(1, context)
    return StageTimes(
        head_s=draft_step(steps[0], context) if steps else 0,
        body_s=draft_step(default[-1], context) if len(default) > 1 else 0,
        tail_s=tail_s,
        # Growing and pruning in Python, and accepting.
        prune_s=max(0, replay.host_s / num - sum(draft_step(one, context) for one in default)),
        mask_s=0,
        verify_s=sum(count * latency(*key) for key, count in replay.passes.items()) / num,
        accept_s=0,
        commit_s=unseen_s,
        p_full=replay.num_full / num,
    )


def plan_candidates(
    found: Candidate,
    shaped: TreeSpec,
    replay: Replay,
    kind: DraftKind,
    latency: Latency,
    draft_step: Latency,
    unseen_s: float,
) -> list[Candidate]:
    """The tree of `found` under every other plan that verifies the same rows, time per token by
    the periods of the plans. `shaped` is that tree with its shape, `replay` the one that `found`
    was made of."""
    tree = parse_tree_spec(found.tree)

    def seconds(plan: Plan) -> float:
        spec = msgspec.structs.replace(shaped, plan=plan)
        times = stage_times(spec, replay, latency, draft_step, unseen_s)
        return period(on_one_thread(stages(plan, spec.depth, times)))

    default_s = seconds(tree.plan)
    candidates = []
    for plan in plans(kind, "cpu"):
        if plan != tree.plan and plan.prune == tree.plan.prune:
            ratio = seconds(plan) / default_s
            candidates.append(
                msgspec.structs.replace(
                    found,
                    tree=format_tree_spec(msgspec.structs.replace(tree, plan=plan)),
                    tpot_ms=found.tpot_ms * ratio,
                    speedup=found.speedup / ratio,
                )
            )
    return candidates
