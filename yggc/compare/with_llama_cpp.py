"""llama.cpp through llama-cpp-python, on the GGUF file as it is."""

from __future__ import annotations

from typing import Any

import llama_cpp
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from yggc.compare.protocol import Ask, Setup, Timed
from yggc.compare.stopwatch import Stopwatch


class LlamaCppEngine:
    """`plain` and `lookup`. One context each, as lookup wants the logits of every row."""

    def __init__(self, setup: Setup) -> None:
        self.title = f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"
        if setup.plain_buffers:
            _without_extra_buffers()
        self._model = setup.model
        self._options: dict[str, Any] = {
            "n_threads": setup.num_threads,
            "n_threads_batch": setup.num_threads,
            "n_ctx": setup.context,
            "verbose": False,
        }
        self._plain = Llama(self._model, **self._options)
        self._lookup: Llama | None = None

    def decode(self, ask: Ask) -> Timed:
        return self._decode_lookup(ask) if ask.way == "lookup" else self._decode_plain(ask)

    def _decode_plain(self, ask: Ask) -> Timed:
        self._plain.reset()
        watch = Stopwatch()
        tokens = ask.ids
        for _ in range(ask.num_tokens):
            self._plain.eval(tokens)
            tokens = [self._plain.sample(temp=0.0)]
            watch.arrived(tokens)
        return watch.timed()

    def _decode_lookup(self, ask: Ask) -> Timed:
        if self._lookup is None:
            self._lookup = Llama(
                self._model,
                draft_model=LlamaPromptLookupDecoding(),
                logits_all=True,
                **self._options,
            )
        self._lookup.draft_model = LlamaPromptLookupDecoding(num_pred_tokens=ask.num_lookup)
        self._lookup.reset()
        watch = Stopwatch()
        tokens = self._lookup.generate(ask.ids, temp=0.0)
        for _, token in zip(range(ask.num_tokens), tokens, strict=False):
            watch.arrived([token])
        return watch.timed()


def _without_extra_buffers() -> None:
    # llama-cpp-python has no argument for this field of the C library's parameters.
    defaults = llama_cpp.llama_model_default_params

    def without_extra_buffers() -> Any:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_cpp.llama_model_default_params = without_extra_buffers
