"""Streamed text equals the text of all ids, and stop strings are found wherever tokens are cut."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import tiny_tokenizers as tiny

from yggrt.core.errors import RequestError
from yggrt.stopping import StopMatcher
from yggrt.text import Text

TEXTS = [
    "two words and one more",
    "🎉 emoji 👩‍👩‍👧 漢字 é",
    " leading and  double  spaces \n\n tail ",
    "a\ufffdb",
    "mixed 🎉<|im_end|>🎉 x",
]


def stream(text: Text, ids: list[int]) -> list[str]:
    detokenizer = text.detokenizer()
    return [detokenizer.feed(token_id) for token_id in ids]


@pytest.mark.parametrize("make", [tiny.chatml_text, tiny.llama_text])
@pytest.mark.parametrize("prompt", TEXTS)
def test_joined_pieces_are_the_whole_text(make: Callable[[], Text], prompt: str) -> None:
    text = make()
    ids = text.encode(prompt)
    pieces = stream(text, ids)
    assert "".join(pieces) == text.decode(ids)
    if "\ufffd" not in prompt:
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("make", [tiny.chatml_text, tiny.llama_text])
def test_a_four_byte_emoji_arrives_in_one_piece(make: Callable[[], Text]) -> None:
    text = make()
    ids = text.encode("x🎉")
    assert stream(text, ids)[-4:] == ["", "", "", "🎉"]
    # An output that ends inside the character ends before it.
    assert "".join(stream(text, ids[:-1])) == "x"


@pytest.mark.parametrize("make", [tiny.chatml_text, tiny.llama_text])
def test_random_ids_stream_to_their_text(make: Callable[[], Text]) -> None:
    text = make()
    rng = random.Random(7)
    # Byte fallback turns a run of bytes that is no UTF-8 into U+FFFD as a whole, also bytes shown
    # long before.
    some = range(300) if make is tiny.chatml_text else range(259, 359)
    for _ in range(200):
        ids = [rng.choice(some) for _ in range(rng.randrange(1, 30))]
        joined = "".join(stream(text, ids))
        assert joined == text.decode(ids)[: len(joined)]
        assert set(text.decode(ids)[len(joined) :]) <= {"\ufffd"}


def feed_all(stops: list[str], pieces: list[str]) -> tuple[str, int | None]:
    matcher = StopMatcher(stops)
    emitted = ""
    for index, piece in enumerate(pieces):
        text, hit = matcher.feed(piece)
        emitted += text
        if hit:
            return emitted, index
    return emitted + matcher.flush(), None


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["two words"], ["say", " two", " words", " more"], ("say ", 2)),
        (["ab"], ["a", "a", "a", "b"], ("aa", 3)),
        (["aab"], ["aa", "aab"], ("aa", 1)),
        (["\n"], ["x\ny", "z"], ("x", 0)),
        (["cd", "bcde"], ["ab", "cd", "e"], ("ab", 1)),
        (["late", "x"], ["a x la", "te"], ("a ", 0)),
        (["never"], ["nev", "nev"], ("nevnev", None)),
        ([], ["a", "b"], ("ab", None)),
    ],
)
def test_stop_strings_are_found_across_pieces(
    stops: list[str], pieces: list[str], expected: tuple[str, int | None]
) -> None:
    assert feed_all(stops, pieces) == expected


def test_nothing_of_a_stop_string_is_emitted_early() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("go S") == ("go ", False)
    assert matcher.feed("TO") == ("", False)
    assert matcher.feed("X S") == ("STOX ", False)
    assert matcher.feed("TOP now") == ("", True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopMatcher(["a", ""])


def test_a_metaspace_tokenizers_stop_of_two_words_is_cut() -> None:
    text = tiny.llama_text()
    ids = text.encode("it says two words and more")
    emitted, index = feed_all(["two words"], stream(text, ids))
    assert emitted == "it says "
    assert index is not None
    assert text.decode(ids[: index + 1]) == "it says two words"


def test_stop_string_of_broken_utf8_is_refused() -> None:
    with pytest.raises(RequestError, match="not valid UTF-8"):
        StopMatcher(["a\udcff"])
