"""What a bundle is, and the schedules and runtimes that it was measured beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from yggc.report_page.measured import Bench, Compared
from yggc.report_page.section import Section, Table, shown_interval
from yggrt.busy import BUSY_SHARE
from yggrt.core.schema import Manifest
from yggrt.inspect import describe_drafter, describe_verifier


def bundle_section(manifest: Manifest, num_bytes: int, digest: str) -> Section:
    target, schedule, model = manifest.target, manifest.schedule, manifest.model
    tuned, must = target.tuned_for, target.must_match
    rows = [
        ("file", f"{manifest.name}, {num_bytes / 1e6:,.1f} MB, digest {digest[:16]}"),
        ("built by", f"{manifest.built_by}, format {manifest.format_version}"),
        ("verifier", f"{model.architecture}, {model.num_parameters / 1e6:,.1f} M parameters: "
                     f"{describe_verifier(manifest)}"),
        ("drafter", _drafter(manifest)),
        ("exactness", f"{manifest.exactness}, context of {model.max_model_len} tokens"),
        *((f"{one.role}'s source", f"{one.kind} {one.location} {one.revision}".strip())
          for one in manifest.sources),
        *((f"{one.role}'s licence", one.license or "not stated") for one in manifest.sources),
        ("machine", f"{tuned.device}, {tuned.num_threads} threads on {tuned.num_cores} cores, "
                    f"{tuned.memory_bytes / 2**30:.0f} GiB"),
        ("measured there", f"reads {tuned.read_bandwidth / 1e9:.1f} GB/s, computes "
                           f"{tuned.flops / 1e9:,.0f} GFLOP/s"),
        ("runs with", f"torch {must.torch}, {must.os} {must.machine}, {must.libc}"),
        ("schedule", f"{schedule.tree}, objective {schedule.objective}"),
    ]  # fmt: skip
    table = Table(("", ""), tuple(rows), num_words=2)
    return Section("The bundle", (_disturbance(manifest),), tables=(table,))


def _drafter(manifest: Manifest) -> str:
    kind = manifest.schedule.drafter.__struct_config__.tag
    model = f": {describe_drafter(manifest)}" if manifest.drafter is not None else ""
    beside = ", with n-grams beside it" if manifest.schedule.ngram is not None else ""
    return f"{kind}{model}{beside}"


def _disturbance(manifest: Manifest) -> str:
    notes = manifest.profile
    if notes.busy_share is None:
        return "How much other processes disturbed the profile was not measured."
    said = f"Other processes took {notes.busy_share:.0%} of the processors during the profile"
    if notes.busy_share > BUSY_SHARE:
        return f"{said}: its times are wrong by more than that, so measure again."
    return f"{said}; it took {notes.num_rounds} rounds."


def schedules_section(manifest: Manifest, benches: Sequence[Bench]) -> Section:
    candidates = manifest.schedule.candidates
    build = Table(
        ("tree", "tokens a pass", "predicted, ms", "x plain", "measured, ms", "x plain"),
        tuple(
            (
                one.tree + (" (packed)" if one.tree == manifest.schedule.tree else ""),
                f"{one.mean_acceptance_length:.2f}",
                f"{one.tpot_ms:.2f}",
                f"{one.speedup:.2f}",
                _shown(one.measured_tpot_ms),
                _shown(one.measured_speedup),
            )
            for one in candidates
        ),
    )
    run = Table(
        ("bench", "prompts", "tokens a pass", "plain, ms", "tree, ms", "x plain", "gated passes"),
        tuple(
            (
                one.tree.spec,
                f"{one.num_prompts} x {one.num_tokens}",
                f"{one.tree.mean_acceptance_length:.2f}",
                f"{one.plain.tpot_ms:.2f}",
                f"{one.tree.tpot_ms:.2f}",
                f"{one.speedup:.2f}{shown_interval(one.speedup_interval)}",
                f"{one.tree.num_gated_passes}/{one.tree.num_passes}",
            )
            for one in benches
        ),
    )
    tables = tuple(one for one in (build, run) if one.rows)
    if not tables:
        return Section(
            "Trees",
            missing="The build kept no candidates and no bench was given.",
        )
    text = (
        "Candidates of the build with what it predicted and measured, then benches: mean of the "
        "prompts' ratios of plain to tree time per token, in brackets their 95 % interval.",
        *_warnings(benches),
    )
    return Section("Trees", text, tables=tables)


def _warnings(benches: Sequence[Bench]) -> Iterator[str]:
    for one in benches:
        if one.busy_share is not None and one.busy_share > BUSY_SHARE:
            yield (
                f"Other processes took {one.busy_share:.0%} of the processors during the bench of "
                f"{one.tree.spec}."
            )
        if one.interrupted:
            yield f"The bench of {one.tree.spec} was interrupted: these prompts were finished."


def runtimes_section(comparisons: Sequence[Compared]) -> Section:
    title = "Beside other runtimes"
    if not comparisons:
        return Section(
            title,
            missing="No comparison was given (`yggc compare FILE --json > compare.json`, then "
            "`--compare compare.json`).",
        )
    text: list[str] = []
    for compared in comparisons:
        text.append(
            f"{compared.date}: {len(compared.prompts)} prompts x {compared.num_tokens} tokens, "
            f"all in turns. The reference is {compared.reference}; ratios are means over prompts, "
            "in brackets their 95 % interval."
        )
        text += [f"Not measured: {one.title}: {one.reason}" for one in compared.missing]
        if compared.interrupted:
            text.append("It was interrupted: these are the prompts that were finished.")
    return Section(title, tuple(text), tables=tuple(map(_runtimes_table, comparisons)))


def _runtimes_table(compared: Compared) -> Table:
    rows = tuple(
        (one.title, f"{one.tpot_ms:.2f}", f"{one.ratio:.2f}x{shown_interval(one.ratio_interval)}")
        for one in compared.rows
    )
    return Table(("per token", "ms", "against the reference"), rows)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
