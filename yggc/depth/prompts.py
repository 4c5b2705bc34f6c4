"""Which prompts a predictor is trained on, and which of them are kept for what."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yggc.errors import RecipeError
from yggc.train.prompts import read_excluded
from yggrt.bundle import Bundle
from yggrt.loading import load_text
from yggrt.prompts import read_prompt_files

# With fewer, what is held out says nothing.
MIN_PROMPTS = 10
# Shares of the prompts that are fitted to, and that fitting is stopped and calibrated by; the rest
# are for scores alone.
_TRAIN, _VALIDATE = 0.6, 0.2
RECORDED = "recordings"


@dataclass(frozen=True, slots=True)
class CalibrationPrompt:
    """Ids, and the set that they are from."""

    ids: tuple[int, ...]
    category: str


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of prompts."""

    train: list[int]
    validate: list[int]
    test: list[int]


def calibration_prompts(
    bundle: Bundle, files: Sequence[Path], exclude: Sequence[Path], limit: int | None
) -> tuple[list[CalibrationPrompt], int]:
    """The prompts of `files`, or those that the bundle's schedule rests on, and how many were left
    out as evaluation prompts or as too long. Raises RecipeError for fewer than MIN_PROMPTS."""
    excluded, text = read_excluded(exclude), load_text(bundle)
    model, left_out = bundle.manifest.model, 0
    prompts: list[CalibrationPrompt] = []
    if files and text is None:
        raise RecipeError(
            f"{bundle.path}: has no tokenizer, so --prompts cannot be encoded",
            "leave --prompts out, for the prompts of the bundle",
        )
    for one in read_prompt_files(files, limit) if files and text is not None else ():
        ids = tuple(one.encode(text)) if text is not None else ()
        if one.text in excluded or not 0 < len(ids) < model.max_model_len - 1:
            left_out += 1
            continue
        prompts.append(CalibrationPrompt(ids, one.category))
    for recorded in () if files else bundle.manifest.schedule.recordings[:limit]:
        known = text is not None and text.decode(recorded.prompt_ids) in excluded
        if known or not len(recorded.prompt_ids) < model.max_model_len - 1:
            left_out += 1
            continue
        prompts.append(CalibrationPrompt(recorded.prompt_ids, RECORDED))
    if len(prompts) < MIN_PROMPTS:
        where = "in --prompts" if files else "in the bundle"
        raise RecipeError(
            f"{len(prompts)} calibration prompts {where}, {left_out} left out; wanted "
            f"{MIN_PROMPTS} or more",
            "give more with --prompts FILE",
        )
    return prompts, left_out


def split_prompts(num: int, seed: int) -> Split:
    """All numbers below `num`, dealt by prompt so that no text is its own evidence."""
    order = list(range(num))
    random.Random(seed).shuffle(order)
    train, validate = round(_TRAIN * num), round((_TRAIN + _VALIDATE) * num)
    return Split(sorted(order[:train]), sorted(order[train:validate]), sorted(order[validate:]))
