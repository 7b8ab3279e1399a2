"""Tests of the measure of copying, on a model that predicts the same word for every text."""

import json

import numpy as np
import pytest

from learn.support import tiny_bert
from qkv.learn._tokenizer import train_tokenizer
from qkv.models.model import Model
from training import copying
from training.copying import Example, drawn, examples_of, main, place_of
from training.guesses import named

SENTENCES = [
    "The baker put bread into ovens.",
    "Bread of the baker tastes like ovens.",
    "He put the bread on the Baker's table.",
    "bread and bread and bread again",  # "bread", the only content word, occurs three times
    "the bread is on it",  # "bread" is the only content word
    "too short",
]


def says(word: str) -> Model:
    return tiny_bert(SENTENCES * 9, 120, seed=3, says=word)


def test_examples_are_content_words_that_occur_once() -> None:
    words = [[one.word for one in examples_of(sentence)] for sentence in SENTENCES]
    assert words == [
        ["baker", "put", "bread", "ovens"],
        ["bread", "baker", "tastes", "like", "ovens"],
        ["put", "bread", "table"],  # "Baker's" gives no example, but "baker" counts as visible
        [],
        ["bread"],
        [],
    ]
    put, _, table = examples_of(SENTENCES[2])
    assert (put.sentence[put.start : put.end], put.others) == ("put", {"bread", "baker", "table"})
    assert table.others == {"put", "bread", "baker"}
    long = "bread " + "on " * 16
    assert not examples_of(long)
    assert examples_of(long[:-4])


def test_words_are_whole_in_every_vocabulary() -> None:
    every = train_tokenizer(SENTENCES * 9, "wordpiece", 120)
    few = train_tokenizer(["bread table"] * 9, "wordpiece", 60)
    usable = {one.word for one in examples_of(SENTENCES[2]) if place_of(one, few) is not None}
    assert usable == {"bread", "table"}
    found = drawn(SENTENCES, [every, few], count=800, seed=1)
    assert {one.word for one in found} <= {"bread", "table"}
    assert sorted(one.sentence for one in found) == sorted([*SENTENCES[:3], SENTENCES[4]])
    assert found == drawn(SENTENCES, [few, every], count=800, seed=1)
    assert len(drawn(SENTENCES, [every], count=2)) == 2
    several = {tuple(one.word for one in drawn(SENTENCES, [every], seed=k)) for k in range(9)}
    assert len(several) > 1
    cut = Example("put breadtable on it", 4, 14, frozenset())
    # the first subword of "breadtable" begins where the word begins
    assert few.tokenize(cut.sentence).offsets[2][0] == 4
    assert place_of(cut, few) is None
    unknown = Example("put \N{SNOWMAN} on the table", 4, 5, frozenset())
    assert place_of(unknown, every) is None


def test_the_first_guess_by_hand() -> None:
    examples = [one for sentence in SENTENCES[:3] for one in examples_of(sentence)]
    model = says("bread")
    found = copying.copying(model, examples)
    assert found["guesses"] == ["bread"] * 12
    assert (found["right"], found["another"], found["examples"]) == (3, 9, 12)
    assert copying.copying(says("baker"), examples)["another"] == 10  # "Baker's" counts too
    assert copying.copying(says("of"), examples)["another"] == 0  # a function word
    odd = Example("put xyzzy on the table", 4, 9, frozenset())
    with pytest.raises(ValueError, match=r"not a single token of .* in 1 of 1 examples: draw"):
        copying.copying(model, [odd])


def test_guesses_come_in_the_order_of_the_texts_and_padding_changes_nothing() -> None:
    model = says("the")
    model.parameters["head.out_proj.bias"] = np.zeros(len(model.tokenizer), np.float32)
    for name, array in model.parameters.items():
        model.parameters[name] = array * np.float32(5)
    texts = [model.tokenizer.tokenize(sentence).ids for sentence in SENTENCES]
    positions = [[1, 2], [3], [], [4], [2, 3], [1]]
    together = named(model, texts, positions)
    for ids, at, found in zip(texts, positions, together, strict=True):
        alone = ids.copy()
        alone[at] = model.tokenizer.vocabulary["[MASK]"]
        logits = model(alone[None]).logits
        assert found.tolist() == logits[0, at].argmax(-1).tolist()


def test_the_command_measures_models_on_the_same_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"one": says("bread"), "two": says("of")}
    monkeypatch.setattr(copying.qkv, "load", models.get)
    monkeypatch.setattr(copying, "read", lambda _: None)
    asked: list[int] = []
    monkeypatch.setattr(
        copying, "held_out_sentences", lambda _, twelfth: asked.append(twelfth) or SENTENCES[:3]
    )
    said: list[str] = []
    main(["one", "two"], said.append)
    main(["one", "two", "--json", "--choose"], said.append)
    assert asked == [0, 1]
    assert "3 examples, the same for all models" in said[0]
    rows = json.loads(said[1])
    assert [row["examples"] for row in rows] == [3, 3]
    assert rows[0]["another"] + rows[0]["right"] == 3
    assert rows[1]["another"] == rows[1]["right"] == 0
    assert rows[1]["right, from, to"] == [0, pytest.approx(0.5615, abs=1e-3)]
