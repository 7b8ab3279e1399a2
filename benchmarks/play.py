"""The speed of the live page in headless Chromium: typing, sweeps, the animation, new text.

The time of a key press runs from the input event until the guesses for the changed text are
painted. The page may paint the chosen head later. The time of a sweep is the time to ablate every
head in turn; drawing the map does not count. The time of the animation runs from the choice of a
query until the query's row is complete. The time of new tokens runs from the call until the last
new token, and includes the time to process the prompt. Each text begins with a new word, so that no
result comes from a cache. The page's results are compared with `predict`, `trace` and `generate`.
The page and its worker share the machine with the browser. The browser reports only tasks of at
least 50 ms.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Goal, Row, Way, at_most
from qkv.see.page.play import TEXT

ONCE = True  # measured once: the browser, not the benchmark, chooses the number of threads
LENGTHS = {
    16: (0.1, 2.0),
    64: (0.3, 4.0),
}  # number of tokens -> (seconds for a key press, seconds for a sweep)
PRESS = 0.6  # seconds from a press on the first screen until all motion ends
MOTION = 12.0  # the maximum seconds of the animation, which should take 10.8 s
NEW, TOKEN = 40, 0.04  # the number of new tokens, and the seconds for each token
TASK = 0.05  # the maximum seconds of a task of the main thread
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# SEEN is the largest allowed error of a probability. The page rounds probabilities of 10% or more
# to whole percents, so the error can reach 0.005.
SEEN = 0.0051

KEY = """([field, text]) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error("nothing was painted in 60 s")), 60_000);
  const root = document.documentElement;
  const watcher = new MutationObserver(() => {
    if (root.dataset.told !== field.value) return;
    watcher.disconnect();
    const after = new MessageChannel(); // heard once the frame is painted
    after.port1.onmessage = () => resolve(null);
    after.port2.postMessage(null);
  });
  watcher.observe(root, { attributeFilter: ["data-told"] });
  field.value = text;
  field.dispatchEvent(new InputEvent("input", { bubbles: true, composed: true }));
})"""
WORDS = """(rows) => rows.map((row) =>
  [row.querySelector("th").textContent, row.querySelector(".outcome-now").textContent])"""
PRESSED = """() => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error("nothing was painted in 60 s")), 60_000);
  const view = document.querySelector(".qkv-view").shadowRoot;
  const ends = (one) => one.effect.getTiming().iterations === 1;
  const moving = () => view.getAnimations().filter(ends);
  new MutationObserver((_, watcher) => {
    watcher.disconnect();
    Promise.all(moving().map((one) => one.finished.catch(() => {}))).then(() => resolve(null));
  }).observe(document.documentElement, { attributeFilter: ["data-painted"] });
  view.querySelector("[data-qkv-first]").click();
})"""
SWEEP = """async ([text, place]) => {
  const found = [];
  await qkv.sweep(text, [], ({ layer, head, logits }) => {
    found.push([layer, head, logits.reduce((one, other) => Math.max(one, other))]);
  }, { at: [place] });
  return found;
}"""
PLAYED = """(other) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error("the motion did not end in 150 s")), 150_000);
  const root = document.querySelector(".qkv-view").shadowRoot;
  const slider = root.querySelector("[data-part=motion] input");
  root.querySelector(`[aria-label="${other} query"]`).click();
  let going = false; // it begins once the page has been told of the query
  const look = () => {
    going ||= slider.value !== slider.max;
    if (going && slider.value === slider.max) resolve(null);
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""
WRITE = """async ([text, max]) => (await qkv.generate(text, { max })).ids"""
TASKS = """() => {
  globalThis.tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask" });
}"""


def rows(shrink: int = 1, browser: Any = None) -> Iterator[Row]:
    """Yield the rows of the table, for example the time of a key press and the time of a sweep.

    Key presses and sweeps have one row for each length in `LENGTHS`. If no browser is given, the
    function starts one. If no browser is installed, nothing is measured. A process can run only one
    Playwright, so a test that already runs a browser passes this browser.
    """
    model = qkv.load("books")
    chosen = [0]  # the tokens before the missing word; all texts share these tokens
    with ExitStack() as stack:
        browser = browser or launched(stack)
        page = browser and opened(stack, browser)
        words = first_words(model)
        yield pressed(page, model)
        to_lab(page)
        for tokens, (key, sweep) in LENGTHS.items():
            texts = Texts(model, max(8, tokens // shrink), words)
            fold(page)
            yield typed(page, texts, f"from key to painted guess, {tokens} tokens", key)
            yield swept(page, texts, f"sweep over all heads, {tokens} tokens", sweep)
            forget(page)
            yield moved(page, texts, chosen, f"animation of a query's row, {tokens} tokens")
        yield written(page, words)


@dataclass
class Texts:
    """Texts of a given number of tokens, each with a new first word and a missing last word."""

    model: qkv.Model
    tokens: int
    words: Iterator[str]

    def next(self) -> str:
        """Return the next text."""
        middle = " ".join(["of", "the"] * self.tokens).split()[: self.tokens - 5]
        return f"{next(self.words)} {' '.join(middle)} [MASK]."

    @property
    def position(self) -> int:
        """The position of the mask token."""
        return self.tokens - 3


def first_words(model: qkv.Model) -> Iterator[str]:
    """Yield words of the vocabulary, each once."""
    assert model.tokenizer is not None
    known = model.tokenizer.vocabulary
    return iter([word for word in known if word.isascii() and word.isalpha()][1000:])


def share(said: str) -> float:
    """Convert a percentage that the page shows to a probability; "under 0.1%" becomes 0."""
    return 0.0 if said.startswith(("under", "<")) else float(said.rstrip("%")) / 100


def launched(stack: ExitStack) -> Any:
    """Yield a browser, or None if no browser is installed."""
    ways = map(shutil.which, ("chromium-headless-shell", "chromium"))
    found = os.environ.get("QKV_CHROMIUM") or next(filter(None, ways), None)
    if found is None or find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    playwright = stack.enter_context(sync_playwright())
    browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
    stack.callback(browser.close)
    return browser


def opened(stack: ExitStack, browser: Any) -> Any:
    """Open the page and wait until it is ready."""
    file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "play.html")
    qkv.play().to_html(file)  # with the decoder
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    stack.callback(page.close)
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-qkv=ready]")
    page.evaluate(TASKS)
    return page


def to_lab(page: Any) -> None:
    """Open the lab of the page."""
    if page is not None:
        page.get_by_role("button", name="Open the lab").click()
        page.locator("[data-part=sentence] textarea.text").wait_for()


def pressed(page: Any, model: qkv.Model) -> Row:
    """Make the table row for a press on the first word, which masks or unmasks the word."""
    name, goal = "from a press on the first screen until all motion ends", at_most(PRESS)
    if page is None:
        return Row(name, {"qkv": None}, (goal,))
    forget(page)

    def error(_: None) -> float:
        hidden = page.locator("[data-qkv-first]").get_attribute("aria-pressed") == "true"
        edits = {"hide": [page.locator("[data-qkv-first] bdi").inner_text()]} if hidden else {}
        ((word, share_),) = model.predict(TEXT.format(model.mask), 1, **edits)[0]
        gap = page.locator(".front > [data-part=stage] .gap")
        shown = gap.locator("b").last.inner_text(), gap.locator("small").inner_text().split()[-1]
        return abs(share_ - share(shown[1])) + float(shown[0] != word)

    return Row(
        name, {"qkv": Way(lambda: page.evaluate(PRESSED), error, SEEN)}, (goal, longest(page))
    )


def fold(page: Any) -> None:
    """Fold all parts of the page, as at the start, so that rows do not affect each other."""
    if page is not None:
        folds = page.get_by_role("button", name="Fold")
        if folds.count():
            folds.click()
        forget(page)


def forget(page: Any) -> None:
    """Delete the long tasks reported so far, which belong to earlier rows."""
    if page is not None:
        page.wait_for_timeout(200)
        page.evaluate("tasks.length = 0")


def longest(page: Any) -> Goal:
    """Return the seconds of the longest reported task of the main thread, 0 if there is none."""
    return Goal(
        "longest task of the page",
        lambda _: page.evaluate("Math.max(0, ...tasks)") / 1000,
        "s",
        most=TASK,
    )


def typed(page: Any, texts: Texts, name: str, most: float) -> Row:
    """Make the table row for the time from a key press to the painted guesses."""
    if page is None:
        return Row(name, {"qkv": None}, (at_most(most),))
    area = page.locator("[data-part=sentence] textarea.text").element_handle()
    asked = [""]

    def call() -> None:
        asked[0] = texts.next()
        page.evaluate(KEY, [area, asked[0]])

    def error(_: None) -> float:
        shown = page.locator("[data-part=outcome] tbody tr").evaluate_all(WORDS)
        (expected,) = texts.model.predict(asked[0], len(shown))
        assert len(texts.model.tokenize(asked[0])) == texts.tokens
        known = dict(expected)
        return max(abs(known.get(word, 0.0) - share(said)) for word, said in shown)

    return Row(name, {"qkv": Way(call, error, SEEN)}, (at_most(most), longest(page)))


def swept(page: Any, texts: Texts, name: str, most: float) -> Row:
    """Make the table row for a sweep that ablates every head in turn."""
    if page is None:
        return Row(name, {"qkv": None}, (at_most(most),))
    asked = [""]

    def call() -> list[list[Any]]:
        asked[0] = texts.next()
        return page.evaluate(SWEEP, [asked[0], texts.position])

    def error(found: list[list[Any]]) -> float:
        model = texts.model
        assert {(layer, head) for layer, head, *_ in found} == {
            (layer, head) for layer in range(model.num_layers) for head in range(model.num_heads)
        }
        off = []
        for layer, head, largest in found:
            trace = model.trace(asked[0], names=["pattern"], logits=True, ablate=[(layer, head)])
            off.append(abs(trace["logits"][0, texts.position].max() - largest))
        return float(np.max(off))

    return Row(name, {"qkv": Way(call, error)}, (at_most(most), longest(page)))


def moved(page: Any, texts: Texts, chosen: list[int], name: str) -> Row:
    """Make the table row for the animation that computes the weights of a chosen query."""
    if page is None:
        return Row(name, {"qkv": None}, (at_most(MOTION),))
    motion = page.locator("[data-part=motion]")
    unfold = page.get_by_role("button", name="Look inside")

    def call() -> None:
        if unfold.count():
            unfold.click()
        motion.scroll_into_view_if_needed()
        page.evaluate(PLAYED, "next" if chosen[0] else "previous")
        chosen[0] = 1 - chosen[0]

    def error(_: None) -> float:
        text = page.locator("[data-part=sentence] textarea.text").input_value()
        title = page.locator("[data-part=head] h3").first.inner_text()
        layer, head = map(int, title.split()[1].split("."))
        trace = texts.model.trace(text, names=["pattern"])
        weights = trace["pattern", layer][0, head, texts.position - chosen[0]]
        shown = motion.locator(".motion-figure").all_inner_texts()[1:-1]
        most = np.sort(weights)[::-1]
        own = min(len(most), len(shown) - (len(shown) < len(most)))
        expected = [*most[:own], most[own:].sum()][: len(shown)]
        found = [*sorted(map(share, shown[:own]), reverse=True), *map(share, shown[own:])]
        return float(np.abs(np.subtract(found, expected)).max())

    return Row(name, {"qkv": Way(call, error, SEEN)}, (at_most(MOTION), longest(page)))


def written(page: Any, words: Iterator[str]) -> Row:
    """Make the table row for new tokens of the decoder, generated greedily."""
    name, goal = f"{NEW} new tokens", at_most(NEW * TOKEN)
    if page is None:
        return Row(name, {"qkv": None}, (goal,))
    forget(page)
    writer, asked = qkv.load("books-decoder"), [""]

    def call() -> list[int]:
        asked[0] = f"The old {next(words)} opened the door and"
        found: list[int] = page.evaluate(WRITE, [asked[0], NEW])
        return found

    def error(found: list[int]) -> float:
        own = writer.generate(asked[0], max_new_tokens=NEW).ids
        return float(found != own)

    return Row(name, {"qkv": Way(call, error)}, (goal, longest(page)))
