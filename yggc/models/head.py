"""Reads a trained head: a directory with what was trained, over the verifier that the rest belongs
to.

This project's own layout (others: yggc.models.head_layouts) is `config.json` (EagleConfig) and
safetensors with `fc.weight`, `model.layers.0.*` and, if the head gives the logits of chosen ids
alone, `draft_ids` int64. The embedding and the output head are the verifier's.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from yggc.errors import SourceError
from yggc.heads import HEAD_TYPES
from yggc.models import shards
from yggc.models.checkpoint import (
    Checkpoint,
    StoredDtype,
    check_state,
    empty_model,
    one_line,
    stored_dtype,
    wanted_state,
)
from yggc.models.head_layouts import Layout, find_layout
from yggc.models.matrices import tied_names
from yggc.models.source import ResolvedSource, check_config

EMBEDDING = "model.embed_tokens.weight"
OUTPUT_HEAD = "lm_head.weight"
DRAFT_IDS = "draft_ids"


class HeadCheckpoint(Checkpoint):
    """A head and its verifier as one model; tensor names are those of EagleForCausalLM.

    Raises SourceError for a head of another verifier's sizes, missing or misshapen tensors, and a
    map of ids that does not fit.
    """

    def __init__(self, source: ResolvedSource, verifier: Checkpoint, layout: Layout) -> None:
        stored = shards.read_headers(shards.find_shards(source.path), HEAD_TYPES)
        try:
            config = layout.config(check_config(source.path), stored)
        except SourceError:
            raise
        except Exception as error:  # the configuration class checks in its own way
            raise SourceError(
                f"{source.path / 'config.json'}: is no configuration of a head: {one_line(error)}",
                "correct the value, or fetch the file again",
            ) from error
        super().__init__(source, config)
        self._verifier = verifier
        # Name in EagleForCausalLM -> name in the file.
        self._keys = {new: name for name in stored if (new := layout.rename(name))}
        self._stored = {new: stored[name] for new, name in self._keys.items()}
        self._files: dict[Path, Any] = {}
        self._check_sizes()
        self.draft_ids = self._read_draft_ids()
        model = empty_model(self.config)
        self._names = tuple(wanted_state(model))
        own = {name: one.shape for name, one in self._stored.items() if name != DRAFT_IDS}
        taken = {
            EMBEDDING: (self.config.vocab_size, self.config.hidden_size),
            OUTPUT_HEAD: (self.config.draft_vocab_size, self.config.hidden_size),
        }
        check_state(str(source.path), model, own | taken)
        unused = sorted(own.keys() - set(self._names))
        if unused:
            raise SourceError(
                f"{source.path}: tensor {unused[0]!r} is not part of an EAGLE head",
                "config.json and tensors belong to different heads",
            )

    def _check_sizes(self) -> None:
        theirs: PreTrainedConfig = self._verifier.config
        for key in ("hidden_size", "vocab_size"):
            ours, wanted = getattr(self.config, key), getattr(theirs, key)
            if ours != wanted:
                raise SourceError(
                    f"{self.source.path}: the head is for a verifier with {key} {ours}, this one "
                    f"has {wanted}",
                    "take the head that was trained for this verifier, or train one with "
                    "`yggc train eagle`",
                )

    def _read_draft_ids(self) -> tuple[int, ...]:
        vocab, num = self.config.vocab_size, self.config.draft_vocab_size
        if DRAFT_IDS not in self._stored:
            if num != vocab:
                raise SourceError(
                    f"{self.source.path}: the head gives {num} of {vocab} logits and has no "
                    f"tensor {DRAFT_IDS!r} that says which",
                    "the files are incomplete",
                )
            return ()
        ids = tuple(int(one) for one in self._read_stored(DRAFT_IDS).flatten().tolist())
        if len(ids) != num or len(set(ids)) != num or not all(0 <= one < vocab for one in ids):
            odd = next((one for one in ids if not 0 <= one < vocab), None)
            found = f"the id {odd}" if odd is not None else f"{len(set(ids))} different ids"
            raise SourceError(
                f"{self.source.path}: {DRAFT_IDS!r} has {found}, wanted {num} in 0..{vocab - 1}",
                "weights and configuration belong to different heads",
            )
        return ids

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        if name == EMBEDDING:
            return (self.config.vocab_size, self.config.hidden_size)
        if name == OUTPUT_HEAD:
            return (self.config.draft_vocab_size, self.config.hidden_size)
        return self._stored[name].shape

    def read(self, name: str) -> torch.Tensor:
        if name in self._stored:
            return self._read_stored(name)
        if name == EMBEDDING:
            return self._verifier.read(weight_name(self._verifier.config, "get_input_embeddings"))
        rows = self._verifier.read(weight_name(self._verifier.config, "get_output_embeddings"))
        return rows[torch.tensor(self.draft_ids)].contiguous() if self.draft_ids else rows

    def _read_stored(self, key: str) -> torch.Tensor:
        file = self._stored[key].file
        if file not in self._files:
            self._files[file] = safe_open(file, framework="pt", device="cpu")
        tensor: torch.Tensor = self._files[file].get_tensor(self._keys[key])
        return tensor

    def release(self) -> None:
        self._files.clear()
        self._verifier.release()

    @property
    def dtype(self) -> StoredDtype:
        return stored_dtype(one for name, one in self._stored.items() if name != DRAFT_IDS)

    @property
    def num_parameters(self) -> int:
        """Of what was trained."""
        return sum(math.prod(one.shape) for name, one in self._stored.items() if name != DRAFT_IDS)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self._verifier.tokenizer


def layout_of(folder: Path) -> Layout | None:
    """The layout of a directory with a head, None if it holds a model of its own."""
    names = shards.read_headers(shards.find_shards(folder), HEAD_TYPES)
    return find_layout(folder, check_config(folder), names)


def weight_name(config: PreTrainedConfig, which: str) -> str:
    """The parameter of the model of `config` that the module of its method `which` holds, by the
    name that it is stored under."""
    model: Any = empty_model(config)
    weight = getattr(model, which)().weight
    name = next(n for n, one in model.named_parameters(remove_duplicate=False) if one is weight)
    return tied_names(model).get(name, name)
