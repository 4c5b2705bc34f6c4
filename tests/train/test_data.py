"""Training text: what is written is what the model alone would write, none of it twice, and no
evaluation prompt among it.
"""

from __future__ import annotations

import ast
import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import save_tiny
from families import families
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from typer.testing import CliRunner

from yggc.cli import app
from yggc.errors import RecipeError, SourceError, StageError
from yggc.models.checkpoint import open_checkpoint
from yggc.models.source import resolve_source
from yggc.report import Reporter
from yggc.train import packages, shards, tasks
from yggc.train.data import repeats, write_data
from yggc.train.exclude import Exclusion
from yggc.train.load import fast_products, load_model
from yggc.train.options import DataOptions
from yggc.train.prompts import CATEGORIES, DEFAULT_MIX, TrainPrompt, gather, mixed
from yggc.train.slots import ATTENTION, Engine, register_attention
from yggc.train.write import Request, write_answers
from yggc.workdir import WorkDir

QUESTIONS = [
    f"what is {a} and {b}, said the {c} fox of the hill number {a * b}?"
    for a in range(5)
    for b in range(4)
    for c in ("quick", "brown")
]
# Enough of the tiny model's 400 ids for some rows to end early.
ENDS = [2, *range(300, 330)]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers with a tokenizer and a chat template."""
    folder = save_tiny(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))
    return folder


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    return WorkDir(tmp_path / "work")


@pytest.fixture
def options(verifier: Path, tmp_path: Path) -> DataOptions:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": one}) + "\n" for one in QUESTIONS))
    return DataOptions(
        verifier=str(verifier),
        output=tmp_path / "text",
        prompts=(f"math={file}",),
        sources=(),
        max_tokens=20,
        batch=7,
        dtype="float32",
    )


def changed(options: DataOptions, **changes: Any) -> DataOptions:
    return replace(options, **changes)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for part in sorted(folder.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]


def dropped_of(folder: Path) -> list[dict[str, str]]:
    file = folder / "dropped.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def reference(model: Any, ids: list[int], num_tokens: int, ends: list[int]) -> list[int]:
    """What transformers' `generate` writes for one prompt alone."""
    prompt = torch.tensor([ids])
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=0,
    )
    written: list[int] = found[0, len(ids) :].tolist()
    return written


def test_greedy_rows_are_what_generate_writes(
    options: DataOptions, work: WorkDir, verifier: Path
) -> None:
    write_data(changed(options, greedy_share=1.0, num_threads=2), work, Reporter(quiet=True))
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    rows = rows_of(options.output)
    dropped = dropped_of(options.output)
    assert len(rows) + len(dropped) == len(QUESTIONS)
    assert len(rows) > 20
    assert {row["finish"] for row in rows} == {"eos", "length"}
    for row in rows:
        prompt, written = row["ids"][: row["num_prompt"]], row["ids"][row["num_prompt"] :]
        assert written == reference(model, prompt, 20, ENDS)
        assert row["finish"] == ("eos" if written[-1] in ENDS else "length")
        assert (row["temperature"], row["engine"]) == (0, "float32")


@pytest.mark.parametrize("name", families())
def test_every_family_writes_as_it_generates(name: str) -> None:
    config = families()[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    # With initial weights every text is the same token again and again.
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.2)
    prompts = [list(range(3, 3 + n)) for n in (1, 9, 17, 40, 5)]
    wanted = [reference(model, prompt, 12, [199]) for prompt in prompts]
    register_attention()
    model.set_attn_implementation(ATTENTION)
    requests = [Request(tuple(ids), 0.0, "", key) for key, ids in enumerate(prompts)]
    found = {
        answer.request.key: list(answer.ids)
        for answer in write_answers(Engine(model, 2, 64), requests, [199], 12)
    }
    assert [found[key] for key in range(len(prompts))] == wanted


def test_sampled_rows_do_not_depend_on_the_batch(options: DataOptions, work: WorkDir) -> None:
    """The same words are drawn for a prompt whichever rows are beside it, and others by seed."""
    written = []
    for number, (batch, threads, seed) in enumerate([(7, 1, 0), (3, 2, 0), (7, 1, 1)]):
        folder = options.output / str(number)
        one = changed(
            options, greedy_share=0.0, output=folder, batch=batch, num_threads=threads, seed=seed
        )
        write_data(one, work, Reporter(quiet=True))
        written.append({row["prompt_sha256"]: row["ids"] for row in rows_of(folder)})
    assert written[0] == written[1]
    assert set(written[0]) == set(written[2])
    assert written[0] != written[2]


def test_sampling_follows_the_softmax(verifier: Path, work: WorkDir) -> None:
    """4,000 first tokens at temperature 0.7 against the law, by chi-squared."""
    checkpoint = open_checkpoint(resolve_source(str(verifier), work))
    model = load_model(checkpoint, "float32", "cpu")
    ids, num = (5, 40, 77), 4000
    requests = [Request(ids, 0.7, str(seed)) for seed in range(num)]
    counts = Counter(
        answer.ids[0] for answer in write_answers(Engine(model, 4, 32), requests, [], 1)
    )
    plain = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    with torch.no_grad():
        law = (plain(torch.tensor([ids])).logits[0, -1] / 0.7).softmax(-1)
    likely = [token for token in range(len(law)) if law[token] * num >= 5]
    rest = num - sum(counts[token] for token in likely)
    expected = [float(law[token]) * num for token in likely]
    squares = sum(
        (counts[token] - mean) ** 2 / mean for token, mean in zip(likely, expected, strict=True)
    )
    if num - sum(expected) > 5:
        squares += (rest - (num - sum(expected))) ** 2 / (num - sum(expected))
    # Mean and spread of chi-squared with as many degrees of freedom.
    assert squares < len(likely) + 5 * (2 * len(likely)) ** 0.5


def test_bfloat16_is_near_float32_with_logits_that_are_not_rounded(
    verifier: Path, work: WorkDir
) -> None:
    checkpoint = open_checkpoint(resolve_source(str(verifier), work))
    plain = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    prompts = [tuple(range(10, 50)), tuple(range(60, 67))]
    before = torch.backends.mkldnn.matmul.fp32_precision
    with fast_products("bfloat16"):
        engine = Engine(load_model(checkpoint, "bfloat16", "cpu"), 2, 64)
        logits = engine.prefill([0, 1], prompts)
        found = engine.decode([7, 8], [40, 7])
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    for row, (ids, token) in enumerate(zip(prompts, (7, 8), strict=True)):
        wanted = plain(torch.tensor([[*ids, token]])).logits[0].detach()
        for one, law in ((logits[row], wanted[-2]), (found[row], wanted[-1])):
            assert (one - law).norm() <= 0.05 * law.norm()
            assert (one != one.bfloat16().float()).float().mean() > 0.9


def test_goes_on_after_a_kill(options: DataOptions, tmp_path: Path) -> None:
    """Killed with -9 between two parts: what is in parts stays, and no prompt is written twice."""
    command = (
        "import os, sys, signal\n"
        "from pathlib import Path\n"
        "from yggc.train import shards\n"
        "shards.ROWS_OF_PART = 5\n"
        "whole = shards.write_whole\n"
        "def write_whole(path, text):\n"
        "    if path.name == 'part-00002.jsonl':\n"
        "        path.with_name('.part-00002.jsonl.tmp').write_text(text[:100])\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    whole(path, text)\n"
        "shards.write_whole = write_whole\n"
        "from yggc.cli import main\n"
        "main()\n"
    )
    arguments = [
        "train", "data", "--verifier", options.verifier, "-o", str(options.output),
        "--prompts", options.prompts[0], "--sources", "", "--max-tokens", "20", "--batch", "7",
        "--dtype", "float32", "--threads", "1", "--work-dir", str(tmp_path / "work"),
    ]  # fmt: skip
    killed = subprocess.run([sys.executable, "-c", command, *arguments], check=False)
    assert killed.returncode == -9
    before = rows_of(options.output)
    assert len(before) == 10
    done = subprocess.run(
        [sys.executable, "-m", "yggc", *arguments, "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    rows = rows_of(options.output)
    assert rows[:10] == before
    found = [row["prompt_sha256"] for row in rows]
    dropped = dropped_of(options.output)
    found += [one["prompt_sha256"] for one in dropped]
    assert len(found) == len(set(found)) == len(QUESTIONS)
    counts = json.loads(done.stdout)["counts"]
    assert counts["rows"] == len(rows)
    assert counts["tokens"] == sum(len(row["ids"]) - row["num_prompt"] for row in rows)

    whole = changed(options, output=tmp_path / "whole")
    write_data(whole, WorkDir(tmp_path / "work"), Reporter(quiet=True))
    key = "prompt_sha256"
    assert sorted(rows, key=lambda row: row[key]) == sorted(
        rows_of(whole.output), key=lambda row: row[key]
    )


def test_more_tokens_go_on_in_the_same_folder(options: DataOptions, work: WorkDir) -> None:
    first = write_data(changed(options, num_tokens=100), work, Reporter(quiet=True))
    num_first = first["counts"]["tokens"]
    assert 100 <= num_first < 100 + 7 * 20
    second = write_data(changed(options, num_tokens=300), work, Reporter(quiet=True))
    assert second["counts"]["tokens"] >= 300
    again = write_data(changed(options, num_tokens=300), work, Reporter(quiet=True))
    assert again["counts"] == second["counts"]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"seed": 1}, "seed 0, now 1"),
        ({"max_tokens": 21}, "max_tokens 20, now 21"),
        ({"temperature": 0.8}, "temperature 0.7, now 0.8"),
    ],
)
def test_other_options_are_refused(
    options: DataOptions, work: WorkDir, changes: dict[str, Any], wanted: str
) -> None:
    write_data(changed(options, num_tokens=20), work, Reporter(quiet=True))
    before = {path.name: path.read_bytes() for path in options.output.iterdir()}
    with pytest.raises(RecipeError, match=wanted):
        write_data(changed(options, **changes), work, Reporter(quiet=True))
    assert {path.name: path.read_bytes() for path in options.output.iterdir()} == before


def test_two_writers_are_refused(options: DataOptions) -> None:
    folder = shards.TextFolder(options.output)
    other = shards.TextFolder(options.output)
    wanted = pytest.raises(RecipeError, match="another process")
    with folder.opened({}), wanted, other.opened({}):
        pass


def test_a_full_disk_is_said_in_a_line(options: DataOptions, work: WorkDir) -> None:
    """/dev/full takes no byte."""
    options.output.mkdir()
    (options.output / ".data.json.tmp").symlink_to("/dev/full")
    with pytest.raises(StageError, match=r"data\.json: no space left"):
        write_data(options, work, Reporter(quiet=True))
    assert not (options.output / "data.json").exists()


def test_evaluation_prompts_are_left_out() -> None:
    excluded = Exclusion(
        ["How many apples does Tom have after he buys three more of them?", "Say hello!"]
    )
    assert "How many apples does Tom have after he buys three more of them?" in excluded
    assert "Well: HOW many apples, does Tom have after he pays?" in excluded
    assert "say Hello" in excluded
    assert "How many apples does Tom have, if he eats three?" not in excluded
    assert "Say hello to Tom" not in excluded


def test_excluded_files_and_shipped_bench_prompts(
    options: DataOptions, tmp_path: Path, work: WorkDir
) -> None:
    bench = resources.files("ygg_artifacts.prompts") / "bench.jsonl"
    file = tmp_path / "some.jsonl"
    file.write_text(
        bench.read_text().splitlines()[0] + "\n" + json.dumps({"turns": ["Name a colour."]}) + "\n"
    )
    asked = changed(options, prompts=(str(file), *options.prompts), num_tokens=10**6)
    out = tmp_path / "out.jsonl"
    out.write_text(json.dumps({"turns": ["Something else.", QUESTIONS[3]]}) + "\n")
    record = write_data(changed(asked, exclude=(out,)), work, Reporter(quiet=True))
    # A later turn is excluded too, and QUESTIONS share a run of eight words with their like.
    assert record["num_prompts"] < len(QUESTIONS)
    assert record["options"]["exclude"][0]["name"] == "out.jsonl"
    hashes = {row["prompt_sha256"] for row in rows_of(options.output)}
    assert sha256(QUESTIONS[3].encode()).hexdigest() not in hashes


def test_repeats() -> None:
    assert not repeats([1] * 7)
    assert not repeats(list(range(100)))
    assert not repeats([])
    assert repeats([1, 2] * 20)
    half = list(range(50))  # 43 runs; then 36 of the same again, and seven that cross the seam
    assert not repeats(half + half[:43])
    assert repeats([*half, *half, *half[:20]])


def test_rows_that_repeat_are_dropped_and_counted(
    options: DataOptions, verifier: Path, tmp_path: Path, work: WorkDir
) -> None:
    """Without its layers and with tied embeddings the model says its last word for ever."""
    model = LlamaForCausalLM.from_pretrained(verifier)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    stuck = tmp_path / "stuck"
    shutil.copytree(verifier, stuck)
    model.save_pretrained(stuck)
    asked = changed(options, verifier=str(stuck), greedy_share=0.5, temperature=5.0)
    record = write_data(asked, work, Reporter(quiet=True))
    assert record["counts"]["dropped"] > 5
    assert record["counts"]["dropped"] + record["counts"]["rows"] == len(QUESTIONS)
    assert {one["reason"] for one in dropped_of(options.output)} == {"repeats"}
    for row in rows_of(options.output):
        ids = row["ids"][row["num_prompt"] :]
        runs = Counter(tuple(ids[i : i + 8]) for i in range(len(ids) - 7))
        assert 2 * sum(n - 1 for n in runs.values()) < max(1, sum(runs.values()))


def test_built_prompts_are_many_and_mixed() -> None:
    gathered, _ = gather([], ("builtin",), Exclusion([]), 0)
    sizes = {category: sum(map(len, pools)) for category, pools in gathered.items()}
    assert set(sizes) == set(CATEGORIES)
    assert sizes["general"] >= 3000
    ordered = mixed(gathered, DEFAULT_MIX)
    assert len({prompt.text for prompt in ordered}) == len(ordered)
    shares = Counter(prompt.category for prompt in ordered[:200])
    assert shares == {"math": 70, "code": 70, "general": 40, "prose": 20}
    again, _ = gather([], ("builtin",), Exclusion([]), 0)
    assert mixed(again, DEFAULT_MIX) == ordered
    other, _ = gather([], ("builtin",), Exclusion([]), 1)
    assert mixed(other, DEFAULT_MIX) != ordered


def test_sources_of_a_category_take_turns() -> None:
    one, other = (
        [TrainPrompt("code", f"{name} {n}") for n in range(k)] for name, k in (("a", 3), ("b", 9))
    )
    found = [prompt.text for prompt in mixed({"code": [one, other]}, {"code": 1.0, "prose": 0.0})]
    assert found[:7] == ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2", "b 3"]
    assert len(found) == 12


def test_stubs_of_packages_are_python() -> None:
    found = list(itertools.islice(packages.stubs(), 500))
    assert len(set(found)) > 400
    for stub in found:
        (function,) = ast.parse(stub).body
        assert isinstance(function, ast.FunctionDef)
        assert len(ast.get_docstring(function) or "") >= 40
        assert len(function.body) == 1
        assert stub.startswith("def ")


def test_stubs_give_true_examples() -> None:
    found = list(tasks.stubs())
    assert len(set(found)) == len(found) > 200
    assert "def sum_even(numbers: list[int]) -> int:" in "\n".join(found).replace("List", "list")
    for stub in found:
        for call, shown in zip(*(iter(_examples(stub)),) * 2, strict=True):
            if call.startswith("sum_even("):
                numbers = json.loads(call.removeprefix("sum_even(").removesuffix(")"))
                assert int(shown) == sum(n for n in numbers if n % 2 == 0)


def _examples(stub: str) -> list[str]:
    lines = [line.strip() for line in stub.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith(">>>"))
    return [line.removeprefix(">>> ") for line in lines[start:-1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sources", ""], "no prompt is left"),
        (["--sources", "web"], "--sources has 'web', wanted some of builtin, packages"),
        (["--mix", "maths=3"], "--mix has 'maths=3', wanted CATEGORY=WEIGHT"),
        (["--prompts", "/nowhere/x.jsonl"], "/nowhere/x.jsonl: cannot be read"),
        (["--exclude", "/nowhere/x.jsonl"], "/nowhere/x.jsonl: cannot be read"),
        (["--greedy-share", "1.5"], "--greedy-share is 1.5, wanted 0 to 1"),
        (["--temperature", "0"], "--temperature is 0, wanted a number above 0"),
        (["--device", "tpu"], "--device is 'tpu', wanted cpu or cuda"),
        (["--max-tokens", "256"], "--max-tokens is 256, the model's context has 256 tokens"),
    ],
)
def test_bad_input_is_one_line(
    verifier: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    output = tmp_path / "text"
    base = ["train", "data", "--verifier", str(verifier), "-o", str(output)]
    if "--sources" not in arguments:
        base += ["--sources", "builtin"]
    done = CliRunner().invoke(app, [*base, *arguments])
    assert done.exit_code == 2, done.output
    assert message in done.output.replace("\n", " ")
    assert not list(output.glob("*"))


def test_a_model_without_tokenizer_is_refused(
    verifier: Path, options: DataOptions, tmp_path: Path, work: WorkDir
) -> None:
    bare = tmp_path / "bare"
    LlamaForCausalLM.from_pretrained(verifier).save_pretrained(bare)
    with pytest.raises(SourceError, match="has no tokenizer"):
        write_data(changed(options, verifier=str(bare)), work, Reporter(quiet=True))


def test_help_imports_no_torch() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom yggc.cli import app\n"
        "done = CliRunner().invoke(app, ['train', 'data', '--help'])\n"
        "assert done.exit_code == 0, done.output\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
