"""Where an objective takes its sequences of token ids from: memory, or text files of any size.

Files are read some megabytes at a time.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from qkv.arrays import Array
from qkv.text import Tokenizer
from qkv.text.tokenizer import parts_of

BLOCK = 1 << 22  # bytes that are read, cut and shuffled at once
_LONGEST_LINE = 1 << 18  # bytes of a line that are read at once, and of texts that are cut at once
_STRETCH = 1 << 20  # bytes of a file that a sample takes at one place
_MOST_LOOKED_AT = 10_000  # letters of a line, to see whether there is more than one word
_LONGEST_WORD = 100  # letters; what is longer is a text without blanks
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Source(Protocol):
    """Sequences of token ids without an end, the same again from the same state."""

    def take(self) -> Array:
        """The next sequence, (T,) integers."""

    def state(self) -> dict[str, Any]:
        """Where it is, as JSON can hold it."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""


class Sequences:
    """Sequences that are in memory, in a new order each time all were given.

    Args:
        sequences: token ids, (T,) integers each.
        seed: of the orders.

    >>> source = Sequences([[1, 2], [3, 4, 5]], seed=0)
    >>> sorted(len(source.take()) for _ in range(4))
    [2, 2, 3, 3]
    """

    def __init__(self, sequences: Iterable[Any], *, seed: int = 0) -> None:
        self._sequences = [np.asarray(one, np.int32) for one in sequences]
        if not self._sequences:
            raise ValueError("Sequences: there is none: give at least one")
        self._seed, self._epoch, self._next = seed, 0, 0
        self._orders = self._from_here()

    def take(self) -> Array:
        """The next sequence."""
        return self._sequences[next(self._orders)]

    def _from_here(self) -> Iterator[int]:
        """Which is next, round after round; what is present is noted before each is given."""
        while True:
            rng = np.random.default_rng([self._seed, self._epoch])
            for one in rng.permutation(len(self._sequences))[self._next :]:
                self._next += 1
                yield one
            self._epoch, self._next = self._epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """Which order it is in, and where."""
        return {"sequences": len(self._sequences), "epoch": self._epoch, "next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: it is the state of other sequences.
        """
        if state["sequences"] != len(self._sequences):
            raise ValueError(
                f"Sequences: there are {len(self._sequences)}, and {state['sequences']} when the "
                "checkpoint was written: give the same"
            )
        self._epoch, self._next = state["epoch"], state["next"]
        self._orders = self._from_here()


@dataclass(frozen=True)
class Place:
    """Where in the files the next line begins."""

    file: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True)
class Line:
    """A line with its end, or a piece of a very long one; `last` for the last one of a file."""

    text: str
    last: bool


class Files:
    """UTF-8 text files that are read one after the other, never as a whole.

    Attributes:
        paths: where they are.
        sizes: their bytes.
        named: what errors call them.

    Raises:
        ValueError: there is none, or nothing in them.
        OSError: one is a folder, is not there or cannot be read.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.paths = [Path(path).absolute() for path in paths]
        if not self.paths:
            raise ValueError("corpus: there is no file: name at least one")
        several = f"what the {len(self.paths)} files hold"
        self.named = str(self.paths[0]) if len(self.paths) == 1 else several
        self.sizes = [_size(path) for path in self.paths]
        if not sum(self.sizes):
            raise ValueError(f"corpus: {self.named} is empty: give a text")

    def block(self, place: Place, size: int = BLOCK) -> tuple[list[Line], Place]:
        """The lines from a place on, about `size` bytes of them, and where the next begins.

        Raises:
            ValueError: they are not UTF-8, or not text; the message has the file and the line.
                Or a file has become shorter.
        """
        lines: list[Line] = []
        file, offset, number = place.file, place.offset, place.line
        while size > 0 and file < len(self.paths):
            with self.paths[file].open("rb") as stream:
                stream.seek(offset)
                while size > 0 and offset < self.sizes[file]:
                    raw = _piece(stream)
                    if not raw:
                        raise self._shrunk(file)
                    text = self._text(raw, file, offset, number)
                    offset += len(raw)
                    size -= len(raw)
                    number += raw.endswith(b"\n")
                    lines.append(Line(text, offset >= self.sizes[file]))
            if offset >= self.sizes[file]:
                file, offset, number = file + 1, 0, 1
        return lines, Place(file, offset, number)

    def lines(self, most: int | None = None) -> Iterator[str]:
        """All lines; if the files are larger than `most` bytes, stretches from all over them."""
        total = sum(self.sizes)
        if most is None or total <= most:
            place = Place()
            while place.file < len(self.paths):
                lines, place = self.block(place)
                yield from (line.text for line in lines)
            return
        for file, size in enumerate(self.sizes):
            share = size * most // total
            stretches = max(1, share // _STRETCH)
            for number in range(stretches):
                with self.paths[file].open("rb") as stream:
                    stream.seek(size * number // stretches)
                    raw = stream.read(share // stretches)
                    if len(raw) < share // stretches:
                        raise self._shrunk(file)
                # what is not text shows when it is read
                found = raw.decode("utf-8", "ignore").splitlines(keepends=True)
                yield from found[1:-1] or found  # the first and the last line are in pieces

    def _shrunk(self, file: int) -> ValueError:
        """The error that a file has become shorter."""
        path, size = self.paths[file], self.sizes[file]
        return ValueError(
            f"corpus: {path} had {size} bytes and now has {_size(path)}: let nobody write to it "
            "while it is read"
        )

    def _text(self, raw: bytes, file: int, offset: int, number: int) -> str:
        """The text of these bytes of a file, which begin in this line."""
        where = f"corpus: {self.paths[file]}"
        nul = raw.find(b"\0")
        if nul >= 0:
            raise ValueError(f"{where} is not text: byte {nul + 1} of line {number} is NUL")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{where} is not UTF-8: line {number} holds the byte 0x{raw[error.start]:02x}, "
                f"byte {offset + error.start + 1} of the file"
            ) from None
        return text.removeprefix("\ufeff") if offset == 0 else text


def need_two_words(files: Files) -> None:
    """An error unless there are two different words, without which nothing can be learned.

    Raises:
        ValueError: there are not.
    """
    found: set[str] = set()
    for line in files.lines():
        found.update(re.findall(r"\w+|[^\w\s]", line[:_MOST_LOOKED_AT]))
        if len(found) > 1 or max(map(len, found), default=0) > _LONGEST_WORD:
            return
    what = f"but the word {next(iter(found))!r:.40}" if found else "but blanks"
    raise ValueError(f"corpus: {files.named} holds nothing {what}: give more text")


Cut = Callable[[Sequence[Line]], list[Array]]  # lines that follow each other -> sequences of ids


class Corpus:
    """Sequences of token ids out of text files, shuffled block by block.

    A block is some megabytes of text: it is cut, its sequences come in a random order, then the
    next one is read; after the last one comes the first again, in another order.

    Args:
        files: the text.
        cut: makes sequences of the lines of a block.
        seed: of the orders.
        block: how many bytes a block has.
    """

    def __init__(self, files: Files, cut: Cut, *, seed: int = 0, block: int = BLOCK) -> None:
        self._files, self._cut, self._seed, self._block = files, cut, seed, block
        self._begin, self._number, self._epoch, self._next = Place(), 0, 0, 0
        self._sequences = self._from_here()

    def take(self) -> Array:
        """The next sequence.

        Raises:
            ValueError: there is none in all of the files, or they are not text.
        """
        return next(self._sequences)

    def _from_here(self) -> Iterator[Array]:
        """The sequences of the present block from the present one on, and of all blocks after it.

        What is present is noted before each is given.
        """
        kept, count = None, 1  # what is known of a block, and the sequences of a round
        while True:
            if kept != self._begin:  # else there is but one block
                lines, end = self._files.block(self._begin, self._block)
                kept, found = self._begin, self._cut(lines)
            count += len(found)
            rng = np.random.default_rng([self._seed, self._epoch, self._number])
            for one in rng.permutation(len(found))[self._next :]:
                self._next += 1
                yield found[one]
            self._begin, self._number, self._next = end, self._number + 1, 0
            if end.file >= len(self._files.paths):
                if not count:
                    raise ValueError(f"corpus: {self._files.named} gives no token at all")
                self._begin, self._number, self._epoch, count = Place(), 0, self._epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """The block it is in, and where in there."""
        return {
            "sizes": self._files.sizes,
            "block": self._block,
            "begin": asdict(self._begin),
            "number": self._number,
            "epoch": self._epoch,
            "next": self._next,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: the files have other sizes.
        """
        if state["sizes"] != self._files.sizes:
            raise ValueError(
                f"corpus: {self._files.named} has {sum(self._files.sizes)} bytes and had "
                f"{sum(state['sizes'])} when the checkpoint was written: give the same text"
            )
        self._begin, self._number = Place(**state["begin"]), state["number"]
        self._epoch, self._next, self._block = state["epoch"], state["next"], state["block"]
        self._sequences = self._from_here()


def paragraphs(tokenizer: Tokenizer, length: int) -> Cut:
    """Cut text into its paragraphs, those that are too long into pieces of `length` tokens.

    A blank line ends a paragraph, and the end of a file; other line ends are blanks. The special
    tokens that the tokenizer puts around a text are around each piece.
    """
    about = tokenizer.tokenize("a")
    real = [k for k, special in enumerate(about.special) if not special] or [len(about)]
    before, after = about.ids[: real[0]], about.ids[real[-1] + 1 :]
    most = length - len(before) - len(after)

    def cut(lines: Sequence[Line]) -> list[Array]:
        texts, now, size = [], [], 0
        for line in lines:
            now.append(line.text.strip())
            size += len(now[-1])
            if line.last or not now[-1] or size > _LONGEST_LINE:
                texts.append(" ".join(now).strip())
                now, size = [], 0
        texts.append(" ".join(now))
        return [
            np.concatenate([before, ids[begin : begin + most], after]).astype(np.int32)
            for ids in _ids(tokenizer, [text for text in texts if text])
            for begin in range(0, len(ids), most)
        ]

    return cut


def running(tokenizer: Tokenizer, length: int) -> Cut:
    """Cut text as it runs into pieces of `length` + 1 tokens, line ends included.

    The last token of a piece is the first of the next, so that each is seen and each is named. At
    the end of a file stands the token that ends texts, if the tokenizer has one.
    """
    ends = [index for name, index in tokenizer.vocabulary.items() if name in ENDS]
    end = np.array(ends[:1], np.int32)

    def cut(lines: Sequence[Line]) -> list[Array]:
        parts = [end[:0]]
        for line, ids in zip(lines, _ids(tokenizer, [line.text for line in lines]), strict=True):
            parts += [ids, end] if line.last else [ids]
        ids = np.concatenate(parts)
        pieces = (ids[begin : begin + length + 1] for begin in range(0, len(ids), length))
        return [piece for piece in pieces if len(piece) > 1]

    return cut


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Array]:
    """The ids of each text; the library hears no signal, so it is given some of them at a time."""
    for part in parts_of(texts, _LONGEST_LINE):
        yield from tokenizer.ids_batch(part)


def _piece(stream: BinaryIO) -> bytes:
    """The next line, or as much of a very long one as ends before a blank, or on a character."""
    raw = stream.readline(_LONGEST_LINE)
    if len(raw) < _LONGEST_LINE or raw.endswith(b"\n"):
        return raw
    end = raw.rfind(b" ")
    if end <= 0:  # no blank: cut before the last character, which may be in pieces
        end = len(raw) - 1
        while end > len(raw) - 4 and raw[end] & 0xC0 == 0x80:
            end -= 1
    stream.seek(end - len(raw), os.SEEK_CUR)
    return raw[:end]


def _size(path: Path) -> int:
    """The bytes of a file that can be read again and again."""
    about = path.stat()  # a FileNotFoundError says enough
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(f"corpus: {path} is a folder: name the text files in it")
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"corpus: {path} is not a file that can be read again: save it first")
    with path.open("rb"):  # so that a PermissionError comes before any work
        return about.st_size
