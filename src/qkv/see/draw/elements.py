"""Elements of an SVG picture: words, frames and pixels."""

import base64
import struct
import textwrap
import unicodedata
import zlib
from collections.abc import Iterable
from html import escape
from typing import NamedTuple

import numpy as np

from qkv.arrays import Array

SIZE = 11  # The height of a letter in pixels.
# Characters of these bidirectional classes could reverse the direction of the following words.
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Drawing(NamedTuple):
    """A part of a picture: its SVG elements, its width and its height in pixels."""

    elements: list[str]
    width: float
    height: float


def text(
    x: float,
    y: float,
    content: str,
    fill: str,
    *,
    size: float = SIZE,
    anchor: str = "start",
    weight: str = "normal",
    turn: float = 0,
    fit: float = 0,
) -> str:
    """Write words at a point; if `fit` is not 0, stretch the words to the width `fit`.

    Markup in the words is escaped.
    """
    more = "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += "" if weight == "normal" else f' font-weight="{weight}"'
    more += f' textLength="{fit:.1f}" lengthAdjust="spacingAndGlyphs"' if fit else ""
    more += f' transform="rotate({turn:g} {x:.1f} {y:.1f})"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{more}>'
        f"{escaped(content)}</text>"
    )


def outline(x: float, y: float, width: float, height: float, color: str, line: float) -> str:
    """Draw the edges of a rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="none" '
        f'stroke="{color}" stroke-width="{line:g}"/>'
    )


def image(pixels: Array, width: float, height: float, style: str = "") -> str:
    """Show pixels (H, W, 3) of uint8 in a rectangle of any size."""
    data = base64.b64encode(png(pixels)).decode("ascii")
    styled = f'style="{style}" ' if style else ""
    return (
        f'<image width="{width:.1f}" height="{height:.1f}" preserveAspectRatio="none" {styled}'
        f'href="data:image/png;base64,{data}"/>'
    )


def png(pixels: Array) -> bytes:
    """Encode pixels (H, W, 3) of uint8 as a PNG file.

    Source:
        PNG specification, third edition, sections 5 and 11.

    >>> png(np.zeros((1, 1, 3), np.uint8))[1:4]
    b'PNG'
    """
    high, wide = pixels.shape[:2]
    # each row begins with the number of its filter; 0 means no filter
    lines = np.zeros((high, 1 + 3 * wide), np.uint8)
    lines[:, 1:] = pixels.reshape(high, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    # 8 bits for each of red, green and blue
    header = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def readable(content: str) -> str:
    r"""Replace characters that are invisible, or not allowed in XML, with visible symbols.

    >>> readable("a\nb\x00\ud800\u202e")
    'a␊b␀��'
    """
    return "".join(_sign(mark) for mark in content)


def _sign(mark: str) -> str:
    code = ord(mark)
    if code < 0x20:
        return chr(0x2400 + code)
    unseen = unicodedata.category(mark) in ("Cc", "Cs") or code & 0xFFFE == 0xFFFE
    return "\ufffd" if unseen or unicodedata.bidirectional(mark) in _DIRECTIONS else mark


def escaped(content: str) -> str:
    """Escape words for an element or an attribute."""
    return escape(readable(content), quote=True)


def label(content: str, most: int = 14) -> str:
    """Cut a label that is too long; if a label has only spaces, make the spaces visible."""
    if not content.strip():
        content = content.replace(" ", "␣") or "∅"
    return content if len(content) <= most else content[: most - 1] + "…"


def label_width(content: str) -> float:
    """Estimate the width of a label in pixels, after `label` has cut it."""
    shown = label(content)
    wide = sum(unicodedata.east_asian_width(mark) in "WF" for mark in shown)
    return (0.6 * len(shown) + 0.45 * wide) * SIZE


def widest(labels: Iterable[str]) -> float:
    """Estimate the width of the widest of several labels; return 0 without labels."""
    return max(map(label_width, labels), default=0)


def word_width(word: str) -> float:
    """Estimate the width of an uncut word in pixels, letter by letter."""
    sizes = (
        0.3 if mark in "iljtfrI.,;:'!|()[] " else 0.85 if mark in "mwMW@—" else 0.66
        if mark.isupper() or mark.isdigit() else 1.0
        if unicodedata.east_asian_width(mark) in "WF" else 0.56
        for mark in word
    )  # fmt: skip
    return sum(sizes) * SIZE


def wrapped(line: str, width: float, size: float) -> list[str]:
    """Break a line into lines that fit a width, between words if possible."""
    return textwrap.wrap(readable(line), max(20, int(width / (0.56 * size))))
