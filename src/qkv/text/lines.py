"""Read the lines of a text file; lines may have any length."""

import codecs
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

_BLOCK = 2**18  # the maximum number of bytes to read at once


class FileTexts:
    """The texts of a file, such as its lines; each iteration reads the file again.

    Args:
        file: the path of the file.
        read: a function that reads the file from its beginning and yields the texts.

    Raises:
        ValueError: the file now has fewer texts than when it was first read. Texts that have been
            appended to the file since then are ignored.
    """

    def __init__(self, file: str, read: Callable[[], Iterator[str]]) -> None:
        self.file, self._read = file, read
        self._count = sum(1 for _ in read())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        left = self._count
        for text in islice(self._read(), left):
            left -= 1
            yield text
        if left:
            raise ValueError(
                f"{self.file} changed while it was read: it had {self._count} texts and now has "
                f"{self._count - left} texts: read a copy of the file"
            )


def lines_of(file: str, most: int) -> Iterator[str]:
    """Yield the lines of a file, as `read_lines` does."""
    with Path(file).open("rb") as stream:
        yield from read_lines(stream, file, most)


def read_lines(stream: BinaryIO, name: str, most: int) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 stream, without line endings and without a byte order mark.

    A line ends with a line feed, a carriage return, or both.

    Args:
        stream: the source of the bytes, read as they arrive.
        name: the name of the source. Each error message begins with this name.
        most: the maximum length of a line. A longer line is cut to `most` + 1 characters, so that
            the caller sees that the line is too long.

    Raises:
        ValueError: the bytes are not text. The message names the line and the byte.

    >>> import io
    >>> list(read_lines(io.BytesIO(b"the cat\rsat\r\non\n\nthe mat"), "a file", 4))
    ['the c', 'sat', 'on', '', 'the m']
    """
    for number, line in enumerate(each_line(stream, most), 1):
        if isinstance(line, BadLine):
            where = f"byte {line.byte} of line {number}"
            raise ValueError(f"{name} {line.reason}: {where} is {line.found}")
        yield line


class BadLine(ValueError):
    """The error for a line that is not UTF-8 text.

    Attributes:
        reason: what is wrong, for example "is not UTF-8".
        byte: the position of the wrong byte in the line, counted from 1.
        found: the wrong byte.
    """

    def __init__(self, reason: str, byte: int, found: str) -> None:
        self.reason, self.byte, self.found = reason, byte, found
        super().__init__(f"{reason}: byte {byte} is {found}")


def each_line(stream: Any, most: int | None, at_begin: bool = True) -> Iterator[str | BadLine]:
    r"""Yield lines like `read_lines`; for a line that is not text, yield a `BadLine`.

    Args:
        stream: the source of the bytes.
        most: as in `read_lines`. If `most` is None, lines of any length stay whole.
        at_begin: whether a byte order mark may come before the first line.

    >>> import io
    >>> list(each_line(io.BytesIO(b"the cat\nsat \xff on\r\nthe mat"), None))
    ['the cat', BadLine('is not UTF-8: byte 5 is 0xff'), 'the mat']
    """
    size, text = 0, ""  # The number of bytes read from the current line, and the text.
    bad = False  # Whether a `BadLine` was yielded for this line.
    decoder = codecs.getincrementaldecoder("utf-8")()
    for part, ended in _parts(stream):
        decoded = None if bad else _decode(part, ended, size, decoder)
        if isinstance(decoded, BadLine):
            yield decoded
            bad, at_begin = True, False
        elif decoded is not None:
            more, waiting = decoded
            if at_begin and size == waiting:
                more = more.removeprefix("\ufeff")
            size += len(part)
            if most is None:
                text += more
            elif len(text) <= most:
                text = (text + more)[: most + 1]
        if ended:
            if bad:
                decoder.reset()
            else:
                yield text
            size, text, bad, at_begin = 0, "", False, False


def _decode(part: bytes, ended: bool, size: int, decoder: Any) -> BadLine | tuple[str, int]:
    """Decode a part of a line; return the text and the number of kept bytes.

    If the previous part ended inside a character, the decoder kept that part's last bytes.
    `size` is the number of bytes of the same line before this part. If the part is not text,
    return a `BadLine`.
    """
    nul = part.find(b"\0")
    if nul >= 0:
        return BadLine("is not text", size + nul + 1, "NUL")
    waiting = len(decoder.getstate()[0])
    try:
        return decoder.decode(part, ended), waiting
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        return BadLine("is not UTF-8", size - waiting + error.start + 1, f"0x{byte:02x}")


def _parts(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield pairs `(part, ended)`: bytes of a line, and whether the line ends after the bytes."""
    read = getattr(stream, "read1", stream.read)  # `read1` does not wait for more bytes.
    returned = False  # Whether the last byte was a carriage return that ended a line.
    begun = False  # Whether a line has begun and not ended.
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
