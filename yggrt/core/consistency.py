"""What must hold between the parts of a manifest, beyond the types of each. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from yggrt.core.errors import BundleError, RequestError
from yggrt.core.formats import cache_shapes
from yggrt.core.schema import (
    DRAFTER_KINDS,
    VERIFIER_KINDS,
    EagleDrafter,
    GraphSpec,
    HeadDrafter,
    Manifest,
    MedusaDrafter,
    ModelDrafter,
    ModelInfo,
)
from yggrt.core.spec import parse_tree_spec

CODE_PREFIX = "code/"
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "weights.safetensors"
WEIGHT_ALIGNMENT = 64


def check_manifest(manifest: Manifest, where: str) -> None:
    """Raises BundleError, naming `where`, for the first part that contradicts another."""
    for problem in _problems(manifest):
        raise BundleError(
            f"{where}: {problem}",
            "the file is damaged or was written by another program; build it again",
        )


def check_member_name(name: str) -> str | None:
    """Says what is wrong with a member's name; None when nothing is."""
    parts = name.split("/")
    if not name.isascii() or not name.isprintable() or "\\" in name or len(name) > 255:
        return (
            f"member name {name!r}, wanted up to 255 printable ASCII characters and no backslash"
        )
    if any(part in ("", ".", "..") for part in parts):
        return f"member name {name!r}, wanted a relative path without empty, '.' or '..' parts"
    if name == MANIFEST_NAME:
        return f"member {name!r} lists itself"
    return None


def _problems(manifest: Manifest) -> Iterator[str]:
    yield from _member_problems(manifest)
    yield from _weight_problems(manifest)
    yield from _graph_problems(manifest)
    yield from _model_problems(manifest)
    vocab = manifest.model.vocab_size
    texts = (("golden prompt", manifest.golden), ("recording", manifest.schedule.recordings))
    for name, recorded in texts:
        for index, one in enumerate(recorded):
            if any(not 0 <= token < vocab for token in (*one.prompt_ids, *one.output_ids)):
                yield f"{name} {index} holds an id outside 0..{vocab - 1}"
    yield from _depth_problems(manifest)
    if manifest.schedule.objective == "lagrangian" and not manifest.schedule.rate > 0:
        yield f"the objective is lagrangian and its rate {manifest.schedule.rate}, wanted above 0"


def _depth_problems(manifest: Manifest) -> Iterator[str]:
    depth = manifest.schedule.depth
    if depth is None:
        return
    try:
        levels = parse_tree_spec(depth.tree).depth
    except RequestError as error:
        yield f"the depth predictor's {error.message}"
        return
    if not 1 <= levels <= manifest.model.max_depth:
        yield (
            f"the depth predictor's tree has {levels} levels, wanted 1 to "
            f"{manifest.model.max_depth}"
        )
    if (len(depth.rows), len(depth.worth)) != (levels + 1, levels) or min(depth.rows) < 1:
        yield (
            f"the depth predictor has rows {list(depth.rows)} and worths {list(depth.worth)} for "
            f"a tree of {levels} levels"
        )
    if ";" in depth.tree:
        yield f"the depth predictor's tree is {depth.tree}, wanted one without a plan"
    if not depth.temperature >= 0 or not 0 <= depth.smoothing < 1:
        yield (
            f"the depth predictor has temperature {depth.temperature} and smoothing "
            f"{depth.smoothing}, wanted 0 or more, and 0 to below 1"
        )
    if depth.is_on and not depth.gain_interval[0] > 1:
        yield f"the depth predictor is on with a gain of {list(depth.gain_interval)}"
    name = "predictor.decode.bias"
    if (weight := manifest.weights.get(name)) is None:
        yield f"the depth predictor has no weight {name!r}"
    elif weight.shape != (manifest.model.max_depth,):
        yield (
            f"the depth predictor has {list(weight.shape)} hazards, wanted "
            f"{manifest.model.max_depth}"
        )


def _member_problems(manifest: Manifest) -> Iterator[str]:
    for name, member in manifest.members.items():
        problem = check_member_name(name)
        if problem:
            yield problem
        if member.num_bytes < 0:
            yield f"member {name!r} has a size of {member.num_bytes}"
        if len(member.sha256) != 64 or set(member.sha256) - set("0123456789abcdef"):
            yield f"member {name!r} has digest {member.sha256!r}, wanted 64 hexadecimal digits"
    folded: dict[str, str] = {}
    for name in manifest.members:
        # Two names that differ in case alone are one file where file systems fold case.
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            yield f"members {other!r} and {name!r} differ in case alone"
    if WEIGHTS_NAME not in manifest.members:
        yield f"the manifest lists no member {WEIGHTS_NAME!r}"
    native = [manifest.operators]
    native += [n for g in manifest.graphs for n in (g.library, g.calls, g.metadata)]
    for name in native:
        if name and not name.startswith(CODE_PREFIX):
            yield f"native code in member {name!r}, wanted a name below {CODE_PREFIX!r}"
    for name in (*native, manifest.text.tokenizer, manifest.bench_prompts):
        if name and name not in manifest.members:
            yield f"the manifest refers to member {name!r}, which it does not list"


def _weight_problems(manifest: Manifest) -> Iterator[str]:
    for name, weight in manifest.weights.items():
        if any(size < 0 for size in weight.shape):
            yield f"weight {name!r} has shape {list(weight.shape)}"
        if weight.offset < 0 or weight.offset % WEIGHT_ALIGNMENT:
            yield (
                f"weight {name!r} starts at byte {weight.offset}, "
                f"wanted a multiple of {WEIGHT_ALIGNMENT}"
            )


def _graph_problems(manifest: Manifest) -> Iterator[str]:
    # The loader of compiled graphs takes an entry whose name merely starts with the one asked for.
    for name, other in itertools.pairwise(sorted(graph.name for graph in manifest.graphs)):
        if other.startswith(name):
            yield f"graph name {name!r} is the start of graph name {other!r}"
    for graph in manifest.graphs:
        if not 1 <= graph.min_rows <= graph.max_rows:
            yield f"graph {graph.name!r} holds {graph.min_rows}..{graph.max_rows} rows"
        for constant, weight in graph.constants.items():
            if weight not in manifest.weights:
                yield (
                    f"graph {graph.name!r} binds {constant!r} to weight {weight!r}, "
                    "which the manifest does not list"
                )
        for tensor in (*graph.inputs, *graph.outputs):
            if len(tensor.shape) != len(tensor.stride):
                yield (
                    f"graph {graph.name!r}: tensor {tensor.name!r} has {len(tensor.shape)} sizes "
                    f"and {len(tensor.stride)} strides"
                )


def _model_problems(manifest: Manifest) -> Iterator[str]:
    """The loader of compiled graphs compares no input, so what they are given is compared here."""
    yield from _one_model_problems(manifest, manifest.model, VERIFIER_KINDS)
    drafter = manifest.schedule.drafter
    drafts = isinstance(drafter, ModelDrafter)
    if drafts != (manifest.drafter is not None):
        found = "is" if drafts else "is not"
        yield f"the drafter of the schedule {found} a model, that of the manifest is not likewise"
    if manifest.drafter is not None and isinstance(drafter, HeadDrafter):
        yield from _head_problems(manifest, manifest.drafter, drafter)
    if isinstance(drafter, MedusaDrafter):
        yield from _medusa_problems(manifest, drafter)
    elif manifest.drafter is not None:
        yield from _one_model_problems(manifest, manifest.drafter, DRAFTER_KINDS)
        widths = [graph.max_rows for graph in manifest.graphs if graph.kind == "draft"]
        if 1 not in widths:
            yield f"the drafter has graphs for {widths} nodes, none for one"
    elif any(graph.kind in DRAFTER_KINDS for graph in manifest.graphs):
        yield "the manifest has graphs of a drafter and no drafter"


def _medusa_problems(manifest: Manifest, drafter: MedusaDrafter) -> Iterator[str]:
    """Heads that are part of the verifier's graphs."""
    wanted = drafter.num_heads * len(drafter.token_ids or range(manifest.model.vocab_size))
    for graph in manifest.graphs:
        if graph.kind in DRAFTER_KINDS:
            yield f"graph {graph.name!r} is a drafter's, and Medusa heads have none of their own"
        found = [spec.shape[1:] for spec in graph.outputs if spec.name == "hidden"]
        if found != [(wanted,)]:
            yield f"graph {graph.name!r} gives {found} as logits of heads, wanted {[(wanted,)]}"


def _head_problems(manifest: Manifest, head: ModelInfo, drafter: HeadDrafter) -> Iterator[str]:
    model, ids = manifest.model, drafter.token_ids
    if head.hidden_size != model.hidden_size:
        yield f"the head reads {head.hidden_size} values, the verifier gives {model.hidden_size}"
    if len(ids or range(model.vocab_size)) != head.vocab_size:
        yield f"the head gives {head.vocab_size} logits for {len(ids) or model.vocab_size} ids"
    if any(not 0 <= token < model.vocab_size for token in ids) or len(set(ids)) < len(ids):
        yield f"the head's token ids are not different ids in 0..{model.vocab_size - 1}"
    for graph in manifest.graphs:
        reads = any(spec.name == "features" for spec in graph.inputs)
        if reads != (graph.kind in DRAFTER_KINDS and isinstance(drafter, EagleDrafter)):
            found = "reads" if reads else "lacks"
            yield f"graph {graph.name!r} of kind {graph.kind} {found} features"


def _one_model_problems(
    manifest: Manifest, model: ModelInfo, kinds: Collection[str]
) -> Iterator[str]:
    graphs = [graph for graph in manifest.graphs if graph.kind in kinds]
    for kind in kinds:
        if manifest.graphs and not any(graph.kind == kind for graph in graphs):
            yield f"the manifest has no {kind} graph"
    most = max(map(_slots_needed, graphs), default=0)
    if model.max_model_len < 2 or model.num_slots < model.max_model_len + most:
        yield (
            f"caches have {model.num_slots} slots, wanted a context of {model.max_model_len} "
            f"tokens, at least 2, and {most} for the rows of its largest graph"
        )
    if model.activations == "int8" and model.quant == "none":
        yield "activations are int8 and no matrix is quantised"
    for graph in graphs:
        yield from _cache_problems(graph, model)


def _slots_needed(graph: GraphSpec) -> int:
    """Slots behind the context: the rows of a call, behind the tree that they may see."""
    masks = [spec.shape[1] for spec in graph.inputs if spec.name == "mask"]
    seen = max(masks, default=0)
    return graph.max_rows + (seen if seen > graph.max_rows else 0)


def _cache_problems(graph: GraphSpec, model: ModelInfo) -> Iterator[str]:
    found = [(spec.dtype, spec.shape) for spec in graph.inputs if len(spec.shape) == 4]
    wanted = cache_shapes(model.kv_layers, model.num_slots, model.kv_dtype)
    if found != wanted:
        at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), -1)
        yield (
            f"graph {graph.name!r} takes {len(found)} caches, the model has {len(wanted)}"
            if at < 0
            else f"graph {graph.name!r} takes a cache of {found[at]}, the model has {wanted[at]}"
        )
