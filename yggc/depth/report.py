"""What `yggc train depth` found, for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from yggrt.inspect import describe_depth


def report_lines(found: dict[str, Any]) -> Iterator[str]:
    """The JSON of `train_depth` as tables; predicted times are on prompts held out for them."""
    record, num = found["predictor"], found["num_prompts"]
    yield (
        f"{record['num_traces']} traces of {record['num_prompts']} prompts: {num['train']} to "
        f"fit, {num['validate']} to stop and calibrate by, {num['test']} for what follows"
    )
    yield ""
    yield f"{'hazards of':<32}{'log-loss':>10}{'ms/token':>10}"
    for row in found["ablations"]:
        loss = "-" if row["log_loss"] is None else f"{row['log_loss']:.4f}"
        yield f"{row['name']:<32}{loss:>10}{row['tpot_ms']:>10.3f}"
    for depth, time_ms in enumerate(found["fixed_depth_ms"]):
        yield f"{f'depth {depth} in every pass':<32}{'-':>10}{time_ms:>10.3f}"
    yield ""
    yield f"{'depth':>5}{'chosen':>9}{'error':>9}  survival, predicted/observed (passes)"
    shares = found["depth_shares"]
    yield f"{0:>5}{shares[0]:>9.1%}{'-':>9}"
    for one in found["reliability"]:
        bins = " ".join(
            f"{b['predicted']:.2f}/{b['observed']:.2f} ({b['num']})" for b in one["bins"]
        )
        depth = one["depth"]
        yield f"{depth:>5}{shares[depth]:>9.1%}{one['error']:>9.3f}  {bins}"
    yield ""
    yield f"{'prompt set':<24}{'passes':>8}{'log-loss':>18}{'ms/token':>18}"
    for one in found["categories"]:
        pairs = (
            f"{one['constant'][key]:.{digits}f} -> {one['hidden'][key]:.{digits}f}"
            for key, digits in (("log_loss", 3), ("tpot_ms", 2))
        )
        yield f"{one['category']:<24}{one['num_traces']:>8}" + "".join(f"{p:>18}" for p in pairs)
    yield ""
    for way, time_ms in found["measured_ms"].items():
        yield f"measured {time_ms:.3f} ms/token: {way}"
    yield f"depth predictor {describe_depth(record)}"
    if not record["is_on"]:
        yield "it is off: its gain is not above 1.0 for certain"
    yield found["output"]
