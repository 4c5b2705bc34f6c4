"""What a manifest must say of Medusa heads, and bundles that contradict themselves about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import small

from yggrt.core.consistency import check_manifest
from yggrt.core.errors import BundleError
from yggrt.core.schema import GraphSpec, Manifest, MedusaDrafter, TensorSpec


def with_logits(graph: GraphSpec, num: int) -> GraphSpec:
    hidden = TensorSpec(name="hidden", dtype="float32", shape=(1, num), stride=(num, 1))
    return msgspec.structs.replace(graph, outputs=(*graph.outputs, hidden))


def manifest(tmp_path: Path, **changes: Any) -> Manifest:
    """The small bundle's with two heads over three ids."""
    written = small.write_small(tmp_path / "small.ygg")
    heads = MedusaDrafter(temperatures=(1.0, 2.0), coverage=(1.0, 0.9), token_ids=(1, 2, 5))
    fields = {
        "drafter": msgspec.structs.replace(written.model, vocab_size=3, kv_layers=()),
        "schedule": msgspec.structs.replace(written.schedule, drafter=heads),
        "graphs": tuple(with_logits(graph, 6) for graph in written.graphs),
    }
    return msgspec.structs.replace(written, **fields | changes)


def test_heads_come_back_as_they_were_written(tmp_path: Path) -> None:
    before = manifest(tmp_path)
    check_manifest(before, "test")
    after = Manifest.from_json(before.to_json(), "test")
    assert after == before
    assert isinstance(after.schedule.drafter, MedusaDrafter)
    assert after.schedule.drafter.num_heads == 2


def refused(found: Manifest, wanted: str) -> None:
    with pytest.raises(BundleError, match=wanted):
        check_manifest(found, "test")


def test_contradictions_are_refused(tmp_path: Path) -> None:
    good = manifest(tmp_path)
    heads = good.schedule.drafter
    refused(manifest(tmp_path, drafter=None), "the drafter of the schedule is a model")
    graphs = (with_logits(small.graph("w001", 1), 5), *good.graphs[1:])
    refused(
        manifest(tmp_path, graphs=graphs), r"'w001' gives \[\(5,\)\] as logits of heads, wanted"
    )
    graphs = (small.graph("w001", 1), *good.graphs[1:])
    refused(manifest(tmp_path, graphs=graphs), r"'w001' gives \[\] as logits of heads")
    draft = msgspec.structs.replace(good.graphs[0], kind="draft", name="x001")
    refused(manifest(tmp_path, graphs=(*good.graphs, draft)), "'x001' is a drafter's, and Medusa")
    foreign = msgspec.structs.replace(heads, token_ids=(1, 2, 11))
    schedule = msgspec.structs.replace(good.schedule, drafter=foreign)
    refused(manifest(tmp_path, schedule=schedule), r"are not different ids in 0\.\.10")
    narrow = msgspec.structs.replace(good.drafter, hidden_size=8)
    refused(manifest(tmp_path, drafter=narrow), "the head reads 8 values, the verifier gives 16")
