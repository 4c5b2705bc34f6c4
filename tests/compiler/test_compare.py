"""`yggc compare`: workers, what does not take part and why, sources, and the order of turns."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import bundles
import msgspec
import pytest
from bundle import small
from transformers import LlamaForCausalLM

from yggc.compare.options import check_baselines, check_output
from yggc.compare.process import Worker, WorkerError
from yggc.compare.protocol import Ask, Setup, Timed
from yggc.compare.report import Decoded, markdown, report
from yggc.compare.rows import Lineup, Row, add_baselines, is_exact
from yggc.compare.run import Clock, Request, compare
from yggc.compare.source import check_same_verifier, find_drafter, find_source
from yggc.compare.stopwatch import Stopwatch
from yggc.errors import SourceError
from yggc.models.source import resolve_source
from yggc.workdir import WorkDir
from yggrt.bundle import write_bundle
from yggrt.core.errors import RequestError
from yggrt.core.schema import EagleDrafter, Manifest, Source, TextInfo
from yggrt.prompts import Prompt

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]


def setup(model: Path, **changes: Any) -> Setup:
    given: dict[str, Any] = {"library": "transformers", "num_threads": 1, "context": 64}
    return Setup(model=str(model), **(given | changes))


def test_every_way_of_transformers_says_what_generate_says(
    llama_dir: Path, llama: LlamaForCausalLM
) -> None:
    expected = bundles.greedy_ids(llama.eval(), PROMPT, 20)
    with Worker(setup(llama_dir, drafter=str(llama_dir))) as worker:
        assert worker.title.startswith("transformers ")
        for ask in (
            Ask(way="plain", ids=PROMPT, num_tokens=20),
            Ask(way="lookup", ids=PROMPT, num_tokens=20, num_lookup=3),
            Ask(way="assisted", ids=PROMPT, num_tokens=20),
        ):
            timed = worker.decode(ask)
            assert timed.ids == expected, ask.way
            assert timed.ttft_ms > 0
            assert timed.tpot_ms is not None
            assert timed.tpot_ms > 0
        one = worker.decode(Ask(way="plain", ids=PROMPT, num_tokens=1))
        assert one.tpot_ms is None


def test_a_model_that_does_not_load_and_a_worker_that_dies(
    tmp_path: Path, llama_dir: Path
) -> None:
    with pytest.raises(WorkerError, match=r"config\.json"):
        Worker(setup(tmp_path))
    with Worker(setup(llama_dir)) as worker:
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(WorkerError, match="ended by SIGSEGV") as caught:
            worker.decode(Ask(way="plain", ids=PROMPT, num_tokens=2))
        assert caught.value.signal_name == "SIGSEGV"


def test_tokens_that_arrive_together_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.5, 10.7, 10.9])
    monkeypatch.setattr("yggc.compare.stopwatch.perf_counter", lambda: next(times))
    watch = Stopwatch()
    watch.arrived([1, 2])
    watch.arrived([3])
    watch.arrived([4, 5, 6])
    timed = watch.timed()
    assert timed.ids == [1, 2, 3, 4, 5, 6]
    assert timed.ttft_ms == pytest.approx(500)
    assert timed.tpot_ms == pytest.approx(100)


def test_libraries_that_are_missing_or_do_not_apply_are_listed(
    llama_dir: Path, work: WorkDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("transformers", "llama_cpp"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "openvino_genai", sys)
    with ExitStack() as stack:
        lineup = Lineup(stack)
        add_baselines(
            lineup,
            ("transformers", "llama.cpp", "openvino"),
            resolve_source(str(llama_dir), work),
            "no model",
            (2,),
            setup(llama_dir),
            None,
            PROMPT,
        )
    assert lineup.rows == []
    reasons = {one.title: one.reason for one in lineup.missing}
    for library in ("transformers", "llama.cpp"):
        assert "pip install llama-cpp-python" in reasons[library]
    assert "GGUF" in reasons["openvino"]


def test_a_row_that_emits_too_little_is_dropped() -> None:
    class Short:
        def decode(self, ask: Ask) -> Timed:
            return Timed(ask.ids[:1], 1.0, None)

    row = Row("x", Short(), "plain")  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match="emitted 1 tokens, wanted 4"):
        row.decode([1, 2], 4)
    with ExitStack() as stack:
        lineup = Lineup(stack, rows=[row])
        lineup.drop(row, "why")
        assert (lineup.rows, lineup.missing[0].reason) == ([], "why")
        ours = dataclasses.replace(row, bundle=0)
        with pytest.raises(RequestError, match="failed: why"):
            lineup.drop(ours, "why")


def test_a_source_is_found_and_its_hashes_are_checked(
    llama_dir: Path, tmp_path: Path, work: WorkDir
) -> None:
    record = resolve_source(str(llama_dir), work).record("verifier")
    assert find_source(record, str(llama_dir), None, work).path == llama_dir
    moved = tmp_path / "moved"
    shutil.move(llama_dir, moved)
    with pytest.raises(SourceError, match="which is not there") as caught:
        find_source(record, str(llama_dir), None, work)
    assert caught.value.tip is not None
    assert "--source" in caught.value.tip
    assert find_source(record, str(llama_dir), str(moved), work).path == moved
    tokenizer = moved / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(SourceError, match=r"tokenizer_config\.json has sha256 .*, wanted"):
        find_source(record, str(llama_dir), str(moved), work)


def test_a_drafter_is_found_or_the_reason_is_said(llama_dir: Path, work: WorkDir) -> None:
    found = resolve_source(str(llama_dir), work)
    alone = small.manifest()
    [verifier] = alone.sources

    def drafting(source: Source, configured: str) -> Manifest:
        config = {**alone.config, "drafter": configured}
        return msgspec.structs.replace(alone, sources=(verifier, source), config=config)

    def find(manifest: Manifest, given: str | None = None) -> Any:
        return find_drafter([alone, manifest], verifier, given, work)

    model = found.record("drafter")
    assert "is no model" in find(alone)
    itself = msgspec.structs.replace(verifier, role="drafter")
    assert "part of the verifier" in find(drafting(itself, "self:2"))
    assert find(drafting(model, str(llama_dir))).path == llama_dir
    assert find(drafting(model, f"{llama_dir}+ngram")).path == llama_dir
    head = EagleDrafter(temperatures=(1.0,), coverage=(1.0,))
    with_head = drafting(model, str(llama_dir))
    schedule = msgspec.structs.replace(with_head.schedule, drafter=head)
    with_head = msgspec.structs.replace(with_head, schedule=schedule)
    assert "is a head over the verifier" in find(with_head)
    assert "--drafter-source" in find(drafting(model, "gone"))
    assert find(drafting(model, "gone"), str(llama_dir)).path == llama_dir
    with pytest.raises(SourceError, match="is not what the bundle was built from"):
        find(drafting(model, "gone"), str(bundles.tiny_gguf()))


def test_a_renamed_file_is_the_same_and_a_changed_one_is_not(
    tmp_path: Path, work: WorkDir
) -> None:
    path = tmp_path / "a.gguf"
    shutil.copy(bundles.tiny_gguf(), path)
    record = resolve_source(str(path), work).record("verifier")
    renamed = path.rename(tmp_path / "b.gguf")
    assert find_source(record, str(path), str(renamed), work).path == renamed
    data = bytearray(renamed.read_bytes())
    data[-1] ^= 1
    renamed.write_bytes(data)
    with pytest.raises(SourceError, match="is not what the bundle was built from: sha256 is"):
        find_source(record, str(path), str(renamed), work)


def test_bundles_of_different_models_are_refused() -> None:
    one = small.manifest()
    [source] = one.sources
    file = msgspec.structs.replace(source.files[0], sha256="1" * 64)
    other = msgspec.structs.replace(
        one, sources=(msgspec.structs.replace(source, files=(file, *source.files[1:])),)
    )
    assert check_same_verifier([one, one]) == source
    with pytest.raises(SourceError, match="were built from different models"):
        check_same_verifier([one, other])


def test_which_bundles_compute_what_transformers_computes() -> None:
    def with_model(**changes: Any) -> Manifest:
        manifest = small.manifest()
        exact = {"quant": "none", "weight_dtype": "float32", "kv_dtype": "float32"}
        model = msgspec.structs.replace(manifest.model, **(exact | changes))
        return msgspec.structs.replace(manifest, model=model)

    assert is_exact(with_model())
    assert is_exact(with_model(quant="keep"))
    for change in (
        {"quant": "int8"},
        {"weight_dtype": "bfloat16"},
        {"kv_dtype": "int8"},
        {"activations": "int8"},
    ):
        assert not is_exact(with_model(**change))


def test_ratios_and_equal_tokens_of_a_report() -> None:
    worker: Any = object()
    base = Row("base 1: plain", worker, "plain", equals=0)
    plain = Row("ours: plain", worker, "plain", bundle=0)
    tree = Row("ours: tree", worker, "tree", bundle=0)
    decoded = [
        Decoded(
            Prompt(str(n), "", "p", False),
            {base: 10.0 * n, plain: 5.0 * n, tree: 2.5 * n},
            {base: 1.0, plain: 1.0, tree: 1.0},
            {base: [1, 2, 3, n], plain: [1, 2, 3, 1], tree: [1, 2, 3, 1]},
        )
        for n in (1, 2)
    ]
    with ExitStack() as stack:
        lineup = Lineup(stack, rows=[base, plain, tree])
        found = report(
            lineup,
            decoded,
            {},
            source=small.manifest().sources[0],
            num_tokens=4,
            num_threads=1,
            busy_share=0.5,
            num_repeated=3,
            is_interrupted=True,
        )
    assert [row["title"] for row in found["rows"]] == ["ours: tree", "ours: plain", base.title]
    ratios = [(row["ratio"], row["behind"]) for row in found["rows"]]
    assert ratios == [(4.0, 1.0), (2.0, 2.0), (1.0, 4.0)]
    assert [row["equal_share"] for row in found["rows"]] == [None, None, 7 / 8]
    page = markdown(found, "yggc compare x.ygg")
    assert "| **ours: tree** | 3.75 |" in page
    assert "4.00x [4.00, 4.00]" in page
    assert "87.5%" in page
    assert "50% of the processors' time" in page
    assert "interrupted" in page
    assert "3 runs were repeated" in page


def test_a_disturbed_run_is_repeated_and_the_least_disturbed_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow:
        pid = os.getpid()
        num = 0

        def decode(self, ask: Ask) -> Timed:
            self.num += 1
            return Timed(ask.ids[: ask.num_tokens], 1.0, float(self.num))

    monkeypatch.setattr("yggc.compare.run._REST_S", 0.0)
    for shares, counts in (
        ([0.01], 1),
        ([0.5, 0.02], 2),
        # The fastest try is the first, the least disturbed the third.
        ([0.5, 0.4, 0.2, 0.3], 3),
    ):
        row = Row("x", Slow(), "plain")  # type: ignore[arg-type]
        with ExitStack() as stack:
            clock = Clock(Lineup(stack, rows=[row]))
        read = iter(shares)
        monkeypatch.setattr("yggrt.busy.BusyMeter.share", lambda self, read=read: next(read))
        assert clock.run(row, [1, 2], 2).tpot_ms == counts
        assert clock.shares == [min(shares)]
        assert clock.num_repeated == len(shares) - 1


def request_for(bundle: Path, **changes: Any) -> Request:
    given: dict[str, Any] = {
        "bundles": (bundle,),
        "source": None,
        "drafter_source": None,
        "prompts": (),
        "limit": 2,
        "num_tokens": 8,
        "num_threads": None,
        "baselines": (),
        "lookups": (2,),
        "prefills": (),
    }
    return Request(**(given | changes))


def test_a_bundle_without_tokenizer_is_refused(tmp_path: Path, work: WorkDir) -> None:
    path = tmp_path / "ids.ygg"
    manifest = msgspec.structs.replace(small.manifest(), text=TextInfo())
    files = {name: data for name, data in small.FILES.items() if name != "tokenizer.json"}
    write_bundle(path, manifest, small.sources(), files)
    with pytest.raises(RequestError, match="the bundle has no tokenizer"):
        compare(request_for(path), work)


def test_names_and_paths_are_checked_first(tmp_path: Path) -> None:
    assert check_baselines(None) == ("transformers", "llama.cpp", "openvino")
    assert check_baselines(["openvino", "transformers"]) == ("transformers", "openvino")
    with pytest.raises(RequestError, match="--baseline is 'vllm', wanted one of"):
        check_baselines(["vllm"])
    for path in (tmp_path, tmp_path / "none" / "page.md"):
        with pytest.raises(RequestError, match="no page can be written there"):
            check_output(path)
