"""Python stubs with a docstring and examples, made by combining small operations.

The examples are what the operations return, so a stub never contradicts itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

_Function = Callable[[Any], Any]

_LIST_FILTERS: tuple[tuple[str, str, _Function], ...] = (
    ("even", "even numbers", lambda n: n % 2 == 0),
    ("odd", "odd numbers", lambda n: n % 2 == 1),
    ("positive", "positive numbers", lambda n: n > 0),
    ("negative", "negative numbers", lambda n: n < 0),
    ("nonzero", "numbers other than zero", lambda n: n != 0),
    ("large", "numbers greater than ten", lambda n: n > 10),
    ("small", "numbers whose absolute value is below five", lambda n: abs(n) < 5),
    ("threes", "multiples of three", lambda n: n % 3 == 0),
    ("fives", "multiples of five", lambda n: n % 5 == 0),
    ("one_digit", "numbers with a single digit", lambda n: abs(n) < 10),
    ("two_digit", "numbers with exactly two digits", lambda n: 10 <= abs(n) < 100),
    ("square", "perfect squares", lambda n: n >= 0 and int(n**0.5) ** 2 == n),
    ("prime", "prime numbers", lambda n: n > 1 and all(n % d for d in range(2, n))),
)
_LIST_RESULTS: tuple[tuple[str, str, str, _Function], ...] = (
    ("sum_{}", "int", "the sum of the {}", sum),
    ("count_{}", "int", "how many {} there are", len),
    (
        "largest_{}",
        "int | None",
        "the largest of the {}, or None without any",
        lambda x: max(x, default=None),
    ),
    (
        "smallest_{}",
        "int | None",
        "the smallest of the {}, or None without any",
        lambda x: min(x, default=None),
    ),
    ("{}_only", "list[int]", "a list of the {} in their order", list),
    ("sorted_{}", "list[int]", "the {} in ascending order", sorted),
    ("reversed_{}", "list[int]", "the {} in reverse order", lambda x: x[::-1]),
    (
        "distinct_{}",
        "list[int]",
        "the {} without duplicates, in order of first appearance",
        lambda x: list(dict.fromkeys(x)),
    ),
    ("squares_of_{}", "list[int]", "the squares of the {}", lambda x: [n * n for n in x]),
    (
        "running_total_{}",
        "list[int]",
        "the running totals of the {}",
        lambda x: [sum(x[: i + 1]) for i in range(len(x))],
    ),
    (
        "first_{}",
        "int | None",
        "the first of the {}, or None without any",
        lambda x: x[0] if x else None,
    ),
    (
        "last_{}",
        "int | None",
        "the last of the {}, or None without any",
        lambda x: x[-1] if x else None,
    ),
    (
        "range_of_{}",
        "int",
        "the difference between the largest and the smallest of the {}, 0 without any",
        lambda x: max(x) - min(x) if x else 0,
    ),
    (
        "differences_of_{}",
        "list[int]",
        "the differences between neighbours among the {}",
        lambda x: [b - a for a, b in pairwise(x)],
    ),
    (
        "alternating_{}",
        "list[int]",
        "every second one of the {}, starting with the first",
        lambda x: x[::2],
    ),
    ("has_{}", "bool", "whether there are any {}", bool),
)
_WORD_FILTERS: tuple[tuple[str, str, _Function], ...] = (
    ("long", "words with more than four letters", lambda w: len(w) > 4),
    ("short", "words with at most three letters", lambda w: len(w) <= 3),
    ("capital", "words that start with a capital letter", lambda w: w[0].isupper()),
    ("vowel", "words that start with a vowel", lambda w: w[0].lower() in "aeiou"),
    ("even_length", "words of even length", lambda w: len(w) % 2 == 0),
    ("odd_length", "words of odd length", lambda w: len(w) % 2 == 1),
    ("e", "words that contain the letter e", lambda w: "e" in w.lower()),
    (
        "double",
        "words with the same letter twice in a row",
        lambda w: any(a == b for a, b in pairwise(w)),
    ),
    ("s", "words that end in s", lambda w: w.endswith("s")),
)
_WORD_RESULTS: tuple[tuple[str, str, str, _Function], ...] = (
    ("count_{}_words", "int", "the number of {}", len),
    ("{}_words", "list[str]", "a list of the {} in their order", list),
    (
        "sorted_{}_words",
        "list[str]",
        "the {} in alphabetical order, without regard to case",
        lambda x: sorted(x, key=str.lower),
    ),
    ("join_{}_words", "str", "the {} joined by hyphens", "-".join),
    ("upper_{}_words", "list[str]", "the {} in upper case", lambda x: [w.upper() for w in x]),
    (
        "mirror_{}_words",
        "list[str]",
        "the {}, each spelt backwards",
        lambda x: [w[::-1] for w in x],
    ),
    ("lengths_of_{}_words", "list[int]", "the lengths of the {}", lambda x: [len(w) for w in x]),
    (
        "longest_{}_word",
        "str",
        "the longest of the {}, the first one in a tie, or an empty string",
        lambda x: max(x, key=len, default=""),
    ),
    (
        "initials_of_{}_words",
        "str",
        "the initials of the {} as one string",
        lambda x: "".join(w[0] for w in x),
    ),
    (
        "letters_in_{}_words",
        "int",
        "how many letters the {} have together",
        lambda x: sum(map(len, x)),
    ),
)
_SENTENCES = (
    "The bees flew over the green hills",
    "Anna sees a small yellow balloon",
    "Every good story needs an ending",
    "Apples and pears fall from old trees",
    "We add salt to the boiling water",
    "Paris is full of tall lamps",
    "A kitten sleeps in the attic",
)
_OPENINGS = ("", "", "", "from typing import List\n\n\n", "import math\n\n\n")
_PHRASES = (
    "Return {}.",
    "Given {given}, return {}.",
    "You are given {given}. The function should return {}.",
    "Write a function that takes {given} and returns {}.",
)


def stubs(seed: int = 0) -> Iterator[str]:
    """Signature, docstring and one to three examples, no body; the same ones for the same seed."""
    chosen = random.Random(seed)
    for name, kind, wanted, result in _LIST_RESULTS:
        for word, noun, keep in _LIST_FILTERS:
            inputs = [
                [chosen.randint(-9, 30) for _ in range(chosen.randint(3, 8))] for _ in range(4)
            ]
            shown: list[tuple[Any, Any]] = [
                (one, result([n for n in one if keep(n)])) for one in inputs
            ]
            yield _stub(
                chosen, name.format(word), "numbers", "list[int]", kind,
                "a list of integers", wanted.format(noun), shown,
            )  # fmt: skip
    for name, kind, wanted, result in _WORD_RESULTS:
        for word, noun, keep in _WORD_FILTERS:
            texts = chosen.sample(_SENTENCES, 4)
            shown = [(one, result([w for w in one.split() if keep(w)])) for one in texts]
            yield _stub(
                chosen, name.format(word), "text", "str", kind,
                "a sentence of words separated by single spaces", wanted.format(noun), shown,
            )  # fmt: skip


def _stub(
    chosen: random.Random,
    name: str,
    argument: str,
    argument_type: str,
    result_type: str,
    given: str,
    wanted: str,
    shown: list[tuple[Any, Any]],
) -> str:
    opening = chosen.choice(_OPENINGS)
    if "List" in opening:
        argument_type = argument_type.replace("list", "List")
        result_type = result_type.replace("list", "List")
    lines = [chosen.choice(_PHRASES).format(wanted, given=given)]
    for value, result in shown[: chosen.randint(1, 3)]:
        lines += [f">>> {name}({value!r})", repr(result)]
    body = "\n    ".join(lines)
    return (
        f"{opening}def {name}({argument}: {argument_type}) -> {result_type}:\n"
        f'    """{body}\n    """\n'
    )
