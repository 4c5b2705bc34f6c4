"""How a drafter's candidates fare by rank and depth, from texts that the verifier wrote.

At every token the drafter guesses on from there along the text, as in a tree that holds all its
candidates: a depth is measured where the tokens above it were among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from yggrt.core.schema import RankAcceptance
from yggrt.drafters import Drafter
from yggrt.drafters.calibrate import Recording

NUM_RANKS = 8
NUM_DEPTHS = 8
# A drafter that is a model runs for every depth of every position.
NUM_POSITIONS = 192


def measure_ranks(
    folds: Sequence[tuple[Drafter, Sequence[Recording]]],
    num_positions: int = NUM_POSITIONS,
) -> RankAcceptance:
    """Of about `num_positions` tokens spread over the recordings, each with a drafter that has not
    seen it; recordings have their hidden states where a drafter reads them."""
    total = sum(len(one.output) for _, recordings in folds for one in recordings)
    stride = max(1, total // num_positions)
    hits = [[0] * NUM_RANKS for _ in range(NUM_DEPTHS)]
    tests = [0] * NUM_DEPTHS
    for drafter, recordings in folds:
        for depth, rank in _found(drafter, recordings, stride):
            tests[depth] += 1
            if rank is not None:
                hits[depth][rank] += 1
    known = [depth for depth in range(NUM_DEPTHS) if tests[depth]]
    return RankAcceptance(
        shares=tuple(tuple(hit / tests[depth] for hit in hits[depth]) for depth in known),
        num_tests=tuple(tests[depth] for depth in known),
    )


def _found(
    drafter: Drafter, recordings: Sequence[Recording], stride: int
) -> Iterable[tuple[int, int | None]]:
    """Depth, and the rank of the verifier's token there; None where it was no candidate."""
    drafter.couple(None)
    for prompt, output, hidden in recordings:
        drafter.start(prompt)
        # Hidden rows are those of the last tokens but the very last, maybe not of all before.
        begin = told = 0 if hidden is None else len(prompt) + len(output) - 1 - len(hidden)
        for place in range(len(output)):
            # The root's own row is not known while it is drafted on.
            root = len(prompt) + place - 1
            if hidden is not None and told < root:
                drafter.observe(told, hidden[told - begin : root - begin], range(root - told))
                told = root
            if place % stride == 0 and root >= begin + (hidden is not None):
                deepest = min(NUM_DEPTHS, len(output) - place, drafter.max_expanded)
                for depth in range(deepest):
                    path = output[place : place + depth]
                    if len(prompt) + place + depth >= drafter.max_model_len:
                        break
                    [children] = drafter.candidates([path], NUM_RANKS)
                    tokens = [token for token, _ in children]
                    right = output[place + depth]
                    rank = tokens.index(right) if right in tokens else None
                    yield depth, rank
                    if rank is None:
                        break
            drafter.commit(output[place : place + 1])
