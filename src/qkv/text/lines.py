"""The lines of a text file, each of any length."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

_BLOCK = 2**18  # bytes that are read at once


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
    number, size, text = 1, 0, ""  # of the line that is read: which, its bytes, and what is kept
    decoder = codecs.getincrementaldecoder("utf-8")()
    for part, ended in _parts(stream):
        nul = part.find(b"\0")
        if nul >= 0:
            raise ValueError(f"{name} is not text: byte {size + nul + 1} of line {number} is NUL")
        waiting = len(decoder.getstate()[0])
        try:
            more = decoder.decode(part, ended)
        except UnicodeDecodeError as error:
            place = f"byte {size - waiting + error.start + 1} of line {number}"
            byte = error.object[error.start]
            raise ValueError(f"{name} is not UTF-8: {place} is 0x{byte:02x}") from None
        if number == 1 and size == waiting:
            more = more.removeprefix("\ufeff")
        size += len(part)
        if len(text) <= most:
            text += more
            if len(text) > most:
                bare = text.lstrip()
                text = bare[:most] + bare[most:].lstrip()[:1]
        if ended:
            yield text
            number, size, text = number + 1, 0, ""


def _parts(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """The bytes of lines as they come, without ends, and whether a line ends behind them."""
    read = getattr(stream, "read1", stream.read)  # which does not wait for more
    returned = False  # whether the last byte was a carriage return, and its line has ended
    begun = False  # whether there is a line that has not
    while block := read(_BLOCK):
        if returned:
            block = block.removeprefix(b"\n")
        returned = block.endswith(b"\r")
        *lines, rest = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        yield from ((line, True) for line in lines)
        yield rest, False
        begun = bool(rest) or (begun and not lines)
    if begun:
        yield b"", True
