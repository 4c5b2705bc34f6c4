"""What `inspect` says about the small bundle, as a dictionary and as tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from bundle import broken
from bundle.small import manifest, tensors, write_small
from msgspec import structs
from rich.console import Console

from yggrt.core.errors import BundleError
from yggrt.core.schema import FORMAT_VERSION, WeightSpec
from yggrt.inspect import describe_verifier, inspect_bundle, render


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_small(tmp_path / "small.ygg")
    return tmp_path / "small.ygg"


def test_description(path: Path) -> None:
    found = json.loads(json.dumps(inspect_bundle(path)))
    weights_bytes = sum(tensor.numel() * tensor.itemsize for tensor in tensors().values())
    assert found["file"]["num_bytes"] == path.stat().st_size
    assert found["file"]["format_version"] == FORMAT_VERSION
    assert found["weights"]["num_tensors"] == len(tensors())
    assert found["weights"]["num_bytes"] == weights_bytes
    assert found["weights"]["largest"][0]["name"] == "embedding"
    # 2 heads x (8 + 8) values x 40 slots x 4 bytes; (11 logits + 8 rows x 4 x 16) x 4 bytes
    assert found["memory"] == {
        "weights_bytes": weights_bytes,
        "kv_bytes": 5120,
        "workspace_bytes": 2092,
        "total_bytes": weights_bytes + 5120 + 2092,
    }
    assert found["verifier"] == "float32 weights, float32 activations"
    assert found["graphs"][1]["max_rows"] == 8
    assert found["graphs"][1]["num_constants"] == 2
    assert found["sources"][0]["license"] == "apache-2.0"
    assert found["text"]["chat_template"] is False


def weight(dtype: Any, *shape: int) -> WeightSpec:
    return WeightSpec(dtype=dtype, shape=shape, offset=0)


def test_verifier_in_words() -> None:
    """Everything that makes it another one than the source, matrices left in floats included."""
    weights = {
        "a": weight("uint8", 4, 2, 320),
        "b": weight("uint8", 4, 1, 3360),
        "c": weight("float32", 1, 8, 16),
        "norm": weight("float32", 64),
        "predictor.encode.weight": weight("float32", 1, 8, 16),
    }
    small = manifest()
    model = structs.replace(small.model, quant="keep", activations="int8", kv_dtype="int8")
    said = describe_verifier(structs.replace(small, weights=weights, model=model))
    assert said == "q6_k + q4_1 + float32 as stored, int8 activations, int8 keys and values"
    model = structs.replace(small.model, quant="int8")
    del weights["c"]
    said = describe_verifier(structs.replace(small, weights=weights, model=model))
    assert said == "q6_k + q4_1 rounded from the source, float32 activations"


def test_tables(path: Path) -> None:
    out = io.StringIO()
    render(inspect_bundle(path, full=True), Console(file=out, width=120))
    text = out.getvalue()
    for words in (
        "all bytes",
        "apache-2.0",
        "w008",
        "embedding",
        "avx2 fma",
        "5.1 kB",
        "code/libygg.so",
    ):
        assert words in text


def test_damage_is_an_error(path: Path) -> None:
    path.write_bytes(broken.flipped_in(path.read_bytes(), "weights.safetensors"))
    with pytest.raises(BundleError, match="SHA-256"):
        inspect_bundle(path, full=True)
