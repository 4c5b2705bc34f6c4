"""What a page is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below their heads; the first `num_words` columns hold words, others numbers."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_words: int = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """An `svg` element of `yggc.report_page.svg`, and what is to be seen in it."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page. `missing`: why it has nothing to show, in one sentence."""

    title: str
    text: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str = ""


def shown_interval(interval: tuple[float, float] | None, digits: int = 2) -> str:
    """As in " [1.70, 2.13]"; "" if there is none."""
    return f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval else ""
