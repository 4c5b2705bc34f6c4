"""How often a drafter's guesses are the verifier's choices, on rows it does not train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from yggc.train.batches import Batch
from yggc.train.cross_entropy import CHUNK_ROWS, first_choices

TOP = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of the queries of each step (outer index) in which the verifier's first choice is
    among the drafter's first 1, 2, 4 and 8.

    chain, wide: text tokens that a draft gets right in a row, when it guesses one token, or four,
    per step; the mean over all places where a draft can begin.
    """

    top: tuple[tuple[float, ...], ...]
    chain: float
    wide: float
    num_tokens: int


class HeldOut:
    """Held-out batches with the verifier's choices.

    head: [vocab, hidden] of the verifier; draft_ids: int64, ascending, the ids the drafter gives
    logits for.
    """

    def __init__(
        self, batches: Sequence[Batch], head: torch.Tensor, draft_ids: torch.Tensor
    ) -> None:
        self._batches = batches
        rank_of = torch.full((len(head),), -1, dtype=torch.int64, device=head.device)
        rank_of[draft_ids.to(head.device)] = torch.arange(len(draft_ids), device=head.device)
        self._choices = []
        for batch in batches:
            wanted = batch.features[:, -batch.num_queries :]
            best = torch.stack([first_choices(one, head) for one in wanted])
            self._choices.append((rank_of[best], best == batch.next_ids))

    @torch.no_grad()
    def measure(
        self,
        draft: Callable[[Batch], Sequence[torch.Tensor]],
        head: torch.Tensor,
        num_steps: int,
    ) -> Agreement:
        """The agreement over `num_steps` steps of a draft.

        draft: features [B, R, hidden] of the queries in each step, which times `head`
        [draft_vocab, hidden] are logits. A drafter that reads tokens alone makes one, which stands
        for every step: as long as a draft is right, it reads what is in the text.
        """
        head = head.float()
        hits = torch.zeros(num_steps, len(TOP))
        counts = torch.zeros(num_steps)
        runs = torch.zeros(2)
        num_roots = num_made = 0
        for batch, (choice, is_text) in zip(self._batches, self._choices, strict=True):
            ranks = []
            for step, features in enumerate(draft(batch)):
                rank = torch.cat(
                    [_ranks(*pair, head) for pair in zip(features, choice, strict=True)]
                )
                ranks.append(rank.view(choice.shape))
                reached = batch.valid_at(step)
                counts[step] += reached.sum().cpu()
                for index, top in enumerate(TOP):
                    hits[step, index] += (ranks[-1][reached] < top).sum().cpu()
            num_made = len(ranks)
            ranks += [ranks[-1]] * (num_steps - num_made)
            roots, run = _runs(batch, ranks, is_text)
            num_roots += roots
            runs += run
        shares = (hits / counts.clamp(min=1)[:, None])[:num_made]
        chain, wide = (runs / max(1, num_roots)).tolist()
        return Agreement(tuple(tuple(row) for row in shares.tolist()), chain, wide, int(counts[0]))


def _ranks(features: torch.Tensor, choice: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """How many logits are above the chosen id's; as many as there are for an id without."""
    found = []
    with torch.autocast(features.device.type, enabled=False):
        for rows, ids in zip(
            features.float().split(CHUNK_ROWS), choice.split(CHUNK_ROWS), strict=True
        ):
            logits = rows @ head.T
            above = (logits > logits.gather(1, ids.clamp(min=0)[:, None])).sum(-1)
            found.append(above.masked_fill(ids < 0, logits.shape[1]))
    return torch.cat(found)


def _runs(
    batch: Batch, ranks: Sequence[torch.Tensor], is_text: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """Number of roots with every step behind them, and their right guesses in a row, summed."""
    num_steps, num = len(ranks), batch.num_queries
    num_roots = max(0, num - num_steps + 1)
    whole = batch.valid[:, num_steps - 1 :][:, :num_roots]
    sums = []
    for top in (1, 4):
        alive, total = whole.clone(), 0
        for step, rank in enumerate(ranks):
            at = slice(step, step + num_roots)
            alive &= (rank[:, at] < top) & is_text[:, at]
            total += int(alive.sum())
        sums.append(total)
    return int(whole.sum()), torch.tensor(sums, dtype=torch.float32)
