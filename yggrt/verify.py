"""Whether a bundle decodes here as it did when it was built, and whether trees change a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.passes import Graphs, prefill_chunks
from yggrt.core.schema import Golden
from yggrt.core.spec import format_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.prompts import Prompt
from yggrt.sampling.params import SamplingParams
from yggrt.session import Session

GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two outputs part; None stands for no token there.

    `check` says what was compared: plain decoding with the golden output, or trees with plain
    decoding. top2_gap: the two largest logits of plain decoding there, one less the other.
    """

    check: Literal["golden", "tree"]
    prompt: int
    name: str
    index: int
    wanted: int | None
    found: int | None
    wanted_text: str
    found_text: str
    top2_gap: float

    def line(self) -> str:
        side = "plain" if self.check == "golden" else "tree"
        return (
            f"prompt {self.prompt} ({self.name}), token {self.index}: {side} decoding gives "
            f"{self.found} {self.found_text!r}, wanted {self.wanted} {self.wanted_text!r}; "
            f"top-2 gap {self.top2_gap:.3g}"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared. mean_acceptance_length is that of the tree passes; seed is that of the
    prompts' tokens, None if greedy.
    """

    tree: str
    num_golden: int
    num_prompts: int
    num_tokens: int
    mean_acceptance_length: float
    differences: tuple[Difference, ...]
    seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"ok": not self.differences, **asdict(self)}

    def lines(self) -> Iterator[str]:
        yield from (difference.line() for difference in self.differences)
        seed = "" if self.seed is None else f", seed {self.seed}"
        verdict = f"{len(self.differences)} differ" if self.differences else "all equal"
        yield (
            f"{self.num_golden} golden outputs, {self.num_prompts} prompts, {self.num_tokens} "
            f"tokens, {self.tree} at {self.mean_acceptance_length:.2f} tokens/pass{seed}: "
            f"{verdict}"
        )

    def check(self) -> None:
        """Raises CheckFailed if there is a difference."""
        if self.differences:
            raise CheckFailed(
                f"{len(self.differences)} of {self.num_golden + self.num_prompts} outputs differ, "
                f"the first: {self.differences[0].line()}",
                "a gap near zero is a tie; otherwise build the bundle again on this machine",
            )


def verify_session(
    session: Session,
    golden: Sequence[Golden],
    prompts: Sequence[Prompt],
    num_tokens: int,
    progress: Callable[[str], None] = lambda text: None,
    sampling: SamplingParams = GREEDY,
) -> Report:
    """Decodes golden prompts and `prompts` plainly and with trees, and compares the tokens.

    Trees are drafted in every pass, whether they pay or not. `sampling`, of which temperature and
    seed are used, is for `prompts`. Raises RequestError for a prompt that the bundle cannot take.
    """
    if prompts and session.text is None:
        raise RequestError(
            "the bundle has no tokenizer, so it takes no prompts of text",
            "leave out --prompts; its golden outputs are checked without them",
        )
    cases: list[tuple[str, list[int], tuple[int, ...] | None, int]] = [
        (f"golden {number}", list(one.prompt_ids), one.output_ids, len(one.output_ids))
        for number, one in enumerate(golden, 1)
    ]
    for prompt in prompts:
        assert session.text is not None
        cases.append((prompt.name, prompt.encode(session.text), None, num_tokens))
    seed = sampling.choose_seed()
    differences: list[Difference] = []
    total = num_passes = 0
    passed = 0.0
    for number, (name, ids, wanted, limit) in enumerate(cases, 1):
        progress(f"{number}/{len(cases)} {name}")
        # A golden output goes on after EOS where its builder did, so EOS does not end it here.
        is_golden = wanted is not None
        plain, drafted = (
            session.generate(
                ids,
                max_tokens=limit,
                ignore_eos=is_golden,
                temperature=0.0 if is_golden else sampling.temperature,
                seed=None if is_golden else seed,
                plain=plainly,
                gated=plainly,
            )
            for plainly in (True, False)
        )
        total += len(plain.ids)
        num_passes += drafted.stats.num_passes
        passed += drafted.stats.num_passes * drafted.stats.mean_acceptance_length
        pairs: list[tuple[Literal["golden", "tree"], Sequence[int], list[int]]] = [
            ("golden", wanted if wanted is not None else plain.ids, plain.ids),
            ("tree", plain.ids, drafted.ids),
        ]
        for check, expected, found in pairs:
            index = first_difference(expected, found)
            if index is not None:
                differences.append(
                    _difference(session, check, (number, name), ids, expected, found, index)
                )
    progress("")
    return Report(
        tree=format_tree_spec(session.tree),
        num_golden=len(golden),
        num_prompts=len(prompts),
        num_tokens=total,
        mean_acceptance_length=passed / num_passes if num_passes else 0.0,
        differences=tuple(differences),
        seed=seed,
    )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs or that only one has; None for equal sequences."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def top2_gap(graphs: Graphs, ids: Sequence[int]) -> float:
    """Largest less second-largest logit of the token after `ids`, as plain decoding sees them."""
    cache = graphs.new_cache()
    for start, end in prefill_chunks(graphs.prefill_buckets, 0, len(ids) - 1):
        graphs.prefill(cache, ids[start:end], start)
    out = graphs.verify(cache, TokenTree.single(ids[-1]), len(ids) - 1)
    first, second = out.logits[0].topk(2).values.tolist()
    return float(first - second)


def _difference(
    session: Session,
    check: Literal["golden", "tree"],
    case: tuple[int, str],
    prompt_ids: list[int],
    expected: Sequence[int],
    found: Sequence[int],
    index: int,
) -> Difference:
    text = session.text

    def token(ids: Sequence[int]) -> int | None:
        return ids[index] if index < len(ids) else None

    def shown(token_id: int | None) -> str:
        return text.token(token_id) if text is not None and token_id is not None else ""

    number, name = case
    return Difference(
        check=check,
        prompt=number,
        name=name,
        index=index,
        wanted=token(expected),
        found=token(found),
        wanted_text=shown(token(expected)),
        found_text=shown(token(found)),
        top2_gap=top2_gap(session.graphs, [*prompt_ids, *expected[:index]]),
    )
