"""What the verifier's graphs give of every token of a recording: the rows that hazards are made
of, and how sure the verifier was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from yggc.depth.hazards import Predictor
from yggc.depth.swap import swap_constants
from yggrt.bundle import Bundle
from yggrt.core.passes import Graphs, PassOutput, prefill_chunks
from yggrt.core.schema import Manifest
from yggrt.core.tree import TokenTree
from yggrt.drafters.calibrate import Recording

# Of a value that is read through a sigmoid: those up to some hundreds keep four digits.
_PROBE_SCALE = 1 / 64


@dataclass(frozen=True, slots=True)
class Rows:
    """Of a recording with its hidden rows: `inputs` [m, d] float32 and `entropy` [m] float32 (of
    the distribution at temperature 1, in nats), of the last token of the prompt and of all of the
    output but the last."""

    recording: Recording
    inputs: torch.Tensor
    entropy: torch.Tensor


def read_rows(bundle: Bundle, graphs: Graphs, recordings: Iterable[Recording]) -> Iterator[Rows]:
    """Runs each recording's tokens as chains. The inputs are what the graphs' predictor reads."""
    cache = graphs.new_cache()
    probed = gives_features(bundle.manifest)
    for one in recordings:
        ids, first = [*one.prompt, *one.output][:-1], len(one.prompt) - 1
        hidden = [
            graphs.prefill(cache, ids[start:end], start).hidden
            for start, end in prefill_chunks(graphs.prefill_buckets, 0, first)
        ]
        inputs, entropy = [], []
        for start in range(first, len(ids), graphs.row_counts[-1]):
            tokens = ids[start : start + graphs.row_counts[-1]]
            out = _chain(graphs, cache, tokens, start)
            hidden.append(out.hidden)
            entropy.append(_entropy(out.logits))
            if probed:
                inputs.append(_probe(bundle, graphs, cache, tokens, start))
            else:
                inputs.append(hidden[-1])
        yield Rows(one._replace(hidden=torch.cat(hidden)), torch.cat(inputs), torch.cat(entropy))


def gives_features(manifest: Manifest) -> bool:
    """Whether hidden rows are features made of several layers, while hazards are made of the last
    hidden state (an EAGLE-3 head's bundle)."""
    return any("fuse.weight" in graph.constants for graph in manifest.graphs)


def _chain(graphs: Graphs, cache: Any, tokens: Sequence[int], length: int) -> PassOutput:
    num = len(tokens)
    tree = TokenTree(tuple(tokens), tuple(range(-1, num - 1)), (1.0,) * num)
    return graphs.verify(cache, tree, length)


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """[n] in nats, of the softmax of logits [n, vocab]."""
    logs = torch.log_softmax(logits, -1)
    return -(logs.exp() * logs).sum(-1)


def _probe(
    bundle: Bundle, graphs: Graphs, cache: Any, tokens: Sequence[int], length: int
) -> torch.Tensor:
    """The predictor's inputs [n, d], some values a pass: no graph gives the last hidden state, but
    silu(x) - silu(-x) = x, so with the right constants a hazard is the sigmoid of one value."""
    size, found = bundle.manifest.model.hidden_size, []
    with swap_constants(bundle) as swap:
        num_units, num_heads = swap.num_units, swap.num_heads
        for start in range(0, size, min(num_heads, num_units // 2)):
            read = range(start, min(start + min(num_heads, num_units // 2), size))
            encode = torch.zeros(num_units, size)
            decode = torch.zeros(num_heads, num_units)
            for head, column in enumerate(read):
                encode[2 * head, column], encode[2 * head + 1, column] = 1.0, -1.0
                decode[head, 2 * head], decode[head, 2 * head + 1] = _PROBE_SCALE, -_PROBE_SCALE
            swap(Predictor(encode, torch.zeros(num_units), decode, torch.zeros(num_heads)))
            hazards = _chain(graphs, cache, tokens, length).hazards[:, : len(read)]
            found.append(torch.logit(hazards.double()).float() / _PROBE_SCALE)
    return torch.cat(found, dim=1)
