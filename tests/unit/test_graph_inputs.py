"""Inputs of compiled graphs: memory that is written again by every call."""

from __future__ import annotations

import pytest
import torch

from yggrt.graph_inputs import GraphInputs, Numbers, NumbersBySize


def test_values_are_those_of_the_last_call() -> None:
    inputs = GraphInputs(rows=2, columns=3, feature_size=2)
    inputs.set([9, 9], [9, 9], [9, 9], 9, [b"\1\1\1"] * 2, None, [torch.full((2,), 9.0)] * 2)
    tokens, positions, slots, length, mask, features = inputs.set(
        [1, 2], [3, 4], range(5, 7), 8, [bytearray(b"\1\0\0"), b"\0\1\1"], None, torch.eye(2)
    )
    assert [one.tolist() for one in (tokens, positions, slots)] == [[1, 2], [3, 4], [5, 6]]
    assert length.tolist() == [8]
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[True, False, False], [False, True, True]]
    assert torch.equal(features, torch.eye(2))


def test_prefill_graphs_get_the_row_that_is_asked_for() -> None:
    given = GraphInputs(1, 1, 0).set([7], [0], [0], 0, [b"\1"], 0)
    assert [one.tolist() for one in given] == [[7], [0], [0], [0], [[True]], [0]]


def test_another_number_of_values_is_refused() -> None:
    # The tensor would otherwise point to memory that is gone.
    with pytest.raises(ValueError, match="memoryview assignment"):
        Numbers(2).set([1, 2, 3])
    with pytest.raises(ValueError, match="memoryview assignment"):
        GraphInputs(2, 2, 0).set([1, 2], [0, 0], [0, 1], 0, [b"\1\0"])


def test_each_size_has_its_own_memory() -> None:
    kept = NumbersBySize()
    one, two = kept.set([1]), kept.set([2, 3])
    assert (one.tolist(), two.tolist()) == ([1], [2, 3])
    assert kept.set([4]).data_ptr() == one.data_ptr()
