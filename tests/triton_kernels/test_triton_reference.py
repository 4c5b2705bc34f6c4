"""The definitions themselves, against published or hand-checked values."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from ygg_kernels.triton import packing, reference

from yggrt.core.accept import accept
from yggrt.core.tree import TokenTree

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "counter", "wanted"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES), (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox(key: tuple[int, int], counter: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """The known answers of Random123 for philox4x32-10."""
    assert reference.philox(key[0] | key[1] << 32, counter).tolist() == list(wanted)


def test_keyed_walk_has_the_law_of_the_verifier() -> None:
    """A two-level tree with p_root = (5, 3, 2)/10, p_0 = (1, 6, 3)/10, p_1 = (4, 4, 2)/10 and
    children root: 0, 1; 0: 1, 2; 1: 0 emits 1, 2, 3 tokens with 1/5, 23/100, 57/100.

    8,000 seeds: a share is off by 5 standard deviations (0.028) less than once in a million.
    """
    parents, tokens = [-1, 0, 0, 1, 1, 2], [9, 0, 1, 1, 2, 0]
    laws = [(5, 3, 2), (1, 6, 3), (4, 4, 2), (1, 1, 1), (1, 1, 1), (1, 1, 1)]
    logits = torch.tensor(laws).double().log()
    positions = torch.tensor([7, 8, 8, 9, 9, 9])
    num_seeds = 8_000
    lengths = Counter()
    for seed in range(num_seeds):
        _, ids, _ = reference.keyed_topk(logits, seed, 0, positions, 1.0, 1)
        path, _ = reference.accept(ids[:, 0].tolist(), tokens, parents)
        lengths[len(path) + 1] += 1
    for length, share in ((1, 0.20), (2, 0.23), (3, 0.57)):
        assert abs(lengths[length] / num_seeds - share) < 0.028


def test_noise_depends_on_every_part_of_the_key() -> None:
    positions = torch.tensor([3, 4])
    noise = reference.gumbel(5, 0, positions, 50)
    assert torch.equal(noise[1:], reference.gumbel(5, 0, positions[1:], 40 + 10))
    assert not torch.equal(noise[0], noise[1])
    for seed, choice in ((6, 0), (5, 1), (5 + (1 << 40), 0)):
        assert not torch.equal(noise, reference.gumbel(seed, choice, positions, 50))


def test_accept_is_the_runtime_s() -> None:
    rng = random.Random(0)
    for _ in range(300):
        num_rows = rng.randrange(1, 20)
        parents = [-1] + [rng.randrange(row) for row in range(1, num_rows)]
        tokens = [rng.randrange(3) for _ in range(num_rows)]
        choices = [rng.randrange(3) for _ in range(num_rows)]
        path, bonus = reference.accept(choices, tokens, parents)
        tree = TokenTree(tuple(tokens), tuple(parents), (1.0,) * num_rows)
        wanted = accept(tree, lambda row, position, choices=choices: choices[row])
        assert (tuple(path), bonus) == (wanted.path, wanted.tokens[-1])


@pytest.mark.parametrize("name", ["q8_0", "q4_1"])
@pytest.mark.parametrize("num_k", [32, 96, 576])
def test_packing(name: str, num_k: int) -> None:
    """Values come back within half a step of the group, codes and scales exactly."""
    torch.manual_seed(0)
    code, weight = packing.CODES[name], torch.randn(5, num_k)
    weight[1] = 0
    weight[2, :32] = 3.25
    packed = packing.quantize(weight, code)
    assert packed.shape == (5, packing.row_bytes(code, num_k))
    assert packed.shape[1] % 16 == 0
    values = packing.unpack(packed, code, num_k)
    groups = weight.view(5, num_k // 32, 32)
    span = groups.abs().amax(2) / 127 if name == "q8_0" else (groups.amax(2) - groups.amin(2)) / 15
    # float16 keeps 11 bits of a scale and of a minimum.
    bound = span[..., None] * 0.51 + groups.abs().amax(2, keepdim=True) * 2**-10
    assert bool(((values - weight).view_as(groups).abs() <= bound).all())


def test_packed_bytes() -> None:
    """The layout, byte for byte."""
    codes = torch.arange(32) % 16
    packed = packing.pack(codes[None], torch.tensor([[0.5]]), torch.tensor([[-2.0]]))
    assert packed[0, :4].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert packed[0, 16:20].view(torch.float16).tolist() == [0.5, -2.0]
    assert packed.shape == (1, 32)
    packed = packing.pack(torch.arange(-16, 16)[None], torch.tensor([[0.25]]), None)
    assert packed[0, :32].view(torch.int8).tolist() == list(range(-16, 16))
    assert packed[0, 32:34].view(torch.float16).tolist() == [0.25]
    assert packed.shape == (1, 48)
