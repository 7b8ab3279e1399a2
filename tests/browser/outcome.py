"""A page that shows the outcome of edits to a run, and the library's outcome as a reference."""

import json
import re
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from playwright.sync_api import Locator, Page

from qkv.models import Model
from qkv.see.draw import colours
from qkv.see.page.engine import engine_part, engine_payload
from qkv.see.page.html import WITH_WORKER, document, script, script_json

from .bundling import bundled
from .edited import Edit, Result
from .engine import by_the_library, shares

# Runs a text with and without edits, and passes both runs to the outcome part.
FOLLOW = """
import { el } from "./base/elements.js";
import { mounter } from "./base/mount.js";
import { outcomePart } from "./parts/outcome.js";

export const start = mounter((box, data, ui) => {
  const asked = [];
  const part = outcomePart(ui, { set: (patch) => asked.push(patch) });
  box.append(el("p", { class: "lead" }, "A trial"), part.headline, part.node);
  const words = (text, { tokens, offsets, special }) => {
    const spans = [];
    tokens.forEach((token, i) => {
      if (special[i]) return;
      if (token.startsWith("##")) spans.at(-1)[1] = i + 1;
      else spans.push([i, i + 1]);
    });
    const part = (first, end) => text.slice(offsets[first][0], offsets[end - 1][1]);
    return spans.map(([first, end]) => [first, end, part(first, end)]);
  };
  globalThis.asked = asked;
  globalThis.follow = async ({ text, edits, position, inside = true, ...more }) => {
    const model = { ...(await qkv.model), ...more };
    const original = await qkv.run(text, [], { at: [position] });
    const run = edits.length ? await qkv.run(text, edits, { at: [position] }) : original;
    const state = { text, edits, position, layer: 0, head: 0, query: null, inside };
    const now = { state, model, run, original, words: words(text, original) };
    part.update({ ...now, busy: false, error: null });
  };
});
"""


class Row(NamedTuple):
    """A word as the table shows it; `before` is None if the text has no edits."""

    word: str
    before: str | None
    now: str
    mark: str
    bars: list[float]


class Expected(NamedTuple):
    """The library's results before and after edits; the probabilities are those of a position."""

    words: list[str]
    before: np.ndarray  # (V) probabilities
    now: np.ndarray
    patterns: tuple[np.ndarray, np.ndarray]  # (layers, H, T, T)
    resid: tuple[np.ndarray, np.ndarray]  # (layers + 1, T, D)

    def id(self, word: str) -> int:
        return self.words.index(word)


def outcome_page(model: Model, theme: str = "auto") -> str:
    code, styles = bundled(FOLLOW)
    css = script_json(f"{colours.css()}\n{styles}")
    data = script_json({"kind": "trial", "theme": theme})
    body = (
        f'<div class="qkv-view" data-qkv="trial"></div>{engine_part(engine_payload(model))}'
        + script(code, f'page.start("trial", {data}, {css});')
    )
    return document("what follows", body, theme, WITH_WORKER)


def follow(page: Page, text: str, edits: list[Edit], position: int, **more: Any) -> str:
    """Run a text in the page, and return the headline."""
    page.evaluate("follow", {"text": text, "edits": edits, "position": position, **more})
    return page.locator(".outcome-headline").inner_text()


def expected(model: Model, text: str, edits: list[Edit], position: int) -> Expected:
    plain, changed = (_by_the_library(model, text, json.dumps(own)) for own in ([], edits))
    words = _words(model)
    one, other = (shares(found.logits[position : position + 1])[0] for found in (plain, changed))
    return Expected(
        words, one, other, (plain.pattern, changed.pattern), (plain.resid, changed.resid)
    )


@cache
def _by_the_library(model: Model, text: str, edits: str) -> Result:
    return by_the_library(model, model.tokenize(text).ids.tolist(), json.loads(edits))


@cache
def _words(model: Model) -> list[str]:
    return [model.tokenizer.token(id) for id in range(len(model.tokenizer.vocabulary))]


def rows(page: Page) -> list[Row]:
    """Return the table of words, with the length of each bar as a share of its cell."""
    found = page.locator(".outcome-words tbody tr").evaluate_all(
        """rows => rows.map((row) => {
          const all = (which) => [...row.querySelectorAll(which)];
          const width = row.querySelector(".outcome-cell div").clientWidth;
          const long = (bar) => bar.getBoundingClientRect().width / width;
          const cells = all("th, td:not(.outcome-cell)").map((cell) => cell.textContent);
          return [cells, all(".outcome-bar").map(long)];
        })"""
    )
    return [
        Row(word, *([None] * (2 - len(bars))), *told[: len(bars)], "".join(told[2:]), bars)
        for (word, *told), bars in found
    ]


def is_written(shown: str, value: float, digits: int = 3) -> bool:
    """Return whether a page may write `value` as the rounded number `shown`."""
    mark = shown.replace("\N{MINUS SIGN}", "-")
    if "e" in mark:
        return bool(np.isclose(float(mark), value, rtol=0.051, atol=1e-12))
    return (
        len(mark.split(".")[1]) == digits and abs(float(mark) - value) <= 0.5 * 10.0**-digits + 1e-7
    )


def is_percent(shown: str, value: float, near: float = 2e-6) -> bool:
    """Return whether a page may write a share as the percentage `shown`.

    The share differs from `value` by at most `near`. A percentage below 10% has one decimal, and a
    larger percentage has none; see `percent`.
    """
    steps = max(1, round(near / 2e-4))
    return any(
        shown == percent(max(0, value + near * by / steps)) for by in range(-steps, steps + 1)
    )


def percent(share: float) -> str:
    """Format a share in percent, independently of the page."""
    part = Decimal(float(share)) * 100
    if 0 < part < Decimal("0.1"):
        return "under 0.1%"
    one = part.quantize(Decimal("0.1"))
    return f"{one if 0 < one < 10 else part.quantize(Decimal(1))}%"


def skeleton(sentence: str) -> tuple[str, list[str]]:
    """Return a sentence with `#` for each probability, and the probabilities."""
    number = r"under 0\.1%|[\d.]+%"
    return re.sub(number, "#", sentence), re.findall(number, sentence)


def similarities(within: Page | Locator) -> list[str]:
    """Return the numbers that the chart of similarities names to screen readers."""
    label = within.locator(".outcome-chart svg").get_attribute("aria-label")
    return [point.split()[-1] for point in label.partition(": ")[2].split(", ")]
