"""Read an error of a student's function: its message, its line and mismatched sizes."""

import math
import os
import re
import traceback
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any

from qkv import arrays

MARKING = str(Path(__file__).parent) + os.sep  # the folder of qkv_marking
LIBRARY = (str(Path(arrays.__file__).parent) + os.sep, MARKING)  # the folders of both packages
_LONGEST = 60  # The maximum length of a quoted code line.
_MAX_CHARS = 1000  # The maximum length of an error message.

_NUMBER = re.compile(r"\d+")
_SHAPE = re.compile(r"\(([\d, ]*|[\w, ]*newaxis[\w, ]*)\)")
# patterns for messages about two sizes that must be equal: NumPy's messages, then torch's
_PAIRS = (
    re.compile(r"size (\d+) is different from (\d+)"),
    re.compile(r"not aligned: (\d+) \(dim \d+\) != (\d+)"),
    re.compile(r"index 0 has size (\d+) and the array at index \d+ has size (\d+)"),
    re.compile(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)"),
    re.compile(r"to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]"),
    re.compile(r"has size (\d+) for operand \d+ which does not broadcast .* size (\d+)"),
    re.compile(r"[Ee]xpected size (\d+) but got size (\d+)"),
    re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"),
)
_PRODUCT = "matmul: Input operand 1 has a mismatch"
_RESHAPES = (
    re.compile(r"cannot reshape array of size (?P<size>\d+) into shape \((?P<shape>[-\w, ]+)\)"),
    re.compile(r"shape '\[(?P<shape>[-\d, ]+)\]' is invalid for input of size (?P<size>\d+)"),
)


class RaisedElsewhere(BaseException):
    """An exception that was raised in another process, and has no traceback in this process.

    Attributes:
        line: the line of the student's code that raised the exception, such as "line 3: scores = q
            @ k"; empty if this line is unknown.
        likely: the `Mistake` that most likely caused the error, or None.
    """

    line: str
    likely: Any


class WrongParameters(TypeError):
    """The parameters of a student's function are not those of the task."""


def type_name(thing: Any) -> str:
    """Return the name of an object's type, even if a metaclass overrides `__name__`."""
    name: str = type.__dict__["__name__"].__get__(type(thing))
    return name


def words_of(thing: Any) -> str:
    """Return `str(thing)`, or the name of the object's type if `str` raises an error."""
    try:
        return str.__str__(str(thing))
    except (Exception, SystemExit):
        return f"a {type_name(thing)}"


def in_words(error: BaseException | None) -> str:
    """Describe an exception in one line, even if the text of the exception cannot be read."""
    try:
        text = " ".join(str(error)[: 10 * _MAX_CHARS].split())
    except (Exception, SystemExit):
        text = "(the message cannot be read)"
    text = text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"
    return f"{type_name(error)}: {text}" if text else type_name(error)


def sentence(text: str) -> str:
    """Add a full stop to a text that does not end in punctuation."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def frames_of(error: BaseException | None) -> list[traceback.FrameSummary]:
    """Return the traceback entries of an exception, or an empty list if they are unreadable."""
    try:
        return [] if error is None else traceback.extract_tb(error.__traceback__)
    except Exception:  # the source file is missing or unreadable
        return []


def line_of(error: BaseException | None) -> str:
    """Return the student's line that raised an error, such as "line 3: scores = q @ k", or ""."""
    if isinstance(error, RaisedElsewhere):
        return error.line
    frames = frames_of(error)
    calls = [n for n, frame in enumerate(frames) if frame.filename.startswith(MARKING)]
    theirs = frames[calls[-1] + 1 :] if calls else []
    if not theirs or theirs[0].filename.startswith(LIBRARY):
        return ""
    last = [frame for frame in theirs if frame.filename == theirs[0].filename][-1]
    source = " ".join((last.line or "").split())
    if len(source) > _LONGEST:
        source = f"{source[: _LONGEST - 1]}…"
    return f"line {last.lineno}: {source}" if source else f"line {last.lineno}"


def clash(error: BaseException) -> frozenset[int]:
    """Return the mismatched sizes, read from the error message of a product, sum or reshape.

    For other errors, the result is empty.

    >>> import numpy as np
    >>> try:
    ...     np.ones((2, 3)) @ np.ones((2, 3))
    ... except ValueError as error:
    ...     sorted(clash(error))
    [2, 3]
    """
    text = in_words(error)
    for pattern in _PAIRS:
        if match := pattern.search(text):
            return frozenset(map(int, match.groups()))
    for pattern in _RESHAPES:
        if match := pattern.search(text):
            known = [int(n) for n in _NUMBER.findall(match["shape"].replace("-1", ""))]
            return frozenset({int(match["size"]), math.prod(known)})
    if "broadcast" in text:
        _, remapped, shapes = text.rpartition("->remapped]: ")
        if remapped:  # shorten "(4,1,6)->(4,newaxis,newaxis)" to "(4,newaxis,newaxis)"
            shapes = re.sub(r"\([^)]*\)->", "", shapes)
        return _apart([_sizes(shape) for shape in _SHAPE.findall(shapes)])
    return frozenset()


def _sizes(shape: str) -> list[int]:
    """Return the sizes in a printed shape, such as [4, 1] for "4,newaxis"."""
    return [int(n) if n.strip().isdigit() else 1 for n in shape.split(",") if n.strip()]


def _apart(shapes: list[list[int]]) -> frozenset[int]:
    """Return the sizes that prevent broadcasting: {2, 3} for the shapes [2, 1] and [3, 4]."""
    return frozenset(
        size
        for shape, other in combinations(shapes, 2)
        for sizes in zip_longest(reversed(shape), reversed(other), fillvalue=1)
        if sizes[0] != sizes[1] and 1 not in sizes
        for size in sizes
    )


def alike(error: BaseException, other: BaseException, exactly: bool) -> bool:
    """Return whether two errors have the same message, or the same two mismatched sizes."""
    words = in_words(error)
    if _PRODUCT in words and _PRODUCT in in_words(other):
        exactly = True  # for a @ b, the order of the two sizes matters
    sizes = frozenset() if exactly else clash(error)
    return sizes == clash(other) if sizes else words == in_words(other)
