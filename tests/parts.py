"""Sessions without a model: scripted graphs, telling drafters, real tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scripted import RandomDrafter, ScriptedGraphs

from yggrt.core.passes import PassOutput
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Candidate, Drafter
from yggrt.session import Parts, Session
from yggrt.text import Text

TREE = "egt:width=3,depth=8,children=4,verify=16,frontier=global"
CHAIN = "sequence:depth=8"


@dataclass
class TellingGraphs(ScriptedGraphs):
    """Says `script` after a prompt of `prompt_len` tokens, whatever the tokens before are."""

    script: Sequence[int] = ()
    prompt_len: int = 1
    row_counts: tuple[int, ...] = (1, 4, 16)

    def say(self, position: int) -> int:
        return self.script[(position + 1 - self.prompt_len) % len(self.script)]

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        super().verify(cache, tree, length)
        return self.output([self.say(length + depth) for depth in tree.depths])

    def prefill(self, cache: Any, tokens: Sequence[int], length: int) -> PassOutput:
        super().prefill(cache, tokens, length)
        return self.output([self.say(length + len(tokens) - 1)])

    def output(self, ids: list[int]) -> PassOutput:
        """Logits of 1 for the token said, 0.75 for the next id and 0 for all others."""
        logits = torch.zeros(len(ids), self.vocab_size)
        for row, token_id in enumerate(ids):
            logits[row, token_id] = 1.0
            logits[row, (token_id + 1) % self.vocab_size] = 0.75
        nothing: Any = None
        return PassOutput(ids, logits, nothing, nothing)


@dataclass
class TellingDrafter(RandomDrafter):
    """Proposes what the graphs will say, so that every pass accepts as much as its tree holds."""

    graphs: TellingGraphs = field(default_factory=TellingGraphs)

    def children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        return [(self.graphs.say(len(self.context) + len(path_tokens) - 1), 0.95)]


@dataclass
class StubbornDrafter(RandomDrafter):
    """Always proposes one token, here an EOS."""

    token: int = 0

    def children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        return [(self.token, 0.99)]


def make(
    graphs: ScriptedGraphs,
    drafter: Drafter,
    *,
    text: Text | None = None,
    eos_ids: Sequence[int] = (),
    vocab_size: int | None = None,
    tree: str = CHAIN,
) -> Session:
    return Session(
        Parts(graphs, drafter, lambda rows, context: 1.0, 0.0),
        text=text,
        eos_ids=eos_ids,
        vocab_size=vocab_size or graphs.vocab_size,
        tree=parse_tree_spec(tree),
    )


def telling(
    text: Text, said: str, *, prompt: str = "hello", **options: Any
) -> tuple[Session, list[int]]:
    """A session that says the ids of `said` after `prompt`, all of them drafted right."""
    script = text.encode(said)
    graphs = TellingGraphs(
        vocab_size=1000, max_model_len=512, script=script, prompt_len=len(text.encode(prompt))
    )
    return make(graphs, TellingDrafter(graphs=graphs), text=text, **options), script
