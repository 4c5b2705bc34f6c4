"""From a `.ygg` file to a session: opens, checks the machine, unpacks, loads, joins the parts.

torch is imported after the checks, so that a refusal does not take seconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from yggrt import drafters
from yggrt.bundle import Bundle
from yggrt.cache import Cache, open_cache
from yggrt.core import plugins, schema
from yggrt.core.errors import RequestError
from yggrt.core.objective import Objective
from yggrt.core.passes import DraftGraphs, Graphs
from yggrt.core.schema import TreeSpec, TunedFor
from yggrt.core.spec import draft_steps, parse_tree_spec
from yggrt.cores import usable_processors
from yggrt.drafters import Drafter
from yggrt.drafters.joined import JoinedDrafter
from yggrt.drafters.lookahead import LookaheadDrafter
from yggrt.drafters.ngram import NgramDrafter
from yggrt.latency import LatencyTable
from yggrt.memory import has_room_for
from yggrt.policies import MIDDLING_CONTEXT
from yggrt.session import Parts, Session, no_draft_step
from yggrt.target import check_target, host_target
from yggrt.text import Text
from yggrt.threads import wait_briefly

# More than any machine has; far more would fail to start.
MAX_THREADS = 1024

if TYPE_CHECKING:
    from yggrt.graphs import AotDraftGraphs, AotGraphs


def load(
    path: str | Path,
    *,
    num_threads: int | None = None,
    cache_dir: str | Path | None = None,
    tree: str | None = None,
    mapped: bool = False,
    drafter: str | None = None,
) -> Session:
    """A session over the bundle at `path`.

    num_threads: default what the bundle was tuned for, at most the cores at hand; set for the
    whole process, as torch has one pool. cache_dir: where native code is unpacked. tree: the tree
    spec of requests that name none (default: the bundle's). mapped: leave the weights in the
    mapped file, which processes share, instead of reading them into huge pages, which is faster.
    drafter: one that is installed to stand in for the bundle's own (see `yggrt.drafters`).
    Warns about a machine that the bundle
    was not tuned for. Raises BundleError, TargetError or RequestError.
    """
    cache = open_cache(Path(cache_dir) if cache_dir is not None else None)
    with Bundle.open(path, cache=cache) as bundle:
        return start_session(
            bundle,
            cache,
            num_threads=num_threads,
            tree=tree,
            mapped=mapped,
            on_note=lambda note: warnings.warn(note, stacklevel=4),
            drafter=drafter,
        )


def start_session(
    bundle: Bundle,
    cache: Cache,
    *,
    num_threads: int | None,
    tree: str | None,
    mapped: bool,
    on_note: Callable[[str], None],
    drafter: str | None = None,
) -> Session:
    """Checks that an open bundle fits this machine and loads it; `on_note` hears warnings."""
    manifest = bundle.manifest
    spec = parse_tree_spec(tree if tree is not None else manifest.schedule.tree)
    other = None if drafter is None else plugins.find(drafters.GROUP, drafter)
    if other is not None and tree is None:
        raise RequestError(
            f"drafter is {drafter} and no tree is given; the bundle's was chosen for its own "
            "drafter",
            "give --tree with --drafter, as in --tree egt:width=2,depth=4",
        )
    parts = load_parts(bundle, cache, num_threads=num_threads, mapped=mapped, on_note=on_note)
    if other is not None:
        # What was measured of the bundle's own says nothing of this one.
        parts = replace(
            parts, drafter=other(), draft_step=no_draft_step, draft_host_s=0.0,
            ranks=schema.UNMEASURED,
        )  # fmt: skip
    elif tree is None and manifest.schedule.depth is not None and manifest.schedule.depth.is_on:
        # It was measured against the bundle's own tree.
        parts = replace(parts, predictor=manifest.schedule.depth)
    return open_session(bundle, parts, spec)


def open_session(bundle: Bundle, parts: Parts, spec: TreeSpec) -> Session:
    """A session over parts of the bundle; `spec` is that of requests that name none."""
    return Session(
        parts,
        text=load_text(bundle),
        eos_ids=bundle.manifest.model.eos_ids,
        vocab_size=bundle.manifest.model.vocab_size,
        tree=spec,
    )


def load_parts(
    bundle: Bundle,
    cache: Cache,
    *,
    num_threads: int | None,
    mapped: bool,
    on_note: Callable[[str], None],
) -> Parts:
    """As `start_session`, what a session is made of."""
    manifest = bundle.manifest
    schedule = manifest.schedule
    for note in check_target(manifest.target, host_target()):
        on_note(note)
    num_threads = choose_threads(num_threads, manifest.target.tuned_for)
    graphs = load_graphs(bundle, cache, num_threads=num_threads, mapped=mapped, on_note=on_note)
    latency = LatencyTable.of(manifest.latency, manifest.graphs)
    return Parts(
        graphs=graphs,
        drafter=load_drafter(bundle, cache, graphs),
        latency=latency,
        draft_step=latency.draft_step,
        rest_s=schedule.rest_s,
        draft_host_s=_draft_host_s(schedule, latency),
        objective=Objective(schedule.objective, schedule.rate),
        # Libraries of earlier versions lack it.
        keyed_select=getattr(graphs.operators, "keyed_select", None),
        ranks=schedule.ranks,
    )


def _draft_host_s(schedule: schema.Schedule, latency: LatencyTable) -> float:
    """Seconds of drafting beside the model that drafts, as measured with the schedule's tree; 0
    where no model drafts, or nothing was drafted. At most what a pass takes beside its graphs."""
    steps = draft_steps(parse_tree_spec(schedule.tree))
    graphs_s = sum(latency.draft_step(num, MIDDLING_CONTEXT) for num in steps)
    if not graphs_s:
        return 0.0
    return min(schedule.rest_s, max(0.0, schedule.stage_s.get("draft", 0.0) - graphs_s))


def load_graphs(
    bundle: Bundle,
    cache: Cache,
    *,
    num_threads: int,
    mapped: bool,
    on_note: Callable[[str], None],
) -> AotGraphs:
    """The graphs of a bundle that fits this machine, their weights in memory."""
    for note in cache.notes:
        on_note(note)
    unpacked = bundle.unpack(cache)

    wait_briefly()
    import torch

    from yggrt.graphs import AotGraphs

    torch.set_num_threads(num_threads)
    if not mapped:
        _read_weights(bundle, on_note)
    return AotGraphs.from_bundle(bundle, unpacked)


def load_draft_graphs(bundle: Bundle, cache: Cache) -> AotDraftGraphs | None:
    """The graphs of the model that drafts, None where n-grams do or Medusa heads, which are in the
    verifier's; after `load_graphs`, which decides where weights lie."""
    if all(graph.kind not in schema.DRAFTER_KINDS for graph in bundle.manifest.graphs):
        return None
    from yggrt.graphs import AotDraftGraphs

    return AotDraftGraphs.from_bundle(bundle, bundle.unpack(cache))


def load_drafter(bundle: Bundle, cache: Cache, graphs: AotGraphs) -> Drafter:
    """The schedule's drafter; `graphs` are the bundle's."""
    schedule = bundle.manifest.schedule
    if isinstance(schedule.drafter, schema.NgramDrafter):
        return NgramDrafter(schedule.drafter)
    if isinstance(schedule.drafter, schema.LookaheadDrafter):
        return LookaheadDrafter()
    draft = load_draft_graphs(bundle, cache)
    model = model_drafter(graphs, draft, schedule.drafter, bundle.manifest.model.vocab_size)
    if schedule.ngram is None:
        return model
    return JoinedDrafter(model, NgramDrafter(schedule.ngram))


def model_drafter(
    graphs: Graphs, draft: DraftGraphs | None, parameters: schema.ModelDrafter, num_ids: int
) -> Drafter:
    """The drafter that runs `draft`, or is part of the verifier's `graphs`; `num_ids`: the
    verifier's ids."""
    if isinstance(parameters, schema.MedusaDrafter):
        from yggrt.drafters.medusa import MedusaDrafter

        return MedusaDrafter(parameters, getattr(graphs, "top_shares", None))
    assert draft is not None, "a manifest is checked when it is read"
    if isinstance(parameters, schema.EagleDrafter):
        from yggrt.drafters.eagle import EagleDrafter

        return EagleDrafter(draft, parameters)
    from yggrt.drafters.lm import LmDrafter

    return LmDrafter(draft, parameters, num_ids)


def _read_weights(bundle: Bundle, on_note: Callable[[str], None]) -> None:
    """Copies the weights into huge pages if they fit; says so if they do not."""
    why = "would take more than half of the available memory"
    if has_room_for(bundle.num_bytes):
        try:
            bundle.read_weights()
            return
        except RequestError as error:
            why = f"is not possible: {error.message}"
    size = f"{bundle.num_bytes / 1e9:.1f} GB"
    on_note(f"weights stay in the mapped file: a copy of {size} in huge pages {why}")


def load_text(bundle: Bundle) -> Text | None:
    """The bundle's tokenizer, or None if it works on ids alone."""
    info = bundle.manifest.text
    return Text(info, bundle.read(info.tokenizer)) if info.tokenizer else None


def choose_threads(asked: int | None, tuned_for: TunedFor) -> int:
    """`asked`, or as many threads as the bundle was tuned for and this process may use
    processors."""
    usable = usable_processors()
    if asked is None:
        return max(1, min(tuned_for.num_threads, usable))
    if not 1 <= asked <= MAX_THREADS:
        raise RequestError(
            f"number of threads is {asked}, wanted 1 to {MAX_THREADS}",
            f"this process may use {usable} processors",
        )
    return asked
