"""`yggc train depth`: the depth predictor of a bundle. It takes a bundle and gives a bundle: its
traces are those of the compiled pair, and its weights are constants of the compiled graphs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from yggc.train_command import check_positive, check_within
from yggc.train_flags import AsJson, Exclude, Verbose, prepare_process
from yggrt.terminal import reports_errors


@reports_errors
def depth(
    bundle: Annotated[Path, typer.Argument(help="A .ygg bundle.", metavar="FILE")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The bundle to write.", metavar="NEW.ygg")
    ],
    tree: Annotated[
        str | None,
        typer.Option(
            help="The tree whose depth is chosen (default: the bundle's).", metavar="SPEC"
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Calibration prompts, as for `yggrt bench` (repeatable; default: those that the "
            "bundle was built with).",
            metavar="FILE",
        ),
    ] = None,
    exclude: Exclude = None,
    limit: Annotated[
        int | None, typer.Option(help="The first so many prompts of each file.", min=1)
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Of the requests that it is for; 0 is greedy.")
    ] = 0.0,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Of each prompt's answer.", min=8)
    ] = 64,
    smoothing: Annotated[
        float, typer.Option(help="Share of the hazards of the pass before, at run time.")
    ] = 0.0,
    epochs: Annotated[int, typer.Option(help="Passes through the traces, at most.", min=1)] = 100,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 2e-3,
    l2: Annotated[float, typer.Option(help="Weight of half the sum of squared weights.")] = 1e-2,
    penalty: Annotated[
        float, typer.Option(help="Weight of the squared correlation between units.")
    ] = 0.1,
    curriculum: Annotated[
        int, typer.Option(help="Epochs until the deepest head is trained too.", min=0)
    ] = 8,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better held-out loss that end it.", min=1)
    ] = 12,
    seed: Annotated[
        int, typer.Option(help="Of weights, of the split of prompts and of sampling.", min=0)
    ] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(help="Keep the traces here, or read them.", metavar="SAFETENSORS"),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Write the predictor as safetensors and ONNX.", metavar="DIR"),
    ] = None,
    first: Annotated[
        Path | None,
        typer.Option("--from", help="Take this predictor instead of training.", metavar="DIR"),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", help="Default: what the bundle was tuned for.", min=1),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where native code is unpacked (default: as for yggrt).")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Trains what chooses the depth of each draft, and turns it on where it pays."""
    check_within(("temperature", temperature, 0.0, 100.0), ("smoothing", smoothing, 0.0, 0.99))
    check_within(("l2", l2, 0.0, 1e3), ("penalty", penalty, 0.0, 1e3))
    check_positive(("learning-rate", learning_rate, 0.0, 1.0))
    prepare_process()

    from yggc.depth.fit import FitOptions
    from yggc.depth.options import DepthOptions
    from yggc.depth.report import report_lines
    from yggc.depth.run import train_depth
    from yggc.report import Reporter
    from yggrt.cache import open_cache

    options = DepthOptions(
        bundle=bundle,
        output=output,
        tree=tree,
        prompts=tuple(prompts or ()),
        exclude=tuple(exclude or ()),
        limit=limit,
        temperature=temperature,
        max_tokens=max_tokens,
        smoothing=smoothing,
        fit=FitOptions(
            epochs=epochs,
            learning_rate=learning_rate,
            l2=l2,
            penalty=penalty,
            curriculum=curriculum,
            patience=patience,
            seed=seed,
        ),
        traces=traces,
        weights=weights,
        first=first,
        num_threads=threads,
    )
    found = train_depth(options, open_cache(cache_dir), Reporter(quiet=as_json))
    print(json.dumps(found) if as_json else "\n".join(report_lines(found)))
