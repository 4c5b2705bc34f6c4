"""Python stubs out of the source of the standard library and of installed packages: signature and
docstring, as a person writes them before the body.
"""

from __future__ import annotations

import ast
import itertools
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# Of one package, so that a large one does not crowd out the others.
MAX_OF_PACKAGE = 400
_MIN_DOCSTRING, _MAX_TEXT = 40, 900
_SKIPPED = frozenset({"test", "tests", "testing", "site-packages", "__pycache__", "idlelib"})


def stubs(folders: tuple[Path, ...] | None = None) -> Iterator[str]:
    """Module-level functions with a docstring, each as `def name(...):` and the docstring.

    `folders` default to the standard library and the installed packages. The order is that of
    sorted paths; at most MAX_OF_PACKAGE come from one package, the standard library counted by
    its modules.
    """
    for folder in folders or _installed():
        for package in sorted(folder.iterdir()):
            yield from itertools.islice(_of_package(package), MAX_OF_PACKAGE)


def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(dict.fromkeys(Path(paths[key]) for key in ("stdlib", "purelib", "platlib")))


def _of_package(package: Path) -> Iterator[str]:
    if package.name in _SKIPPED:
        return
    files = sorted(package.rglob("*.py")) if package.is_dir() else [package]
    for file in files:
        if file.suffix != ".py" or _SKIPPED & set(file.relative_to(package.parent).parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # bad escapes in other people's strings
                tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and (text := _stub(node)):
                yield text


def _stub(node: ast.FunctionDef) -> str:
    """The stub of a function that is worth asking for, else an empty string."""
    docstring = ast.get_docstring(node)
    if node.name.startswith("_") or not docstring or len(docstring) < _MIN_DOCSTRING:
        return ""
    if not docstring.isascii() or "deprecated" in docstring.lower():
        return ""
    bare = ast.FunctionDef(
        name=node.name,
        args=node.args,
        body=[node.body[0]],
        decorator_list=[],
        returns=node.returns,
        lineno=node.lineno,
    )
    text = ast.unparse(bare) + "\n"
    return text if len(text) <= _MAX_TEXT else ""
