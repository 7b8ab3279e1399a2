"""Tests of the colours of numbers: visible differences, contrast and scales."""

import colorsys
import os
import re
import select
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import qkv
import qkv.see
from qkv.models import random_model
from qkv.see.draw import colours, terminal
from qkv.see.draw.terminal import Screen, cube_color

THEMES = sorted(colours.THEMES)
# Backgrounds of terminals. Dark: black, and the backgrounds of VS Code, One Dark and Ubuntu.
# Light: white, the background of Solarized Light, and a light grey.
GROUNDS = {
    "dark": ("#000000", "#1e1e1e", "#282c34", "#300a24"),
    "light": ("#ffffff", "#fdf6e3", "#f5f5f5"),
}


def channels(color: str) -> np.ndarray:
    return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def luminance(color: str) -> float:
    """Compute the relative luminance (WCAG 2.1)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(color)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def lab(color: str) -> np.ndarray:
    """Convert an sRGB colour (IEC 61966-2-1, D65) to CIELAB."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(color)]
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = (
        np.cbrt(part) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116
        for part in to_xyz @ linear / to_xyz.sum(axis=1)
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def delta_76(a: str, b: str) -> float:
    return float(np.linalg.norm(lab(a) - lab(b)))


def delta_2000(a: str, b: str) -> float:
    """Compute the colour difference CIEDE2000 (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = lab(a), lab(b)
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    grey = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = np.hypot(grey * a1, b1), np.hypot(grey * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(y, grey * x)) % 360 for x, y in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    t = 1 + sum(
        size * np.cos(np.radians(times * hue + shift))
        for size, times, shift in ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.2, 4, -63))
    )
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    blue = 60 * np.exp(-(((hue - 275) / 25) ** 2))
    both = -2 * np.sin(np.radians(blue)) * np.sqrt(chroma**7 / (chroma**7 + 25**7))
    return float(np.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + both * by_chroma * by_hue))


def test_colour_differences_match_known_values() -> None:
    """Equal colours have the difference 0; black and white have the difference 100."""
    assert delta_2000("#123456", "#123456") == 0
    assert delta_2000("#000000", "#ffffff") == pytest.approx(100, abs=0.01)
    assert delta_76("#000000", "#ffffff") == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("theme", THEMES)
def test_a_weight_of_a_twentieth_is_distinguishable_from_0(theme: str, sign: int) -> None:
    ground, little = colours.shade(0.0, theme), colours.shade(sign * 0.05, theme)
    assert delta_76(ground, little) >= 5
    assert delta_2000(ground, little) >= 5


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("theme", THEMES)
def test_larger_weights_contrast_more_with_the_background(theme: str, sign: int) -> None:
    ground = colours.shade(0.0, theme)
    shades = [colours.shade(sign * k / 100, theme) for k in range(101)]
    away = [contrast(ground, color) for color in shades]
    assert away == sorted(away)
    assert away[100] > 7
    for a, b in pairwise(shades[::5]):
        assert delta_2000(a, b) >= 2  # a step of 0.05 is visible


@pytest.mark.parametrize("theme", THEMES)
def test_negative_values_have_another_colour_of_similar_lightness(theme: str) -> None:
    for k in range(5, 101):
        more, less = colours.shade(k / 100, theme), colours.shade(-k / 100, theme)
        assert abs(lab(more)[0] - lab(less)[0]) < 6
        assert delta_2000(more, less) > 8
    assert colours.shade(7.0, theme) == colours.shade(1.0, theme)


@pytest.mark.parametrize("theme", THEMES)
def test_a_number_on_a_cell_can_be_read_at_every_weight(theme: str) -> None:
    for k in range(-1000, 1001):
        color = colours.shade(k / 1000, theme)
        assert contrast(color, colours.ink(color)) >= 4.5  # WCAG 2.1, AA


@pytest.mark.parametrize("theme", THEMES)
def test_weight_0_has_the_background_colour_of_the_page(theme: str) -> None:
    paper = {"light": "#ffffff", "dark": "#12161c"}[theme]
    assert colours.shade(0.0, theme) == paper
    block = colours.css().split("\n")[["light", "dark"].index(theme)]
    assert f"--paper:{paper};" in block
    css = (Path(qkv.see.__file__).parent / "page" / "assets" / "base" / "view.css").read_text(
        "utf-8"
    )
    assert "--paper:" not in css
    assert "background: var(--paper)" in css


def is_orange(color: str) -> bool:
    hue, saturation, value = colorsys.rgb_to_hsv(*channels(color))
    return 10 <= 360 * hue <= 50 and saturation > 0.35 and value > 0.3


def test_orange_is_left_for_what_the_reader_changed() -> None:
    assert is_orange("#c64a00")
    assert is_orange("#ff9d5c")
    used = [color for theme in colours.THEMES.values() for color in (*theme.more, *theme.less)]
    used += [color for theme in colours.THEMES.values() for color in theme.lines]
    for theme in colours.THEMES.values():
        used += [cube_color(place) for place in (*theme.cells, *theme.cells_less)]
    folder = Path(qkv.see.__file__).parent
    for path in (*folder.rglob("*.py"), *folder.rglob("page/assets/**/*.*s")):
        if path.is_file() and path.name != "play.css":  # play.css defines the orange
            used += re.findall(r"#[0-9a-f]{6}\b", path.read_text("utf-8"))
    assert [color for color in used if is_orange(color)] == []


@pytest.mark.parametrize("theme", THEMES)
def test_the_colours_of_two_held_rows_differ_and_are_not_red(theme: str) -> None:
    first, second = colours.THEMES[theme].lines[:2]
    assert delta_2000(first, second) > 30
    for color in (first, second):
        assert 50 < 360 * colorsys.rgb_to_hsv(*channels(color))[0] < 330


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("depth", [256, 1 << 24])
@pytest.mark.parametrize("theme", THEMES)
def test_shades_start_at_the_background_of_the_terminal(theme: str, depth: int, sign: int) -> None:
    screen = Screen(colors=depth, theme=theme)
    assert screen.shading(0.0) == ""
    assert screen.shading(sign * 0.004) == ""  # this weight is written as 0.00
    found = []
    first = 5 if depth > 256 else 25
    assert screen.shading(sign * (first - 1) / 1000) == ""
    for k in range(first, 1001):
        ink, color = (
            cube_color(int(name[6:-1])) if name.startswith("color") else name
            for name in screen.shading(sign * k / 1000).split(" on ")
        )
        assert contrast(ink, color) >= 4.5
        found.append(color)
    for ground in GROUNDS[theme]:
        assert delta_76(found[50 - first], ground) >= 5
    away = [contrast(GROUNDS[theme][0], color) for color in found]
    assert np.diff(away).min() >= -0.01  # colour channels are rounded


def test_a_terminal_of_unknown_background_is_not_shaded() -> None:
    assert not Screen(colors=256, theme=None).shades
    assert not Screen(colors=0).shades
    assert Screen(colors=256, theme="light").shades


@pytest.mark.parametrize(
    ("said", "theme"),
    [("15;0", "dark"), ("0;15", "light"), ("0;default;15", "light"), ("7;8", "dark"), ("x", None)],
)
def test_colorfgbg_is_believed(monkeypatch, tmp_path: Path, said: str, theme: str | None) -> None:
    monkeypatch.setenv("COLORFGBG", said)
    with open(tmp_path / "file", "w") as file:
        assert terminal.ground_of(file) == theme


ASK = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from qkv.see.draw import terminal as screen
for seconds in (60, 60, 60, 0.3):  # only the last one is waited for in vain
    screen._WAIT = seconds
    print(screen._ask_terminal.__wrapped__(), file=sys.stderr)
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals")
def test_a_terminal_is_queried_for_its_background_colour() -> None:
    answers = [
        b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c",
        b"\x1b]11;rgb:00/2b/36\x07\x1b[?1;2c",
        b"\x1b[?6c",  # this terminal does not know the first request
        b"",  # this terminal knows neither request
    ]
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    for answer in answers:
        asked = b""
        while not asked.endswith(b"\x1b[c"):
            assert select.select([ours], [], [], 60)[0], asked
            asked += os.read(ours, 1)
        os.write(ours, answer)
    _, said = child.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert said.decode().split() == ["light", "dark", "None", "None"]


@pytest.fixture(scope="module")
def makers() -> dict:
    text, other = "the cat sat on the mat", "a cat ran"
    model = qkv.models.random_model(f"{text} {other}")
    trace, changed = model.trace(text), model.trace(text, ablate=[(0, 1)])
    runs = {step: qkv.models.random_model(text, seed=step) for step in (0, 10)}
    return {
        "show": lambda **o: qkv.show(trace, **o),
        "top_k": lambda **o: qkv.show(model.trace(text, top_k=2), **o),
        "compare": lambda **o: qkv.compare(text, other, word="cat", model=model, **o),
        "runs": lambda **o: qkv.compare(trace, changed, **o),
        "walk": lambda **o: qkv.walk(trace, **o),
        "replay": lambda **o: qkv.replay(runs, text, **o),
        "head_view": lambda **o: qkv.head_view(trace, html_action="return", **o),
    }


def weights_of(view: qkv.see.View) -> list[np.ndarray]:
    """Read the weights of the shown head from the traces."""
    if isinstance(view, qkv.see.WalkView):
        return [view.walk.trace.pattern(view.walk.layer, view.walk.head)]
    if isinstance(view, qkv.see.ReplayView):
        return [view.weights]
    layer, head = view.head.layer, view.head.head
    if isinstance(view, qkv.see.HeadView):
        return [view.parts[0].weights[layer][head]]
    if isinstance(view, qkv.see.ShowView):
        trace = view.trace
        kept = ("top_weights", layer) in trace
        return [trace["top_weights", layer][0, head] if kept else trace.pattern(layer, head)]
    traces = view.traces if isinstance(view, qkv.see.RunsView) else [s.trace for s in view.sides]
    return [trace.pattern(layer, head) for trace in traces]


@pytest.mark.parametrize("stretch", [False, True])
@pytest.mark.parametrize(
    "kind", ["show", "top_k", "compare", "runs", "walk", "replay", "head_view"]
)
def test_one_scale_in_page_picture_and_terminal(makers: dict, kind: str, stretch: bool) -> None:
    view = makers[kind](stretch=stretch)
    largest = max(float(weights.max()) for weights in weights_of(view))
    end = f"{largest if stretch else 1:.2f}"
    assert view._payload()["stretch"] == stretch
    picture = view.svg()
    if kind == "replay":
        said = f"dark blue {end}{' (stretched)' if stretch else ''}."
        assert said in picture
    else:
        name = "weight, stretched" if stretch else "weight"
        found = re.findall(rf">([^<>]*)</text><text[^>]*>{name}</text>", picture)
        assert set(found) == {end}
    if kind in ("show", "walk", "head_view"):  # the other views have no map in a terminal
        scale = next(line for line in str(view).split("\n") if line.startswith("scale"))
        assert scale.split("(")[0].split()[-1] == end
        assert scale.endswith("(stretched to the largest)") == stretch


def test_the_command_line_accepts_stretch(capsys) -> None:
    from qkv.cli import main

    with pytest.raises(SystemExit):
        main(["show", "the cat sat", "--model", "random", "--stretch"])
    assert "(stretched to the largest)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("theme", "pair"), [("light", ("#00795a", "#8a3fc0")), ("dark", ("#4fd0a5", "#d59bff"))]
)
def test_a_and_b_have_the_same_colours_in_every_format(theme: str, pair: tuple[str, str]) -> None:
    word = qkv.compare("I love you", "You love me", word="love", model="random", theme=theme)
    model = random_model("decoder")
    traces = model.trace("I love you"), model.trace("I love you", ablate=[(0, 0)])
    for view in (word, qkv.compare(*traces, theme=theme)):
        titles = re.findall(r'fill="([^"]*)" font-weight="bold"', view.svg())
        assert [color for color in titles if color in pair] == list(pair)
    drawn = list(terminal.draw(Screen(110, 1 << 24, theme=theme), word.panels()))
    styles = [
        str(style) for line in drawn for style in (line.style, *(x.style for x in line.spans))
    ]
    assert [style[5:] for style in styles if style[5:] in pair] == [*pair, *pair]  # in two tables
    where = ".view{" if theme == "light" else '.view[data-theme="dark"]{'
    (rule,) = [rule for rule in colours.css().split("\n") if rule.startswith(where)]
    assert f"--a:{pair[0]};--b:{pair[1]}" in rule
