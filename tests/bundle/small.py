"""A bundle of a few kilobytes with the parts of a real one; nothing loads its code members."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from yggrt.bundle import WeightSource, write_bundle
from yggrt.core.schema import (
    FORMAT_VERSION,
    Golden,
    GraphSpec,
    KvLayer,
    LatencyPoint,
    Manifest,
    ModelInfo,
    MustMatch,
    NgramDrafter,
    Schedule,
    Source,
    SourceFile,
    Target,
    TensorSpec,
    TextInfo,
    TunedFor,
)
from yggrt.weights import tensor_chunks

FILES: dict[str, Path | bytes] = {
    "code/libygg.so": b"\x7fELF operators" * 9,
    "code/w001/model.so": b"\x7fELF one row" * 5,
    "code/w001/model.json": b'{"rows": 1}',
    "code/w001/model.calls.json": b"[1]",
    "code/w008/model.so": b"\x7fELF eight rows" * 7,
    "code/w008/model.json": b'{"rows": 8}',
    "code/w008/model.calls.json": b"[8]",
    "tokenizer.json": b"{}",
    "bench.jsonl": b'{"prompt": "one"}\n',
}


def tensors() -> dict[str, torch.Tensor]:
    """Odd sizes, so that pads are needed; every type that weights have."""
    generator = torch.Generator().manual_seed(7)
    return {
        "embedding": torch.randn(11, 16, generator=generator),
        "layer.0.weight": torch.randn(5, 7, generator=generator).to(torch.bfloat16),
        "layer.0.index": torch.arange(3, dtype=torch.int64),
        "layer.0.scalar": torch.tensor(2.5),
        "layer.1.weight": torch.randn(64, generator=generator).to(torch.bfloat16),
    }


def sources() -> list[WeightSource]:
    """The weights of `tensors`, to be written."""
    return [
        WeightSource(
            name,
            str(tensor.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            tuple(tensor.shape),
            lambda tensor=tensor: tensor_chunks(tensor, 50),
        )
        for name, tensor in tensors().items()
    ]


def graph(name: str, rows: int, kind: Literal["verify", "prefill"] = "verify") -> GraphSpec:
    ids = TensorSpec(name="tokens", dtype="int64", shape=(rows,), stride=(1,))
    caches = tuple(
        TensorSpec(name=name, dtype="float32", shape=(1, 2, 40, 8), stride=(640, 320, 8, 1))
        for name in ("keys_0", "values_0")
    )
    return GraphSpec(
        name=name,
        kind=kind,
        min_rows=rows,
        max_rows=rows,
        library=f"code/{name}/model.so",
        calls=f"code/{name}/model.calls.json",
        metadata=f"code/{name}/model.json",
        inputs=(ids, *caches),
        outputs=(ids,),
        constants={"c0": "embedding", "c1": "layer.0.weight"},
    )


def must_match() -> MustMatch:
    return MustMatch(
        os="linux",
        machine="x86_64",
        libc="glibc 2.36",
        isa=("avx2", "fma"),
        torch="2.13.0",
        cuda="",
        compute_capability="",
    )


def tuned_for() -> TunedFor:
    return TunedFor(
        device="Example CPU",
        memory_bytes=16 << 30,
        num_cores=2,
        num_threads=2,
        read_bandwidth=14e9,
        flops=100e9,
    )


def manifest() -> Manifest:
    """The manifest before anything was written: no members, no weights."""
    return Manifest(
        format_version=FORMAT_VERSION,
        built_by="yggc 0.1.0",
        name="small",
        exactness="bitwise",
        target=Target(name="cpu", must_match=must_match(), tuned_for=tuned_for()),
        model=ModelInfo(
            architecture="LlamaForCausalLM",
            vocab_size=11,
            hidden_size=16,
            num_parameters=300,
            max_model_len=32,
            num_slots=40,
            kv_dtype="float32",
            kv_layers=(KvLayer(num_heads=2, key_dim=8, value_dim=8),),
            eos_ids=(2,),
            weight_dtype="float32",
            max_depth=8,
        ),
        sources=(
            Source(
                role="verifier",
                kind="gguf",
                location="small.gguf",
                revision="",
                license="apache-2.0",
                files=(SourceFile(name="small.gguf", num_bytes=5, sha256="0" * 64),),
            ),
        ),
        operators="code/libygg.so",
        operator_namespace="ygg_0123",
        graphs=(graph("w001", 1), graph("w008", 8, "prefill")),
        weights={},
        latency=(LatencyPoint(graph="w001", rows=1, context=0, median_s=0.02, spread_s=0.001),),
        schedule=Schedule(
            tree="plain",
            drafter=NgramDrafter(max_match=2, acceptance=((0.5,) * 6, (0.7,) * 6)),
            rest_s=0.0005,
            buckets=(1, 8),
            candidates=(),
        ),
        text=TextInfo(tokenizer="tokenizer.json"),
        golden=(Golden(prompt_ids=(1, 2), output_ids=(3, 4)),),
        bench_prompts="bench.jsonl",
        members={},
        config={"dtype": "float32"},
    )


def write_small(path: Path) -> Manifest:
    """Writes the small bundle to `path`."""
    return write_bundle(path, manifest(), sources(), FILES)
