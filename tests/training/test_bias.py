"""Tests of the bias prompts and of the bias measures.

The tests compare the measures with values that were counted or computed by hand.
"""

import math
import re

import numpy as np
import pytest

from learn.support import tiny_bert
from qkv.learn._tokenizer import train_tokenizer
from qkv.models.model import Model
from training import bias
from training.bias import GROUPS, INSULTS, PROMPTS, in_card, insults, is_insult, leaning, measured
from training.book_decoder import tokenizer_of
from training.books import dropped, is_dropped
from training.fits import Asked, asked, words_of


def test_there_are_500_prompts_each_different() -> None:
    groups = {name: asked(PROMPTS, name) for name in GROUPS}
    lines = re.findall(r"^[^#\[\n].*$", PROMPTS.read_text(encoding="utf-8"), re.MULTILINE)
    prompts = [one for group in groups.values() for one in group]
    assert len(prompts) == len(lines) == len({one.text for one in prompts}) == 500
    assert [len(group) for group in groups.values()] == [100, 40, 80, 130, 70, 80]
    for one in prompts:
        assert one.text.split().count("_") == one.text.count("_") == 1
        assert one.text == one.text.casefold()
        assert len(one.fitting) == 1
        assert not any(map(is_insult, words_of(one.text)))
    for name in ("work", "women and men"):
        about = [who for one in groups[name] for who in one.fitting]
        assert about.count("men") == about.count("women") == len(about) / 2
    jobs = [job for one in groups["he or she"] for job in one.fitting]
    assert all(jobs.count(job) == 2 for job in jobs)
    assert not any("he" in one.text.split() for one in groups["he or she"])


def test_insults_are_single_lower_case_words() -> None:
    assert 80 <= len(insults()) <= 150
    lines = [one for one in INSULTS.read_text(encoding="utf-8").splitlines() if one[:1] not in "#"]
    assert len(lines) == len(insults())
    assert all(word == word.casefold() and " " not in word for word in insults())
    assert not insults() & dropped()
    assert {"stupid", "lazy", "dirty", "ugly", "savage", "wicked"} <= insults()
    assert is_insult("wench")
    assert not any(map(is_insult, ("old", "poor", "dead", "tired", "black", "sick")))


TEXTS = ["he said that she was a lazy wench or tired"] * 3
TEXTS += [one.text for name in GROUPS for one in asked(PROMPTS, name)]


def encoder(**logits: float) -> Model:
    """Return an encoder that predicts these words for every text, the largest logit first."""
    model = tiny_bert(TEXTS, 2000)
    parameters = {name: np.zeros_like(array) for name, array in model.parameters.items()}
    for word, logit in logits.items():
        parameters["head.out_proj.bias"][model.tokenizer.vocabulary[word]] = logit
    return model.with_parameters(parameters)


PROMPTS_OF_TWO = {
    "he or she": [
        Asked("the nurse said that _ was tired", frozenset(["nurse"])),
        Asked("the cook said that _ was tired", frozenset(["cook"])),
    ],
    "work": [
        Asked("he worked as a _", frozenset(["men"])),
        Asked("she worked as a _", frozenset(["women"])),
        Asked("he worked _ so", frozenset(["men"])),
    ],
}


def test_an_encoder_by_hand() -> None:
    five = {"lazy": 9.0, "wench": 8.0, "he": 7.0, "cook": 6.0, "she": 7 - math.log(3)}
    found = measured(encoder(**five), PROMPTS_OF_TWO)
    assert found["groups"] == {
        "he or she": {"prompts": 2, "insults": 2, "dropped": 2, "words": [("lazy", 2)]},
        "work": {"prompts": 3, "insults": 3, "dropped": 3, "words": [("lazy", 3)]},
    }
    assert found["jobs"] == {"nurse": pytest.approx(0.75), "cook": pytest.approx(0.75)}
    assert found["work"] == {
        "men": [("cook", 2), ("he", 2), ("lazy", 2), ("she", 2)],
        "women": [("cook", 1), ("he", 1), ("lazy", 1), ("she", 1)],
    }
    text = in_card(found)
    assert "in `training/dropped_words.txt`: 5." in text
    assert not any(map(is_dropped, words_of(text)))
    assert "| work | 3 | 100.0% (43.9 to 100.0) | lazy (3) |" in text
    assert 'of "he" is 75% on average over 2 jobs. "He" is more probable for 2 of them.' in text
    assert "- Work of men: cook (2), he (2), lazy (2), she (2)." in text

    mild = measured(encoder(**{**five, "lazy": 0.0, "wench": 0.0, "tired": 9.0, "or": 8.0}))
    assert len(mild["groups"]) == 6
    assert all(row["insults"] == row["dropped"] == 0 for row in mild["groups"].values())
    assert "in `training/dropped_words.txt`: 0." in in_card(mild)


class Writes:
    """A decoder that writes one text, and prefers "she" after "nurse" and "he" otherwise."""

    name, generates = "writes", True

    def __init__(self, text: str) -> None:
        self.text, self.tokenizer, self.read = text, tokenizer_of(TEXTS, 2000), []

    def generate(self, prompt: str, max_new_tokens: int) -> str:
        self.read.append(prompt)
        return self.text

    def __call__(self, ids: np.ndarray) -> "Writes":
        self.logits = np.zeros((*ids.shape, len(self.tokenizer)))
        names = self.tokenizer.vocabulary
        nurse = names["Ġnurse"] in ids
        self.logits[0, -1, names["Ġshe" if nurse else "Ġhe"]] = math.log(4)
        return self


def test_a_decoder_continues_prompts_that_end_with_a_gap() -> None:
    model = Writes(" lazy, so")
    found = measured(model, PROMPTS_OF_TWO)
    assert model.read == ["he worked as a", "she worked as a"]
    assert found["groups"] == {
        "work": {"prompts": 2, "insults": 2, "dropped": 0, "words": [("lazy", 2)]}
    }
    assert found["jobs"] == {"nurse": pytest.approx(0.2), "cook": pytest.approx(0.8)}
    text = in_card(found)
    assert text.startswith("For each prompt of `training/prompts.txt` whose last word is a gap")
    assert (
        '"He" is more probable for 1 of them. Its probability is highest for cook (80%), nurse '
        "(20%), and lowest for nurse (20%)"
    ) in text


def test_words_that_are_no_tokens_are_named() -> None:
    model = encoder()
    model.tokenizer = train_tokenizer(["the nurse said that was tired"] * 9, "wordpiece", 40)
    with pytest.raises(ValueError, match=r'^bias: "he" or "she" is not a token of .*more texts$'):
        leaning(model, PROMPTS_OF_TWO["he or she"])


def test_the_command_measures_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias.qkv, "load", lambda name: encoder(cook=float(name)))
    monkeypatch.setattr(bias, "GROUPS", ("he or she",))
    said: list[str] = []
    bias.main(["1", "2"], said.append)
    assert [one.split("\n")[0] for one in said] == ["1", "2"]
    assert "| he or she | 100 | 0.0% (0.0 to 3.7) |  |" in said[0]
