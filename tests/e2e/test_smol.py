"""SmolLM2-135M-Instruct through its bundle: real weights and graphs, transformers beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from drafting import fill, full_tree_ids

from yggrt.bundle import Bundle
from yggrt.core.tree import TokenTree
from yggrt.loading import load
from yggrt.prompts import Prompt, read_prompts
from yggrt.session import Session

pytestmark = pytest.mark.model

NUM_TOKENS = 32
TREES = [
    "sequence:depth=8",
    "egt:width=4,depth=4,children=8,verify=16",
    "egt:width=8,depth=4,children=16,verify=16",
]


@pytest.fixture(scope="module")
def session(smol_bundle: Path) -> Session:
    return load(smol_bundle)


@pytest.fixture(scope="module")
def reference(smol_bundle: Path) -> Any:
    return bundles.reference(bundles.smol_gguf())


def prompts() -> list[Prompt]:
    """Two of code and two of mathematics."""
    shipped = read_prompts(bundles.ROOT / "artifacts/prompts/bench.jsonl")
    by_kind = [[one for one in shipped if one.category == kind][:2] for kind in ("code", "math")]
    return [one for some in by_kind for one in some]


def test_tokens_equal_transformers_and_every_tree(session: Session, reference: Any) -> None:
    """A difference from transformers is allowed only where its top two lie within 1e-3."""
    assert session.text is not None
    for prompt in prompts():
        ids = prompt.encode(session.text)
        plain = session.generate(ids, max_tokens=NUM_TOKENS, plain=True, ignore_eos=True).ids
        wanted = bundles.greedy_ids(reference, ids, NUM_TOKENS)
        with torch.no_grad():
            if plain != wanted:
                at = next(i for i in range(NUM_TOKENS) if plain[i] != wanted[i])
                logits = reference(torch.tensor([ids + wanted[:at]])).logits[0, -1]
                top = logits.topk(2).values
                assert top[0] - top[1] <= 1e-3, (prompt.name, at, plain[at], wanted[at])
        for tree in TREES:
            done = session.generate(
                ids, max_tokens=NUM_TOKENS, tree=tree, gated=False, ignore_eos=True
            )
            assert done.ids == plain
            assert full_tree_ids(session, tree, ids, plain) == plain


def test_the_shipped_head_is_worth_its_passes(session: Session) -> None:
    """Greedy and sampled: the same tokens, more of them a pass, most by the head."""
    assert session.text is not None
    tree = "egt:width=4,depth=4,children=8,verify=16"
    options: dict[str, Any] = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    for temperature in (0.0, 0.8):
        passes = accepted = by_head = 0
        for prompt in prompts():
            ids = prompt.encode(session.text)
            options |= {"temperature": temperature, "seed": 5}
            plain = session.generate(ids, plain=True, **options)
            done = session.generate(ids, tree=tree, gated=False, **options)
            assert done.ids == plain.ids
            passes += done.stats.num_passes
            accepted += done.stats.accepted
            by_head += done.stats.accepted_first
        assert accepted / passes > 1.0
        assert by_head / passes > 0.8


def test_logits_of_the_dequantised_file(session: Session, reference: Any) -> None:
    """Rows of queries and keys come un-permuted out of the GGUF: cosine above 0.9999."""
    assert session.text is not None
    ids = prompts()[0].encode(session.text)[:48]
    graphs: Any = session.graphs
    cache = graphs.new_cache()
    fill(graphs, cache, ids[:32])
    chain = TokenTree(tuple(ids[32:48]), tuple(range(-1, 15)), (1.0,) * 16)
    found = graphs.verify(cache, chain, 32).logits
    with torch.no_grad():
        wanted = reference(torch.tensor([ids])).logits[0, 32:48]
    assert torch.nn.functional.cosine_similarity(found, wanted).min() > 0.9999
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_a_tied_matrix_is_stored_once(smol_bundle: Path) -> None:
    with Bundle.open(smol_bundle) as bundle:
        weights = bundle.manifest.weights
        parameters = bundle.manifest.model.num_parameters
        names = {name for graph in bundle.manifest.graphs for name in graph.constants.values()}
        assert names <= set(weights)
        # The head has some rows of the output matrix for itself; the embedding is the verifier's.
        own = [name for name in weights if not name.startswith("drafter.")]
        assert not any("lm_head" in name for name in own)
        assert "drafter.model.embed_tokens.weight" not in weights
        assert sum(weights[name].num_bytes for name in own) < 4 * parameters * 1.01
        packed = sum(spec.num_bytes for spec in weights.values())
        assert smol_bundle.stat().st_size < packed + 60_000_000


def test_no_length_compiles_anything(smol_bundle: Path) -> None:
    """Twenty prompt lengths in a process that has no compiler and may not import Inductor."""
    program = (
        "import sys\n"
        "sys.modules['torch._inductor'] = None\n"
        "import yggrt\n"
        "session = yggrt.load(sys.argv[1])\n"
        "for length in (*range(1, 16), 63, 64, 65, 100, 129):\n"
        "    session.generate(list(range(5, 5 + length)), max_tokens=3, ignore_eos=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(smol_bundle)],
        env={"PATH": "", "HOME": str(bundles.CACHE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
