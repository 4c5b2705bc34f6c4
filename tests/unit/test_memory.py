"""Memory in huge pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from yggrt.core.errors import RequestError
from yggrt.memory import HUGE_PAGE, huge_pages, read_into_huge_pages
from yggrt.weights import zeros_in_huge_pages

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_bytes() -> int:
    """Bytes of this process that lie in huge pages."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"AnonHugePages:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(
    not POLICY.exists() or "[never]" in POLICY.read_text(), reason="this system has no huge pages"
)
def test_memory_lies_in_huge_pages() -> None:
    """Not merely asked for: shared anonymous memory takes the advice and ignores it."""
    before = huge_bytes()
    view = huge_pages(16 * HUGE_PAGE)
    view[:] = b"\1" * len(view)
    assert huge_bytes() - before >= 8 * HUGE_PAGE


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 150_000
    path = tmp_path / "file"
    path.write_bytes(data)
    with path.open("rb") as file:
        assert bytes(read_into_huge_pages(file.fileno(), len(data))) == data
        with pytest.raises(EOFError, match="ended at byte"):
            read_into_huge_pages(file.fileno(), len(data) + 1)


def test_tensors_of_zeros_do_not_overlap() -> None:
    shapes = [(torch.float32, (1, 3, 5)), (torch.bfloat16, (7,)), (torch.uint8, (1, 2, 68))]
    tensors = zeros_in_huge_pages(shapes)
    assert [(t.dtype, tuple(t.shape)) for t in tensors] == shapes
    assert all(not t.any() and t.is_contiguous() and t.data_ptr() % 64 == 0 for t in tensors)
    for value, tensor in enumerate(tensors, start=1):
        tensor.fill_(value)
    assert [float(t.float().min()) for t in tensors] == [1.0, 2.0, 3.0]


def test_memory_that_cannot_be_had() -> None:
    with pytest.raises(RequestError, match=r"MB of memory cannot be had"):
        huge_pages(1 << 60)
