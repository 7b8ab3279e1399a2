"""A view as self-contained HTML: numbers, script, static picture, model card and licences."""

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
from qkv.see.draw.panels import Rows, split_prose

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
# The content security policy of a page whose model runs in WebAssembly.
WITH_WORKER = f"{POLICY}; worker-src blob:".replace("script-src", "script-src 'wasm-unsafe-eval'")
WITH_FILES = f"{WITH_WORKER}; connect-src 'self'"  # if weights are in files beside the page
PIECES = '<script type="text/plain" data-piece'  # a piece of a model (see page/engine.py)
_WITH_TOKENS = ("walk", "shift", "replay")
# How the page around a picture names its own theme: the documentation's site, JupyterLab, VS Code.
_LIGHT = "[data-theme=light],[data-jp-theme-light=true],[data-vscode-theme-kind$=light]"
_DARK = (
    "[data-theme=dark],[data-jp-theme-light=false],[data-vscode-theme-kind=vscode-dark],"
    "[data-vscode-theme-kind=vscode-high-contrast]"
)
# The parts of a picture that differ between themes.
_PAINTED = re.compile("#[0-9a-f]{6}\\b|<image [^>]*/>")
# Characters that can end a script or one of its lines, and surrogates, which UTF-8 cannot encode.
_UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def fragment(payload: dict[str, Any], static: str, about: str = "") -> str:
    """Write a view as HTML elements: a static picture, and a script that replaces the picture.

    The same view always has the same HTML. A page may contain this HTML several times: each script
    fills only the elements that no earlier script has filled.

    Args:
        payload: the data of the page.
        static: the SVG for readers without scripts.
        about: the result of `about_model` for the view's model.
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
    """Write a view as HTML elements without a script.

    In a narrow window, the panels of a row wrap; a panel that is wider than the window scrolls.

    Args:
        title: the title above the panels.
        lines: lines of text below the panels. The panels' own text follows these lines.
        rows: the panels.
        theme: "light", "dark", or "auto"; "auto" follows the theme of the site or system.
    """
    prose, panel_rows = split_prose(rows)
    names = ("light", "dark") if theme == "auto" else (theme,)
    bodies = [_draw_body(title, [*lines, *prose], panel_rows, TONES[name]) for name in names]
    body, more = _in_both_themes(*bodies) if theme == "auto" else (bodies[0], "")
    return f"<style>{template('picture.css')}{more}</style>{body}"


def _draw_body(title: str, lines: Sequence[str], rows: Rows, tone: Tone) -> str:
    above = f"<strong>{escape(svg.readable(title))}</strong>"
    parts = ["".join(f"<div>{svg.alone(panel, tone)}</div>" for panel in row) for row in rows]
    below = "".join(
        f'<p style="color:{tone.dim}">{escape(svg.readable(line))}</p>' for line in lines
    )
    return (
        f'<div class="qkv-picture" style="color:{tone.ink};background:{tone.paper}"><p>{above}</p>'
        + "".join(f'<div class="qkv-row">{part}</div>' for part in parts)
        + f"{below}</div>"
    )


def _in_both_themes(light: str, dark: str) -> tuple[str, str]:
    """Merge two bodies that differ only in colours and images; return `(body, CSS)`.

    Each pair of colours becomes a CSS variable named after both colours, so all pictures on a page
    share the variables.
    """
    pairs = list(zip(_PAINTED.findall(light), _PAINTED.findall(dark), strict=True))
    body, variables = [], {}
    for text, (day, night) in zip(_PAINTED.split(light), [*pairs, ("", "")], strict=True):
        mixed = day
        if day != night and day.startswith("#"):
            name = f"--qkv-{day[1:]}-{night[1:]}"
            variables[name] = day, night
            mixed = f"var({name})"
        elif day != night:
            mixed = f'<g class="qkv-light">{day}</g><g class="qkv-dark">{night}</g>'
        body += [text, mixed]

    def rules(dark: bool, within: str) -> str:
        colors_of = "".join(f"{name}:{colors[dark]};" for name, colors in variables.items())
        gone, here = ("light", "dark") if dark else ("dark", "light")
        return (
            f"{within}.qkv-picture{{{colors_of}}}{within}.qkv-{gone}{{display:none}}"
            f"{within}.qkv-{here}{{display:inline}}"
        )

    more = (
        rules(False, "body ")
        + "@media (prefers-color-scheme:dark){"
        + rules(True, f"body:not({_LIGHT}) ")
        + "}"
        + rules(True, f"body:is({_DARK}) ")
    )
    return "".join(body), more


def document(title: str, body: str, theme: str, policy: str = POLICY, *, wide: bool = False) -> str:
    """Write an HTML document with a body; the document's policy forbids access to the network.

    If `wide` is false, the body is at most 1,400 pixels wide. Otherwise the body is as wide as the
    window.
    """
    return Template(template("document.html")).substitute(
        title=escape(svg.readable(title), quote=True),
        body=body,
        policy=policy,
        scheme={"auto": "light dark"}.get(theme, theme),
        width="none" if wide else "1400px",
    )


def encode(page: str) -> bytes:
    """Encode an HTML document as UTF-8, or as UTF-16 if it contains a model in pieces.

    The characters of pieces take two bytes each in UTF-16, and usually three in UTF-8. A browser
    recognises UTF-16 by the first two bytes of a file.
    """
    return page.encode("utf-16" if PIECES in page else "utf-8")


def script_json(data: Any) -> str:
    r"""Write JSON that is safe in a script element, whatever characters its strings contain.

    >>> script_json({"a": "</script>\u2028&"})
    '{"a":"\\u003c/script\\u003e\\u2028\\u0026"}'
    """
    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def script(*parts: str) -> str:
    """Write a script element whose code shares no variables with the other scripts of the page."""
    code = "\n".join(part.rstrip("\n") for part in parts)
    return f'<script>(() => {{ "use strict";\n{code}\n}})();</script>'


@lru_cache(maxsize=64)
def _read(*path: str) -> str:
    return files("qkv.see").joinpath("page", *path).read_text("utf-8")


def bundle(name: str) -> str:
    """Read a file in bundles/; `make bundles` builds these files from assets/."""
    return _read("bundles", name)


def template(name: str) -> str:
    """Read a file in templates/: the HTML and CSS around a view."""
    return _read("templates", name)


def _tokens(payload: dict[str, Any]) -> str:
    """Write the tokens as text, so that readers without scripts can search, copy or hear them."""
    lines = []
    for part in filter(None, (*payload["texts"], *(payload.get(name) for name in _WITH_TOKENS))):
        for which in ("tokens", "keys"):
            if part.get(which):
                called = " ".join(filter(None, (part.get("name"), which)))
                lines.append(f"{called}: {' '.join(part[which])}")
    return "".join(f"<p>{escape(svg.readable(line), quote=True)}</p>" for line in lines)


def about_model(model: Model | None, name: str = "this model") -> str:
    """Write a model's documents as a collapsed section; return "" if the model has none."""
    notices = {} if model is None else model.notices
    if not notices:
        return ""
    parts = ((_html(name), _html(text)) for name, text in notices.items())
    texts = "".join(f"<h3>{name}</h3><pre>{text}</pre>" for name, text in parts)
    return (
        f'<style>{template("about.css")}</style><details class="qkv-about" slot="about">'
        f"<summary>About {_html(name)}</summary>{texts}</details>"
    )


def _html(text: str) -> str:
    lines = text.expandtabs().splitlines()
    return escape("\n".join(svg.readable(line) for line in lines), quote=True)
