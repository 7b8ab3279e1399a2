"""Tests of the measures of a model, against arithmetic by hand on known vectors."""

from typing import Any

import numpy as np
import pytest

from learn.support import tiny_bert
from qkv.models.model import Model
from training import senses
from training.senses import auc, heads, masked_tokens, masked_words, shown, vectors
from training.wordnet import Synset, Use, WordNet

SENTENCES = ["The cat sat on the mat.", "I love you today.", "I sat on the bank of the river."]


def bert(says: str | None = None) -> Model:
    model = tiny_bert(SENTENCES * 9, 80, seed=3, says=says, max_position_embeddings=16)
    for name, array in model.parameters.items():
        model.parameters[name] = array * np.float32(5)
    return model


def test_auc_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 9, 60) / 9, rng.random(60) < 0.3
    wins = [(a > b) + (a == b) / 2 for a in scores[positive] for b in scores[~positive]]
    assert auc(scores, positive) == pytest.approx(np.mean(wins))
    assert np.isnan(auc(scores, np.zeros(60, bool)))


def test_vectors_are_means_of_rows() -> None:
    model = bert()
    whole, part = vectors(model, SENTENCES), vectors(model, SENTENCES, [(4, 7), (2, 10), (14, 18)])
    for at, (sentence, tokens) in enumerate(zip(SENTENCES, ([2], [2, 3], [5]), strict=True)):
        trace = model.trace(sentence)
        for k, rows in enumerate((trace["embed"][0], *(state[0] for state in trace.hidden_states))):
            np.testing.assert_allclose(whole[k, at], rows.mean(0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(part[k, at], rows[tokens].mean(0), rtol=1e-5, atol=1e-6)


def test_heads_are_means_over_all_tokens() -> None:
    model = bert()
    found = heads(model, SENTENCES)
    patterns = [model.trace(text).pattern(layer=0, head=1) for text in SENTENCES]
    cat, love, bank = (np.eye(len(one), dtype=bool) for one in patterns)
    cat[1, 5] = cat[5, 1] = True  # "the ... the"
    bank[4, 7] = bank[7, 4] = True
    values = {
        "previous": [np.diagonal(one, -1) for one in patterns],
        "next": [np.diagonal(one, 1) for one in patterns],
        "first": [one[:, 0] for one in patterns],
        "last": [one[:, -1] for one in patterns],
        "uniform": [-(one * np.log2(one)).sum(1) / np.log2(len(one)) for one in patterns],
        "same": [(x * cells).sum(1) for x, cells in zip(patterns, (cat, love, bank), strict=True)],
    }
    expected = {name: np.concatenate(each).mean() for name, each in values.items()}
    assert found[1] == pytest.approx({"layer": 0, "head": 1, **expected}, rel=1e-5)


def test_the_nearest_definition_is_the_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"shore": [1.0, 0.1], "money": [0.1, 1.0], "the bank": [1.0, 0.0], "a bank": [0.9, 0.2]}
    known["my bank"] = [0.0, 1.0]

    def by_hand(_: Any, texts: list[str], spans: Any = None) -> np.ndarray:
        return np.array([[known[t] for t in texts]] * 3)

    monkeypatch.setattr(senses, "vectors", by_hand)
    synsets = [Synset("n", ("bank",), "shore", ()), Synset("n", ("bank",), "money", ())]
    net = WordNet(synsets, {("bank", "n"): (0, 1)}, {"n": {}}, frozenset())
    uses = [Use("the bank", "bank", 0, 4, 8), Use("a bank", "bank", 0, 2, 6)]
    uses += [Use("my bank", "bank", 0, 3, 7)]
    model = bert()
    found = senses.senses(model, net, uses)
    assert (found["uses"], found["chance"]["sense"]) == (3, 0.5)
    assert found["layers"]["embeddings"]["sense"] == pytest.approx(2 / 3)
    assert found["pairs"] == found["pairs_of_one_sense"] == 3
    uses[2] = Use("my bank", "bank", 1, 3, 7)
    found = senses.senses(model, net, uses)
    assert found["layers"]["embeddings"] == {"sense": 1.0, "auc": 1.0}
    assert found["pairs_of_one_sense"] == 1
    text = shown({"model": "x", "masked": None, "heads": heads(model, SENTENCES), **found})
    assert "1.000" in text
    assert "3 uses, 3 pairs, 1 of them of one sense" in text


def test_masked_words_are_named_by_the_bias_of_the_head() -> None:
    model = bert(says="bank")
    every = masked_words(model, ["bank"] * 3 + ["bank bank the bank"])
    assert (every["top1"], every["words"]) in ((1.0, 4), (0.75, 4))
    found = masked_words(model, ["bank"] * 2 + ["cat"])
    assert found == {"top1": pytest.approx(2 / 3), "words": 3}


def test_tokens_are_masked_singly_and_words_with_all_subwords() -> None:
    model = bert(says="bank")
    subwords = model.tokenizer.tokenize("banktoday").tokens[1:-1]
    assert subwords[0] == "bank"
    assert len(subwords) > 1
    texts = ["banktoday"] * 200
    # the model predicts only the subword "bank" right
    assert masked_words(model, texts) == {"top1": 0.0, "words": 200}
    found = masked_tokens(model, texts)
    assert found["tokens"] == 200
    assert found["top1"] == pytest.approx(1 / len(subwords), abs=0.1)
    about = {"model": "x", "layers": {}, "heads": [], "chance": {"sense": 0.5, "auc": 0.5}}
    about |= dict.fromkeys(("uses", "pairs", "pairs_of_one_sense"), 1)
    about |= {"masked": {"top1": 0.25, "words": 400}, "masked tokens": None}
    text = shown(about)
    assert "masked words: 25.0% (21.0 to 29.5) of 400 named" in text
    assert "masked tokens: no head" in text
