"""OpenVINO GenAI on the GGUF file, which it converts when it loads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from yggc.compare.protocol import Ask, Setup, Timed
from yggc.compare.stopwatch import Stopwatch


class OpenVinoEngine:
    """`plain` and `lookup`."""

    def __init__(self, setup: Setup) -> None:
        self.title = f"OpenVINO GenAI {openvino_genai.__version__.partition('-')[0]}"
        self._setup = setup
        self._pipelines: dict[bool, Any] = {}
        self._pipeline(False)

    def decode(self, ask: Ask) -> Timed:
        is_lookup = ask.way == "lookup"
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = ask.num_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        if is_lookup:
            config.num_assistant_tokens = ask.num_lookup
            config.max_ngram_size = 3
        ids = np.array([ask.ids], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        pipeline = self._pipeline(is_lookup)
        streamer = _TimingStreamer()
        pipeline.generate(inputs, config, streamer)
        return streamer.watch.timed()

    def _pipeline(self, is_lookup: bool) -> Any:
        if is_lookup not in self._pipelines:
            # Prompts come again in other rounds, and what they cost is to be measured.
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            options: dict[str, Any] = {
                "INFERENCE_NUM_THREADS": self._setup.num_threads,
                "scheduler_config": scheduler,
            }
            if is_lookup:
                options["prompt_lookup"] = True
            self._pipelines[is_lookup] = openvino_genai.LLMPipeline(
                self._setup.model, "CPU", **options
            )
        return self._pipelines[is_lookup]


class _TimingStreamer(openvino_genai.StreamerBase):
    def __init__(self) -> None:
        super().__init__()
        self.watch = Stopwatch()

    def write(self, token: int | Sequence[int]) -> Any:
        self.watch.arrived([token] if isinstance(token, int) else token)
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass
