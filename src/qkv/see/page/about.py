"""What a page with a model's numbers says of the model: its card, its licences and its notices."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from qkv.see.draw.svg import readable

if TYPE_CHECKING:
    from qkv.models import Model

# It is HTML of the page around a view, in whose shadow root base/mount.js has a slot for it. So it
# is there without scripts too, and takes its colours from the view, where there is one.
_STYLE = """
.qkv-about summary { display: inline-block; min-height: 44px; padding: 11px 0;
  box-sizing: border-box;
  color: var(--accent, LinkText); text-decoration: underline; cursor: pointer; }
.qkv-about h3 { margin: 12px 0 4px; padding: 0; font-size: 15px; }
.qkv-about pre { margin: 0; padding: 0; background: none; color: inherit; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Consolas, monospace; }
"""


def about_model(model: Model | None, name: str = "this model") -> str:
    """The texts that stand beside a model's weights, folded behind a line; empty for none."""
    found = {} if model is None else model._notices
    if not found:
        return ""
    parts = ((_html(name), _html(text)) for name, text in found.items())
    texts = "".join(f"<h3>{name}</h3><pre>{text}</pre>" for name, text in parts)
    return (
        f'<style>{_STYLE}</style><details class="qkv-about" slot="about">'
        f"<summary>About {_html(name)}</summary>{texts}</details>"
    )


def _html(text: str) -> str:
    lines = text.expandtabs().splitlines()
    return escape("\n".join(readable(line) for line in lines), quote=True)
