"""`yggc train depth`: a bundle in, the same bundle with trained hazards out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from yggc.depth import ablate
from yggc.depth.collect import collect
from yggc.depth.files import Traced, check_onnx, read_predictor, write_predictor
from yggc.depth.gain import Gain, Task, measure_gain
from yggc.depth.hazards import Predictor, log_loss
from yggc.depth.options import DepthOptions, check_folders
from yggc.depth.pair import Pair, load_pair
from yggc.depth.prompts import calibration_prompts, split_prompts
from yggc.depth.scores import measured_brings, pass_times, reliability, usual_rows
from yggc.depth.swap import packed_constants, swap_constants
from yggc.depth.tree import base_tree
from yggc.report import Reporter
from yggrt.bundle import Bundle, WeightSource, write_bundle
from yggrt.cache import Cache
from yggrt.core.schema import FORMAT_VERSION, DepthPredictor
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.policies import tree_in
from yggrt.sampling.params import SamplingParams
from yggrt.target import check_target, host_target
from yggrt.weights import tensor_chunks

# No prompt begins to be measured later.
MEASURE_S = 240.0


def train_depth(options: DepthOptions, cache: Cache, reporter: Reporter) -> dict[str, Any]:
    """Writes the bundle and returns what was found, in JSON types.

    Raises RecipeError or SourceError for what cannot be trained, and whatever opening, running and
    writing a bundle raises.
    """
    SamplingParams(temperature=options.temperature)
    check_folders(options)
    if options.weights is not None:
        check_onnx()
    with Bundle.open(options.bundle, cache=cache) as bundle:
        base = base_tree(bundle.manifest, options.tree)
        for note in check_target(bundle.manifest.target, host_target()):
            reporter.say(note)
        prompts, left_out = calibration_prompts(
            bundle, options.prompts, options.exclude, options.limit
        )
        reporter.say(f"{len(prompts)} calibration prompts, {left_out} left out")
        with reporter.stage("load"):
            pair = load_pair(bundle, cache, options, base, reporter.say)
            given = None
            if options.first is not None:
                given = read_predictor(options.first, pair.facts())
        traced = collect(pair, prompts, options, reporter)
        setting = _setting(pair, traced, options)
        with reporter.stage("fit"), one_thread():
            predictor = ablate.fit_predictor(setting) if given is None else given
        rows = []
        with reporter.stage("compare") as progress, one_thread():
            for row in ablate.ablations(setting, predictor):
                rows.append(row)
                progress.advance(1, row["name"])
        blank = _blank(pair, traced, setting, options.smoothing)
        with reporter.stage("measure", total=len(setting.split.test)) as progress:
            gain = _gain(pair, traced, setting, predictor, blank, options, progress.advance)
        record = _scored(blank, setting, predictor, gain)
        if options.weights is not None:
            write_predictor(options.weights, predictor, pair.facts())
        with reporter.stage("write"):
            write_trained(options.output, bundle, predictor, record)
        hazards = predictor.hazards(setting.test.inputs)[:, : setting.test.depth]
        return {
            "output": str(options.output),
            "predictor": msgspec.to_builtins(record),
            "ablations": rows,
            "fixed_depth_ms": ablate.fixed_depths(setting),
            "depth_shares": ablate.depth_shares(setting, predictor),
            "reliability": reliability(hazards, setting.test),
            "categories": ablate.by_category(setting, predictor, traced.categories),
            "measured_ms": gain.token_ms,
            "ratios": list(gain.ratios),
            "num_prompts": {
                name: len(getattr(setting.split, name)) for name in ("train", "validate", "test")
            },
        }


@contextmanager
def one_thread() -> Iterator[None]:
    """Products this small take longer on several threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_trained(
    path: Path, bundle: Bundle, predictor: Predictor, record: DepthPredictor
) -> None:
    """The bundle with the predictor's constants and its record; raises what writing one does."""
    constants = packed_constants(predictor)
    weights = [
        WeightSource(one.name, one.dtype, one.shape, partial(tensor_chunks, constants[one.name]))
        if one.name in constants
        else one
        for one in bundle.weight_sources()
    ]
    manifest = bundle.manifest
    changed = msgspec.structs.replace(
        manifest,
        format_version=FORMAT_VERSION,
        schedule=msgspec.structs.replace(manifest.schedule, depth=record),
    )
    write_bundle(path, changed, weights, bundle.member_sources())


def _setting(pair: Pair, traced: Traced, options: DepthOptions) -> ablate.Setting:
    rows, split = (
        usual_rows(traced.traces),
        split_prompts(len(traced.recordings), options.fit.seed),
    )
    brings = measured_brings(traced.traces.of_prompts([*split.train, *split.validate]))
    return ablate.Setting(
        traced.traces,
        split,
        pair.max_depth,
        pair.num_units,
        options.fit,
        partial(pass_times, pair.full, rows, brings, pair.costs, pair.objective),
    )


def _blank(
    pair: Pair, traced: Traced, setting: ablate.Setting, smoothing: float
) -> DepthPredictor:
    """The record before anything was scored."""
    brings = setting.times(setting.test).brings
    return DepthPredictor(
        tree=format_tree_spec(pair.full),
        temperature=float(pair.sampling.temperature),
        rows=usual_rows(traced.traces),
        base_tokens=brings.base_tokens,
        worth=brings.worth,
        is_on=False,
        num_traces=len(traced.traces),
        num_prompts=len(traced.recordings),
        log_loss=0.0,
        constant_log_loss=0.0,
        calibration_error=(),
        against="",
        num_measured=0,
        gain=1.0,
        gain_interval=(0.0, 1.0),
        smoothing=smoothing,
    )


def _gain(
    pair: Pair,
    traced: Traced,
    setting: ablate.Setting,
    predictor: Predictor,
    blank: DepthPredictor,
    options: DepthOptions,
    on_prompt: Any,
) -> Gain:
    """Measured on the test prompts, the predictor's constants in place of the bundle's."""
    best = msgspec.structs.replace(pair.full, depth=ablate.best_fixed_depth(setting))
    # The bundle's own tree may be plain decoding where another was asked for.
    own = parse_tree_spec(pair.manifest.schedule.tree)
    drafters = dict(pair.drafters(traced.recordings))
    tasks = [
        Task(prompt, drafters[number], partial(pair.sampler, number, prompt))
        for number in setting.split.test
        for prompt in [traced.recordings[number].prompt]
    ]
    with swap_constants(pair.bundle) as swap:
        swap(predictor)
        return measure_gain(
            pair.graphs,
            blank,
            [format_tree_spec(one) for one in (own, pair.base, best)],
            tasks,
            pair.costs,
            pair.objective,
            num_tokens=options.max_tokens,
            eos_ids=pair.manifest.model.eos_ids,
            budget_s=MEASURE_S,
            shape=partial(tree_in, pair.manifest),
            on_prompt=on_prompt,
        )


def _scored(
    blank: DepthPredictor, setting: ablate.Setting, predictor: Predictor, gain: Gain
) -> DepthPredictor:
    """What the manifest says; on where the interval of the gain is above 1."""
    test = setting.test
    hazards = predictor.hazards(test.inputs)[:, : test.depth]
    constant = ablate.constant_hazards(setting)[: test.depth].expand(len(test), -1)
    losses = [
        log_loss(torch.logit(one.double(), eps=1e-7), test.lengths, test.known)
        for one in (hazards, constant)
    ]
    return msgspec.structs.replace(
        blank,
        is_on=gain.interval[0] > 1,
        log_loss=losses[0],
        constant_log_loss=losses[1],
        calibration_error=tuple(one["error"] for one in reliability(hazards, test)),
        against=gain.against,
        num_measured=len(gain.ratios),
        gain=gain.mean,
        gain_interval=gain.interval,
    )
