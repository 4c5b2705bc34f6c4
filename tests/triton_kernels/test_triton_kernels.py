"""Kernels in Triton's interpreter against plain torch, and bits of rows against bits of rows."""

from __future__ import annotations

from typing import Any

import pytest

Results = dict[str, list[dict[str, Any]]]

# The least number of results: one a sampled shape, several where a shape is compared in parts.
COUNTS = {
    "attention": 60,
    "attention_rows": 24,
    "linear": 60,
    "linear_rows": 24,
    "topk": 200,
    "keyed": 120,
    "accept": 60,
    "kv_commit": 60,
}


@pytest.mark.parametrize("group", COUNTS)
def test_group(results: Results, group: str) -> None:
    """Values: at most twice the error of plain torch in the same dtype. Bits: all equal."""
    assert len(results[group]) >= COUNTS[group]
    assert [each for each in results[group] if not each["passed"]] == []


def test_bounds_are_not_slack(results: Results) -> None:
    """Most attention cases have an error of their own, so their bounds compare something."""
    assert sum(each["error"] > 0 for each in results["attention"]) > 45
    assert all(each["allowed"] < 0.1 for each in results["attention"])
