"""Tests of text files as sequences: completeness, memory, and wrong files."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from qkv.learn import Corpus, Files, _corpus as corpus_module, paragraphs, running, train_tokenizer
from qkv.learn._corpus import Line, Location, need_two_words


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def by_blocks(files: Files, size: int) -> list[str]:
    found, location = [], Location()
    while location.file < len(files.paths):
        lines, location = files.block(location, size)
        found += [line.text for line in lines]
    return found


class Letters:
    """A tokenizer whose tokens are characters."""

    def __init__(self) -> None:
        self.vocabulary = {"<|endoftext|>": 0}

    def ids_batch(self, texts):
        return [np.frombuffer(text.encode("utf-32-le"), np.int32) for text in texts]


def spelled(pieces) -> list[str]:
    return ["".join(map(chr, piece)) for piece in pieces]


# Reading


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_every_line_is_read_once_whatever_the_block(tmp_path: Path, size: int) -> None:
    texts = ["one\ntwo\r\n\nthree", "", "\n", "v\u00e4\u00e4r\n\u4e16\u754c\n"]
    files = Files([write(tmp_path / str(k), text) for k, text in enumerate(texts)])
    expected = [line for text in texts for line in text.splitlines(keepends=True)]
    assert by_blocks(files, size) == expected
    assert list(files.lines()) == expected
    lines, _ = files.block(Location())
    ends = [line.text for line in lines if line.last]
    assert ends == ["three", "\n", "\u4e16\u754c\n"]


def test_a_long_line_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", 16)
    words = "alpha beta gamma delta epsilon " * 5
    glyphs = "\u4e16\u754c\U0001f600\u00e4a" * 9
    text = f"\ufeff{words}{glyphs}\nlast"
    files = Files([write(tmp_path / "a", text)])
    pieces = by_blocks(files, 20)
    assert "".join(pieces) == text.removeprefix("\ufeff")
    assert max(len(piece.encode()) for piece in pieces) <= 16
    assert all(piece.startswith(" ") for piece in pieces[1:9])


@pytest.mark.parametrize("longest", [16, 40, 1000])
def test_splitting_a_long_line_does_not_change_its_tokens(
    longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the cat  sat on\tthe mat, \u4e16\u754c! " * 9 + "the cat\n"
    tokenizer = train_tokenizer([text] * 9, "bytes", 300)
    (whole,) = running(tokenizer, 1000)([Line(text, True)])
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", longest)
    lines, _ = Files([write(tmp_path / "a", text)]).block(Location())
    assert (len(lines) > 1) == (longest < 1000)
    (found,) = running(tokenizer, 1000)(lines)
    np.testing.assert_array_equal(found, whole)


def test_the_text_tokenized_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the tokenizer gets only a small amount of text.

    A signal such as Ctrl-C has no effect before the call ends, so the call must be short.
    """
    tokenizer = train_tokenizer(["the cat sat on the mat\n"] * 9, "wordpiece", 300)
    lines = [Line("the cat sat on the mat\n", number == 99) for number in range(100)]
    expected = np.concatenate([ids[1:-1] for ids in paragraphs(tokenizer, 16)(lines)])
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", 200)
    given: list[list[str]] = []
    inside = tokenizer.ids_batch
    monkeypatch.setattr(
        tokenizer, "ids_batch", lambda texts: given.append(list(texts)) or inside(texts)
    )
    for cut in (paragraphs(tokenizer, 16), running(tokenizer, 16)):
        found = cut(lines)
        assert max(sum(map(len, texts)) for texts in given) <= 250
        if given[0][0].startswith("the cat sat on the mat the"):
            np.testing.assert_array_equal(np.concatenate([one[1:-1] for one in found]), expected)
        given.clear()


@pytest.mark.parametrize("how", ["block", "sample", "train"])
def test_a_file_that_shrinks_while_it_is_read(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    files = Files([write(path, "the cat sat\n" * 1000)])
    tokenizer = train_tokenizer(["the cat sat\n"] * 9, "bytes", 300)
    read = {
        "block": lambda: files.block(Location()),
        "sample": lambda: list(files.lines(9000)),
        "train": lambda: Corpus(files, running(tokenizer, 8)).take(),
    }[how]
    write(path, "the cat sat\n" * 10)
    words = f"corpus: {path} had 12000 bytes and now has 120: do not write to it"
    with pytest.raises(ValueError, match=words):
        read()


def test_a_sample_is_spread_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_STRETCH", 100)
    numbers = [f"{k:09d}\n" for k in range(2000)]
    files = Files(
        [write(tmp_path / "a", "".join(numbers[:500])), write(tmp_path / "b", "".join(numbers))]
    )
    sample = list(files.lines(5000))
    assert set(sample) <= set(numbers)
    assert 250 < len(sample) <= 500
    found = sorted(int(line) for line in sample)
    assert max(b - a for a, b in pairwise(found)) < 100


def test_a_sample_of_one_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_STRETCH", 100)
    files = Files([write(tmp_path / "a", " ".join(f"{k:09d}" for k in range(2000)))])
    sample = list(files.lines(5000))
    assert sum(map(len, sample)) == 5000
    words = [word for piece in sample for word in piece.split() if len(word) == 9]
    assert len(set(words)) > 400
    assert min(map(int, words)) < 50
    assert max(map(int, words)) > 1900


# Cutting


def test_paragraphs(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["the cat sat on the mat"] * 9, "wordpiece", 300)
    text = "The cat\nsat\n\n\n on the mat the cat sat \n\nmat"
    lines, _ = Files([write(tmp_path / "a", text), write(tmp_path / "b", "cat")]).block(Location())
    pieces = paragraphs(tokenizer, 6)(lines)
    names = [[tokenizer.token(int(one)) for one in piece] for piece in pieces]
    assert [" ".join(one) for one in names] == [
        "[CLS] the cat sat [SEP]",
        "[CLS] on the mat the [SEP]",
        "[CLS] cat sat [SEP]",
        "[CLS] mat [SEP]",
        "[CLS] cat [SEP]",
    ]


def test_running_text(tmp_path: Path) -> None:
    lines, _ = Files([write(tmp_path / "a", "abc\ndef"), write(tmp_path / "b", "g\n")]).block(
        Location()
    )
    pieces = spelled(running(Letters(), 4)(lines))
    assert pieces == ["abc\nd", "def\0g", "g\n\0"]


def test_every_token_but_the_first_is_a_target_once(tmp_path: Path) -> None:
    text = "".join(f"{k} and so on\n" for k in range(50))
    lines, _ = Files([write(tmp_path / "a", text)]).block(Location())
    pieces = spelled(running(Letters(), 7)(lines))
    assert pieces[0] + "".join(piece[1:] for piece in pieces[1:]) == text + "\0"
    assert max(map(len, pieces)) == 8


# The order


def corpus(path: str, **options) -> Corpus:
    return Corpus(Files([path]), running(Letters(), 4), **options)


def test_epochs_have_the_same_sequences_in_another_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "".join(f"{k:03d}\n" for k in range(40)))
    whole = spelled(running(Letters(), 4)(Files([path]).block(Location())[0]))
    source = corpus(path, seed=5)
    rounds = [spelled(source.take() for _ in whole) for _ in range(3)]
    assert all(sorted(one) == sorted(whole) for one in rounds)
    assert rounds[0] != rounds[1] != rounds[2] != whole
    assert spelled(corpus(path, seed=5).take() for _ in range(1)) == rounds[0][:1]


def test_a_corpus_resumes_from_any_saved_state(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "".join(f"{k:03d}\n" for k in range(40)))
    whole = corpus(path, seed=5, block=30)
    expected = spelled(whole.take() for _ in range(100))
    for taken in (0, 1, 7, 8, 39, 40, 41, 77):
        source = corpus(path, seed=5, block=30)
        for _ in range(taken):
            source.take()
        state = json.loads(json.dumps(source.state()))
        again = corpus(path, seed=5)
        again.restore(state)
        assert spelled(again.take() for _ in range(100 - taken)) == expected[taken:]


def test_a_small_corpus_is_read_and_cut_once(tmp_path: Path) -> None:
    cuts = []

    def cut(lines):
        cuts.append(len(lines))
        return running(Letters(), 4)(lines)

    for block, expected in ((1000, [40]), (80, [20, 20] * 3)):
        files = Files([write(tmp_path / "a", "".join(f"{k:03d}\n" for k in range(40)))])
        cuts.clear()
        source = Corpus(files, cut, block=block)
        while source.state()["epoch"] < 3:
            source.take()
        assert cuts == [*expected, *expected[: len(expected) % 2 == 0]]


def test_other_files_are_refused(tmp_path: Path) -> None:
    state = corpus(write(tmp_path / "a", "one\ntwo\n")).state()
    again = corpus(write(tmp_path / "a", "one\ntwo\nthree\n"))
    with pytest.raises(ValueError, match="has 14 bytes, but had 8 when"):
        again.restore(state)


@pytest.mark.alone
@pytest.mark.attack
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "large"
    line = b"the cat sat on the mat and the dog ran to the river\n"
    peaks = []
    for count in (15_000, 2_000, 15_000):  # the first round also allocates memory that stays
        path.write_bytes(line * count)
        source = Corpus(Files([path]), running(Letters(), 250), block=20_000)
        tracemalloc.start()
        letters = 0
        while source.state()["epoch"] == 0:
            letters += len(source.take()) - 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert letters > 0.9 * len(line) * count
    assert peaks[2] < 1.2 * peaks[1] < len(line) * 15_000


# Wrong files


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file is given"):
        Files([])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Files([tmp_path / "nowhere"])
    with pytest.raises(IsADirectoryError, match="is a folder; pass the text files"):
        Files([tmp_path])


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no named pipes")
def test_a_pipe_cannot_be_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a regular file"):
        Files([tmp_path / "pipe"])


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="this user can read every file"
)
def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", "one two")
    Path(path).chmod(0)
    with pytest.raises(PermissionError, match="secret"):
        Files([path])


def test_texts_without_two_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"empty.txt is empty"):
        Files([write(tmp_path / "empty.txt", "")])
    with pytest.raises(ValueError, match="contains only the word 'spam'"):
        need_two_words(Files([write(tmp_path / "a", "spam spam\nspam\n" * 100)]))
    with pytest.raises(ValueError, match="contains only white space"):
        need_two_words(Files([write(tmp_path / "b", " \n\n\t")]))
    for text in ("spam\n" * 10 + "egg", "spam!", "\u4e16\u754c" * 100, "a " * 9 + "b" * 2**20):
        need_two_words(Files([write(tmp_path / "c", text)]))
    with pytest.raises(ValueError, match="contains no tokens"):
        Corpus(Files([write(tmp_path / "d", "\n")]), lambda lines: []).take()


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    files = Files([write(tmp_path / "good", "a\n"), write(tmp_path / "bad", b"one\ntw\xff\n")])
    with pytest.raises(ValueError, match="bad is not UTF-8: line 2 contains the byte 0xff, byte 7"):
        list(files.lines())
    files = Files([write(tmp_path / "bad", b"one\n\ntw\0o")])
    with pytest.raises(ValueError, match=r"bad is not text: byte 3 of line 3 is NUL"):
        by_blocks(files, 4)


def test_a_line_read_in_parts_counts_as_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "_LONGEST_LINE", 16)
    files = Files([write(tmp_path / "bad", b"one two " * 9 + b"\ntw\xff\n")])
    with pytest.raises(ValueError, match=r"line 2 contains the byte 0xff, byte 76 of the file"):
        list(files.lines())
