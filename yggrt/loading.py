"""From a `.ygg` file to a session: opens, checks the machine, unpacks, loads, joins the parts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.errors import RequestError
from yggrt.core.schema import Manifest
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.ngram import NgramDrafter
from yggrt.graphs import AotGraphs
from yggrt.latency import verify_latency
from yggrt.session import Parts, Session
from yggrt.target import check_target, host_target
from yggrt.text import Text


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=3)


def load(
    path: str | Path,
    *,
    num_threads: int | None = None,
    cache_dir: str | Path | None = None,
    tree: str | None = None,
    on_note: Callable[[str], None] = _warn,
) -> Session:
    """A session over the bundle at `path`.

    num_threads: default what the bundle was tuned for, at most the cores at hand; set for the
    whole process, as torch has one pool. cache_dir: where native code is unpacked. tree: the tree
    spec of requests that name none (default: the bundle's). on_note: told what is worth a warning,
    such as a machine that the bundle was not tuned for. Raises BundleError, TargetError or
    RequestError.
    """
    cache = open_cache(Path(cache_dir) if cache_dir is not None else None)
    with Bundle.open(path, cache=cache) as bundle:
        notes = [*cache.notes, *check_target(bundle.manifest.target, host_target())]
        for note in notes:
            on_note(note)
        set_threads(num_threads, bundle.manifest)
        graphs = AotGraphs.from_bundle(bundle, bundle.unpack(cache))
        return make_session(bundle, graphs, tree)


def set_threads(num_threads: int | None, manifest: Manifest) -> int:
    """Sets torch's pool for the process; the number of threads."""
    num_cores = len(os.sched_getaffinity(0))
    if num_threads is None:
        num_threads = max(1, min(manifest.target.tuned_for.num_threads, num_cores))
    if num_threads < 1:
        raise RequestError(
            f"--threads is {num_threads}, wanted 1 or more", f"this machine has {num_cores} cores"
        )
    torch.set_num_threads(num_threads)
    return num_threads


def make_session(bundle: Bundle, graphs: AotGraphs, tree: str | None) -> Session:
    """Joins loaded graphs with what the manifest says about drafting and text."""
    manifest = bundle.manifest
    schedule = manifest.schedule
    drafter = schedule.drafter
    verify_graphs = [graph.name for graph in manifest.graphs if graph.kind == "verify"]
    info = manifest.text
    return Session(
        Parts(
            graphs=graphs,
            make_drafter=lambda: NgramDrafter(drafter.max_match, drafter.acceptance),
            latency=verify_latency(manifest.latency, verify_graphs),
            rest_s=schedule.rest_s,
        ),
        text=Text(info, bundle.read(info.tokenizer)) if info.tokenizer else None,
        eos_ids=manifest.model.eos_ids,
        vocab_size=manifest.model.vocab_size,
        tree=parse_tree_spec(tree if tree is not None else schedule.tree),
    )
