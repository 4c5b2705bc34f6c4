"""freeze: the compiled graphs stand against the eager model, and golden outputs are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from ygg_kernels.ops import load_library

from yggc.context import Context
from yggc.errors import StageError
from yggc.models.weights import weight_name
from yggc.stages.adapt import AdaptedModel, adapt_loaded
from yggc.stages.graphs import BoundGraphs, bind_graphs
from yggc.stages.load import Loaded
from yggc.stages.profile import Profile
from yggc.stages.search import Searched, calibration_ids
from yggrt.core.schema import Golden, GraphSpec, Record
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.kv import KvCache
from yggrt.scheduling import decode
from yggrt.weights import view

NUM_GOLDEN = 3
GOLDEN_TOKENS = 24
# Share of the largest logit by which compiled and eager glue may differ: rounding, never another
# result.
TOLERANCE = 1e-4
# Where activations or caches are rounded, a last bit of glue can turn a code, which turns others
# in later layers, until both sides carry rounding noise of their own: each as large as the
# difference that rounding makes, measured on the same rows.
ROUNDING_FACTOR = 3.0


class Frozen(Record, frozen=True):
    """The graphs to ship and what plain decoding said to the golden prompts."""

    graphs: tuple[GraphSpec, ...]
    golden: tuple[Golden, ...]
    max_difference: float


def key(
    context: Context, loaded: Loaded, adapted: AdaptedModel, profile: Profile, searched: Searched
) -> Any:
    return [loaded, adapted, profile, searched]


def run(
    context: Context,
    out: Path,
    loaded: Loaded,
    adapted: AdaptedModel,
    profile: Profile,
    searched: Searched,
) -> Frozen:
    bound = bind_graphs(context, loaded, adapted)
    torch.set_num_threads(context.config.threads)
    prompts = calibration_ids(context, loaded, adapted)[:NUM_GOLDEN]
    difference = _check_against_eager(context, loaded, adapted, bound, prompts[0])
    # Plain decoding asks no drafter.
    drafter = NgramDrafter(DEFAULT_PARAMETERS)
    engine = Engine(
        bound.graphs, bound.graphs.new_cache(), drafter, parse_tree_spec("plain"),
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip
    ends = set(loaded.eos_ids)
    golden = tuple(
        Golden(
            prompt_ids=tuple(prompt),
            output_ids=tuple(decode(engine, prompt, GOLDEN_TOKENS, ends)[0]),
        )
        for prompt in prompts
    )
    return Frozen(graphs=bound.specs, golden=golden, max_difference=difference)


def _check_against_eager(
    context: Context,
    loaded: Loaded,
    adapted: AdaptedModel,
    bound: BoundGraphs,
    prompt: list[int],
) -> float:
    """Largest difference of a logit, as a share of the largest, of the verifier and of a model
    that drafts, and of a value that a head reads or, as Medusa's, gives; raises StageError above
    the tolerance.
    """
    graphs, draft, storage = bound.graphs, bound.draft, bound.storage
    chain = _chain(prompt, graphs.row_counts[-1])
    _, logits, hidden, _ = graphs.verify(graphs.new_cache(), chain, 0)
    reads = loaded.medusa is not None or (draft is not None and draft.feature_size > 0)
    outputs = {"logit": logits, "feature": hidden} if reads else {"logit": logits}
    difference = _compare(context, loaded, adapted, storage, chain, outputs)
    if draft is not None and loaded.drafter is not None and adapted.drafter is not None:
        vocab_size = loaded.drafter.config["vocab_size"]
        known = [min(token, vocab_size - 1) for token in prompt]
        chain = _chain(known, draft.widths[-1])
        paths = [chain.path(row) for row in range(chain.num_nodes)]
        given = hidden[: chain.num_nodes] if reads else None
        features = () if given is None else given
        logits = draft.draft(draft.new_cache(), chain.tokens, paths, 0, features).logits
        outputs = {"logit": logits}
        part = _compare(context, loaded.drafter, adapted.drafter, storage, chain, outputs, given)
        difference = max(difference, part)
    return difference


def _chain(prompt: list[int], most: int) -> TokenTree:
    rows = min(len(prompt), most)
    return TokenTree(tuple(prompt[:rows]), tuple(range(-1, rows - 1)), (1.0,) * rows)


def _compare(
    context: Context,
    loaded: Loaded,
    adapted: AdaptedModel,
    storage: torch.UntypedStorage,
    chain: TokenTree,
    found: Mapping[str, torch.Tensor],
    features: torch.Tensor | None = None,
) -> float:
    """The largest difference of any output in `found`, "logit" or "feature"."""
    eager = _eager_outputs(context, loaded, adapted, storage, chain, features)
    floats = {"activations": "float32", "kv_dtype": "float32"}
    exact = msgspec.structs.replace(loaded, **floats)
    if exact.drafter is not None:
        # Features are made as the head's own products are.
        exact = msgspec.structs.replace(
            exact, drafter=msgspec.structs.replace(exact.drafter, **floats)
        )
    unrounded = eager
    if exact != loaded:
        unrounded = _eager_outputs(context, exact, adapted, storage, chain, features)
    differences = []
    for name, values in found.items():
        largest = float(eager[name].abs().max())
        difference = float((eager[name] - values).abs().max()) / largest
        noise = float((eager[name] - unrounded[name]).abs().max()) / largest
        tolerance = max(TOLERANCE, ROUNDING_FACTOR * noise)
        if not difference <= tolerance:
            raise StageError(
                f"compiled graphs and eager model differ by {difference:.1e} of the largest "
                f"{name}, wanted at most {tolerance:.0e}",
                "this is a defect of the compiler; please report the model's config.json",
            )
        differences.append(difference)
    return max(differences)


def _eager_outputs(
    context: Context,
    loaded: Loaded,
    adapted: AdaptedModel,
    storage: torch.UntypedStorage,
    chain: TokenTree,
    features: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Outputs of `loaded` over the packed weights by what one value of them is, nothing compiled
    but the operators."""
    library = context.library
    operators = load_library(library.path, library.namespace)
    eager = adapt_loaded(loaded, operators, adapted.model.max_depth)
    module = eager.static_forward("verify")
    for name, parameter in module.named_parameters(remove_duplicate=False):
        parameter.data = view(storage, adapted.weights[weight_name(adapted.tied, name)])
    rows = chain.num_nodes
    each = torch.arange(rows)
    inputs = (torch.tensor(chain.tokens), each, each, torch.tensor([0]))
    mask = torch.tril(torch.ones(rows, rows, dtype=torch.bool))
    cache = KvCache(msgspec.structs.replace(adapted.model, kv_dtype=loaded.kv_dtype))
    with torch.no_grad():
        given = () if features is None else (features,)
        _, logits, hidden, _ = module(*inputs, mask, *given, *cache.tensors)
    return {"logit": logits, "feature": hidden}
