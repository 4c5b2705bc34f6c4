"""How a prompt is cut into prefill passes."""

from __future__ import annotations

import pytest

from yggrt.core.passes import prefill_chunks


@pytest.mark.parametrize(
    ("num_tokens", "sizes"),
    [
        (0, []),
        (1, [1]),
        (64, [64]),
        (70, [64, 6]),
        (128, [64, 64]),
        (129, [129]),
        (256, [256]),
        (300, [256, 44]),
        (512, [256, 256]),
        (650, [256, 256, 138]),
        (600, [256, 256, 64, 24]),
    ],
)
def test_chunks_fill_their_buckets(num_tokens: int, sizes: list[int]) -> None:
    """Buckets of 64 and 256: the larger one only where at least half of it is used."""
    chunks = list(prefill_chunks((64, 256), 5, 5 + num_tokens))
    assert [last - first for first, last in chunks] == sizes
    covered = [token for first, last in chunks for token in range(first, last)]
    assert covered == list(range(5, 5 + num_tokens))
