"""Reads a report as a browser would, and strictly: a tag that is not closed is an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br"}
SECTIONS = [
    "The bundle",
    "Trees",
    "Policies",
    "Times of a pass",
    "Predicted speed-up by width and depth",
    "Predicted and measured",
    "Acceptance by depth and rank",
    "Reliability of path probabilities",
    "One iteration",
    "Chains in theory",
    "Depth predictor",
    "Beside other runtimes",
]


@dataclass
class Part:
    """A section as it stands on the page."""

    title: str = ""
    text: list[str] = field(default_factory=list)
    missing: str = ""
    num_figures: int = 0
    num_tables: int = 0


class Page(HTMLParser):
    """`parts` by title; `tags` of the whole page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.parts: dict[str, Part] = {}
        self.tags: set[str] = set()
        self._open: list[tuple[str, str]] = []
        self._part = Part()
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = dict(attrs)
        assert not {"src", "onload", "onclick"} & names.keys()
        assert not (names.get("href") or "").startswith("http")
        if tag not in VOID:
            self._open.append((tag, names.get("class") or ""))
        if tag == "section":
            self._part = Part()
        self._part.num_figures += tag == "svg"
        self._part.num_tables += tag == "table"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag
        if tag == "section":
            self.parts[self._part.title] = self._part

    def handle_data(self, data: str) -> None:
        tag, kind = self._open[-1] if self._open else ("", "")
        if tag == "h2":
            self._part.title = data
        elif kind == "missing":
            self._part.missing += data
        elif data.strip():
            self._part.text.append(data.strip())


def read_page(text: str) -> Page:
    """The page; checked: every section or its reason, nothing that runs or is fetched."""
    page = Page(text)
    assert list(page.parts) == SECTIONS
    for part in page.parts.values():
        has = bool(part.num_figures or part.num_tables)
        assert has != bool(part.missing), part.title
    assert not page.tags & {"script", "link", "img", "iframe", "object", "image"}
    assert "url(http" not in text
    assert "@import" not in text
    return page
