"""Compiles every kernel for every capability, without a GPU, and prints what ptxas says of it.

`python -m ygg_kernels.triton.compile_check` prints the table of docs/kernels.md. The operators are
traced over fake CUDA tensors, as Inductor does, so what is compiled is what they launch. Exits 1
where a kernel spills, needs more shared memory than the GPU has, or where the two kernels of
`tree_attention` lay a matrix product out differently.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ygg_kernels.triton import accept, attention, kv, linear, packing, topk

from yggrt.core.errors import CheckFailed, YggError

# Compute capability and the shared memory that one program may have, in bytes.
CAPABILITIES = {80: 166912, 86: 101376, 89: 101376, 90: 232448}
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as an operator launches it, and what the operator was called with."""

    label: str
    kernel: Any
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.fn.__name__).strip("_")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one compilation needs of the GPU; layouts are those of its matrix products."""

    launch: Launch
    capability: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    layouts: frozenset[str]


def trace(label: str, operator: Any, *arguments: Any) -> list[Launch]:
    """The launches of an operator; to be called under a FakeTensorMode."""
    flat, spec = tree_flatten(arguments)
    places = [place for place, value in enumerate(flat) if isinstance(value, Tensor)]

    def call(*tensors: Tensor) -> Any:
        values = dict(enumerate(flat)) | dict(zip(places, tensors, strict=True))
        # What torch traces when it compiles; the operator itself would be one opaque node.
        return operator._abstract_fn(*tree_unflatten(list(values.values()), spec))

    graph = make_fx(call)(*(flat[place] for place in places)).graph
    launches = []
    for node in graph.nodes:
        if "triton_kernel_wrapper" in str(node.target):
            launched = {
                name: value.meta["val"] if isinstance(value, torch.fx.Node) else value
                for name, value in node.kwargs["kwargs"].items()
            }
            launched |= kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"])
            kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
            launches.append(Launch(label, kernel, launched))
    return launches


def _empty(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(size, dtype=dtype, device="cuda")


def _attention(dtype: torch.dtype, size: int, group: int, window: int, cap: float) -> list[Launch]:
    rows = 16
    caches = [_empty(1, 2, 4096, size, dtype=dtype) for _ in range(2)]
    label = f"{str(dtype)[6:]} D={size} GQA {group}"
    label += f" window {window}" * (window > 0) + f" softcap {cap:g}" * (cap > 0)
    return trace(
        label, attention.tree_attention, _empty(1, 2 * group, rows, size, dtype=dtype), *caches,
        _empty(1), _empty(rows), _empty(rows, rows, dtype=torch.bool), size**-0.5, window, cap,
    )  # fmt: skip


def _linear(dtype: torch.dtype, weight_format: int, rows: int, num_k: int) -> list[Launch]:
    num_n = 4096
    if weight_format in packing.DENSE:
        weight = _empty(num_n, num_k, dtype=dtype)
    else:
        weight = _empty(num_n, packing.row_bytes(weight_format, num_k), dtype=torch.uint8)
    return trace(
        f"{str(dtype)[6:]} x {packing.NAMES[weight_format]} V={rows} K={num_k}",
        linear.linear, _empty(rows, num_k, dtype=dtype), [weight], [_empty(num_n, dtype=dtype)],
        [num_n], [weight_format], False,
    )  # fmt: skip


def launches() -> Iterator[Launch]:
    """The variants of the table: every kernel, head size, weight format and tile count."""
    half = (torch.bfloat16, torch.float16)
    for size in (32, 64, 80, 96, 128, 256):
        yield from _attention(torch.bfloat16, size, 4, 0, 0.0)
    for size in (32, 64, 128, 256):
        yield from _attention(torch.float32, size, 4, 0, 0.0)
    yield from _attention(torch.float16, 128, 1, 0, 0.0)
    yield from _attention(torch.bfloat16, 128, 8, 1024, 0.0)
    yield from _attention(torch.bfloat16, 256, 2, 4096, 50.0)
    yield from _attention(torch.bfloat16, 128, 32, 0, 0.0)
    for rows in (16, 32, 64):
        for dtype, name in zip(half, ("bfloat16", "float16"), strict=True):
            yield from _linear(dtype, packing.CODES[name], rows, 4096)
        for name in ("q8_0", "q4_1"):
            yield from _linear(torch.bfloat16, packing.CODES[name], rows, 4096)
            yield from _linear(torch.float16, packing.CODES[name], rows, 576)
    for k in (1, 8, 64):
        for dtype in (torch.bfloat16, torch.float32):
            logits = _empty(16, 151936, dtype=dtype)
            yield from trace(f"{str(dtype)[6:]} k={k}", topk.topk_logsumexp, logits, k)
    keyed = (_empty(2), _empty(16), _empty(1, dtype=torch.float32), 8)
    logits = _empty(16, 151936, dtype=torch.bfloat16)
    yield from trace("bfloat16 k=8 keyed", topk.keyed_topk, logits, *keyed)
    yield from trace("V=64", accept.accept, _empty(64), _empty(64), _empty(64))
    for dtype in (torch.bfloat16, torch.float32):
        cache = _empty(1, 8, 4096, 128, dtype=dtype)
        label = f"{str(dtype)[6:]} D=128"
        yield from trace(label, kv.kv_commit, [cache], _empty(64), _empty(64))


def compile_launch(launch: Launch, capability: int) -> Compiled:
    """Compiles one launch, specialised as Triton specialises its arguments."""
    function, config = launch.kernel.fn, launch.kernel.configs[0]
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(function.params):
        value = launch.arguments[parameter.name]
        divisible = True
        if isinstance(value, Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        elif parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            divisible = False
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
            divisible = isinstance(value, int) and value % 16 == 0
        if divisible:
            attributes[(place,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(function, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    registers, spilled = _ptxas(compiled.asm["ptx"], capability)
    layouts = re.findall(r"#ttg\.nvidia_mma<.*?>", compiled.asm["ttgir"])
    return Compiled(
        launch, capability, registers, spilled, compiled.metadata.shared, frozenset(layouts)
    )


def _ptxas(ptx: str, capability: int) -> tuple[int, int]:
    """Registers per thread, and bytes of spill stores and loads."""
    name = f"sm_{capability}" + "a" * (capability == 90)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        done = subprocess.run(
            [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={name}", str(source),
             "-o", str(Path(scratch) / "kernel.cubin")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    found = re.search(r"Used (\d+) registers", done.stderr)
    if done.returncode != 0 or found is None:
        raise CheckFailed(f"ptxas for {name}: {done.stderr.strip()}")
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    return int(found[1]), sum(map(int, spills))


def check(compiled: list[Compiled]) -> list[str]:
    """What is wrong, one line each."""
    faults = []
    products: dict[tuple[str, int], dict[str, frozenset[str]]] = {}
    for item in compiled:
        where = f"{item.launch.name} ({item.launch.label}), capability {item.capability / 10:.1f}"
        if item.spilled_bytes > 0:
            faults.append(f"{where}: {item.spilled_bytes} bytes of spills, wanted 0")
        limit = CAPABILITIES[item.capability]
        if item.shared_bytes > limit:
            faults.append(f"{where}: {item.shared_bytes} bytes shared, at most {limit}")
        if item.launch.name in ("prefix_kernel", "finish_kernel"):
            key = (item.launch.label, item.capability)
            products.setdefault(key, {})[item.launch.name] = item.layouts
    for (label, capability), layouts in products.items():
        if len(set(layouts.values())) > 1:
            faults.append(
                f"tree_attention ({label}), capability {capability / 10:.1f}: the kernels lay "
                f"their products out differently: {layouts}"
            )
    return faults


def table(compiled: list[Compiled]) -> str:
    """Markdown: one row a launch; registers / spilled bytes / shared KiB for each capability."""
    heads = [f"{capability / 10:.1f}" for capability in CAPABILITIES]
    lines = [
        "| kernel | variant | " + " | ".join(heads) + " |",
        "|---|---|" + "---|" * len(heads),
    ]
    rows: dict[tuple[str, str], list[str]] = {}
    for item in compiled:
        cell = f"{item.registers} / {item.spilled_bytes} / {item.shared_bytes / 1024:.3g}"
        rows.setdefault((item.launch.name, item.launch.label), []).append(cell)
    lines += [
        f"| `{name}` | {label} | " + " | ".join(c) + " |" for (name, label), c in rows.items()
    ]
    return "\n".join(lines)


def main() -> int:
    """`python -m ygg_kernels.triton.compile_check`."""
    parser = argparse.ArgumentParser(prog="ygg_kernels.triton.compile_check", description=__doc__)
    parser.add_argument("--only", default="", help="kernels whose name and variant contain this")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        error = YggError("TRITON_INTERPRET is set, so there is nothing to compile", "unset it")
        print(f"ERROR {error.message}\nTIP {error.tip}", file=sys.stderr)
        return error.exit_code
    with FakeTensorMode():
        wanted = [each for each in launches() if options.only in f"{each.name} {each.label}"]
    compiled = []
    for number, launch in enumerate(wanted, 1):
        print(f"{number}/{len(wanted)} {launch.name} {launch.label}", file=sys.stderr)
        compiled += [compile_launch(launch, capability) for capability in CAPABILITIES]
    print(table(compiled))
    print(f"\ntorch {torch.__version__}, triton {triton.__version__}")
    faults = check(compiled)
    for fault in faults:
        print(f"ERROR {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
