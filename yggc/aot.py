"""One adapted model at one row count becomes one compiled graph. `profile` and `freeze` both use
what comes out here.

Compiles from fake weights: a graph depends on the model's shape, never on its values. Facts of
AOTInductor that the settings below rely on are in docs/architecture.md.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from yggc.errors import StageError
from yggc.heads import Medusa, Taps
from yggc.workdir import hash_inputs
from yggrt.core.formats import cache_shapes
from yggrt.core.schema import PREFILL_KINDS, GraphKind, KvLayer, TensorSpec

# Graph code holds elementwise glue only; the operators carry the wide vectors. One level keeps
# graphs portable.
GLUE_MARCH = "x86-64-v3"
GLUE_ISA = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")


class GraphJob(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a compiled graph depends on. `min_rows == max_rows` is a static graph;
    `num_columns` is the size of the mask's second dimension, 0 for as many as rows; `formats`
    names the matrices that are not in `weight_dtype`; `taps` and `medusa` as for `adapt`.
    """

    name: str
    kind: GraphKind
    min_rows: int
    max_rows: int
    num_columns: int
    config: dict[str, Any]
    num_slots: int
    max_depth: int
    weight_dtype: str
    formats: dict[str, str]
    activations: str
    kv_dtype: str
    operators: str
    namespace: str
    torch_version: str
    transformers_version: str
    compiler_digest: str
    taps: Taps | None = None
    medusa: Medusa | None = None

    @property
    def key(self) -> str:
        """Content hash: equal keys give equal graphs. Where the operators' library lies does not
        matter.
        """
        parts = {k: v for k, v in msgspec.to_builtins(self).items() if k != "operators"}
        return hash_inputs(parts)


class CompiledGraph(msgspec.Struct, frozen=True, kw_only=True):
    """What a compile leaves in its directory beside `graph.so` and `graph.json`."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[str, ...]
    kv_layers: tuple[KvLayer, ...]
    seconds: float


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def compiler_digest() -> str:
    """Digest of the code that turns a model into a graph, so that changing it recompiles."""
    parts = ("adapt", "eagle", "eagle3", "fuse", "matrices", "medusa", "packing", "taps")
    return source_digest("aot.py", *(f"models/{part}.py" for part in parts))


def packing_digest() -> str:
    """As `compiler_digest`, of the code that packs weights."""
    return source_digest("models/blocks.py", "models/head.py", "models/weights.py")


def source_digest(*parts: str) -> str:
    """Digest of modules of this package; comments and docstrings are left out."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for part in parts:
        tree = ast.parse((root / part).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_docstring(body[0]):
                del body[0]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def _inputs(job: GraphJob, kv_layers: tuple[KvLayer, ...], feature_size: int) -> list[Any]:
    """Example inputs of a graph; the caches' memory is reserved and never touched."""
    import torch

    from yggrt.weights import TORCH_DTYPES

    rows = job.max_rows if job.min_rows == job.max_rows else max(job.min_rows, 4)
    inputs = [
        torch.zeros(rows, dtype=torch.int64),
        torch.zeros(rows, dtype=torch.int64),
        torch.arange(rows),
        torch.zeros(1, dtype=torch.int64),
        torch.ones(rows, job.num_columns or rows, dtype=torch.bool),
    ]
    if job.kind in PREFILL_KINDS:
        inputs.append(torch.zeros(1, dtype=torch.int64))
    if feature_size:
        inputs.append(torch.zeros(rows, feature_size))
    for dtype, shape in cache_shapes(kv_layers, job.num_slots, job.kv_dtype):
        inputs.append(torch.zeros(shape, dtype=TORCH_DTYPES[dtype]))
    return inputs


def _describe(names: list[str], tensors: list[Any]) -> tuple[TensorSpec, ...]:
    """Specs of tensors, a symbolic size written as -1."""
    return tuple(
        TensorSpec(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            shape=tuple(size if isinstance(size, int) else -1 for size in tensor.shape),
            stride=tuple(step if isinstance(step, int) else -1 for step in tensor.stride()),
        )
        for name, tensor in zip(names, tensors, strict=True)
    )


def input_names(kind: GraphKind, num_layers: int, *, features: bool = False) -> list[str]:
    """Names of a graph's inputs, in order."""
    caches = [f"{part}_{layer}" for layer in range(num_layers) for part in ("keys", "values")]
    row = ["row"] if kind in PREFILL_KINDS else []
    beside = ["features"] if features else []
    return ["tokens", "positions", "slots", "length", "mask", *row, *beside, *caches]


# Where torch's loader looks inside an unpacked package.
GRAPH_FOLDER = "data/aotinductor/model"
OUTPUT_NAMES = ["ids", "logits", "hidden", "hazards"]


@contextlib.contextmanager
def _inductor_settings(scratch: Path, c_shims: dict[Any, list[str]]) -> Iterator[None]:
    """Settings of one compile; caches go to `scratch`, so that a killed build leaves nothing
    behind elsewhere.
    """
    import torch._inductor.config as inductor

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch)
    changes: dict[str, Any] = {
        # Inductor's parallel reductions would make a row's bits depend on the thread count.
        "cpp.threads": 1,
        "aot_inductor.package_constants_in_so": False,
        "freezing": False,
        "aot_inductor.custom_ops_to_c_shims": c_shims,
        # A small tensor would otherwise be inlined into the code, and a graph must not depend on
        # values.
        "always_keep_tensor_constants": True,
        # Names that would else be hashes of commands with this machine's folders in them.
        "aot_inductor.model_name_for_generated_files": "graph",
        "aot_inductor.enable_line_tables": False,
        "cpp.cxx": (None, str(_compiler(scratch))),
        # They are kept outside `scratch`, 130 MB each, by a key that has this compile's folder in
        # it: none would serve twice.
        "aot_inductor.precompile_headers": False,
        # Worker processes are ours; Inductor's own pool would outlive a kill.
        "compile_threads": 1,
        "fx_graph_cache": False,
    }
    if os.uname().machine == "x86_64":
        changes |= {"cpp.simdlen": 256, "cpp.march": GLUE_MARCH}
    # A setting that this torch does not know raises: without one of them graphs would be wrong.
    with inductor.patch(changes):
        yield


def _compiler(scratch: Path) -> Path:
    """A command that compiles as the C++ compiler does, and says of no file where it lay: names of
    files are part of what the code says when it fails."""
    import torch

    folders = {scratch: "graph", Path(torch.__file__).parent / "include": "torch"}
    flags = [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]
    command = scratch / "g++"
    compiler = shlex.quote(os.environ.get("CXX", "g++"))
    command.write_text(f'#!/bin/sh\nexec {compiler} {shlex.join(flags)} "$@"\n')
    command.chmod(0o700)
    return command


def export(job: GraphJob, operators: Any) -> tuple[Any, Any, list[Any]]:
    """Adapts and exports: (exported program, adapted skeleton, example inputs)."""
    import torch

    from yggc.models.adapt import adapt
    from yggc.models.fuse import (
        compute_angles_once,
        gate_by_operator,
        join_linears,
        refuse_foreign_products,
    )

    adapted = adapt(
        job.config,
        operators,
        job.max_depth,
        job.weight_dtype,
        job.formats,
        job.activations,
        job.taps,
        job.medusa,
    )
    module = adapted.static_forward(job.kind)
    inputs = _inputs(job, adapted.kv_layers, adapted.feature_size)
    dynamic_shapes: Any = None
    if job.min_rows != job.max_rows:
        rows = torch.export.Dim("rows", min=job.min_rows, max=job.max_rows)
        by_row: list[Any] = [{0: rows}, {0: rows}, {0: rows}, None, {0: rows, 1: rows}]
        dynamic_shapes = (*by_row, tuple(None for _ in inputs[5:]))
    with torch.no_grad():
        program = torch.export.export(
            module, tuple(inputs), strict=False, dynamic_shapes=dynamic_shapes
        )
    refuse_foreign_products(program)
    join_linears(program, operators)
    gate_by_operator(program, operators)
    compute_angles_once(program, operators)
    return program, adapted, inputs


def compile_graph(job: GraphJob, out: Path) -> CompiledGraph:
    """Exports and compiles `job` into `out`: graph.so, graph.json, constants.pt (values the graph
    brings itself).

    Raises SourceError for a model that cannot be exact, StageError if Inductor fails.
    """
    import time

    import torch
    from torch._inductor import aoti_compile_and_package
    from ygg_kernels.ops import load_library

    started = time.perf_counter()
    operators = load_library(job.operators, job.namespace)
    program, adapted, inputs = export(job, operators)
    with (
        tempfile.TemporaryDirectory(dir=out.absolute()) as scratch,
        _inductor_settings(Path(scratch), operators.c_shims()),
    ):
        package = Path(scratch, "graph.pt2")
        try:
            aoti_compile_and_package(program, package_path=str(package))
        except Exception as error:
            raise StageError(
                f"graph '{job.name}': TorchInductor failed: {str(error).strip().splitlines()[0]}",
                "run again with -v for its traceback; the model may hold what it cannot compile",
            ) from error
        _extract(package, out)
    fqns = _constant_names(out)
    own = {name: value for name, value in _own_constants(program).items() if name in fqns}
    torch.save(own, out / "constants.pt")
    results = [node.meta["val"] for node in program.graph.output_node().args[0]][
        -len(OUTPUT_NAMES) :
    ]
    return CompiledGraph(
        inputs=_describe(
            input_names(job.kind, len(adapted.kv_layers), features=adapted.feature_size > 0),
            inputs,
        ),
        outputs=_describe(OUTPUT_NAMES, results),
        constants=tuple(sorted(fqns)),
        kv_layers=adapted.kv_layers,
        seconds=time.perf_counter() - started,
    )


def _extract(package: Path, out: Path) -> None:
    """Takes the library and its descriptions out of Inductor's package; sources stay behind."""
    target = out / GRAPH_FOLDER
    target.mkdir(parents=True)
    with zipfile.ZipFile(package) as archive:
        for suffix in (".so", ".json", "_metadata.json"):
            [name] = [name for name in archive.namelist() if name.endswith(f".wrapper{suffix}")]
            (target / f"graph.wrapper{suffix}").write_bytes(archive.read(name))


def _constant_names(out: Path) -> set[str]:
    """Names of the constants that a compiled graph wants."""
    from yggrt.graphs import open_loader

    return set(open_loader(out).get_constant_fqns())


def _own_constants(program: Any) -> dict[str, Any]:
    """Buffers and lifted constants of an exported program: values that come from code, not from a
    checkpoint.
    """
    values = {**dict(program.named_buffers()), **program.constants}
    return {name: value.detach().clone() for name, value in values.items()}


def main(argv: list[str]) -> None:
    """Worker process: `python -m yggc.aot JOB.json OUT_DIR`; errors go to OUT_DIR/error.json."""
    from yggrt.core.errors import YggError

    job_path, out = Path(argv[0]), Path(argv[1])
    job = msgspec.json.decode(job_path.read_bytes(), type=GraphJob)
    try:
        compiled = compile_graph(job, out)
    except YggError as error:
        fields = {"kind": type(error).__name__, "message": error.message, "tip": error.tip}
        (out / "error.json").write_bytes(msgspec.json.encode(fields))
        raise SystemExit(error.exit_code) from error
    (out / "compiled.json").write_bytes(msgspec.json.encode(compiled))


if __name__ == "__main__":
    main(sys.argv[1:])
