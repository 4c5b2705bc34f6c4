"""A verifier to train drafters for, and its text."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import save_verifier, write_text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture(scope="module")
def text(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(model, tmp_path_factory.mktemp("text") / "text.jsonl")
