"""What Lookahead accepts per pass on three prompt sets, and that its tokens are the verifier's.

    python tests/accept/lookahead.py BUNDLE [--num 20] [--tokens 96] [--threads N]

BUNDLE was built with `--drafter lookahead`; its own tree is used, in every pass, the gate open.
Prints drafted tokens accepted per pass with the 95 % interval over prompts; exit 1 if a token
differs from plain decoding. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from prompts import chat_sets, script_options

from yggrt.interval import bootstrap_interval
from yggrt.loading import load


def main() -> int:
    options = script_options(__doc__)
    session = load(options.bundle, num_threads=options.threads)
    room = session.graphs.max_model_len - options.tokens - 1
    report: dict[str, Any] = {}
    num_different = 0
    print("| prompts | accepted per pass |\n|---|---|")
    assert session.text is not None
    for name, prompts in chat_sets(session.text, options.num, room).items():
        found = []
        for ids in prompts:
            plain = session.generate(ids, max_tokens=options.tokens, plain=True)
            drafted = session.generate(ids, max_tokens=options.tokens, gated=False)
            num_different += drafted.ids != plain.ids
            if drafted.stats.num_passes:
                found.append(drafted.stats.accepted / drafted.stats.num_passes)
        low, high = bootstrap_interval(found) or (0.0, 0.0)
        report[name] = {"mean": fmean(found), "interval": [low, high]}
        print(f"| {name} | {fmean(found):.2f} [{low:.2f}, {high:.2f}] |", flush=True)
    print(json.dumps({"accepted": report, "different": num_different}))
    return 1 if num_different else 0


if __name__ == "__main__":
    sys.exit(main())
