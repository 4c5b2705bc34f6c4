"""`yggc train data`: parses and prints; torch comes with the work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from yggc.train_flags import (
    AsJson,
    Device,
    Dtype,
    Exclude,
    Threads,
    Verbose,
    VerifierSha256,
    WorkFolder,
    check_device,
    prepare_process,
)
from yggrt.terminal import INTERRUPTED, note, reports_errors


@reports_errors
def data(
    verifier: Annotated[
        str, typer.Option(help="The model that writes, as in `yggc build`.", metavar="SRC")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the text.", metavar="DIR")
    ],
    verifier_sha256: VerifierSha256 = "",
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompts as JSON lines or text, one a line (repeatable). Rows without a category "
            "of math, code, general or prose get the one given (default: general).",
            metavar="[CATEGORY=]FILE",
        ),
    ] = None,
    sources: Annotated[
        str,
        typer.Option(
            help="Made prompts: builtin (templates), packages (functions of installed Python "
            "packages), both, or nothing.",
            metavar="NAME,NAME",
        ),
    ] = "builtin,packages",
    exclude: Exclude = None,
    mix: Annotated[
        str, typer.Option(help="Shares of the categories.", metavar="CATEGORY=WEIGHT,...")
    ] = "math=35,code=35,general=20,prose=10",
    tokens: Annotated[int, typer.Option(help="Response tokens to write.", min=1)] = 1_000_000,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Longest response.", min=1)
    ] = 256,
    temperature: Annotated[float, typer.Option(help="Of the sampled rows.")] = 0.7,
    greedy_share: Annotated[float, typer.Option(help="Rows that are greedy, 0 to 1.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Order of the prompts, and what is drawn.")] = 0,
    batch: Annotated[int, typer.Option(help="Sequences written at once.", min=1)] = 256,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    work_dir: WorkFolder = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """The verifier writes text of its own from prompts. The same command goes on after a stop."""
    from yggc.host import default_work_dir
    from yggc.workdir import WorkDir
    from yggrt.cores import usable_cores

    check_device(device, dtype)
    prepare_process()

    from yggc.report import Reporter
    from yggc.train.data import write_data
    from yggc.train.options import DataOptions
    from yggc.train.prompts import check_sources, parse_mix

    options = DataOptions(
        verifier=verifier,
        output=output,
        prompts=tuple(prompts or ()),
        sources=check_sources(sources),
        exclude=tuple(exclude or ()),
        mix=parse_mix(mix),
        num_tokens=tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        greedy_share=greedy_share,
        seed=seed,
        batch=batch,
        num_threads=threads or usable_cores(),
        device=device,
        dtype=dtype,
        verifier_sha256=verifier_sha256,
    )
    work = WorkDir(Path(work_dir) if work_dir else default_work_dir())
    try:
        record = write_data(options, work, Reporter(quiet=as_json))
    except KeyboardInterrupt:
        note("interrupted; what was written is kept, the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print(json.dumps({"output": str(output), **record}))
        return
    counts = record["counts"]
    print(f"{output}: {counts.get('rows', 0)} rows, {counts.get('tokens', 0)} response tokens")
    for key in sorted(counts):
        print(f"  {key}: {counts[key]}")
