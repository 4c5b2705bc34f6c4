"""`yggc train data`: prompts in, a folder of the verifier's answers out."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from yggc.errors import RecipeError, SourceError
from yggc.models.checkpoint import Checkpoint, context_limit, open_checkpoint
from yggc.models.source import resolve_source
from yggc.report import Reporter, StageProgress
from yggc.train.crew import share, write_together
from yggc.train.load import best_dtype, fast_products, load_model
from yggc.train.options import DataOptions, check_options, identity
from yggc.train.prompts import TrainPrompt, gather, mixed, read_excluded
from yggc.train.shards import TextFolder
from yggc.train.slots import Engine
from yggc.train.write import Answer, Request
from yggc.workdir import WorkDir
from yggrt.memory import available_memory_bytes
from yggrt.text import Text

# Longer prompts are left out: every slot has room for the longest.
MAX_PROMPT = 320
# A row in which this share of the runs of so many tokens was there before is dropped.
REPEAT_RUN, REPEAT_SHARE = 8, 0.5
# Between two reports of the speed.
_REPORT_S = 2.0


def write_data(options: DataOptions, work: WorkDir, reporter: Reporter) -> dict[str, Any]:
    """Writes text until there are `num_tokens` response tokens or the prompts end; the record."""
    check_options(options)
    excluded = read_excluded(options.exclude)
    gathered, num_excluded = gather(options.prompts, options.sources, excluded, options.seed)
    prompts = mixed(gathered, options.mix)
    if not prompts:
        raise RecipeError("no prompt is left", "give --prompts FILE or --sources builtin")
    reporter.say(f"{len(prompts)} prompts, {num_excluded} left out as evaluation prompts")

    checkpoint = open_checkpoint(
        resolve_source(options.verifier, work, options.verifier_sha256, "--verifier-sha256")
    )
    text = _text(checkpoint)
    longest = _longest_prompt(options, checkpoint)
    dtype = best_dtype(options.device) if options.dtype == "auto" else options.dtype
    record: dict[str, Any] = {
        "format": 1,
        "verifier": msgspec.to_builtins(checkpoint.source.record("verifier")),
        "license": checkpoint.license,
        "options": identity(options, checkpoint, dtype),
        "num_prompts": len(prompts),
        "num_excluded": num_excluded,
    }
    folder = TextFolder(options.output)
    with folder.opened(record["options"]):
        record["counts"] = dict(folder.counts)
        folder.write_record(record)
        if folder.counts["tokens"] < options.num_tokens:
            todo = [one for one in prompts if one.sha256 not in folder.done]
            _write(options, checkpoint, text, longest, todo, folder, dtype, reporter)
        record["counts"] = dict(folder.counts)
        folder.write_record(record)
    if folder.counts["tokens"] < options.num_tokens:
        reporter.say("the prompts ended first; give more of them with --prompts")
    return record


def _write(
    options: DataOptions,
    checkpoint: Checkpoint,
    text: Text,
    longest: int,
    prompts: Sequence[TrainPrompt],
    folder: TextFolder,
    dtype: str,
    reporter: Reporter,
) -> None:
    def requests() -> Iterator[Request]:
        for prompt in prompts:
            if folder.counts["tokens"] >= options.num_tokens:
                return
            ids = tuple(_encode(text, prompt.text))
            if len(ids) > longest:
                folder.drop(prompt.sha256, "long")
                continue
            yield Request(ids, _temperature(options, prompt), _seed(options, prompt), prompt)

    with reporter.stage("load"):
        model = load_model(checkpoint, dtype, options.device)
        room = longest + options.max_tokens
        num_slots = min(options.batch, len(prompts), _slots_that_fit(checkpoint, dtype, room))
        if num_slots < min(options.batch, len(prompts)):
            reporter.say(f"{num_slots} sequences at once: there is no memory for more")
        num_engines = min(options.num_threads, num_slots) if options.device == "cpu" else 1
        engines = [
            Engine(one, num_slots // num_engines, room) for one in share(model, num_engines)
        ]
    with (
        reporter.stage("write", total=options.num_tokens) as progress,
        fast_products(dtype),
    ):
        progress.advance(folder.counts["tokens"])
        meter = _Meter(progress, folder)
        try:
            for answer in write_together(
                engines, requests(), checkpoint.eos_ids(), options.max_tokens
            ):
                if repeats(answer.ids):
                    folder.drop(answer.request.key.sha256, "repeats")
                else:
                    folder.add(_row(answer, dtype))
                meter.tick(len(answer.ids))
        finally:
            folder.flush()


class _Meter:
    """Tells the speed from time to time."""

    def __init__(self, progress: StageProgress, folder: TextFolder) -> None:
        self._progress, self._folder = progress, folder
        self._start = self._last = time.monotonic()
        self._shown = folder.counts["tokens"]
        self._written = 0

    def tick(self, num_tokens: int) -> None:
        self._written += num_tokens
        now = time.monotonic()
        if now - self._last < _REPORT_S:
            return
        self._last = now
        counts = self._folder.counts
        speed = self._written / (now - self._start)
        note = f"{speed:.0f} tokens/s, {counts['rows']} rows, {counts['dropped']} dropped"
        self._progress.advance(counts["tokens"] - self._shown, note)
        self._shown = counts["tokens"]


def repeats(ids: Sequence[int]) -> bool:
    """Whether half or more of the runs of eight tokens were there before."""
    runs = [tuple(ids[i : i + REPEAT_RUN]) for i in range(len(ids) - REPEAT_RUN + 1)]
    return bool(runs) and len(runs) - len(set(runs)) >= REPEAT_SHARE * len(runs)


def _row(answer: Answer, dtype: str) -> dict[str, Any]:
    prompt: TrainPrompt = answer.request.key
    return {
        "category": prompt.category,
        "temperature": answer.request.temperature,
        "num_prompt": len(answer.request.ids),
        "ids": [*answer.request.ids, *answer.ids],
        "finish": answer.finish,
        "engine": dtype,
        "prompt_sha256": prompt.sha256,
    }


def _encode(text: Text, prompt: str) -> list[int]:
    if text.has_chat:
        return text.encode_chat([{"role": "user", "content": prompt}])
    return text.encode(prompt)


def _seed(options: DataOptions, prompt: TrainPrompt) -> str:
    return f"{options.seed} {prompt.sha256}"


def _temperature(options: DataOptions, prompt: TrainPrompt) -> float:
    # By the prompt alone, so that it does not matter which run writes it.
    chance = random.Random(f"greedy {_seed(options, prompt)}").random()
    return 0.0 if chance < options.greedy_share else options.temperature


def _slots_that_fit(checkpoint: Checkpoint, dtype: str, room: int) -> int:
    """Slots whose keys and values take half of the memory that is left, at least one."""
    config = checkpoint.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * heads * size * (2 if dtype == "bfloat16" else 4)
    return max(1, available_memory_bytes() // 2 // (per_token * room))


def _longest_prompt(options: DataOptions, checkpoint: Checkpoint) -> int:
    limit = context_limit(checkpoint.config)
    if options.max_tokens >= limit:
        raise RecipeError(
            f"--max-tokens is {options.max_tokens}, the model's context has {limit} tokens",
            "give fewer, so that a prompt has room too",
        )
    return min(MAX_PROMPT, limit - options.max_tokens)


def _text(checkpoint: Checkpoint) -> Text:
    tokenizer = checkpoint.tokenizer_json()
    if tokenizer is None:
        raise SourceError(
            f"{checkpoint.source.location}: has no tokenizer, wanted one to put prompts with",
            "add tokenizer.json to the model's directory",
        )
    return Text(checkpoint.text_info(), tokenizer)
