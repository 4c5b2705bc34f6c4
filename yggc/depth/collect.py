"""Traces of a pair on calibration prompts: answered, read and drafted over, or from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from yggc.depth.files import Traced, read_traces, write_traces
from yggc.depth.options import DepthOptions
from yggc.depth.pair import Pair
from yggc.depth.prompts import CalibrationPrompt
from yggc.depth.rows import read_rows
from yggc.depth.traces import Tracer
from yggc.errors import RecipeError
from yggc.report import Reporter
from yggrt.core.spec import format_tree_spec
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.scheduling import record_answers

# With fewer passes to fit to, most heads would not see a hundred.
MIN_TRACES = 200


def collect(
    pair: Pair, prompts: Sequence[CalibrationPrompt], options: DepthOptions, reporter: Reporter
) -> Traced:
    """The traces of `options.traces` where that file exists, else new ones, which it then holds.

    Raises RecipeError for fewer than MIN_TRACES, SourceError for a file of other traces.
    """
    path = options.traces
    facts = {
        "bundle": pair.bundle.digest,
        "tree": format_tree_spec(pair.full),
        "temperature": float(options.temperature),
        "max_tokens": options.max_tokens,
        "prompts": hashlib.sha256(repr(prompts).encode()).hexdigest(),
        "seed": options.fit.seed,
    }
    if path is not None and path.exists():
        traced = read_traces(path, facts)
    else:
        traced = _trace(pair, prompts, options.max_tokens, reporter)
        if path is not None:
            write_traces(path, traced, facts)
    num = len(traced.traces)
    if num < MIN_TRACES:
        raise RecipeError(
            f"{num} traces of {len(prompts)} prompts, wanted {MIN_TRACES} or more",
            "give more --prompts, or more tokens of each with --max-tokens",
        )
    return traced


def _trace(
    pair: Pair, prompts: Sequence[CalibrationPrompt], max_tokens: int, reporter: Reporter
) -> Traced:
    num = len(prompts)
    with reporter.stage("answer", total=num) as progress:
        recordings, _ = record_answers(
            pair.graphs,
            NgramDrafter(DEFAULT_PARAMETERS),
            [one.ids for one in prompts],
            max_tokens,
            pair.manifest.model.eos_ids,
            on_answer=progress.advance,
            sampler_for=pair.sampler,
        )
    rows = []
    with reporter.stage("read rows", total=num) as progress:
        for one in read_rows(pair.bundle, pair.graphs, recordings):
            rows.append(one)
            progress.advance()
    tracer = Tracer(pair.full, pair.graphs.row_counts, pair.costs, pair.objective)
    with reporter.stage("trace", total=num) as progress:
        traces = tracer.run(
            [
                (
                    number,
                    drafter,
                    rows[number],
                    getattr(pair.sampler(number, recordings[number].prompt), "noise", None),
                )
                for number, drafter in pair.drafters(recordings)
            ],
            progress.advance,
        )
    return Traced(traces, recordings, [one.category for one in prompts])
