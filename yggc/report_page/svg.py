"""Figures as SVG elements for a page: no scripts, no fonts, nothing from elsewhere; their ink is
the page's text colour, so that they can be read on light and on dark.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from yggc.errors import PreflightError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Stands for the page's text colour while matplotlib draws.
_INK = "#0a0b0c"
# Of middling lightness: readable on white and on black.
COLOURS = ("#3b8fd9", "#e07b1a", "#2fa36b", "#c25a9e", "#8c7ae6", "#a58b1f")
WARNING = "#e5484d"
_UNUSED_ID = re.compile(r' id="([^"]*)"')
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def check_matplotlib() -> None:
    """Raises PreflightError where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PreflightError(
            "a report needs matplotlib, which is not installed",
            "pip install 'yggdrasil-decode[report]'",
        )


def svg_of(draw: Callable[[Figure], object], title: str, width: float, height: float) -> str:
    """The `svg` element of a figure of this size in inches that `draw` fills. The same figure and
    title give the same text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_style(title)):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=_NO_METADATA)
    return _inlined(text.getvalue(), title)


def _style(title: str) -> dict[str, Any]:
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
            "grid.color", "legend.labelcolor", "hatch.color")  # fmt: skip
    return {
        **dict.fromkeys(inks, _INK),
        "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.alpha": 0.2,
        "legend.frameon": False,
        "font.size": 9,
        # What widths are reckoned with; the page shows its own.
        "font.sans-serif": ["DejaVu Sans"],
        "svg.fonttype": "none",
        # Names within the element must not be those of another one of the page.
        "svg.hashsalt": title,
        # A name with a dollar sign is no formula.
        "text.parse_math": False,
    }


def _inlined(text: str, title: str) -> str:
    """Without the head of a file of its own, and without names that nothing refers to."""
    start = text.index("<svg")
    element = text[start:].replace(_INK, "currentColor").strip()
    used = set(re.findall(r"#([\w-]+)", element))
    element = _UNUSED_ID.sub(lambda one: one[0] if one[1] in used else "", element)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return element.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
