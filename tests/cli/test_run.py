"""`yggrt run`, `verify`, `bench` and `cache`: what goes to stdout, to stderr, and the exit code.

The session behind them is real; its graphs are scripted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from bundle.small import write_small
from parts import make, telling
from scripted import OracleDrafter, ScriptedGraphs
from typer.testing import CliRunner, Result

from yggrt import __version__, cli
from yggrt.session import Session

SAID = "the quick 🎉 fox says two words and more"
RESULT_KEYS = [
    *("text", "ids", "prompt_ids", "finish_reason", "num_tokens", "num_passes"),
    *("mean_acceptance_length", "tpot_ms", "ttft_ms", "seed"),
]


def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.app, arguments, input=stdin)


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "yggrt", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
        **options,
    )


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """What every `run` loads: it answers "hello" and chats with SAID."""
    made, _ = telling(tiny.chatml_text(), SAID)
    monkeypatch.setattr(cli, "_load", lambda *arguments: made)
    return made


def raw(*more: str) -> Result:
    return invoke("run", "x.ygg", "--no-chat", "-p", "hello", "-n", "20", *more)


def test_text_streams_to_stdout_and_statistics_to_stderr(session: Session) -> None:
    result = raw("--stop", " and")
    assert result.exit_code == 0
    assert result.stdout == "the quick 🎉 fox says two words\n"
    [line] = result.stderr.splitlines()
    assert "ms/token" in line
    assert "tokens/pass" in line


def test_json_is_one_line_with_these_keys(session: Session) -> None:
    result = raw("--json")
    [line] = result.stdout.splitlines()
    value = json.loads(line)
    assert list(value) == RESULT_KEYS
    assert value["num_tokens"] == len(value["ids"]) == 20
    assert value["finish_reason"] == "length"
    assert result.stderr == ""


def test_prompts_come_from_stdin_ids_or_a_chat(session: Session) -> None:
    text = tiny.chatml_text()
    hello = text.encode("hello")
    stdin = invoke("run", "x", "--no-chat", "-p", "-", "--json", stdin=b"hello")
    assert json.loads(stdin.stdout)["prompt_ids"] == hello
    ids = invoke("run", "x", "--json", "--ids", ",".join(map(str, hello)))
    assert json.loads(ids.stdout)["ids"] == json.loads(stdin.stdout)["ids"]
    chat = invoke("run", "x", "--json", "-p", "hello", "--system", "world", "-n", "3")
    assert json.loads(chat.stdout)["prompt_ids"] == text.encode_chat(
        [{"role": "system", "content": "world"}, {"role": "user", "content": "hello"}]
    )


def test_all_statistics(session: Session) -> None:
    result = raw("--stats", "--plain")
    assert "19 passes" in result.stderr
    assert "passes: 19, 19 plain" in result.stderr
    assert "verify" in result.stderr
    assert "alpha" in result.stderr


def test_without_a_tokenizer_ids_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = ScriptedGraphs()
    made = make(graphs, OracleDrafter(6, graphs=graphs))
    monkeypatch.setattr(cli, "_load", lambda *arguments: made)
    result = invoke("run", "x", "--ids", "1,2", "-n", "5")
    assert result.stdout == "".join(f"{i}," for i in graphs.plain([1, 2], 5)) + "\n"
    refused = invoke("run", "x", "-p", "hello")
    assert refused.exit_code == 2
    assert "no tokenizer" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", ""), "prompt is empty"),
        ((), "no prompt"),
        (("-p", "a", "--ids", "1"), "both --prompt and --ids"),
        (("--ids", "1,x"), "--ids is '1,x'"),
        (("--ids", "1,100000"), "100000 at index 1 is out of the vocabulary"),
        (("--ids", "1", "--chat"), "--ids takes no --chat"),
        (("-p", "a", "--no-chat", "--system", "s"), "--system is given"),
        (
            (
                "-p",
                "hello " * 600,
            ),
            "context holds 512",
        ),
        (("-p", "a\udcff"), "not valid UTF-8"),
        (("-p", "a", "--stop", ""), "stop string is empty"),
    ],
)
def test_bad_requests_are_one_line_and_exit_2(
    session: Session, arguments: tuple[str, ...], words: str
) -> None:
    result = invoke("run", "x.ygg", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    error, *tips = result.stderr.splitlines()
    assert error.startswith("ERROR ")
    assert words in error
    assert all(tip.startswith("TIP ") for tip in tips)
    assert len(tips) <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "x", "-n", "0"), "invalid value for '--max-tokens' / '-n'"),
        (("run", "x", "-t", "0"), "invalid value for '--threads' / '-t'"),
        (("verify", "x", "--limit", "-1"), "invalid value for '--limit'"),
        (("bench", "x", "-n", "1"), "invalid value for '--max-tokens' / '-n'"),
        (("run", "x", "-n", "two"), "invalid value for '--max-tokens' / '-n'"),
        (("run", "--nonesuch"), "no such option: --nonesuch"),
        (("run",), "missing argument 'FILE'"),
        (("nonesuch",), "no such command 'nonesuch'"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    error, tip = result.stderr.splitlines()
    assert error.startswith("ERROR ")
    assert words in error
    assert tip.startswith("TIP `")
    assert tip.endswith("--help` describes the options")


def test_no_arguments_show_the_help() -> None:
    for arguments in ((), ("cache",)):
        result = invoke(*arguments)
        assert "Usage" in result.output
        assert "ERROR" not in result.output


def test_stdin_that_is_not_utf8_is_refused(session: Session) -> None:
    result = invoke("run", "x.ygg", "-p", "-", stdin=b"ab\xff")
    assert result.exit_code == 2
    assert "stdin: byte 2 (0xff) is not valid UTF-8" in result.stderr


def test_a_tree_over_the_largest_graph_and_a_bad_spec(
    monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    monkeypatch.setattr(cli, "_load", lambda file, threads, cache, tree, *rest: _with_tree(tree))
    result = invoke("run", "x", "-p", "a", "--tree", "sequence:depth=40")
    assert result.exit_code == 2
    assert "verifies 41 rows, the largest graph holds 16" in result.stderr
    result = invoke("run", "x", "-p", "a", "--tree", "oak:depth=4")
    assert "egt" in result.stderr


def _with_tree(tree: str) -> Session:
    return telling(tiny.chatml_text(), SAID, tree=tree)[0]


def test_verbose_shows_the_traceback_of_an_error(session: Session) -> None:
    assert "Traceback" not in raw("--stop", "").stderr
    result = raw("--stop", "", "-v")
    assert "Traceback" in result.stderr
    assert result.exit_code == 2


def test_ctrl_c_ends_with_statistics_and_exit_130(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_step = session._engine_for(session.tree, True, False).step

    def step_and_interrupt() -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return engine_step()

    monkeypatch.setattr(session._engine_for(session.tree, True, False), "step", step_and_interrupt)
    result = raw()
    assert result.exit_code == 130
    assert "1 passes" in result.stderr
    assert SAID.startswith(result.stdout.strip())
    assert json.loads(raw("--json").stdout)["finish_reason"] == "cancelled"


def test_verify_and_bench_refuse_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "small.ygg"
    write_small(path)
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    path.write_bytes(data)
    for command in ("run", "inspect", "verify", "bench"):
        more = ("-p", "x") if command == "run" else ()
        result = shell(command, str(path), *more, "--cache-dir", str(tmp_path / "cache"))
        assert result.returncode == 2, result.stderr
        assert result.stderr.startswith("ERROR ")
        assert str(path) in result.stderr
        assert "Traceback" not in result.stderr


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    result = shell("run", str(tmp_path / "none.ygg"), "-p", "x", "--cache-dir", str(tmp_path))
    assert result.returncode == 2
    assert "none.ygg" in result.stderr


def test_cache_prune(tmp_path: Path) -> None:
    path = tmp_path / "small.ygg"
    write_small(path)
    cache = tmp_path / "cache"
    assert shell("inspect", str(path), "--cache-dir", str(cache)).returncode == 0
    result = shell("cache", "prune", "--all", "--cache-dir", str(cache))
    assert result.returncode == 0
    assert "removed" in result.stderr
    assert list(cache.iterdir()) == []


def test_inspect_prints_tables_or_json(tmp_path: Path) -> None:
    path = tmp_path / "small.ygg"
    write_small(path)
    tables = shell("inspect", str(path), "--cache-dir", str(tmp_path / "cache"))
    assert "small" in tables.stdout
    value = json.loads(
        shell("inspect", str(path), "--json", "--cache-dir", str(tmp_path / "cache")).stdout
    )
    assert value["file"]["name"] == "small"


def test_version() -> None:
    assert shell("--version").stdout == f"yggrt {__version__}\n"


def test_no_color_without_a_terminal() -> None:
    assert "\x1b" not in shell("run", "/none", "-p", "x").stderr


@pytest.mark.parametrize("command", [(), ("run",), ("bench",), ("verify",), ("cache", "prune")])
def test_help_imports_no_torch(command: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom yggrt import cli\n"
        "try:\n    cli.app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "bad = {'torch', 'tokenizers', 'jinja2', 'numpy'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_public_names_are_lazy() -> None:
    program = (
        "import sys, yggrt\n"
        "assert 'torch' not in sys.modules\n"
        "assert callable(yggrt.load) and yggrt.Session and yggrt.Completion\n"
        "assert set(dir(yggrt)) >= {'load', 'Session', 'Completion', '__version__'}\n"
        "assert 'transformers' not in sys.modules and 'triton' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_stdout_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "small.ygg"
    write_small(file)
    command = [sys.executable, "-m", "yggrt", "inspect", str(file), "--cache-dir", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("ERROR the output cannot be written: No space left")
    assert len(done.stderr.splitlines()) == 2


def test_stdout_that_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "small.ygg"
    write_small(file)
    command = f'{sys.executable} -m yggrt inspect "{file}" --cache-dir "{tmp_path}" >&-'
    done = subprocess.run(
        command, shell=True, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
