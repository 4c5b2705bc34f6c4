"""What the comparison and its workers say to each other: one JSON object a line, each answered."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Library = Literal["yggrt", "transformers", "llama.cpp", "openvino"]
BASELINES: tuple[Library, ...] = ("transformers", "llama.cpp", "openvino")
Way = Literal["plain", "tree", "lookup", "assisted"]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what to load. `model`: a bundle for yggrt, else the verifier's directory or
    GGUF file; `drafter`: a model directory for assisted decoding, "" if there is none. `context`:
    tokens that a sequence may need. `plain_buffers`: llama.cpp without its repacked weights.
    """

    library: Library
    model: str
    num_threads: int
    context: int
    drafter: str = ""
    plain_buffers: bool = False


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Decode `num_tokens` greedily after `ids`, end-of-sequence ids being tokens like any other.

    `num_lookup`: tokens to guess at once by prompt lookup.
    """

    way: Way
    ids: list[int]
    num_tokens: int
    num_lookup: int = 0


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The answer to Setup. `title` names library, release and what matters of its settings."""

    title: str


class Timed(msgspec.Struct, frozen=True, tag="timed"):
    """The answer to Ask. `ttft_ms`: to the first tokens. `tpot_ms`: per token after those of the
    first moment, None if there are none.
    """

    ids: list[int]
    ttft_ms: float
    tpot_ms: float | None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The answer in place of both: the library said no."""

    reason: str


Answer = Ready | Timed | Failed


class Engine(Protocol):
    """One library with a loaded model."""

    title: str

    def decode(self, ask: Ask) -> Timed: ...
