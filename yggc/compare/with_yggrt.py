"""A bundle in the runtime."""

from __future__ import annotations

from yggc.compare.protocol import Ask, Setup, Timed
from yggrt import __version__
from yggrt.loading import load


class YggrtEngine:
    """`plain` and `tree`, the latter with the bundle's tree and gate."""

    def __init__(self, setup: Setup) -> None:
        self.title = f"yggrt {__version__}"
        self._session = load(setup.model, num_threads=setup.num_threads)

    def decode(self, ask: Ask) -> Timed:
        done = self._session.generate(
            ask.ids, max_tokens=ask.num_tokens, plain=ask.way == "plain", ignore_eos=True
        )
        return Timed(done.ids, done.stats.ttft_ms, done.stats.tpot_ms)
