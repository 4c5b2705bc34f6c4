"""Order by value with ties broken by a key, without a sort."""

from __future__ import annotations

import torch
from torch import Tensor


def best_first(scores: Tensor, keys: Tensor) -> Tensor:
    """Places [n] int64 by falling score [n] float64, equal ones by rising key [n] int64, then by
    place. Scores are numbers; with NaN among them the order is none, its entries still places.

    A place's rank is the number of places before it: n^2 comparisons, which run at once, where two
    stable sorts would be launches one after another. n is at most some thousands.
    """
    places = torch.arange(len(scores), device=scores.device)
    above = scores > scores[:, None]
    first = (keys < keys[:, None]) | ((keys == keys[:, None]) & (places < places[:, None]))
    ranks = (above | ((scores == scores[:, None]) & first)).sum(1)
    return torch.zeros_like(places).scatter(0, ranks, places)
