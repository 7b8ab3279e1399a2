"""Seeded random walks through the live page: nothing breaks, and each claim on the way is true.

`make browser` acts 3,000 times. The walks of CI are shorter.
"""

import os
import random
from typing import Any

import pytest
from playwright.sync_api import Page

from qkv.models import Model

from .claims import check
from .support import Visit
from .test_play_claims import SENTENCES, html, models, starts, with_gap

__all__ = ["html", "models", "starts"]  # fixtures

WALKS = 6
ACTIONS = 50 if os.environ.get("CI") else 500
WIDTHS = [390, 1280, 1920]
ODD = [
    "",
    "   ",
    "?",
    "_ _",
    "bank bank bank _ bank",
    "\N{WOMAN}\u200d\N{WOMAN} laughs at a \N{GRINNING FACE}",
    "שלום עולם",
    "the " * 300,
    "Antidisestablishmentarianism _ it",
    "<b>bold</b> & _",
]
KEYS = [
    "Tab",
    "Enter",
    "Escape",
    "ArrowRight",
    "ArrowDown",
    "ArrowLeft",
    "ArrowUp",
    "PageDown",
    " ",
]
# Acts on the control with number `which` of those that can be used now, and describes it.
ACT = r"""([which, text, share]) => {
  const root = document.querySelector(".qkv-view").shadowRoot;
  const can = "button, summary, [role=option], [role=tab], input, textarea, select";
  const all = [...root.querySelectorAll(can)].filter((e) => !e.disabled && e.checkVisibility()
    && !e.closest(".save, a[download]") && !/^(Copy|Save)/.test(e.textContent));
  if (!all.length) return "nothing";
  const one = all[which % all.length];
  one.focus();
  if (one.matches("select")) {
    one.selectedIndex = Math.floor(share * one.options.length);
    one.dispatchEvent(new Event("change", { bubbles: true }));
  } else if (one.matches("[type=range]")) {
    one.value = Number(one.min) + share * (one.max - one.min);
    one.dispatchEvent(new Event("input", { bubbles: true }));
  } else if (one.matches("input, textarea")) {
    one.value = one.type === "number" ? share.toFixed(2) : text;
    one.dispatchEvent(new Event("input", { bubbles: true }));
    const enter = { key: "Enter", bubbles: true, composed: true };
    one.dispatchEvent(new KeyboardEvent("keydown", enter));
    one.form?.requestSubmit();
  } else one.click();
  const name = one.getAttribute("aria-label") ?? one.textContent;
  return `${one.tagName} ${one.className} ${name}`.slice(0, 60);
}"""
# Resolves when the page shows the state that was requested last.
SETTLED = """async () => {
  const { dataset } = document.documentElement;
  const tick = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const end = performance.now() + 60_000;
  const root = document.querySelector(".qkv-view").shadowRoot;
  const rests = () => dataset.qkv === "ready" && root.querySelector(".loading").hidden;
  for (let calm = 0; calm < 3; calm = rests() ? calm + 1 : 0) {
    await tick();
    if (performance.now() > end) return false;
  }
  return true;
}"""


@pytest.mark.parametrize("seed", range(WALKS))
def test_a_random_walk_leaves_no_error_and_no_false_claim(
    visit_at: Visit, seed: int, models: dict[str, Model], starts: dict[str, dict[str, Any]]
) -> None:
    page = visit_at("#model=decoder" if seed % 2 else "")
    walk(page, seed, ACTIONS, models, starts)


@pytest.mark.parametrize("tab", ["sentence", "links", "heads", "steps", "result"])
def test_a_decoder_without_a_text_makes_no_false_claim(
    visit_at: Visit, tab: str, models: dict[str, Model], starts: dict[str, dict[str, Any]]
) -> None:
    page = visit_at(f"#model=decoder&text=&inside=true&tab=%22{tab}%22")
    assert page.locator(".view").get_attribute("data-view") == "lab"
    assert check(page, models, starts) == []


def walk(
    page: Page,
    seed: int,
    actions: int,
    models: dict[str, Model],
    starts: dict[str, dict[str, Any]],
) -> None:
    """Act on the page, and decide each claim that it then shows."""
    lots = random.Random(seed)
    page.emulate_media(reduced_motion="reduce")
    acts = []
    for _ in range(actions):
        acts.append(act(page, lots))
        assert page.evaluate(SETTLED), acts[-5:]
        wrong = check(page, models, starts)
        assert not wrong, "\n".join([*acts[-8:], *wrong])


def act(page: Page, lots: random.Random) -> str:
    """Do something that a reader may do; return a description."""
    kind = lots.random()
    if kind < 0.04:
        page.set_viewport_size({"width": lots.choice(WIDTHS), "height": 900})
        return "another width"
    if kind < 0.14:
        key = lots.choice(KEYS)
        page.keyboard.press(key)
        return f"the key {key!r}"
    if kind < 0.17 and "view" in page.evaluate("location.hash"):
        page.evaluate("history.length > 2 && history.back()")
        return "back"
    text = lots.choice(ODD) if lots.random() < 0.2 else with_gap(lots.choice(SENTENCES), lots)
    described: str = page.evaluate(ACT, [lots.randrange(10**6), text, lots.random()])
    return described
