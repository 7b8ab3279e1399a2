"""The lines of a text file, each of any length."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

_BLOCK = 2**18  # bytes that are read at once
_DECODER = codecs.getincrementaldecoder("utf-8")


class Lines:
    """The lines of a UTF-8 file, blank ones too, read anew each time.

    Args:
        file: its path.
        most: as for `read_lines`.

    Raises:
        ValueError: it is not text; the message has the line and the byte. Or it has fewer lines
            than at first; what it has more is left out.
    """

    def __init__(self, file: str, most: int) -> None:
        self.file, self._most = file, most
        self._count = sum(1 for _ in lines_of(file, most))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        left = self._count
        for text in islice(lines_of(self.file, self._most), left):
            left -= 1
            yield text
        if left:
            raise ValueError(
                f"{self.file} changed while it was read: it had {self._count} lines and now has "
                f"{self._count - left}: take a copy"
            )


def lines_of(file: str, most: int) -> Iterator[str]:
    """The lines of a file, as `read_lines` gives them."""
    with Path(file).open("rb") as stream:
        yield from read_lines(stream, file, most)


def read_lines(stream: BinaryIO, name: str, most: int) -> Iterator[str]:
    r"""The lines of UTF-8, one after the other, without their ends and the byte order mark.

    A line ends as in any text file: with a line feed, a carriage return, or both.

    Args:
        stream: where the bytes come from; they are read as they come.
        name: what errors call it.
        most: of a longer line, blanks around it aside, so many characters are given and one more,
            from which it can be told that it was longer.

    Raises:
        ValueError: it is not text; the message has the line and the byte.

    >>> import io
    >>> list(read_lines(io.BytesIO(b"the cat\rsat\r\non\n\nthe mat"), "a file", 4))
    ['the c', 'sat', 'on', '', 'the m']
    """
    line = _Line(name, 1, most)
    for block in _blocks(stream):
        *ended, rest = block.split(b"\n")
        for part in ended:
            line.add(part, last=True)
            yield line.text
            line = _Line(name, line.number + 1, most)
        line.add(rest)
    if line.size:
        line.add(b"", last=True)
        yield line.text


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The bytes of a stream as they come, with one newline for each end of a line."""
    read = getattr(stream, "read1", stream.read)  # which does not wait for more
    returned = False  # whether the last byte was a carriage return, and its line has ended
    while block := read(_BLOCK):
        if returned:
            block = block.removeprefix(b"\n")
        returned = block.endswith(b"\r") if block else False
        yield block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class _Line:
    """A line while it is read.

    Attributes:
        number: which one it is, counted from 1.
        size: how many bytes have been read.
        text: what is kept of them.
    """

    def __init__(self, name: str, number: int, most: int) -> None:
        self._name, self.number, self._most = name, number, most
        self.size, self.text = 0, ""
        self._decoder = _DECODER()

    def add(self, part: bytes, *, last: bool = False) -> None:
        """More of its bytes."""
        nul = part.find(b"\0")
        if nul >= 0:
            place = f"byte {self.size + nul + 1} of line {self.number}"
            raise ValueError(f"{self._name} is not text: {place} is NUL")
        waiting = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(part, last)
        except UnicodeDecodeError as error:
            place = f"byte {self.size - waiting + error.start + 1} of line {self.number}"
            byte = error.object[error.start]
            raise ValueError(f"{self._name} is not UTF-8: {place} is 0x{byte:02x}") from None
        if self.number == 1 and self.size == waiting:
            text = text.removeprefix("\ufeff")
        self.size += len(part)
        if len(self.text) <= self._most:
            self.text += text
            if len(self.text) > self._most:
                bare = self.text.lstrip()
                self.text = bare[: self._most] + bare[self._most :].lstrip()[:1]
