"""Trees of the device's programs against the host's policy, pruning, acceptance and commit: 1,000
random ones, greedy and sampled."""

from __future__ import annotations

import pytest
import torch
from device_programs import Lab

from yggrt.core.accept import accept, greedy
from yggrt.core.device.passes import verify_inputs
from yggrt.core.device.pruning import prune as prune_on_device
from yggrt.core.tree import TokenTree, clip_depth, prune
from yggrt.policies.egt import grow
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler

NUM_TREES = 1000
SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_random_tree_is_the_hosts(temperature: float, share: int) -> None:
    accepted = set()
    for seed in range(share, NUM_TREES, SHARES):
        accepted.add(check(Lab.random(seed), temperature, seed))
    # Else the walk was hardly tried.
    assert {0, 1, 2, 3} <= accepted


def check(lab: Lab, temperature: float, seed: int) -> int:
    shape, graphs, drafter = lab.shape, lab.graphs(), lab.new_drafter()
    ids = [*lab.prompt, seed % lab.verifier.vocab]
    length = len(ids) - 1
    params = SamplingParams(temperature=temperature)
    sampler = Sampler(params, ids, vocab_size=lab.verifier.vocab, seed=seed)
    drafter.start(ids)
    drafter.couple(sampler.noise)
    whole = grow(ids[-1], lab.spec, drafter, lab.min_score)
    whole = clip_depth(whole, graphs.max_model_len - length - 2)
    wanted = prune(whole, shape.rows)

    context, draft_caches, caches = lab.begin(ids)
    host_cache = caches[0].clone()
    program, tables, settings = lab.program(), lab.tables(), lab.settings(temperature, seed)
    drafted = program.draft(context, settings, tables.calibration, draft_caches)
    there = (drafted.scores >= 0).nonzero().squeeze(1).tolist()
    assert same(whole, [drafted.tokens[there], drafted.scores[there]])
    pruned = prune_on_device(drafted, shape.rows)
    num = wanted.num_nodes
    assert pruned.num_rows.tolist() == [num]
    assert same(wanted, [pruned.tokens[:num], pruned.scores[:num]])
    assert tuple(pruned.parents.tolist()) == wanted.parents + (-1,) * (shape.rows - num)
    inputs = verify_inputs(pruned, context.length, shape.max_model_len)
    assert inputs.mask[:num, :num].tolist() == wanted.ancestor_mask()
    assert not inputs.mask[:num, num:].any()
    assert torch.equal(inputs.mask[num:], torch.eye(shape.rows, dtype=torch.bool)[num:])
    places = [min(length + depth, shape.max_model_len - 1) for depth in wanted.depths]
    padding = [shape.max_model_len - 1] * (shape.rows - num)
    assert inputs.positions.tolist() == places + padding
    assert inputs.slots.tolist() == list(range(length, length + shape.rows))

    out = graphs.verify(host_cache, wanted, length)
    choose = sampler(out) if temperature else greedy(out)
    done = accept(wanted, choose, length + 1)
    graphs.commit(host_cache, length, done.path)
    after, report = program(context, settings, tables, draft_caches, caches)
    emitted, (num_emitted, num_rows, *_) = report[: shape.depth + 1], report[shape.depth + 1 :]
    assert num_emitted == len(done.tokens)
    assert num_rows == num
    assert tuple(emitted.tolist()) == done.tokens + (-1,) * (shape.depth + 1 - num_emitted)
    ids += done.tokens
    begins = (ids[-2], ids[-1], len(ids) - 1)
    assert (after.previous.item(), after.root.item(), after.length.item()) == begins
    committed = len(ids) - 1
    assert torch.equal(caches[0][:, :, :committed], host_cache[:, :, :committed])
    return len(done.path)


def same(tree: TokenTree, found: list[torch.Tensor]) -> bool:
    """The tree's tokens and its scores, to the last bit."""
    return (tree.tokens, tree.scores) == tuple(tuple(one.tolist()) for one in found)
