"""Functions that parse pages as a browser parses them."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from qkv.see import View


class Page(HTMLParser):
    """The tags, attributes, scripts and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        (self.scripts if self.tags and self.tags[-1] == "script" else self.words).append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.tags.append("/script")

    def attribute(self, tag: str, name: str) -> list[str | None]:
        return [value for where, key, value in self.attributes if (where, key) == (tag, name)]


def payload_in(text: str) -> dict[str, Any]:
    """Return the data that a page passes to its script."""
    (script,) = Page(text).scripts
    mark, _ = json.JSONDecoder().raw_decode(script, script.rindex('start("') + 6)
    start = script.rindex(f'start("{mark}", ') + len(f'start("{mark}", ')
    data, _ = json.JSONDecoder().raw_decode(script, start)
    return data


def written(view: View, folder: Path) -> str:
    """Return the page of a view, read from its file."""
    view.to_html(folder / "view.html")
    return (folder / "view.html").read_text(encoding="utf-8")
