"""A view as HTML that needs no other file: numbers, script, static picture, notices of a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from qkv.arrays import finite
from qkv.models import Model
from qkv.see.draw import colours, svg
from qkv.see.draw.colours import TONES, Tone
from qkv.see.draw.elements import readable
from qkv.see.draw.panels import Rows, pictured

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
WITH_WORKER = f"{POLICY}; worker-src blob:"  # of a page that computes
_WITH_TOKENS = ("walk", "shift", "replay")
# What ends a script or a line of one, and halves of characters, which UTF-8 cannot write.
_PAINTED = re.compile("#[0-9a-f]{6}\\b|<image [^>]*/>")  # what a theme changes in a picture
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def fragment(payload: dict[str, Any], static: str, about: str = "") -> str:
    """A view as a part of a page: a div with the static picture, and the script that replaces it.

    The same view has the same text, and stands as often as one likes on one page: a script looks
    for every place of its own that has no view yet.

    Args:
        payload: the numbers.
        static: what shows where scripts are off, as SVG.
        about: what `about_model` says of the model whose numbers these are.
    """
    data = script_json(payload)
    mark = hashlib.sha256(data.encode()).hexdigest()[:16]
    kind = payload["kind"]
    css = script_json(f"{colours.css()}\n{bundle(f'{kind}.css')}")
    call = f'page.start("{mark}", {data}, {css});'
    return (
        f'<div class="qkv-view" data-qkv="{mark}">{static}{_tokens(payload)}{about}</div>\n'
        f"{script(bundle(f'{kind}.js'), call)}"
    )


def picture(title: str, lines: Sequence[str], rows: Rows, theme: str) -> str:
    """A view without a script as a part of a page.

    Panels wrap where the window is narrow; a panel that is wider than the window scrolls.

    Args:
        title: what stands on top.
        lines: what stands below, before the prose of the panels.
        rows: its panels.
        theme: "light", "dark", or "auto" for that of the site or system around it.
    """
    said, shown = pictured(rows)
    names = ("light", "dark") if theme == "auto" else (theme,)
    bodies = [_pictured(title, [*lines, *said], shown, TONES[name]) for name in names]
    body, more = _in_both_themes(*bodies) if theme == "auto" else (bodies[0], "")
    return f"<style>{template('picture.css')}{more}</style>{body}"


def _pictured(title: str, lines: Sequence[str], rows: Rows, tone: Tone) -> str:
    above = f"<strong>{escape(readable(title))}</strong>"
    parts = ["".join(f"<div>{svg.alone(panel, tone)}</div>" for panel in row) for row in rows]
    below = "".join(f'<p style="color:{tone.dim}">{escape(readable(line))}</p>' for line in lines)
    return (
        f'<div class="qkv-picture" style="color:{tone.ink};background:{tone.paper}"><p>{above}</p>'
        + "".join(f'<div class="qkv-row">{part}</div>' for part in parts)
        + f"{below}</div>"
    )


def _in_both_themes(light: str, dark: str) -> tuple[str, str]:
    """One body of two that differ in colours and images alone, and its style sheet.

    A colour becomes a variable named after both, so that pictures on one page agree about it.
    """
    pairs = list(zip(_PAINTED.findall(light), _PAINTED.findall(dark), strict=True))
    body, found = [], {}
    for text, (one, other) in zip(_PAINTED.split(light), [*pairs, ("", "")], strict=True):
        mixed = one
        if one != other and one.startswith("#"):
            name = f"--qkv-{one[1:]}-{other[1:]}"
            found[name] = one, other
            mixed = f"var({name})"
        elif one != other:
            mixed = f'<g class="qkv-light">{one}</g><g class="qkv-dark">{other}</g>'
        body += [text, mixed]

    def rules(dark: bool, within: str) -> str:
        own = "".join(f"{name}:{colors[dark]};" for name, colors in found.items())
        gone, here = ("light", "dark") if dark else ("dark", "light")
        return (
            f"{within}.qkv-picture{{{own}}}{within}.qkv-{gone}{{display:none}}"
            f"{within}.qkv-{here}{{display:inline}}"
        )

    more = (
        rules(False, "body ")
        + "@media (prefers-color-scheme:dark){"
        + rules(True, "body:not([data-theme=light]) ")
        + "}"
        + rules(True, "body[data-theme=dark] ")  # a site's own switch
    )
    return "".join(body), more


def document(title: str, body: str, theme: str, policy: str = POLICY, *, wide: bool = False) -> str:
    """A whole HTML document round a body, whose policy forbids it the network.

    `wide`: the body is as wide as the window, and what is in it says how wide it is.
    """
    return Template(template("document.html")).substitute(
        title=escape(readable(title), quote=True),
        body=body,
        policy=policy,
        scheme={"auto": "light dark"}.get(theme, theme),
        width="none" if wide else "1400px",
    )


def script_json(data: Any) -> str:
    r"""JSON that may stand in a script of a page, whatever its strings hold.

    >>> script_json({"a": "</script>\u2028&"})
    '{"a":"\\u003c/script\\u003e\\u2028\\u0026"}'
    """
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def script(*parts: str) -> str:
    """A script of a page, whose names are its own."""
    code = "\n".join(part.rstrip("\n") for part in parts)
    return f'<script>(() => {{ "use strict";\n{code}\n}})();</script>'


@lru_cache(maxsize=64)
def _read(*path: str) -> str:
    return files("qkv.see").joinpath("page", *path).read_text("utf-8")


def bundle(name: str) -> str:
    """Read a file of bundles/, which `make bundles` puts together from those in assets/."""
    return _read("bundles", name)


def template(name: str) -> str:
    """Read a file of templates/: HTML and CSS around a view."""
    return _read("templates", name)


def _tokens(payload: dict[str, Any]) -> str:
    """The tokens as text, for those who search, copy or listen where scripts are off."""
    lines = []
    for part in filter(None, (*payload["texts"], *(payload.get(name) for name in _WITH_TOKENS))):
        for which in ("tokens", "keys"):
            if part.get(which):
                called = " ".join(filter(None, (part.get("name"), which)))
                lines.append(f"{called}: {' '.join(part[which])}")
    return "".join(f"<p>{escape(readable(line), quote=True)}</p>" for line in lines)


# It is HTML of the page around a view, in whose shadow root base/mount.js has a slot for it. So it
# is there without scripts too, and takes its colours from the view, where there is one.


def about_model(model: Model | None, name: str = "this model") -> str:
    """The texts that stand beside a model's weights, folded behind a line; empty for none."""
    found = {} if model is None else model._notices
    if not found:
        return ""
    parts = ((_html(name), _html(text)) for name, text in found.items())
    texts = "".join(f"<h3>{name}</h3><pre>{text}</pre>" for name, text in parts)
    return (
        f'<style>{template("about.css")}</style><details class="qkv-about" slot="about">'
        f"<summary>About {_html(name)}</summary>{texts}</details>"
    )


def _html(text: str) -> str:
    lines = text.expandtabs().splitlines()
    return escape("\n".join(readable(line) for line in lines), quote=True)
