"""Tests of the page as a file that `qkv play` writes: from disk, offline, in a frame, shared."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Frame, Page

import processes
import qkv
from qkv.cli import main

from .support import HEAD, Visit

READY = "() => document.documentElement.dataset.qkv === 'ready'"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("play") / "page.html"
    result = CliRunner().invoke(main, ["play", "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


@contextmanager
def offline(chromium: Browser, address: str) -> Iterator[tuple[Page, list[str], list[str]]]:
    """Yield a page in a browser without a network, the page's requests, and its messages.

    The messages are the page's uncaught errors and its lines in the console.
    """
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    requested: list[str] = []
    complaints: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text))
    page.goto(address)
    until(page, READY)
    yield page, requested, complaints
    context.close()


def until(page: Page | Frame, holds: str) -> None:
    """Wait until `holds` is true; the page's policy forbids Playwright's own way to wait."""
    processes.until(lambda: page.evaluate(holds), holds)


def painted(page: Page | Frame) -> int:
    return int(page.evaluate("document.documentElement.dataset.painted"))


def hide(page: Page | Frame) -> None:
    """Press the first control, which hides a word, and wait until the result is painted."""
    before = painted(page)
    page.locator("[data-qkv-first]").click()
    until(page, f"() => document.documentElement.dataset.painted > {before}")


def said(page: Page | Frame) -> str:
    return page.locator("[data-part=headline]").inner_text()


def test_the_page_is_one_file_that_computes_offline_without_requests(
    chromium: Browser, written: Path
) -> None:
    assert written.stat().st_size <= 16_000_000
    opening = qkv.play().opening
    with offline(chromium, written.as_uri()) as (page, requested, complaints):
        assert opening.before[0][0] in said(page)
        hide(page)
        assert opening.after[0][0] in said(page)
        page.get_by_role("button", name="Your own sentence").click()
        page.get_by_label("Your sentence").fill("The sun rises in the _.")
        (guesses,) = qkv.load("books").predict("The sun rises in the [MASK].", 1)
        processes.until(lambda: said(page), "the guess", lambda text: guesses[0][0] in text)
        own = [url for url in requested if not url.startswith(("blob:", "data:"))]
        assert (own, complaints) == ([written.as_uri()], [])


def test_its_policy_forbids_the_network(chromium: Browser, written: Path) -> None:
    with offline(chromium, written.as_uri()) as (page, _, _complaints):
        refused = page.evaluate(
            """async () => {
              const heard = [];
              addEventListener("securitypolicyviolation", (event) => heard.push(event));
              const there = "https://example.org/";
              const asked = [fetch(there), fetch("x.json"), import(`${there}a.js`)];
              const found = await Promise.allSettled(asked);
              const image = new Image();
              image.src = `${there}a.png`;
              await new Promise((resolve) => (image.onerror = resolve));
              return [found.map(({ status }) => status), heard.length >= 4];
            }"""
        )
        assert refused == [["rejected"] * 3, True]


def test_its_address_shows_the_same_again(chromium: Browser, written: Path, tmp_path: Path) -> None:
    with offline(chromium, written.as_uri()) as (page, _, _):
        hide(page)
        until(page, "() => location.hash.includes('hide')")
        address, shown = page.evaluate("location.href"), said(page)
        page.reload()
        until(page, READY)
        assert (page.evaluate("location.href"), said(page)) == (address, shown)
    made = tmp_path / "page.html"
    qkv.play(state=address).to_html(made)
    for where in (address, made.as_uri()):
        with offline(chromium, where) as (page, _, complaints):
            assert said(page) == shown
            assert page.locator("[data-qkv-first]").get_attribute("aria-pressed") == "true"
            assert complaints == []
    with offline(chromium, f"{made.as_uri()}#text=Snow+is+%5BMASK%5D.") as (page, _, _):
        assert page.get_by_label("Your sentence").input_value() == "Snow is ___."


def test_a_notebook_frames_the_file(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = f"{HEAD}<title>a notebook</title>{qkv.play()._repr_html_()}"
    (tmp_path / "notebook.html").write_text(notebook, encoding="utf-8")
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    _, frame = page.frames
    until(frame, READY)
    hide(frame)
    assert qkv.play().opening.after[0][0] in said(frame)
    context.close()


def test_a_notebook_may_embed_the_page(visit: Visit) -> None:
    page = visit(f"<title>a notebook</title>{qkv.play(embed=True)._repr_html_()}")
    _, frame = page.frames
    until(frame, READY)
    frame.evaluate(
        """() => {
          const { replaceState } = history;
          history.replaceState = function (...given) {
            globalThis.wrote = true;
            return replaceState.apply(this, given);
          };
        }"""
    )
    hide(frame)
    until(frame, "() => globalThis.wrote")  # the address is written when the reader pauses
    assert qkv.play().opening.after[0][0] in said(frame)
    assert "#" not in page.url
    frame.get_by_role("button", name="Open the lab").click()
    frame.get_by_role("button", name="Share").click()
    frame.get_by_role("button", name="Copy the address").click()
    told = "This page is embedded in another page, so its address does not work elsewhere."
    assert frame.locator(".share .take .note").inner_text() == told


def test_without_scripts_it_is_a_picture(visit: Visit) -> None:
    view = qkv.play()
    page = visit(view._document(), scripts=False)
    picture = page.locator(".qkv-view svg")
    assert picture.is_visible()
    assert picture.get_attribute("aria-label") == view.sentence
