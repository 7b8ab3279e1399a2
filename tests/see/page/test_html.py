"""Tests that pages are complete, request nothing from a network, and show foreign text as text."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from qkv.models import random_model
from qkv.see import View, compare, head_view, plot_shift, replay, show, walk
from qkv.see.draw.colours import THEMES
from qkv.see.draw.panels import Bars, HeatMap, Panel, Prose
from qkv.see.page import html, payload
from qkv.trace import Trace

from ..support import CAT
from .reading import Page, payload_in, written

HOSTILE = "</script><img src=x onerror=alert(1)>"


def hostile_views() -> dict[str, Callable[[], View | None]]:
    """Return functions that make a view of each kind, with hostile tokens."""
    words = ["a", HOSTILE, "b", HOSTILE]
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(4), size=(1, 2, 4))

    def trace(seed: int = 0) -> Trace:
        found = random_model("a b c d").trace("a b c d")
        arrays = {name: found[name] * (1 + seed * ("resid_post" in name)) for name in found.names()}
        return Trace(arrays, tokens=[words], model=HOSTILE, changed={"hide": [HOSTILE] * seed})

    return {
        "show": lambda: show(trace()),
        "arrays": lambda: show(weights, tokens=words),
        "word": lambda: compare(trace(), trace(1), word=HOSTILE),
        "runs": lambda: compare(trace(), trace(1)),
        "walk": lambda: walk(trace()),
        "shift": lambda: plot_shift([trace(), trace()]),
        "heads": lambda: head_view(weights, words, html_action="return"),
        "cross": lambda: head_view(
            cross_attention=[weights[0, :, :2]], decoder_tokens=words[:2], encoder_tokens=words,
            html_action="return",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", hostile_views())
def test_hostile_words_stay_words(kind: str, tmp_path: Path) -> None:
    view = hostile_views()[kind]()
    text = written(view, tmp_path)
    found = Page(text)
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert text.count("</script") == 1
    assert "<img" not in text
    assert HOSTILE in json.dumps(payload_in(text), ensure_ascii=False)
    assert HOSTILE in "".join(found.words)
    assert Page(view._repr_html_()).tags.count("script") == 1
    view.to_svg(tmp_path / "view.svg")
    assert "<img" not in (tmp_path / "view.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", hostile_views())
def test_a_page_makes_no_network_requests_and_forbids_them(kind: str, tmp_path: Path) -> None:
    text = written(hostile_views()[kind](), tmp_path)
    found = Page(text)
    policies = found.attribute("meta", "content")
    assert policies[0] == (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert found.attribute("meta", "http-equiv") == ["Content-Security-Policy"]
    # without this icon, a browser requests /favicon.ico
    assert found.attribute("link", "href") == ["data:,"]
    assert not [value for _, name, value in found.attributes if name in ("src", "srcset", "action")]
    (script,) = found.scripts
    code = script[: script.rindex("start(")]
    for needed in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "require(", "@import"):
        assert needed not in code
    # an address that begins with "#" refers to an element of the page
    assert not re.findall(r"url\((?!data:|#)", text)
    addresses = set(re.findall(r"https?://[^\"'<> )]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_a_page_is_complete(tmp_path: Path) -> None:
    view = show(CAT, model="random", theme="dark")
    found = Page(written(view, tmp_path))
    assert found.attribute("html", "lang") == ["en"]
    assert "width=device-width, initial-scale=1" in found.attribute("meta", "content")
    assert "dark" in found.attribute("meta", "content")
    assert {"title", "main", "h1", "svg"} <= set(found.tags)
    assert CAT in found.words
    assert "tokens: the cat sat on the mat" in found.words
    assert (tmp_path / "view.html").read_bytes().startswith(b"<!doctype html>")


def test_a_title_quotes_the_text(tmp_path: Path) -> None:
    model, text = random_model(["It's a cat, isn't it?", CAT]), "It's a  cat, isn't it?"
    trace = model.trace(text)
    trace.save(tmp_path / "trace")
    views = [
        show(text, model=model), show(Trace.load(tmp_path / "trace")), walk(text, model=model),
        compare(trace, model.trace(text, hide=["cat"])), plot_shift(trace), replay({0: trace}),
        head_view(model.trace([CAT, text])[1]),
    ]  # fmt: skip
    for view in views:
        assert payload_in(view._repr_html_())["title"] == "It's a cat, isn't it?"
    weights = np.full((1, 1, 3, 3), 1 / 3)
    spelled = show(weights, tokens=["[CLS]", "walk", "##ing"])
    assert payload_in(spelled._repr_html_())["title"] == "walking"


def test_equal_views_have_equal_html_and_different_views_differ() -> None:
    first = show(CAT, model="random")._repr_html_()
    assert show(CAT, model="random")._repr_html_() == first
    (mark,) = Page(first).attribute("div", "data-qkv")
    other = show(CAT, model="random", head=0, layer=0, theme="light")._repr_html_()
    assert Page(other).attribute("div", "data-qkv") != [mark]
    assert f'start("{mark}", ' in first
    assert Page(first).attribute("div", "id") == []


# Pictures without a script


def variables(css: str, start: str) -> dict[str, str]:
    """Return the colours that a CSS rule gives to variables."""
    (rule,) = re.findall(re.escape(start) + r"\{(--qkv[^}]*)\}", css)
    return dict(part.split(":") for part in rule.split(";") if part)


def panels() -> list[list[Panel]]:
    values = np.array([[0.5, -2.0], [1.0, 0.25]])
    map_ = HeatMap(title="a map", values=values, rows="ab", columns="cd", top=None, of="score")
    bars = Bars(title="bars", names=["#ffffff", "b"], values=[1.0, -0.5])
    return [[map_, bars], [replace(map_, compact=True), Prose(text="a note of <b>")]]


def test_a_picture_has_the_colours_of_both_themes() -> None:
    text = html.picture("a title", ["a line"], panels(), "auto")
    alone = {name: html.picture("a title", ["a line"], panels(), name) for name in THEMES}
    css, body = text.split("</style>")
    by_system, by_site = re.findall(r"body:(?:not|is)\([^)]*\) \.qkv-picture(?={--)", css)
    rules = {"light": variables(css, "body .qkv-picture"), "dark": variables(css, by_system)}
    assert by_system.startswith("body:not([data-theme=light],")
    assert by_site.startswith("body:is([data-theme=dark],")
    assert variables(css, by_site) == rules["dark"]
    assert f"@media (prefers-color-scheme:dark){{{by_system}{{" in css
    for name, colors in rules.items():
        found = re.sub(r"var\((--[^)]*)\)", lambda part, own=colors: own[part[1]], body)
        # both themes' images are in the body, and each theme shows its own image
        other = {"light": "dark", "dark": "light"}[name]
        found = re.sub(f'<g class="qkv-{other}">.*?</g>', "", found)
        found = re.sub(f'<g class="qkv-{name}">(.*?)</g>', r"\1", found)
        assert found == alone[name].split("</style>")[1]
    assert body.count("<image") == 2
    assert ">#ffffff</text>" in body  # this is a word, not a colour


def test_a_picture_has_one_svg_per_panel_and_its_words_as_text() -> None:
    found = Page(html.picture("a <title>", ["a line"], panels(), "light"))
    assert found.tags.count("svg") == 3
    assert found.attribute("div", "class").count("qkv-row") == 2
    assert {"a <title>", "a line", "a note of <b>"} <= set(found.words)
    assert found.attribute("svg", "aria-label") == ["a map", "bars", "a map"]


# Text from outside


@pytest.mark.parametrize(
    "token", ["\ud800", "a\x00b", "\u2028", "\u202eabc", "&amp;", "<!--", "]]>", "\\u003c", "'\""]
)
def test_any_token_can_be_written_and_read_back(token: str, tmp_path: Path) -> None:
    text = written(show(np.full((1, 1, 2, 2), 0.5), tokens=[token, "b"]), tmp_path)
    assert payload_in(text)["texts"][0]["tokens"] == [token, "b"]
    (script,) = Page(text).scripts
    data = script[script.rindex("start(") :]
    assert not set(data) & set("<>&\u2028\u2029\ud800")


def test_an_unknown_theme_is_refused() -> None:
    for call in (show, walk, lambda text, **o: compare(text, text, word="cat", **o)):
        with pytest.raises(ValueError, match="theme is 'blue': choose auto, light, dark"):
            call(CAT, model="random", theme="blue")
    with pytest.raises(ValueError, match="plot_shift: theme"):
        plot_shift(random_model(CAT).trace(CAT), theme="blue")
    with pytest.raises(ValueError, match="head_view: theme"):
        head_view(np.ones((1, 1, 1, 1)), ["a"], theme="blue")


# The scripts themselves


@pytest.mark.parametrize("kind", ["show", "compare", "walk", "shift"])
def test_the_script_of_a_page_is_smaller_than_100_kb(kind: str) -> None:
    (script,) = Page(html.fragment(payload.payload_of(kind, "", []), "")).scripts
    code = script[: script.rindex('start("')]
    assert 10_000 < len(code.encode()) < 100_000


BUNDLES = Path(str(files("qkv.see").joinpath("page", "bundles")))


@pytest.mark.parametrize("name", sorted(path.name for path in BUNDLES.iterdir()))
def test_a_bundle_can_be_inlined_in_a_page(name: str) -> None:
    text = html.bundle(name)
    assert text
    assert "</script" not in text.lower()
    assert "<!--" not in text
    assert "innerHTML" not in text
    assert "eval(" not in text
