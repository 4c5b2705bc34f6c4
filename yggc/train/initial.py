"""Weights that a head begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from yggc.errors import SourceError
from yggc.models.eagle import HeadConfig, HeadForCausalLM
from yggc.models.eagle3 import Eagle3ForCausalLM
from yggc.train.batches import Batch, collate
from yggc.train.features import Features
from yggc.train.head import Head
from yggc.train.step import trained_parameters
from yggc.train.texts import Row

# Of the inputs' mean square; the answer does not depend on it much.
RIDGE = 1e-3
# Score of a row with itself where attention is to pick the row's own embedding.
OWN_SCORE = 12.0
# Of the usual root mean square of a channel, what one is taken to have at least.
LEAST_SCALE = 1e-3

# Of a batch: [B, C or R, ...], of which the last R columns count.
Columns: TypeAlias = Callable[[Batch], torch.Tensor]


def embedding_scale(embedding: torch.Tensor, rows: Sequence[Row], features: Features) -> float:
    """What brings the embeddings of the text to the root mean square of its features."""
    found = torch.cat(features.get(rows)).float()
    ids = torch.cat([torch.from_numpy(row.ids).long() for row in rows])
    used = torch.nn.functional.embedding(ids.to(embedding.device), embedding).float()
    return (found.square().mean().sqrt() / used.square().mean().sqrt().cpu()).item()


def tap_scale(rows: Sequence[Row], features: Features) -> torch.Tensor:
    """What brings each channel of the taps to a root mean square of 1 over the text: [taps *
    hidden]. Some channels of a hidden state are a thousand times as large as others.
    """
    found = torch.cat(features.get(rows)).float()
    size = found.square().mean(0).sqrt()[found.shape[1] // (1 + features.num_taps) :]
    return 1 / size.clamp(min=LEAST_SCALE * size.median().item())


def new_head(kind: type[HeadForCausalLM], config: HeadConfig, seed: int) -> HeadForCausalLM:
    """A head whose decoder layer passes its input on, float32; what is the verifier's is frozen
    and empty.
    """
    torch.manual_seed(seed)
    own_output = issubclass(kind, Eagle3ForCausalLM)
    empty = {"vocab_size": 1, "bos_token_id": None, "eos_token_id": None}
    empty |= {} if own_output else {"draft_vocab_size": 1}
    model = kind(type(config)(**{**config.to_dict(), **empty})).float()
    model.config = config
    layer = model.model.layers[0]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.model.embed_tokens.requires_grad_(False)
    model.lm_head.requires_grad_(own_output)
    return model


@torch.no_grad()
def ridge_regression(
    parts: Sequence[Sequence[Row]],
    features: Features,
    inputs: Columns,
    wanted: Columns,
    device: torch.device,
) -> torch.Tensor:
    """The matrix [wanted's size, inputs' size] of the ridge regression from `inputs` to `wanted`,
    over the responses: float32.
    """
    return ridge_regressions(parts, features, [inputs], wanted, device)[0]


@torch.no_grad()
def ridge_regressions(
    parts: Sequence[Sequence[Row]],
    features: Features,
    inputs: Sequence[Columns],
    wanted: Columns,
    device: torch.device,
) -> list[torch.Tensor]:
    """As `ridge_regression` from each of `inputs`, in one pass over the text."""
    zero = torch.zeros((), dtype=torch.float64, device=device)
    grams, crosses = [zero] * len(inputs), [zero] * len(inputs)
    for rows in parts:
        batch = collate(rows, features, device)
        made = wanted(batch)[:, -batch.num_queries :][batch.valid].float()
        for i, find in enumerate(inputs):
            given = find(batch)[:, -batch.num_queries :][batch.valid].float()
            grams[i] = grams[i] + (given.T @ given).double()
            crosses[i] = crosses[i] + (given.T @ made).double()
    found = []
    for gram, cross in zip(grams, crosses, strict=True):
        ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=device)
        found.append(torch.linalg.solve(gram + ridge, cross).T.float())
    return found


@torch.no_grad()
def add_of_embedding(model: Eagle3ForCausalLM, matrix: torch.Tensor) -> None:
    """Sets the layer's attention to add `matrix` [hidden, hidden] times the row's own normalised
    embedding, as near as its values have room for.

    Queries and keys are one random projection of that embedding, so a row attends to itself and to
    others of its token, whose embedding is the same; values and output are the largest singular
    parts of the matrix, which heads that share values share.
    """
    attention, config = model.model.layers[0].self_attn, model.config
    size, dim, groups = config.hidden_size, config.head_dim, config.num_key_value_heads
    per_group = config.num_attention_heads // groups
    u, s, v = torch.linalg.svd(matrix.to(model.device))
    rank = min(size, groups * dim)
    root = s[:rank].sqrt()
    for one in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        one.weight.zero_()
    attention.v_proj.weight[:rank, :size] = root[:, None] * v[:rank]
    out = torch.zeros(size, groups * dim, device=model.device)
    out[:, :rank] = u[:, :rank] * root / per_group
    out = out.view(size, groups, 1, dim).expand(size, groups, per_group, dim)
    attention.o_proj.weight.copy_(out.reshape(size, -1))
    keys = torch.randn(groups, dim, size, device="cpu").to(model.device)
    keys *= (OWN_SCORE / (size * dim**0.5)) ** 0.5
    attention.k_proj.weight[:, :size] = keys.reshape(-1, size)
    queries = keys[:, None].expand(groups, per_group, dim, size)
    attention.q_proj.weight[:, :size] = queries.reshape(-1, size)


@torch.no_grad()
def take_over(model: torch.nn.Module, head: Head, name: str, draft_ids: torch.Tensor) -> None:
    """Sets the weights to those of `head`, read from `name`. Rows of an output head that is the
    model's own are those of `draft_ids`: ids that `head` does not draft keep theirs. SourceError
    if they do not fit.
    """
    output = model.get_parameter("lm_head.weight")
    common = torch.isin(draft_ids, head.draft_ids)
    places = torch.searchsorted(head.draft_ids, draft_ids[common])
    for key, parameter in trained_parameters(model).items():
        found = head.weights.get(key)
        if found is None or found.shape != parameter.shape:
            what = "is not there" if found is None else f"has shape {list(found.shape)}"
            raise SourceError(
                f"{name}: {key} {what}, this verifier's head wants {list(parameter.shape)}",
                "begin with a head of this verifier, or with none",
            )
        if parameter is output:
            parameter[common.to(parameter.device)] = found[places].to(parameter)
        else:
            parameter.copy_(found)
