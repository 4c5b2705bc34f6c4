"""Reads a trained head: a directory with what was trained, over the verifier that the rest belongs
to.

This project's own layout (others: yggc.models.head_layouts) is `config.json` (EagleConfig,
Eagle3Config or MedusaConfig) and safetensors with `fc.weight`, `model.layers.0.*`, for EAGLE-3
`norm.weight` and `lm_head.weight`, for Medusa `heads.*` alone, and, if the head gives the logits
of chosen ids alone, `draft_ids` int64. The embedding is the verifier's, and so is the output head
but for EAGLE-3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from yggc.errors import SourceError
from yggc.heads import HEAD_TYPES, PUBLISHED_MEDUSA, are_layers
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
from yggc.models.eagle import HeadConfig
from yggc.models.eagle3 import Eagle3Config, published_taps
from yggc.models.head_layouts import DRAFT_IDS, MEMBERS, OFFSETS, Layout, find_layout
from yggc.models.matrices import tied_names
from yggc.models.medusa import MedusaConfig
from yggc.models.source import ResolvedSource, check_config

EMBEDDING = "model.embed_tokens.weight"
OUTPUT_HEAD = "lm_head.weight"
FUSE = "fc.weight"
_MAPS = (DRAFT_IDS, OFFSETS, MEMBERS)
# Of the kinds in the EAGLE repository's layout only EAGLE-3 says in its configuration that it is
# a head.
_OF_EAGLE3 = ("midlayer.self_attn.q_proj.weight",)


class HeadCheckpoint(Checkpoint):
    """A head and its verifier as one model; tensor names are those of EagleForCausalLM,
    Eagle3ForCausalLM or MedusaForCausalLM.

    Raises SourceError for a head of another verifier's sizes, missing or misshapen tensors, and a
    map of ids that does not fit.
    """

    def __init__(self, source: ResolvedSource, verifier: Checkpoint, layout: Layout) -> None:
        stated = check_config(source.path)
        stored = shards.read_headers(shards.find_weights(source.path, stated), HEAD_TYPES)
        try:
            config = layout.config(stated, stored)
        except SourceError:
            raise
        except Exception as error:  # the configuration class checks in its own way
            raise SourceError(
                f"{source.path / 'config.json'}: is no configuration of a head: {one_line(error)}",
                "correct the value, or fetch the file again",
            ) from error
        super().__init__(source, config)
        self._verifier = verifier
        # Name in the model -> name in the file.
        self._keys = {new: name for name in stored if (new := layout.rename(name))}
        self._stored = {new: stored[name] for new, name in self._keys.items()}
        self._files: dict[Path, Callable[[str], torch.Tensor]] = {}
        self._check_sizes()
        self._check_copies(stored, layout)
        if isinstance(config, Eagle3Config):
            self._choose_taps(config)
        self.draft_ids = self._read_draft_ids(layout)
        # Name -> shape of what is the verifier's.
        self._taken = {}
        if not isinstance(config, MedusaConfig):
            self._taken[EMBEDDING] = (config.vocab_size, config.hidden_size)
        if not (isinstance(config, Eagle3Config) or getattr(config, "own_outputs", False)):
            self._taken[OUTPUT_HEAD] = (config.draft_vocab_size, config.hidden_size)
        model = empty_model(self.config)
        self._names = tuple(wanted_state(model))
        own = {name: one.shape for name, one in self._stored.items() if name not in layout.maps}
        check_state(str(source.path), model, own | self._taken)
        unused = sorted(own.keys() - set(self._names))
        if unused:
            raise SourceError(
                f"{source.path}: tensor {unused[0]!r} is not part of {layout.kind}",
                "config.json and tensors belong to different heads",
            )
        if isinstance(config, MedusaConfig) and PUBLISHED_MEDUSA in stated:
            self.notes += _other_count(config, stated[PUBLISHED_MEDUSA])

    def _choose_taps(self, config: Eagle3Config) -> None:
        """Those that published heads read where the head does not say which."""
        num_layers = self._verifier.config.num_hidden_layers
        stated = bool(config.taps)
        if not stated:
            config.taps = published_taps(num_layers)
        taps = config.taps
        if not are_layers(taps, num_layers):
            which = "" if stated else ", which published heads read where they say no others"
            raise SourceError(
                f"{self.source.path}: the head reads what layers {taps} are given{which}, wanted "
                f"ascending ones of the verifier's 0..{num_layers - 1}",
                "take the head that was trained for this verifier",
            )

    def _check_copies(self, stored: Mapping[str, shards.StoredTensor], layout: Layout) -> None:
        """An embedding that the head brings must be able to be a copy of the verifier's."""
        size = self.config.hidden_size
        for name, one in stored.items():
            if not layout.rename(name) and one.shape[1:] != (size,):
                raise SourceError(
                    f"{self.source.path}: tensor {name!r} has shape {list(one.shape)}, wanted "
                    f"rows of {size} as a copy of the verifier's has",
                    "take a head that uses the verifier's, or train one with `yggc train`",
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
                    "`yggc train`",
                )

    def _read_draft_ids(self, layout: Layout) -> tuple[int, ...]:
        vocab, num = self.config.vocab_size, self.config.draft_vocab_size
        name = layout.ids
        if name not in self._stored:
            if num != vocab:
                raise SourceError(
                    f"{self.source.path}: the head gives {num} of {vocab} logits and has no "
                    f"tensor {name!r} that says which",
                    "the files are incomplete",
                )
            return ()
        values = [int(one) for one in self._read_stored(name).flatten().tolist()]
        ids = [i + one for i, one in enumerate(values)] if name == OFFSETS else values
        if len(ids) != num or len(set(ids)) != num or not all(0 <= one < vocab for one in ids):
            odd = next((one for one in ids if not 0 <= one < vocab), None)
            found = f"the id {odd}" if odd is not None else f"{len(set(ids))} different ids"
            raise SourceError(
                f"{self.source.path}: {name!r} has {found}, wanted {num} in 0..{vocab - 1}",
                "weights and configuration belong to different heads",
            )
        if MEMBERS in layout.maps and MEMBERS in self._stored:
            self._check_members(ids)
        return tuple(ids)

    def _check_members(self, ids: Sequence[int]) -> None:
        """That the map from the verifier's ids says what that of the head's says."""
        members = self._read_stored(MEMBERS).flatten()
        marked = members.nonzero()[:, 0].tolist()
        if len(members) != self.config.vocab_size or marked != sorted(ids):
            raise SourceError(
                f"{self.source.path}: {MEMBERS!r} marks {len(marked)} of "
                f"{len(members)} ids, wanted the {len(ids)} of {OFFSETS!r} among "
                f"{self.config.vocab_size}",
                "the two maps belong to different heads; fetch the files again",
            )

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._taken[name] if name in self._taken else self._stored[name].shape

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
            if file.suffix == shards.PICKLE:
                self._files[file] = shards.load_pickle(file).__getitem__
            else:
                self._files[file] = safe_open(file, framework="pt", device="cpu").get_tensor
        return self._files[file](self._keys[key])

    def release(self) -> None:
        self._files.clear()
        self._verifier.release()

    @property
    def dtype(self) -> StoredDtype:
        return stored_dtype(one for name, one in self._stored.items() if name not in _MAPS)

    @property
    def num_parameters(self) -> int:
        """Of what was trained."""
        trained = (one for name, one in self._stored.items() if name not in _MAPS)
        return sum(math.prod(one.shape) for one in trained)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self._verifier.tokenizer


def _other_count(config: MedusaConfig, stated: int) -> tuple[str, ...]:
    """A note where a configuration states another number of heads than there are."""
    if stated == config.num_heads:
        return ()
    return (f"config.json states {stated} Medusa heads, the file has {config.num_heads}",)


def layout_of(folder: Path) -> Layout | None:
    """The layout of a directory with a head, None if it holds a model of its own."""
    config = check_config(folder)
    names = shards.read_headers(shards.find_weights(folder, config), HEAD_TYPES)
    return find_layout(folder, config, names)


def read_head_config(folder: Path, verifier: PreTrainedConfig) -> HeadConfig | MedusaConfig:
    """A head's configuration from its `config.json`, and its tensors' headers where they are here;
    `verifier` is the verifier's. SourceError if it is no head that is read.
    """
    stated = check_config(folder)
    stored: dict[str, shards.StoredTensor] = {}
    names: Collection[str] = _OF_EAGLE3
    if any(folder.glob("*.safetensors")) or PUBLISHED_MEDUSA in stated:
        stored = shards.read_headers(shards.find_weights(folder, stated), HEAD_TYPES)
        names = stored
    layout = find_layout(folder, stated, names)
    assert layout is not None, "asked of a head alone"
    config = layout.config(stated, stored)
    if isinstance(config, Eagle3Config) and not config.taps:
        config.taps = published_taps(verifier.num_hidden_layers)
    return config


def weight_name(config: PreTrainedConfig, which: str) -> str:
    """The parameter of the model of `config` that the module of its method `which` holds, by the
    name that it is stored under."""
    model: Any = empty_model(config)
    weight = getattr(model, which)().weight
    name = next(n for n, one in model.named_parameters(remove_duplicate=False) if one is weight)
    return tied_names(model).get(name, name)
