"""Tests of the roles of heads: weights between words, and the rule on known numbers."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from learn.support import tiny_bert
from qkv.models.model import Model
from training import roles
from training.roles import (
    Measured,
    compared,
    counted,
    in_card,
    main,
    relations,
    shown,
    weights_between,
)
from training.wordnet import WordNet, read

SENTENCES = ["He crossed the wide river in the rain", "She read a book of his quickly, the end"]


def bert() -> Model:
    model = tiny_bert(SENTENCES * 9, 120, seed=3, num_hidden_layers=2)
    for name, array in model.parameters.items():
        model.parameters[name] = array * np.float32(5)
    return model


def test_word_weights_are_sums_over_keys_and_means_over_queries() -> None:
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
    # "riverbook" has several subwords
    assert len([1 for c, d in tokens[0].offsets if c < 24 and d > 15]) > 1


def test_relations_are_measured_with_and_without_masked_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bert()
    texts = ["the wide ox", "the old oxen", "one two three"]
    monkeypatch.setattr(roles, "held_out_sentences", lambda *_: texts)
    monkeypatch.setattr(WordNet, "uses", lambda *_: iter(()))
    found = relations(model, read(folder), 1)
    assert [name for name, one in found.items() if one.pairs] == [
        "article to noun",
        "noun to article",
        "hidden article to noun",
        "hidden noun to article",
    ]
    for name, looks, at, words in (
        ("article to noun", 0, 2, texts),
        ("hidden article to noun", 0, 2, ["[MASK] wide ox", "[MASK] old oxen", "[MASK] two three"]),
        ("hidden noun to article", 2, 0, ["the wide [MASK]", "the old [MASK]", "one two [MASK]"]),
    ):
        weights = []
        for text in words:
            trace = model.trace(text)
            spans = [match.span() for match in re.finditer(r"\S+", text)]
            rows, columns = (
                [k for k, (c, d) in enumerate(trace.offsets) if c < spans[j][1] and d > spans[j][0]]
                for j in (looks, at)
            )
            weights.append(
                [layer[0][:, rows][:, :, columns].sum(-1).mean(-1) for layer in trace.attentions]
            )
        np.testing.assert_allclose(found[name].mean, np.mean(weights[:2], axis=0), rtol=1e-5)
        np.testing.assert_allclose(found[name].other, weights[2], rtol=1e-5)


def test_no_word_is_masked_for_models_without_a_mask_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = bert()
    monkeypatch.setattr(roles, "held_out_sentences", lambda *_: SENTENCES)
    monkeypatch.setattr(WordNet, "uses", lambda *_: iter(()))
    monkeypatch.setattr(type(model.tokenizer), "mask", None)
    assert not any(name.startswith("hidden") for name in relations(model, read(folder), 1))


def test_compared_gives_means_and_an_interval() -> None:
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


def test_a_relation_must_hold_on_both_splits_to_be_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
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
    # the patched functions need neither a model nor texts
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


def test_what_a_card_says() -> None:
    own: list[dict[str, float]] = [
        {"hidden noun to article": 0.5, "hidden verb to object": 0.6},
        {"first": 0.45},
        {"next": 0.7, "hidden verb to object": 0.5},
        {},
    ]
    text = in_card([{"layer": 1, "head": k, "roles": one} for k, one in enumerate(own)])
    assert "3 of 4 heads have a role" in text
    assert "1 of the heads have only roles of this kind" in text.replace("\n", " ")
    assert text.splitlines()[-3:] == [
        "| 1.0 | hidden verb to object 0.60, hidden noun to article 0.50 |",
        "| 1.1 | first 0.45 |",
        "| 1.2 | next 0.70, hidden verb to object 0.50 |",
    ]


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert()
    monkeypatch.setattr(roles.qkv, "load", lambda _: model)
    monkeypatch.setattr(roles, "read", lambda _: read(folder))
    monkeypatch.setattr(roles, "held_out_sentences", lambda *_: SENTENCES)
    monkeypatch.setattr(WordNet, "uses", lambda *_: iter(()))
    said: list[str] = []
    main([], said.append)
    main(["--json", "--choose"], said.append)
    assert "of 4" in said[0]
    found = json.loads(said[1])
    assert found["counted"] == counted(found["heads"])


def test_a_head_that_attends_to_all_visible_tokens_equally() -> None:
    """Each row of a causal head has 1, 2 and 3 visible tokens; the first and last are equal."""
    tokens = SimpleNamespace(ids=[5, 6, 5])
    decoder: Any = SimpleNamespace(generates=True, tokenize=lambda _: tokens)
    found = roles.by_chance(decoder, ["a b a"])
    expected = {
        "previous": (1 / 2 + 1 / 3) / 2,
        "next": 0,
        "same": (1 + 1 / 2 + 2 / 3) / 3,
        "first": (1 + 1 / 2 + 1 / 3) / 3,
        "last": 1 / 9,
    }
    assert found == pytest.approx(expected)
    encoder: Any = SimpleNamespace(generates=False, tokenize=decoder.tokenize)
    found = roles.by_chance(encoder, ["a b a"])
    assert found == pytest.approx(dict.fromkeys(expected, 1 / 3) | {"same": 5 / 9})


def test_induction_is_the_weight_on_the_token_after_the_same_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = np.zeros((3, 1, 6, 6))
    weights[:, 0, 3, 1] = [0.7, 0.5, 0.3]  # token 3 repeats token 0, which token 1 follows
    weights[:, 0, 3, 2] = [0.1, 0.1, 0.3]
    ids = [[7, 8, 9, 7, 8, 9], [7, 8, 9, 7, 8, 9], [7, 8, 9, 4, 8, 9]]  # the third is no copy
    trace = SimpleNamespace(ids=ids, attentions=[weights])
    monkeypatch.setattr(roles, "traces", lambda *_: [([0, 1, 2], trace)])
    model: Any = SimpleNamespace(num_layers=1, num_heads=1)
    found = roles.induction(model, ["a", "b", "c"])
    assert found.pairs == 2
    assert found.mean == pytest.approx(np.array([[0.6]]))
    assert found.other == pytest.approx(np.array([[0.1]]))
    monkeypatch.setattr(roles, "traces", lambda *_: [])
    assert roles.induction(model, []).pairs == 0
