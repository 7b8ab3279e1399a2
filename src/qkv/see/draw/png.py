"""SVG pictures as PNG files, drawn by resvg with the machine's fonts."""

import os
import re
import subprocess
import sys
from html import unescape
from unicodedata import east_asian_width

from qkv._argument_errors import value_error
from qkv.extras import need
from qkv.see.draw.svg import to_xml

# resvg does not know `system-ui`. It takes the first of these families that is installed, and
# searches all other fonts for characters that this family lacks. `.qkv-hint` tells readers to point
# at a part of the picture.
_STYLES = (
    "svg{font-family:Segoe UI,Helvetica,Arial,Liberation Sans,Noto Sans,Roboto,Ubuntu,Cantarell,"
    "DejaVu Sans,FreeSans,Noto Sans CJK JP}.qkv-hint{visibility:hidden}"
)
# resvg reports a missing font only in its log, on the standard output of the process.
_PROGRAM = """
import sys, resvg_py
svg = sys.stdin.buffer.read().decode()
background, styles = sys.argv[1:]
sys.stdout.buffer.write(resvg_py.svg_to_bytes(
    svg, zoom=2, background=background, style_sheet=styles, log_information=True
))
"""
_MISSING = re.compile(r"No fonts with a .*U\+([0-9A-F]+) character")


def render(svg: str, background: str) -> bytes:
    """Draw an SVG picture as a PNG file, 2 x 2 pixels for each pixel of the SVG.

    Raises:
        ImportError: resvg-py is not installed.
        ValueError: a character cannot be drawn, usually because no font on this machine has it.
    """
    need("resvg_py", "png")
    log, data = _draw(svg, background)
    if "No match for" in log:  # none of the families is installed, so no text was drawn
        words = re.search(r"<text[^>]*>\s*([^<]+)", svg)
        raise _no_font(unescape(words[1])[0] if words else "a")
    missing = _MISSING.search(log)
    if missing is None:
        return data
    character = chr(int(missing[1], 16))
    alone = f'<svg xmlns="http://www.w3.org/2000/svg"><text>{to_xml(character)}</text></svg>'
    if _MISSING.search(_draw(alone, background)[0]):
        raise _no_font(character)
    raise value_error(
        f"resvg cannot draw the character {character!r} in a text with letters of another script; "
        "write an SVG, and convert it with rsvg-convert -o picture.png picture.svg"
    )


def _draw(svg: str, background: str) -> tuple[str, bytes]:
    """Return resvg's log and the PNG."""
    output = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, background, _STYLES],
        input=svg.encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
    ).stdout
    log, start, data = output.partition(b"\x89PNG")
    return log.decode(), start + data


def _no_font(character: str) -> ValueError:
    """Return an error that names a character, and Debian's package with a font that has it."""
    code, wide = ord(character), east_asian_width(character) in "FHW"
    package = "fonts-noto-cjk" if wide else "fonts-noto-core"
    if code < 0x590 or 0x2500 <= code < 0x25A0:  # Latin, Greek, Cyrillic, Armenian, blocks
        package = "fonts-dejavu-core"
    elif 0x1F1E6 <= code < 0x1F200 or (wide and (code >> 12 == 0x1F or 0x2300 <= code < 0x2C00)):
        package = "fonts-noto-color-emoji"
    return value_error(
        f"no font on this machine has the character {character!r} (U+{code:04X}); install one "
        f"(Debian: the package {package}), or write an SVG"
    )
