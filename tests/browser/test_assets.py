"""Tests of the scripts' sources against their rules, and of the bundles made from them."""

import re
from collections import Counter
from pathlib import Path

import pytest

from qkv.see.page.html import bundle

from .bundling import bundles

ASSETS = bundles.ASSETS
MODULES = sorted(path.relative_to(ASSETS).as_posix() for path in ASSETS.rglob("*.js"))
FORBIDDEN = [
    *(r"\binnerHTML\b", r"\bouterHTML\s*=", r"insertAdjacentHTML", r"document\.write", r"\beval\b"),
    *(r"new Function", r"\bfetch\(", r"XMLHttpRequest", r"WebSocket", r"sendBeacon", r"\bimport\("),
    *(
        r"https?://(?!www\.w3\.org/2000/svg)",
        r"\bvar\s+\w",
        r"[^=!]==[^=]",
        r"!=[^=]",
        r"console\.",
    ),
    *(r"\bdebugger\b", r"localStorage", r"document\.cookie", "@ts-ignore", "@ts-nocheck"),
]


# The only requests of pages: a server runs the model, or its weights are in a file beside the page.
ASKS = {"engine/server.js": '"v1/trace"', "engine/download.js": "address"}


@pytest.mark.parametrize("name", MODULES)
def test_source_keeps_to_the_rules(name: str) -> None:
    source = (ASSETS / name).read_text("utf-8")
    code = re.sub(r"^\s*(//|/?\*)(?!.*@ts-).*", "", source, flags=re.MULTILINE)
    for rule in FORBIDDEN:
        if name in ASKS and rule == r"\bfetch\(":
            assert re.findall(r"\bfetch\((.*?),", code) == [ASKS[name]]
            continue
        assert not re.search(rule, code), rule
    for number, line in enumerate(source.split("\n"), 1):
        assert len(line) <= 140 or '"' in line or "`" in line, f"{name}:{number} is too long"
        assert line == line.rstrip(), f"{name}:{number} ends on a blank"


def test_every_export_is_used() -> None:
    """Check that each export is used.

    The compiler cannot make this check: it reports unused code only if the code is not exported.
    """
    sources = [(ASSETS / name).read_text("utf-8") for name in MODULES]
    code = "".join(sources) + "page.start(page.openApi, page.openServer)"  # calls that pages make
    uses = Counter(re.findall(r"\w+", code))
    for source in sources:
        for name in re.findall(
            r"^export (?:async )?(?:function|const|let|class)\*? (\w+)", source, re.M
        ):
            assert uses[name] > 1, f"{name} is never used"


def test_the_bundles_are_made_of_the_sources(tmp_path: Path) -> None:
    bundles.bundle_all(tmp_path)
    here, there = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (bundles.BUNDLES, tmp_path)
    )
    other = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    assert other == [], (
        "a script has changed, its bundle has not: run `make bundles` and commit what it writes"
    )


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("play", 345_000),
        *((kind, 100_000) for kind in ("show", "compare", "walk", "shift", "replay")),
        ("worker", 115_000),
        ("api", 6_000),
    ],
)
def test_a_bundle_stays_small(name: str, most: int) -> None:
    assert 0 < len(bundle(f"{name}.js").encode()) < most
