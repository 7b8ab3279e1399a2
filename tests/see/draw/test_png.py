"""Tests of PNG files: their sizes and colours, and an error for each character without a font."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib import get_data_path
from PIL import Image

from qkv.circuits import plot
from qkv.models import Model
from qkv.see import show
from qkv.see.draw import png

from ..support import CAT, made_trace

OPEN = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10">'
DEJAVU = Path(get_data_path(), "fonts/ttf/DejaVuSans.ttf")


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def only_fonts(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Hide the machine's fonts, and use these files instead."""
    found = f"zoom=2, skip_system_fonts=True, font_files={[*map(str, paths)]}"
    assert png._PROGRAM.count("zoom=2") == 1
    monkeypatch.setattr(png, "_PROGRAM", png._PROGRAM.replace("zoom=2", found))


def test_a_pixel_of_the_svg_is_two_by_two_pixels() -> None:
    drawn = pixels(
        png.render(
            f'{OPEN}<rect x="2" y="1" width="3" height="2" fill="#c8102e"/></svg>', "#12161c"
        )
    )
    expected = np.full((20, 40, 3), (0x12, 0x16, 0x1C))
    expected[2:6, 4:10] = (0xC8, 0x10, 0x2E)
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize(("theme", "paper"), [("light", "#ffffff"), ("dark", "#12161c")])
def test_the_background_is_that_of_the_theme(
    lesson: Model, theme: str, paper: str, tmp_path: Path
) -> None:
    show(lesson.trace(CAT), theme=theme).to_png(tmp_path / "view.png")
    drawn = pixels((tmp_path / "view.png").read_bytes())
    edges = np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]])
    assert (edges == [*bytes.fromhex(paper[1:])]).all()
    assert len(np.unique(drawn[:, :, 0])) > 20  # cells, letters


def test_words_are_drawn_but_hints_for_the_mouse_are_not() -> None:
    def dark(svg: str) -> int:
        return int((pixels(png.render(f"{OPEN}{svg}</svg>", "white")) < 100).sum())

    assert dark('<text y="9">word</text>') > 100
    assert dark('<text y="9" class="qkv-hint">word</text>') == 0


# matplotlib brings DejaVu Sans, which has Latin, Hebrew and a few emoji.
@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("cat ▁Ġ ##s שלום 😀 'the' a\u200db", None),
        ("the 你好", ("你", "fonts-noto-cjk")),
        ("ねこ", ("ね", "fonts-noto-cjk")),
        ("고양이", ("고", "fonts-noto-cjk")),
        ("नमस्ते", ("न", "fonts-noto-core")),
        ("🦊 fox", ("🦊", "fonts-noto-color-emoji")),
        ("🇫🇷", ("🇫", "fonts-noto-color-emoji")),
        ("✅", ("✅", "fonts-noto-color-emoji")),
        ("\u0378", ("\\u0378", "fonts-dejavu-core")),  # an unassigned character
    ],
)
def test_a_character_that_no_font_has_is_named(
    text: str, missing: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_fonts(monkeypatch, DEJAVU)
    svg = f"{OPEN}<text>{text}</text></svg>"
    if missing is None:
        assert png.render(svg, "white").startswith(b"\x89PNG")
        return
    with pytest.raises(ValueError, match="no font on this machine has the character") as found:
        png.render(svg, "white")
    assert f"character '{missing[0]}' (U+" in str(found.value)
    assert f"(Debian: the package {missing[1]}), or write an SVG" in str(found.value)


def test_without_fonts_the_first_character_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only_fonts(monkeypatch)
    view = show(made_trace(["שלום", "b"], np.full((1, 1, 2, 2), 0.5)))
    first = view.sentence[0]
    with pytest.raises(ValueError, match=f"^to_png: no font .* character '{first}' .*dejavu-core"):
        view.to_png(tmp_path / "a.png")
    assert not [*tmp_path.iterdir()]
    assert png.render(f"{OPEN}</svg>", "white").startswith(b"\x89PNG")  # no words, no fonts


def test_a_character_that_resvg_draws_only_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Warning (in usvg): No fonts with a न/U+928 character were found."
    monkeypatch.setattr(png, "_draw", lambda svg, _: ("" if ">न<" in svg else said, b""))
    with pytest.raises(ValueError, match=r"cannot draw the character .न. in a .* rsvg-convert"):
        png.render(f"{OPEN}<text>न attends to b</text></svg>", "white")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ImportError, match=r"pip install '.\[png\]'"):
        png.render(f"{OPEN}</svg>", "white")


def test_a_png_is_written_whole_or_not_at_all(lesson: Model, tmp_path: Path) -> None:
    view = show(CAT, model=lesson)
    target = tmp_path / "picture.png"
    view.to_png(target)
    assert target.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        view.to_png(tmp_path / "nowhere" / "picture.png")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_a_picture_of_numbers_has_their_colours(tmp_path: Path) -> None:
    view = plot([[0.0, 1.0]], axes=("layer", "head"), of="weight")
    view.to_png(tmp_path / "a.png")
    drawn = pixels((tmp_path / "a.png").read_bytes()).reshape(-1, 3)
    dark = (drawn == (0x02, 0x3A, 0x6C)).all(1).sum()  # a weight of 1, as in the docs of `shade`
    assert 2500 < dark < 3600  # most of a cell of 60 x 60 pixels; digits cover the rest
