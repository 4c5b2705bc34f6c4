"""Reading training text: what is kept, what is refused, and in which words."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from yggc.errors import SourceError
from yggc.train.texts import Texts, frequent_ids, read_texts


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made(num_prompt: int, *ids: int) -> dict[str, object]:
    return {"ids": list(ids), "num_prompt": num_prompt, "finish": "eos"}


def read(*paths: Path, held_out: float = 0.0, max_tokens: int = 100) -> Texts:
    return read_texts(paths, 50, max_tokens=max_tokens, held_out=held_out)


def test_rows_are_read_once_and_cut(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", made(2, 1, 2, 3, 4, 5), made(2, 1, 2, 3))
    write(tmp_path / "b.jsonl", made(2, 1, 2, 3, 4, 6), made(1, 1, 2, 3, 4, 5))
    texts = read(tmp_path, max_tokens=4)
    assert [(row.ids.tolist(), row.num_prompt) for row in texts.train] == [
        ([1, 2, 3, 4], 2),
        ([1, 2, 3, 4], 1),
    ]
    assert texts.notes == (
        "left out 1 rows without a response",
        "left out 1 rows that are there twice",
    )


def test_a_folder_of_written_text_is_its_parts(tmp_path: Path) -> None:
    (tmp_path / "dropped.jsonl").write_text('{"prompt_sha256": "ab", "reason": "repeats"}\n')
    write(tmp_path / "part-00000.jsonl", made(2, 1, 2, 3, 4))
    assert len(read(tmp_path).train) == 1


def test_gzipped_rows_are_the_same_rows(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl", made(2, 1, 2, 3, 4), made(1, 5, 6, 7))
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed).digest == read(plain).digest == read(packed / "a.jsonl.gz").digest


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"{}" + data])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(damage(gzip.compress(json.dumps(made(1, 1, 2, 3)).encode())))
    with pytest.raises(SourceError, match=r"a\.jsonl\.gz: is no whole gzip file") as caught:
        read(path)
    assert caught.value.tip


def test_a_prompt_is_held_out_with_all_its_responses(tmp_path: Path) -> None:
    rows = [
        made(2, number % 40, number % 7, *end) for number in range(280) for end in ((1, 2), (3, 4))
    ]
    texts = read(write(tmp_path / "a.jsonl", *rows), held_out=0.2)
    prompts = [{tuple(row.ids[:2]) for row in part} for part in (texts.train, texts.held_out)]
    assert not prompts[0] & prompts[1]
    assert 0.1 < len(texts.held_out) / len(rows) < 0.3
    fewer = read(tmp_path / "a.jsonl", held_out=0.1)
    assert {row.digest for row in fewer.held_out} < {row.digest for row in texts.held_out}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is no row of training text"),
        ('{"ids": [1, 2, 3]}', "lacks 'num_prompt'"),
        ('{"ids": [1, 2, "x"], "num_prompt": 1}', "is no row of training text"),
        ('{"ids": [1, 2, 3], "num_prompt": 4}', "num_prompt is 4 of 3 ids"),
        ('{"ids": [1, 50, 3], "num_prompt": 1}', "id 50 at 1 is none of the verifier's 50 ids"),
        ('{"ids": [1, -1, 3], "num_prompt": 1}', "id -1 at 1 is none of"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", made(1, 1, 2, 3))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(SourceError, match=message) as caught:
        read(path)
    assert caught.value.message.startswith(f"{path}:2: ")
    assert caught.value.tip


def test_excluded_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    known = {**made(1, 3, 4, 5), "prompt_sha256": "ab"}
    path = write(tmp_path / "a.jsonl", made(1, 1, 2, 3), made(1, 2, 2, 3), known)
    texts = read_texts(
        [path],
        50,
        max_tokens=100,
        held_out=0.0,
        excluded=lambda row: row.ids[0] == 2 or row.prompt_sha256 == "ab",
    )
    assert [row.ids.tolist() for row in texts.train] == [[1, 2, 3]]
    assert texts.notes == ("left out 2 rows whose prompt is excluded",)


def test_no_text_is_an_error(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.jsonl")
    with pytest.raises(SourceError, match="no row to train on among 0"):
        read(empty)
    with pytest.raises(SourceError, match="no such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match=r"has no \.jsonl or \.jsonl\.gz files"):
        read(tmp_path / "folder")


def test_frequent_ids_count_responses_and_break_ties_by_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", made(2, 9, 9, 7, 7, 5, 3), made(1, 9, 3, 3, 8))
    found = frequent_ids(read(path).train, 50, 4)
    assert found.tolist() == [3, 5, 7, 8]
    assert found.dtype == np.int64
