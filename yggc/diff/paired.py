"""Both bundles decode the same prompts in turns, each in a process of its own.

Old, new, new, old on every prompt: a machine that slows down or speeds up does so for both. The
quicker of a bundle's runs of a prompt counts, since disturbances only add, and ratios are taken
prompt by prompt. A disturbed run is repeated as in `yggc compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from yggc.compare.prompts import chosen_prompts
from yggc.compare.protocol import Timed
from yggc.compare.rows import Lineup, Row, add_bundles, warm_up
from yggc.compare.run import Clock
from yggc.diff.side import Side
from yggrt.bundle import Bundle
from yggrt.cache import Cache
from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.schema import Manifest
from yggrt.interval import geometric_ratio
from yggrt.loading import choose_threads
from yggrt.target import check_target, host_target

Encoded = Sequence[tuple[str, list[int]]]


@dataclass(frozen=True, slots=True)
class Request:
    """Which prompts, of files or else the bundle's, and how often; `limit`: prompts of each
    file. `needs_interval`: one prompt is too few."""

    prompts: tuple[Path, ...]
    limit: int | None
    num_tokens: int
    repeats: int
    num_threads: int | None
    needs_interval: bool = False


@dataclass(frozen=True, slots=True)
class Turns:
    """All runs of one prompt, equally many of both bundles."""

    name: str
    old: tuple[Timed, ...]
    new: tuple[Timed, ...]

    @property
    def tpot_ms(self) -> list[float]:
        """Time per token of the old and of the new bundle."""
        return [_tpot_ms(self.old), _tpot_ms(self.new)]

    @property
    def ratio(self) -> float:
        """The new bundle's time per token over the old one's."""
        old, new = self.tpot_ms
        return new / old


def measure_pair(
    old: Side,
    new: Side,
    request: Request,
    cache: Cache,
    *,
    on_note: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The report of `report_turns`, with how it was run.

    Raises TargetError for a bundle that does not run here, RequestError for bundles that do not
    take the same tokens and for prompts that do not fit, CheckFailed if a bundle's runs of a
    prompt differ, and KeyboardInterrupt if not one prompt was finished.
    """
    check_same_ids(old.manifest, new.manifest)
    for side in (old, new):
        for text in check_target(side.manifest.target, host_target()):
            on_note(f"{side.path}: {text}")
    prompts = _encode(old, new, request, cache)
    num_threads = choose_threads(request.num_threads, old.manifest.target.tuned_for)
    with ExitStack() as stack:
        progress("loading")
        lineup = Lineup(stack)
        pairs = [(side.path, side.manifest) for side in (old, new)]
        longest = max(len(ids) for _, ids in prompts)
        add_bundles(lineup, pairs, num_threads, longest + request.num_tokens)
        # A bundle decodes with the tree of its schedule, or plainly if that says so.
        lineup.rows = [row for row in lineup.rows if row.way == "tree"]
        warm_up(lineup, prompts[0][1], progress)
        clock = Clock(lineup)
        rows = lineup.rows[0], lineup.rows[1]
        turns = take_turns(rows, clock, prompts, request, progress, cancelled)
        progress("")
        return {
            **report_turns(turns),
            "num_tokens": request.num_tokens,
            "repeats": request.repeats,
            "num_threads": num_threads,
            "device": host_target().tuned_for.device,
            "busy_share": fmean(clock.shares),
            "num_repeated": clock.num_repeated,
            "interrupted": cancelled(),
        }


def check_same_ids(old: Manifest, new: Manifest) -> None:
    """Raises RequestError for bundles in whose tokens a time per token is not the same thing."""
    problem = ""
    names = old.text.tokenizer, new.text.tokenizer
    if any(names):
        digests = [
            manifest.members[name].sha256 if name else "none"
            for manifest, name in zip((old, new), names, strict=True)
        ]
        if digests[0] != digests[1]:
            problem = f"their tokenizers are different ({digests[0][:16]}, {digests[1][:16]})"
    elif old.model.vocab_size != new.model.vocab_size:
        problem = f"they have {old.model.vocab_size} and {new.model.vocab_size} token ids"
    if problem:
        raise RequestError(
            f"bundles {old.name} and {new.name} cannot be timed against each other: {problem}",
            "leave out --measure and --fail-if-slower; `yggrt bench` times each on its own",
        )


def take_turns(
    rows: tuple[Row, Row],
    clock: Clock,
    prompts: Encoded,
    request: Request,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> list[Turns]:
    """The prompts that were finished; `cancelled` is asked between runs."""
    old, new = rows
    turns: list[Turns] = []
    for number, (name, ids) in enumerate(prompts, 1):
        runs: dict[Row, list[Timed]] = {old: [], new: []}
        for row in (old, new, new, old) * request.repeats:
            if cancelled():
                break
            progress(f"{number}/{len(prompts)} {name}: {'old' if row is old else 'new'}")
            runs[row].append(clock.run(row, ids, request.num_tokens))
        if cancelled():
            break
        for row, some in runs.items():
            if any(one.ids != some[0].ids for one in some):
                raise CheckFailed(
                    f"{row.title}, prompt {name}: two runs give different tokens",
                    "`yggrt verify` checks the bundle",
                )
        turns.append(Turns(name, tuple(runs[old]), tuple(runs[new])))
    if not turns:
        raise KeyboardInterrupt
    return turns


def report_turns(turns: Sequence[Turns]) -> dict[str, Any]:
    """In JSON types: `time_ratio`: geometric mean over prompts of the new bundle's time per token
    over the old one's, so that more than 1 is slower, with its 95 % interval; `num_equal`: prompts
    that both answer with the same tokens."""
    return {
        "tpot_ms": [median(one.tpot_ms[side] for one in turns) for side in (0, 1)],
        **geometric_ratio("time_ratio", [one.ratio for one in turns]),
        "num_prompts": len(turns),
        "num_equal": sum(one.old[0].ids == one.new[0].ids for one in turns),
        "per_prompt": [
            {
                "name": one.name,
                "tpot_ms": one.tpot_ms,
                "time_ratio": one.ratio,
            }
            for one in turns
        ],
    }


def check_not_slower(paired: dict[str, Any], most: float) -> None:
    """Raises CheckFailed if all of the interval says that the new bundle takes more than the share
    `most` longer for a token."""
    interval = paired["time_ratio_interval"]
    if interval[0] > 1 + most:
        raise CheckFailed(
            f"the new bundle takes {paired['time_ratio']:.3f}x [{interval[0]:.3f}, "
            f"{interval[1]:.3f}] the time of the old one for a token: all of the interval is more "
            f"than {most:.1%} slower",
            "the tables above say what changed",
        )


def _tpot_ms(runs: Sequence[Timed]) -> float:
    found = [one.tpot_ms for one in runs if one.tpot_ms is not None]
    assert len(found) == len(runs), "at least two tokens are asked for"
    return min(found)


def _encode(old: Side, new: Side, request: Request, cache: Cache) -> Encoded:
    """Of the old bundle, or of the new one where that holds less."""
    tighter = min(old, new, key=lambda side: side.manifest.model.max_model_len)
    with Bundle.open(tighter.path, cache=cache) as bundle:
        prompts = chosen_prompts(bundle, request.prompts, request.limit, None, request.num_tokens)
    if request.needs_interval and len(prompts) < 2:
        raise RequestError(
            f"{len(prompts)} prompt gives no interval to decide by", "give at least two prompts"
        )
    return prompts
