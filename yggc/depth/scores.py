"""What hazards are worth on traces that they were not fitted to: log-loss, calibration, and the
time per token of the depths that are chosen by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from yggc.depth.hazards import log_loss, reached
from yggc.depth.traces import Traces
from yggrt.core.objective import Objective
from yggrt.core.schema import TreeSpec
from yggrt.core.spec import draft_steps
from yggrt.scheduling import Costs

NUM_BINS = 10
# What all levels together say counts as so many passes that reached a level.
PRIOR_PASSES = 16


@dataclass(frozen=True, slots=True)
class Brings:
    """`base_tokens`: emitted by a pass of depth 0; `worth[d - 1]`: added by level d where it is
    reached: less than 1 where something else drafts beside, or what is drafted is not verified."""

    base_tokens: float
    worth: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """What depths are chosen by: `seconds` [n, D + 1] float64 that each pass would take at each
    depth, and the tokens that depth 0 and each level bring."""

    seconds: torch.Tensor
    objective: Objective
    brings: Brings


def measured_brings(traces: Traces) -> Brings:
    """By the tokens that passes of each depth emit more than those of the depth before, over how
    often the level was reached; levels that few reached take after all levels together."""
    added = traces.tokens.double().sum(0).diff()
    num = reached(traces.lengths, traces.depth).double().sum(0)
    overall = added.sum() / num.sum().clamp(min=1)
    worth = (added + PRIOR_PASSES * overall) / (num + PRIOR_PASSES)
    base = float(traces.tokens[:, 0].double().mean())
    return Brings(base, tuple(worth.clamp(min=0).tolist()))


def usual_rows(traces: Traces) -> tuple[int, ...]:
    """By depth from 0 on, what half of the passes of that depth verify at most."""
    found: list[int] = traces.rows.median(0).values.tolist()
    return tuple(found)


def pass_times(
    spec: TreeSpec,
    rows: tuple[int, ...],
    brings: Brings,
    costs: Costs,
    objective: Objective,
    traces: Traces,
) -> Times:
    """What the engine decides by at each pass's context: every depth with its usual rows."""
    steps, by_context = (0, *draft_steps(spec)), {}
    for context in set(traces.context.tolist()):
        draft_s, seconds = 0.0, []
        for depth, num_rows in enumerate(rows):
            draft_s += costs.draft_step(steps[depth], context) if depth else 0.0
            seconds.append(costs.rest_s + draft_s + costs.latency(num_rows, context))
        by_context[context] = seconds
    table = [by_context[context] for context in traces.context.tolist()]
    return Times(torch.tensor(table, dtype=torch.float64), objective, brings)


def survival(hazards: torch.Tensor) -> torch.Tensor:
    """P(L >= d), [n, D]: running products of hazards [n, D]."""
    return hazards.cumprod(1)


def chosen_depths(hazards: torch.Tensor, times: Times) -> torch.Tensor:
    """[n] int64: the depth with the largest objective, the smaller on a tie."""
    levels = survival(hazards) * torch.tensor(times.brings.worth)
    start = torch.full((len(hazards), 1), times.brings.base_tokens)
    expected = torch.cat([start, levels], 1).cumsum(1)
    # Both forms of the objective work on tensors as on numbers.
    value: Any = times.objective.value(expected, times.seconds)  # type: ignore[arg-type]
    return torch.as_tensor(value).argmax(1)


def token_ms(traces: Traces, depths: torch.Tensor) -> float:
    """Milliseconds per token of the traces' passes at these depths [n]."""
    at = depths[:, None]
    return 1e3 * float(traces.seconds.gather(1, at).sum() / traces.tokens.gather(1, at).sum())


def oracle_depths(traces: Traces, times: Times) -> torch.Tensor:
    """[n]: chosen by who knows L."""
    return chosen_depths(reached(traces.lengths, traces.depth).float(), times)


def smoothed(hazards: torch.Tensor, traces: Traces, share: float) -> torch.Tensor:
    """As the engine smooths them over the passes of a prompt: `share` of those before."""
    found = hazards.clone()
    for i in range(1, len(found)):
        if traces.prompt[i] == traces.prompt[i - 1]:
            found[i] = share * found[i - 1] + (1 - share) * found[i]
    return found


def scored(hazards: torch.Tensor, traces: Traces, times: Times) -> dict[str, float]:
    """Log-loss per hazard and predicted time per token of hazards [n, D]."""
    logits = torch.logit(hazards.double(), eps=1e-7)
    return {
        "log_loss": log_loss(logits, traces.lengths, traces.known),
        "tpot_ms": token_ms(traces, chosen_depths(hazards, times)),
    }


def reliability(hazards: torch.Tensor, traces: Traces) -> list[dict[str, Any]]:
    """By depth: how often L reached it beside the mean survival that was predicted, over equal
    bins of it, and the expected calibration error: their distance, weighted by passes."""
    predicted, right = survival(hazards), reached(traces.lengths, traces.depth)
    tables = []
    for d in range(traces.depth):
        # A pass that ended with the recording says nothing of the levels behind.
        seen = (traces.lengths < traces.known) | (traces.known > d)
        share, hit = predicted[seen, d], right[seen, d].float()
        place = (share * NUM_BINS).long().clamp(max=NUM_BINS - 1)
        bins = [
            {
                "num": int((place == i).sum()),
                "predicted": float(share[place == i].mean()),
                "observed": float(hit[place == i].mean()),
            }
            for i in range(NUM_BINS)
            if (place == i).any()
        ]
        error = sum(one["num"] * abs(one["predicted"] - one["observed"]) for one in bins)
        tables.append({"depth": d + 1, "error": error / max(1, len(share)), "bins": bins})
    return tables
