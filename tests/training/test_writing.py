"""The measures of a decoder, by hand on small texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.models.untrained import fresh_model
from training import writing
from training.decoder import Recipe, tokenizer_of
from training.definitions import Entry
from training.wordnet import CHOSEN, Synset, WordNet
from training.writing import (
    Written,
    copying,
    head_noun,
    held_out_loss,
    in_words,
    is_above,
    repeated,
    standing_in,
    written,
)

TEXTS = ["bank: sloping land. he sat on the bank", "ox: a bull", "land: solid ground"] * 4


def decoder() -> qkv.Model:
    """A small one, of random weights."""
    tokenizer = tokenizer_of(TEXTS, 300)
    recipe = Recipe(layers=2, heads=2, kv_heads=1, dim=16, hidden=24, length=80)
    return fresh_model(recipe.config(tokenizer), tokenizer, seed=1)


@pytest.mark.parametrize(
    ("text", "ends", "tokens", "passes"),
    [
        (" a slope beside water", True, (1, 2, 3, 4), True),
        (" a slope beside", True, (1, 2, 3, 4), False),  # three words
        (" a slope beside water", False, (1, 2, 3, 4), False),
        (" on and on and on and", True, (1, 2, 1, 2, 1, 2), False),  # 1 2 1 2 twice
        (" on and on and on", True, (1, 2, 1, 2, 1), True),
    ],
)
def test_what_passes(text: str, ends: bool, tokens: tuple[int, ...], passes: bool) -> None:
    assert Written("bank", text, ends, tokens).passes is passes


def test_runs_that_come_twice() -> None:
    assert not repeated([])
    assert not repeated([1, 2, 3])
    assert repeated([5, 1, 2, 3, 4, 6, 1, 2, 3, 4, 7])
    assert not repeated([5, 1, 2, 3, 4, 6, 1, 2, 3, 7])
    assert repeated([5, 1, 2, 3, 6, 1, 2, 3, 7], run=3)


def test_the_definition_stands_before_the_examples() -> None:
    assert Written("x", " sloping land. he sat there", True, ()).definition == "sloping land"
    assert Written("x", " sloping land", True, ()).definition == "sloping land"
    assert Written("x", " 2.5 of them. so.", True, ()).definition == "2.5 of them"


def test_texts_are_found_word_for_word_and_not_across_two() -> None:
    training = ["bank: sloping land (beside water)", "Ox: a bull"]
    texts = [" Sloping land", " land beside water.", " water ox", " loping land", " a bull"]
    assert standing_in(texts, training) == [True, True, False, False, True]
    assert in_words("they're 2.5, well-known") == " they're 2.5 well-known "


# thing > animal > dog, thing > land; "being" is a sense of animal
NET = WordNet(
    [Synset("n", (word,), "", ()) for word in ("thing", "animal", "dog", "land", "water")],
    {(word, "n"): (n,) for n, word in enumerate(("thing", "animal", "dog", "land", "water"))},
    {"n": {"oxen": ("ox",)}},
    frozenset(),
)
DIRECT: list[tuple[int, ...]] = [(), (0,), (1,), (0,), (0,)]


@pytest.mark.parametrize(
    ("definition", "senses"),
    [
        ("a domestic animal", (1,)),
        ("an animal of the land", (1,)),
        ("animals that live in water", (1,)),  # with its ending
        ("sloping land (especially beside water)", (3,)),
        ("(geology) dry land, not water", (3,)),
        ("dry land (the water)", (3,)),
        ("any of various animals of the land", (1,)),
        ("a kind of water in the land", (4,)),
        ("one of several animals", (1,)),
        ("animal trained quickly", (1,)),  # the last of these that is a noun
        ("go quickly", ()),
        ("", ()),
    ],
)
def test_the_head_noun(definition: str, senses: tuple[int, ...]) -> None:
    assert head_noun(definition, NET) == senses


def test_it_is_right_where_it_stands_above_the_word() -> None:
    assert is_above("an animal that barks", "dog", NET, DIRECT)
    assert is_above("a thing of the land", "dog", NET, DIRECT)
    assert not is_above("a dog that barks", "dog", NET, DIRECT)  # itself is not above it
    assert not is_above("water for an animal", "dog", NET, DIRECT)
    assert not is_above("an animal", "thing", NET, DIRECT)


def test_what_is_written_is_what_the_model_says() -> None:
    model = decoder()
    end = model.config["eos_token_id"]
    one, other = written(model, ["bank", "ox"])
    assert not one.ends
    assert (len(one.tokens), one.word, other.word) == (64, "bank", "ox")
    # a final norm that gives zeros: all logits are alike, and the first token, the end, is taken
    model.parameters["final_norm.weight"] = np.zeros(16, np.float32)
    assert end == 0
    for found in written(model, ["bank", "ox"]):
        assert (found.text, found.ends, found.tokens) == ("", True, ())


def test_the_loss_is_that_of_the_example_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    for name, array in model.parameters.items():
        model.parameters[name] = array * np.float32(4)
    tokenizer = model.tokenizer
    assert tokenizer is not None
    both = [
        Entry("bank", 0, "sloping land", ("he sat on the bank",)),
        Entry("ox", 0, "a bull", ("oxen pull",)),
    ]
    monkeypatch.setattr(writing, "entries", lambda _, twelfth: both[twelfth:])
    nats, tokens = 0.0, 0
    for one in both:
        before = tokenizer(one.text.removesuffix(f" {one.examples[0]}")).ids
        ids = np.append(tokenizer(one.text).ids, model.config["eos_token_id"])
        np.testing.assert_array_equal(ids[: len(before)], before)
        logits = np.asarray(model(ids[None]).logits, np.float64)[0]
        for place in range(len(before), len(ids)):
            row = logits[place - 1]
            nats -= row[ids[place]] - np.log(np.exp(row).sum())
            tokens += 1
    found = held_out_loss(model, NET)
    assert (found["examples"], found["tokens"], found["words"]) == (2, tokens, 7)
    assert found["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert found["word_loss"] == pytest.approx(nats / 7, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(nats / tokens), rel=1e-4)
    assert held_out_loss(model, NET, CHOSEN)["examples"] == 1


def test_copying_is_measured_in_the_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder()
    monkeypatch.setattr(writing, "_COPIED", 5)
    monkeypatch.setattr(writing, "_COPIES", 3)
    asked: list[Any] = []
    real = writing.head_scores
    monkeypatch.setattr(writing, "head_scores", lambda m, t, of: asked.append(t) or real(m, t, of))
    found = copying(model)
    texts = np.array(asked[0])
    assert texts.shape == (3, 10)
    np.testing.assert_array_equal(texts[:, :5], texts[:, 5:])
    assert all(len(set(text)) == 5 for text in texts)
    weights = np.stack(model.trace(texts).attentions)  # (layers, B, H, T, T)
    places = np.arange(5, 10)
    expected = weights[:, :, :, places, places - 4].mean(axis=(1, 3))
    np.testing.assert_allclose(found["heads"], expected, rtol=1e-5)
    logits = np.asarray(model(texts).logits, np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(logs[:, :-1], texts[:, 1:, None], -1)[..., 0]  # (B, T - 1)
    assert found["first"] == pytest.approx(losses[:, :4].mean(), rel=1e-5)
    assert found["second"] == pytest.approx(losses[:, 5:].mean(), rel=1e-5)


def test_the_counts_over_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    net = WordNet(
        [
            Synset("n", ("thing",), "what there is", ()),
            Synset("n", ("animal",), "a thing that lives", ()),
            Synset("n", ("dog",), "an animal that barks", ()),
            Synset("n", ("land",), "solid ground", ()),
        ],
        {(word, "n"): (n,) for n, word in enumerate(("thing", "animal", "dog", "land"))},
        {"n": {}},
        frozenset(),
    )
    said = [
        Written("dog", " an animal that barks", True, (1, 2, 3, 4)),
        Written("animal", " an animal that barks. thing", True, (1, 2, 3, 4, 1, 2, 3, 4)),
        Written("land", " the thing that lives", False, (5,)),
        Written("thing", " a thing", True, (6, 7)),
        Written("dog", " a thing ", True, (6, 7)),
    ]
    monkeypatch.setattr(writing, "written", lambda *_: said)
    monkeypatch.setattr(writing, "hypernyms", lambda _: [(), (0,), (1,), (0,)])
    found = writing.definitions(decoder(), net, [one.word for one in said])
    assert [row["passes"] for row in found.pop("texts")] == [True, False, False, False, False]
    assert found == {
        "words": 5,
        "pass": 1,
        "end": 4,
        "long_enough": 3,
        "repeat": 1,
        "differ": 4,  # the last two are alike
        "word_for_word": 3,  # the first and the last two
        "definition_word_for_word": 4,  # without its example the second too
        "own_definition": 1,
        "head_noun": 3,  # animal of dog, thing of land and of dog
        "head_noun_of_the_dictionary": 3,  # of dog twice and of animal
        "head_noun_of_others": 4,  # all but thing, which nothing stands above
    }


def test_all_of_it_can_be_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"definitions": {}, "model": "x"}
    monkeypatch.setattr(writing, "evaluate", lambda *_: found)
    monkeypatch.setattr(writing, "read", lambda *_, **__: NET)
    said: list[str] = []
    decoder().save(tmp_path)
    writing.main([str(tmp_path), "--json"], said.append)
    assert json.loads(said[0]) == found
