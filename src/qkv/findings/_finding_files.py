"""Read and write findings as JSON files; read articles in Markdown."""

import base64
import json
import mimetypes
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import unquote

from qkv._argument_errors import message
from qkv.arrays import quote
from qkv.edits import edits_of, schema as edits_schema
from qkv.files import StrPath, ordinary, replacing

_MAX_BYTES = 2**26  # the maximum size of a file, whose edits may contain large arrays
_TYPES: dict[str, Any] = {
    **{"object": dict, "array": list, "string": str},
    **{"integer": int, "number": (int, float)},
}


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a finding's file, including the edits.

    >>> schema()["properties"]["position"]["minimum"], "hide" in schema()["$defs"]
    (0, True)
    """
    text, edits = files("qkv.findings").joinpath("schema.json").read_text("utf-8"), edits_schema()
    whole: dict[str, Any] = json.loads(text)
    whole["properties"]["edits"]["items"] = edits["items"]
    whole["$defs"] |= edits["$defs"]
    return whole


def read(path: StrPath) -> dict[str, Any]:
    """Read a finding's file and check the file against the schema.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a finding; the message gives the field and the broken rule.
    """
    size = ordinary(path).stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(
            f"{path}: the file has {size} bytes; pass a finding of at most {_MAX_BYTES} bytes"
        )
    try:
        value = json.loads(Path(path).read_bytes().decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid JSON: {reason:.200}") from None
    fault = _fault(value, schema(), "it")
    if fault:
        raise ValueError(f"{path}: {fault}")
    try:
        edits_of(value["edits"], argument="edits")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {message(error)}") from None
    return dict(value)


def write(path: StrPath, value: dict[str, Any]) -> None:
    """Write a finding with one line per field; the file appears only when it is complete."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(field, ensure_ascii=False, allow_nan=False)}"
        for name, field in value.items()
    ]
    with replacing(path) as file:
        file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"the file contains {constant}, which JSON does not allow")


def _fault(value: Any, rule: dict[str, Any], where: str) -> str:
    """Describe the first value that violates a rule of the schema; return "" if all are valid."""
    rule = schema()["$defs"].get(rule.get("$ref", "").rpartition("/")[2], rule)
    if not _fits(value, rule):
        return f"{where} is {quote(value)}: it must be {rule['description']}"
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(value, dict):
        known, within = rule["properties"], "" if where == "it" else f"{where}."
        missing = [name for name in rule["required"] if name not in value]
        unknown = [name for name in value if name not in known]
        if missing or unknown:
            fault = f"has no {missing[0]}" if missing else f"has {quote(unknown[0])}"
            return f"{where} {fault}: its required fields are {', '.join(rule['required'])}"
        parts = [(value[name], known[name], within + name) for name in known]
    elif isinstance(value, list) and where != "edits":
        # the errors of `edits_of` about the list `edits` are clearer than those of the schema
        rules = rule.get("prefixItems") or [rule["items"]] * len(value)
        pairs = enumerate(zip(value, rules, strict=True))
        parts = [(one, item_rule, f"{where}[{n}]") for n, (one, item_rule) in pairs]
    return next(filter(None, (_fault(*part) for part in parts)), "")


def _fits(value: Any, rule: dict[str, Any]) -> bool:
    """Return whether a value fits a rule; do not check the items of a list or a dict."""
    if isinstance(value, bool) or not isinstance(value, _TYPES[rule["type"]]):
        return False
    if "const" in rule:
        return bool(value == rule["const"])
    if isinstance(value, int | float):
        return bool(rule["minimum"] <= value <= rule.get("maximum", value))
    unit = "Length" if isinstance(value, str) else "Items"
    if not rule.get(f"min{unit}", 0) <= len(value) <= rule.get(f"max{unit}", len(value)):
        return False
    return "pattern" not in rule or bool(re.search(rule["pattern"], value))


if TYPE_CHECKING:
    from markdown_it.token import Token

Item = TypeVar("Item")
_LARGEST_PICTURE = 2**24  # the maximum number of bytes of a picture


def read_article(path: StrPath, load: Callable[[Path, str], Item]) -> tuple[str, list[str | Item]]:
    """Return `(title, parts)` of a Markdown file: the first heading, and all parts in order.

    A part is a string of HTML, or the finding that replaces `![claim](finding.json)`. HTML tags in
    the Markdown are shown as text. Pictures are embedded in the HTML.

    Args:
        path: the Markdown file. Paths of findings and pictures are relative to the file's folder.
        load: a function that is called as `load(path, claim)` and returns a finding. Here `path`
            is the finding's path, and `claim` is the text of the claim in the article.

    Raises:
        FileNotFoundError: the article, a finding or a picture does not exist.
        ValueError: the article is not UTF-8; a finding is in a paragraph with other text; a finding
            or a picture is outside the article's folder; or a picture is not a local file or is too
            large.
    """
    from markdown_it import MarkdownIt

    folder = Path(path).parent
    try:
        text = ordinary(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = list(_fold_findings(markdown.parse(text), str(path)))
    for token in tokens:
        if token.type.startswith("heading_"):
            # The page's title is its only h1, so an h1 of the article becomes an h2.
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        for child in token.children or ():
            if child.type == "image" and token.type != "finding":
                child.attrs["src"] = _data_url(folder, str(child.attrs["src"]), str(path))
    parts: list[str | Item] = []
    for is_finding, some in groupby(tokens, key=lambda token: token.type == "finding"):
        if is_finding:
            images = [image for token in some for image in token.children or ()]
            paths = [_inside(folder, _target(image), path) for image in images]
            parts += map(load, paths, (image.content for image in images))
        else:
            parts.append(markdown.renderer.render(list(some), markdown.options, {}))
    headings = (inner for before, inner in pairwise(tokens) if before.type == "heading_open")
    words = (child.content for inner in islice(headings, 1) for child in inner.children or ())
    return "".join(words), parts


def _target(image: "Token") -> str:
    return unquote(str(image.attrs["src"]))


def _fold_findings(tokens: "list[Token]", path: str) -> "Iterator[Token]":
    """Yield Markdown tokens; turn a paragraph of `![claim](finding.json)` into one token."""
    left = iter(tokens)
    for token in left:
        inline = next(left) if token.type == "paragraph_open" else None
        children = (inline or token).children or []
        images = [child for child in children if child.type == "image"]
        findings = [image for image in images if _target(image).endswith(".json")]
        others = [
            child for child in children if child not in findings and child.type != "softbreak"
        ]
        if findings and (others or token.level or inline is None):
            raise ValueError(
                f"{path}: {_target(findings[0])} is inside other text: put "
                "![claim](finding.json) in a separate paragraph"
            )
        if findings:
            next(left)  # paragraph_close
            token.type, token.children = "finding", findings
            yield token
        else:
            yield from filter(None, (token, inline))


def _inside(folder: Path, name: str, path: StrPath) -> Path:
    """Return the path of a file that an article names; refuse private files outside its folder."""
    file = ordinary(folder / name)
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{path}: {name} is outside the folder of the article: copy the file into the folder"
        )
    return file


def _data_url(folder: Path, source: str, path: str) -> str:
    """Return a picture as a data URL."""
    kind = mimetypes.guess_type(source)[0] or ""
    if source.startswith("data:"):
        return source
    if "://" in source or not kind.startswith("image/"):
        raise ValueError(
            f"{path}: the picture {source} is not a local picture file, but the page must work "
            "offline: use a .png, .svg, .jpg or .gif file"
        )
    content = _inside(folder, unquote(source), path).read_bytes()
    if len(content) > _LARGEST_PICTURE:
        raise ValueError(
            f"{path}: the picture {source} has {len(content)} bytes; use a picture of at most "
            f"{_LARGEST_PICTURE} bytes"
        )
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
