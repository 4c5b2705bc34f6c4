"""Children of draft nodes: most likely tokens with the chance that each is the verifier's choice.

What `yggrt.drafters.children` makes of logits, by the same formulas (`yggrt.core.shares`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor

from yggrt.core.device.noise import Draw, stream_keys, uniform
from yggrt.core.gumbel import gumbel_nearly
from yggrt.core.shares import NOISE_POOL, coupled_shares, shares_of

# logits [n, vocab], k -> the k largest [n, k] in order, ties to the lowest column; their columns
# [n, k] int64; logsumexp [n].
TopK: TypeAlias = Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]


class Calibration(NamedTuple):
    """What was measured of a drafter, by depth; the last value stands for deeper nodes.

    temperatures [n] float32. coverage [m] float64. token_ids: the verifier's ids [columns] int64
    of the logits' columns, None where they are its own.
    """

    temperatures: Tensor
    coverage: Tensor
    token_ids: Tensor | None = None


def children(
    logits: Tensor,
    depths: Tensor,
    num: int,
    calibration: Calibration,
    top_k: TopK,
    draw: Draw | None = None,
    first_position: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Tokens [n, k] int64 and probabilities [n, k] float64 of the best children of nodes at depths
    [n] int64, the root's being 0, by logits [n, columns] float32; k is `num` or the number of
    columns.

    draw: the verifier's, where it samples; then children are ranked with its noise, and
    `first_position` [1] int64 is the place in prompt and output of the root's child.
    """
    temperatures = _at(calibration.temperatures, depths)
    num = min(num, logits.shape[1])
    if draw is None:
        values, columns, _ = top_k(logits, num)
        shares = shares_of(values, logits, temperatures).double()
        tokens = _ids(columns, calibration)
    else:
        assert first_position is not None
        # As the host's; the operator of best candidates gives fewer.
        pool, columns = logits.topk(min(NOISE_POOL, logits.shape[1]))
        tokens = _ids(columns, calibration)
        streams = stream_keys(draw.key, first_position + depths)
        noise = gumbel_nearly(uniform(streams[:, None], tokens))
        places, shares = coupled_shares(pool, logits, noise, draw.temperature, temperatures, num)
        tokens = tokens.gather(1, places)
    return tokens, _at(calibration.coverage, depths)[:, None] * shares.clamp(max=1)


def _ids(columns: Tensor, calibration: Calibration) -> Tensor:
    ids = calibration.token_ids
    return columns if ids is None else ids[columns]


def _at(values: Tensor, depths: Tensor) -> Tensor:
    return values[depths.clamp(max=len(values) - 1)]
