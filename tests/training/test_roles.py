"""Roles of heads: relations found by hand, and the rule on numbers that are known."""

import json
from typing import Any

import numpy as np
import pytest

from qkv.learn.tokenizer import train_tokenizer
from qkv.models.model import Model
from qkv.models.untrained import fresh_model
from training import roles
from training.roles import (
    Measured,
    compared,
    counted,
    cut,
    main,
    noun_after,
    others_at,
    pairs_of,
    shown,
    weights_between,
)
from training.wordnet import Synset, Use, WordNet

SENTENCES = ["He crossed the wide river in the rain", "She read a book of his quickly, the end"]
NOUNS = ("river", "rain", "book", "end", "home", "dog", "way")
INDEX = {(word, "n"): (0,) for word in NOUNS} | {("home", "r"): (0,), ("quickly", "r"): (0,)}
INDEX |= {("cross", "v"): (0,), ("be", "v"): (0,)}
NET = WordNet(
    [Synset("v", ("cross",), "go over", ()), Synset("n", ("river",), "water", ())],
    INDEX,
    {part: {} for part in "nvar"},
    frozenset(),
)


def bert() -> Model:
    tokenizer = train_tokenizer(SENTENCES * 9, "wordpiece", 120)
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 8}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": len(tokenizer)}
    config |= {"intermediate_size": 16, "max_position_embeddings": 32}
    model = fresh_model(config, tokenizer, seed=3)
    for name, array in model.parameters.items():
        model.parameters[name] = array * np.float32(5)
    return model


@pytest.mark.parametrize(
    ("text", "noun"),
    [
        ("the river", "river"),
        ("the wide river in", "river"),
        ("a wide old river.", "river"),
        ("the very river", None),  # a function word ends it before there is any
        ("his dogs", "dogs"),
        ("the wide old cold river", None),  # three words between
        ("the way home", None),  # an adverb too
        ("the red", None),
        ("river", None),
        ("the", None),
        ("the, river", None),
    ],
)
def test_the_noun_of_an_article(text: str, noun: str | None) -> None:
    words = cut(text)
    found = noun_after(words, 0, NET)
    assert (None if found is None else words[found][0]) == noun
    assert noun_after(words, len(words), NET) is None


def test_pairs_by_hand() -> None:
    uses = [
        Use(SENTENCES[0], "cross", 0, 3, 10),
        Use(SENTENCES[0], "cross", 0, 3, 10),  # of another synset perhaps, and the same pair
        Use(SENTENCES[0], "river", 1, 20, 25),  # no verb
        Use(SENTENCES[1], "read", 0, 4, 8),
        Use(SENTENCES[1], "read up", 0, 4, 8),
    ]
    found = pairs_of(SENTENCES, uses, NET)
    words = {
        name: [(text[slice(*a)], text[slice(*b)]) for text, a, b in pairs]
        for name, pairs in found.items()
    }
    assert words["verb to object"] == [("crossed", "river"), ("read", "book")]
    assert words["object to verb"] == [("river", "crossed"), ("book", "read")]
    assert words["preposition to noun"] == [("in", "rain")]
    assert words["noun to preposition"] == [("rain", "in")]
    assert words["article to noun"] == [("the", "river")]
    assert words["noun to article"] == [("river", "the")]
    assert words["preposition to subject"] == [("in", "He"), ("of", "She")]
    assert words["subject to preposition"] == [("He", "in"), ("She", "of")]
    assert words["preposition to verb"] == [("in", "crossed")]
    assert words["article to auxiliary"] == []  # the comma stands between, or nothing follows


def test_pairs_of_what_is_nearest() -> None:
    found = pairs_of(["He was walking, and the old dog was fed by them in bed"], [], NET)
    words = {
        name: [(text[slice(*a)], text[slice(*b)]) for text, a, b in pairs]
        for name, pairs in found.items()
    }
    assert words["preposition to subject"] == []  # he stands before the comma
    assert words["preposition to verb"] == []  # no base that the index has as a verb
    assert words["article to auxiliary"] == [("the", "was")]
    assert words["auxiliary to article"] == [("was", "the")]


def test_others_stand_at_the_same_places_and_are_no_such_pair() -> None:
    sentences = ["the river, then the dog", "a book ends here now", "the dog ran", "one two three"]
    river = ("the river, then the dog", (0, 3), (4, 9))
    dog = ("the river, then the dog", (16, 19), (20, 23))  # words 3 and 4
    known = ("the dog ran", (0, 3), (4, 7))
    found = [others_at([river, dog, known], sentences, seed)[:2] for seed in range(20)]
    assert {one for one, _ in found} == {
        ("a book ends here now", (0, 1), (2, 6)),
        ("one two three", (0, 3), (4, 7)),
    }
    assert {one for _, one in found} == {("a book ends here now", (12, 16), (17, 20))}
    assert others_at([river], sentences[:1]) == [None]


def test_weights_between_words_are_summed_over_keys_and_are_means_over_queries() -> None:
    model = bert()
    assert model.tokenizer is not None
    texts = ["he crossed the riverbook", "rivers of the end"]
    tokens = [model.tokenizer.tokenize(text) for text in texts]
    pairs = [
        (texts[0], (3, 10), (15, 24)),
        (texts[0], (15, 24), (0, 2)),
        (texts[1], (0, 6), (14, 17)),
    ]
    found = weights_between(model, pairs)
    assert found.shape == (3, 2, 2)
    for number, (text, a, b) in enumerate(pairs):
        about = tokens[texts.index(text)]
        trace = model.trace(text)
        rows, columns = (
            [k for k, (c, d) in enumerate(about.offsets) if c < span[1] and d > span[0]]
            for span in (a, b)
        )
        for layer in range(2):
            for head in range(2):
                weights = trace.pattern(layer=layer, head=head)
                expected = np.mean([sum(weights[q, k] for k in columns) for q in rows])
                assert found[number, layer, head] == pytest.approx(expected, rel=1e-5)
    assert len([1 for c, d in tokens[0].offsets if c < 24 and d > 15]) > 1  # it is in pieces


def test_what_weights_come_to() -> None:
    pairs = np.array([[[0.9, 0.5]], [[0.5, 0.5]], [[0.7, 0.5]], [[0.7, 0.5]]])
    others = np.array([[[0.1, 0.4]], [[0.3, 0.6]], [[0.2, 0.4]], [[0.2, 0.6]]])
    found = compared(pairs, others)
    assert found.mean.tolist() == [[pytest.approx(0.7), 0.5]]
    assert found.other.tolist() == [[pytest.approx(0.2), 0.5]]
    deviation = np.std([0.8, 0.2, 0.5, 0.5], ddof=1)
    assert found.low[0, 0] == pytest.approx(0.5 - 1.96 * deviation / 2)
    assert found.holds().tolist() == [[True, False]]
    assert not compared(pairs[:1], others[:1]).holds().any()


def measured(mean: list[float], low: list[float]) -> Measured:
    values = [np.array([one]) for one in (mean, [0.1] * len(mean), low)]
    return Measured(*values, 50)


def test_a_relation_has_to_hold_on_both_and_ends_count_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {
        0: measured([0.5, 0.6, 0.39, 0.7], [0.2, 0.3, 0.2, 0.09]),
        1: measured([0.5, 0.3, 0.80, 0.7], [0.2, 0.3, 0.7, 0.50]),
    }
    monkeypatch.setattr(roles, "relations", lambda _, __, twelfth: {"verb to object": of[twelfth]})
    monkeypatch.setattr(roles, "held_out_sentences", lambda *_: [])
    plain = dict.fromkeys(("previous", "next", "same", "first", "last"), 0.1)

    def heads(*_: Any) -> list[dict[str, Any]]:
        return [{"layer": 0, "head": k} | plain | {"last": 0.4 * (k == 3)} for k in range(4)]

    monkeypatch.setattr(roles, "heads", heads)
    # what looks at model and texts is replaced
    rows, found = roles.roles(None, None)  # type: ignore[arg-type]
    assert [row["roles"] for row in rows] == [{"verb to object": 0.5}, {}, {}, {"last": 0.4}]
    assert counted(rows) == 2
    assert "heads with a role: 2 of 4" in shown(rows, found)
    rows, _ = roles.roles(None, None, 1)  # type: ignore[arg-type]
    assert [list(row["roles"]) for row in rows] == [
        ["verb to object"],
        [],
        ["verb to object"],
        ["last", "verb to object"],
    ]


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    monkeypatch.setattr(roles.qkv, "load", lambda _: model)
    monkeypatch.setattr(roles, "read", lambda _: NET)
    monkeypatch.setattr(roles, "held_out_sentences", lambda *_: SENTENCES)
    monkeypatch.setattr(WordNet, "uses", lambda *_: iter(()))
    said: list[str] = []
    main([], said.append)
    main(["--json", "--choose"], said.append)
    assert "of 4" in said[0]
    found = json.loads(said[1])
    assert found["counted"] == counted(found["heads"])
