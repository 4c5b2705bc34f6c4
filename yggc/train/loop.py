"""The run: steps in order, validation, checkpoints, the best head so far in the output folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from yggc.errors import StageError
from yggc.models.eagle import EagleForCausalLM
from yggc.report import Reporter
from yggc.train.batches import epoch_batches
from yggc.train.gang import Gang
from yggc.train.head import write_head
from yggc.train.saved import Progress, SavedRun
from yggc.train.step import Frozen, Trainer, precision, schedule
from yggc.train.texts import Row
from yggc.train.validate import Agreement, HeldOut

# Response tokens that one thread passes through at a time; a batch is so many of these.
MICRO_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """epochs: passes through the text, also in parts. warmup, validate_every: in steps. patience:
    validations without a better one that end the run, 0 for none.
    """

    epochs: float
    batch_tokens: int
    warmup: int
    validate_every: int
    patience: int
    seed: int
    num_steps: int
    bfloat16: bool


def plan_steps(rows: Sequence[Row], options: LoopOptions) -> list[list[list[Row]]]:
    """The micro-batches of every step of the run."""
    per_step = max(1, options.batch_tokens // MICRO_TOKENS)
    micro = max(1, options.batch_tokens // per_step)
    steps: list[list[list[Row]]] = []
    for epoch in range(math.ceil(options.epochs)):
        batches = epoch_batches(rows, micro, options.seed, epoch)
        found = [batches[start : start + per_step] for start in range(0, len(batches), per_step)]
        share = min(1.0, options.epochs - epoch)
        steps += found[: max(1, round(share * len(found)))]
    return steps


class Loop:
    """Runs a trainer through the steps. `verifier` and `draft_ids` go into the head's folder."""

    def __init__(
        self,
        trainer: Trainer,
        frozen: Frozen,
        saved: SavedRun,
        held_out: HeldOut | None,
        options: LoopOptions,
        *,
        verifier: Mapping[str, Any],
        draft_ids: torch.Tensor,
    ) -> None:
        self._trainer, self._frozen, self._saved = trainer, frozen, saved
        self._held_out, self._options = held_out, options
        self._verifier, self._draft_ids = verifier, draft_ids

    def run(
        self,
        steps: Sequence[Sequence[Sequence[Row]]],
        gang: Gang,
        reporter: Reporter,
        stop: Callable[[], bool],
    ) -> tuple[Progress, bool]:
        """Goes on from the checkpoint if there is one, to the end or until `stop()`; whether it
        came to the end. Raises StageError when the loss is no number any more.
        """
        progress = self._saved.load(self._trainer) or Progress()
        if progress.step:
            reporter.say(f"going on from step {progress.step} of {len(steps)}")
        else:
            self._validate(progress, reporter)
        options = self._options
        with reporter.stage("train", total=len(steps)) as shown:
            shown.advance(progress.step)
            while progress.step < len(steps) and not self._is_stale(progress):
                self._step(progress, steps, gang, shown.advance)
                if progress.step % options.validate_every == 0 or progress.step == len(steps):
                    self._validate(progress, reporter)
                    self._saved.save(self._trainer, progress)
                if stop():
                    self._saved.save(self._trainer, progress)
                    return progress, False
        if self._is_stale(progress):
            reporter.say(
                f"no better validation in {progress.stale}: ended at step {progress.step}"
            )
        return progress, True

    def _is_stale(self, progress: Progress) -> bool:
        return 0 < self._options.patience <= progress.stale

    def _step(
        self,
        progress: Progress,
        steps: Sequence[Sequence[Sequence[Row]]],
        gang: Gang,
        advance: Callable[[int, str], None],
    ) -> None:
        start = time.monotonic()
        rate = schedule(progress.step, len(steps), min(self._options.warmup, len(steps) // 10))
        result = self._trainer.step(progress.step, steps[progress.step], rate, gang)
        progress.step += 1
        if not (math.isfinite(result.total) and math.isfinite(result.gradient_norm)):
            raise StageError(
                f"step {progress.step}: the loss is {result.total}, its gradient "
                f"{result.gradient_norm}, wanted numbers",
                "the head and the checkpoint are those of before; take a smaller --learning-rate "
                "and another -o",
            )
        seconds = time.monotonic() - start
        progress.num_tokens += result.num_tokens
        progress.seconds += seconds
        per_second = result.num_tokens / seconds
        self._saved.log(
            {
                "step": progress.step,
                "loss": result.total,
                "feature": result.feature,
                "token": result.token,
                "gradient_norm": result.gradient_norm,
                "rate": rate,
                "tokens": progress.num_tokens,
                "tokens_per_s": round(per_second, 1),
            }
        )
        advance(1, f"loss {result.total:.3f}, {per_second:.0f} tokens/s")

    def _validate(self, progress: Progress, reporter: Reporter) -> None:
        """Measures the averaged weights and keeps them if they are the best so far."""
        start = time.monotonic()
        found = self._measure()
        entry = {"step": progress.step, "validation": asdict(found) if found else {}}
        new, before = score(found) if found else 0.0, progress.best.get("score", -1.0)
        # Of equal ones the newest, but what stays equal is no progress.
        better = new >= before
        progress.stale = 0 if new > before else progress.stale + 1
        if better:
            progress.best = {"score": new, **entry}
            write_head(
                self._saved.folder,
                self._trainer.model.config,
                self._trainer.averaged,
                self._draft_ids,
                self._frozen.scale,
                self._verifier,
            )
        if found is not None:
            self._saved.log({**entry, "best": better})
            firsts = " ".join(f"{one[0]:.3f}" for one in found.top)
            reporter.say(
                f"step {progress.step}: first choices {firsts}, in a row {found.chain:.3f} "
                f"({found.wide:.3f} with four){', best' if better else ''}; "
                f"{time.monotonic() - start:.0f} s"
            )

    def _measure(self) -> Agreement | None:
        if self._held_out is None:
            return None
        model, trainer = self._trainer.model, self._trainer
        current = {name: one.detach().clone() for name, one in trainer.parameters.items()}
        _load(model, trainer.averaged)
        try:
            with precision(model.device, self._options.bfloat16):
                return self._held_out.measure(model, self._frozen.embed, self._options.num_steps)
        finally:
            _load(model, current)


def score(found: Agreement) -> float:
    """What the best head is chosen by: a chain's and a tree's tokens in equal parts."""
    return (found.chain + found.wide) / 2


@torch.no_grad()
def _load(model: EagleForCausalLM, weights: Mapping[str, torch.Tensor]) -> None:
    for name, one in model.named_parameters():
        if name in weights:
            one.copy_(weights[name])
