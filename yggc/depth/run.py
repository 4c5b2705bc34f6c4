"""`yggc train depth`: a bundle in, the same bundle with trained hazards out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from yggc.depth import ablate
from yggc.depth.files import (
    Traced,
    check_onnx,
    read_predictor,
    read_traces,
    write_predictor,
    write_traces,
)
from yggc.depth.fit import FitOptions
from yggc.depth.gain import Gain, Task, measure_gain
from yggc.depth.hazards import Predictor, log_loss
from yggc.depth.prompts import CalibrationPrompt, calibration_prompts, split_prompts
from yggc.depth.rows import read_rows
from yggc.depth.scores import Times, reliability
from yggc.depth.swap import packed_constants, swap_constants
from yggc.depth.traces import Tracer, Traces
from yggc.errors import PreflightError, RecipeError
from yggc.report import Reporter
from yggrt.bundle import Bundle, WeightSource, write_bundle
from yggrt.cache import Cache
from yggrt.core.objective import Objective
from yggrt.core.passes import DraftGraphs, Graphs
from yggrt.core.schema import (
    FORMAT_VERSION,
    DepthPredictor,
    LookaheadDrafter,
    Manifest,
    TreeSpec,
)
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec
from yggrt.drafters import Drafter
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.engine import Sampler
from yggrt.latency import LatencyTable
from yggrt.loading import choose_threads, load_draft_graphs, load_graphs
from yggrt.recordings import recorded_folds
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler as RequestSampler
from yggrt.scheduling import Costs, record_answers
from yggrt.target import check_target, host_target
from yggrt.weights import tensor_chunks

# With fewer passes to fit to, most heads would not see a hundred.
MIN_TRACES = 200
MEASURE_S = 240.0


@dataclass(frozen=True, slots=True)
class DepthOptions:
    """What `yggc train depth` was asked for. `tree`: whose depth is chosen, the bundle's if
    None."""

    bundle: Path
    output: Path
    tree: str | None = None
    prompts: tuple[Path, ...] = ()
    exclude: tuple[Path, ...] = ()
    limit: int | None = None
    temperature: float = 0.0
    max_tokens: int = 64
    smoothing: float = 0.0
    fit: FitOptions = field(default_factory=FitOptions)
    traces: Path | None = None
    weights: Path | None = None
    first: Path | None = None
    num_threads: int | None = None


def train_depth(options: DepthOptions, cache: Cache, reporter: Reporter) -> dict[str, Any]:
    """Writes the bundle and returns what was found, in JSON types.

    Raises RecipeError or SourceError for what cannot be trained, and whatever opening, running and
    writing a bundle raises.
    """
    sampling = SamplingParams(temperature=options.temperature)
    _check_folders(options)
    if options.weights is not None:
        check_onnx()
    with Bundle.open(options.bundle, cache=cache) as bundle:
        manifest = bundle.manifest
        tree = base_tree(manifest, options.tree)
        for note in check_target(manifest.target, host_target()):
            reporter.say(note)
        prompts, left_out = calibration_prompts(
            bundle, options.prompts, options.exclude, options.limit
        )
        reporter.say(f"{len(prompts)} calibration prompts, {left_out} left out")
        work = _Work(options, bundle, sampling, prompts, reporter)
        with reporter.stage("load"):
            threads = choose_threads(options.num_threads, manifest.target.tuned_for)
            work.load(cache, threads, tree)
        traced = work.traced()
        setting = work.setting(traced)
        with reporter.stage("fit"), one_thread():
            predictor = work.predictor(setting)
        with reporter.stage("compare") as progress, one_thread():
            rows = []
            for row in ablate.ablations(setting, predictor):
                rows.append(row)
                progress.advance(1, row["name"])
        gain = work.gain(traced, setting, predictor)
        record = work.record(traced, setting, predictor, gain)
        if options.weights is not None:
            write_predictor(options.weights, predictor, work.facts())
        with reporter.stage("write"):
            write_trained(options.output, bundle, predictor, record)
        return {
            "output": str(options.output),
            "predictor": msgspec.to_builtins(record),
            "ablations": rows,
            "fixed_depth_ms": ablate.fixed_depths(setting),
            "depth_shares": ablate.depth_shares(setting, predictor),
            "reliability": reliability(work.hazards(setting.test, predictor), setting.test),
            "categories": ablate.by_category(setting, predictor, traced.categories),
            "measured_ms": gain.token_ms,
            "ratios": list(gain.ratios),
            "num_prompts": {
                name: len(getattr(setting.split, name)) for name in ("train", "validate", "test")
            },
        }


def _check_folders(options: DepthOptions) -> None:
    """Before minutes of work: PreflightError for a file without a folder to lie in."""
    for flag, path in (
        ("--output", options.output),
        ("--traces", options.traces),
        ("--weights", options.weights),
    ):
        if path is not None and not path.absolute().parent.is_dir():
            raise PreflightError(
                f"{flag} {path}: no such folder {path.absolute().parent}",
                "make it, or correct the path",
            )


def base_tree(manifest: Manifest, tree: str | None) -> TreeSpec:
    """The tree whose depth is chosen; RecipeError for one that has none to choose."""
    spec = parse_tree_spec(tree or manifest.schedule.tree)
    name = "--tree" if tree else "the bundle's tree"
    if isinstance(manifest.schedule.drafter, LookaheadDrafter) or spec.policy == "lookahead":
        raise RecipeError(
            f"{name} is {format_tree_spec(spec)} and its drafter lookahead, which fills all its "
            "rows in every pass, wanted a drafter that grows a tree level by level",
            "build with another --drafter",
        )
    if spec.policy not in ("egt", "sequence"):
        raise RecipeError(
            f"{name} is {format_tree_spec(spec)}, which has no depth to choose, wanted an "
            "equal-growth tree or a chain",
            "give one, as in --tree egt:width=4,depth=4 or --tree sequence:depth=4",
        )
    return spec


def full_depth(spec: TreeSpec, max_depth: int, max_rows: int, max_expanded: int) -> TreeSpec:
    """The tree at the most levels that hazards, verify rows and draft graphs hold; RecipeError
    where that leaves nothing to choose."""
    for depth in range(max_depth, 1, -1):
        full = msgspec.structs.replace(
            spec, depth=depth, verify=min(max_rows, 1 + spec.width * depth)
        )
        if sum(draft_steps(full)) <= max_expanded and full.verify > depth:
            return full
    raise RecipeError(
        f"{format_tree_spec(spec)}: at most one level fits {max_depth} hazards, {max_rows} rows "
        f"and {max_expanded} drafted nodes, wanted two or more to choose from",
        "build with a larger bucket or larger --drafter-widths",
    )


class _Work:
    """The steps of one run, over a bundle's loaded graphs."""

    def __init__(
        self,
        options: DepthOptions,
        bundle: Bundle,
        sampling: SamplingParams,
        prompts: Sequence[CalibrationPrompt],
        reporter: Reporter,
    ) -> None:
        self._options, self._bundle, self._sampling = options, bundle, sampling
        self._prompts, self._reporter = prompts, reporter
        self._graphs: Graphs
        self._draft: DraftGraphs | None
        schedule = bundle.manifest.schedule
        self._objective = Objective(schedule.objective, schedule.rate)

    def load(self, cache: Cache, num_threads: int, base: TreeSpec) -> None:
        """Graphs, costs, and the tree at full depth."""
        bundle, manifest = self._bundle, self._bundle.manifest
        graphs = load_graphs(
            bundle, cache, num_threads=num_threads, mapped=False, on_note=self._reporter.say
        )
        self._graphs, self._draft = graphs, load_draft_graphs(bundle, cache)
        self._keyed_select = getattr(graphs.operators, "keyed_select", None)
        table = LatencyTable.of(manifest.latency, manifest.graphs)
        self._costs = Costs(table, manifest.schedule.rest_s, 0.0, table.draft_step)
        with swap_constants(bundle) as swap:
            self._num_units, self._max_depth = swap.num_units, swap.num_heads
        self._base = base
        expanded = self._draft.max_expanded if self._draft is not None else 1 << 30
        self._spec = full_depth(base, self._max_depth, graphs.row_counts[-1], expanded)
        first = self._options.first
        self._given = None if first is None else read_predictor(first, self._wanted())

    def facts(self) -> dict[str, Any]:
        """What a predictor's file says it was made for."""
        return {**self._wanted(), "verifier": self._bundle.manifest.model.architecture}

    def traced(self) -> Traced:
        """Traces from the file of them, or new ones."""
        options, path = self._options, self._options.traces
        held = {
            "bundle": self._bundle.digest,
            "tree": format_tree_spec(self._spec),
            "temperature": float(options.temperature),
            "max_tokens": options.max_tokens,
            "prompts": hashlib.sha256(repr(self._prompts).encode()).hexdigest(),
            "seed": options.fit.seed,
        }
        if path is not None and path.exists():
            traced = read_traces(path, held)
        else:
            traced = self._trace()
            if path is not None:
                write_traces(path, traced, held)
        num = len(traced.traces)
        if num < MIN_TRACES:
            raise RecipeError(
                f"{num} traces of {len(self._prompts)} prompts, wanted {MIN_TRACES} or more",
                "give more --prompts, or more tokens of each with --max-tokens",
            )
        return traced

    def setting(self, traced: Traced) -> ablate.Setting:
        rows = (1, *self._rows(traced.traces))
        return ablate.Setting(
            traced.traces,
            split_prompts(len(traced.recordings), self._options.fit.seed),
            self._max_depth,
            self._num_units,
            self._options.fit,
            partial(self._times, rows),
        )

    def predictor(self, setting: ablate.Setting) -> Predictor:
        """The given one, or one that is fitted now."""
        return ablate.fit_predictor(setting) if self._given is None else self._given

    def hazards(self, traces: Traces, predictor: Predictor) -> torch.Tensor:
        """Of the levels that are drafted."""
        return predictor.hazards(traces.inputs)[:, : traces.depth]

    def gain(self, traced: Traced, setting: ablate.Setting, predictor: Predictor) -> Gain:
        """Measured on the test prompts with the constants swapped in memory."""
        depth = ablate.best_fixed_depth(setting)
        best = msgspec.structs.replace(self._spec, depth=depth)
        # The bundle's own tree may be plain decoding where another was asked for.
        own = parse_tree_spec(self._bundle.manifest.schedule.tree)
        fixed = [format_tree_spec(one) for one in (own, self._base, best)]
        # Drafters that know none of these prompts.
        folds = recorded_folds(self._bundle.manifest, traced.recordings, self._draft)
        drafters = dict(self._drafters(traced.recordings, folds))
        tasks = [
            Task(
                traced.recordings[number].prompt,
                drafters[number],
                partial(self._sampler, number, traced.recordings[number].prompt),
            )
            for number in setting.split.test
        ]
        stage = self._reporter.stage("measure", total=len(tasks))
        with swap_constants(self._bundle) as swap, stage as progress:
            swap(predictor)
            return measure_gain(
                self._graphs,
                self._blank(traced, setting),
                fixed,
                tasks,
                self._costs,
                self._objective,
                num_tokens=self._options.max_tokens,
                eos_ids=self._bundle.manifest.model.eos_ids,
                budget_s=MEASURE_S,
                on_prompt=progress.advance,
            )

    def record(
        self, traced: Traced, setting: ablate.Setting, predictor: Predictor, gain: Gain
    ) -> DepthPredictor:
        """What the manifest says; on where the interval of the gain is above 1."""
        test = setting.test
        hazards = self.hazards(test, predictor)
        constant = ablate.constant_hazards(setting)[: test.depth].expand(len(test), -1)
        losses = [
            log_loss(torch.logit(one.double(), eps=1e-7), test.lengths, test.known)
            for one in (hazards, constant)
        ]
        return msgspec.structs.replace(
            self._blank(traced, setting),
            is_on=gain.interval[0] > 1,
            log_loss=losses[0],
            constant_log_loss=losses[1],
            calibration_error=tuple(one["error"] for one in reliability(hazards, test)),
            against=gain.against,
            num_measured=len(gain.ratios),
            gain=gain.mean,
            gain_interval=gain.interval,
        )

    def _blank(self, traced: Traced, setting: ablate.Setting) -> DepthPredictor:
        """The record before anything was scored."""
        return DepthPredictor(
            tree=format_tree_spec(self._spec),
            temperature=float(self._options.temperature),
            rows=tuple(self._rows(traced.traces)),
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
            smoothing=self._options.smoothing,
        )

    def _trace(self) -> Traced:
        """The verifier's answers to the prompts, and what the drafter drafts over them."""
        options, reporter = self._options, self._reporter
        num = len(self._prompts)
        with reporter.stage("answer", total=num) as progress:
            recordings, _ = record_answers(
                self._graphs,
                NgramDrafter(DEFAULT_PARAMETERS),
                [one.ids for one in self._prompts],
                options.max_tokens,
                self._bundle.manifest.model.eos_ids,
                on_answer=progress.advance,
                sampler_for=self._sampler,
            )
        with reporter.stage("read rows", total=num) as progress:
            rows = []
            for one in read_rows(self._bundle, self._graphs, recordings):
                rows.append(one)
                progress.advance()
        folds = recorded_folds(self._bundle.manifest, recordings, self._draft)
        tracer = Tracer(self._spec, self._graphs.row_counts, self._costs, self._objective)
        with reporter.stage("trace", total=num) as progress:
            traces = tracer.run(
                [
                    (number, drafter, rows[number], self._noise(number, recordings[number].prompt))
                    for number, drafter in self._drafters(recordings, folds)
                ],
                progress.advance,
            )
        return Traced(traces, recordings, [one.category for one in self._prompts])

    def _drafters(
        self,
        recordings: Sequence[Recording],
        folds: Sequence[tuple[Drafter, Sequence[Recording]]],
    ) -> Iterator[tuple[int, Drafter]]:
        """Each recording's number and a drafter that does not know it."""
        numbers = {id(one): number for number, one in enumerate(recordings)}
        for drafter, fold in folds:
            for one in fold:
                yield numbers[id(one)], drafter

    def _sampler(self, number: int, prompt: Sequence[int]) -> Sampler | None:
        if self._sampling.is_plain_greedy:
            return None
        return RequestSampler(
            self._sampling,
            prompt,
            vocab_size=self._bundle.manifest.model.vocab_size,
            seed=self._options.fit.seed + number,
            keyed_select=self._keyed_select,
        )

    def _noise(self, number: int, prompt: Sequence[int]) -> Any:
        return getattr(self._sampler(number, prompt), "noise", None)

    def _rows(self, traces: Traces) -> list[int]:
        """By depth from 1 on, what half of the passes of that depth verify at most."""
        found: list[int] = traces.rows.median(0).values.tolist()
        return found[1:]

    def _times(self, rows: tuple[int, ...], traces: Traces) -> Times:
        """What the engine decides by: every depth with its usual rows."""
        costs, steps = self._costs, (0, *draft_steps(self._spec))
        by_context = {}
        for context in set(traces.context.tolist()):
            draft_s, seconds = 0.0, []
            for depth, num_rows in enumerate(rows):
                draft_s += costs.draft_step(steps[depth], context) if depth else 0.0
                seconds.append(costs.rest_s + draft_s + costs.latency(num_rows, context))
            by_context[context] = seconds
        table = torch.tensor(
            [by_context[context] for context in traces.context.tolist()], dtype=torch.float64
        )
        return Times(rows, table, self._objective)

    def _wanted(self) -> dict[str, Any]:
        return {
            "hidden_size": self._bundle.manifest.model.hidden_size,
            "max_depth": self._max_depth,
            "tree": format_tree_spec(self._spec),
            "temperature": float(self._options.temperature),
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
    """The bundle with the predictor's constants and its record."""
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
