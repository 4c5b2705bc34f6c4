"""The meter of other processes' time: its readings of /proc, and a process that really burns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time, sleep

import pytest

from yggrt.busy import BusyMeter, busy_ticks, process_ticks, warning

STAT = """\
cpu  70 7 5 200 20 3 2 1 4 0
cpu0 30 3 2 100 10 1 1 1 4 0
cpu1 40 4 3 100 10 2 1 0 0 0
intr 5 1 2
ctxt 12
"""


def test_only_the_processors_at_hand_count_and_waiting_does_not() -> None:
    assert busy_ticks(STAT, {0}) == 30 + 3 + 2 + 1 + 1 + 1
    assert busy_ticks(STAT, {0, 1}) == 38 + 50
    assert busy_ticks(STAT, {7}) == 0


def test_a_name_with_spaces_and_parentheses() -> None:
    fields = " ".join(str(n) for n in range(4, 30))
    assert process_ticks(f"17 (a ) (b) c) R {fields}") == 14 + 15


def test_own_ticks_are_those_of_the_process() -> None:
    ticks = process_ticks(Path("/proc/self/stat").read_text())
    assert ticks / os.sysconf("SC_CLK_TCK") == pytest.approx(process_time(), abs=0.1)


def burn(seconds: float) -> subprocess.Popen[bytes]:
    program = f"import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"
    return subprocess.Popen([sys.executable, "-c", program])


def test_another_process_is_seen_and_our_own_is_not() -> None:
    with burn(60) as other:
        try:
            sleep(0.2)
            before = process_ticks(Path(f"/proc/{other.pid}/stat").read_text())
            meter, meter_of_both = BusyMeter(), BusyMeter([other.pid])
            end = perf_counter() + 1.0
            while perf_counter() < end:
                sum(range(1000))
            share, rest = meter.share(), meter_of_both.share()
            after = process_ticks(Path(f"/proc/{other.pid}/stat").read_text())
        finally:
            other.kill()
    # Whatever else runs here, the two readings differ by what this one process took.
    taken_s = (after - before) / os.sysconf("SC_CLK_TCK")
    num_cpus = len(os.sched_getaffinity(0))
    assert taken_s > 0.1
    assert share * num_cpus * 1.0 > 0.5 * taken_s
    assert (share - rest) * num_cpus * 1.0 > 0.5 * taken_s


def test_a_warning_names_the_figures() -> None:
    assert warning(0.01, 0.02) is None
    for line, wanted, other in (
        (warning(0.314), "31%", "equal runs"),
        (warning(0.0, 0.17), "17%", "other processes"),
    ):
        assert line is not None
        assert wanted in line
        assert other not in line
