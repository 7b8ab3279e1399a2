"""An article: Markdown in which findings are placed, as HTML and the findings between it."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Callable, Iterator
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

if TYPE_CHECKING:
    from markdown_it.token import Token

Placed = TypeVar("Placed")
_MOST = 2**24  # bytes of a picture


def read_article(
    path: str | os.PathLike[str], place: Callable[[Path, str], Placed]
) -> tuple[str, list[str | Placed]]:
    """The first heading of a Markdown file, and its parts in order.

    A part is HTML, or what `![claim](finding.json)` places.

    HTML in the Markdown is shown as text. Pictures become part of the HTML.

    Args:
        path: the file; findings and pictures are named relative to its folder.
        place: gives the finding of a file and of the claim that the article states.

    Raises:
        FileNotFoundError: the article, a finding or a picture is not there.
        ValueError: the article is not UTF-8, a finding stands inside a sentence, or a picture is no
            file or too large.
    """
    from markdown_it import MarkdownIt

    folder = Path(path).parent
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from None
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = list(_folded(markdown.parse(text), str(path)))
    for token in tokens:
        if token.type.startswith("heading_"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"  # the page has its own first heading
        for child in token.children or ():
            if child.type == "image" and token.type != "finding":
                child.attrs["src"] = _embedded(folder, str(child.attrs["src"]), str(path))
    found: list[str | Placed] = []
    for is_placed, some in groupby(tokens, key=lambda token: token.type == "finding"):
        if is_placed:
            images = [image for token in some for image in token.children or ()]
            found += [place(folder / _target(image), image.content) for image in images]
        else:
            found.append(markdown.renderer.render(list(some), markdown.options, {}))
    headings = (one for before, one in pairwise(tokens) if before.type == "heading_open")
    words = (child.content for one in islice(headings, 1) for child in one.children or ())
    return "".join(words), found


def _target(image: Token) -> str:
    return unquote(str(image.attrs["src"]))


def _is_finding(token: Token) -> bool:
    return token.type == "image" and _target(token).endswith(".json")


def _folded(tokens: list[Token], path: str) -> Iterator[Token]:
    """Tokens with each paragraph of nothing but findings as one token "finding"."""
    left = iter(tokens)
    for token in left:
        inline = next(left) if token.type == "paragraph_open" else None
        children = (inline or token).children or []
        placed = [child for child in children if _is_finding(child)]
        others = [child for child in children if child not in placed and child.type != "softbreak"]
        if placed and (others or token.level or inline is None):
            raise ValueError(
                f"{path}: {_target(placed[0])} stands inside other text: give "
                "![claim](finding.json) a paragraph of its own"
            )
        if placed:
            next(left)  # paragraph_close
            token.type, token.children = "finding", placed
            yield token
        else:
            yield from filter(None, (token, inline))


def _embedded(folder: Path, source: str, path: str) -> str:
    """A picture as an address that holds it."""
    kind = mimetypes.guess_type(source)[0] or ""
    if source.startswith("data:"):
        return source
    if "://" in source or not kind.startswith("image/"):
        raise ValueError(
            f"{path}: the picture {source} is no picture file beside the article: a page works "
            "offline: name a .png, .svg, .jpg or .gif file"
        )
    content = (folder / unquote(source)).read_bytes()
    if len(content) > _MOST:
        raise ValueError(
            f"{path}: the picture {source} is {len(content)} bytes long: give one of at most "
            f"{_MOST}"
        )
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
