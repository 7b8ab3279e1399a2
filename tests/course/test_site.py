"""Test the built site: it works at any address, and loads no files from other hosts."""

import os
import re
import struct
import tomllib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import qkv

ROOT = Path(__file__).parents[2]
SITE = (ROOT / os.environ.get("QKV_SITE", "docs/_build/html")).resolve()
TEXTS = {".css", ".html", ".inv", ".ipynb", ".js", ".json", ".svg", ".txt"}
LINKS = {"a", "area"}  # tags of links, which may lead to other sites
NAMING = {"action", "data", "data-weights", "href", "poster", "src", "srcset", "xlink:href"}
# addresses that scripts and styles request
REQUESTS = re.compile(
    r"""url\(\s*["']?([^"')\s]+)"""
    r"""|@import\s+["']([^"']+)"""
    r"""|\b(?:import|fetch|importScripts)\(\s*["'`]([^"'`]+)"""
)


class Page(HTMLParser):
    """Collect a page's anchors, and its references with the name of their tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.named: list[tuple[str, str]] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        for name in NAMING & given.keys():
            for one in given[name].split(",") if name == "srcset" else [given[name]]:
                self.named.append((tag, one.split()[0] if name == "srcset" else one))
        self._asked(tag, given.get("style", ""))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style"):
            self._asked(self._within, data)

    def _asked(self, tag: str, text: str) -> None:
        self.named += [(tag, next(filter(None, found))) for found in REQUESTS.findall(text)]


@cache
def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def files(*kinds: str) -> list[Path]:
    assert SITE.is_dir(), f"there is no site in {SITE}: make docs builds it"
    return sorted(path for path in SITE.rglob("*") if path.suffix in kinds)


def named() -> list[tuple[Path, str, str]]:
    """Yield each reference in the site: its file, its tag (or "css"), and its address."""
    pages = [(path, *one) for path in files(".html") for one in page(path).named]
    styles = [
        (path, "css", next(filter(None, found)))
        for path in files(".css")
        for found in REQUESTS.findall(path.read_text(encoding="utf-8"))
    ]
    return pages + styles


def problem(path: Path, tag: str, reference: str) -> str | None:
    """Return the problem of a reference, or None."""
    found = urlsplit(reference)
    if found.scheme in ("data", "mailto") or (tag == "script" and "${" in reference):
        return None
    if found.scheme or found.netloc:
        own = tag in LINKS and found.scheme in ("http", "https")
        return None if own else "asks another host"
    if found.path.startswith("/"):
        return "is of one path alone"
    target = (path.parent / unquote(found.path)).resolve() if found.path else path
    if not target.is_relative_to(SITE) or not target.is_file():
        return "is not there"
    anchor = unquote(found.fragment)
    # on play.html, the part after # is a state, not an anchor
    if not anchor or target.suffix != ".html" or target.name == "play.html":
        return None
    return None if anchor in page(target).anchors else "has no such anchor"


def test_every_reference_of_a_page_resolves() -> None:
    found = {
        f"{path.relative_to(SITE)}: <{tag}> {reference[:200]!r} {wrong}"
        for path, tag, reference in named()
        if (wrong := problem(path, tag, reference))
    }
    assert not found, "\n".join(sorted(found))
    assert len(files(".html")) > 20
    assert (SITE / "play.html").is_file()


@pytest.mark.parametrize("folder", [ROOT, Path.home()], ids=["repository", "home"])
def test_no_file_names_a_folder_of_the_machine_that_built_it(folder: Path) -> None:
    name = re.compile(rf"(?<![\w.-]){re.escape(folder.as_posix())}(?![\w-])")
    found = [
        f"{path.relative_to(SITE)}: {text[max(0, at.start() - 60) : at.end() + 60]!r}"
        for path in files(*TEXTS)
        for text in [path.read_text(encoding="utf-8", errors="replace")]
        if (at := name.search(text))
    ]
    assert not found, "\n".join(found)


def test_other_sites_find_a_card_for_the_live_page_and_the_start_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    home = project["project"]["urls"]["Documentation"]
    for name in ("play.html", "index.html"):
        html = (SITE / name).read_text("utf-8")
        tags = dict(
            re.findall(r'<meta (?:property|name)="((?:og|twitter):[^"]+)" content="([^"]+)"', html)
        )
        assert tags["twitter:card"] == "summary_large_image"
        assert {"og:title", "og:description", "og:image:alt"} <= tags.keys()
        assert tags["og:url"] == f"{home}/{name.removeprefix('index.html')}"
        assert tags["og:image"] == f"{home}/card.png"
        opening = qkv.play().opening  # which the card shows
        for word in (opening.word, opening.before[0][0], opening.after[0][0]):
            assert word in tags["og:image:alt"]
        head = html[: html.index("</head>")]
        assert head.count('og:image"') == 1
    png = (SITE / "card.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    size = tuple(int(tags[f"og:image:{side}"]) for side in ("width", "height"))
    assert struct.unpack(">II", png[16:24]) == size == (1200, 630)
