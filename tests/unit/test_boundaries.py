"""Who may import whom, read from the sources; and what `--help` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = {"msgspec", "torch"}
RUNTIME = CORE | {"tokenizers", "jinja2", "typer", "rich"}
# What a module needs of an extra; it is imported when it is used.
EXTRAS = {"yggrt/sampling/constraints.py": {"llguidance"}}
FORMAT_ONLY = ("errors", "schema", "spec", "tree", "accept", "objective", "search", "consistency")


def imported(path: Path, *, type_checking: bool = False) -> set[str]:
    """Modules that a file imports, at the top or inside functions; not those for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def outside(names: set[str], *own: str) -> set[str]:
    """Top-level packages beside the standard library and `own`."""
    tops = {name.partition(".")[0] for name in names}
    return tops - set(sys.stdlib_module_names) - set(own)


@pytest.mark.parametrize("path", sorted((ROOT / "yggrt").rglob("*.py")), ids=str)
def test_the_runtime_needs_its_own_dependencies_alone(path: Path) -> None:
    extra = EXTRAS.get(path.relative_to(ROOT).as_posix(), set())
    assert outside(imported(path), "yggrt") <= RUNTIME | extra


@pytest.mark.parametrize("path", sorted((ROOT / "yggrt/core").rglob("*.py")), ids=str)
def test_the_core_imports_nothing_above_it(path: Path) -> None:
    names = imported(path)
    assert all(n.startswith("yggrt.core") for n in names if n.startswith("yggrt"))
    format_only = path.parent.name == "core" and path.stem in FORMAT_ONLY
    allowed = {"msgspec"} if format_only else CORE
    assert outside(names, "yggrt") <= allowed


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").glob("*.py")), ids=str)
def test_operators_know_only_the_error_types(path: Path) -> None:
    names = imported(path)
    assert not any(n.startswith("yggc") for n in names)
    # A benchmark's ceilings are those of the memory that the runtime uses.
    known = {"yggrt.core.errors"} | ({"yggrt.memory"} if path.stem.startswith("bench") else set())
    assert {n for n in names if n.startswith("yggrt")} <= known


@pytest.mark.parametrize("module", ["yggrt.session", "yggrt.sampling.params", "yggrt.loading"])
def test_what_checks_a_request_imports_no_torch(module: str) -> None:
    program = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_room_for_odds_and_ends() -> None:
    banned = {"utils.py", "helpers.py", "common.py", "misc.py"}
    files = [p for part in ("yggrt", "yggc", "kernels") for p in (ROOT / part).rglob("*.py")]
    assert files
    assert not [p for p in files if p.name in banned]


@pytest.mark.parametrize("package", ["yggrt", "yggc"])
def test_help_imports_no_torch(package: str) -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"sys.argv = ['{package}', '--help']\n"
        f"from {package}.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_no_two_test_files_have_one_name() -> None:
    """pytest takes the second for the first, and only where both are collected."""
    names = sorted(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert names == sorted(set(names))
