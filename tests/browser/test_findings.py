"""Tests of a page of findings: it measures them, judges them, and lets a reader change them."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import qkv
from models.gguf_files import write_llama
from models.support import mask_bert
from qkv.findings.measured import view_of
from qkv.models import Model

from .opening import Scheme
from .play import LINES, STILL, after, button, changed, ready
from .playing import has_moved
from .support import Visit
from .test_play_page import check_layout

TEXT = "She drank a glass of _."
NAME = "Here is Miss Green. Who is Miss"
ARTICLE = Path(__file__).parents[2] / "docs" / "findings" / "repeating-a-name.md"


@pytest.fixture(scope="session")
def decoder() -> Model:
    return qkv.load("books-decoder")


@pytest.fixture(scope="session")
def glass(model: Model) -> qkv.Finding:
    return qkv.finding(model, TEXT, hide="glass", claim="Without “glass” it is tea.")


def page_of(*findings: qkv.Finding, **options: Any) -> str:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not hold, which the page also reports")
        return view_of(findings, **options)._document()


@pytest.fixture(scope="session")
def html(glass: qkv.Finding) -> str:
    return page_of(glass)


def found(page: Page) -> list[dict[str, Any]]:
    ready(page)
    return page.evaluate("qkv.findings")


def agrees(found: list[list[Any]], expected: list[tuple[str, float]], **within: float) -> None:
    (words, shares), (own, probabilities) = (
        zip(*pairs, strict=True) for pairs in (found, expected)
    )
    assert words == own
    np.testing.assert_allclose(shares, probabilities, **within or {"rtol": 0, "atol": 5e-6})


def verdict(page: Page) -> Locator:
    return page.locator(".finding .verdict")


def guesses(page: Page) -> list[str]:
    """Return the guess in each picture; the picture before the edits comes first."""
    stages = page.locator(".finding .stage").all()
    return [one.locator(".guess .now, .guess .arriving").last.inner_text() for one in stages]


# ---- measurements


def test_the_page_measures_what_the_float64_library_does(
    visit: Visit, html: str, exact: Model
) -> None:
    page = visit(html)
    [one] = found(page)
    assert one.keys() == {"claim", "holds", "before", "after"}
    assert (one["claim"], one["holds"]) == ("Without “glass” it is tea.", True)
    agrees(one["before"], exact.predict(TEXT)[0])
    agrees(one["after"], exact.predict(TEXT, hide="glass")[0])
    expect(page.locator(".finding h2")).to_have_text("Without “glass” it is tea.")
    expect(verdict(page)).to_contain_text("✓ Holds. Measured again on this page")
    assert guesses(page) == [one["before"][0][0], one["after"][0][0]]
    expect(page.locator(".finding .changed")).to_contain_text("glass hidden")
    assert page.locator(".finding .stage .off").all_inner_texts() == ["glass"]
    row = page.locator(".outcome-words tbody tr").first
    expect(row.locator("th")).to_have_text(one["after"][0][0])


def test_every_kind_of_edit_holds(visit: Visit, model: Model) -> None:
    z = (model.trace(TEXT)["z", 1][0, :, 2] * 2).tolist()
    rows = [0.0] * 9
    rows[4] = 1.0
    edits: list[dict[str, Any]] = [
        {"op": "hide", "token": 4},
        {"op": "mask", "query": 6, "key": 4, "layer": 2, "head": 1},
        {"op": "causal"},
        {"op": "ablate", "layer": 1, "head": 3, "with": "mean"},
        {"op": "ablate", "layer": 0},
        {"op": "scale", "value": 0.05},
        {"op": "row", "layer": 3, "head": 0, "query": 6, "weights": rows},
        {"op": "swap", "token": 4, "with": "cup"},
        {"op": "add", "at": "resid_post", "layer": 1, "token": 6, "vector": [0.5] * 192},
        {"op": "patch", "at": "z", "layer": 2, "head": 2, "from": "He ate a plate of _."},
        {"op": "set", "at": "z", "layer": 1, "head": 2, "value": z},
    ]
    findings = [qkv.finding(model, TEXT, edit=[one], claim=one["op"]) for one in edits]
    findings.append(qkv.finding(model, TEXT, edit=edits[:4] + edits[7:]))
    page = visit(page_of(*findings))
    measured = found(page)
    assert [one["claim"] for one in measured if not one["holds"]] == []
    for one, finding in zip(measured, findings, strict=True):
        agrees(one["before"], finding.before)
        agrees(one["after"], finding.after)
    titles = page.locator(".finding h2").all_inner_texts()
    assert titles == [*(one["op"] for one in edits), f"“{TEXT}”"]


def test_any_position_of_a_decoder(visit: Visit, decoder: Model) -> None:
    early = qkv.finding(decoder, NAME, position=3, hide="Miss")
    last = qkv.finding(decoder, NAME, ablate=[(2, 5)])
    assert any(word.startswith("##") for word, _ in last.after)  # the next token continues a word
    page = visit(page_of(early, last))
    for one, finding in zip(found(page), (early, last), strict=True):
        assert one["holds"]
        agrees(one["before"], finding.before)
        agrees(one["after"], finding.after)
    words = page.locator(".finding .stage .words").all_inner_texts()
    assert re.match(r"Here is Miss Green\s+\w+\s+[\d.]+%\s+\. Who is Miss$", words[0])
    assert re.match(r"Here is Miss Green\. Who is Miss\s+\w+\s+[\d.]+%$", words[2])


# ---- findings that do not hold


@pytest.mark.parametrize(
    ("by", "holds"), [(0.9e-4, True), (-0.9e-4, True), (1.2e-4, False), (-1.2e-4, False)]
)
@pytest.mark.parametrize("name", ["before", "after"])
def test_only_a_probability_beyond_the_tolerance_is_reported(
    quick: Visit, glass: qkv.Finding, name: str, by: float, holds: bool
) -> None:
    (word, share), *others = getattr(glass, name)
    page = quick(page_of(replace(glass, **{name: [(word, share + by), *others]})))
    [one] = found(page)
    assert one["holds"] is holds
    agrees(one[name], getattr(glass, name))  # as measured in the page
    if not holds:
        expect(verdict(page)).to_contain_text("✗ Does not hold.")
        said = f"{word} ({share + by:.4f}) in the finding, {word} ({share:.4f}) here"
        assert verdict(page).locator("li").all_inner_texts() == [f"{name}, word 1: {said}"]


def test_a_finding_with_its_words_in_another_order_does_not_hold(
    quick: Visit, glass: qkv.Finding
) -> None:
    (first, p), (second, q), *others = glass.after
    page = quick(page_of(replace(glass, after=[(second, p), (first, q), *others])))
    assert [one["holds"] for one in found(page)] == [False]
    assert verdict(page).locator("li").count() == 2
    assert verdict(page).get_attribute("data-holds") == "false"


def test_a_finding_may_have_fewer_words(quick: Visit, glass: qkv.Finding) -> None:
    page = quick(page_of(replace(glass, before=glass.before[:1], after=glass.after[:3])))
    [one] = found(page)
    assert (one["holds"], len(one["before"]), len(one["after"])) == (True, 1, 3)


def test_rounded_parameters_may_differ_a_little(visit: Visit, tmp_path: Path) -> None:
    mask_bert(tmp_path)  # float32 parameters, which a page rounds to float16
    finding = qkv.finding(tmp_path, "the cat sat on the _.", hide="cat")
    (word, share), *others = finding.after
    one, two, third, fourth, last = finding.before
    assert third[1] > 1.1 * fourth[1]
    page = visit(
        page_of(
            finding,
            replace(finding, after=[(word, share - 0.009), *others]),
            replace(finding, after=[(word, share - 0.011), *others]),
            replace(finding, before=[one, two, fourth, third, last]),
        )
    )
    assert [one["holds"] for one in found(page)] == [True, True, False, False]
    expect(verdict(page).first).to_contain_text(
        "the words keep their order, and all probabilities agree to within 5% or 0.0001, since "
        "this page computes with rounded numbers."
    )


def test_words_of_a_model_in_blocks_may_change_places_if_nearly_equal(
    visit: Visit, tmp_path: Path
) -> None:
    path = write_llama(tmp_path / "small.gguf", kinds={"token_embd.weight": "Q8_0"})
    finding = qkv.finding(path, "the cat sat", hide="cat")
    *others, (fourth, more), (fifth, less) = finding.before
    assert less < more < 1.03 * less
    (word, share), *rest = finding.after
    page = visit(
        page_of(
            finding,
            replace(finding, after=[(word, share * 1.04), *rest]),
            replace(finding, after=[(word, share * 0.94), *rest]),
            replace(finding, before=[*others, (fifth, more), (fourth, less)]),
            replace(finding, before=[*others, (fourth, more), ("no word", less)]),
        )
    )
    measured = found(page)
    assert [one["holds"] for one in measured] == [True, True, False, True, False]
    for one in measured:
        agrees(one["after"], finding.after, rtol=0.01)
    places = "only words with nearly equal probabilities have changed places"
    expect(verdict(page).nth(3)).to_contain_text(places)
    expect(verdict(page).last).to_contain_text("before, word 5: no word (")


# ---- a reader's changes


def predicted(exact: Model, *words: str) -> str:
    return exact.predict(TEXT, hide=[*words])[0][0][0]


def test_a_finding_can_be_edited_in_place(quick: Visit, html: str, exact: Model) -> None:
    page = quick(html)
    measured = found(page)
    picture = page.locator(".finding .stage").nth(1)
    picture.get_by_role("button", name="drank").click()
    ready(page)
    expect(page.locator(".finding .stage .off")).to_have_text(["drank", "glass"])
    assert guesses(page) == [predicted(exact), predicted(exact, "glass", "drank")]
    page.locator(".finding .changed button").first.click()
    ready(page)
    expect(page.locator(".finding .stage .off")).to_have_text(["drank"])
    assert guesses(page)[1] == predicted(exact, "drank")
    assert found(page) == measured  # the finding itself is unchanged
    button(page, "Back to the finding").click()
    ready(page)
    assert guesses(page)[1] == predicted(exact, "glass")
    expect(button(page, "Back to the finding")).to_be_hidden()


def test_the_lab_opens_on_the_finding_and_leads_back(quick: Visit, html: str, exact: Model) -> None:
    page = quick(html)
    ready(page)
    expect(page.locator("[data-qkv-first]")).to_have_text("Change it in the lab")
    after(page, page.locator("[data-qkv-first]").click)
    assert page.locator(".view").get_attribute("data-view") == "lab"
    word = predicted(exact, "glass")
    expect(page.locator("[data-part=headline]")).to_contain_text(word)
    expect(page.locator("[data-part=changes] .changed")).to_contain_text("glass hidden")
    after(page, lambda: page.locator("[data-part=changes] .changed button").click())
    expect(page.locator("[data-part=headline]")).to_contain_text(predicted(exact))
    assert changed(page) == []
    after(page, button(page, "← Findings").click)
    assert guesses(page) == [predicted(exact), word]
    assert [one["holds"] for one in found(page)] == [True]


def test_a_saved_finding_loads_as_the_same_finding(
    visit: Visit, html: str, glass: qkv.Finding, tmp_path: Path
) -> None:
    page = visit(html)
    ready(page)
    with page.expect_download() as download:
        button(page, "Save the finding").click()
    assert download.value.suggested_filename == "finding-1.json"
    download.value.save_as(tmp_path / "a.json")
    assert qkv.Finding.load(tmp_path / "a.json") == glass
    assert json.loads((tmp_path / "a.json").read_bytes()) == glass.to_dict()


# ---- pictures


def test_lines_show_the_head_and_query_of_the_edit(visit: Visit, decoder: Model) -> None:
    ablated = qkv.finding(decoder, NAME, ablate=[(2, 5)])
    mask = {"op": "mask", "query": 3, "key": 2, "layer": 1, "head": 0}
    masked = qkv.finding(decoder, NAME, edit=[mask])
    page = visit(page_of(ablated, masked), width=1400)
    ready(page)
    page.locator(".qkv-view").first.evaluate(STILL)
    has_moved(page)
    exact = qkv.load("books-decoder", dtype=np.float64)
    trace = exact.trace(NAME)
    stages = page.locator(".finding .stage").all()
    for stage, (layer, head, query) in ((stages[0], (2, 5, 7)), (stages[2], (1, 0, 3))):
        row = trace["pattern", layer][0, head, query]
        found_ = {int(token): width for token, width in stage.evaluate(LINES)}
        assert len(found_) >= 3
        assert int(np.argmax(row)) in found_
        text = stage.locator(".big")
        size = text.evaluate("(text) => parseFloat(getComputedStyle(text).fontSize)")
        for token, width in found_.items():
            assert width == pytest.approx((1.5 + 26 * row[token]) * min(1, size / 32), abs=1e-3)
        expect(stage.locator(".legend")).to_contain_text(f"in head {layer}.{head}.")
    assert stages[1].evaluate(LINES) == []  # the head is removed
    assert dict(stages[3].evaluate(LINES)).get("2", 1.5) == 1.5


# ---- articles


@pytest.fixture(scope="session")
def article() -> str:
    return page_of(article=ARTICLE)


def test_an_article_has_its_text_and_its_findings_in_order(visit: Visit, article: str) -> None:
    page = visit(article)
    measured = found(page)
    assert len(measured) >= 5
    assert all(one["holds"] for one in measured)
    texts = page.locator("[data-part=findings]").evaluate(
        """(node) => [...node.children].map((one) => one.localName === "slot"
             ? one.assignedElements()[0].querySelector("h2, h3").textContent
             : one.querySelector("h2").textContent)"""
    )
    source = ARTICLE.read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", source, re.M)
    files = re.findall(r"^!\[.*\]\((.+)\)$", source, re.M)
    claims = [qkv.Finding.load(ARTICLE.parent / file).claim for file in files]
    assert [one["claim"] for one in measured] == claims
    assert texts[0] == headings[0] == "How the decoder repeats a name"
    assert [text for text in texts if text in claims] == claims
    assert page.title() == headings[0]
    for heading in headings:
        expect(page.locator(".qkv-prose").get_by_text(heading, exact=True)).to_be_visible()


def test_without_scripts_the_article_and_its_numbers_are_there(visit: Visit, article: str) -> None:
    page = visit(article, scripts=False)
    expect(page.get_by_role("heading", name="How the decoder repeats a name").last).to_be_visible()
    assert "Head 2.5 is an induction head" in page.locator("main").inner_text()
    expect(page.locator("svg").first).to_be_visible()


def test_hostile_claims_and_articles_stay_text(
    visit: Visit, glass: qkv.Finding, tmp_path: Path
) -> None:
    bad = "<img src=x onerror=alert(1)></script>"
    replace(glass, claim=bad).save(tmp_path / "a.json")
    (tmp_path / "a.md").write_text(f"# {bad}\n\n{bad} [x](javascript:alert(1))\n\n![](a.json)\n")
    page = visit(page_of(article=tmp_path / "a.md"))
    assert [one["claim"] for one in found(page)] == [bad]
    expect(page.locator(".finding h2")).to_have_text(bad)
    assert page.locator(".qkv-prose img, .finding img, .qkv-prose a").count() == 0


@pytest.mark.parametrize("width", [390, 736, 1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_window_and_passes_axe(
    visit: Visit, article: str, width: int, scheme: Scheme
) -> None:
    page = ready(visit(article, width=width, height=800, scheme=scheme))
    page.locator(".qkv-view").first.evaluate(STILL)
    has_moved(page)
    check_layout(page)
