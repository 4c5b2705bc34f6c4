"""`yggc train export`: a trained head in another project's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from yggc.train_flags import Verbose, prepare_process
from yggrt.terminal import reports_errors


@reports_errors
def export(
    head: Annotated[
        Path, typer.Argument(help="A head that `yggc train eagle3` wrote.", metavar="HEAD")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write.", metavar="DIR")
    ],
    verifier: Annotated[
        str,
        typer.Option(help="What readers load as the verifier: a hub id or a path.", metavar="ID"),
    ],
    speculative_tokens: Annotated[
        int, typer.Option(help="Tokens of a chain that readers draft.", min=1)
    ] = 4,
    verbose: Verbose = False,
) -> None:
    """Writes an EAGLE-3 head in the layout of vllm-project/speculators."""
    prepare_process()

    from yggc.train.export import export_head

    export_head(head, output, verifier, speculative_tokens)
    print(output)
