"""Every covered family, adapted, exported and run from its compiled graph, against transformers
eager.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from typing import Any

import bundles
import pytest
import torch
from families import families
from transformers import AutoModelForCausalLM
from ygg_kernels.build import build_library
from ygg_kernels.ops import load_library

from yggc.aot import GraphJob, compiler_digest
from yggc.errors import SourceError
from yggc.models.adapt import Adapted, adapt
from yggc.models.weights import packed_tensors, weight_name
from yggc.stages.graphs import BuiltGraph, compile_job, open_built
from yggc.workdir import WorkDir
from yggrt.core.schema import ModelInfo
from yggrt.core.tree import TokenTree
from yggrt.graphs import CompiledPass
from yggrt.kv import KvCache

ROWS = 5
NUM_SLOTS = 64
FAMILIES = families()


@pytest.fixture(scope="module")
def operators() -> Any:
    library = build_library(bundles.WORK / "operators")
    return library, load_library(library.path, library.namespace)


@pytest.fixture(scope="module")
def graphs(operators: Any) -> dict[str, Future[BuiltGraph]]:
    """One graph a family, compiled two at a time while the first tests already run."""
    library, _ = operators
    bundles.WORK.mkdir(parents=True, exist_ok=True)
    work = WorkDir(bundles.WORK)
    # Not in the threads: CPython 3.11 cannot parse while another thread is deep in a recursion.
    digest = compiler_digest()

    def make(config: Any) -> BuiltGraph:
        job = GraphJob(
            name="verify",
            kind="verify",
            min_rows=ROWS,
            max_rows=ROWS,
            num_columns=0,
            config=config.to_dict(),
            num_slots=NUM_SLOTS,
            max_depth=8,
            weight_dtype="float32",
            formats={},
            activations="float32",
            kv_dtype="float32",
            operators=str(library.path.absolute()),
            namespace=library.namespace,
            torch_version=version("torch"),
            transformers_version=version("transformers"),
            compiler_digest=digest,
        )
        folder = work.stage("graph", job.key).ensure(partial(compile_job, job))
        return open_built(job, folder)

    pool = ThreadPoolExecutor(2)
    return {name: pool.submit(make, config) for name, config in FAMILIES.items()}


def open_pass(built: BuiltGraph, adapted: Adapted, state: dict[str, torch.Tensor]) -> CompiledPass:
    tensors = dict(packed_tensors(adapted, state.__getitem__, "float32"))
    constants = {
        name: built.own[name] if name in built.own else tensors[weight_name(adapted.tied, name)]
        for name in built.compiled.constants
    }
    return CompiledPass(built.spec({name: name for name in constants}), built.folder, constants)


@pytest.mark.tiny
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str, graphs: dict[str, Future[BuiltGraph]], operators: Any) -> None:
    """Three chains of five rows, the last beyond a window of eight, then a tree: logits within
    1e-4 of eager.
    """
    config = FAMILIES[name]
    torch.manual_seed(0)
    reference: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    # Initial weights are tiny, and logits near zero would agree with anything.
    for parameter in reference.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    adapted = adapt(config.to_dict(), operators[1], 8, "float32")
    run = open_pass(graphs[name].result(), adapted, reference.state_dict())
    model = ModelInfo(
        architecture=name, vocab_size=config.vocab_size,
        hidden_size=config.hidden_size, num_parameters=0,
        max_model_len=NUM_SLOTS - ROWS, num_slots=NUM_SLOTS, kv_dtype="float32",
        kv_layers=adapted.kv_layers, eos_ids=(), weight_dtype="float32", max_depth=8,
    )  # fmt: skip
    cache = KvCache(model)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, config.vocab_size, (20,), generator=generator).tolist()
    with torch.no_grad():
        wanted = reference(torch.tensor([ids])).logits[0]
    for start in range(0, 15, ROWS):
        chain = TokenTree(tuple(ids[start : start + ROWS]), (-1, 0, 1, 2, 3), (1.0,) * ROWS)
        found = run.run(cache, chain, start)[1]
        assert (found - wanted[start : start + ROWS]).abs().max() <= 1e-4
    # A wrong sibling in front of the right path: rows 0, 2, 3, 4 are positions 15 to 18.
    tree = TokenTree((ids[15], 7, *ids[16:19]), (-1, 0, 0, 2, 3), (1.0,) * ROWS)
    found = run.run(cache, tree, 15)[1]
    assert (found[[0, 2, 3, 4]] - wanted[15:19]).abs().max() <= 1e-4
    assert wanted.abs().max() > 0.1


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "dynamic",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(
    change: dict[str, Any], words: str, operators: Any
) -> None:
    config = FAMILIES["llama"].to_dict() | change
    with pytest.raises(SourceError, match=words):
        adapt(config, operators[1], 8, "float32")


@pytest.mark.tiny
def test_shapes_are_known_after_a_runtime_loaded_the_operators() -> None:
    """In a process of its own, since operators stay loaded."""
    bundle = bundles.tiny("static")
    program = (
        "import sys, torch, yggrt\n"
        "from pathlib import Path\n"
        "from ygg_kernels.build import build_library\n"
        "from ygg_kernels.ops import load_library\n"
        "yggrt.load(sys.argv[1])\n"
        "library = build_library(Path(sys.argv[2]))\n"
        "operators = load_library(library.path, library.namespace)\n"
        "ids = torch.zeros(3, dtype=torch.int64, device='meta')\n"
        "rows = operators.embedding(ids, torch.empty(2, 8, 16, device='meta'), 20, 0)\n"
        "assert rows.shape == (3, 8)\n"
    )
    command = [sys.executable, "-c", program, str(bundle), str(bundles.WORK / "operators")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
