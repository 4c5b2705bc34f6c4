"""transformers' `generate` in float32 on the weights as the file gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation import BaseStreamer

from yggc.compare.protocol import Ask, Setup, Timed
from yggc.compare.stopwatch import Stopwatch
from yggc.models.checkpoint import open_checkpoint
from yggc.models.source import ResolvedSource


class TransformersEngine:
    """`plain`, `lookup` and, with a drafter, `assisted`."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.num_threads)
        self._model = load_float32(Path(setup.model))
        self._drafter = load_float32(Path(setup.drafter)) if setup.drafter else None
        attention = self._model.config._attn_implementation
        self.title = (
            f"transformers {transformers.__version__} `generate`, {attention} attention, float32"
        )

    def decode(self, ask: Ask) -> Timed:
        options: dict[str, Any] = {}
        if ask.way == "lookup":
            options["prompt_lookup_num_tokens"] = ask.num_lookup
        if ask.way == "assisted":
            options["assistant_model"] = self._drafter
        ids = torch.tensor([ask.ids])
        streamer = _TimingStreamer()
        with torch.no_grad():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=ask.num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                streamer=streamer,
                **options,
            )
        return streamer.watch.timed()


class _TimingStreamer(BaseStreamer):
    """Is handed the prompt first, then the tokens of each pass."""

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self.watch.arrived(value.flatten().tolist())
        self._has_prompt = True

    def end(self) -> None:
        pass


def load_float32(path: Path) -> Any:
    """transformers' own model with the weights of a directory or a GGUF file."""
    kind: Literal["gguf", "directory"] = "gguf" if path.is_file() else "directory"
    checkpoint = open_checkpoint(ResolvedSource(kind, path.name, path, "", "", ()))
    model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=torch.float32)
    names = checkpoint.tensor_names
    state = {name: checkpoint.read(name).to(torch.float32) for name in names}
    # What is missing is tied to what is there.
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.eval()
