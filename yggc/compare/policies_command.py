"""`yggc compare --policies`."""

from __future__ import annotations

from pathlib import Path

from yggc.compare.page import show
from yggc.compare.policies import Request, compare_policies
from yggc.compare.policies_report import markdown
from yggc.compare.prompts import chosen_prompts
from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.sampling.params import SamplingParams
from yggrt.terminal import progress, silent, warn


def run_policies(
    file: Path,
    names: tuple[str, ...],
    *,
    prompts: tuple[Path, ...],
    limit: int,
    prompt_tokens: int | None,
    num_tokens: int,
    temperatures: tuple[float, ...],
    budgets: tuple[int, ...],
    num_threads: int | None,
    ladder: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compares, prints the page or one line of JSON and writes the page to `output`."""
    for temperature in temperatures:
        SamplingParams(temperature=temperature)
    cache = open_cache(None)
    with Bundle.open(file, cache=cache) as bundle:
        request = Request(
            names=names,
            prompts=chosen_prompts(bundle, prompts, limit, prompt_tokens, num_tokens),
            num_tokens=num_tokens,
            temperatures=temperatures,
            budgets=budgets,
            num_threads=num_threads,
            ladder=ladder,
        )
        report = compare_policies(
            bundle,
            cache,
            request,
            on_note=warn,
            progress=silent if as_json else progress,
        )
    show(report, markdown, output, as_json)
