"""A real Chromium, and pages in it that may not complain or ask for anything."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import qkv
from qkv.models import Model

from .playing import live_page, opened
from .support import Visit

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


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The shell without windows if it is there: it opens a page with half the work."""
    found = os.environ.get("QKV_CHROMIUM") or shutil.which(SHELL) or shutil.which("chromium")
    assert found, f"there is no chromium: apt-get install {SHELL}, or name one in QKV_CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def model() -> Model:
    """The model that ships, which a page computes with."""
    return qkv.load()


@pytest.fixture(scope="session")
def exact() -> Model:
    """The same in float64, which judges it."""
    return qkv.load(dtype=np.float64)


@pytest.fixture(scope="session")
def html(model: Model) -> str:
    """The live page; files with a page of their own have an `html` of their own."""
    return live_page(model)


@pytest.fixture
def page(visit: Visit, html: str) -> Page:
    """It, unfolded."""
    return opened(visit, html)


@pytest.fixture
def visit(chromium: Browser, tmp_path: Path) -> Iterator[Visit]:
    """`visit(html, width=..., scheme=..., scripts=...)` opens a page.

    At the end no page may have written an error, and none may have requested anything but itself.
    """
    complaints: list[str] = []
    wanted: list[str] = []
    requested: list[str] = []
    contexts = []

    def open_page(
        html: str,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        scripts: bool = True,
    ) -> Page:
        path = tmp_path / f"page{len(wanted)}.html"
        path.write_text(html, encoding="utf-8")
        wanted.append(path.as_uri())
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        # when the page, with all that its script draws at once, was first painted
        context.add_init_script(
            "addEventListener('DOMContentLoaded', () => requestAnimationFrame(() =>"
            " requestAnimationFrame(() => { window.painted = performance.now(); })));"
        )
        page = context.new_page()
        page.set_default_timeout(60_000)  # 14 MB of a model are read, on a busy machine
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: requested.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    # what a page made itself, as a worker, is none of the others' either
    assert [url for url in requested if not url.startswith(("data:", "blob:"))] == wanted
