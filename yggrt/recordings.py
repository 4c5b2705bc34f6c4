"""What a bundle brings to try trees on: its calibration prompts and answers, or answers to its
other prompts that are decoded now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from yggrt.bundle import Bundle
from yggrt.core.passes import DraftGraphs, Graphs
from yggrt.core.schema import LookaheadDrafter as LookaheadParameters
from yggrt.core.schema import Manifest
from yggrt.core.schema import MedusaDrafter as MedusaParameters
from yggrt.core.schema import NgramDrafter as NgramParameters
from yggrt.drafters.calibrate import Recording, held_out
from yggrt.drafters.joined import joined_folds
from yggrt.drafters.lookahead import LookaheadDrafter
from yggrt.drafters.ngram import NgramDrafter
from yggrt.loading import load_text, model_drafter
from yggrt.prompts import parse_prompts
from yggrt.scheduling import Fold, record_answers, with_answer_hidden, with_hidden

# Bundles of format 2 bring no recordings: so many tokens of each prompt are decoded instead.
NUM_TOKENS = 32


def bundle_folds(
    bundle: Bundle,
    graphs: Graphs,
    budget_s: float,
    progress: Callable[[str], None] = lambda text: None,
    draft: DraftGraphs | None = None,
) -> list[Fold]:
    """Recordings, each with a drafter that does not know them; `draft`: graphs of the model that
    drafts, if one does.

    Where the bundle has none, its bench prompts are decoded until `budget_s` is over; without
    text its golden prompts are.
    """
    manifest = bundle.manifest
    parameters = manifest.schedule.drafter
    recordings = [
        Recording(one.prompt_ids, one.output_ids) for one in manifest.schedule.recordings
    ]
    if recordings or not isinstance(parameters, NgramParameters):
        return folds_of(manifest, graphs, recordings, draft)
    prompts, drafter = _other_prompts(bundle, graphs, parameters)
    answers, _ = record_answers(
        graphs, drafter, prompts, NUM_TOKENS, manifest.model.eos_ids,
        budget_s=budget_s, on_answer=lambda: progress("decode prompts"),
    )  # fmt: skip
    return [(drafter, answers)]


def folds_of(
    manifest: Manifest,
    graphs: Graphs,
    recordings: list[Recording],
    draft: DraftGraphs | None = None,
) -> list[Fold]:
    """As `recorded_folds`; hidden rows are made anew where the drafter reads them."""
    recordings = with_needed_hidden(manifest, graphs, recordings, draft)
    return recorded_folds(manifest, graphs, recordings, draft)


def with_needed_hidden(
    manifest: Manifest,
    graphs: Graphs,
    recordings: Sequence[Recording],
    draft: DraftGraphs | None,
) -> list[Recording]:
    """The recordings with what the graphs give as hidden, as far as the bundle's drafter reads
    it."""
    if isinstance(manifest.schedule.drafter, MedusaParameters):
        return list(with_answer_hidden(graphs, recordings))
    if draft is not None and draft.feature_size:
        return with_hidden(graphs, recordings)
    return list(recordings)


def recorded_folds(
    manifest: Manifest,
    graphs: Graphs,
    recordings: Sequence[Recording],
    draft: DraftGraphs | None = None,
) -> list[Fold]:
    """The recordings, each with a drafter of the bundle's kind that does not know them; `draft`
    as for `bundle_folds`. A head reads their hidden rows when it drafts over them."""
    parameters, ngram = manifest.schedule.drafter, manifest.schedule.ngram
    if isinstance(parameters, LookaheadParameters):
        return [(LookaheadDrafter(), recordings)]
    if isinstance(parameters, NgramParameters):
        return list(held_out(parameters, recordings))
    model = model_drafter(graphs, draft, parameters, manifest.model.vocab_size)
    return [(model, recordings)] if ngram is None else [*joined_folds(model, ngram, recordings)]


def _other_prompts(
    bundle: Bundle, graphs: Graphs, parameters: NgramParameters
) -> tuple[list[list[int]], NgramDrafter]:
    manifest = bundle.manifest
    text, name = load_text(bundle), manifest.bench_prompts
    if text is not None and name:
        encoded = [one.encode(text) for one in parse_prompts(bundle.read(name), name)]
        fitting = [ids for ids in encoded if len(ids) + NUM_TOKENS < graphs.max_model_len]
        if fitting:
            return fitting, NgramDrafter(parameters)
    golden = [list(one.prompt_ids) for one in manifest.golden]
    return golden, NgramDrafter(_without_golden(manifest, parameters))


def _without_golden(manifest: Manifest, drafter: NgramParameters) -> NgramParameters:
    """The drafter's parameters without the answers to the golden prompts, which are its first."""
    return msgspec.structs.replace(drafter, corpus=drafter.corpus[len(manifest.golden) :])
