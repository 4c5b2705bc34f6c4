"""Plain-torch definitions of what only CUDA has; the rest is in `ygg_kernels.reference`.

Each computes in the dtype of its floating inputs and makes no promise about bits; `philox` is
integers and exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from ygg_kernels.triton import packing

_WORD = 0xFFFFFFFF


def linear(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
    formats: Sequence[int],
) -> list[Tensor]:
    """x [..., K] times each weight as `packing` lays it out, plus its bias [N]."""
    results = []
    for place, (weight, weight_format) in enumerate(zip(weights, formats, strict=True)):
        if weight_format not in packing.DENSE:
            weight = packing.unpack(weight, weight_format, x.shape[-1])
        result = x @ weight.to(x.dtype).T
        results.append(result if biases is None else result + biases[place].to(x.dtype))
    return results


def philox(seed: int, counter: Sequence[Tensor | int]) -> Tensor:
    """Philox4x32-10: key `seed` (64 bits), four counter words: the four result words [4, ...].

    Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011). int64 holds each word.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*(torch.as_tensor(word) for word in counter))
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        # Products wrap to 64 bits, which keeps both halves; the shift must not bring in signs.
        c0, c2 = second >> 32 & _WORD ^ c1 ^ k0, first >> 32 & _WORD ^ c3 ^ k1
        c1, c3 = second & _WORD, first & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return torch.stack([c0, c1, c2, c3])


def gumbel(seed: int, choice: int, positions: Tensor, vocab: int) -> Tensor:
    """The noise of every token: [len(positions), vocab] float64."""
    tokens = torch.arange(vocab)
    word = philox(seed, (tokens[None, :], positions.cpu()[:, None] & _WORD, choice & _WORD, 0))[0]
    uniform = ((word >> 9).double() + 0.5) / 2**23
    return -torch.log(-torch.log(uniform))


def topk_logsumexp(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest of each row, ties to the lowest id; their ids; logsumexp."""
    # A stable sort keeps equal values in order of their ids, which topk does not promise.
    values, ids = logits.sort(dim=1, descending=True, stable=True)
    return values[:, :k], ids[:, :k], logits.logsumexp(dim=1)


def keyed_topk(
    logits: Tensor, seed: int, choice: int, positions: Tensor, temperature: float, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of logits / T + Gumbel noise, but for the logsumexp, which is of logits / T."""
    if temperature == 0:
        return topk_logsumexp(logits, k)
    logits = logits / temperature
    noise = gumbel(seed, choice, positions, logits.shape[1]).to(logits)
    scores, ids, _ = topk_logsumexp(logits + noise, k)
    return scores, ids, logits.logsumexp(dim=1)


def accept(
    choices: Sequence[int], tokens: Sequence[int], parents: Sequence[int]
) -> tuple[list[int], int]:
    """Rows of the accepted nodes, and the bonus token."""
    path: list[int] = []
    row = 0
    while True:
        children = [
            child
            for child in range(row + 1, len(tokens))
            if parents[child] == row and tokens[child] == choices[row]
        ]
        if not children:
            return path, choices[row]
        row = children[0]
        path.append(row)
