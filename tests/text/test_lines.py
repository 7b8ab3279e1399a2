"""Tests of the lines of a text file, against the lines of Python's own text files."""

import io
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st

from qkv.text import lines
from qkv.text.lines import FileTexts, lines_of, read_lines

ENDS = ["\n", "\r\n", "\r"]
PARTS = [
    *ENDS,
    *"ab",
    "é",
    "日",
    "😀",
    " ",
    "\t",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x85",
    "\u2028",
    "\ufeff",
]


class Slow(io.BytesIO):
    """A stream that returns a few bytes at a time, as a pipe may."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content)
        self.size = size

    def read1(self, size: int | None = -1) -> bytes:
        return super().read(self.size)


def found(text: str, size: int = 1, most: int = 100) -> list[str]:
    return list(read_lines(Slow(text.encode(), size), "it", most))


@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join), st.integers(1, 7))
def test_lines_end_where_text_mode_ends_them(text: str, size: int) -> None:
    assume(text != "\ufeff")  # a lone byte order mark may be one line or none
    expected = list(io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8-sig", newline=None))
    assert found(text, size) == [line.removesuffix("\n") for line in expected]


@given(
    st.lists(st.sampled_from([*"abcé日 ", "   "]), max_size=40).map("".join),
    st.integers(1, 7),
    st.integers(1, 12),
)
def test_a_long_line_is_cut_one_character_past_the_limit(text: str, size: int, most: int) -> None:
    (line,) = found(text + "\n", size, most)
    assert line == text[: most + 1]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"ab\xc3", "it is not UTF-8: byte 3 of line 1 is 0xc3"),
        ("é\ré".encode() + b"\xff", "it is not UTF-8: byte 3 of line 2 is 0xff"),
        (b"a\n\xc3\xa9\xe6\x97a", "it is not UTF-8: byte 3 of line 2 is 0xe6"),
        (b"a" * 50 + b"\xf0\x9f\x98", "it is not UTF-8: byte 51 of line 1 is 0xf0"),
        (b"a" * 50 + b"\0", "it is not text: byte 51 of line 1 is NUL"),
        ("ab".encode("utf-16"), "it is not UTF-8: byte 1 of line 1 is 0xff"),
    ],
)
def test_bytes_that_are_not_text_are_reported_with_line_and_byte(
    content: bytes, words: str, size: int
) -> None:
    """`read_lines` cuts a long line, but also reports invalid bytes that follow the cut."""
    if content.startswith(b"\xff") and size == 100:
        words = "it is not text: byte 4 of line 1 is NUL"
    with pytest.raises(ValueError, match=words):
        list(read_lines(Slow(content, size), "it", 10))


def test_a_line_is_returned_as_soon_as_it_is_read() -> None:
    read = []

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            read.append(size)
            return b"the cat\n" if len(read) == 1 else b""

    assert next(read_lines(Pipe(), "it", 100)) == "the cat"
    assert len(read) == 1


@pytest.mark.parametrize("block", [1, 3, 100])
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    texts = FileTexts(str(path), lambda: lines_of(str(path), 100))
    assert (len(texts), list(texts)) == (3, ["a", "b", "c"])
    path.write_text("a\nb\nc\nd\n")  # as if the file were a growing log
    assert list(texts) == ["a", "b", "c"]
    path.write_text("a\n")
    with pytest.raises(ValueError, match=r"in.txt changed .*: it had 3 texts and now has 1"):
        list(texts)
