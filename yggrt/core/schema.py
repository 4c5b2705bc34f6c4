"""What a bundle's manifest holds: typed, immutable, validated when made and when read.

Knows nothing of files or devices. `docs/format.md` is the normative text; this module is its
types.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from yggrt.core.errors import BundleError

FORMAT_VERSION = 6
# Version 1 lacked what has a default in ModelInfo, version 2 what has one anywhere else, version 3
# the EAGLE head and a second drafter, version 4 Medusa heads and the depth predictor, version 5
# what a bundle was made of beside its sources.
READABLE_VERSIONS = (1, 2, 3, 4, 5, 6)
NUM_EVIDENCE = 6
# Begins the names of weights that a model that drafts has for itself.
DRAFTER_PREFIX = "drafter."

GraphKind = Literal["verify", "prefill", "draft", "draft_prefill"]
# The kinds of each model's graphs, and those that give the outputs of one row alone.
VERIFIER_KINDS: tuple[GraphKind, ...] = ("verify", "prefill")
DRAFTER_KINDS: tuple[GraphKind, ...] = ("draft", "draft_prefill")
PREFILL_KINDS: tuple[GraphKind, ...] = ("prefill", "draft_prefill")

Dtype = Literal["float32", "bfloat16", "int64", "int32", "bool", "uint8"]
DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "bool": 1,
    "uint8": 1,
}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything in the manifest."""


class TensorSpec(Record, frozen=True):
    """One graph input or output. A negative size is the row count of a graph with dynamic rows."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class GraphSpec(Record, frozen=True):
    """One compiled graph: a forward over `min_rows..max_rows` rows of a tree (equal for a static
    graph).

    `library`, `calls` (what it calls outside itself) and `metadata` are bundle members;
    `constants` maps the graph's constant names to names in the weight table. `verify` and
    `prefill` are the verifier's, `draft` and `draft_prefill` the drafter's. Inputs, in order:
    tokens, positions, slots [V] int64, length [1] int64, mask [V, M] bool, for the prefill kinds
    also row [1] int64, for a head also features [V, d] float32, then per layer the key and the
    value cache. M is V, but for `draft` graphs of several rows: there it is the number of tree
    rows that a row may see. Outputs, in order: ids, logits, hidden, hazards.
    """

    name: str
    kind: GraphKind
    min_rows: int
    max_rows: int
    library: str
    calls: str
    metadata: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: dict[str, str]


class WeightSpec(Record, frozen=True):
    """One tensor of `weights.safetensors`; `offset`: bytes from the start of the `.ygg` file."""

    dtype: Dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        num = DTYPE_BYTES[self.dtype]
        for size in self.shape:
            num *= size
        return num


class KvLayer(Record, frozen=True):
    """Shape of a cache: keys [1, num_heads, slots, key_dim], values [..., slots, value_dim]."""

    num_heads: int
    key_dim: int
    value_dim: int


class ModelInfo(Record, frozen=True):
    """The verifier, or a model that drafts, as the runtime sees it. `quant`, `activations` and
    `kv_dtype` make another model than the source's unless they are none and float32;
    `weight_dtype` is that of matrices that are not quantised. End ids are the verifier's alone.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_parameters: int
    max_model_len: int
    num_slots: int
    kv_dtype: Literal["float32", "bfloat16", "int8"]
    kv_layers: tuple[KvLayer, ...]
    eos_ids: tuple[int, ...]
    weight_dtype: Dtype
    max_depth: int
    quant: Literal["none", "int8", "int4", "keep"] = "none"
    activations: Literal["float32", "int8"] = "float32"


class MustMatch(Record, frozen=True):
    """A host that differs in any of these is refused. `isa` holds CPU flag names of the kernel."""

    os: str
    machine: str
    libc: str
    isa: tuple[str, ...]
    torch: str
    cuda: str
    compute_capability: str


class TunedFor(Record, frozen=True):
    """A host that differs in these runs with a warning. Measured bytes/s and FLOP/s."""

    device: str
    memory_bytes: int
    num_cores: int
    num_threads: int
    read_bandwidth: float
    flops: float


class Target(Record, frozen=True):
    name: str
    must_match: MustMatch
    tuned_for: TunedFor


class SourceFile(Record, frozen=True):
    name: str
    num_bytes: int
    sha256: str


class Source(Record, frozen=True):
    """Where the verifier or the drafter came from, as resolved at build time."""

    role: Literal["verifier", "drafter"]
    kind: Literal["directory", "hub", "gguf", "wheel"]
    location: str
    revision: str
    license: str
    files: tuple[SourceFile, ...]


class BuildInputs(Record, frozen=True):
    """What a bundle was made of beside its sources and its target: where nothing of it changes, a
    build brings the same bundle but for what is measured.

    options: as recipe and flags gave them, before any "auto" of the model was resolved, with the
    SHA-256 of files in place of their paths. compiler_digest: of the sources of compiler and
    operators that stages are kept by.
    """

    options: dict[str, Any]
    compiler_digest: str
    transformers: str


class LatencyPoint(Record, frozen=True):
    """Median and interquartile range of a graph at a row count and context length, in seconds."""

    graph: str
    rows: int
    context: int
    median_s: float
    spread_s: float


class LatencyJump(Record, frozen=True):
    """A place where the measured curve of a kind of graph rises or falls as neither reading nor
    computing explains: between `lower` and `upper` on `axis`, at `at` on the other axis, by the
    factor `ratio`.
    """

    kind: str
    axis: Literal["rows", "context"]
    at: int
    lower: int
    upper: int
    ratio: float


class ProfileNotes(Record, frozen=True):
    """How the latency table was measured. `busy_share`: share of the processors that other
    processes took meanwhile, None where it was not measured; `warmup_s`: the first call of every
    graph together; `num_rounds`: rounds of calls, more where the spread was large.
    """

    busy_share: float | None = None
    warmup_s: float = 0.0
    num_rounds: int = 0
    jumps: tuple[LatencyJump, ...] = ()


class NgramDrafter(Record, frozen=True, tag="ngram", tag_field="kind"):
    """Suffix matches in prompt and output, then in `corpus`: texts that the verifier wrote at
    build time. `acceptance[m][c]`: measured share of positions at which the verifier's choice is
    among the tokens that matches of m + 1 tokens name, c being the kind of evidence (NUM_EVIDENCE
    columns, named in `yggrt.drafters.ngram`); `corpus_acceptance` is the same for matches in the
    corpus, one row per match length, empty without a corpus.
    """

    max_match: int
    acceptance: tuple[tuple[float, ...], ...]
    corpus: tuple[tuple[int, ...], ...] = ()
    corpus_acceptance: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.acceptance) != self.max_match:
            raise ValueError(
                f"acceptance has {len(self.acceptance)} rows, wanted max_match = {self.max_match}"
            )
        for row in self.acceptance + self.corpus_acceptance:
            if len(row) != NUM_EVIDENCE or not all(0 <= share <= 1 for share in row):
                raise ValueError(
                    f"an acceptance row is {row}, wanted {NUM_EVIDENCE} numbers in 0..1"
                )


class LmDrafter(Record, frozen=True, tag="lm", tag_field="kind"):
    """A causal language model. `temperatures[d]`: what its logits are divided by to make the
    shares of candidates at depth d + 1 the probabilities that the verifier chooses them; the last
    stands for deeper ones. `agreement`: measured share of positions at which its most likely token
    was the verifier's choice, over `num_positions` of them.
    """

    temperatures: tuple[float, ...]
    agreement: float = 0.0
    num_positions: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < one < float("inf") for one in self.temperatures):
            raise ValueError(f"temperatures are {self.temperatures}, wanted positive numbers")


class HeadDrafter(Record, frozen=True):
    """What drafting heads have in common. `temperatures` as for LmDrafter; `coverage[d]`: measured
    share of the verifier's choices at depth d + 1 that the head has logits for, the last for
    deeper ones. `token_ids`: the verifier's id of each logit, empty if they are the verifier's
    own. `agreement`: measured share of positions at which its most likely token was the verifier's
    choice, over `num_positions` of them.
    """

    temperatures: tuple[float, ...]
    coverage: tuple[float, ...]
    token_ids: tuple[int, ...] = ()
    agreement: float = 0.0
    num_positions: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < one < float("inf") for one in self.temperatures):
            raise ValueError(f"temperatures are {self.temperatures}, wanted positive numbers")
        if not self.coverage or not all(0 <= one <= 1 for one in self.coverage):
            raise ValueError(f"coverage is {self.coverage}, wanted numbers in 0..1")


class EagleDrafter(HeadDrafter, frozen=True, tag="eagle", tag_field="kind"):
    """A head over the verifier's features, which its graphs give as hidden."""


class MedusaDrafter(HeadDrafter, frozen=True, tag="medusa", tag_field="kind"):
    """Heads in the verifier's graphs, which give the logits of all of them as hidden, one head's
    after those of the head before. Head d predicts depth d + 1 and has the d-th of `temperatures`
    and of `coverage`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.coverage) != len(self.temperatures):
            raise ValueError(
                f"{len(self.coverage)} heads have coverage, wanted {len(self.temperatures)}"
            )

    @property
    def num_heads(self) -> int:
        return len(self.temperatures)


class LookaheadDrafter(Record, frozen=True, tag="lookahead", tag_field="kind"):
    """n-grams of the verifier's guesses at several positions at once: nothing is stored."""


ModelDrafter = LmDrafter | EagleDrafter | MedusaDrafter


class Plan(Record, frozen=True):
    """In which order, and beside what, the stages of one iteration run; `yggrt.core.plans` says
    which combinations there are.

    tail: the rows of the last growth step's leaves run with the next root if they were accepted,
    always, ahead of verifying, or beside it. head: the root of the next iteration runs in it, or
    in this one, of `head_rows` possible roots, after verifying or before. accept, prune, mask:
    where they are done. graph: what one call runs. commit: rows move at once, beside what follows,
    before the next verify pass, or never. wait: how the host waits for the device.
    """

    tail: Literal["conditional", "padded", "ahead", "overlapped"] = "conditional"
    head: Literal["late", "post_verify", "pre_verify"] = "late"
    head_rows: Literal["1", "4", "all"] = "1"
    accept: Literal["host", "device"] = "host"
    prune: Literal["off", "host", "device"] = "host"
    streams: Literal["1", "2"] = "1"
    graph: Literal["stage", "draft", "iteration"] = "stage"
    commit: Literal["now", "beside", "remap", "deferred"] = "now"
    wait: Literal["block", "event"] = "block"
    mask: Literal["host", "device"] = "host"


class TreeSpec(Record, frozen=True):
    """How a draft is shaped and its stages are ordered; `yggrt.core.spec` reads and writes its
    one-line form.

    `policy` is the name of an installed one. `options`: what its text says beside the fields, by
    key. `parents`: the shape, where it is fixed; of a policy that takes it from measured
    acceptance it is empty until it is resolved (`yggrt.policies.resolve`).
    """

    policy: str
    width: int = 1
    depth: int = 0
    children: int = 1
    verify: int = 1
    frontier: Literal["global", "level"] = "global"
    parents: tuple[int, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    plan: Plan = Plan()


class RankAcceptance(Record, frozen=True):
    """How a drafter's candidates fare by rank. `shares[d][r]`: share of the nodes at depth d,
    reached by right tokens among its candidates, whose candidate of rank r (0 is the best) is the
    verifier's choice; `num_tests[d]`: how many such nodes. Empty where nothing was measured.
    """

    shares: tuple[tuple[float, ...], ...] = ()
    num_tests: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.num_tests):
            raise ValueError(
                f"{len(self.shares)} depths of shares and {len(self.num_tests)} of tests"
            )
        for row in self.shares:
            if not all(0 <= one <= 1 for one in row) or sum(row) > 1 + 1e-6:
                raise ValueError(f"shares by rank are {row}, wanted numbers that add up to 1")

    @property
    def pooled(self) -> tuple[float, ...]:
        """Shares by rank over all depths."""
        total = sum(self.num_tests)
        ranks = max((len(row) for row in self.shares), default=0)
        return tuple(
            sum(
                num * row[rank]
                for num, row in zip(self.num_tests, self.shares, strict=True)
                if rank < len(row)
            )
            / total
            for rank in range(ranks if total else 0)
        )


UNMEASURED = RankAcceptance()


class Candidate(Record, frozen=True):
    """One schedule that the search looked at: predicted tokens per pass and time per token, and
    for the best few what short runs measured in turns with plain decoding.
    """

    tree: str
    mean_acceptance_length: float
    tpot_ms: float
    speedup: float
    measured_tpot_ms: float | None = None
    measured_speedup: float | None = None


class Golden(Record, frozen=True):
    """A prompt and the ids that plain decoding gave on the build machine."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


class DepthPredictor(Record, frozen=True):
    """What the verify graphs' hazards were trained for, and what they brought.

    They hold for `tree` alone, which has the most levels that are chosen from, and for requests
    at `temperature`. Measured on traces: `rows[d]`: rows that a pass of depth d verifies,
    `base_tokens`: what one of depth 0 emits, `worth[d - 1]`: tokens that level d adds where it is
    reached. `smoothing`: share of the hazards of the pass before, 0 for none. `log_loss`,
    `constant_log_loss`: per hazard in nats on held-out prompts, of the hazards and of the same
    ones for every row; `calibration_error`: of the survival by depth. `gain`: time per token with
    the best fixed tree `against` over that with the predictor, the geometric mean over
    `num_measured` held-out prompts, `gain_interval` its 95 % interval; `is_on`: that is above 1.
    """

    tree: str
    temperature: float
    rows: tuple[int, ...]
    base_tokens: float
    worth: tuple[float, ...]
    is_on: bool
    num_traces: int
    num_prompts: int
    log_loss: float
    constant_log_loss: float
    calibration_error: tuple[float, ...]
    against: str
    num_measured: int
    gain: float
    gain_interval: tuple[float, float]
    smoothing: float = 0.0


class Schedule(Record, frozen=True):
    """The runtime's default. `rest_s`: measured seconds of a pass beside the verify graph, of
    which `stage_s` says more; `objective` is what each pass's choice of rows maximises, at `rate`
    tokens per second if it is the lagrangian. `ngram`: what drafts beside a model, if anything
    does. `depth`: the depth predictor, None where none was trained. `recordings`: the calibration
    prompts and answers that all of it was chosen on. `num_scored`: schedules whose time per token
    was predicted.
    """

    tree: str
    drafter: NgramDrafter | LmDrafter | EagleDrafter | MedusaDrafter | LookaheadDrafter
    rest_s: float
    buckets: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    objective: Literal["ratio", "lagrangian"] = "ratio"
    rate: float = 0.0
    stage_s: dict[str, float] = {}
    recordings: tuple[Golden, ...] = ()
    ngram: NgramDrafter | None = None
    ranks: RankAcceptance = UNMEASURED
    num_scored: int = 0
    depth: DepthPredictor | None = None


class TextInfo(Record, frozen=True):
    """How text becomes ids. `tokenizer` is a bundle member, "" if the bundle knows only ids."""

    tokenizer: str = ""
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    pad_token: str = ""
    unk_token: str = ""
    add_bos: bool = False


class Member(Record, frozen=True):
    """Size and digest of one bundle member other than the manifest itself."""

    num_bytes: int
    sha256: str


class Manifest(Record, frozen=True):
    """`manifest.json`. Times are seconds, sizes bytes."""

    format_version: int
    built_by: str
    name: str
    exactness: Literal["bitwise", "up-to-ties"]
    target: Target
    model: ModelInfo
    sources: tuple[Source, ...]
    operators: str
    operator_namespace: str
    graphs: tuple[GraphSpec, ...]
    weights: dict[str, WeightSpec]
    latency: tuple[LatencyPoint, ...]
    schedule: Schedule
    text: TextInfo
    golden: tuple[Golden, ...]
    bench_prompts: str
    members: dict[str, Member]
    config: dict[str, Any]
    profile: ProfileNotes = ProfileNotes()
    # The model that drafts, if one does.
    drafter: ModelInfo | None = None
    inputs: BuildInputs | None = None

    def to_json(self) -> bytes:
        """The manifest's bytes: same value, same bytes."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """Parses and validates; raises BundleError naming `where` and the field at fault."""
        try:
            version = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BundleError(
                f"{where}: manifest.json is not JSON: {error}",
                "the file is damaged; build it again",
            ) from error
        found = version.get("format_version") if isinstance(version, dict) else None
        if found not in READABLE_VERSIONS:
            known = ", ".join(map(str, READABLE_VERSIONS))
            raise BundleError(
                f"{where}: format version is {found!r}, this runtime reads {known}",
                "build the bundle with the yggc of this installation, or install the yggrt that "
                "made it",
            )
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.ValidationError as error:
            raise BundleError(
                f"{where}: manifest.json is not valid: {error}",
                "the file is damaged or was written by another program; build it again",
            ) from error
