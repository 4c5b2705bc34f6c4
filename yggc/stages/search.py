"""search: which tree to draft and which graphs to ship, from measured times and measured
acceptance.

The verifier answers the calibration prompts once; every candidate tree is then replayed over the
recorded ids.
"""

from __future__ import annotations

import hashlib
import random
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from yggc.context import Context
from yggc.stages.adapt import AdaptedModel
from yggc.stages.graphs import bind_graphs
from yggc.stages.load import TOKENIZER_MEMBER, Loaded
from yggc.stages.profile import Profile
from yggrt.core.schema import Candidate, Record, Schedule
from yggrt.core.search import choose_buckets, combine, search_schedule
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.calibrate import calibrate_ngram, held_out
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate, RunningGate
from yggrt.latency import verify_latency
from yggrt.prompts import read_prompts
from yggrt.replay import replay
from yggrt.text import Text

SHIPPED = "calibration.jsonl"
WIDTHS = (1, 2, 4, 8)
DEPTHS = (2, 4, 6, 8)
NUM_RANDOM_IDS = 32


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
    """Decodes the calibration prompts with the default tree (exact, so the ids are plain
    decoding's) and searches.
    """
    config = context.config
    bound = bind_graphs(context, loaded, adapted, timed=True)
    torch.set_num_threads(config.threads)
    graphs = bound.graphs
    latency = verify_latency(
        profile.latency, [spec.name for spec in bound.specs if spec.kind == "verify"]
    )
    prompts = calibration_ids(context, loaded, adapted)
    sequences: list[tuple[list[int], list[int]]] = []
    drafter = NgramDrafter(DEFAULT_PARAMETERS)
    largest = config.buckets[-1]
    default = parse_tree_spec(f"egt:width=4,depth=4,children=8,verify={largest}")
    engine = Engine(
        graphs, graphs.new_cache(), drafter, default if largest > 1 else parse_tree_spec("plain"),
        latency, 0.0, OpenGate(),
    )  # fmt: skip
    host_s = num_passes = 0.0
    with context.reporter.stage("calibrate", total=len(prompts)) as progress:
        for prompt in prompts:
            output = decode(engine, prompt, config.calibration_tokens, set(adapted.model.eos_ids))
            sequences.append((prompt, output))
            stages = engine.stats.stage_s
            host_s += stages["draft"] + stages["accept"] + stages["commit"]
            num_passes += engine.stats.num_passes
            progress.advance(1)
    rest_s = host_s / num_passes if num_passes else 0.0
    parameters = calibrate_ngram(sequences)
    folds = held_out(parameters, sequences)
    trees = _candidate_trees(config.buckets) if config.tree == "auto" else [config.tree]
    replays = []
    with context.reporter.stage("search trees", total=len(trees)) as progress:
        for tree in trees:
            spec = parse_tree_spec(tree)
            if spec.policy != "plain":
                parts = [
                    replay(one, spec, fold, graphs.row_counts, latency, rest_s, RunningGate())
                    for one, fold in folds
                ]
                replays.append(combine(parts))
            progress.advance(1)
    candidates = search_schedule(replays, latency, rest_s)
    chosen = candidates[0].tree if config.tree == "auto" else config.tree
    buckets = next((choose_buckets(r) for r in replays if r.tree == chosen), (1,))
    schedule = Schedule(
        tree=chosen,
        drafter=parameters,
        rest_s=rest_s,
        buckets=buckets,
        candidates=_shortlist(candidates),
    )
    return Searched(schedule=schedule, num_tokens=sum(len(output) for _, output in sequences))


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
