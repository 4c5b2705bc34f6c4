"""Tree decoding emits what plain decoding emits, bit for bit, and plain decoding what transformers
emits.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from drafting import fill, full_tree_ids, random_tree

from yggrt.core.tree import TokenTree
from yggrt.loading import load
from yggrt.session import Session

TREES = [
    "sequence:depth=1",
    "sequence:depth=8",
    "static:parents=0/0/1/1/2/2/3/3/4/4/5/5/6/6",
    "egt:width=8,depth=1,children=8,verify=9",
    "egt:width=4,depth=4,children=8,verify=16,frontier=global",
    "egt:width=4,depth=4,children=8,verify=16,frontier=level",
    "egt:width=8,depth=4,children=16,verify=16",
    "egt:width=9,depth=7,children=18,verify=64",
]


@pytest.fixture(scope="module")
def session(tiny_bundle: Path) -> Session:
    return load(tiny_bundle)


def prompts(num: int, vocab_size: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = random.Random(5)
    return [
        [rng.randrange(3, vocab_size) for _ in range(lengths[i % len(lengths)])]
        for i in range(num)
    ]


@pytest.mark.tiny
def test_plain_decoding_says_what_transformers_says(session: Session, tiny_reference: Any) -> None:
    for prompt in prompts(6, 400, (1, 2, 3, 7, 16, 40)):
        done = session.generate(prompt, max_tokens=40, plain=True, ignore_eos=True)
        assert done.ids == bundles.greedy_ids(tiny_reference, prompt, 40)


@pytest.mark.tiny
@pytest.mark.parametrize("tree", TREES)
def test_trees_say_what_plain_decoding_says(session: Session, tree: str) -> None:
    for prompt in prompts(6, 400, (1, 2, 3, 4, 5, 30)):
        plain = session.generate(prompt, max_tokens=40, plain=True, ignore_eos=True).ids
        ngram = session.generate(prompt, max_tokens=40, tree=tree, gated=False, ignore_eos=True)
        assert ngram.ids == plain
        assert full_tree_ids(session, tree, prompt, plain) == plain


@pytest.mark.tiny
def test_rows_of_random_trees_have_the_bits_of_plain_decoding(session: Session) -> None:
    graphs = session.graphs
    rng = random.Random(11)
    for trial in range(40):
        length = rng.choice([0, 1, 5, 15, 16, 63, 64, 100])
        num_rows = rng.choice([2, 3, 4, 5, 9, 16, 17, 40, 64])
        prefix = [rng.randrange(400) for _ in range(length)]
        tree = random_tree(rng, num_rows, 400, max_depth=8)
        cache = graphs.new_cache()
        fill(graphs, cache, prefix)
        out = graphs.verify(cache, tree, length)
        row = rng.randrange(num_rows)
        path = tree.path(row)
        alone = graphs.new_cache()
        fill(graphs, alone, prefix)
        for depth, node in enumerate(path):
            single = graphs.verify(alone, TokenTree.single(tree.tokens[node]), length + depth)
            assert torch.equal(single.logits[0], out.logits[node]), (trial, node)
            assert torch.equal(single.hidden[0], out.hidden[node]), (trial, node)
            assert torch.equal(single.hazards[0], out.hazards[node]), (trial, node)
            assert single.ids[0] == out.ids[node]


@pytest.mark.tiny
def test_padding_never_shows(session: Session) -> None:
    """Unused rows of a larger graph leave finite values and the bits of the tree's own rows."""
    graphs = session.graphs
    tree = TokenTree((5, 6, 7), (-1, 0, 0), (1.0, 0.5, 0.4))
    cache = graphs.new_cache()
    fill(graphs, cache, list(range(3, 40)))
    small = graphs.verify(cache, tree, 37)
    padded = TokenTree((5, 6, 7, *[9] * 20), (-1, 0, 0, *[0] * 20), (1.0, 0.5, 0.4, *[0.1] * 20))
    large = graphs.verify(cache, padded, 37)
    assert torch.isfinite(large.logits).all()
    assert torch.equal(small.logits, large.logits[:3])


@pytest.mark.tiny
def test_the_context_limit_ends_both_the_same_way(session: Session) -> None:
    limit = session.graphs.max_model_len
    for length in (limit - 1, limit - 2, limit - 9):
        prompt = prompts(1, 400, (length,))[0]
        plain = session.generate(prompt, max_tokens=100, plain=True, ignore_eos=True)
        tree = session.generate(
            prompt, max_tokens=100, tree=TREES[4], gated=False, ignore_eos=True
        )
        assert tree.ids == plain.ids
        assert len(plain.ids) == limit - length
        assert plain.finish_reason == tree.finish_reason == "length"
        assert full_tree_ids(session, TREES[4], prompt, plain.ids) == plain.ids


@pytest.mark.tiny
def test_one_thread_and_many_give_the_same_bits(session: Session) -> None:
    graphs = session.graphs
    tree = random_tree(random.Random(3), 16, 400, max_depth=5)
    before = torch.get_num_threads()
    outputs = []
    try:
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            cache = graphs.new_cache()
            fill(graphs, cache, list(range(3, 103)))
            outputs.append(graphs.verify(cache, tree, 100).logits)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.tiny
def test_two_bundles_with_the_same_operators_open_in_one_process() -> None:
    first, second = (load(bundles.tiny(graphs)) for graphs in ("static", "dynamic"))
    ids = [first.generate([5, 6, 7], max_tokens=12, ignore_eos=True).ids]
    ids += [second.generate([5, 6, 7], max_tokens=12, ignore_eos=True).ids]
    assert ids[0] == ids[1]
