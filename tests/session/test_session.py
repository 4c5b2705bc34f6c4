"""A session ends where plain decoding ends, whatever its passes bring. Scripted graphs, real
tokenizers.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny_tokenizers as tiny
from parts import CHAIN, TREE, StubbornDrafter, make, telling
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs

from yggrt.core.errors import RequestError
from yggrt.core.spec import parse_tree_spec
from yggrt.session import PLAIN, Completion, Parts, Session


@pytest.mark.parametrize("tree", [CHAIN, TREE, "static:parents=0/0/1/1/2/2"])
def test_eos_inside_an_accepted_run_ends_the_output(tree: str) -> None:
    graphs = ScriptedGraphs(vocab_size=12)
    prompt = [1, 2, 3]
    plain = graphs.plain(prompt, 20)
    for place in range(12):
        eos = plain[place]
        session = make(graphs, OracleDrafter(12, graphs=graphs), eos_ids=[eos], tree=tree)
        done = session.generate(prompt, max_tokens=20, gated=False)
        assert done.ids == plain[: plain.index(eos) + 1]
        assert done.finish_reason == "stop"
        assert done.stats.num_tokens == len(done.ids)


def test_any_of_several_eos_ids_ends_the_output() -> None:
    graphs = ScriptedGraphs(vocab_size=12)
    plain = graphs.plain([5], 30)
    eos_ids = sorted(set(plain[4:9]))
    first = min(plain.index(token) for token in eos_ids)
    session = make(graphs, OracleDrafter(12, graphs=graphs), eos_ids=eos_ids, tree=TREE)
    assert session.generate([5], max_tokens=30).ids == plain[: first + 1]


def test_a_drafter_that_always_proposes_eos_changes_nothing() -> None:
    graphs = ScriptedGraphs(vocab_size=12)
    plain = graphs.plain([5], 30)
    eos = next(token for token in range(12) if token not in plain[:15])
    session = make(graphs, StubbornDrafter(12, token=eos), eos_ids=[eos])
    expected = plain[: plain.index(eos) + 1] if eos in plain else plain
    assert session.generate([5], max_tokens=30, gated=False).ids == expected


@pytest.mark.parametrize("prompt_len", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_short_prompts(prompt_len: int, tree: str) -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs), tree=tree)
    for turn in range(3):
        prompt = [(turn + i) % 6 for i in range(prompt_len)]
        assert session.generate(prompt, max_tokens=20).ids == graphs.plain(prompt, 20)


def test_plain_and_trees_take_turns_on_one_session() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs), tree=TREE)
    for options in ({"plain": True}, {}, {"tree": CHAIN}, {"tree": PLAIN}, {"gated": False}):
        done = session.generate([3, 1], max_tokens=25, **options)
        assert done.ids == graphs.plain([3, 1], 25)
        if options.get("plain"):
            assert done.stats.num_passes == done.stats.num_plain_passes == 24
            assert done.stats.tree == "plain"


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_max_tokens_cuts_an_accepted_run(max_tokens: int) -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs))
    done = session.generate([2], max_tokens=max_tokens)
    assert done.ids == graphs.plain([2], max_tokens)
    assert done.finish_reason == "length"
    assert (done.stats.tpot_ms is None) == (max_tokens == 1)


def test_the_context_limit_ends_the_output_and_refuses_longer_prompts() -> None:
    graphs = ScriptedGraphs(max_model_len=32)
    session = make(graphs, OracleDrafter(6, graphs=graphs), tree=TREE)
    prompt = [1] * 10
    done = session.generate(prompt, max_tokens=1000)
    assert done.ids == graphs.plain(prompt, 22)
    assert done.finish_reason == "length"
    assert session.generate([1] * 31, max_tokens=9).ids == graphs.plain([1] * 31, 1)
    for num in (32, 33, 1000):
        with pytest.raises(RequestError, match=rf"{num} tokens.* 32 ") as caught:
            session.generate([1] * num)
        assert caught.value.exit_code == 2


def test_bad_requests_name_what_was_found_and_wanted() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, RandomDrafter(), tree="plain")
    with pytest.raises(RequestError, match=r"prompt id 6 at index 1 .*0\.\.5"):
        session.generate([1, 6])
    with pytest.raises(RequestError, match="-1 at index 0"):
        session.generate([-1])
    with pytest.raises(RequestError, match="no tokens"):
        session.generate([])
    with pytest.raises(RequestError, match="no tokenizer"):
        session.generate("hello")
    with pytest.raises(RequestError, match="no tokenizer"):
        session.chat([{"role": "user", "content": "hello"}])
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        session.generate([1], stop=["x"])
    with pytest.raises(RequestError, match="max_tokens is 0"):
        session.generate([1], max_tokens=0)
    with pytest.raises(RequestError, match="verifies 64 rows, the largest graph holds 16"):
        session.generate([1], tree="egt:width=8,depth=8,verify=64")
    with pytest.raises(RequestError, match="verifies 17 rows"):
        make(graphs, RandomDrafter(), tree="sequence:depth=16")
    # A refused request leaves the session usable.
    assert session.generate([1], max_tokens=5).ids == graphs.plain([1], 5)


@pytest.mark.parametrize("make_text", [tiny.chatml_text, tiny.llama_text])
@pytest.mark.parametrize("tree", [CHAIN, "plain"])
def test_a_stop_of_two_words_is_cut_inside_a_run(make_text: Any, tree: str) -> None:
    text = make_text()
    session, script = telling(text, "it says two words and more", tree=tree)
    done = session.generate("hello", stop=["two words"])
    assert done.text == "it says "
    assert done.finish_reason == "stop"
    assert done.ids == script[: len(done.ids)]
    assert text.decode(done.ids).endswith("two words")
    assert done.stats.num_tokens == len(done.ids)


def test_a_stop_of_one_character_in_the_first_token_of_a_long_run() -> None:
    text = tiny.chatml_text()
    session, script = telling(text, "one two words and stops then one more word follows here")
    full = session.generate("hello", max_tokens=len(script))
    assert max(full.stats.accepted_histogram) >= 8
    # The second token is the first of the first pass, which accepts eight drafts.
    second = text.decode(script[:2])[len(text.decode(script[:1])) :]
    done = session.generate("hello", stop=[second[-1]])
    assert len(done.ids) <= 2
    assert second[-1] not in done.text
    assert done.ids == script[: len(done.ids)]


def test_the_earliest_of_several_stops_wins_and_may_be_one_string() -> None:
    text = tiny.chatml_text()
    session, _ = telling(text, "one two words and one more word")
    assert session.generate("hello", stop=["more", "words", "zebra"]).text == "one two "
    assert session.generate("hello", stop="words").text == "one two "


@pytest.mark.parametrize("make_text", [tiny.chatml_text, tiny.llama_text])
@pytest.mark.parametrize("tree", [CHAIN, "plain"])
def test_streamed_text_equals_the_whole_text(make_text: Any, tree: str) -> None:
    text = make_text()
    said = "the fox 🎉 says 漢字 é two words"
    session, script = telling(text, said, tree=tree)
    pieces = list(session.stream("hello", max_tokens=len(script)))
    done = session.last
    assert done is not None
    assert "".join(piece.text for piece in pieces) == done.text == said
    assert [i for piece in pieces for i in piece.ids] == done.ids == script
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert session.generate("hello", max_tokens=len(script)).text == said


def test_held_back_text_comes_out_at_the_end() -> None:
    text = tiny.chatml_text()
    session, script = telling(text, "say STO")
    done = session.generate("hello", max_tokens=len(script), stop=["STOP"])
    assert (done.text, done.finish_reason) == ("say STO", "length")


def test_eos_is_in_the_ids_and_not_in_the_text() -> None:
    text = tiny.chatml_text()
    # Neither a special token nor one that is not may show.
    for end in ("<|im_end|>", "</think>"):
        eos = text.encode(end)[0]
        session, _ = telling(text, f"two words{end} more", eos_ids=[eos])
        done = session.generate("hello")
        assert done.ids[-1] == eos
        assert done.text == "two words"


def conversation(*answers: str) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": "hello"}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
    return messages


def test_chat_keeps_the_rows_of_the_turns_before() -> None:
    text = tiny.chatml_text()
    graphs = ScriptedGraphs(vocab_size=300, max_model_len=512)
    session = make(graphs, OracleDrafter(300, graphs=graphs), text=text, vocab_size=1000)
    first = session.chat(conversation(), max_tokens=6)
    assert first.stats.num_reused_tokens == 0
    prompt = text.encode_chat(conversation(first.text))
    second = session.chat(conversation(first.text), max_tokens=6)
    assert second.prompt_ids == prompt
    assert second.ids == graphs.plain(prompt, 6)
    assert second.stats.num_reused_tokens >= len(first.prompt_ids)
    # A raw prompt starts afresh, with the same ids.
    again = session.generate(prompt, max_tokens=6)
    assert again.stats.num_reused_tokens == 0
    assert again.ids == second.ids


@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_reuse_after_an_early_end_is_exact(tree: str) -> None:
    graphs = ScriptedGraphs(vocab_size=12)
    session = make(graphs, OracleDrafter(12, graphs=graphs), tree=tree)
    ids = [1, 2, 3]
    for _ in range(5):
        done = session.generate(ids, max_tokens=4, reuse=True, gated=False)
        assert done.ids == graphs.plain(ids, 4)
        ids = [*ids, *done.ids, 7]
    assert done.stats.num_reused_tokens >= done.stats.num_prompt_tokens - 2


def test_cancelling_ends_between_passes() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs))
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) == 3

    done = session.generate([1], max_tokens=40, cancelled=cancelled)
    assert done.finish_reason == "cancelled"
    assert done.stats.num_passes == 2
    assert done.ids == graphs.plain([1], 40)[: len(done.ids)]


def test_closing_a_stream_cancels_it() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs))
    stream = session.stream([1], max_tokens=40)
    ids = [*next(stream).ids, *next(stream).ids]
    stream.close()
    assert session.last is not None
    assert session.last.finish_reason == "cancelled"
    assert session.last.ids == ids == graphs.plain([1], len(ids))
    done = session.generate([1, *ids], max_tokens=5, reuse=True)
    assert done.ids == graphs.plain([1, *ids], 5)


def test_a_stream_that_was_overtaken_says_so() -> None:
    session = make(ScriptedGraphs(), RandomDrafter(), tree="plain")
    stream = session.stream([1], max_tokens=40)
    next(stream)
    done: Completion = session.generate([2], max_tokens=3)
    with pytest.raises(RequestError, match="another request"):
        next(stream)
    assert session.last is done


def test_statistics_add_up() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs), tree=TREE)
    stats = session.generate([1, 2], max_tokens=30, gated=False).stats
    assert stats.num_prompt_tokens == 2
    assert stats.num_passes == sum(stats.accepted_histogram.values())
    assert stats.mean_acceptance_length > 1.5
    assert stats.tpot_ms is not None
    assert sum(stats.stage_share.values()) == pytest.approx(1)
    assert set(stats.stage_share) == {"draft", "verify", "accept", "commit", "other"}
    assert "30 tokens" in stats.line()


def test_a_gate_that_closes_is_reported() -> None:
    graphs = ScriptedGraphs()
    session = Session(
        Parts(graphs, StubbornDrafter(token=5), lambda rows, context: 1.0 + rows / 8, 0.0),
        text=None,
        eos_ids=(),
        vocab_size=6,
        tree=parse_tree_spec(CHAIN),
    )
    done = session.generate([1], max_tokens=40)
    assert done.ids == graphs.plain([1], 40)
    assert done.stats.num_gated_passes > 0
    assert "gated" in done.stats.line()
