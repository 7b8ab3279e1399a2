"""Fixtures: a real Chromium, the model, and pages that must not log or request anything."""

import os
import shutil
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import qkv
from qkv.models import Model
from qkv.trace import Trace
from rows import SAMPLE

from .opening import Openers
from .play import at
from .playing import TEXT, live_page, opened
from .support import Visit

expect.set_options(timeout=60_000)  # as the pages of opening.py; by default, it would be 5 s
SHELL = "chromium-headless-shell"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With QKV_SAMPLE=4, keep the first test of each file and about a fourth of the others.

    A test of a page takes a hundred times as long as others, so here a file counts as one table.
    """
    here, seen = Path(__file__).parent, set()
    kept: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        drawn = item.path not in seen or not zlib.crc32(item.nodeid.encode()) % SAMPLE
        kept[drawn or not item.path.is_relative_to(here)].append(item)
        seen.add(item.path)
    items[:] = kept[True]
    config.hook.pytest_deselected(items=kept[False])


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Start the browser: the program in QKV_CHROMIUM, else the headless shell, else Chromium.

    The headless shell comes before Chromium, because Chromium does twice as much work to open a
    page.
    """
    found = os.environ.get("QKV_CHROMIUM") or shutil.which(SHELL) or shutil.which("chromium")
    assert found, f"there is no chromium: apt-get install {SHELL}, or name one in QKV_CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def model() -> Model:
    """The bundled model, with which a page computes."""
    return qkv.load()


@pytest.fixture(scope="session")
def exact() -> Model:
    """The bundled model in float64, the reference for the numbers of a page."""
    return qkv.load(dtype=np.float64)


@pytest.fixture(scope="session")
def trace(exact: Model) -> Trace:
    """The float64 trace of the text of the live page."""
    return exact.trace(TEXT)


@pytest.fixture(scope="session")
def html(model: Model) -> str:
    """The live page; test files about another page define their own `html`."""
    return live_page(model)


@pytest.fixture
def page(lab_at: Visit) -> Page:
    """The live page, opened with the parts that its button "Look inside" shows."""
    return lab_at()


@pytest.fixture(scope="session")
def openers(chromium: Browser) -> Iterator[Openers]:
    openers = Openers(chromium)
    yield openers
    openers.close()


@pytest.fixture
def visit(openers: Openers, tmp_path: Path) -> Iterator[Visit]:
    """`visit(html, width=..., scheme=..., scripts=...)` opens a page from a file of its own."""
    with openers.visiting(tmp_path) as visit:
        yield visit


@pytest.fixture(scope="module")
def visit_once(openers: Openers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """Like `visit`, for a page that all tests of a file share."""
    with openers.visiting(tmp_path_factory.mktemp("pages")) as visit:
        yield visit


@pytest.fixture
def quick(openers: Openers) -> Iterator[Visit]:
    """Like `visit`, but only for live pages: the pages share a model that already runs.

    Sharing the model halves the work. Use `quick` in tests of a page's content and behaviour. Use
    `visit` in tests of how a page opens, or of its model.
    """
    with openers.quickly() as quick:
        yield quick


@pytest.fixture
def visit_at(visit: Visit, html: str) -> Visit:
    """`visit_at(hash, width=...)` or `visit_at(width=..., **state)` opens `html` at an address."""
    return partial(at, visit, html)


@pytest.fixture
def quick_at(quick: Visit, html: str) -> Visit:
    """Like `visit_at`, with `quick`."""
    return partial(at, quick, html)


@pytest.fixture
def lab_at(quick: Visit, html: str) -> Visit:
    """`lab_at(width=..., **state)` opens the page with what its button "Look inside" shows."""
    return partial(opened, quick, html)
