"""Tests of a page that fetches a model's weights from a file beside it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import qkv
from models.gguf_files import llama_tensors, write_llama
from models.small_models import write_small
from qkv.models import Model

from .engine import agree, ask, by_the_library
from .play import STILL, ready
from .playing import until
from .support import config_of
from .test_blocks import ROUNDED

TEXT = "the cat sat"
WIDE = 8192  # of the MLP: the file has more than a megabyte
BIG, SMALLER = "Write a text: big", "Write a text: other"  # the buttons of the two models
Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose matrices are in blocks."""
    rng = np.random.default_rng(1)
    shapes = {"gate": (WIDE, 32), "up": (WIDE, 32), "down": (32, WIDE)}
    names = {f"blk.{n}.ffn_{name}.weight": shapes[name] for n in range(2) for name in shapes}
    mlp = {name: rng.normal(0, 0.03, shape).astype(np.float32) for name, shape in names.items()}
    kinds = {name: "Q8_0" for name in llama_tensors() if "norm" not in name}
    file = tmp_path_factory.mktemp("model") / "big.gguf"
    made: Path = write_llama(file, kinds=kinds, tensors=mlp, feed_forward_length=WIDE)
    return made


@pytest.fixture(scope="module")
def models(path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """A model that a page contains, and a model whose weights are beside the page."""
    small = write_small(tmp_path_factory.mktemp("small") / "other", config_of("llama"))
    return [qkv.load(small), qkv.load(path)]


@dataclass
class Host:
    """A host of files, and how it answers requests for weights.

    Attributes:
        files: the files by their paths.
        wait: the host sends the first half of an answer, then waits for this event.
        drop: the host then closes the connection.
        told: whether the host states the length of the weights.
        ranges: whether the host sends the part of a file that a request names.
        status: the status of an answer with weights, if it is not usual.
        kind: the content type of weights.
        asked: the paths of the requests, and their ranges.
    """

    files: dict[str, bytes]
    wait: Event = field(default_factory=Event)
    drop: bool = False
    told: bool = True
    ranges: bool = False
    status: int | None = None
    kind: str = "application/octet-stream"
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    @property
    def size(self) -> int:
        """The bytes of the weights."""
        return len(next(data for name, data in self.files.items() if name.endswith(".bin")))

    @property
    def part(self) -> str:
        """The part of the weights that the host sends before it waits, as the page says it."""
        return f"{self.size // 2 / 1e6:.1f} of {self.size / 1e6:.1f} MB"

    @property
    def weights(self) -> list[str | None]:
        """The ranges of the requests for weights."""
        return [part for path, part in self.asked if path.endswith(".bin")]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        part = request.headers["Range"]
        self.asked.append((request.path, part))
        body, heavy = self.files[request.path], request.path.endswith(".bin")
        status, kind = (self.status or 200, self.kind) if heavy else (200, "text/html")
        if heavy and self.ranges and part:
            status, body = 206, body[int(part.removeprefix("bytes=").removesuffix("-")) :]
        request.send_response(status)
        request.send_header("Content-Type", kind)
        if self.told or not heavy:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        half = len(body) // 2 if heavy else len(body)
        with suppress(OSError):  # the reader has stopped
            request.wfile.write(body[:half])
            request.wfile.flush()
            if half < len(body):
                self.wait.wait(60)
                request.wfile.write(b"" if self.drop else body[half:])


@pytest.fixture(scope="module")
def folder(models: list[Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of both models, a page of the big one alone, and the weights of the big one."""
    made = tmp_path_factory.mktemp("site")
    qkv.play(TEXT, model=models).to_html(made / "both.html", weights="beside")
    qkv.play(TEXT, model=models[1]).to_html(made / "alone.html", weights="beside")
    return made


@pytest.fixture
def host(folder: Path) -> Iterator[Host]:
    files = {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
    made = Host(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    made.address = f"http://127.0.0.1:{server.server_port}"
    yield made
    made.wait.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def see(chromium: Browser, host: Host) -> Iterator[Visit]:
    """`see(name, hash, width)` opens a page of the host in a context of its own."""
    contexts, errors = [], list[str]()

    def see(name: str = "both", hash_: str = "", width: int = 1280, script: str = "") -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        if script:
            page.add_init_script(script)
        page.goto(f"{host.address}/{name}.html{hash_}")
        return page

    yield see
    for context in contexts:
        context.close()
    assert errors == []


def line(page: Page) -> Any:
    return page.locator(".download")


def half_arrives(page: Page, host: Host) -> None:
    """Wait until the page has read all that the host has sent before it waits.

    The rounded number of megabytes would be right some ten thousand bytes earlier.
    """
    expect(line(page)).to_contain_text(host.part)
    half = [host.size // 2, host.size]
    until(lambda: page.get_by_role("progressbar").evaluate("bar => [bar.value, bar.max]") == half)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()


def answers(page: Page, name: str) -> None:
    """Check which model answers."""
    ready(page)
    expect(page.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".sides [aria-pressed=true]")).to_have_count(1)


def check_numbers(page: Page, path: Path) -> None:
    """Check that the big model has the library's numbers."""
    own = by_the_library(qkv.load(path, dtype=np.float64), TEXT)
    name = page.evaluate("Object.keys(qkv.downloads)[0]")
    agree(ask(page, TEXT, [], model=name)[1], own, *ROUNDED)


@pytest.mark.parametrize("tell", [True, False])
def test_a_small_model_answers_until_the_big_one_is_here(
    see: Visit, host: Host, path: Path, tell: bool
) -> None:
    host.told = tell
    page = see()
    answers(page, SMALLER)
    expect(page.get_by_role("button", name=BIG)).to_have_text(f"{BIG} ({host.size / 1e6:.1f} MB)")
    expect(line(page)).to_contain_text("big is being downloaded; meanwhile, a small model answers")
    half_arrives(page, host)
    press(page, BIG)
    expect(line(page)).to_contain_text("it answers as soon as it is ready")
    answers(page, SMALLER)
    host.wait.set()
    expect(line(page)).to_have_count(0)
    answers(page, BIG)
    expect(page.get_by_role("button", name=BIG)).to_have_text("Write a text: big")
    assert page.evaluate("location.hash").startswith("#model=big")
    check_numbers(page, path)
    assert host.weights == [None]


def test_a_model_that_nobody_asked_for_waits_for_a_press(
    see: Visit, host: Host, path: Path
) -> None:
    host.wait.set()
    page = see()
    expect(line(page)).to_contain_text("big has arrived.")
    answers(page, SMALLER)
    press(page, "Let it answer")
    answers(page, BIG)
    expect(line(page)).to_have_count(0)
    check_numbers(page, path)


@pytest.mark.parametrize("change", ["hide", "type", "turn back"])
def test_a_reader_who_went_on_is_not_interrupted(see: Visit, host: Host, change: str) -> None:
    page = see()
    answers(page, SMALLER)
    press(page, BIG)
    if change == "hide":
        page.locator("[data-qkv-first]").click()
        page.locator(".stage button, .stage [role=button]").first.click()
    elif change == "type":
        page.get_by_label("Your sentence").focus()
    else:
        press(page, SMALLER)
        expect(line(page)).to_contain_text("meanwhile, a small model answers")
    host.wait.set()
    expect(line(page)).to_contain_text("big has arrived.")
    answers(page, SMALLER)


def test_an_address_of_the_big_model_opens_when_it_is_here(see: Visit, host: Host) -> None:
    page = see(hash_="#model=big&text=the+dog&layer=1&head=2")
    answers(page, SMALLER)
    expect(line(page)).to_contain_text("it answers as soon as it is ready")
    assert "the dog" in page.locator(".front").inner_text()
    host.wait.set()
    answers(page, BIG)
    found = page.evaluate("location.hash")
    assert "model=big&text=the+dog" in found
    assert "layer=1&head=2" in found
    assert page.evaluate("history.length") == 2  # with the blank page before


@pytest.mark.parametrize(("tell", "ranges"), [(True, True), (True, False), (False, False)])
def test_a_download_that_was_interrupted_continues(
    see: Visit, host: Host, path: Path, tell: bool, ranges: bool
) -> None:
    host.drop, host.told, host.ranges = True, tell, ranges
    page = see("alone")
    expect(line(page)).to_contain_text(f"big is being downloaded.{host.part}")
    half_arrives(page, host)
    host.wait.set()
    why = "network error" if tell else "the file is incomplete"
    expect(line(page)).to_contain_text(f"The download of big stopped at {host.part}: {why}.")
    host.drop = False
    press(page, "Try again")
    expect(line(page)).to_have_count(0)
    ready(page)
    check_numbers(page, path)
    assert host.weights == [None, f"bytes={host.size // 2}-"]


def test_an_answer_that_is_no_file_of_weights_is_named(see: Visit, host: Host, path: Path) -> None:
    host.wait.set()
    host.status = 404
    page = see()
    answers(page, SMALLER)
    said = f"stopped at 0.0 of {host.size / 1e6:.1f} MB: the server answered with status 404."
    expect(line(page)).to_contain_text(said)
    host.status, host.kind = None, "text/html; charset=utf-8"
    press(page, "Try again")
    expect(line(page)).to_contain_text("the server sent a page instead of the file.")
    host.kind = "application/octet-stream"
    press(page, BIG)
    answers(page, BIG)
    check_numbers(page, path)


def test_damaged_weights_are_named(see: Visit, host: Host) -> None:
    host.wait.set()
    (name,) = (name for name in host.files if name.endswith(".bin"))
    whole = host.files[name]
    changed = bytearray(whole)
    changed[-len(whole) // 3] ^= 1  # one bit of a weight
    host.files[name] = bytes(changed)
    page = see()
    expect(line(page)).to_contain_text("big cannot be read: the file has other bytes")
    answers(page, SMALLER)
    host.files[name] = whole
    press(page, "Load the page again")
    expect(line(page)).to_contain_text("big has arrived.")


def test_a_page_from_a_disk_says_how_to_get_the_model(chromium: Browser, folder: Path) -> None:
    page = chromium.new_page()
    requested, said = list[str](), list[str]()
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto((folder / "both.html").as_uri())
    answers(page, SMALLER)
    expect(line(page)).to_contain_text(
        "A page opened from a disk cannot read this file: serve both files over HTTP, or run "
        "qkv play --model big."
    )
    press(page, BIG)
    line(page).evaluate(STILL)
    answers(page, SMALLER)
    assert line(page).get_by_role("button").count() == 0
    assert not page.get_by_role("progressbar").is_visible()
    assert [url for url in requested if not url.startswith("blob:")] == [page.url.split("#")[0]]
    assert said == []
    page.close()


SAVES = "Object.defineProperty(navigator, 'connection', { value: { saveData: true } })"


@pytest.mark.parametrize(
    ("options", "name"),
    [({"width": 390}, "both"), ({"script": SAVES}, "both"), ({"width": 390}, "alone")],
)
def test_data_are_saved_until_the_reader_asks(
    see: Visit, host: Host, path: Path, options: dict[str, Any], name: str
) -> None:
    host.wait.set()
    page = see(name, **options)
    said = f"big is a download of {host.size / 1e6:.1f} MB and needs 100 MB of memory"
    expect(line(page)).to_contain_text(said)
    if name == "both":
        answers(page, SMALLER)
        expect(line(page)).to_contain_text("; a small model answers without a download.")
    line(page).evaluate(STILL)
    assert host.weights == []
    press(page, "Download 1")
    if name == "both":
        press(page, "Let it answer")
        answers(page, BIG)
    ready(page)
    check_numbers(page, path)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= options.get("width", 1280)


def test_a_frame_asks_for_no_weights(see: Visit, host: Host) -> None:
    host.files["/frame.html"] = b'<iframe src="both.html" width="900" height="800"></iframe>'
    page = see("frame")
    frame = page.frame_locator("iframe")
    expect(frame.locator(".download")).to_contain_text("big is a download of")
    assert host.weights == []


def test_a_script_that_asks_the_model_starts_its_download(see: Visit, host: Host) -> None:
    host.wait.set()
    page = see(width=390)
    answers(page, SMALLER)
    page.evaluate("{ window.asked = qkv.run('the cat', [], { model: 'big' }); }")
    expect(line(page)).to_contain_text("big has arrived.")
    assert len(page.evaluate("asked.then(({ tokens }) => tokens)")) > 1
    assert host.weights == [None]


def test_a_reader_stops_and_continues_and_a_closed_page_asks_for_nothing(
    see: Visit, host: Host
) -> None:
    page = see()
    answers(page, SMALLER)
    expect(line(page)).to_contain_text(host.part)
    press(page, "Stop")
    expect(line(page)).to_contain_text("big is a download of")
    assert page.evaluate("qkv.downloads.big.stage") == "idle"
    press(page, "Continue the download")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    until(lambda: len(host.weights) == 2)  # otherwise, the page may close before it asks
    page.evaluate("dispatchEvent(new Event('pagehide'))")
    expect(page.get_by_role("button", name="Continue the download")).to_be_visible()
    host.wait.set()
    press(page, "Continue the download")
    expect(line(page)).to_contain_text("big has arrived.")
    assert len(host.weights) == 3
