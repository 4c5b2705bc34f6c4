"""How a head drafts while it learns, and what an EAGLE head learns: losses over several steps in
which it is fed its own features.

Li et al., arXiv 2401.15077, section 4, for the two losses: SmoothL1 between the head's feature
and the verifier's, cross entropy against the verifier's own distribution. Zhang et al., "Learning
Harmonized Representations for Speculative Sampling" (arXiv 2408.15766), section 3.2, for the
steps, which EAGLE-3 (arXiv 2503.01840, section 3.2) calls training-time test: step j is given the
features that step j - 1 made, and attends as it will when drafting, to rows with the verifier's
features up to where the draft begins and to the draft's own rows behind.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from yggc.models.eagle import HeadForCausalLM
from yggc.train.batches import Batch
from yggc.train.cross_entropy import SoftCrossEntropy, first_choices, mean_rows, weighted_mean


@dataclass(frozen=True, slots=True)
class Frozen:
    """The verifier's part of a head: `embedding` [vocab, hidden] and the drafting `head`
    [draft_vocab, hidden], both in the dtype to compute in; embeddings times `scale` have the
    features' size.
    """

    embedding: torch.Tensor
    head: torch.Tensor
    scale: float

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, self.embedding) * self.scale


def unroll(
    model: HeadForCausalLM,
    batch: Batch,
    embeddings: torch.Tensor,
    num_steps: int,
    *,
    detach: bool = False,
) -> list[torch.Tensor]:
    """The head's features [B, R, hidden] (float32) of the queries in each step.

    embeddings: [B, C, hidden], as `join` expects them; `batch.given` as `fuse` does. The
    features of step j are meaningful where `batch.valid_at(j)`. detach: no gradient goes from a
    step into the one before through the features.
    """
    first, num = batch.first_query, batch.num_queries
    steps: list[torch.Tensor] = []
    attention = _StepAttention(model, batch)
    for step in range(num_steps):
        if step == 0:
            joined = model.join(embeddings, model.fuse(batch.given))
        else:
            # The row of a token is given the feature of the token before it.
            before = functional.pad(steps[-1][:, :-1], (0, 0, 1, 0))
            before = before.detach() if detach else before
            joined = model.join(embeddings[:, first:], before)
        layer = model.model.layers[0]
        read, residual = model.enter(joined)
        hidden = residual[:, -num:].float() + attention.run(read, step)
        steps.append(hidden + layer.mlp(layer.post_attention_layernorm(hidden)).float())
    return steps


class _StepAttention:
    """Attention of the queries in one step, with keys of the steps before.

    In step j a query at p sees step 0's rows up to p - j, and for i = 1 .. j the row of step i at
    p - j + i: the draft that began at p - j.
    """

    def __init__(self, model: HeadForCausalLM, batch: Batch) -> None:
        self._attention = model.model.layers[0].self_attn
        self._rotary = model.model.rotary_emb
        self._batch = batch
        self._num_heads = model.config.num_attention_heads
        self._num_kv = model.config.num_key_value_heads
        self._head_dim = model.config.head_dim
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def run(self, normed: torch.Tensor, step: int) -> torch.Tensor:
        """`normed`: [B, C, size] in step 0, then [B, R, size]; returns [B, R, hidden]."""
        batch, num = self._batch, self._batch.num_queries
        size = len(normed)
        positions = batch.positions[:, -normed.shape[1] :].clamp(min=0)
        cos, sin = self._rotary(normed, positions)
        queries = self._split(self._attention.q_proj(normed[:, -num:]), self._num_heads)
        keys = self._split(self._attention.k_proj(normed), self._num_kv)
        values = self._split(self._attention.v_proj(normed), self._num_kv)
        queries = _rotate(queries, cos[:, -num:], sin[:, -num:])
        self._keys.append(_rotate(keys, cos, sin))
        self._values.append(values)
        # Heads that share keys are rows of one product: [B, kv, groups * R, head_dim].
        queries = (queries * self._head_dim**-0.5).reshape(size, self._num_kv, -1, self._head_dim)
        scores = queries @ self._keys[0].transpose(-1, -2)
        grouped = scores.view(size, self._num_kv, -1, num, scores.shape[-1])
        parts = [grouped + self._mask(step, scores.dtype)]
        by_group = queries.view(size, self._num_kv, -1, num, self._head_dim)
        drafted = [
            (_delay(self._keys[i], step - i)[:, :, None], _delay(self._values[i], step - i))
            for i in range(1, step + 1)
        ]
        parts += [(by_group * key).sum(-1, keepdim=True) for key, _ in drafted]
        weights = torch.cat(parts, -1).softmax(-1)
        num_seen = scores.shape[-1]
        out = weights[..., :num_seen].reshape(scores.shape) @ self._values[0]
        out = out.view(by_group.shape)
        for i, (_, value) in enumerate(drafted):
            out = out + weights[..., num_seen + i, None] * value[:, :, None]
        heads = out.reshape(size, self._num_heads, num, self._head_dim)
        projected: torch.Tensor = self._attention.o_proj(heads.transpose(1, 2).flatten(2))
        return projected.float()

    def _split(self, rows: torch.Tensor, num_heads: int) -> torch.Tensor:
        return rows.view(*rows.shape[:2], num_heads, self._head_dim).transpose(1, 2)

    def _mask(self, step: int, dtype: torch.dtype) -> torch.Tensor:
        """[B, 1, 1, R, C], added to scores."""
        positions = self._batch.positions
        num = self._batch.num_queries
        seen = (positions[:, None] >= 0) & (positions[:, None] <= positions[:, -num:, None] - step)
        mask = torch.zeros(seen.shape, dtype=dtype, device=positions.device)
        # A query of padding sees nothing; a finite number keeps its softmax defined.
        return mask.masked_fill_(~seen, -1e30)[:, None, None]


def _rotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rotated: torch.Tensor = apply_rotary_pos_emb(rows, rows, cos, sin)[0]
    return rotated


def _delay(rows: torch.Tensor, num: int) -> torch.Tensor:
    """Rows [B, heads, R, dim] of `num` tokens before."""
    return functional.pad(rows[:, :, : rows.shape[2] - num], (0, 0, num, 0))


@dataclass(frozen=True, slots=True)
class LossWeights:
    """feature, token: of the two losses. decay: of each step relative to the one before.
    temperature: of the verifier's distribution. rejected: of a query's token loss where its draft
    is rejected, beside 1 for the others; None for a plain mean.
    """

    feature: float = 1.0
    token: float = 1.0
    decay: float = 0.8
    temperature: float = 1.0
    rejected: float | None = None


@dataclass(frozen=True, slots=True)
class Losses:
    """`total` is what is minimised; the parts [num_steps] are means over a step's queries, of
    `token` weighted ones.
    """

    total: torch.Tensor
    feature: torch.Tensor
    token: torch.Tensor


class Rejections:
    """The queries at which drafts are rejected, told step after step.

    A draft is rejected at its first step whose likeliest id is not the verifier's likeliest draft
    id; what it says behind that is never looked at, so those queries are no rejections. An id that
    cannot be drafted is none that could be learned. head: [draft_vocab, hidden] of the verifier,
    in the dtype to compute in.
    """

    def __init__(self, batch: Batch, head: torch.Tensor) -> None:
        self._batch, self._head = batch, head
        self._alive = batch.valid

    @functools.cached_property
    def _choices(self) -> torch.Tensor:
        wanted = self._batch.features[:, -self._batch.num_queries :]
        return first_choices(wanted[self._batch.valid], self._head)

    def of(self, step: int, choices: torch.Tensor) -> torch.Tensor:
        """Those among the queries that `step` reaches, bool [n]; `choices` int64 [n]: the head's
        likeliest draft id after each."""
        valid, reached = self._batch.valid, self._batch.valid_at(step)
        wrong = torch.zeros_like(valid)
        wrong[reached] = choices != self._choices[reached[valid]]
        # A step's query belongs to the draft whose step before was one query before.
        alive = valid if step == 0 else functional.pad(self._alive[:, :-1], (1, 0)) & reached
        self._alive = alive & ~wrong
        return (alive & wrong)[reached]


def losses(
    steps: list[torch.Tensor], batch: Batch, head: torch.Tensor, weights: LossWeights
) -> Losses:
    """The losses of `unroll`'s features. head: [draft_vocab, hidden], in the dtype to compute
    in.
    """
    num = batch.num_queries
    wanted = batch.features[:, -num:]
    valid = batch.valid
    flat = wanted[valid]
    target = mean_rows(flat, head, weights.temperature)
    rejections = Rejections(batch, head)
    total = torch.zeros((), device=flat.device)
    parts: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for step, found in enumerate(steps):
        reached = batch.valid_at(step)
        chosen = reached[valid]
        rows = found[reached]
        if not len(rows):
            break
        feature = functional.smooth_l1_loss(rows, flat[chosen].float())
        by_query = SoftCrossEntropy.apply(rows, head, target[chosen])
        if weights.rejected is None:
            token = by_query.mean()
        else:
            rejected = rejections.of(step, first_choices(rows, head))
            token = weighted_mean(by_query, rejected, weights.rejected)
        total = total + weights.decay**step * (weights.feature * feature + weights.token * token)
        parts[0].append(feature.detach())
        parts[1].append(token.detach())
    return Losses(total, torch.stack(parts[0]), torch.stack(parts[1]))
