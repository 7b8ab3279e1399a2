"""A page of findings, alone or in an article: each claim, and what shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkv.see.analysis.words import quoted
from qkv.see.draw.panels import Panel
from qkv.see.page.engine import need_engine
from qkv.see.page.payload import check_theme
from qkv.see.page.play import known_of
from qkv.see.views.head_panels import chances
from qkv.see.views.play import WithModels
from qkv.see.views.view import Heading

if TYPE_CHECKING:
    from qkv.models import Model

MOST = 256  # tokens of a text that a page runs, MOST of assets/store/store.js

# Of the article's HTML, which is the page's own and stands in slots of the view.
_STYLE = """
.qkv-prose { max-width: 44em; margin: 0 auto; font-size: 17px; line-height: 1.55; }
.qkv-prose :is(h2, h3, h4) { line-height: 1.25; margin: 1.2em 0 0.4em; }
.qkv-prose h2 { font-size: clamp(24px, 3vw, 36px); }
.qkv-prose img { max-width: 100%; }
.qkv-prose pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.qkv-prose table { display: block; overflow-x: auto; }
.qkv-prose :is(th, td) { padding: 3px 10px; text-align: left; }
.qkv-prose a { color: var(--accent, LinkText); }
"""


@dataclass(frozen=True, eq=False, repr=False)
class FindingsView(WithModels):
    """A page with a model inside that shows findings and measures them again.

    Attributes:
        model: the model.
        parts: what the page shows in order: findings as their files have them, and the HTML of the
            article around them.
        heading: what the page is called.
    """

    call = "publish"

    model: Model
    parts: Sequence[dict[str, Any] | str]
    heading: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings in order."""
        return [part for part in self.parts if isinstance(part, dict)]

    @property
    def sentence(self) -> str:
        """What the page is called."""
        return self.heading

    def panels(self) -> list[list[Panel]]:
        """The words of each finding before and after."""
        return [
            [
                chances(one["before"], one["claim"] or one["text"], "before"),
                chances(one["after"], one["claim"] or one["text"], "after the edits"),
            ]
            for one in self.findings
        ]

    def _headings(self) -> list[Heading]:
        found = []
        for one in {one["text"]: one for one in self.findings}.values():
            tokens = self.model.tokenize(one["text"])
            named = list(tokens.tokens), list(tokens.special), self.model.name
            found.append(Heading(*named, unknown=tokens.unknown()))
        return found

    def _numbers(self) -> dict[str, Any]:
        return {"model": self.model.name, "findings": self.findings}

    def _payload(self) -> dict[str, Any]:
        first = self.findings[0]
        start = {name: first[name] for name in ("text", "edits")} | {
            **{"place": first["position"], "query": first["position"]},
            **{"hide": [], "view": "findings"},
        }
        numbers, slots = iter(range(len(self.findings))), iter(range(len(self.parts)))
        parts = [
            next(numbers) if isinstance(part, dict) else f"prose-{next(slots)}"
            for part in self.parts
        ]
        title = quoted(self.heading, [], [])
        known = known_of(self.model) | {"findings": self.findings, "parts": parts}
        return self._page("play", title, start=start, state="", **known)

    @property
    def _models(self) -> list[Model]:
        return [self.model]

    def _about(self) -> str:
        prose = [part for part in self.parts if isinstance(part, str)]
        style = f"<style>{_STYLE}</style>" if prose else ""
        slots = (
            f'<div class="qkv-prose" slot="prose-{n}">{part}</div>' for n, part in enumerate(prose)
        )
        return f"{style}{''.join(slots)}{super()._about()}"


def findings_view(
    model: Model, parts: Sequence[dict[str, Any] | str], heading: str, *, theme: str = "auto"
) -> FindingsView:
    """The page of findings that fit the model.

    Args:
        model: the model.
        parts: findings as their files have them, and HTML.
        heading: what the page is called.
        theme: of the page.

    Raises:
        ValueError: a page cannot compute with the model, or does not run a text whole; there is no
            such theme.
    """
    call = FindingsView.call
    check_theme(theme, call)
    need_engine(model, call)
    found = FindingsView(model, parts, heading, theme=theme)
    for one in found.findings:
        size = len(model.tokenize(one["text"]))
        if size > MOST:
            raise ValueError(
                f"{call}: the text {one['text']:.40} has {size} tokens and a page runs at most "
                f"{MOST}: shorten it"
            )
    return found
