"""Tests of a page with SmolLM2, a model that people know: tokens, numbers, edits, its file."""

import json

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

import qkv
from benchmarks import play_smollm2
from benchmarks.common import Way
from models.gguf_files import smollm2
from models.odd_texts import odd_texts
from qkv.models import Model
from qkv.see.page.html import encode
from rows import sample

from .edited import Edit
from .engine import ask, by_the_library
from .support import Visit
from .test_engine_inside import bare
from .test_tokenizers import READ

PROMPTS = [
    "The capital of France is the city of",
    "When Mary and John went to the store, John gave a drink to",
    "The keys to the cabinet in the old house",
    "A dog is an animal that",
    "Two plus two is four. Three plus three is",
    "The doctor opened the door of the small room, and",
    "Water freezes at zero degrees, and it boils at",
    "red green blue red green blue red green",
    "The sun rises in the east and sets in the",
    "Once upon a time there was a king who",
]
LARGEST = 92e6  # bytes


@pytest.fixture(scope="module")
def known() -> Model:
    smollm2()
    return qkv.load("smollm2")


@pytest.fixture(scope="module")
def html(known: Model) -> str:
    return qkv.play(PROMPTS[0], model=known)._document()


@pytest.fixture(scope="module")
def page(visit_once: Visit, html: str) -> Page:
    """The whole page, opened once for all tests."""
    page = visit_once(html)
    page.wait_for_selector("html[data-qkv=ready]", timeout=300_000)
    return page


def edits_of(known: Model) -> list[list[Edit]]:
    """Return no edit, a hidden word, a head that is off, and a vector that is added."""
    vector = (0.5 * np.random.default_rng(0).standard_normal(known.dim)).round(3).tolist()
    return [
        [],
        [{"op": "hide", "token": 3}],
        [{"op": "ablate", "layer": 4, "head": 7}],
        [{"op": "add", "at": "resid_post", "layer": 11, "vector": vector}],
    ]


def test_the_file_is_small_and_the_pieces_are_gone(html: str, page: Page) -> None:
    assert len(encode(html)) < LARGEST
    assert page.locator("script[data-piece]").count() == 0
    assert page.evaluate("qkv.model.then(({ name, layers }) => [name, layers])") == ["smollm2", 30]


def test_ids_of_odd_texts_are_the_librarys(visit: Visit, known: Model) -> None:
    special = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>")
    texts = [*sample(odd_texts(2000, special, seed=1))]
    found = bare(visit).evaluate(READ, [json.dumps(known.tokenizer.rules), texts])
    expected = known.tokenizer.tokenize_batch(texts)
    for text, (ids, *_), own in zip(texts, found, expected, strict=True):
        assert ids == own.ids.tolist(), repr(text)


def test_numbers_are_the_librarys_with_and_without_edits(page: Page, known: Model) -> None:
    for text in sample(PROMPTS):
        usual = None
        for edits in edits_of(known):
            expected = by_the_library(known, text, edits)
            found = ask(page, text, edits)[1]
            np.testing.assert_allclose(found.pattern, expected.pattern, rtol=0, atol=1e-3)
            np.testing.assert_allclose(found.logits, expected.logits, rtol=0, atol=0.02)
            usual = expected.logits if usual is None else usual
            assert not edits or np.abs(expected.logits - usual).max() > 0.1, edits


def test_a_scan_of_heads_tells_its_progress_and_lets_a_run_pass(page: Page, known: Model) -> None:
    order, parts = page.evaluate(
        """async ([text, at]) => {
          const [order, parts, enough] = [[], [], new AbortController()];
          const run = () => qkv.run(`${text} a`, [], { at: [at] }).then(() => order.push("run"));
          await qkv.sweep(text, [], ({ layer, head, logits }) => {
            parts.push([layer, head, [...logits]]);
            order.push("part");
            if (parts.length === 2) run();
            if (parts.length === 20) enough.abort();
          }, { at: [at], signal: enough.signal }).catch(() => {});
          return [order, parts.slice(9, 11)];
        }""",
        [PROMPTS[0], 7],
    )
    assert order.count("run") == 1
    # before the scan of 270 heads is stopped; a busy page asks for the run some heads late
    assert order.index("run") < 20
    assert [part[:2] for part in parts] == [[28, 0], [28, 1]]
    for layer, head, logits in parts:
        ablated: list[Edit] = [{"op": "ablate", "layer": layer, "head": head}]
        expected = by_the_library(known, PROMPTS[0], ablated).logits[7]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=0.02)


def test_the_benchmark_compares_with_the_library(
    chromium: Browser, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {row.name: row for row in play_smollm2.rows(8, chromium, page)}
    for row in rows.values():
        way = row.ways["qkv"]
        assert isinstance(way, Way)
        assert way.error(way.call()) <= way.allowed, row.name
        for goal in row.goals:
            assert goal.judged({"ways": {"qkv": {"seconds": 2.0}}})["value"] >= 0
    for name, *other in (
        ("RUN", "text, []", "`a ${text}`, []"),
        ("WRITE", "{ max }", "{ max: 3 }"),
    ):
        monkeypatch.setattr(play_smollm2, name, getattr(play_smollm2, name).replace(*other))
    for name in list(rows)[1:]:
        way = rows[name].ways["qkv"]
        assert isinstance(way, Way)
        assert way.error(way.call()) > way.allowed, name


def test_greedy_text_is_the_librarys_with_and_without_edits(page: Page, known: Model) -> None:
    unedited, *others = edits_of(known)
    for n, text in sample(enumerate(PROMPTS)):
        for edits in (unedited, others[n % len(others)]):
            own = known.generate(text, max_new_tokens=30, edit=edits)
            generate = "([text, edits]) => qkv.generate(text, { max: 30 }, edits)"
            found = page.evaluate(generate, [text, edits])
            assert (found["ids"], found["text"]) == (own.ids, str(own)), (text, edits)
