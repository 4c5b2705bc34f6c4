"""Fits hazards to traces: from shallow to deep heads, stopped on held-out prompts, calibrated per
head, and folded into the constants that the graphs have.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from yggc.depth.hazards import Predictor, hazard_losses, log_loss, unconditional_hazards


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a predictor is fitted. `l2`: weight of half the sum of squared weights, biases left out.
    `penalty`: weight of the mean squared correlation between two units of the encoder over a
    batch, so that few traces are not fitted by many copies of one unit (after DeCov, Cogswell et
    al., arXiv 1511.06068). `curriculum`: epochs after which all heads are trained; head d joins
    after (d - 1) / D of them. `patience`: epochs without a better loss that end it."""

    epochs: int = 100
    batch: int = 128
    learning_rate: float = 2e-3
    l2: float = 1e-2
    penalty: float = 0.1
    curriculum: int = 8
    patience: int = 12
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs [n, d] float32 with the lengths and known levels [n] int64 of their drafts."""

    rows: torch.Tensor
    lengths: torch.Tensor
    known: torch.Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: torch.Tensor) -> Examples:
        return Examples(self.rows[which], self.lengths[which], self.known[which])


def fit(
    train: Examples, held_out: Examples, max_depth: int, num_units: int, options: FitOptions
) -> Predictor:
    """The predictor with the least loss on `held_out`, the constant one if none is better."""
    mean, spread = _scales(train.rows)
    train, held_out = (
        Examples((one.rows - mean) / spread, one.lengths, one.known) for one in (train, held_out)
    )
    generator = torch.Generator().manual_seed(options.seed)
    hazards = unconditional_hazards(train.lengths, train.known, max_depth)
    model = _first_weights(hazards, train.rows.shape[1], num_units, generator)
    best, best_loss = model, _loss_of(model, held_out)
    parameters = [one.requires_grad_() for one in _tensors(_copy(model))]
    model = Predictor(*parameters)
    optimiser = torch.optim.Adam(parameters, lr=options.learning_rate)
    waited = 0
    for epoch in range(options.epochs):
        open_heads = _open_heads(epoch, max_depth, options.curriculum)
        for batch in torch.randperm(len(train), generator=generator).split(options.batch):
            optimiser.zero_grad()
            _objective(model, train.take(batch), open_heads, options).backward()
            optimiser.step()
        loss = _loss_of(model, held_out)
        waited = waited + 1 if open_heads == max_depth else 0
        if loss < best_loss:
            best, best_loss, waited = _copy(model), loss, 0
        if waited > options.patience:
            break
    return _unscaled(calibrated(best, held_out), mean, spread)


def calibrated(predictor: Predictor, held_out: Examples) -> Predictor:
    """With logit d replaced by scale_d * logit d + shift_d (Platt, 1999), the most probable ones
    for `held_out` under normal priors of width 1 on log scale and shift: a head with few traces
    stays as it is."""
    logits = predictor.logits(held_out.rows).detach()
    log_scale, shift = (torch.zeros(logits.shape[1], requires_grad=True) for _ in range(2))
    solver = torch.optim.LBFGS([log_scale, shift], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        moved = log_scale.exp() * logits + shift
        loss = hazard_losses(moved, held_out.lengths, held_out.known).sum()
        loss = loss + 0.5 * (log_scale.square().sum() + shift.square().sum())
        loss.backward()
        return loss

    solver.step(closure)
    scale, shift = log_scale.detach().exp(), shift.detach()
    return Predictor(
        predictor.encode_weight,
        predictor.encode_bias,
        scale[:, None] * predictor.decode_weight,
        scale * predictor.decode_bias + shift,
    )


def correlation(units: torch.Tensor) -> torch.Tensor:
    """Mean squared correlation between two different columns of [n, m]."""
    centred = units - units.mean(0)
    normed = centred / centred.norm(dim=0).clamp(min=1e-6)
    squares = (normed.T @ normed).square()
    num = len(squares)
    return (squares.sum() - squares.diagonal().sum()) / (num * (num - 1))


def _objective(
    model: Predictor, batch: Examples, open_heads: int, options: FitOptions
) -> torch.Tensor:
    units = model.encode(batch.rows)
    losses = hazard_losses(model.decode(units), batch.lengths, batch.known)
    weights = model.encode_weight.square().sum() + model.decode_weight.square().sum()
    loss = losses[:, :open_heads].sum() / len(batch) + 0.5 * options.l2 * weights
    if options.penalty and len(batch) > 1:
        loss = loss + options.penalty * correlation(units)
    return loss


def _open_heads(epoch: int, max_depth: int, curriculum: int) -> int:
    """Heads that are trained in an epoch: one more after each equal part of the curriculum."""
    if epoch >= curriculum:
        return max_depth
    return 1 + epoch * max_depth // curriculum


def _first_weights(
    hazards: torch.Tensor, hidden_size: int, num_units: int, generator: torch.Generator
) -> Predictor:
    """Gives the unconditional hazards until its decoder has learned."""
    constant = Predictor.constant(hazards, hidden_size, num_units)
    weight = torch.randn(num_units, hidden_size, generator=generator) / hidden_size**0.5
    return Predictor(weight, constant.encode_bias, constant.decode_weight, constant.decode_bias)


def _loss_of(model: Predictor, examples: Examples) -> float:
    with torch.no_grad():
        return log_loss(model.logits(examples.rows), examples.lengths, examples.known)


def _scales(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and spread of each column; a constant column keeps its scale."""
    mean = rows.mean(0)
    spread = (rows - mean).square().mean(0).sqrt()
    return mean, torch.where(spread > 1e-6, spread, torch.ones_like(spread))


def _unscaled(model: Predictor, mean: torch.Tensor, spread: torch.Tensor) -> Predictor:
    """The same function of rows that are not scaled."""
    weight = model.encode_weight / spread
    return Predictor(
        weight, model.encode_bias - weight @ mean, model.decode_weight, model.decode_bias
    )


def _copy(model: Predictor) -> Predictor:
    return Predictor(*(one.detach().clone() for one in _tensors(model)))


def _tensors(model: Predictor) -> list[torch.Tensor]:
    return [model.encode_weight, model.encode_bias, model.decode_weight, model.decode_bias]
