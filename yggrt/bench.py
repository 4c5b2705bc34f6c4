"""`yggrt bench`: times plain against tree decoding of one bundle and makes its report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from yggrt.bench_report import report
from yggrt.bench_runs import run_bench
from yggrt.busy import BusyMeter
from yggrt.core.schema import VERIFIER_KINDS, Manifest
from yggrt.inspect import describe_verifier, model_weights
from yggrt.prompts import Prompt
from yggrt.session import Session
from yggrt.target import host_target
from yggrt.trace import trace_run


def bench_bundle(
    session: Session,
    manifest: Manifest,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Runs the prompts and returns the report in JSON types; times in ms, rates per second.

    Raises what `yggrt.bench_runs.run_bench` raises.
    """
    import torch

    from yggrt.measure_host import measure_read_bandwidth

    busy = BusyMeter()
    measured = run_bench(
        session,
        prompts,
        num_tokens=num_tokens,
        repeats=repeats,
        progress=progress,
        cancelled=cancelled,
    )
    busy_share = busy.share()
    num_threads = torch.get_num_threads()
    host = host_target(num_threads).tuned_for
    bandwidth = measure_read_bandwidth(num_threads)
    # What a pass of the verifier reads; a model that drafts has its own.
    weights = model_weights(manifest, VERIFIER_KINDS)
    weight_bytes = sum(weight.num_bytes for weight in weights.values())
    return {
        "bundle": manifest.name,
        "verifier": describe_verifier(manifest),
        **report(measured, weight_bytes, bandwidth),
        "num_tokens": num_tokens,
        "repeats": repeats,
        "busy_share": busy_share,
        "host": {
            "device": host.device,
            "num_cores": host.num_cores,
            "num_threads": num_threads,
            "torch": torch.__version__,
            "read_bandwidth": bandwidth,
        },
    }


def trace_bundle(
    session: Session, manifest: Manifest, prompt: Prompt, num_tokens: int
) -> dict[str, Any]:
    """A trace of one more run of `prompt` with trees, after those that are timed."""
    import torch

    assert session.text is not None, "its prompts were run before"
    about = {
        "bundle": manifest.name,
        "verifier": describe_verifier(manifest),
        "prompt": prompt.name,
        "device": host_target().tuned_for.device,
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    return trace_run(session, prompt.encode(session.text), num_tokens, manifest.name, about)
