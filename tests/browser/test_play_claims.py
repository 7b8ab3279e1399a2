"""Tests of all claims that the live page makes, on sentences that no model has read.

`make browser` reads each sentence in four ways. In CI, each way has a sixteenth of the sentences.
"""

import itertools
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

import qkv
from qkv.models import Model
from training import books

from .claims import CLAIMS, check
from .play import address
from .support import Visit

HERE = Path(__file__).parent
KEPT = json.loads((HERE / "sentences.json").read_text("utf-8"))
SENTENCES: list[str] = KEPT["sentences"]
PARTS = 16
WAYS = list(itertools.product(["encoder", "decoder"], [True, False]))  # with a gap?
CASES = [
    (*way, part)
    for own, way in enumerate(WAYS)
    for part in ([own] if os.environ.get("CI") else range(PARTS))
]
VIEWS: list[dict[str, Any]] = [
    {"view": "front"},
    {"view": "story"},
    {"view": "lab", "inside": True, "colouring": "effect"},
]


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    return {
        "encoder": qkv.load("books", dtype="float64"),
        "decoder": qkv.load("books-decoder", dtype="float64"),
    }


@pytest.fixture(scope="session")
def starts(html: str) -> dict[str, dict[str, Any]]:
    """The states in which the two sides of the page open."""
    found = map(json.loads, re.findall(r'"start":(\{.*?\})', html))
    return dict(zip(["encoder", "decoder"], found, strict=True))


@pytest.fixture(scope="session")
def html() -> str:
    return qkv.play()._document()


def with_gap(sentence: str, lots: random.Random) -> str:
    """Replace one word of a sentence, drawn by lot, by a gap."""
    words = list(re.finditer(r"[A-Za-z]+", sentence))
    word = lots.choice(words)
    return f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}"


def test_the_sentences_are_of_a_book_that_no_model_has_read() -> None:
    assert len(set(SENTENCES)) == 200
    [book] = [book for book in books.listed() if book.sha256 == KEPT["sha256"]]
    assert (book.author, book.title, book.part) == (KEPT["author"], KEPT["title"], "test")


def test_each_claim_has_a_test() -> None:
    named = {
        one
        for forms in CLAIMS.values()
        for one in ([forms] if isinstance(forms, str) else forms.values())
        if isinstance(one, str)
    }
    for one in named:
        file, test = one.split("::")
        assert f"def {test}(" in (HERE / file).read_text("utf-8"), one


@pytest.mark.parametrize(("side", "gap", "part"), CASES)
def test_claims_on_200_sentences(
    visit_at: Visit,
    models: dict[str, Model],
    starts: dict[str, dict[str, Any]],
    side: str,
    gap: bool,
    part: int,
) -> None:
    page = visit_at()
    lots = random.Random(part)
    wrong = []
    for k, sentence in enumerate(SENTENCES[part::PARTS]):
        text = with_gap(sentence, lots) if gap and side == "encoder" else sentence
        if gap and side == "decoder":  # the beginning of the sentence, which the model continues
            text = sentence[: lots.choice([m.end() for m in re.finditer(r"\w+", sentence)])]
        look(page, side, text=text, **VIEWS[k % 3])
        if VIEWS[k % 3]["view"] == "story" and page.locator(".story .frame").is_visible():
            page.locator(".story .dot").nth(k // 3 % 8).click()
        wrong += check(page, models, starts)
    assert not wrong, "\n".join(wrong)


def look(page: Page, side: str, **state: Any) -> None:
    """Take a side of the page to a state, and wait until the page shows it."""
    hash_ = f"#model={side}&{address(**state)[1:]}"
    page.evaluate("hash => { location.hash = hash; }", hash_)
    page.wait_for_function(
        "text => { const { told, qkv } = document.documentElement.dataset;"
        " return told === text && qkv === 'ready'; }",
        arg=state["text"],
    )
