"""Triton is needed by its own kernels alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "triton"


def imported(path: Path) -> set[str]:
    """Modules that a file imports, at the top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("package", ["yggrt", "yggc", "kernels"])
def test_no_one_else_imports_triton(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*.py") if KERNELS not in path.parents]
    assert files
    for path in files:
        names = imported(path)
        assert not [name for name in names if name.split(".")[0] == "triton"], path


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.name)
def test_kernels_know_only_the_error_types(path: Path) -> None:
    allowed = ("torch", "triton", "ygg_kernels", "yggrt.core.errors")
    tops = {name for name in imported(path) if not name.startswith(allowed)}
    assert not [name for name in tops if name.startswith(("ygg", "transformers", "numpy"))]
