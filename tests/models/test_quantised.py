"""Compiled graphs with quantised matrices, int8 activations and smaller caches, against
transformers over the values that the blocks stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import cycle
from typing import Any

import bundles
import pytest
import torch
from blocks import QUANTISED, random_blocks
from transformers import LlamaConfig, LlamaForCausalLM
from ygg_kernels.build import build_library
from ygg_kernels.ops import load_library

from yggc.aot import GraphJob, compiler_digest
from yggc.errors import SourceError
from yggc.models.adapt import Adapted, adapt
from yggc.models.blocks import pack_blocks, unpack_blocks
from yggc.models.matrices import find_matrices
from yggc.models.weights import packed_tensors, weight_name
from yggc.stages.adapt import check_caches
from yggc.stages.graphs import compile_job, open_built
from yggc.workdir import WorkDir
from yggrt.core.schema import KvLayer, ModelInfo
from yggrt.core.tree import TokenTree
from yggrt.graphs import CompiledPass
from yggrt.kv import KvCache

pytestmark = pytest.mark.tiny
ROWS, NUM_SLOTS = 5, 64
CONFIG = LlamaConfig(
    vocab_size=203,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)


class Case:
    """One model whose matrices go through all formats in turn, as transformers has it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: Any = LlamaForCausalLM._from_config(CONFIG, attn_implementation="eager").eval()
        self.formats: dict[str, str] = {}
        self.blocks: dict[str, Any] = {}
        names = cycle(QUANTISED)
        for seed, (name, matrix) in enumerate(find_matrices(self.model).items()):
            form = next(names)
            self.formats[name] = form
            rows = random_blocks(form, matrix.num_outputs, matrix.num_inputs, seed)
            self.blocks[name] = rows
            values = unpack_blocks(pack_blocks(rows, form, name), form, matrix.num_outputs)
            self.model.get_parameter(name).data = values
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(3, CONFIG.vocab_size, (20,), generator=generator).tolist()
        with torch.no_grad():
            self.logits = self.model(torch.tensor([self.ids])).logits[0]
        self.library = build_library(bundles.WORK / "operators")
        self.operators = load_library(self.library.path, self.library.namespace)

    def adapted(self, activations: str) -> Adapted:
        return adapt(CONFIG.to_dict(), self.operators, 8, "float32", self.formats, activations)

    def tensors(self, adapted: Adapted) -> dict[str, torch.Tensor]:
        state = self.model.state_dict()
        return dict(packed_tensors(adapted, state.__getitem__, "float32", self.blocks.__getitem__))

    def cache(self, adapted: Adapted, kv_dtype: Any) -> KvCache:
        return KvCache(
            ModelInfo(
                architecture="llama", vocab_size=CONFIG.vocab_size, hidden_size=256,
                num_parameters=0, max_model_len=NUM_SLOTS - ROWS, num_slots=NUM_SLOTS,
                kv_dtype=kv_dtype, kv_layers=adapted.kv_layers, eos_ids=(),
                weight_dtype="float32", max_depth=8,
            )
        )  # fmt: skip

    def compiled(self, activations: str, kv_dtype: str) -> CompiledPass:
        bundles.WORK.mkdir(parents=True, exist_ok=True)
        job = GraphJob(
            name="verify",
            kind="verify",
            min_rows=ROWS,
            max_rows=ROWS,
            num_columns=0,
            config=CONFIG.to_dict(),
            num_slots=NUM_SLOTS,
            max_depth=8,
            weight_dtype="float32",
            formats=self.formats,
            activations=activations,
            kv_dtype=kv_dtype,
            operators=str(self.library.path.absolute()),
            namespace=self.library.namespace,
            torch_version=version("torch"),
            transformers_version=version("transformers"),
            compiler_digest=compiler_digest(),
        )
        folder = WorkDir(bundles.WORK).stage("graph", job.key).ensure(partial(compile_job, job))
        built = open_built(job, folder)
        adapted = self.adapted(activations)
        tensors = self.tensors(adapted)
        constants = {
            name: built.own[name]
            if name in built.own
            else tensors[weight_name(adapted.tied, name)]
            for name in built.compiled.constants
        }
        spec = built.spec({name: name for name in constants})
        return CompiledPass(spec, built.folder, constants)

    def decode(self, run: Callable[[TokenTree, int], torch.Tensor]) -> torch.Tensor:
        """Logits of three chains, then of a tree with a wrong sibling, at positions 0 to 18."""
        found = []
        for start in range(0, 15, ROWS):
            chain = TokenTree(
                tuple(self.ids[start : start + ROWS]), (-1, 0, 1, 2, 3), (1.0,) * ROWS
            )
            found.append(run(chain, start))
        ids = self.ids
        tree = TokenTree((ids[15], 7, *ids[16:19]), (-1, 0, 0, 2, 3), (1.0,) * ROWS)
        found.append(run(tree, 15)[[0, 2, 3, 4]])
        return torch.cat(found)


def test_heads_that_int8_rows_cannot_hold_are_refused() -> None:
    layers = (KvLayer(num_heads=2, key_dim=16, value_dim=18),)
    check_caches("bfloat16", layers)
    with pytest.raises(SourceError, match="heads have 18 values, wanted a multiple of 4"):
        check_caches("int8", layers)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest, as a share of the largest logit."""
    return float((found - wanted[: len(found)]).abs().max() / wanted.abs().max())


def test_float_activations_multiply_the_dequantised_values(case: Case) -> None:
    """All formats in one graph, several of them in one call."""
    adapted = case.adapted("float32")
    cache = case.cache(adapted, "float32")
    run = case.compiled("float32", "float32")
    found = case.decode(lambda tree, length: run.run(cache, tree, length)[1])
    assert difference(found, case.logits) <= 1e-4


def test_int8_activations_are_near_and_not_the_same(case: Case) -> None:
    adapted = case.adapted("int8")
    cache = case.cache(adapted, "float32")
    run = case.compiled("int8", "float32")
    found = case.decode(lambda tree, length: run.run(cache, tree, length)[1])
    assert 1e-4 < difference(found, case.logits) < 0.05


@pytest.mark.parametrize(("kv_dtype", "bound"), [("bfloat16", 0.02), ("int8", 0.05)])
def test_smaller_caches(kv_dtype: str, bound: float, case: Case) -> None:
    adapted = case.adapted("float32")
    cache = case.cache(adapted, kv_dtype)
    run = case.compiled("float32", kv_dtype)
    found = case.decode(lambda tree, length: run.run(cache, tree, length)[1])
    assert 1e-6 < difference(found, case.logits) < bound
    [keys, *_] = cache.tensors
    assert keys.dtype is (torch.bfloat16 if kv_dtype == "bfloat16" else torch.uint8)
    assert keys.shape[3] == (64 if kv_dtype == "bfloat16" else 68)
    assert keys[:, :, :20].any(dim=3).all(), "the graph writes the caches that it is given"
