"""Rows of a growing tree that see more tree rows than their call has: the attention of `draft`
graphs against that of one call with all rows.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import bundles
import pytest
import torch
from drafting import random_tree
from ygg_kernels.build import build_library
from ygg_kernels.ops import load_library

from yggc.models.adapt import Step, _attend

pytestmark = pytest.mark.tiny

NUM_ROWS, LENGTH = 13, 37


@pytest.fixture(scope="module")
def operators() -> Any:
    library = build_library(bundles.WORK / "operators")
    return load_library(library.path, library.namespace)


@pytest.mark.parametrize(("window", "softcap"), [(0, None), (8, None), (40, 20.0)])
def test_rows_have_the_bits_of_a_call_with_the_whole_tree(
    operators: Any, window: int, softcap: float | None
) -> None:
    torch.manual_seed(0)
    tree = random_tree(random.Random(window), NUM_ROWS, 50, max_depth=6)
    query = torch.randn(1, 6, NUM_ROWS, 16)
    keys, values = (torch.randn(1, 2, LENGTH + NUM_ROWS + 4, 16) for _ in range(2))
    mask = torch.tensor(tree.ancestor_mask())
    positions = LENGTH + torch.tensor(tree.depths)

    def attend(rows: slice) -> torch.Tensor:
        step = Step(
            operators,
            length=torch.tensor([LENGTH]),
            positions=positions[rows].contiguous(),
            mask=mask[rows].contiguous(),
        )
        module: Any = SimpleNamespace(ygg_step=step)
        out, _ = _attend(module, query[:, :, rows], keys, values, None, None, window, softcap)
        return out

    whole = attend(slice(0, NUM_ROWS))
    for begin in range(0, NUM_ROWS, 4):
        rows = slice(begin, min(begin + 4, NUM_ROWS))
        assert torch.equal(attend(rows), whole[:, rows])
