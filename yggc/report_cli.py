"""`yggc report`: a page that shows why a bundle is as fast as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from yggrt import __version__
from yggrt.terminal import note, reports_errors


@reports_errors
def report(
    file: Annotated[Path, typer.Argument(help="A .ygg bundle.", metavar="FILE")],
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="What `yggrt bench FILE --json` printed (repeatable).", metavar="JSON"),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            help="What `yggc compare FILE --json` printed, of libraries or with --policies "
            "(repeatable).",
            metavar="JSON",
        ),
    ] = None,
    depth: Annotated[
        list[Path] | None,
        typer.Option(
            help="What `yggc train depth --json` printed when it wrote FILE (repeatable).",
            metavar="JSON",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page to write.", metavar="OUT.html")
    ] = Path("report.html"),
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Writes one HTML page with the figures of a bundle. Runs none of its native code."""
    from yggc.report_page.measured import read_measured
    from yggc.report_page.output import check_output
    from yggc.report_page.svg import check_matplotlib
    from yggc.whole import write_whole
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache

    check_matplotlib()
    check_output(output)
    with Bundle.open(file, cache=open_cache(None)) as bundle:
        manifest, num_bytes, digest = bundle.manifest, bundle.num_bytes, bundle.digest
    measured = read_measured(
        bench or (), compare or (), manifest.name, digest, depth or (), manifest.schedule.depth
    )
    from yggc.report_page.page import render, sections

    parts = sections(manifest, num_bytes, digest, measured)
    page = render(f"Report: {manifest.name}", f"yggc {__version__} report", parts)
    write_whole(output, page.encode())
    note(f"{output}: {len(page.encode()) / 1e3:.0f} kB")
