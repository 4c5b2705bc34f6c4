"""Traces: what a bundle's verifier said to prompts, once, so that any tree can be tried on it.

A trace is the ids of prompt and output, and for a drafter that reads them the verifier's hidden
states. That is all that drafting depends on: the drafter itself runs again, so what a tree would
have done is exact, and a trace is as small as its text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from yggc.whole import write_whole
from yggrt.bundle import Bundle
from yggrt.core.errors import RequestError
from yggrt.core.passes import DraftGraphs
from yggrt.drafters.calibrate import Recording
from yggrt.sampling.noise import KeyedNoise
from yggrt.scheduling import with_hidden
from yggrt.session import Session

FORMAT = "yggc traces 1"


@dataclass(frozen=True, slots=True)
class Traces:
    """`digest`: of the bundle that decoded. `temperature`, `seed`: how; 0 and 0 for greedy."""

    digest: str
    temperature: float
    seed: int
    recordings: tuple[Recording, ...]

    @property
    def noise(self) -> KeyedNoise | None:
        """What the tokens were chosen with; None for greedy ones."""
        return KeyedNoise(self.seed, 0, self.temperature) if self.temperature else None


def record(
    bundle: Bundle,
    session: Session,
    draft: DraftGraphs | None,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    ignore_eos: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Traces:
    """Decodes the prompts with the session's tree. `draft`: graphs of the model that drafts, if
    one does."""
    recordings = []
    for number, prompt in enumerate(prompts, 1):
        progress(f"{number}/{len(prompts)}")
        done = session.generate(
            prompt,
            max_tokens=num_tokens,
            temperature=temperature,
            seed=seed if temperature else None,
            ignore_eos=ignore_eos,
        )
        recordings.append(Recording(list(prompt), done.ids))
    if draft is not None and draft.feature_size:
        progress("hidden states")
        recordings = with_hidden(session.graphs, recordings)
    progress("")
    return Traces(bundle.digest, temperature, seed if temperature else 0, tuple(recordings))


def write(path: Path, traces: Traces) -> None:
    """Writes a safetensors file; raises what `write_whole` raises."""
    ids = [token for one in traces.recordings for token in (*one.prompt, *one.output)]
    tensors = {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "lengths": torch.tensor([[len(one.prompt), len(one.output)] for one in traces.recordings]),
    }
    hidden = [one.hidden for one in traces.recordings if one.hidden is not None]
    if hidden:
        tensors["hidden"] = torch.cat(hidden)
    about = {
        "format": FORMAT,
        "digest": traces.digest,
        "temperature": str(traces.temperature),
        "seed": str(traces.seed),
    }
    write_whole(path, save(tensors, about))


def read(path: Path, bundle: Bundle) -> Traces:
    """The traces of a file; RequestError if it is none, or one of another bundle."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                raise RequestError(
                    f"{path}: format is {about.get('format')!r}, wanted {FORMAT!r}",
                    "`yggc traces BUNDLE -o FILE` writes one",
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise RequestError(
            f"{path}: cannot be read as traces: {error}", "`yggc traces BUNDLE -o FILE` writes one"
        ) from error
    if about["digest"] != bundle.digest:
        raise RequestError(
            f"{path}: the traces are of the bundle with digest {about['digest']}, this one has "
            f"{bundle.digest}",
            "record them anew with `yggc traces`: another build may draft otherwise",
        )
    return Traces(
        about["digest"], float(about["temperature"]), int(about["seed"]), _recordings(tensors)
    )


def _recordings(tensors: dict[str, torch.Tensor]) -> tuple[Recording, ...]:
    ids, lengths = tensors["ids"].tolist(), tensors["lengths"].tolist()
    hidden = tensors.get("hidden")
    found, start, row = [], 0, 0
    for num_prompt, num_output in lengths:
        middle, end = start + num_prompt, start + num_prompt + num_output
        states = None
        if hidden is not None:
            # Of all tokens but the last.
            states = hidden[row : row + end - start - 1]
            row += end - start - 1
        found.append(Recording(ids[start:middle], ids[middle:end], states))
        start = end
    return tuple(found)
