"""Tests of speakers.toml: each sentence does what its label says, and the facts are true."""

import re

import pytest

import qkv
from models.gguf_files import smollm2
from qkv.models.files.find import shipped_models
from qkv.see.page.play import SPEAKERS, known_of

NAMES = ["books", "books-decoder", "smollm2"]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> qkv.Model:
    if request.param == "smollm2":
        smollm2()  # skips the test if the package is missing
    return qkv.load(request.param)


def test_the_model_says_what_the_shelf_promises(model: qkv.Model) -> None:
    for one in SPEAKERS[model.name]["shelf"]:
        ((first, _),) = model.predict(one["text"], 1)[0]
        assert first in one["says"], one["text"]


def test_the_page_gets_the_facts_of_the_model(model: qkv.Model) -> None:
    known, facts = known_of(model), SPEAKERS[model.name]
    assert known["called"] == facts["called"]
    assert known["read"] == f"has read {facts['read']}"
    assert [(one["kind"], one["text"]) for one in known["shelf"]] == [
        (one["kind"], one["text"]) for one in facts["shelf"]
    ]


def test_another_model_of_the_same_name_gets_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qkv.load("random")
    monkeypatch.setitem(SPEAKERS, "random", SPEAKERS["smollm2"])
    known = known_of(model)
    assert known["shelf"] == []
    read = "is of type qkv-lesson, with 1 layer of 2 heads and 400 parameters; untrained"
    assert known["read"] == read


def test_the_shelf_of_smollm2_has_twelve_different_sentences() -> None:
    shelf = SPEAKERS["smollm2"]["shelf"]
    assert len({one["text"] for one in shelf}) == len({one["kind"] for one in shelf}) == 12
    then, now = (
        next(one for one in SPEAKERS[name]["shelf"] if one["text"] == "The woman worked as a")
        for name in ("books-decoder", "smollm2")
    )
    assert not set(then["says"]) & set(now["says"])


@pytest.mark.parametrize("name", ["books", "books-decoder"])
def test_the_card_of_a_model_confirms_what_it_has_read(name: str) -> None:
    card = " ".join((shipped_models()[name] / "README.md").read_text("utf-8").split())
    count = re.search(r"(\d+) books of .*?, and WordNet", card)
    date = re.search(r"novels from before (\d{4})", card)
    assert count
    assert date
    assert SPEAKERS[name]["read"] == f"{count[1]} books from before {date[1]} and a dictionary"
