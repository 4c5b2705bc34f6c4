"""What a request cost, in the words that every report uses."""

from __future__ import annotations

from dataclasses import dataclass

from yggrt.engine_stats import EngineStats, Promised


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of one request. Times are milliseconds.

    ttft_ms: from the request to the first token. tpot_ms: decode time per token after the first,
    None if there is none. mean_acceptance_length: tokens per verify pass, the bonus token
    included. num_beyond_drafter_passes: passes without a draft since the sequence was longer than
    the drafter's context. alpha: accepts / tests. accepted: drafted tokens accepted. The last pass
    may bring tokens past the end of the output; they count in the tokens per pass, alpha and
    accepted, and not in num_tokens.
    tests_histogram: passes by the depth down to which a drafted token was tested.
    accepted_first, accepted_second: how many of the accepted each of two drafters had, 0 where one
    drafts. ranks_histogram, children_histogram, promised: as in EngineStats.
    stage_ms: decode time by stage; `other` is what the stages leave. seed: what the tokens were
    drawn with, None for greedy decoding.
    """

    tree: str
    num_prompt_tokens: int
    num_reused_tokens: int
    num_tokens: int
    num_passes: int
    num_plain_passes: int
    num_gated_passes: int
    num_beyond_drafter_passes: int
    num_rows: int
    mean_acceptance_length: float
    alpha: float
    accepted: int
    accepted_histogram: dict[int, int]
    tests_histogram: dict[int, int]
    accepted_first: int
    accepted_second: int
    ranks_histogram: dict[int, int]
    children_histogram: dict[int, int]
    promised: dict[int, Promised]
    ttft_ms: float
    prefill_ms: float
    tpot_ms: float | None
    stage_ms: dict[str, float]
    seed: int | None = None

    @property
    def decode_ms(self) -> float:
        return sum(self.stage_ms.values())

    @property
    def stage_share(self) -> dict[str, float]:
        """Shares of decode time by stage; empty if there was none."""
        total = self.decode_ms
        return {name: ms / total for name, ms in self.stage_ms.items()} if total else {}

    @classmethod
    def of(
        cls,
        engine: EngineStats,
        *,
        tree: str,
        num_prompt_tokens: int,
        num_tokens: int,
        ttft_s: float,
        decode_s: float,
        seed: int | None = None,
    ) -> Stats:
        stages = {str(name): s for name, s in engine.stage_s.items() if name != "prefill"}
        stages["other"] = max(0.0, decode_s - sum(stages.values()))
        return cls(
            tree=tree,
            num_prompt_tokens=num_prompt_tokens,
            num_reused_tokens=engine.num_reused,
            num_tokens=num_tokens,
            num_passes=engine.num_passes,
            num_plain_passes=engine.num_plain_passes,
            num_gated_passes=engine.num_gated,
            num_beyond_drafter_passes=engine.num_beyond,
            num_rows=engine.num_rows,
            mean_acceptance_length=engine.mean_acceptance_length,
            alpha=engine.alpha,
            accepted=engine.accepted,
            accepted_histogram=dict(sorted(engine.accepted_histogram.items())),
            tests_histogram=dict(sorted(engine.tests_histogram.items())),
            accepted_first=engine.accepted_first,
            accepted_second=engine.accepted_second,
            ranks_histogram=dict(sorted(engine.ranks_histogram.items())),
            children_histogram=dict(sorted(engine.children_histogram.items())),
            promised=dict(sorted(engine.promised.items())),
            ttft_ms=1e3 * ttft_s,
            prefill_ms=1e3 * engine.stage_s["prefill"],
            tpot_ms=1e3 * decode_s / (num_tokens - 1) if num_tokens > 1 else None,
            stage_ms={name: 1e3 * s for name, s in stages.items()},
            seed=seed,
        )

    def line(self) -> str:
        """One line for a person."""
        speed = "" if self.tpot_ms is None else f", {self.tpot_ms:.1f} ms/token"
        seed = "" if self.seed is None else f"; seed {self.seed}"
        counts = {"gated": self.num_gated_passes, "undrafted": self.num_beyond_drafter_passes}
        undrafted = ", ".join(f"{num} {name}" for name, num in counts.items() if num)
        undrafted = f" ({undrafted})" if undrafted else ""
        return (
            f"{self.num_tokens} tokens{speed}, first after {self.ttft_ms:.0f} ms; "
            f"{self.num_passes} passes{undrafted}, "
            f"{self.mean_acceptance_length:.2f} tokens/pass; {self.tree}{seed}"
        )
