"""A model with a slot of keys and values per sequence, each at its own position.

The model's code is transformers'. It is given an attention function that lets every row have its
own length, and a cache layer that writes where each row stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface

from yggc.errors import SourceError
from yggc.models.eagle import cache_argument

ATTENTION = "ygg_slots"
# Shapes are rounded up to multiples of it: kernels are prepared once per shape.
ROUND = 32
_IGNORED = frozenset(
    {"dropout", "position_ids", "cache_position", "use_cache", "is_causal", "output_attentions"}
)


def register_attention() -> None:
    """Makes ATTENTION a name that models can be made with."""
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _no_mask)


@dataclass
class _Step:
    """What the attention modules and cache layers of one model must know of the pass at hand."""

    positions: torch.Tensor  # [rows or 1, queries]
    slots: torch.Tensor  # [rows]
    # What each row reads, for a pass with one token per row on the CPU.
    lengths: list[int] | None
    width: int  # positions of the cache that the longest row reads


class Engine:
    """A model with `num_slots` rows of keys and values for `max_len` tokens each."""

    def __init__(self, model: Any, num_slots: int, max_len: int) -> None:
        self.model = model
        self.num_slots, self.max_len = num_slots, -(-max_len // ROUND) * ROUND
        self._device = model.get_input_embeddings().weight.device
        self._all = torch.arange(num_slots, device=self._device)
        self._step = _Step(self._all[None], self._all, None, 0)
        for module in model.modules():
            module.ygg_step = self._step
        size = (num_slots, self.max_len)
        layers = [_SlotLayer(self._step, *size) for _ in range(model.config.num_hidden_layers)]
        self._cache, self._cache_name = Cache(layers=layers), cache_argument(model)

    @torch.inference_mode()
    def prefill(self, slots: list[int], prompts: list[tuple[int, ...]]) -> torch.Tensor:
        """Fills slots with prompts; logits [prompts, vocab] after each, float32."""
        # What stands after a prompt is overwritten before anything may read it.
        width = -(-max(map(len, prompts)) // ROUND) * ROUND
        padded = [[*ids, *[ids[-1]] * (width - len(ids))] for ids in prompts]
        step = self._step
        step.positions = torch.arange(width, device=self._device)[None]
        step.slots, step.lengths = torch.tensor(slots, device=self._device), None
        step.width = width
        lasts = sorted({len(ids) - 1 for ids in prompts})
        logits = self._run(padded, torch.tensor(lasts, device=self._device))
        places = [lasts.index(len(ids) - 1) for ids in prompts]
        return logits[range(len(prompts)), places].float()

    @torch.inference_mode()
    def decode(self, tokens: list[int], positions: list[int]) -> torch.Tensor:
        """One token for every slot, at its position; logits [num_slots, vocab], float32."""
        step = self._step
        step.positions = torch.tensor(positions, device=self._device)[:, None]
        step.slots, step.lengths = self._all, None
        if self._device.type == "cpu":
            step.lengths = [position + 1 for position in positions]
        step.width = min(self.max_len, -(-(max(positions) + 1) // ROUND) * ROUND)
        return self._run([[token] for token in tokens], 1)[:, -1].float()

    def _run(self, ids: list[list[int]], keep: int | torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            torch.tensor(ids, device=self._device),
            position_ids=self._step.positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_name: self._cache},
        ).logits
        return logits


class _SlotLayer(CacheLayerMixin):
    """One layer's keys and values of all slots, allocated when the first arrive."""

    def __init__(self, step: _Step, num_slots: int, max_len: int) -> None:
        super().__init__()
        self._step, self._num_slots, self._max_len = step, num_slots, max_len

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            new.new_zeros(self._num_slots, new.shape[1], self._max_len, new.shape[3])
            for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_more: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        step = self._step
        for cache, new in ((self.keys, key_states), (self.values, value_states)):
            if new.shape[2] > 1:
                cache[step.slots, :, : new.shape[2]] = new
            else:
                cache[step.slots, :, step.positions[:, 0]] = new[:, :, 0]
        if key_states.shape[2] > 1:
            # Prompts start at position 0, so they see only what they bring.
            return key_states, value_states
        return self.keys[:, :, : step.width], self.values[:, :, : step.width]

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._max_len

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._max_len, 0


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [rows, heads, queries, dim] against keys
    [rows, key heads, width, dim] from position 0 on. Returns [rows, queries, heads, dim].
    """
    unknown = sorted(
        name for name, given in arguments.items() if given is not None and name not in _IGNORED
    )
    if unknown:
        raise SourceError(
            f"{type(module).__name__} passes {unknown} to its attention, which writing text does "
            "not cover",
            "docs/architecture.md lists the covered families",
        )
    step: _Step = module.ygg_step  # type: ignore[assignment]
    rows, heads, queries, dim = query.shape
    scale = scaling if scaling is not None else 1.0 / math.sqrt(dim)
    window = sliding_window or 0
    group = heads // key.shape[1]
    # Heads that share keys become queries of one head, so that no key is copied.
    query = query.reshape(rows, key.shape[1], group * queries, dim)
    if step.lengths is not None and not softcap:
        out = _attend_rows(query, key, value, step.lengths, window, scale)
    else:
        distance = step.positions[:, None, :, None] - torch.arange(
            key.shape[2], device=query.device
        )
        mask = distance >= 0
        if window:
            mask &= distance < window
        mask = mask.repeat(1, 1, group, 1)
        if softcap:
            scores = (query @ key.transpose(-1, -2)).float() * scale
            scores = torch.tanh(scores / softcap) * softcap
            weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
            out = weights.to(value.dtype) @ value
        else:
            mask = mask.expand(rows, 1, group * queries, key.shape[2])
            out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return out.reshape(rows, heads, queries, -1).transpose(1, 2), None


def _attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    window: int,
    scale: float,
) -> torch.Tensor:
    """Attention row by row, each over its own length: a processor gains nothing from reading up to
    the longest.
    """
    out = []
    for one, keys, values, length in zip(
        query.split(1), key.split(1), value.split(1), lengths, strict=True
    ):
        seen = slice(max(0, length - window) if window else 0, length)
        out.append(
            scaled_dot_product_attention(one, keys[:, :, seen], values[:, :, seen], scale=scale)
        )
    return torch.cat(out)


def _no_mask(*_args: Any, **_more: Any) -> None:
    """The mask is made where it is used."""
    return
