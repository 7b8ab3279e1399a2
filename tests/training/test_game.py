"""Tests of the sentences of the game *Beat the model*: the rule, and the included file."""

import csv
import json
from hashlib import sha256
from pathlib import Path

import pytest

import qkv
from qkv.models.files.find import shipped_models
from qkv.see.analysis._words import is_function_word
from training import game
from training.bias import is_insult
from training.books import LISTED, Book

KEPT = json.loads((shipped_models()["books"] / "game.json").read_text("utf-8"))
COMMON = {"we", "ate", "our", "beef", "in", "silence", "fish", "quickly", "a", "fool"}
IDS = {word: number for number, word in enumerate(sorted(COMMON))} | {"haste": 2000}


def test_the_sentences_are_from_a_book_that_no_included_model_has_read() -> None:
    with LISTED.open(encoding="utf-8", newline="") as file:
        [row] = [row for row in csv.DictReader(file) if row["title"] == KEPT["title"]]
    assert (row["author"], row["sha256"]) == (KEPT["author"], KEPT["sha256"])
    assert 0 < int(row["died"]) < 1955
    # The cards name this author's books as a group that was held out of training and choosing.
    [book] = [book for book in game.books.listed() if book.title == KEPT["title"]]
    assert book.part == "test"


def test_each_included_gap_is_one_common_content_word() -> None:
    model = qkv.load("books")
    assert 40 <= len(KEPT["sentences"]) <= 60
    words = [word for _, word in KEPT["sentences"]]
    assert len(set(words)) == len(words)
    for gapped, word in KEPT["sentences"]:
        assert gapped.count("_") == 1
        assert gapped.endswith(" _.")
        whole = model.tokenize(gapped.replace("_", word))
        assert 6 <= len(gapped.split()) <= 12
        assert whole.tokens[-3:-1] == [word, "."]
        assert whole.ids[-3] < 2000
        assert not any(token.startswith("##") for token in whole.tokens)
        assert not is_function_word(word)
        assert not any(map(is_insult, whole.tokens))


@pytest.mark.parametrize(
    ("sentence", "fits"),
    [
        ("We ate our beef in silence.", True),
        ("We ate our beef, in silence.", True),
        ("We ate our beef in haste.", False),  # not a common word
        ("We ate our beef in lentils.", False),  # not in the vocabulary
        ("We ate our veal in silence.", False),  # nor is veal
        ("We ate our beef in it.", False),  # the last word is a function word
        ("We ate in our silence.", False),  # five words
        ("Beef in silence we ate fish.", False),  # the first word is a content word
        ("And we ate beef in silence.", False),  # it refers to an earlier sentence
        ("We ate our beef in Silence.", False),  # a name
        ("We ate our beef in silence!", False),
        ('"We ate our beef in silence."', False),
        ("We ate our fish, beef fish.", False),  # the last word occurs twice
        ("We ate our beef, a fool fish.", False),  # an insult
        ("In our silence we ate a.", False),
        ("We in our, in our silence.", False),  # nothing hints at the last word
    ],
)
def test_a_sentence_must_follow_the_rule(sentence: str, fits: bool) -> None:
    assert game.fits(sentence, IDS) == fits


def test_lots_decide_and_each_missing_word_occurs_once() -> None:
    texts = ["We ate our beef in silence.", "We quickly ate beef in silence."]
    texts += ["In silence we quickly ate fish.", "We ate beef, in our fish."]
    lots = sorted(texts, key=lambda one: sha256(f"0 {one}".encode()).digest())
    firsts = {one.split()[-1]: one for one in reversed(lots)}
    expected = {(one[: one.rindex(" ")] + " _.", word[:-1]) for word, one in firsts.items()}
    for order in (texts, texts[::-1]):
        found = game.chosen([*order, "We left."], IDS)
        assert set(found) == expected
    assert found[0][0].split()[:-1] == lots[0].split()[:-1]


def test_the_file_names_the_book(tmp_path: Path) -> None:
    read = {
        Book("a", game.AUTHOR, game.TITLE, "f00", "test"): [
            ["We ate our beef in silence.", "Yes."]
        ],
        Book("b", game.AUTHOR, "Another", "bad", "train"): [["In our silence, we ate fish."]],
    }
    game.keep(tmp_path, game.game(read, IDS))
    assert json.loads((tmp_path / "game.json").read_text("utf-8")) == {
        "author": "Jerome K. Jerome",
        "title": "Three Men in a Boat",
        "sha256": "f00",
        "sentences": [["We ate our beef in _.", "silence"]],
    }
