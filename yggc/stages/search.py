"""search: which tree to draft and which graphs to ship, from measured times and measured
acceptance.

The verifier answers the calibration prompts once; `yggrt.scheduling` replays every candidate tree
over the recorded ids and measures the best few.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from yggc.context import Context
from yggc.inputs import calibration_file
from yggc.stages.adapt import AdaptedModel
from yggc.stages.graphs import BoundGraphs, bind_graphs
from yggc.stages.load import TOKENIZER_MEMBER, Loaded
from yggc.stages.profile import Profile
from yggrt.core.schema import LookaheadDrafter as LookaheadParameters
from yggrt.core.schema import ModelDrafter, Record, Schedule
from yggrt.core.schema import NgramDrafter as NgramParameters
from yggrt.core.search import trees_for, window_trees
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.calibrate import Recording, calibrate_ngram, held_out
from yggrt.drafters.calibrate_eagle import calibrate_eagle
from yggrt.drafters.calibrate_lm import calibrate_lm
from yggrt.drafters.calibrate_medusa import calibrate_medusa
from yggrt.drafters.joined import joined_folds
from yggrt.drafters.lookahead import LookaheadDrafter
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.latency import LatencyTable
from yggrt.loading import model_drafter
from yggrt.prompts import read_prompts
from yggrt.scheduling import (
    Fold,
    Limits,
    find_schedule,
    measured_costs,
    model_costs,
    record_answers,
    with_answer_hidden,
    with_hidden,
)
from yggrt.text import Text

NUM_RANDOM_IDS = 32
# A model that drafts takes its time in a replay, so it is replayed over so many answers.
NUM_REPLAYED = 12


class Searched(Record, frozen=True):
    """The schedule, and how many tokens of calibration it rests on."""

    schedule: Schedule
    num_tokens: int


def key(context: Context, loaded: Loaded, adapted: AdaptedModel, profile: Profile) -> Any:
    config = context.config
    prompts = read_prompts(calibration_file(context.config))
    digest = hashlib.sha256(repr(prompts).encode()).hexdigest()
    return [
        loaded,
        profile,
        digest,
        config.tree,
        config.calibration_tokens,
        config.objective,
        config.joins_ngram,
        config.drafter == "lookahead",
    ]


def run(
    context: Context, out: Path, loaded: Loaded, adapted: AdaptedModel, profile: Profile
) -> Searched:
    config = context.config
    bound = bind_graphs(context, loaded, adapted)
    torch.set_num_threads(config.threads)
    prompts = calibration_ids(context, loaded, adapted)
    eos_ids = set(adapted.model.eos_ids)
    with context.reporter.stage("calibrate", total=len(prompts)) as progress:
        recordings, run = record_answers(
            bound.graphs,
            NgramDrafter(DEFAULT_PARAMETERS),
            prompts,
            config.calibration_tokens,
            eos_ids,
            on_answer=progress.advance,
        )
    table = LatencyTable.of(profile.latency, bound.specs)
    costs = measured_costs(table, run)
    given = None if config.tree == "auto" else [parse_tree_spec(config.tree)]
    folds: Sequence[Fold]
    shipped: NgramParameters | ModelDrafter | LookaheadParameters
    ngram: NgramParameters | None = None
    if config.drafter == "lookahead":
        shipped = LookaheadParameters()
        folds = [(LookaheadDrafter(), recordings)]
        given = window_trees(config.buckets) if given is None else given
    elif loaded.drafter is None:
        shipped = calibrate_ngram(recordings)
        folds = held_out(shipped, recordings)
    else:
        with context.reporter.stage("calibrate drafter"):
            model, folds = _calibrate_model(context, loaded, loaded.drafter, bound, recordings)
        shipped = model
        if config.joins_ngram:
            ngram = calibrate_ngram(recordings)
            folds = [fold for one, few in folds for fold in joined_folds(one, ngram, few)]
        costs = model_costs(costs, run, table.draft_step)
        if given is None:
            given = trees_for(model, config.drafter_widths, config.buckets, config.max_depth)
    with context.reporter.stage("search trees") as progress:
        schedule = find_schedule(
            bound.graphs,
            folds,
            costs,
            shipped,
            buckets=config.buckets,
            trees=given,
            form=config.objective,
            eos_ids=eos_ids,
            limits=Limits(),
            progress=lambda text: progress.advance(1, text),
            ngram=ngram,
        )
    return Searched(schedule=schedule, num_tokens=sum(len(one.output) for one in recordings))


def _calibrate_model(
    context: Context,
    loaded: Loaded,
    drafter: Loaded,
    bound: BoundGraphs,
    recordings: Sequence[Recording],
) -> tuple[ModelDrafter, list[Fold]]:
    """The parameters of a model that drafts, measured on the recordings that are not replayed
    where there are enough, and what to replay: it runs the model's graphs.
    """
    graphs, draft, depth = bound.graphs, bound.draft, context.config.max_depth
    few, others = recordings[:NUM_REPLAYED], recordings[NUM_REPLAYED:] or recordings
    vocab_size, draft_ids = loaded.config["vocab_size"], drafter.draft_ids
    parameters: ModelDrafter
    if draft is None:
        # The logits of all heads are large: one recording's at a time.
        streamed = with_answer_hidden(graphs, others)
        parameters = calibrate_medusa(streamed, drafter.config["num_heads"], draft_ids)
        few = list(with_answer_hidden(graphs, few))
    elif draft.feature_size:
        few, others = with_hidden(graphs, few), with_hidden(graphs, others)
        parameters = calibrate_eagle(draft, others, draft_ids, depth)
    else:
        parameters = calibrate_lm(draft, others, vocab_size, depth)
    return parameters, [(model_drafter(graphs, draft, parameters, vocab_size), few)]


def calibration_ids(context: Context, loaded: Loaded, adapted: AdaptedModel) -> list[list[int]]:
    """The calibration prompts as ids that leave room for their outputs; random ids for a model
    without tokenizer.
    """
    tokens = context.config.calibration_tokens
    room = adapted.model.max_model_len - tokens - 1
    prompts = read_prompts(calibration_file(context.config))
    if loaded.text.tokenizer:
        text = Text(loaded.text, (context.folders["load"] / TOKENIZER_MEMBER).read_bytes())
        ids = [prompt.encode(text) for prompt in prompts]
    else:
        draw = random.Random(0)
        ids = [
            [draw.randrange(adapted.model.vocab_size) for _ in range(NUM_RANDOM_IDS)]
            for _ in prompts
        ]
    return [one[: max(room, 1)] for one in ids if one]
