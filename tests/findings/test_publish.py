"""Tests of pages with findings: which findings, in which order, with which model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.findings.measured import view_of
from see.views.test_play import data_of

from .conftest import GLASS


@pytest.fixture
def files(glass: qkv.Finding, model: qkv.Model, tmp_path: Path) -> Path:
    """Write two findings and an article that includes the second finding; return their folder."""
    other = qkv.finding(model, "A cat drinks [MASK].", ablate=[(3, 1)])
    glass.save(tmp_path / "glass.json")
    other.save(tmp_path / "cat.json")
    (tmp_path / "article.md").write_text("# On *drinks*\n\n![Head 3.1](cat.json)\n\nThe end.\n")
    return tmp_path


def claims(data: dict[str, Any]) -> list[str]:
    return [one["claim"] for one in data["findings"]]


def test_a_page_has_its_findings_and_one_model(glass: qkv.Finding, tmp_path: Path) -> None:
    second = replace(glass, claim="Once more.")
    qkv.publish(tmp_path / "a.html", [glass, replace(second, edits=[], after=glass.before)])
    text = (tmp_path / "a.html").read_text("utf-8")
    data, model = data_of(text)
    assert data["findings"][0] == glass.to_dict()
    assert claims(data) == ["A glass makes it wine.", "Once more."]
    assert data["parts"] == [0, 1]
    assert data["start"] == {
        **{"text": GLASS, "edits": [{"op": "hide", "token": 4}], "position": 6, "query": 6},
        **{"hide": [], "view": "findings"},
    }
    assert "<title>A glass makes it wine.</title>" in text
    assert (model["name"], text.count('data-side="encoder"')) == ("books", 1)
    assert len(text) < 9_000_000
    glass.to_html(tmp_path / "b.html")
    qkv.publish(tmp_path / "c.html", glass)
    assert (tmp_path / "b.html").read_bytes() == (tmp_path / "c.html").read_bytes()


def test_an_article_places_findings_and_the_others_follow(files: Path, glass: qkv.Finding) -> None:
    cat = qkv.Finding.load(files / "cat.json")
    for given in ([glass], [glass, cat], [cat, glass]):
        view = view_of(given, article=files / "article.md")
        data, _ = data_of(view._document())
        # the first claim is the article's, because cat.json has none
        assert claims(data) == ["Head 3.1", glass.claim]
        assert data["parts"] == ["prose-0", 0, "prose-1", 1]
        assert view.heading == "On drinks"
    html = view._document()
    assert '<div class="qkv-prose" slot="prose-0"><h2>On <em>drinks</em></h2>' in html
    assert '<div class="qkv-prose" slot="prose-1"><p>The end.</p>' in html
    assert len(view.panels()) == 2


def test_numbers_pictures_and_text_of_the_view(glass: qkv.Finding) -> None:
    view = view_of(glass)
    assert view.to_dict()["findings"] == [glass.to_dict()]
    assert [panel.values for panel in view.panels()[0]] == [
        [p for _, p in glass.before],
        [p for _, p in glass.after],
    ]
    assert glass.claim in str(view)
    assert view.svg().startswith("<svg")


def test_a_finding_that_does_not_hold_is_published_with_a_warning(
    glass: qkv.Finding, tmp_path: Path
) -> None:
    wrong = replace(glass, after=glass.before)
    said = "^'A glass makes it wine.' does not hold, which the page also reports"
    with pytest.warns(UserWarning, match=said):
        qkv.publish(tmp_path / "a.html", [wrong])
    assert data_of((tmp_path / "a.html").read_text("utf-8"))[0]["findings"] == [wrong.to_dict()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qkv.publish(tmp_path / "a.html", [glass])


def test_hostile_texts_stay_texts(glass: qkv.Finding) -> None:
    bad = "</script><img src=x onerror=alert(1)>\u2028\x1b[31m"
    html = view_of(replace(glass, claim=bad))._document()
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script")
    assert "\x1b" not in str(view_of(replace(glass, claim=bad)))


def test_publishing_with_an_unshipped_model(small: Path, tmp_path: Path) -> None:
    found = qkv.finding(qkv.load(small), "the cat sat on the [MASK].", ablate=[(0, 1)])
    qkv.publish(tmp_path / "a.html", [found])  # with the model that measured it
    sent = replace(found, _model=None)
    sent.to_html(tmp_path / "b.html", model=small)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    qkv.publish(tmp_path / "c.html", [sent, replace(found, claim="Once more.")])
    with pytest.raises(ValueError, match=r"^publish: the finding belongs to.*'small'"):
        sent.to_html(tmp_path / "d.html")


def test_publish_refuses_invalid_arguments(
    glass: qkv.Finding, small: Path, decoder: qkv.Model, tmp_path: Path
) -> None:
    path = tmp_path / "a.html"
    other = qkv.finding(decoder, "The king")

    def refused(said: str, *given: Any, **options: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=f"^publish: {said}") as raised:
            qkv.publish(path, *given, **options)
        assert "\n" not in str(raised.value)

    refused("no finding was given; pass at least one", [])
    refused("`findings` contains 7; pass findings from qkv.finding or", [glass, 7])
    refused("`findings` contains 'glass.json'; pass findings", "glass.json")
    refused("the findings belong to 2 models, books and books-decoder: publish one", [glass, other])
    refused("the parameters differ: the finding belongs to books, sha256 ", glass, model=small)
    refused(r"edits\[0\] \(hide\) has token 9", replace(glass, edits=[{"op": "hide", "token": 9}]))
    refused("position is 9, but the text has 9 tokens", replace(glass, position=9))
    refused("theme is 'blue': choose", glass, theme="blue")
    (tmp_path / "b.md").write_text("# Nothing")
    refused(r"no finding was given or placed in .*b\.md", article=tmp_path / "b.md")
    assert [one.name for one in tmp_path.iterdir()] == ["b.md"]
