"""Read the training books; `python -m training.books BOOKS` checks and counts the books.

BOOKS is a clone of the public repository from which `books.csv` was made, or an archive of its
files (github.com/mlschmitt/classic-books-markdown at `COMMIT`). Each book must match its SHA-256.
Books marked `use: no` are left out. Sentences that contain a word of `dropped_words.txt` are left
out too.

Tokenizers and training do not read all books: they skip all books of some authors, and some books
of other authors. Books of the part "choose" serve to choose between trained models, and between
mixtures of training texts. Books of the part "test" are only for reporting results.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from qkv.models.files.read import first_line
from training import command

LISTED = Path(__file__).with_name("books.csv")
DROPPED = Path(__file__).with_name("dropped_words.txt")
PARTS = ("train", "choose", "test")
COMMIT = "944882722e9a96fa6cf2739dc2ea757e101f412f"  # the commit from which the list was made

_AUTHORS = {
    "choose": ("Anna Sewell", "Edgar Wallace", "Kate Chopin"),
    "test": (
        *("Bram Stoker", "E.F. Benson", "Jerome K. Jerome", "Kenneth Grahame"),
        "Richard Harding Davis",
    ),
}
# If a book's author is not in `_AUTHORS`, the hash of the book's path, modulo 64, determines the
# book's set. If this number is not a key here, the set is "train".
_BOOKS = {0: "choose", 1: "test"}

_HEADER = re.compile(r"\A.*?^-{5,}\s*$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^\s*(?:#.*|[*\-=_\s]{3,}|\|.*|>.*)$", re.MULTILINE)
_BRACKETS = re.compile(r"\[[^\]]*\]")
_MARKS = re.compile(r"[*_\\#^~|]+")
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u00a0\u017f", "''\"\"\u2014 s")
_DASHES = re.compile(r"\s*(?:--+|\u2014)\s*")
_SPOILED = re.compile(r"[^\x20-\x7eà-öø-ÿÀ-ÖØ-Þ£…\u2014]|Ã")
_ENDS = re.compile(r"(?<=[.?!…])([\"')]*)\s+(?=[\"'(]*[A-Z])")
_SHORT = re.compile(
    r"(?:^|[\s(\"'])(?:Mr|Mrs|Ms|Dr|St|Rev|Hon|Capt|Col|Gen|Lt|Sgt|Prof|Esq|Jr|Sr|No|Vol|vs|viz|[A-Z])"
    r"\.$"
)
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")


class Book(NamedTuple):
    """A row of the list.

    Attributes:
        path: the path in the repository.
        author: the author's name.
        title: the title in the book's file.
        sha256: the SHA-256 of its bytes.
        part: "train", "choose" or "test".
    """

    path: str
    author: str
    title: str
    sha256: str
    part: str


def listed(path: Path = LISTED) -> list[Book]:
    """Return the books that may be used, in the order of the list.

    >>> books = listed()
    >>> len(books), {book.part for book in books} == set(PARTS)
    (291, True)
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["use"] == "yes"]
    return [
        Book(row["path"], row["author"], row["title"], row["sha256"], part_of(row)) for row in rows
    ]


def part_of(row: dict[str, str]) -> str:
    """Return a book's part: "train", "choose" or "test".

    All books of an author in `_AUTHORS` are in one part. For other authors, the path of each book
    determines its part.
    """
    for part, authors in _AUTHORS.items():
        if row["author"] in authors:
            return part
    return _BOOKS.get(hashlib.sha256(row["path"].encode()).digest()[0] % 64, "train")


def read(source: Path, parts: Sequence[str] = PARTS) -> Iterator[tuple[Book, list[list[str]]]]:
    """Read the sets of books that `parts` names; yield each book with its passages.

    A passage is a list of consecutive sentences.

    Args:
        source: a clone of the repository, or an archive of its files.
        parts: the parts to read.

    Raises:
        ValueError: `source` cannot be read, or a book is missing or differs from the list.
    """
    wanted = [book for book in listed() if book.part in parts]
    for book, content in zip(wanted, _contents(source, wanted), strict=True):
        found = hashlib.sha256(content).hexdigest()
        if found != book.sha256:
            raise ValueError(
                f"books: {book.path} in {source} has SHA-256 {found[:12]}… and the list has "
                f"{book.sha256[:12]}…: check out the commit that the list was made from, {COMMIT}"
            )
        yield book, passages(content.decode("utf-8"))


def _contents(source: Path, books: Sequence[Book]) -> Iterator[bytes]:
    """Read the bytes of books from a folder or an archive."""
    if source.is_dir():
        for book in books:
            path = source / book.path
            if not path.is_file():
                raise ValueError(f"books: {source} has no {book.path}; pass a whole clone")
            yield path.read_bytes()
        return
    wanted = {book.path for book in books}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(source) as archive:
            for (
                member
            ) in archive:  # read in one pass, because seeking in a compressed archive is slow
                place = _inside(member.name)
                if place in wanted and (file := archive.extractfile(member)):
                    found[place] = file.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ValueError(
            f"books: {source} cannot be read ({first_line(error)}); pass a clone of the repository "
            "or a tar archive of its files"
        ) from error
    for book in books:
        if book.path not in found:
            raise ValueError(f"books: {source} has no {book.path}; pass the whole archive")
        yield found[book.path]


def _inside(name: str) -> str:
    """Split a path into the author's folder and the file."""
    return "/".join(Path(name).parts[-2:])


def passages(text: str) -> list[list[str]]:
    r"""Split a book into passages, which end at a paragraph's end or at a dropped sentence.

    >>> passages("# Title: A\n\n-------\n\n## I\n\nMr. Lee sat _down_. He ate.\n\n* * *\n")
    [['Mr. Lee sat down.', 'He ate.']]
    """
    text = _HEADER.sub("", text.replace("\ufeff", ""), count=1)
    found: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n", _HEADING.sub("", text)):
        run: list[str] = []
        for sentence in sentences(plain(paragraph)):
            if is_clean(sentence):
                run.append(sentence)
            elif run:
                found.append(run)
                run = []
        if run:
            found.append(run)
    return found


def plain(paragraph: str) -> str:
    r"""Turn a paragraph into running text, without emphasis marks, note marks and line breaks.

    >>> plain("He  said,--'Come\nin,'[1] she _did_.")
    "He said, — 'Come in,' she did."
    """
    text = _MARKS.sub("", _BRACKETS.sub("", paragraph)).translate(_QUOTES)
    return " ".join(_DASHES.sub(" \u2014 ", text).split())


def sentences(text: str) -> list[str]:
    r"""Split running text into sentences.

    >>> sentences("'Go!' said Dr. Lee. \"Why?\" He went.")
    ["'Go!' said Dr. Lee.", '"Why?"', 'He went.']
    """
    found, begin = [], 0
    for end in _ENDS.finditer(text):
        if not _SHORT.search(text[begin : end.start()]):
            found.append(text[begin : end.end(1)])
            begin = end.end()
    return [*found, text[begin:]] if text[begin:] else found


def is_clean(sentence: str) -> bool:
    """Return whether a sentence can be kept.

    A sentence is kept if it has words, has only Western letters, and has no word of
    `dropped_words.txt`.

    >>> is_clean("He drank his tea."), is_clean("* 3 *"), is_clean("The HUSSY!")
    (True, False, False)
    """
    if _SPOILED.search(sentence):
        return False
    return bool(_WORD.search(sentence)) and not has_dropped(sentence)


def has_dropped(text: str) -> bool:
    """Return whether a text contains a word of `dropped_words.txt`."""
    return any(is_dropped(word.casefold()) for word in _WORD.findall(text))


@cache
def is_dropped(word: str) -> bool:
    """Return whether a lower-case word, or one of its parts between hyphens, is dropped.

    If "cat" is in the list of dropped words, "cats" and "cat's" are dropped too.
    """
    parts = {word, *word.split("-")}
    ends = {part.removesuffix("'s") for part in parts}
    return bool((ends | {one[:-1] for one in ends if one.endswith("s")}) & dropped())


@cache
def dropped(path: Path = DROPPED) -> frozenset[str]:
    """Return the words that no model reads in training; `dropped_words.txt` lists them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Check the books and count them."""
    parser = argparse.ArgumentParser(prog="python -m training.books", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("books", type=Path, help="a clone of the repository, or an archive")
    source = parser.parse_args(arguments).books
    books: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for book, found in read(source):
        books[book.part] += 1
        words[book.part] += sum(len(one.split()) for run in found for one in run)
    for part in PARTS:
        say(f"{part}: {books[part]} books, {words[part]:,} words")


if __name__ == "__main__":
    command(main)
