"""Tree specs: one line of text and the value it stands for."""

from __future__ import annotations

import pytest

from yggrt.core.errors import RequestError
from yggrt.core.schema import TreeSpec
from yggrt.core.spec import (
    draft_steps,
    examples,
    find_policy,
    format_tree_spec,
    parse_tree_spec,
    policy_names,
)

CANONICAL = (
    *examples(),
    "egt:width=1,depth=1,children=1,verify=2,frontier=level",
    "sequence:depth=8,verify=4",
    "static:parents=0,verify=9",
    "sequence:depth=8,confidence=0.4",
    "sequence:depth=8,confidence=0.4,verify=4",
    "sequoia",
    "sequoia:rows=16,levels=4",
    "specinfer:expansion=1/1/3/1/1/1/1/1",
)


@pytest.mark.parametrize("text", CANONICAL)
def test_format_is_the_inverse_of_parse(text):
    spec = parse_tree_spec(text)
    assert format_tree_spec(spec) == text
    assert parse_tree_spec(format_tree_spec(spec)) == spec


def test_every_field_is_read():
    assert parse_tree_spec("egt:width=4,depth=3,children=9,verify=12,frontier=level") == TreeSpec(
        policy="egt", width=4, depth=3, children=9, verify=12, frontier="level"
    )
    assert parse_tree_spec("static:parents=0/0/1/3") == TreeSpec(
        policy="static", depth=3, verify=5, parents=(0, 0, 1, 3)
    )


def test_defaults():
    egt = parse_tree_spec(" egt:depth=4,width=4 ")
    assert (egt.children, egt.verify, egt.frontier) == (8, 17, "global")
    assert parse_tree_spec("sequence:depth=8").verify == 9
    assert parse_tree_spec("plain") == TreeSpec(policy="plain")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no tree policy ''; there are egt, level, lookahead, medusa, plain"),
        ("beam:width=4", "no tree policy 'beam'"),
        ("plain:depth=1", "plain has no key 'depth'; its keys are none"),
        ("egt:width=4,dept=4", "egt has no key 'dept'; its keys are width, depth, children"),
        ("egt:width=4", "depth is missing"),
        ("egt:width=4,width=5,depth=4", "'width' wants one value"),
        ("egt:width,depth=4", "'width' wants one value"),
        ("egt:width=0,depth=4", "width is '0', wanted a whole number in 1..1024"),
        ("egt:width=-1,depth=4", "width is '-1'"),
        ("egt:width=four,depth=4", "width is 'four'"),
        ("egt:width=²,depth=4", "width is '²'"),
        ("egt:width=4,depth=4,verify=1", "verify is '1', wanted a whole number in 2..1024"),
        ("egt:width=4,depth=4,frontier=all", "frontier is 'all', wanted global or level"),
        ("sequence:depth=99999", "depth is '99999'"),
        ("static", "parents is missing"),
        ("static:parents=0/x", "parents is '0/x', wanted ROW/ROW/..., one row index per node"),
        ("static:parents=0/2", "node 2 has parent 2, wanted a row in 0..1"),
        ("static:parents=-1", "node 1 has parent -1"),
        ("static:parents=" + "0/" * 1023 + "0", "1024 nodes, at most 1023"),
        ("specinfer", "expansion is missing"),
        ("specinfer:expansion=", "expansion is '', wanted a whole number in 1..1024"),
        ("specinfer:expansion=1/0/2", "expansion is '1/0/2', wanted a whole number"),
        ("specinfer:expansion=8/8/8/8", "4680 nodes, at most 1023"),
        ("sequence:depth=4,confidence=1", "confidence is '1', wanted a number between 0 and 1"),
        ("sequence:depth=4,confidence=nan", "confidence is 'nan', wanted a number"),
        ("sequoia:rows=4,levels=5", "4 rows have no 5 levels"),
        ("medusa", "nodes is missing"),
        ("medusa:nodes=1024", "1025 rows, at most 1024"),
        ("level:width=4", "depth is missing"),
        ("lookahead:window=200,ngram=9,guesses=200", "3201 rows, at most 1024"),
    ],
)
def test_a_bad_spec_says_what_is_wrong_and_shows_examples(text, message):
    with pytest.raises(RequestError) as caught:
        parse_tree_spec(text)
    assert message in caught.value.message
    policy = text.partition(":")[0]
    known = [policy] if policy in policy_names() else policy_names()
    assert all(find_policy(name).example in caught.value.tip for name in known)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("egt:width=true", "width is 'true'"),
        ("egt:width=0", "width is '0'"),
        ("egt:width=4=5", "width is '4=5'"),
        ("egt:depth=1e3", "depth is '1e3'"),
        ("sequence:depth=" + "9" * 5000, "depth is '999"),
        ("sequence:depth=2,verify=1", r"verify is '1', wanted a whole number in 2\.\."),
    ],
)
def test_a_bad_value_is_named_before_what_is_missing(text: str, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        parse_tree_spec(text)


def test_fixed_shapes_know_their_rows_and_their_steps() -> None:
    spec = parse_tree_spec("specinfer:expansion=1/1/3/1/1/1/1/1")
    assert (spec.depth, spec.verify, draft_steps(spec)) == (8, 21, (1, 1, 1, 3, 3, 3, 3, 3))
    assert draft_steps(parse_tree_spec("static:parents=0/0/1/3")) == (1, 1, 1)
    assert draft_steps(parse_tree_spec("level:width=4,depth=3")) == (1, 4, 4)
    assert draft_steps(parse_tree_spec("sequence:depth=3,confidence=0.5")) == (1, 1, 1)
