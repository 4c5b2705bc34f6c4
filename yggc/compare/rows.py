"""Which decoders take part, a row each: bundles, and libraries that are installed and apply."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from yggc.compare.process import Worker, WorkerError
from yggc.compare.protocol import Ask, Library, Setup, Timed, Way
from yggc.models.source import ResolvedSource
from yggrt.core.errors import RequestError
from yggrt.core.schema import Manifest
from yggrt.inspect import describe_verifier

WARMUP_TOKENS = 8
_MODULES: dict[Library, str] = {
    "transformers": "transformers",
    "llama.cpp": "llama_cpp",
    "openvino": "openvino_genai",
}
_INSTALL = "pip install llama-cpp-python openvino-genai transformers gguf"


@dataclass(frozen=True, slots=True)
class Row:
    """One way of decoding. `bundle`: index of its bundle, None for a baseline. `equals`: index of
    the bundle whose plain decoding computes the same function, None if there is none.
    """

    title: str
    worker: Worker
    way: Way
    bundle: int | None = None
    equals: int | None = None
    num_lookup: int = 0

    def decode(self, ids: list[int], num_tokens: int) -> Timed:
        """Raises WorkerError if the library fails or emits another number of tokens."""
        ask = Ask(way=self.way, ids=ids, num_tokens=num_tokens, num_lookup=self.num_lookup)
        timed = self.worker.decode(ask)
        if len(timed.ids) != num_tokens:
            raise WorkerError(f"emitted {len(timed.ids)} tokens, wanted {num_tokens}")
        return timed


@dataclass(frozen=True, slots=True)
class Missing:
    """What does not take part, and why."""

    title: str
    reason: str


@dataclass
class Lineup:
    """All that take part, what does not, and what is to be known of those that do; workers live
    as long as `stack`."""

    stack: ExitStack
    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def workers(self) -> list[Worker]:
        return list(dict.fromkeys(row.worker for row in self.rows))

    def drop(self, row: Row, reason: str) -> None:
        """Takes a row out. A bundle's row must not fail."""
        if row.bundle is not None:
            raise RequestError(f"{row.title} failed: {reason}", "`yggrt verify` checks the bundle")
        self.rows.remove(row)
        self.missing.append(Missing(row.title, reason))


def is_exact(manifest: Manifest) -> bool:
    """Whether plain decoding computes in float32 on the values that the source gives, as
    transformers does.
    """
    model = manifest.model
    return (
        model.quant in ("none", "keep")
        and model.weight_dtype == "float32"
        and model.activations == "float32"
        and model.kv_dtype == "float32"
    )


def add_bundles(
    lineup: Lineup, bundles: Sequence[tuple[Path, Manifest]], num_threads: int, context: int
) -> None:
    """Two rows for each bundle: plain and tree."""
    verifiers = [describe_verifier(manifest) for _, manifest in bundles]
    for index, (path, manifest) in enumerate(bundles):
        setup = Setup(library="yggrt", model=str(path), num_threads=num_threads, context=context)
        try:
            worker = lineup.stack.enter_context(Worker(setup))
        except WorkerError as error:
            raise RequestError(
                f"bundle {path} does not load: {error.reason}", "`yggrt verify` says more"
            ) from error
        same = verifiers.count(verifiers[index]) > 1
        name = f"{manifest.name}, {verifiers[index]}" if same else verifiers[index]
        for way in ("plain", "tree"):
            title = f"{worker.title}, {name}: {way}"
            lineup.rows.append(Row(title, worker, way, bundle=index))


def add_baselines(
    lineup: Lineup,
    wanted: Sequence[Library],
    source: ResolvedSource,
    drafter: ResolvedSource | str,
    lookups: Sequence[int],
    setup: Setup,
    exact: int | None,
    probe: list[int],
) -> None:
    """Rows of the libraries in `wanted`. `setup` is that of the baselines but for its library;
    `drafter`: the model for assisted decoding, or why there is none; `exact`: index of the first
    bundle with transformers' arithmetic; `probe`: a prompt to warm up with.
    """
    for library in wanted:
        if importlib.util.find_spec(_MODULES[library]) is None:
            lineup.missing.append(Missing(library, f"not installed; {_INSTALL}"))
        elif library != "transformers" and not source.is_gguf:
            lineup.missing.append(Missing(library, "reads GGUF files; the verifier is none"))
        else:
            try:
                worker = _start(lineup, library, setup, probe)
            except WorkerError as error:
                lineup.missing.append(Missing(library, error.reason))
                continue
            equals = exact if library == "transformers" else None
            _add_ways(lineup, worker, library, drafter, lookups, equals)


def warm_up(lineup: Lineup, probe: list[int], progress: Callable[[str], None]) -> None:
    """Decodes a few tokens in every way, so that the first timed run is none's first; drops ways
    that fail.
    """
    for row in list(lineup.rows):
        progress(f"warm-up: {row.title}")
        try:
            row.decode(probe, WARMUP_TOKENS)
        except WorkerError as error:
            lineup.drop(row, error.reason)


def _start(lineup: Lineup, library: Library, setup: Setup, probe: list[int]) -> Worker:
    setup = msgspec.structs.replace(setup, library=library)
    try:
        worker = _probed(setup, probe)
    except WorkerError as error:
        if library != "llama.cpp" or not error.signal_name:
            raise
        # Its AMX weight buffers crash in virtual machines that announce AMX.
        worker = _probed(msgspec.structs.replace(setup, plain_buffers=True), probe)
        lineup.notes.append(
            f"{worker.title} runs without its extra weight buffers (AMX, repacked matrices), with "
            f"which it {error.reason} on this machine; elsewhere it may be faster."
        )
    return lineup.stack.enter_context(worker)


def _probed(setup: Setup, probe: list[int]) -> Worker:
    """A worker that has decoded two tokens; some libraries crash at the first pass only."""
    worker = Worker(setup)
    try:
        worker.decode(Ask(way="plain", ids=probe, num_tokens=2))
    except BaseException:
        worker.close()
        raise
    return worker


def _add_ways(
    lineup: Lineup,
    worker: Worker,
    library: Library,
    drafter: ResolvedSource | str,
    lookups: Sequence[int],
    equals: int | None,
) -> None:
    lineup.rows.append(Row(f"{worker.title}: plain", worker, "plain", equals=equals))
    if library == "transformers":
        title = f"{worker.title}: assisted"
        if isinstance(drafter, str):
            lineup.missing.append(Missing(title, drafter))
        else:
            lineup.rows.append(Row(title, worker, "assisted", equals=equals))
    for num in lookups:
        title = f"{worker.title}: prompt lookup of {num}"
        lineup.rows.append(Row(title, worker, "lookup", equals=equals, num_lookup=num))
