"""Runs every row on every prompt, in turns, and reports.

The order is reversed for every other prompt (A B C, C B A), so that a machine that slows down or
speeds up does so for all; ratios are taken prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import sleep
from typing import Any

from yggc.compare.process import WorkerError
from yggc.compare.protocol import Library, Setup, Timed
from yggc.compare.report import Decoded, report
from yggc.compare.rows import Lineup, Row, add_baselines, add_bundles, is_exact, warm_up
from yggc.compare.source import check_same_verifier, find_drafter, find_source
from yggc.workdir import WorkDir
from yggrt.bundle import Bundle
from yggrt.busy import BUSY_SHARE, BusyMeter
from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.schema import Manifest
from yggrt.loading import choose_threads, load_text
from yggrt.prompts import Prompt, parse_prompts, read_prompt_files
from yggrt.text import Text
from yggrt.verify import first_difference

# OpenMP runtimes let their threads spin for up to 200 ms after the last parallel loop.
_REST_S = 0.25
_MAX_TRIES = 4
# Room behind the last token for what lookups guess.
_MARGIN = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What `yggc compare` was asked for. `source` and `drafter_source`: paths, None for where the
    bundle says. `lookups`: tokens to guess at once by prompt lookup, a row each. `prefills`:
    lengths of prompts to time the first token after.
    """

    bundles: tuple[Path, ...]
    source: str | None
    drafter_source: str | None
    prompts: tuple[Path, ...]
    limit: int
    num_tokens: int
    num_threads: int | None
    baselines: tuple[Library, ...]
    lookups: tuple[int, ...]
    prefills: tuple[int, ...]


def compare(
    request: Request,
    work: WorkDir,
    progress: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """The report in JSON types. `cancelled` is asked between runs: what was finished is reported.

    Raises SourceError, RequestError, CheckFailed if a bundle's trees change a token, and
    KeyboardInterrupt if not one prompt was finished.
    """
    bundles = [_open(path) for path in request.bundles]
    manifests = [manifest for manifest, *_ in bundles]
    verifier = check_same_verifier(manifests)
    prompts = _encode(request, bundles)
    configured = str(manifests[0].config.get("verifier", ""))
    source = find_source(verifier, configured, request.source, work)
    drafter = find_drafter(manifests, verifier, request.drafter_source, work)
    num_threads = choose_threads(request.num_threads, manifests[0].target.tuned_for)
    needed = max([*(len(ids) for _, ids in prompts), *request.prefills])
    setup = Setup(
        library="yggrt",
        model=str(source.path),
        drafter="" if isinstance(drafter, str) else str(drafter.path),
        num_threads=num_threads,
        context=needed + request.num_tokens + _MARGIN,
    )
    with ExitStack() as stack:
        lineup = Lineup(stack)
        progress("loading")
        pairs = list(zip(request.bundles, manifests, strict=True))
        add_bundles(lineup, pairs, num_threads, setup.context)
        exact = next((i for i, manifest in enumerate(manifests) if is_exact(manifest)), None)
        probe = prompts[0][1]
        add_baselines(
            lineup, request.baselines, source, drafter, request.lookups, setup, exact, probe
        )
        warm_up(lineup, probe, progress)
        clock = Clock(lineup)
        decoded = _take_turns(lineup, clock, prompts, request.num_tokens, progress, cancelled)
        prefilled = _prefill(lineup, clock, prompts, request.prefills, progress, cancelled)
        progress("")
        about = [{"name": manifest.name, "digest": digest} for manifest, _, _, digest in bundles]
        return {"bundles": about} | report(
            lineup,
            decoded,
            prefilled,
            source=verifier,
            num_tokens=request.num_tokens,
            num_threads=num_threads,
            busy_share=fmean(clock.shares),
            num_repeated=clock.num_repeated,
            is_interrupted=cancelled(),
        )


class Clock:
    """Runs rows and repeats runs that other processes disturbed; of several tries the least
    disturbed counts, not the fastest. `shares`: what others took of each run that counts.
    """

    def __init__(self, lineup: Lineup) -> None:
        self._busy = BusyMeter([worker.pid for worker in lineup.workers])
        self.shares: list[float] = []
        self.num_repeated = 0

    def run(self, row: Row, ids: list[int], num_tokens: int) -> Timed:
        """Raises WorkerError as the row does."""
        tries: list[tuple[float, Timed]] = []
        while len(tries) < _MAX_TRIES and all(share > BUSY_SHARE for share, _ in tries):
            sleep(_REST_S)
            self._busy.restart()
            timed = row.decode(ids, num_tokens)
            tries.append((self._busy.share(), timed))
        share, timed = min(tries, key=lambda one: one[0])
        self.shares.append(share)
        self.num_repeated += len(tries) - 1
        return timed


def _open(path: Path) -> tuple[Manifest, Text, list[Prompt], str]:
    with Bundle.open(path) as bundle:
        text = load_text(bundle)
        if text is None:
            raise RequestError(
                f"{path}: the bundle has no tokenizer, so it takes no prompts of text",
                "build it with a verifier that has a tokenizer",
            )
        name = bundle.manifest.bench_prompts
        shipped = parse_prompts(bundle.read(name), name) if name else []
        return bundle.manifest, text, shipped, bundle.digest


def _encode(
    request: Request, bundles: Sequence[tuple[Manifest, Text, list[Prompt], str]]
) -> list[tuple[Prompt, list[int]]]:
    """Prompts and their ids; the first turn of those with several."""
    limit = min(manifest.model.max_model_len for manifest, *_ in bundles)
    _, text, shipped, _ = bundles[0]
    room = limit - request.num_tokens
    for length in request.prefills:
        if not 0 < length < limit:
            raise RequestError(
                f"--prefill is {length}, the context holds {limit} tokens", "give a smaller one"
            )
    if not request.prompts:
        encoded = [(prompt, prompt.encode(text)) for prompt in shipped]
        fitting = [one for one in encoded if len(one[1]) <= room][: request.limit]
        if not fitting:
            raise RequestError(
                f"none of the bundle's {len(shipped)} prompts leaves its context of {limit} "
                f"tokens room for {request.num_tokens} more",
                "give some with --prompts FILE",
            )
        return fitting
    prompts = read_prompt_files(request.prompts, request.limit)
    encoded = [(prompt, prompt.encode(text)) for prompt in prompts]
    for prompt, ids in encoded:
        if len(ids) > room:
            raise RequestError(
                f"prompt {prompt.name} has {len(ids)} tokens, the context of {limit} leaves room "
                f"for {room} beside {request.num_tokens} of output",
                "leave it out, or decode fewer tokens with -n",
            )
    return encoded


def _take_turns(
    lineup: Lineup,
    clock: Clock,
    prompts: Sequence[tuple[Prompt, list[int]]],
    num_tokens: int,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> list[Decoded]:
    decoded: list[Decoded] = []
    for number, (prompt, ids) in enumerate(prompts):
        tpot_ms: dict[Row, float] = {}
        ttft_ms: dict[Row, float] = {}
        said: dict[Row, list[int]] = {}
        for row in list(lineup.rows)[:: -1 if number % 2 else 1]:
            if cancelled():
                break
            progress(f"{number + 1}/{len(prompts)} {prompt.name}: {row.title}")
            try:
                timed = clock.run(row, ids, num_tokens)
            except WorkerError as error:
                lineup.drop(row, error.reason)
                continue
            assert timed.tpot_ms is not None, "at least two tokens are asked for"
            tpot_ms[row], ttft_ms[row], said[row] = timed.tpot_ms, timed.ttft_ms, timed.ids
        if cancelled():
            break
        one = Decoded(prompt, tpot_ms, ttft_ms, said)
        _check_trees(one)
        decoded.append(one)
    if not decoded:
        raise KeyboardInterrupt
    return decoded


def _check_trees(one: Decoded) -> None:
    plain = {row.bundle: ids for row, ids in one.ids.items() if row.way == "plain"}
    for row, ids in one.ids.items():
        if row.way == "tree":
            index = first_difference(plain[row.bundle], ids)
            if index is not None:
                raise CheckFailed(
                    f"{row.title}, prompt {one.prompt.name}: token {index} is not that of plain "
                    "decoding",
                    "`yggrt verify --prompts` shows the tokens and how close they are",
                )


def _prefill(
    lineup: Lineup,
    clock: Clock,
    prompts: Sequence[tuple[Prompt, list[int]]],
    lengths: Sequence[int],
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> dict[int, dict[Row, list[float]]]:
    """Milliseconds to the first token after prompts of `lengths` tokens, three times in turns."""
    rows = [row for row in lineup.rows if row.way == "plain"]
    taken: dict[int, dict[Row, list[float]]] = {}
    for length in lengths:
        joined = [token for _, ids in prompts for token in ids]
        ids = (joined * (length // len(joined) + 1))[:length]
        times: dict[Row, list[float]] = {row: [] for row in rows}
        for turn in range(3):
            for row in rows[:: -1 if turn % 2 else 1]:
                if cancelled():
                    return taken
                progress(f"prefill of {length}: {row.title}")
                times[row].append(clock.run(row, ids, 1).ttft_ms)
        taken[length] = times
    return taken
