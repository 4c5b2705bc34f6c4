"""The gate: trust from promises and results, pauses that grow, and a way back."""

from __future__ import annotations

import pytest

from yggrt.gate import Cost, OpenGate, RunningGate


def closed_passes(gate: RunningGate) -> int:
    """Length of the current pause; the gate is open afterwards."""
    num = 0
    while not gate.is_open:
        gate.record(0.0, 0)
        num += 1
    return num


def fail_until_closed(gate: RunningGate, expected: float = 3.0) -> int:
    """Tree passes that bring nothing until the gate closes."""
    num = 0
    while gate.is_open:
        gate.record(expected, 0)
        num += 1
    return num


def proven() -> RunningGate:
    """A gate that saw one tree be right, as promised."""
    gate = RunningGate()
    gate.record(1.0, 1)
    return gate


def test_a_new_gate_trusts_little_until_a_tree_was_right():
    gate = RunningGate()
    assert gate.is_open
    assert gate.trust == gate.unproven < 0.5
    gate.record(0.0, 0)
    assert gate.trust == gate.unproven
    gate.record(1.0, 1)
    assert gate.trust == 1


def test_promises_that_hold_keep_full_trust():
    gate = RunningGate()
    for accepted in (0, 2, 1, 1, 0, 2) * 10:
        gate.record(1.0, accepted)
        assert gate.is_open
    assert gate.trust > 0.9


def test_trust_is_accepted_over_expected_with_a_prior():
    gate = RunningGate(prior=2.0, memory=0.5, unproven=1.0)
    gate.record(2.0, 1)
    assert gate.trust == (1 + 2) / (2 + 2)
    gate.record(2.0, 0)
    assert gate.trust == (0.5 + 2) / (3 + 2)


def test_trust_never_exceeds_one():
    gate = RunningGate()
    gate.record(0.5, 4)
    assert gate.trust == 1


def test_broken_promises_close_the_gate_soon():
    gate = RunningGate()
    assert fail_until_closed(gate) == 2
    assert gate.trust < gate.floor


def test_pauses_double_up_to_a_limit_and_one_probe_decides():
    gate = RunningGate(first_pause=8, max_pause=64)
    fail_until_closed(gate)
    pauses = [closed_passes(gate)]
    for _ in range(5):
        assert fail_until_closed(gate) == 1
        pauses.append(closed_passes(gate))
    assert pauses == [8, 16, 32, 64, 64, 64]


def test_a_probe_that_succeeds_opens_the_gate_and_shortens_the_next_pause():
    gate = RunningGate()
    fail_until_closed(gate)
    closed_passes(gate)
    fail_until_closed(gate)
    assert closed_passes(gate) == 2 * gate.first_pause
    gate.record(3.0, 3)
    assert gate.is_open
    fail_until_closed(gate)
    assert closed_passes(gate) == gate.first_pause


def test_distrust_fades_in_plain_passes():
    gate = proven()
    gate.record(3.0, 0)
    distrust = gate.trust
    for _ in range(300):
        gate.record(0.0, 0)
    assert distrust < 0.5
    assert gate.trust > 0.9
    assert gate.is_open


def test_a_new_prompt_opens_the_gate_with_part_of_the_evidence():
    gate = proven()
    for _ in range(2):
        gate.record(3.0, 0)
    distrust, fresh = gate.trust, proven().trust
    gate.reset()
    assert distrust < gate.trust < 0.5 * fresh
    fail_until_closed(gate)
    closed_passes(gate)
    fail_until_closed(gate)
    gate.reset()
    assert gate.is_open
    assert fail_until_closed(gate) == 1, "what failed for the prompt before has one try"
    assert closed_passes(gate) == gate.first_pause


def test_evidence_of_old_prompts_fades():
    gate = proven()
    for _ in range(3):
        gate.record(3.0, 0)
    for _ in range(30):
        gate.reset()
    assert gate.trust > 0.95


def test_what_was_right_once_needs_no_proof_for_the_next_prompt():
    gate = proven()
    gate.reset()
    assert gate.trust == 1


@pytest.mark.parametrize("accepted", [0, 5])
def test_an_open_gate_stays_open(accepted):
    gate = OpenGate()
    for _ in range(20):
        gate.record(3.0, accepted)
    assert gate.is_open
    assert gate.trust == 1


COSTLY = Cost(rows=0.2, draft=0.8)


def test_drafts_that_lose_time_close_the_gate_whatever_they_promised():
    gate = RunningGate(prior=2.0, unproven=1.0)
    num = 0
    while gate.is_open:
        # Half a token a pass, as promised, at the price of a whole pass.
        gate.record(0.5, num % 2, COSTLY)
        num += 1
    assert gate.trust > 0.7
    assert 3 <= num <= 8


def test_drafts_that_gain_time_keep_it_open():
    gate = RunningGate()
    for accepted in (0, 2, 3, 0, 1, 2) * 20:
        gate.record(1.3, accepted, COSTLY)
        assert gate.is_open


def test_rows_alone_never_close_it():
    """What verifying costs is weighed when rows are chosen."""
    gate = RunningGate()
    for _ in range(100):
        gate.record(0.05, 0, Cost(rows=0.5))
    assert gate.is_open


def test_where_drafting_costs_a_probe_may_fail_once() -> None:
    """What trees bring scatters more than what they cost."""
    gate = RunningGate()
    fail = []
    for _ in range(4):
        num = 0
        while gate.is_open:
            gate.record(0.3, 0, COSTLY)
            num += 1
        fail.append((num, closed_passes(gate)))
    assert fail == [(2, 16), (2, 32), (2, 64), (2, 128)]
    gate.record(2.0, 3, COSTLY)
    assert gate.is_open


def test_what_was_to_be_accepted_decides_and_not_what_was() -> None:
    """Trees that promise 1.3 tokens for the price of one pass, and bring that on average, are
    worth it, however many in a row brought nothing."""
    gate = RunningGate()
    for accepted in (5, 5, 0, 0, 0, 0, 0, 0) * 4:
        gate.record(1.3, accepted, COSTLY)
        assert gate.is_open


def test_old_gains_do_not_pay_for_long():
    gate = RunningGate()
    for _ in range(100):
        gate.record(3.0, 3, COSTLY)
    num = 0
    while gate.is_open:
        gate.record(0.3, 0, COSTLY)
        num += 1
    assert num <= 8


def lose_until_closed(gate: RunningGate) -> int:
    """Tree passes with half a token each, as promised, at the price of a whole pass."""
    num = 0
    while gate.is_open:
        gate.record(0.5, num % 2, COSTLY)
        num += 1
    return num


def test_right_guesses_do_not_shorten_pauses_where_drafts_lose_time() -> None:
    gate = proven()
    pauses = []
    for _ in range(3):
        lose_until_closed(gate)
        pauses.append(closed_passes(gate))
    assert pauses == [gate.first_pause, 2 * gate.first_pause, 4 * gate.first_pause]
    for _ in range(4):
        gate.record(2.0, 2, COSTLY)
    assert gate.is_open
    lose_until_closed(gate)
    assert closed_passes(gate) == gate.first_pause


def test_a_prompt_behind_one_whose_drafts_lost_time_may_lose_less() -> None:
    gate = proven()
    first = lose_until_closed(gate)
    closed_passes(gate)
    lose_until_closed(gate)
    gate.reset()
    assert gate.is_open
    assert lose_until_closed(gate) < first
    assert closed_passes(gate) == 2 * gate.first_pause
    # And one whose drafts gain time is not held back.
    gate.reset()
    for _ in range(50):
        gate.record(1.3, 1, COSTLY)
        assert gate.is_open
    gate.reset()
    lose_until_closed(gate)
    assert closed_passes(gate) == gate.first_pause


def test_short_prompts_that_gain_pay_the_debt_of_one_that_lost() -> None:
    gate = proven()
    lose_until_closed(gate)
    for _ in range(8):
        gate.reset()
        for _ in range(2):
            gate.record(1.2, 1, COSTLY)
            assert gate.is_open
    gate.reset()
    assert lose_until_closed(gate) >= lose_until_closed(proven())
    assert closed_passes(gate) == gate.first_pause
