"""Plain and tree decoding of the same prompts, in turns.

Plain, tree, tree, plain: a machine that slows down or speeds up does so for both. Every output is
compared, so a speed is never that of other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from time import perf_counter

from yggrt.core.errors import CheckFailed, RequestError
from yggrt.prompts import Prompt
from yggrt.session import Completion, Session
from yggrt.verify import first_difference

WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One timed output. `gaps_ms`: from each pass's tokens to those of the next."""

    done: Completion
    gaps_ms: tuple[float, ...]

    @property
    def tpot_ms(self) -> float:
        assert self.done.stats.tpot_ms is not None, "only outputs of two tokens and more are timed"
        return self.done.stats.tpot_ms


@dataclass(frozen=True, slots=True)
class Turn:
    """All runs of one turn of a prompt; `plain[i]` and `tree[i]` were neighbours in time."""

    number: int
    plain: tuple[Run, ...]
    tree: tuple[Run, ...]

    @property
    def is_timed(self) -> bool:
        """Whether there is a time per token: an output of one token has none."""
        return len(self.plain[0].done.ids) > 1

    @property
    def speedup(self) -> float:
        """Mean over neighbouring runs of plain over tree time per token."""
        pairs = zip(self.plain, self.tree, strict=True)
        return fmean(plain.tpot_ms / tree.tpot_ms for plain, tree in pairs)

    @property
    def spreads(self) -> list[float]:
        """How far the two tree runs in the middle of each round differ, over their mean."""
        runs = [run.tpot_ms for run in self.tree]
        return [abs(a - b) / fmean((a, b)) for a, b in zip(runs[::2], runs[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one prompt that were timed, at least one; each followed the answers before."""

    prompt: Prompt
    turns: tuple[Turn, ...]

    @property
    def speedup(self) -> float:
        return fmean(turn.speedup for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bench ran. `num_left_out`: later turns whose conversation exceeded the context."""

    conversations: tuple[Conversation, ...]
    num_left_out: int
    warmup_s: float
    is_interrupted: bool


def run_bench(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Measured:
    """Runs every turn of every prompt as plain, tree, tree, plain, `repeats` times.

    `cancelled` is asked after each pass: what it interrupts is dropped, what was finished is
    returned. Raises RequestError for a prompt that does not fit, CheckFailed if trees and plain
    decoding emit different ids, KeyboardInterrupt if not one prompt was finished.
    """
    for prompt in prompts:
        _check_fits(session, prompt)
    start = perf_counter()
    for plain in (True, False):
        session.generate(_encode(session, prompts[0]), max_tokens=WARMUP_TOKENS, plain=plain)
    warmup_s = perf_counter() - start
    conversations = []
    num_left_out = 0
    for number, prompt in enumerate(prompts, 1):
        progress(f"{number}/{len(prompts)} {prompt.name}")
        turns: list[Turn] = []
        while len(turns) < len(prompt.turns) and not cancelled():
            answers = [turn.plain[0].done.text for turn in turns]
            ids = _encode(session, prompt, answers)
            if len(ids) >= session.graphs.max_model_len:
                num_left_out += len(prompt.turns) - len(turns)
                break
            name = prompt.name if len(prompt.turns) == 1 else f"{prompt.name}/{len(turns) + 1}"
            runs = _run_rounds(session, name, ids, num_tokens, repeats, cancelled)
            turns.append(Turn(len(turns) + 1, *runs))
        if cancelled():
            break
        if timed := tuple(turn for turn in turns if turn.is_timed):
            conversations.append(Conversation(prompt, timed))
    progress("")
    if not conversations:
        if cancelled():
            raise KeyboardInterrupt
        raise RequestError(
            "every output ended after its first token, so there is no time per token",
            "choose other prompts",
        )
    return Measured(tuple(conversations), num_left_out, warmup_s, cancelled())


def _run_rounds(
    session: Session,
    name: str,
    ids: Sequence[int],
    num_tokens: int,
    repeats: int,
    cancelled: Callable[[], bool],
) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    plain: list[Run] = []
    tree: list[Run] = []
    for _ in range(repeats):
        for into in (plain, tree, tree, plain):
            into.append(_timed(session, ids, num_tokens, into is plain, cancelled))
            if cancelled():
                return tuple(plain), tuple(tree)
    for other in (*plain, *tree):
        index = first_difference(plain[0].done.ids, other.done.ids)
        if index is not None:
            raise CheckFailed(
                f"prompt {name}: token {index} is not the same in all runs of plain and tree "
                "decoding",
                "`yggrt verify --prompts` shows the tokens and how close they are",
            )
    return tuple(plain), tuple(tree)


def _timed(
    session: Session,
    ids: Sequence[int],
    num_tokens: int,
    plain: bool,
    cancelled: Callable[[], bool],
) -> Run:
    arrivals = []
    for _ in session.stream(ids, max_tokens=num_tokens, plain=plain, cancelled=cancelled):
        arrivals.append(perf_counter())
    assert session.last is not None, "a stream that was read to its end"
    gaps = (1e3 * (b - a) for a, b in pairwise(arrivals))
    return Run(session.last, tuple(gaps))


def fitting(session: Session, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that leave the context room for output; RequestError if there is none."""
    limit = session.graphs.max_model_len
    kept = [prompt for prompt in prompts if len(_encode(session, prompt)) < limit]
    if not kept:
        raise RequestError(
            f"none of the bundle's {len(prompts)} prompts fits its context of {limit} tokens",
            "give shorter ones with --prompts FILE",
        )
    return kept


def _check_fits(session: Session, prompt: Prompt) -> None:
    num, limit = len(_encode(session, prompt)), session.graphs.max_model_len
    if num >= limit:
        raise RequestError(
            f"prompt {prompt.name} has {num} tokens, the context holds {limit} with at least one "
            "of output",
            "leave it out, or build with a larger --max-model-len",
        )


def _encode(session: Session, prompt: Prompt, answers: Sequence[str] = ()) -> list[int]:
    if session.text is None:
        raise RequestError(
            "the bundle has no tokenizer, so it takes no prompts of text",
            "build it with a verifier that has a tokenizer",
        )
    return prompt.encode(session.text, answers)
