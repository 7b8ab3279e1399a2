"""Sources of token sequences for training: sequences in memory, or text files of any size.

Files are read in blocks of a few megabytes.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from qkv.arrays import Array
from qkv.files import StrPath
from qkv.text import Tokenizer
from qkv.text.tokenizer import parts_of

BLOCK = 1 << 22  # The number of bytes in a block; a block is read, cut and shuffled as a whole.
_LONGEST_LINE = 1 << 18  # A line with more bytes than this is read in parts.
_STRETCH = 1 << 20  # A sample of a large file consists of parts of about this many bytes.
_MOST_READ = 10_000  # The maximum number of letters that `need_two_words` reads from a line.
_LONGEST_WORD = 100  # A longer run of letters is a text without spaces (Chinese).
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Source(Protocol):
    """An endless source of token sequences. Sources with equal states yield equal sequences."""

    def take(self) -> Array:
        """Return the next sequence, (T,) integers."""

    def state(self) -> dict[str, Any]:
        """Return the current state in a form that JSON can store."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""


class Sequences:
    """An endless source of sequences in memory.

    The source yields all sequences in a random order, then all of them in a new random order, and
    so on.

    Args:
        sequences: arrays of token ids, integers (T,).
        seed: the seed of the random orders.

    >>> source = Sequences([[1, 2], [3, 4, 5]], seed=0)
    >>> sorted(len(source.take()) for _ in range(4))
    [2, 2, 3, 3]
    """

    def __init__(self, sequences: Iterable[Any], *, seed: int = 0) -> None:
        self._sequences = [np.asarray(sequence, np.int32) for sequence in sequences]
        if not self._sequences:
            raise ValueError("Sequences: `sequences` is empty; pass a sequence")
        self._seed, self._epoch, self._next = seed, 0, 0
        self._orders = self._from_here()

    def take(self) -> Array:
        """Return the next sequence."""
        return self._sequences[next(self._orders)]

    def _from_here(self) -> Iterator[int]:
        """Yield indices of sequences, from the current state on; update the state at each index."""
        while True:
            rng = np.random.default_rng([self._seed, self._epoch])
            for number in rng.permutation(len(self._sequences))[self._next :]:
                self._next += 1
                yield number
            self._epoch, self._next = self._epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """Return the number of the current random order, and the position in this order."""
        return {"sequences": len(self._sequences), "epoch": self._epoch, "next": self._next}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned.

        Raises:
            ValueError: the state belongs to different sequences.
        """
        if state["sequences"] != len(self._sequences):
            raise ValueError(
                f"Sequences: there are {len(self._sequences)} sequences, but the checkpoint was "
                f"written with {state['sequences']}; pass the same sequences"
            )
        self._epoch, self._next = state["epoch"], state["next"]
        self._orders = self._from_here()


@dataclass(frozen=True)
class Location:
    """The position where the next line begins: the file, the byte and the line number."""

    file: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True)
class Line:
    """A line with its line end, or a part of a very long line.

    `last` is true for the last line of a file.
    """

    text: str
    last: bool


class Files:
    """UTF-8 text files, which are read in blocks, one file after another.

    Attributes:
        paths: the paths of the files.
        sizes: the number of bytes in each file.
        named: how error messages refer to the files, for example by a path.

    Raises:
        ValueError: no file is given, or all files are empty.
        OSError: a path is a folder, does not exist or cannot be read.
    """

    def __init__(self, paths: Iterable[StrPath]) -> None:
        self.paths = [Path(path).absolute() for path in paths]
        if not self.paths:
            raise ValueError("corpus: no file is given; pass at least one")
        several = f"the text of the {len(self.paths)} files"
        self.named = str(self.paths[0]) if len(self.paths) == 1 else several
        self.sizes = [_size(path) for path in self.paths]
        if not sum(self.sizes):
            raise ValueError(f"corpus: {self.named} is empty; pass a text")

    def block(self, location: Location, size: int = BLOCK) -> tuple[list[Line], Location]:
        """Read lines, about `size` bytes in total; the first line begins at `location`.

        Return the lines, and the location of the next line.

        Raises:
            ValueError: a line is not UTF-8 or is not text (the message names the file and the
                line); or a file has become shorter.
        """
        lines: list[Line] = []
        file, offset, number = location.file, location.offset, location.line
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
        return lines, Location(file, offset, number)

    def lines(self, most: int | None = None) -> Iterator[str]:
        """Yield the lines of the files.

        If the files have more than `most` bytes, yield only a sample of about `most` bytes.
        """
        total = sum(self.sizes)
        if most is None or total <= most:
            location = Location()
            while location.file < len(self.paths):
                lines, location = self.block(location)
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
                # A part may begin or end inside a character; "ignore" drops the invalid bytes.
                texts = raw.decode("utf-8", "ignore").splitlines(keepends=True)
                yield from texts[1:-1] or texts  # only whole lines

    def _shrunk(self, file: int) -> ValueError:
        """Return the error for a file that has become shorter."""
        path, size = self.paths[file], self.sizes[file]
        return ValueError(
            f"corpus: {path} had {size} bytes and now has {_size(path)}: do not write to it "
            "while it is read"
        )

    def _text(self, raw: bytes, file: int, offset: int, number: int) -> str:
        """Decode a part of a file; the part begins at byte `offset` and in line `number`."""
        where = f"corpus: {self.paths[file]}"
        nul = raw.find(b"\0")
        if nul >= 0:
            raise ValueError(f"{where} is not text: byte {nul + 1} of line {number} is NUL")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{where} is not UTF-8: line {number} contains the byte 0x{raw[error.start]:02x}, "
                f"byte {offset + error.start + 1} of the file"
            ) from None
        return text.removeprefix("\ufeff") if offset == 0 else text


def need_two_words(files: Files) -> None:
    """Raise an error if the text has fewer than two different words."""
    words: set[str] = set()
    for line in files.lines():
        words.update(re.findall(r"\w+|[^\w\s]", line[:_MOST_READ]))
        if len(words) > 1 or max(map(len, words), default=0) > _LONGEST_WORD:
            return
    what = f"the word {next(iter(words))!r:.40}" if words else "white space"
    raise ValueError(f"corpus: {files.named} contains only {what}; pass more text")


Cut = Callable[[Sequence[Line]], list[Array]]  # maps consecutive lines to sequences of ids


class Corpus:
    """Sequences of token ids from text files, which are read and shuffled in blocks.

    A block is a few megabytes of text. The corpus yields the sequences of a block in a random
    order, and then reads the next block. After the last block, it starts again from the first
    block, in a different order.

    Args:
        files: the text.
        cut: a function that cuts the lines of a block into sequences.
        seed: the seed of the random orders.
        block: the number of bytes in a block.
    """

    def __init__(self, files: Files, cut: Cut, *, seed: int = 0, block: int = BLOCK) -> None:
        self._files, self._cut, self._seed, self._block = files, cut, seed, block
        self._begin, self._number, self._epoch, self._next = Location(), 0, 0, 0
        self._sequences = self._from_here()

    def take(self) -> Array:
        """Return the next sequence.

        Raises:
            ValueError: the files are not text, or are too short for a sequence.
        """
        return next(self._sequences)

    def _from_here(self) -> Iterator[Array]:
        """Yield sequences, from the current state on; update the state at each sequence."""
        begin, count = None, 1
        while True:
            if begin != self._begin:  # if the corpus is one block, it stays in memory
                lines, end = self._files.block(self._begin, self._block)
                begin, sequences = self._begin, self._cut(lines)
            count += len(sequences)
            rng = np.random.default_rng([self._seed, self._epoch, self._number])
            for number in rng.permutation(len(sequences))[self._next :]:
                self._next += 1
                yield sequences[number]
            self._begin, self._number, self._next = end, self._number + 1, 0
            if end.file >= len(self._files.paths):
                if not count:
                    raise ValueError(
                        f"corpus: {self._files.named} contains no tokens; pass more text"
                    )
                self._begin, self._number, self._epoch, count = Location(), 0, self._epoch + 1, 0

    def state(self) -> dict[str, Any]:
        """Return the current block, and the position in this block."""
        return {
            "sizes": self._files.sizes,
            "block": self._block,
            "begin": asdict(self._begin),
            "number": self._number,
            "epoch": self._epoch,
            "next": self._next,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned.

        Raises:
            ValueError: the sizes of the files have changed.
        """
        if state["sizes"] != self._files.sizes:
            raise ValueError(
                f"corpus: {self._files.named} has {sum(self._files.sizes)} bytes, but had "
                f"{sum(state['sizes'])} when the checkpoint was written; pass the same text"
            )
        self._begin, self._number = Location(**state["begin"]), state["number"]
        self._epoch, self._next, self._block = state["epoch"], state["next"], state["block"]
        self._sequences = self._from_here()


def paragraphs(tokenizer: Tokenizer, length: int) -> Cut:
    """Cut text into paragraphs, and long paragraphs into parts of `length` tokens.

    A paragraph ends at a blank line or at the end of a file. Other line ends become spaces. Each
    part gets the special tokens that the tokenizer puts around a text.
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
    """Cut text into parts of `length` + 1 tokens. Line ends are kept and become tokens too.

    The last token of a part is also the first token of the next part, so that the model predicts
    every token. If the tokenizer has an end-of-text token, it is added at the end of each file.
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
    """Yield the token ids of texts.

    The texts are tokenized in small batches, because Ctrl-C has no effect during a batch.
    """
    for part in parts_of(texts, _LONGEST_LINE):
        yield from tokenizer.ids_batch(part)


def _piece(stream: BinaryIO) -> bytes:
    """Read a line; if the line is very long, read only a part that ends before a space.

    If the part has no space, the part ends after a complete character.
    """
    raw = stream.readline(_LONGEST_LINE)
    if len(raw) < _LONGEST_LINE or raw.endswith(b"\n"):
        return raw
    end = raw.rfind(b" ")
    if end <= 0:  # no space in the part: drop the last character, which may be cut
        end = len(raw) - 1
        while end > len(raw) - 4 and raw[end] & 0xC0 == 0x80:
            end -= 1
    stream.seek(end - len(raw), os.SEEK_CUR)
    return raw[:end]


def _size(path: Path) -> int:
    """Return the size of a file in bytes; raise an error if the file is not a regular file."""
    about = path.stat()  # `stat` may raise a FileNotFoundError with the path
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(f"corpus: {path} is a folder; pass the text files in it")
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"corpus: {path} is not a regular file: copy its content to a file")
    with path.open("rb"):  # `open` may raise a PermissionError
        return about.st_size
