"""What `yggrt run --explain` prints: the token tree of every pass and what became of it.

A line per node: its token, the probability that its whole path is accepted as the drafter gave it,
its row in the pass that verified it, and whether it was accepted. The verifier's own token hangs
where it went on from what was drafted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text as Label
from rich.tree import Tree

from yggrt.engine_stats import Pass
from yggrt.text import REPLACEMENT

if TYPE_CHECKING:
    from yggrt.session import Completion
    from yggrt.text import Text


def explain(done: Completion, passes: Sequence[Pass], text: Text | None) -> Iterator[Label | Tree]:
    """Lines and trees to print. `passes`: all that the output took; the tokens that they emit
    behind `done.ids[0]`, in order, are the output's, up to those past its end."""
    yield Label(f"from the prompt: {token_name(done.ids[0], text)}")
    num_before = 1
    for number, one in enumerate(passes, 1):
        yield Label(f"\npass {number}: {_summary(one)}")
        yield _tree(one, text, len(done.ids) - num_before)
        num_before += len(one.accepted.tokens)


def token_name(token_id: int, text: Text | None) -> str:
    """The text of one token in quotes, the vocabulary's name of one that is no whole text, the id
    without a tokenizer."""
    if text is None:
        return str(token_id)
    shown = text.decode([token_id])
    return repr(shown) if shown and REPLACEMENT not in shown else text.token(token_id)


def _summary(one: Pass) -> str:
    gate = f"gate {'open' if one.gate_open else 'closed'}, trust {one.trust:.2f}"
    drafted, verified = one.drafted.num_nodes - 1, one.verified.num_nodes - 1
    if not drafted:
        return f"nothing drafted; {gate}"
    return f"{drafted} drafted, {verified} verified, {len(one.accepted.path)} accepted; {gate}"


def _tree(one: Pass, text: Text | None, num_left: int) -> Tree:
    """`num_left`: tokens of this pass that belong to the output; more are past its end."""
    drafted, accepted = one.drafted, one.accepted
    rows = _verified_rows(one)
    names = [token_name(token, text) for token in drafted.tokens]
    branches = [Tree(Label(names[0]))]
    last = branches[0]
    for node in range(1, drafted.num_nodes):
        label = Label(f"{names[node]} {drafted.scores[node]:.2f}")
        branches.append(branches[drafted.parents[node]].add(label))
        row = rows[node]
        if row is None:
            label.append(", not verified")
            label.stylize("dim")
            continue
        label.append(f", row {row}")
        if row in accepted.path:
            past_end = accepted.path.index(row) >= num_left
            label.append(", accepted" + ", past the end" * past_end)
            label.stylize("bold green")
            last = branches[-1]
    past_end = len(accepted.tokens) > num_left
    bonus = token_name(accepted.tokens[-1], text)
    last.add(Label(f"{bonus}, the verifier's own" + ", past the end" * past_end, "green"))
    return branches[0]


def _verified_rows(one: Pass) -> Sequence[int | None]:
    """The row in the verified tree of each drafted node. Where nodes were left out, siblings
    differ, so that a node is known by the tokens that lead to it."""
    if one.verified == one.drafted:
        return range(one.drafted.num_nodes)
    rows = {path: row for row, path in enumerate(one.verified.token_paths())}
    return [rows.get(path) for path in one.drafted.token_paths()]
