"""The run: steps in order, validation, checkpoints, the best drafter so far in the folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from yggc.errors import StageError
from yggc.report import Reporter
from yggc.train.batches import MICRO_TOKENS, epoch_batches
from yggc.train.gang import Gang
from yggc.train.saved import Progress, SavedRun
from yggc.train.step import Trainer, schedule
from yggc.train.texts import Row
from yggc.train.validate import Agreement, HeldOut


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
    """Runs a trainer through the steps."""

    def __init__(
        self, trainer: Trainer, saved: SavedRun, held_out: HeldOut | None, options: LoopOptions
    ) -> None:
        self._trainer, self._saved = trainer, saved
        self._held_out, self._options = held_out, options

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
                "the drafter and the checkpoint are those of before; take a smaller "
                "--learning-rate and another -o",
            )
        seconds = time.monotonic() - start
        progress.num_tokens += result.num_tokens
        progress.seconds += seconds
        per_second = result.num_tokens / seconds
        self._saved.log(
            {
                "step": progress.step,
                "loss": result.total,
                **result.parts,
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
            self._trainer.learner.write(self._saved.folder, self._trainer.averaged)
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
        trainer = self._trainer
        current = {name: one.detach().clone() for name, one in trainer.parameters.items()}
        _load(trainer.parameters, trainer.averaged)
        try:
            with trainer.precision():
                return trainer.learner.measure(self._held_out)
        finally:
            _load(trainer.parameters, current)


def score(found: Agreement) -> float:
    """What the best drafter is chosen by: a chain's and a tree's tokens in equal parts."""
    return (found.chain + found.wide) / 2


@torch.no_grad()
def _load(parameters: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
    for name, one in parameters.items():
        one.copy_(weights[name])
