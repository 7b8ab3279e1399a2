"""Tests of the books for training: checks, cleaning, dropped words, held-out books."""

import csv
import hashlib
import tarfile
from pathlib import Path

import pytest

from training import books
from training.books import Book, is_dropped, listed, main, passages, plain, read, sentences

TEXT = """\ufeff# Title: Two Tales

## Author: A. Writer

-------

##  CHAPTER I. A _long_ walk

Mr. Lee walked _home_.[1] "Why--so late?" asked
his wife. 'It was far!' said he.

* * *

    ---

The harlot sang. The dog slept. They said "Amen." and went to Dr. J. Cole's in St. Ives.

Μῆνιν ἄειδε. He read Greek.

| a | table |
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of three books, one of which must not be used."""
    rows = []
    for author, title, use in [("A", "One", "yes"), ("B", "Two", "no"), ("C", "Three", "yes")]:
        path = tmp_path / "clone" / author / f"{title}.md"
        path.parent.mkdir(parents=True)
        path.write_text(TEXT.replace("Lee", title), encoding="utf-8")
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        rows.append([f"{author}/{title}.md", author, title, sha256, use])
    with (tmp_path / "books.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "author", "title", "sha256", "use"], *rows])
    monkeypatch.setattr(books.listed, "__defaults__", (tmp_path / "books.csv",))
    return tmp_path / "clone"


def test_a_book_is_cut_into_passages_of_sentences() -> None:
    assert passages(TEXT) == [
        ["Mr. Lee walked home.", '"Why — so late?" asked his wife.', "'It was far!' said he."],
        ["The dog slept.", 'They said "Amen." and went to Dr. J. Cole\'s in St. Ives.'],
        ["He read Greek."],
    ]


def test_sentences_end_where_a_reader_ends_them() -> None:
    text = 'It was 5 p.m. then. "Oh!" she cried. "You?" (He smiled.) Mrs. Hay left… No. 3 did.'
    assert sentences(text) == [
        "It was 5 p.m. then.",
        '"Oh!" she cried.',
        '"You?"',
        "(He smiled.)",
        "Mrs. Hay left…",
        "No. 3 did.",
    ]
    assert sentences("") == []


def test_plain_replaces_typographic_marks() -> None:
    assert plain("\u201cIt\u2019s\u201d  _very_\u2014\\**late**\u00a0[a note] now") == (
        '"It\'s" very — late now'
    )


@pytest.mark.parametrize("word", ["wench", "wenches'", "wench's", "coolies", "wench-like"])
def test_forms_of_a_dropped_word_are_dropped(word: str) -> None:
    expected = word != "wenches'"  # only "'s" or a final "s" is removed
    assert is_dropped(word) is expected


def test_dropped_words_are_single_lower_case_words() -> None:
    assert {"negro", "rape"} <= books.dropped()
    assert all(word == word.casefold() and " " not in word for word in books.dropped())
    assert not any(
        is_dropped(word) for word in ("he", "cock", "ass", "rose", "savage", "queen", "dark")
    )


def test_unusable_books_are_not_listed() -> None:
    found = {book.path for book in listed()}
    assert not any("Aesop" in path or "Chatterley" in path for path in found)


def test_at_least_three_authors_are_completely_held_out() -> None:
    """Each book is listed once, in one part."""
    held_out = {row.author: set() for row in listed()}
    for book in listed():
        held_out[book.author].add(book.part)
    whole = [parts for parts in held_out.values() if parts == {"test"}]
    assert len(whole) >= 3
    assert {book.part for book in listed()} == set(books.PARTS)
    assert len({book.path for book in listed()}) == len(listed())


def test_a_clone_and_an_archive_give_the_same(library: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "books.tar.xz", "w:xz") as archive:
        archive.add(library, "books-1234")
    found = list(read(library))
    assert [book.title for book, _ in found] == ["One", "Three"]
    assert found == list(read(tmp_path / "books.tar.xz"))
    assert found[1][1][0][0] == "Mr. Three walked home."
    assert isinstance(found[0][0], Book)


def test_a_modified_or_missing_book_is_named(library: Path) -> None:
    path = library / "C" / "Three.md"
    path.write_text("other", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^books: C/Three\.md in .* has SHA-256 .*check out"):
        list(read(library))
    path.unlink()
    with pytest.raises(ValueError, match=r"^books: .* has no C/Three\.md; pass a whole clone$"):
        list(read(library))


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"\xfd7zXZ\x00 and no more"])
def test_an_unreadable_archive_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "books.tar.xz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^books: .*books\.tar\.xz cannot be read .*pass a clone"):
        list(read(path))


def test_a_part_is_read_by_itself(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "part_of", lambda row: {"A": "test", "C": "train"}[row["author"]])
    assert [book.title for book, _ in read(library, ["test"])] == ["One"]
    said: list[str] = []
    main([str(library)], said.append)
    assert said == [
        "train: 1 books, 34 words",
        "choose: 0 books, 0 words",
        "test: 1 books, 34 words",
    ]
