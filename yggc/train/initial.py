"""Weights that a head begins with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yggc.errors import SourceError
from yggc.models.eagle import EagleConfig, EagleForCausalLM
from yggc.train.batches import collate
from yggc.train.eagle import Frozen
from yggc.train.features import Features
from yggc.train.head import Head
from yggc.train.step import trained_parameters
from yggc.train.texts import Row

# Of the inputs' mean square; the answer does not depend on it much.
RIDGE = 1e-3


def embedding_scale(embedding: torch.Tensor, rows: Sequence[Row], features: Features) -> float:
    """What brings the embeddings of the text to the root mean square of its features."""
    found = torch.cat(features.get(rows)).float()
    ids = torch.cat([torch.from_numpy(row.ids).long() for row in rows])
    used = torch.nn.functional.embedding(ids.to(embedding.device), embedding).float()
    return (found.square().mean().sqrt() / used.square().mean().sqrt().cpu()).item()


def new_head(config: EagleConfig, seed: int) -> EagleForCausalLM:
    """A head whose decoder layer passes its input on, float32, embedding and output head frozen
    and empty: they are the verifier's.
    """
    torch.manual_seed(seed)
    none = {"bos_token_id": None, "eos_token_id": None}
    sizes = {"vocab_size": 1, "draft_vocab_size": 1}
    small = EagleConfig(**{**config.to_dict(), **sizes, **none})
    model: EagleForCausalLM = EagleForCausalLM(small).float()
    model.config = config
    layer = model.model.layers[0]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.model.embed_tokens.requires_grad_(False)
    model.lm_head.requires_grad_(False)
    return model


@torch.no_grad()
def fit_joint(
    model: EagleForCausalLM,
    parts: Sequence[Sequence[Row]],
    features: Features,
    frozen: Frozen,
) -> None:
    """Sets `fc` to the ridge regression from a row's inputs to its feature, over the responses."""
    device = model.device
    size = 2 * model.config.hidden_size
    gram = torch.zeros(size, size, dtype=torch.float64, device=device)
    cross = torch.zeros(size, size // 2, dtype=torch.float64, device=device)
    for rows in parts:
        batch = collate(rows, features, device)
        num = batch.num_queries
        inputs = torch.cat([frozen.embed(batch.ids), batch.given], -1)[:, -num:][batch.valid]
        inputs = inputs.float()
        gram += (inputs.T @ inputs).double()
        cross += (inputs.T @ batch.features[:, -num:][batch.valid].float()).double()
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(size, dtype=torch.float64, device=device)
    model.fc.weight.copy_(torch.linalg.solve(gram + ridge, cross).T.float())


@torch.no_grad()
def take_over(model: EagleForCausalLM, head: Head, scale: float, name: str) -> None:
    """Sets the weights to those of `head`, read from `name`; `scale` multiplies embeddings in
    training. SourceError if they do not fit.
    """
    for key, parameter in trained_parameters(model).items():
        found = head.weights.get(key)
        if found is None or found.shape != parameter.shape:
            what = "is not there" if found is None else f"has shape {list(found.shape)}"
            raise SourceError(
                f"{name}: {key} {what}, this verifier's head wants {list(parameter.shape)}",
                "begin with a head of this verifier, or with none",
            )
        parameter.copy_(found)
    model.fc.weight[:, : model.config.hidden_size] /= scale
