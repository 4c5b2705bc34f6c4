"""search: which tree to draft and which graphs to ship, from measured times and measured
acceptance.

The verifier answers the calibration prompts once; every candidate tree is then replayed over the
recorded ids.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from yggc.config import BuildConfig
from yggc.context import Context
from yggc.stages.adapt import AdaptedModel
from yggc.stages.graphs import BoundGraphs, bind_graphs
from yggc.stages.load import TOKENIZER_MEMBER, Loaded
from yggc.stages.profile import Profile
from yggrt.core.schema import Candidate, Record, Schedule
from yggrt.core.schema import LmDrafter as LmParameters
from yggrt.core.schema import NgramDrafter as NgramParameters
from yggrt.core.search import Replay, choose_buckets, combine, search_schedule
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec
from yggrt.drafters.calibrate import calibrate_ngram, held_out
from yggrt.drafters.calibrate_lm import calibrate_lm
from yggrt.drafters.lm import LmDrafter
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate, RunningGate
from yggrt.graphs import AotGraphs
from yggrt.latency import steps_latency, verify_latency
from yggrt.prompts import read_prompts
from yggrt.replay import replay
from yggrt.text import Text

SHIPPED = "calibration.jsonl"
WIDTHS = (1, 2, 4, 8)
DEPTHS = (2, 4, 6, 8)
# A model that drafts takes its time in a replay, so it is replayed less.
DRAFT_DEPTHS = (1, 2, 3, 4, 6, 8)
NUM_REPLAYED = 12
NUM_RANDOM_IDS = 32


class HostTimes(NamedTuple):
    """The host's seconds per pass outside the verifier's graphs: drafting, and all else."""

    draft_s: float
    other_s: float


class Searched(Record, frozen=True):
    """The schedule, and how many tokens of calibration it rests on."""

    schedule: Schedule
    num_tokens: int


def _prompt_file(context: Context) -> Path:
    if context.config.calibration == "shipped":
        return Path(str(files("ygg_artifacts.prompts") / SHIPPED))
    return Path(context.config.calibration)


def key(context: Context, loaded: Loaded, adapted: AdaptedModel, profile: Profile) -> Any:
    config = context.config
    prompts = read_prompts(_prompt_file(context))
    digest = hashlib.sha256(repr(prompts).encode()).hexdigest()
    return [loaded, profile, digest, config.tree, config.calibration_tokens]


def run(
    context: Context, out: Path, loaded: Loaded, adapted: AdaptedModel, profile: Profile
) -> Searched:
    config = context.config
    bound = bind_graphs(context, loaded, adapted)
    torch.set_num_threads(config.threads)
    latency = verify_latency(profile.latency, bound.names("verify"))
    prompts = calibration_ids(context, loaded, adapted)
    recordings, host = _record(context, bound.graphs, prompts, set(adapted.model.eos_ids))
    drafter: NgramParameters | LmParameters
    if bound.draft is None:
        rest_s = host.draft_s + host.other_s
        drafter = calibrate_ngram(recordings)
        replays = _replay_trees(context, bound.graphs, drafter, recordings, latency, rest_s)
    else:
        rest_s = host.other_s
        drafter, replays = _replay_draft_model(
            context, bound, adapted, profile, recordings, latency, rest_s
        )
    candidates = search_schedule(replays, latency, rest_s)
    tree = candidates[0].tree if config.tree == "auto" else config.tree
    schedule = Schedule(
        tree=tree,
        drafter=drafter,
        rest_s=rest_s,
        buckets=next((choose_buckets(r) for r in replays if r.tree == tree), (1,)),
        candidates=_shortlist(candidates),
    )
    return Searched(schedule=schedule, num_tokens=sum(len(output) for _, output in recordings))


def _record(
    context: Context, graphs: AotGraphs, prompts: list[list[int]], eos_ids: set[int]
) -> tuple[list[tuple[list[int], list[int]]], HostTimes]:
    """(prompt, output) ids, and the host's times with n-gram drafts.

    Decodes with a tree, which is faster and emits plain decoding's ids.
    """
    largest = graphs.row_counts[-1]
    tree = f"egt:width=4,depth=4,children=8,verify={largest}" if largest > 1 else "plain"
    drafter = NgramDrafter(DEFAULT_PARAMETERS)
    spec, cache = parse_tree_spec(tree), graphs.new_cache()
    engine = Engine(graphs, cache, drafter, spec, lambda rows: 1.0, 0.0, OpenGate())
    recordings = []
    draft_s = other_s = num_passes = 0.0
    with context.reporter.stage("calibrate", total=len(prompts)) as progress:
        for prompt in prompts:
            output = decode(engine, prompt, context.config.calibration_tokens, eos_ids)
            recordings.append((prompt, output))
            stages = engine.stats.stage_s
            draft_s += stages["draft"]
            other_s += stages["accept"] + stages["commit"]
            num_passes += engine.stats.num_passes
            progress.advance(1)
    passes = num_passes or 1.0
    return recordings, HostTimes(draft_s / passes, other_s / passes)


def _replay_trees(
    context: Context,
    graphs: AotGraphs,
    parameters: NgramParameters,
    recordings: list[tuple[list[int], list[int]]],
    latency: Callable[[int], float],
    rest_s: float,
) -> list[Replay]:
    """Every candidate tree over the recordings, drafted without knowledge of their own outputs."""
    config = context.config
    trees = _candidate_trees(config.buckets) if config.tree == "auto" else [config.tree]
    specs = [spec for spec in map(parse_tree_spec, trees) if spec.policy != "plain"]
    folds = held_out(parameters, recordings)
    replays = []
    with context.reporter.stage("search trees", total=len(specs)) as progress:
        for spec in specs:
            replays.append(
                combine(
                    replay(one, spec, fold, graphs.row_counts, latency, rest_s, RunningGate())
                    for one, fold in folds
                )
            )
            progress.advance(1)
    return replays


def _replay_draft_model(
    context: Context,
    bound: BoundGraphs,
    adapted: AdaptedModel,
    profile: Profile,
    recordings: list[tuple[list[int], list[int]]],
    latency: Callable[[int], float],
    rest_s: float,
) -> tuple[LmParameters, list[Replay]]:
    """The drafter's parameters, and every candidate tree over some of the recordings, its graphs
    run on the recorded ids; the parameters rest on the others, if there are others.
    """
    config, draft = context.config, bound.draft
    assert draft is not None
    vocab_size = adapted.model.vocab_size
    replayed = recordings[:NUM_REPLAYED]
    with context.reporter.stage("calibrate drafter"):
        parameters = calibrate_lm(
            draft, recordings[NUM_REPLAYED:] or recordings, vocab_size, config.max_depth
        )
    widths = {spec.name: spec.max_rows for spec in bound.specs if spec.kind == "draft"}
    step_s = steps_latency(profile.latency, widths)
    trees = _draft_model_trees(config) if config.tree == "auto" else [config.tree]
    specs = [spec for spec in map(parse_tree_spec, trees) if spec.policy != "plain"]
    drafter = LmDrafter(draft, parameters, vocab_size)
    replays = []
    with context.reporter.stage("search trees", total=len(specs)) as progress:
        for spec in specs:
            draft_s = sum(map(step_s, draft_steps(spec)))
            rows = bound.graphs.row_counts
            replays.append(
                replay(
                    drafter, spec, replayed, rows, latency, rest_s, RunningGate(), draft_s=draft_s
                )
            )
            progress.advance(1, format_tree_spec(spec))
    return parameters, replays


def _draft_model_trees(config: BuildConfig) -> list[str]:
    """A chain and the equal-growth trees of every width that a draft graph has, at every depth.
    The engine verifies as much of a tree as pays, so each may fill the largest bucket.
    """
    trees = []
    for depth in (depth for depth in DRAFT_DEPTHS if depth <= config.max_depth):
        for width in config.drafter_widths:
            rows = min(config.buckets[-1], 1 + width * depth)
            if rows > 1:
                growth = f"egt:width={width},depth={depth},children={2 * width}"
                shape = f"sequence:depth={depth}" if width == 1 else growth
                trees.append(f"{shape},verify={rows}")
    return trees


def _shortlist(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """The best five and plain decoding."""
    return tuple(c for i, c in enumerate(candidates) if i < 5 or c.tree == "plain")


def _candidate_trees(buckets: tuple[int, ...]) -> list[str]:
    """Equal-growth trees of every width and depth, each at every bucket that it can fill beyond
    the next smaller.
    """
    trees = []
    for width in WIDTHS:
        for depth in DEPTHS:
            rows = 1 + width * depth
            useful = [b for i, b in enumerate(buckets) if b > 1 and buckets[i - 1] < rows]
            trees += [
                f"egt:width={width},depth={depth},children={2 * width},verify={min(b, rows)}"
                for b in useful
            ]
    return list(dict.fromkeys(trees))


def calibration_ids(context: Context, loaded: Loaded, adapted: AdaptedModel) -> list[list[int]]:
    """The calibration prompts as ids that leave room for their outputs; random ids for a model
    without tokenizer.
    """
    tokens = context.config.calibration_tokens
    room = adapted.model.max_model_len - tokens - 1
    prompts = read_prompts(_prompt_file(context))
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


def decode(engine: Engine, prompt: list[int], max_tokens: int, eos_ids: set[int]) -> list[int]:
    output = [engine.start(prompt)]
    while len(output) < max_tokens and engine.room and output[-1] not in eos_ids:
        for token in engine.step().tokens:
            output.append(token)
            if token in eos_ids or len(output) == max_tokens:
                break
    return output
