"""Helpers that open pages, and check that pages log nothing and request only themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, Page

from qkv.see.page.html import encode

from .one_model import STAND_IN, OneModel
from .support import CHARSET, HEAD, IDLE, Visit

Scheme = Literal["light", "dark"]


class Pages:
    """Reuses the pages of a browser context: each test loads its own document in a page.

    `take` resets the settings that a page would keep: window size, media and pointer position.
    """

    def __init__(self, context: BrowserContext, script: str | None = None) -> None:
        context.add_init_script(IDLE)
        if script is not None:
            context.add_init_script(script)
        self.context = context
        self._idle: list[Page] = []

    def take(self, width: int, height: int, scheme: Scheme) -> Page:
        page = self._idle.pop() if self._idle else self.context.new_page()
        page.mouse.move(0, 0)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme, reduced_motion="null")
        page.set_default_timeout(60_000)  # a busy machine takes long to read a model of 14 MB
        return page

    def give_back(self, page: Page, empty: str) -> None:
        """Leave the test's document for an empty one: an open live page uses processor time.

        From an address like the document's, Chromium does not start a process for it.
        """
        page.goto(empty)
        self._idle.append(page)


class Openers:
    """Opens pages; each worker of a test run has one instance."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._with_scripts = {on: self._pages(on) for on in (True, False)}
        self._live = Pages(chromium.new_context(), STAND_IN)
        self._model = OneModel(self._live.context)

    def close(self) -> None:
        self._model.close()

    def _pages(self, scripts: bool = True) -> Pages:
        return Pages(self._chromium.new_context(java_script_enabled=scripts))

    @contextmanager
    def visiting(self, folder: Path) -> Iterator[Visit]:
        """Yield `visit`, which opens each page from a file of its own.

        HEAD is put before a page without a doctype.
        With `alone` the page also has its own context, for tests that set the clock.
        """
        empty = folder / "empty.html"
        empty.write_bytes(encode(HEAD))
        with watched() as (watch, wanted):

            def visit(
                html: str,
                *,
                width: int = 1280,
                height: int = 900,
                scheme: Scheme = "light",
                scripts: bool = True,
                alone: bool = False,
            ) -> Page:
                path = folder / f"page{len(wanted)}.html"
                if not html.startswith("<!doctype html>"):
                    html = HEAD + html
                assert CHARSET in html[:1024], "a page must name its encoding"
                path.write_bytes(encode(html))
                wanted.append(path.as_uri())
                pages = self._pages() if alone else self._with_scripts[scripts]
                page = pages.take(width, height, scheme)
                leave = partial(pages.give_back, page, empty.as_uri())
                watch(page, page.context.close if alone else leave)
                page.goto(path.as_uri())
                return page

            yield visit

    @contextmanager
    def quickly(self) -> Iterator[Visit]:
        """Yield `quick`, which opens live pages.

        Pages with the same model share one running copy of this model.
        """
        with watched() as (watch, wanted):

            def quick(
                html: str, *, width: int = 1280, height: int = 900, scheme: Scheme = "light"
            ) -> Page:
                page = self._live.take(width, height, scheme)
                watch(page, lambda: self._live.give_back(page, self._model.empty))
                wanted.append(self._model.open(page, html))
                return page

            yield quick


@contextmanager
def watched() -> Iterator[tuple[Callable[[Page, Callable[[], None]], None], list[str]]]:
    """Yield the function `watch(page, end)` and an empty list.

    `watch` observes a page. The caller adds the URLs of the pages to the list. At the end, check
    that no page has complained (by an error, a console message or a dialog) and that each page has
    requested only itself.
    """
    complaints: list[str] = []
    requested: list[str] = []
    wanted: list[str] = []
    ends: list[Callable[[], None]] = []
    heard = {
        "pageerror": lambda error: complaints.append(str(error)),
        "console": lambda said: complaints.append(f"{said.type}: {said.text}"),
        "dialog": lambda dialog: (complaints.append(dialog.message), dialog.dismiss()),
        "request": lambda request: requested.append(request.url),
    }

    def watch(page: Page, end: Callable[[], None]) -> None:
        for event, hear in heard.items():
            page.on(event, hear)
            ends.append(lambda event=event, hear=hear: page.remove_listener(event, hear))
        ends.append(end)

    yield watch, wanted
    for end in ends:
        end()
    assert complaints == [], complaints
    # data: and blob: URLs, such as a worker's, are made by the page itself
    others = [url for url in requested if not url.startswith(("data:", "blob:"))]
    assert others == wanted, (others, wanted)
