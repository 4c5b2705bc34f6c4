"""Policies on a command line, and what a comparison of them takes."""

from __future__ import annotations

import pytest

from yggc.compare.options import check_one_bundle
from yggc.config import buckets_up_to, load_config
from yggc.policies import check_policies, check_room
from yggrt.core.errors import RequestError


def test_names_are_taken_once_and_all_leaves_out_what_has_no_settings() -> None:
    assert check_policies(None) == ()
    assert check_policies("egt, sequence,egt") == ("egt", "sequence")
    every = check_policies("all")
    assert {"plain", "egt", "level", "sequoia", "specinfer", "medusa", "sequence"} <= set(every)
    assert {"lookahead", "static"}.isdisjoint(every)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beam", "--policies has 'beam'; there are egt, level, lookahead"),
        ("", "--policies has ''"),
        ("lookahead", "what its window was answered"),
        ("egt,static", "no settings to choose among"),
    ],
)
def test_what_cannot_be_compared_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_policies(text)
    assert message in caught.value.message
    assert caught.value.tip


def test_flags_of_the_other_comparison_are_refused() -> None:
    nothing = {"--lookup": None}, {"--budget": None}
    assert check_one_bundle("egt", 1, *nothing) == ("egt",)
    assert check_one_bundle(None, 3, *nothing) == ()
    for arguments, message in (
        (("egt", 1, {"--lookup": [2]}, {}), "--lookup is given with --policies"),
        ((None, 1, {}, {"--budget": [8]}), "--budget is given without --policies"),
        (("egt", 2, {}, {}), "--policies and 2 bundles, wanted one"),
    ):
        with pytest.raises(RequestError, match=message):
            check_one_bundle(*arguments)


def test_a_build_has_graphs_for_the_policies_that_it_names() -> None:
    flags = {"verifier": "m.gguf", "output": "m.ygg", "target": "cpu"}
    config, _ = load_config(None, flags | {"buckets": buckets_up_to(64)})
    check_room(check_policies("all"), config)
    alone, _ = load_config(None, flags | {"buckets": [1]})
    check_room(("plain",), alone)
    with pytest.raises(RequestError, match="'sequoia', no tree of which fits verify graphs of 1"):
        check_room(("plain", "sequoia"), alone)
    shallow, _ = load_config(None, flags | {"max_depth": 1})
    with pytest.raises(RequestError, match=r"'specinfer', no tree of which fits .* 1 levels"):
        check_room(("specinfer",), shallow)
