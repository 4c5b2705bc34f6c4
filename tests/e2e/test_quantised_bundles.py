"""Quantised verifiers: stored blocks say what transformers says after dequantising, int8
activations and caches are one verifier whatever the tree, and a bundle says which one it is.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from drafting import fill, full_tree_ids, random_tree

from yggrt.core.tree import TokenTree
from yggrt.inspect import inspect_bundle
from yggrt.loading import load
from yggrt.session import Session

pytestmark = pytest.mark.tiny
TREES = ["sequence:depth=8", "egt:width=4,depth=4,children=8,verify=16,frontier=global"]


@pytest.fixture(scope="module")
def kept() -> Path:
    """Q4_1 blocks as stored, multiplied by float32 activations."""
    return bundles.tiny_quantised("keep", bundles.tiny_gguf(), "--activations", "float32")


@pytest.fixture(scope="module")
def rounded() -> Path:
    """Everything rounded: int4 weights, int8 activations, int8 caches."""
    flags = ("--quant", "int4", "--kv-dtype", "int8")
    return bundles.tiny_quantised("int4", bundles.tiny_model(), *flags)


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, 400) for _ in range(length)] for length in lengths]


def test_stored_blocks_say_what_transformers_says(kept: Path) -> None:
    session = load(kept)
    reference: Any = bundles.reference(bundles.tiny_gguf())
    for prompt in prompts((1, 2, 7, 30)):
        done = session.generate(prompt, max_tokens=40, plain=True, ignore_eos=True)
        assert done.ids == bundles.greedy_ids(reference, prompt, 40)


@pytest.mark.parametrize("name", ["kept", "rounded"])
def test_trees_say_what_plain_decoding_says(name: str, request: pytest.FixtureRequest) -> None:
    session: Session = load(request.getfixturevalue(name))
    for prompt in prompts((1, 3, 30)):
        plain = session.generate(prompt, max_tokens=40, plain=True, ignore_eos=True).ids
        for tree in TREES:
            done = session.generate(prompt, max_tokens=40, tree=tree, gated=False, ignore_eos=True)
            assert done.ids == plain
            assert full_tree_ids(session, tree, prompt, plain) == plain


@pytest.mark.parametrize("name", ["kept", "rounded"])
def test_rows_have_the_bits_of_plain_decoding(name: str, request: pytest.FixtureRequest) -> None:
    graphs: Any = load(request.getfixturevalue(name)).graphs
    rng = random.Random(11)
    for length in (0, 1, 15, 16, 63, 100):
        prefix = [rng.randrange(400) for _ in range(length)]
        tree = random_tree(rng, rng.choice([2, 4, 9, 16]), 400, max_depth=8)
        cache, alone = graphs.new_cache(), graphs.new_cache()
        for one in (cache, alone):
            fill(graphs, one, prefix)
        out = graphs.verify(cache, tree, length)
        for depth, node in enumerate(tree.path(tree.num_nodes - 1)):
            single = graphs.verify(alone, TokenTree.single(tree.tokens[node]), length + depth)
            assert torch.equal(single.logits[0], out.logits[node]), (length, node)


def test_a_bundle_says_which_verifier_it_is(kept: Path, rounded: Path) -> None:
    found = inspect_bundle(kept)
    assert found["verifier"] == "q4_1 as stored, float32 activations"
    assert (found["model"]["quant"], found["config"]["quant"]) == ("keep", "keep")
    found = inspect_bundle(rounded)
    assert (
        found["verifier"] == "q4_1 + q8_0 rounded from the source, int8 activations, "
        "int8 keys and values"
    )
    model = found["model"]
    assert (model["quant"], model["activations"], model["kv_dtype"]) == ("int4", "int8", "int8")
    # 2 layers, keys and values, 2 heads, 128 + 16 slots, 16 codes and a scale
    assert found["memory"]["kv_bytes"] == 2 * 2 * 2 * 144 * 20
    assert load(rounded).graphs.new_cache().num_bytes == found["memory"]["kv_bytes"]


def test_it_verifies(rounded: Path) -> None:
    command = [sys.executable, "-m", "yggrt", "verify", str(rounded)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
