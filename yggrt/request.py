"""What a request may ask for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from yggrt.core.errors import RequestError
from yggrt.core.schema import TreeSpec
from yggrt.core.spec import parse_tree_spec
from yggrt.engine_stats import Pass, Stage
from yggrt.sampling.params import SamplingOptions, SamplingParams, check_whole

DEFAULT_MAX_TOKENS = 256
PLAIN = TreeSpec(policy="plain")


class Options(SamplingOptions, total=False):
    """What a request may ask for, beside how tokens are chosen (SamplingParams).

    max_tokens: most tokens of output (256). stop: at most 16 strings that end the output and are
    left out of its text. plain: one token per pass. tree: a tree spec for this request. gated:
    False drafts in every pass, whether it pays or not. reuse: keep the cache rows of a prefix
    shared with the request before. ignore_eos: EOS ids are tokens like any other. cancelled: asked
    after each pass; True ends the output there. on_stage: told of every stage of every pass as it
    ends, its start and end in seconds of `perf_counter`. on_pass: told of every pass, which costs
    it time.
    """

    max_tokens: int
    stop: str | Sequence[str]
    plain: bool
    tree: str | TreeSpec | None
    gated: bool
    reuse: bool
    ignore_eos: bool
    cancelled: Callable[[], bool]
    on_stage: Callable[[Stage, float, float], None] | None
    on_pass: Callable[[Pass], None] | None


@dataclass(frozen=True, slots=True)
class Request:
    """Checked options. `tree` is None for the session's own; `seed` is the seed asked for or a
    random one, None if greedy.
    """

    sampling: SamplingParams
    seed: int | None
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    tree: TreeSpec | None = None
    gated: bool = True
    reuse: bool = False
    ignore_eos: bool = False
    cancelled: Callable[[], bool] = lambda: False
    on_stage: Callable[[Stage, float, float], None] | None = None
    on_pass: Callable[[Pass], None] | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], *, reuse: bool = False) -> Request:
        """Options as a request; `reuse` is what that option is by default. Raises RequestError."""
        own: dict[str, Any] = {"reuse": reuse, **options}
        names = {one.name for one in fields(SamplingParams)}
        sampling = SamplingParams(**{name: own.pop(name) for name in names & own.keys()})
        own["stop"] = _stops(own.get("stop", ()))
        plain, tree = own.pop("plain", False), own.get("tree")
        if not (tree is None or isinstance(tree, (str, TreeSpec))):
            raise RequestError(f"tree is {tree!r}, wanted a tree spec", "as in tree='egt:width=4'")
        own["tree"] = PLAIN if plain else parse_tree_spec(tree) if isinstance(tree, str) else tree
        request = cls(sampling=sampling, seed=sampling.choose_seed(), **own)
        check_whole("max_tokens", request.max_tokens, 1)
        if sampling.min_tokens > request.max_tokens:
            raise RequestError(
                f"min_tokens is {sampling.min_tokens} and max_tokens {request.max_tokens}",
                "ask for no more tokens at least than at most",
            )
        if sampling.constraint and request.ignore_eos:
            raise RequestError(
                f"{sampling.constraint[0]} ends the output with EOS, and ignore_eos is given",
                "leave out ignore_eos",
            )
        return request


def _stops(stop: Any) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, bytes) or not isinstance(stop, Sequence):
        raise RequestError(
            f"stop is {stop!r}, wanted a string or a list of strings", "leave out stop, or give []"
        )
    return tuple(stop)
