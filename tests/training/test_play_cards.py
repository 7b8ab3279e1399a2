"""Tests of the shipped model's cards against the float64 formula, and of the search for cards."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from browser.lesson import KEPT, by_the_formula, run_of
from training.frames import candidates
from training.lesson import Sentence, found, pool
from training.lesson_text import NAMES, write
from training.play_cards import lesson, main, right, values

CARDS = KEPT["cards"]
CARD = {card["name"]: card for card in CARDS}
# the right option must exceed every other option by at least this much
MEASURED = {"weight": 0.02, "probability": 0.0005, "moved": 0.05}


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return qkv.load("books")


def first(card: dict[str, Any], edits: list[Any]) -> str:
    result = run_of(card["before"]["text"], json.dumps(edits))
    best = int(result.logits[card["before"]["position"]].argmax())
    return str(qkv.load("books").tokenizer.token(best))


def test_there_are_twelve_cards_in_lesson_order() -> None:
    assert list(CARD) == NAMES
    assert len(CARDS) == 12
    assert KEPT["searched"] == len(candidates())
    assert KEPT["pool"] > 30


@pytest.mark.parametrize("card", CARDS, ids=list(CARD))
def test_a_card_is_short_and_its_answer_is_clear(card: dict[str, Any], model: qkv.Model) -> None:
    assert len(f"{card['read']} {card['ask']}".split()) <= 45
    assert len(card["told"].split()) <= 45
    assert 2 <= len(card["options"]) <= 6
    assert len(set(card["options"])) == len(card["options"])
    measured, rule = by_the_formula(card), card["right"]
    mine = values(Sentence.of(model, card["before"]["text"]), card)
    np.testing.assert_allclose(mine, measured, atol=1e-5)
    own = right(card, measured)
    if rule["of"] == "largest":
        assert len(rule["among"]) == len(card["options"])
        options = [measured[probe] for probe in rule["among"]]
        least = MEASURED[card["probes"][rule["among"][0]]["of"]]
        assert all(options[own] >= x + least for k, x in enumerate(options) if k != own)
    else:
        assert len(card["options"]) == 3
        by = abs(measured[rule["to"]] - measured[rule["from"]])
        assert by < 0.09 if own == 1 else by > 0.15
    for mark in re.findall(r"\{(\d+)\}", card["read"] + card["told"]):
        assert int(mark) < len(measured)
    assert not re.search(r"\d\.\d\d|\d%", card["read"] + card["told"])  # placeholders pass numbers


@pytest.mark.parametrize("card", CARDS, ids=list(CARD))
def test_page_states_of_a_card_fit_its_measurement(card: dict[str, Any], model: qkv.Model) -> None:
    text = model.tokenize(card["before"]["text"])
    assert text.tokens[card["before"]["position"]] == "[MASK]"
    for state in (card["before"], card["after"]):
        assert state["text"] == card["before"]["text"]
        assert (state["layer"], state["head"]) < (model.num_layers, model.num_heads)
        assert state["query"] < len(text)
    assert card["before"]["edits"] == []
    rule = card["right"]
    probes = [card["probes"][k] for k in rule.get("among", [rule.get("to")])]
    if rule["of"] == "largest" and probes[0]["of"] == "moved":
        probes = [probes[right(card, by_the_formula(card))]]
    assert all(probe["edits"] == card["after"]["edits"] for probe in probes)
    if probes[0]["of"] == "weight":
        for name in ("layer", "head", "query"):
            assert all(probe[name] == card["after"][name] for probe in probes)


@pytest.mark.parametrize("name", ["mask", "hide", "remove"])
def test_the_new_first_guess_is_the_right_option(name: str) -> None:
    card = CARD[name]
    before, now = first(card, []), first(card, card["after"]["edits"])
    assert now != before
    assert card["options"][right(card, by_the_formula(card))] == f"*{now}*"
    assert f"*{before}*" in card["options"]
    assert f"*{before}* falls" in card["told"]
    *_, was = card["probes"]
    assert was == {"of": "probability", "edits": [], "word": before}


def test_weights_that_are_equal_have_unequal_effects() -> None:
    card = CARD["equal"]
    one, other, *moved = by_the_formula(card)
    assert abs(one - other) <= 0.01
    assert min(one, other) >= 0.4
    assert max(moved) - min(moved) >= 0.1
    heads = [f"{x['layer']}.{x['head']}" for x in card["probes"][:2]]
    assert card["options"] == [f"Head {head}" for head in heads]
    for head, probe in zip(heads, card["probes"][2:], strict=True):
        says_who_is_first(card, f"ithout head {head}, ", probe["edits"])


def test_a_larger_weight_has_a_smaller_effect() -> None:
    card = CARD["worth"]
    one, other, *moved = by_the_formula(card)
    assert (one > other) is (moved[0] < moved[1])
    assert max(one, other) >= 1.2 * min(one, other)
    assert max(moved) >= 1.3 * min(moved)
    for word, probe in zip(card["options"], card["probes"][2:], strict=True):
        says_who_is_first(card, f"ithout {word}, ", probe["edits"])


def says_who_is_first(card: dict[str, Any], cause: str, edits: list[Any]) -> None:
    now = first(card, edits)
    verb = "stays" if now == first(card, []) else "comes"
    assert f"{cause}*{now}* {verb} first" in card["told"]


def test_the_search_finds_the_cards_again(model: qkv.Model) -> None:
    texts = {card["before"]["text"] for card in CARDS}
    put = CARD["swap"]["after"]["edits"][0]["with"]
    given = [one for one in candidates() if one.sentence in texts or put in one.cue]
    assert len(given) < 60
    assert json.loads(json.dumps(write(found(pool(model, given))))) == CARDS


def test_a_model_without_matching_sentences_has_no_cards(tmp_path: Path) -> None:
    assert lesson(qkv.load("random"))["cards"] == []
    assert found([]) is None
    with pytest.raises(ValueError, match="play_cards: books is not a folder; pass the folder of"):
        main(["books", "--keep"])
