"""A predictor and what it is compared with, each fitted to the same traces and scored on prompts
that none of them saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from yggc.depth.fit import Examples, FitOptions, fit
from yggc.depth.hazards import Predictor, unconditional_hazards
from yggc.depth.prompts import Split
from yggc.depth.scores import (
    Times,
    chosen_depths,
    oracle_depths,
    scored,
    smoothed,
    token_ms,
)
from yggc.depth.traces import Traces

SHARES = (0.05, 0.1, 0.25)
SMOOTHING = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """Traces by prompt, how a predictor is fitted to them, and the seconds [n, D + 1] of passes of
    each depth at given passes."""

    traces: Traces
    split: Split
    max_depth: int
    num_units: int
    options: FitOptions
    times: Callable[[Traces], Times]

    @property
    def test(self) -> Traces:
        return self.traces.of_prompts(self.split.test)


def fit_predictor(
    setting: Setting,
    inputs: Callable[[Traces], torch.Tensor] = lambda traces: traces.inputs,
    share: float = 1.0,
    options: FitOptions | None = None,
) -> Predictor:
    """Fitted to the traces of the training prompts, `share` of them, stopped and calibrated on
    those of the validation prompts."""
    train = _examples(setting.traces.of_prompts(setting.split.train), inputs)
    generator = torch.Generator().manual_seed(setting.options.seed)
    kept = torch.randperm(len(train), generator=generator)[: max(2, round(share * len(train)))]
    held_out = _examples(setting.traces.of_prompts(setting.split.validate), inputs)
    return fit(
        train.take(kept),
        held_out,
        setting.max_depth,
        setting.num_units,
        options or setting.options,
    )


def constant_hazards(setting: Setting) -> torch.Tensor:
    """[D_max] of all passes of the training prompts together."""
    train = setting.traces.of_prompts(setting.split.train)
    return unconditional_hazards(train.lengths, train.known, setting.max_depth)


def ablations(setting: Setting, shipped: Predictor) -> Iterator[dict[str, Any]]:
    """Rows `name`, `log_loss` (None where nothing is predicted), `tpot_ms`: on the test prompts.
    Only the predictor of hidden rows alone can be shipped."""
    test, depth = setting.test, setting.traces.depth
    times = setting.times(test)

    def row(name: str, hazards: torch.Tensor) -> dict[str, Any]:
        return {"name": name, **scored(hazards[:, :depth], test, times)}

    hazards = shipped.hazards(test.inputs)
    yield row("constant hazards", constant_hazards(setting).expand(len(test), -1))
    yield row("hidden", hazards)
    for name, inputs in (
        ("hidden, entropy", _with(lambda traces: traces.entropy)),
        ("hidden, last accepted length", _with(lambda traces: traces.before.float())),
    ):
        other = fit_predictor(setting, inputs)
        yield row(name, other.hazards(inputs(test)))
    for share in SHARES:
        other = fit_predictor(setting, share=share)
        yield row(f"hidden, {share:.0%} of the traces", other.hazards(test.inputs))
    without = fit_predictor(setting, options=replace(setting.options, penalty=0.0))
    yield row("hidden, without penalty", without.hazards(test.inputs))
    yield row(f"hidden, smoothed by {SMOOTHING:g}", smoothed(hazards, test, SMOOTHING))
    oracle = token_ms(test, oracle_depths(test, times))
    yield {"name": "who knows L", "log_loss": None, "tpot_ms": oracle}


def fixed_depths(setting: Setting) -> list[float]:
    """Predicted milliseconds per token on the test prompts at each depth from 0 on."""
    test = setting.test
    return [token_ms(test, torch.full((len(test),), depth)) for depth in range(test.depth + 1)]


def best_fixed_depth(setting: Setting) -> int:
    """The one of 1 and more that took the least time per token on all prompts but the test's."""
    seen = setting.traces.of_prompts([*setting.split.train, *setting.split.validate])
    times = [token_ms(seen, torch.full((len(seen),), d)) for d in range(seen.depth + 1)]
    return min(range(1, seen.depth + 1), key=times.__getitem__)


def depth_shares(setting: Setting, predictor: Predictor) -> list[float]:
    """Shares of the test prompts' passes for which the predictor chooses each depth."""
    test = setting.test
    hazards = predictor.hazards(test.inputs)[:, : test.depth]
    chosen = chosen_depths(hazards, setting.times(test))
    return (torch.bincount(chosen, minlength=test.depth + 1) / len(test)).tolist()


def by_category(
    setting: Setting, predictor: Predictor, categories: Sequence[str]
) -> list[dict[str, Any]]:
    """The scores of the predictor and of constant hazards by prompt set."""
    test, found = setting.test, []
    for name in dict.fromkeys(categories):
        of_set = [i for i, one in enumerate(categories) if one == name]
        part = test.of_prompts(of_set)
        if not len(part):
            continue
        times = setting.times(part)
        constant = constant_hazards(setting)[: part.depth].expand(len(part), -1)
        found.append(
            {
                "category": name,
                "num_traces": len(part),
                "constant": scored(constant, part, times),
                "hidden": scored(predictor.hazards(part.inputs)[:, : part.depth], part, times),
            }
        )
    return found


def _examples(traces: Traces, inputs: Callable[[Traces], torch.Tensor]) -> Examples:
    return Examples(inputs(traces), traces.lengths, traces.known)


def _with(column: Callable[[Traces], torch.Tensor]) -> Callable[[Traces], torch.Tensor]:
    return lambda traces: torch.cat([traces.inputs, column(traces)[:, None]], dim=1)
