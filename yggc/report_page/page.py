"""All sections, and the page that they make."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from yggc.report_page.acceptance import acceptance_section, reliability_section
from yggc.report_page.bundle_tables import bundle_section, runtimes_section, schedules_section
from yggc.report_page.chain import chain_section
from yggc.report_page.depth import depth_section
from yggc.report_page.iteration import iteration_section
from yggc.report_page.measured import Measured
from yggc.report_page.policies import policies_section
from yggc.report_page.prediction import prediction_section
from yggc.report_page.section import Section
from yggc.report_page.speedup_map import map_section
from yggc.report_page.times import times_section
from yggrt.core.schema import Manifest


def sections(
    manifest: Manifest, num_bytes: int, digest: str, measured: Measured
) -> tuple[Section, ...]:
    """All parts of the report, in order; `num_bytes` and `digest` are the file's."""
    benches = measured.benches
    return (
        bundle_section(manifest, num_bytes, digest),
        schedules_section(manifest, benches),
        policies_section(measured.policies),
        times_section(manifest),
        map_section(manifest),
        prediction_section(manifest.schedule.candidates, benches),
        acceptance_section(benches),
        reliability_section(benches),
        iteration_section(manifest),
        chain_section(manifest, benches),
        depth_section(manifest.schedule.depth, measured.depths),
        runtimes_section(measured.runtimes),
    )


def render(title: str, built_by: str, parts: Sequence[Section]) -> str:
    """The page. All text is escaped; figures are this package's own elements."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["element"] = Markup
    template = (files("yggc.report_page") / "page.html").read_text()
    return environment.from_string(template).render(title=title, built_by=built_by, parts=parts)
