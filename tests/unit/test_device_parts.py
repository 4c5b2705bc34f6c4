"""The device's programs one by one, each against its host counterpart or plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from device_programs import signed, top_shares
from ygg_kernels.triton.reference import accept as reference_accept
from ygg_kernels.triton.reference import topk_logsumexp

from yggrt.core.accept import accept
from yggrt.core.device.acceptance import drawn, emitted, walk
from yggrt.core.device.children import Calibration, children
from yggrt.core.device.choice import (
    DepthCosts,
    RowCosts,
    block_of,
    choose_depth,
    choose_num_rows,
)
from yggrt.core.device.committing import Context, following, moves
from yggrt.core.device.frontier import Drafted, grow
from yggrt.core.device.noise import Draw, stream_keys, uniform
from yggrt.core.device.pruning import prune
from yggrt.core.device.ranking import best_first
from yggrt.core.gumbel import gumbel
from yggrt.core.objective import Objective
from yggrt.core.objective import choose_num_rows as choose_num_rows_on_host
from yggrt.core.schema import DepthPredictor
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.core.tree import prune as prune_on_host
from yggrt.depth import DepthChoice
from yggrt.drafters import UNLIMITED, Candidate, Drafter
from yggrt.drafters.children import Children
from yggrt.policies.egt import grow as grow_on_host
from yggrt.sampling.draw import draw as draw_on_host
from yggrt.sampling.filters import Kept
from yggrt.sampling.noise import KeyedNoise

RNG_SEEDS = range(30)


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_order_is_that_of_a_sort(seed: int) -> None:
    rng = random.Random(seed)
    num = rng.randrange(1, 200)
    scores = [rng.choice((-1.0, 0.0, 0.25, rng.random())) for _ in range(num)]
    keys = [rng.randrange(6) << 32 | rng.randrange(3) for _ in range(num)]
    wanted = sorted(range(num), key=lambda place: (-scores[place], keys[place], place))
    assert best_first(doubles(*scores), torch.tensor(keys)).tolist() == wanted


@pytest.mark.parametrize("seed", RNG_SEEDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_children_are_the_hosts(seed: int, temperature: float) -> None:
    """Coverage, ids of columns, depths beyond the last that was measured, more noise pool than
    needed."""
    rng = random.Random(seed)
    vocab = rng.choice((5, 40, 2000))
    depths = [rng.randrange(6) for _ in range(rng.randrange(1, 6))]
    temperatures = [rng.choice((0.4, 1.0, 3.0)) for _ in range(rng.randrange(1, 4))]
    coverage = [rng.random() for _ in range(rng.randrange(1, 4))]
    token_ids = rng.sample(range(10_000), vocab) if rng.random() < 0.7 else []
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(len(depths), vocab, generator=generator)
    if not temperature:
        logits = logits.round()
    host = Children(temperatures, coverage, token_ids, None if temperature else top_shares)
    if temperature:
        host.noise = KeyedNoise(seed, 3, temperature)
    num, num_ids = rng.randrange(1, 9), rng.randrange(1, 1000)
    wanted = host.of(logits, depths, num, num_ids)
    ids = torch.tensor(token_ids) if token_ids else None
    calibration = Calibration(torch.tensor(temperatures), doubles(*coverage), ids)
    draw = Draw(torch.tensor([seed, 3]), doubles(temperature)) if temperature else None
    tokens, probabilities = children(
        logits, torch.tensor(depths), num, calibration, topk_logsumexp, draw,
        torch.tensor([num_ids]),
    )  # fmt: skip
    assert tokens.tolist() == [[token for token, _ in row] for row in wanted]
    # The host asks for each row's noise alone, so its quick logarithms may end in other bits.
    exact = [[share for _, share in row] for row in wanted]
    within = 1e-12 if temperature else 0
    assert probabilities.tolist() == [pytest.approx(row, rel=within, abs=0) for row in exact]


def random_tree(rng: random.Random, num_rows: int, *, siblings_differ: bool) -> TokenTree:
    """Few tokens, scores of which many are equal to their parent's or each other's."""
    tokens, parents, scores = [0], [-1], [1.0]
    while len(tokens) < num_rows:
        parent = rng.randrange(max(0, len(tokens) - 4), len(tokens))
        token = rng.randrange(4)
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        if siblings_differ and token in taken:
            token = max(taken) + 1
        tokens.append(token)
        parents.append(parent)
        scores.append(scores[parent] * rng.choice((0.0, 0.5, 1.0, rng.random())))
    return TokenTree(tuple(tokens), tuple(parents), tuple(scores))


def drafted(tree: TokenTree, gaps: list[int]) -> Drafted:
    """The tree with absent rows, which lie at `gaps` among its own."""
    total = tree.num_nodes + len(gaps)
    rows = [row for row in range(total) if row not in gaps]
    place = torch.tensor(rows)
    tokens, parents, depths = (torch.zeros(total, dtype=torch.int64) for _ in range(3))
    scores, ancestors = -torch.ones(total).double(), torch.eye(total, dtype=torch.bool)
    tokens[place] = torch.tensor(tree.tokens)
    parents[place] = torch.tensor([0, *(rows[parent] for parent in tree.parents[1:])])
    depths[place] = torch.tensor(tree.depths)
    scores[place] = doubles(*tree.scores)
    ancestors[place[:, None], place] = torch.tensor(tree.ancestor_mask())
    return Drafted(tokens, parents, depths, scores, ancestors)


class TableDrafter(Drafter):
    """Children by the node's own token, and many shares equal: tokens in no order."""

    max_expanded = max_model_len = UNLIMITED

    def __init__(self, rng: random.Random, vocab: int, num: int) -> None:
        self.tokens = [rng.sample(range(vocab), num) for _ in range(vocab)]
        shares = [[rng.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(num)] for _ in range(vocab)]
        self.shares = [sorted(row, reverse=True) for row in shares]

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        found = [path[-1] if path else 0 for path in paths]
        return [list(zip(self.tokens[t], self.shares[t], strict=True))[:num] for t in found]


@pytest.mark.parametrize("seed", range(300))
def test_equal_scores_stand_as_on_the_host(seed: int) -> None:
    rng = random.Random(seed)
    vocab = rng.randrange(2, 12)
    num = rng.randrange(1, vocab + 1)
    drafter = TableDrafter(rng, vocab, num)
    width, depth = rng.randrange(1, 6), rng.randrange(1, 6)
    frontier = rng.choice(("global", "level"))
    text = f"egt:width={width},depth={depth},children={num},frontier={frontier}"
    least = rng.choice((0.0, 0.25))
    wanted = grow_on_host(0, parse_tree_spec(text), drafter, least)
    tokens, shares = torch.tensor(drafter.tokens), torch.tensor(drafter.shares).double()

    def propose(tree: Drafted, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tokens[tree.tokens[first:]], shares[tree.tokens[first:]]

    root, last_depth = torch.zeros(1, dtype=torch.int64), torch.tensor([99])
    tree = grow(root, width, depth, frontier, propose, doubles(least), last_depth)
    found = prune(tree, 1 + width * depth)
    num_rows = int(found.num_rows)
    for one, other in (
        (found.tokens, wanted.tokens), (found.parents, wanted.parents),
        (found.depths, wanted.depths), (found.scores, wanted.scores),
    ):  # fmt: skip
        assert tuple(one[:num_rows].tolist()) == other


@pytest.mark.parametrize("seed", range(200))
def test_pruning_skips_what_is_absent(seed: int) -> None:
    rng = random.Random(seed)
    tree = random_tree(rng, rng.randrange(1, 30), siblings_differ=False)
    gaps = rng.sample(range(1, tree.num_nodes + 5), 5)
    num_rows = rng.randrange(1, 40)
    wanted, found = prune_on_host(tree, num_rows), prune(drafted(tree, gaps), num_rows)
    num, padding = wanted.num_nodes, num_rows - wanted.num_nodes
    assert found.num_rows.tolist() == [num]
    assert tuple(found.tokens.tolist()) == wanted.tokens + (0,) * padding
    assert tuple(found.parents.tolist()) == wanted.parents + (-1,) * padding
    assert tuple(found.depths.tolist()) == wanted.depths + (0,) * padding
    assert tuple(found.scores.tolist()) == wanted.scores + (0.0,) * padding
    assert found.mask[:num, :num].tolist() == wanted.ancestor_mask()
    assert found.mask.sum() == sum(map(sum, wanted.ancestor_mask())) + padding


@pytest.mark.parametrize("siblings_differ", [True, False])
def test_the_walk_is_the_hosts(siblings_differ: bool) -> None:
    rng = random.Random(8)
    for _ in range(300):
        tree = random_tree(rng, rng.randrange(1, 24), siblings_differ=siblings_differ)
        choices = [rng.randrange(4) for _ in range(tree.num_nodes)]
        done = accept(tree, lambda row, position, known=choices: known[row])
        # The root's parent is never looked at, and padding's is none.
        num_padding = rng.randrange(3)
        given = [
            torch.tensor([*values, *[pad] * num_padding])
            for values, pad in ((choices, 0), (tree.tokens, 0), (tree.parents, -1))
        ]
        num = len(done.path)
        path, count, bonus = walk(*given, max(tree.depths) + num_padding + 1)
        assert path.tolist() == [*done.path, *[-1] * (len(path) - num)]
        assert (count.tolist(), bonus.tolist()) == ([num], [done.tokens[-1]])
        assert reference_accept(*(one.tolist() for one in given)) == (
            list(done.path), done.tokens[-1],
        )  # fmt: skip


@pytest.mark.parametrize("max_depth", [2, 3, 9])
def test_what_is_emitted_has_the_depths_size(max_depth: int) -> None:
    tree = TokenTree((7, 5, 6, 5), (-1, 0, 0, 2), (1.0, 0.5, 0.5, 0.25))
    pruned = prune(drafted(tree, []), 4)
    done = emitted(pruned, torch.tensor([6, 1, 5, 9]), max_depth)
    assert done.path.tolist() == [0, 2, 3, *[-1] * (max_depth - 2)]
    assert done.tokens.tolist() == [6, 5, 9, *[-1] * (max_depth - 2)]
    context = Context(*torch.tensor([[3], [7], [20]]))
    after = following(context, done, torch.zeros(2), None)
    assert [one.tolist() for one in after[:3]] == [[5], [9], [23]]
    nothing = emitted(pruned, torch.tensor([4, 1, 5, 9]), max_depth)
    assert nothing.tokens.tolist() == [4, *[-1] * max_depth]
    after = following(context, nothing, torch.zeros(2), None)
    assert [one.tolist() for one in after[:3]] == [[7], [4], [21]]


def test_padding_of_moves_stays_where_it_is() -> None:
    path, num, length = torch.tensor([2, 5, 7, -1]), torch.tensor([3]), torch.tensor([10])
    sources, targets = moves(path, num, length, 7)
    assert targets.tolist() == [11, 12, 13, 14]
    # Row 7 has no cache row, the last is no row.
    assert sources.tolist() == [12, 15, 13, 14]


@pytest.mark.parametrize(("seed", "choice"), [(0, 0), (2**64 - 1, 3), (12345, 127), (2**63, 1)])
def test_noise_has_the_bits_of_the_host(seed: int, choice: int) -> None:
    noise, tokens = KeyedNoise(seed, choice, 1.0), torch.arange(3000)
    positions = torch.tensor([0, 1, 77, 100_000])
    streams = stream_keys(torch.tensor([signed(seed), choice]), positions)
    found = uniform(streams[:, None], tokens)
    for row, loud, position in zip(found, gumbel(found), positions.tolist(), strict=True):
        assert torch.equal(row, noise.uniform(position, tokens))
        assert torch.equal(loud, noise.portable(position, tokens))


@pytest.mark.parametrize("seed", RNG_SEEDS)
def test_the_drawn_token_is_the_hosts(seed: int) -> None:
    rng = random.Random(seed)
    vocab, temperature = rng.choice((2, 40, 5000)), rng.choice((0.001, 0.3, 1.0, 1.7, 100.0))
    depths = [rng.randrange(4) for _ in range(6)]
    logits = 5 * torch.randn(6, vocab, generator=torch.Generator().manual_seed(seed))
    logits[rng.randrange(6), rng.randrange(vocab - 1) + 1 :] = -torch.inf
    draw = Draw(torch.tensor([seed, 2]), doubles(temperature))
    found = drawn(logits, torch.tensor(depths), 4, torch.tensor([91]), draw)
    noise = KeyedNoise(seed, 2, temperature)
    wanted = [
        draw_on_host(Kept.all(row / temperature), noise, 91 + depth)
        for row, depth in zip(logits, depths, strict=True)
    ]
    assert found.tolist() == wanted


def test_scores_are_rounded_as_on_the_host() -> None:
    """Logits so large that float32 over the temperature makes others of them."""
    generator = torch.Generator().manual_seed(1)
    logits = 20_000 + torch.randint(0, 4, (200, 50), generator=generator) * 2.0**-9
    temperature = 0.0013
    places = torch.zeros(200, dtype=torch.int64)
    draw = Draw(torch.tensor([7, 0]), doubles(temperature))
    for position in range(20):
        found = drawn(logits, places, 1, torch.tensor([position]), draw)
        noise = KeyedNoise(7, 0, temperature)
        wanted = [draw_on_host(Kept.all(row / temperature), noise, position) for row in logits]
        assert found.tolist() == wanted


@pytest.mark.parametrize("seed", range(200))
def test_the_row_count_is_the_hosts(seed: int) -> None:
    rng = random.Random(seed)
    tree = random_tree(rng, rng.randrange(1, 30), siblings_differ=False)
    counts = sorted(rng.sample(range(1, 40), rng.randrange(1, 6)))
    table = [sorted(rng.choice((1.0, rng.random())) for _ in counts) for _ in range(3)]
    rest = [rng.choice((0.0, rng.random())) for _ in table]
    trust, length = rng.random(), rng.randrange(400)
    rate = rng.random() if rng.random() < 0.5 else None
    block = min(length // 64, 2)
    objective = Objective() if rate is None else Objective("lagrangian", rate)
    wanted = choose_num_rows_on_host(
        sorted((trust * score for score in tree.scores[1:]), reverse=True),
        counts, dict(zip(counts, table[block], strict=True)).__getitem__, rest[block], objective,
    )  # fmt: skip
    costs = RowCosts(torch.tensor(counts), torch.tensor(table).double(), doubles(*rest))
    scores = drafted(tree, [1]).scores
    place = block_of(torch.tensor([length]), 3, 64)
    index = choose_num_rows(
        scores, doubles(trust), costs, place, None if rate is None else doubles(rate)
    )
    assert counts[int(index)] == wanted


@pytest.mark.parametrize("seed", range(60))
def test_the_depth_is_the_hosts_over_several_passes(seed: int) -> None:
    rng = random.Random(seed)
    deepest = rng.randrange(1, 6)
    smoothing = rng.choice((0.0, 0.4))
    predictor = predictor_of(rng, deepest, smoothing)
    rest_s, step_s = rng.random() / 4, rng.random() / 4
    seconds = {rows: rows**0.5 for rows in predictor.rows}
    rate = rng.random() if rng.random() < 0.5 else None
    objective = Objective() if rate is None else Objective("lagrangian", rate)
    host = DepthChoice(
        predictor, lambda rows, context: seconds[rows], lambda num, context: step_s, rest_s,
        objective,
    )  # fmt: skip
    passes, draft_s = [], 0.0
    for depth, rows in enumerate(predictor.rows):
        passes.append(rest_s + draft_s + seconds[rows])
        draft_s += step_s if depth < deepest else 0.0
    costs = DepthCosts(
        torch.tensor([passes]).double(), doubles(predictor.base_tokens),
        doubles(*predictor.worth), doubles(smoothing),
    )  # fmt: skip
    context: Any = None
    one = torch.zeros(1, dtype=torch.int64)
    pruned = prune(drafted(TokenTree.single(0), []), 2)
    for _ in range(5):
        hazards = torch.tensor([rng.random() for _ in range(deepest + 1)])
        host.observe(hazards)
        if context is None:
            context = Context(one, one, one, hazards[:deepest].double())
        else:
            context = following(context, emitted(pruned, one, 1), hazards, costs)
        wanted = host.choose(256)[0].depth
        found = choose_depth(context.hazards, costs, one, None if rate is None else doubles(rate))
        assert found.tolist() == [wanted]


def predictor_of(rng: random.Random, deepest: int, smoothing: float) -> DepthPredictor:
    rows = tuple(sorted(rng.randrange(1, 20) for _ in range(deepest + 1)))
    worth = tuple(rng.random() * 2 for _ in range(deepest))
    return DepthPredictor(
        tree=f"egt:width=2,depth={deepest}", temperature=0.0, rows=rows, worth=worth,
        base_tokens=1 + rng.random() / 4, is_on=True, num_traces=1, num_prompts=1, log_loss=0.0,
        constant_log_loss=0.0, calibration_error=(), against="plain", num_measured=0, gain=1.0,
        gain_interval=(1.0, 1.0), smoothing=smoothing,
    )  # fmt: skip
