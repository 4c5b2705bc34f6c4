"""Which model drafts: another one with the verifier's tokens, or the verifier's first layers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import msgspec
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from yggc.errors import SourceError

if TYPE_CHECKING:
    from yggc.config import BuildConfig


def first_layers(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """The configuration of a model's first layers under its final norm and head; 0 for all of it.

    Raises SourceError for more layers than it has.
    """
    if num_layers == 0:
        return config
    found = config.num_hidden_layers
    if num_layers > found:
        raise SourceError(
            f"drafter is self:{num_layers}, the verifier has {found} layers",
            f"take self:{max(1, found // 5)} or another number below {found}",
        )
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = num_layers
    if getattr(cut, "layer_types", None):
        cut.layer_types = cut.layer_types[:num_layers]
    return cut


def drafter_options(config: BuildConfig, model_limit: int) -> tuple[BuildConfig, list[str]]:
    """The configuration with the drafter's options in place of the verifier's, and what a user
    should be told; `config` is resolved for the verifier, `model_limit` the drafter's longest
    context.

    A drafter that is the verifier's own layers computes with the same formats unless told
    otherwise, since only then its weights are the verifier's.
    """
    notes = []
    length = min(config.max_model_len, model_limit)
    if length < config.max_model_len:
        notes.append(
            f"its context of {length} tokens is shorter than the verifier's "
            f"{config.max_model_len}: beyond it decoding is plain"
        )
    quant, dtype, activations = config.drafter_quant, config.drafter_dtype, "auto"
    if config.self_layers is not None:
        dtype = config.dtype if dtype == "auto" else dtype
        if quant == "auto":
            quant, activations = config.quant, config.activations
    options = msgspec.structs.replace(
        config, dtype=dtype, quant=quant, activations=activations, max_model_len=length
    )
    return options, notes


def shares_weights(config: BuildConfig, options: BuildConfig) -> bool:
    """Whether the drafter's tensors are the verifier's: its own layers in its own formats."""
    same = (options.quant, options.dtype) == (config.quant, config.dtype)
    return config.self_layers is not None and same


def check_same_tokens(
    verifier: PreTrainedTokenizerBase | None, drafter: PreTrainedTokenizerBase | None
) -> None:
    """Raises SourceError unless an id means the same token to both models.

    Added tokens that one of them lacks are no difference, and neither is the padding of its
    vocabulary: what the drafter does not know is never drafted.
    """
    if verifier is None or drafter is None:
        if (verifier is None) != (drafter is None):
            has, lacks = ("drafter", "verifier") if verifier is None else ("verifier", "drafter")
            raise SourceError(
                f"the {has} has a tokenizer, the {lacks} has none, wanted the same one",
                "take a drafter with the verifier's tokenizer; one without its files can be given "
                "them",
            )
        return
    tokens = [
        {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        for tokenizer in (verifier, drafter)
    ]
    added = [set(tokenizer.added_tokens_decoder) for tokenizer in (verifier, drafter)]
    for token_id in sorted(tokens[0].keys() | tokens[1].keys()):
        ours, theirs = (one.get(token_id) for one in tokens)
        is_extra = (theirs is None and token_id in added[0]) or (
            ours is None and token_id in added[1]
        )
        if ours != theirs and not is_extra:
            raise SourceError(
                f"drafter has another tokenizer: id {token_id} is {theirs!r} to it and {ours!r} "
                "to the verifier",
                "take a drafter of the verifier's family, or ngram, which fits any",
            )
