"""What a comparison ends with: its page or one line of JSON, and the page in a file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from yggc.whole import write_whole
from yggrt.busy import warning
from yggrt.terminal import warn


def show(
    report: dict[str, Any],
    markdown: Callable[[dict[str, Any], str], str],
    output: Path | None,
    as_json: bool,
) -> None:
    """Adds the command line to the report. Prints before it writes: a full disk loses nothing."""
    report["command"] = shlex.join(["yggc", *sys.argv[1:]])
    page = markdown(report, report["command"])
    if busy := warning(report["busy_share"]):
        warn(busy)
    print(json.dumps(report) if as_json else page)
    if output is not None:
        write_whole(output, page.encode())
