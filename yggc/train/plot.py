"""Curves of a run's log."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from yggc.errors import PreflightError
from yggc.train.head import replace_file


def check_plot(path: Path) -> None:
    """Before a run: PreflightError without matplotlib or a folder to write to."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PreflightError(
            "--plot needs matplotlib, which is not installed",
            "pip install 'yggdrasil-decode[report]', or leave --plot out",
        )
    if not path.absolute().parent.is_dir():
        raise PreflightError(
            f"--plot {path}: no such folder {path.absolute().parent}",
            "make it, or correct the path",
        )


def plot_log(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes a PNG of the parts of the loss and the held-out agreement."""
    from matplotlib.figure import Figure

    steps = [entry for entry in entries if "loss" in entry]
    checks = [entry for entry in entries if entry.get("validation")]
    parts = [key for key, value in steps[0].items() if isinstance(value, list)] if steps else []
    figure = Figure(figsize=(4 * (len(parts) + 1), 4), layout="constrained")
    axes = figure.subplots(1, len(parts) + 1, squeeze=False)[0]
    for axis, key in zip(axes, parts, strict=False):
        for depth in range(len(steps[0][key])):
            axis.plot(
                [entry["step"] for entry in steps],
                [entry[key][depth] for entry in steps],
                linewidth=0.7,
                label=f"draft step {depth + 1}",
            )
        axis.set(xlabel="step", title=f"{key} loss")
        axis.legend()
    for depth in range(len(checks[0]["validation"]["top"]) if checks else 0):
        axes[-1].plot(
            [entry["step"] for entry in checks],
            [entry["validation"]["top"][depth][0] for entry in checks],
            label=f"draft step {depth + 1}",
        )
    axes[-1].set(xlabel="step", title="held out: first choices that agree")
    axes[-1].legend()
    replace_file(path, lambda partial: figure.savefig(partial, format="png"))
