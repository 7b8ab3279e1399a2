"""Tests of measures of prose, such as the surprise of words and the number of looping texts.

The tests compare the surprise with values that were computed by hand or token by token.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qkv.learn._tokenizer import train_tokenizer
from qkv.models.model import Model
from qkv.models.untrained import fresh_model
from training import prose
from training.book_decoder import Recipe, tokenizer_of
from training.fits import GAPS, OPENINGS, PARTS, asked, words_of
from training.prose import (
    beginnings,
    continuations,
    continued,
    in_card,
    induction,
    loops,
    main,
    perplexity,
    surprise,
)

TEXT = (
    'The cats sat by Ann\'s well-known door. "Cat!" she said, and the old cat\nran. It was '
    "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{EM DASH} the 3rd cat's tail, 'tis said."
)
TEXTS = ["the cats sat by a door. she said the cat ran, it was the tail"] * 9


class Says:
    """A decoder whose next-token probabilities depend only on the last token."""

    name, max_seq_length = "says", 6

    def __init__(self, probabilities: dict[str, dict[str, float]]) -> None:
        self.tokenizer = tokenizer_of(["the cat cats dog sat", "the cat dog s"] * 9, 280)
        names = self.tokenizer.vocabulary
        self.table = np.zeros((len(names), len(names)))
        for before, behind in probabilities.items():
            row = self.table[names[before]]
            row[:] = (1 - sum(behind.values())) / (len(names) - len(behind))
            for name, probability in behind.items():
                row[names[name]] = probability

    def __call__(self, batch: np.ndarray, seen: np.ndarray) -> SimpleNamespace:
        with np.errstate(divide="ignore"):
            return SimpleNamespace(logits=np.log(self.table[batch]))


def test_the_probability_of_a_word_excludes_longer_words() -> None:
    """The probability of the word "cat" excludes "cats"."""
    model = Says({"Ġthe": {"Ġcat": 0.5, "Ġdog": 0.4}, "Ġcat": {"s": 0.7, "Ġdog": 0.3}})
    tokens = model.tokenizer("the cat dog").tokens
    assert tokens == ["Ġthe", "Ġcat", "Ġdog"]
    # after "the", all other tokens share 0.1; some are letters that would continue the word
    names = list(model.tokenizer.vocabulary)
    others = [one for one in names if one not in ("Ġcat", "Ġdog")]
    letters = [one for one in others if one[0] in "-Ã" or (one[0].isascii() and one[0].isalnum())]
    ended = 0.9 + 0.1 * (len(others) - len(letters)) / len(others)
    found = surprise(model, "the cat dog", {"the", "cat"})
    np.testing.assert_allclose(math.exp(-found.nats), 0.5 * 0.3 / ended)
    assert found.words == 1  # the first word is given
    found = surprise(model, "the cat dog", {"dog"})
    np.testing.assert_allclose(math.exp(-found.nats), 0.3 / 0.3)
    assert math.isnan(surprise(model, "the cat dog", set()).perplexity)


@pytest.mark.parametrize("length", [6, 8, 9, 64])
def test_surprise_equals_a_token_by_token_computation(length: int) -> None:
    model = wild(length)
    known = {"cats", "sat", "ann's", "well-known", "cat", "it", "na\u00efve", "cat's", "tis", "the"}
    known |= {"3rd", ".", "said"}
    found = surprise(model, TEXT, known)
    tokens = model.tokenizer(TEXT)
    nats, words, start = 0.0, 0, 3

    def probabilities(at: int) -> np.ndarray:
        half, begin = length // 2, 0
        while at - begin > length:
            begin += length - half
        assert begin == 0 or at - begin > half
        logits = model(tokens.ids[None, begin:at]).logits[0, -1].astype(np.float64)
        return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

    def ended(at: int) -> float:
        if at == len(tokens.ids) or not TEXT[tokens.offsets[at][0] - 1].isalnum():
            return 0.0
        goes_on = [
            number
            for name, number in model.tokenizer.vocabulary.items()
            if (name[0].isascii() and name[0].isalnum())
            or name[0] in "-Ã"
            or (name[0] == "'" and name[1:2].islower() and name[1:2].isascii())
        ]
        return math.log(1 - probabilities(at)[goes_on].sum())

    for word in [
        *["cats", "sat", "Ann's", "well-known", "Cat", "said", "the", "cat", "It", "na\u00efve"],
        *["the", "cat's", "tis", "said"],
    ]:
        start = TEXT.index(word, start + 1)
        inside = [
            at for at, (a, b) in enumerate(tokens.offsets) if a < start + len(word) and b > start
        ]
        nats -= sum(math.log(probabilities(at)[tokens.ids[at]]) for at in inside)
        nats -= ended(inside[-1] + 1) - ended(inside[0])
        words += 1
    assert found.words == words
    np.testing.assert_allclose(found.nats, nats, rtol=1e-4)


def wild(length: int) -> Model:
    """Return a small decoder whose probabilities are far from uniform."""
    tokenizer = tokenizer_of(TEXTS, 300)
    recipe = Recipe(layers=1, heads=2, kv_heads=1, dim=8, hidden=12, length=length)
    model = fresh_model(recipe.config(tokenizer), tokenizer, seed=4)
    return model.with_parameters({name: 9 * array for name, array in model.parameters.items()})


def test_perplexity_is_over_all_words_of_all_books() -> None:
    model = wild(8)
    books = [[["The cat sat.", "It ran."], ["She said it."]], [["A door was by the tail."]]]
    known = {"cat", "it", "ran", "door", "tail"}
    each = [surprise(model, text, known) for text in ("The cat sat. It ran.\nShe said it.",)]
    each += [surprise(model, "A door was by the tail.", known)]
    assert [one.words for one in each] == [4, 2]
    found = perplexity(model, books, known)
    assert found["words"] == 6
    expected = math.exp((each[0].nats + each[1].nats) / 6)
    assert found["perplexity"] == pytest.approx(expected)


def test_tokens_without_blanks_are_named() -> None:
    model = wild(8)
    model.tokenizer = train_tokenizer(TEXTS, "wordpiece", 60)
    with pytest.raises(ValueError, match=r"^prose: no token of .* begins with a blank; pass a dec"):
        surprise(model, "the cat", {"cat"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("he ran and he ran and he ran and she", False),  # no run of four words occurs 3 times
        ("he ran and he ran and he ran and he ran", True),
        ("very very very very very", False),
        ("very very very very very very", True),
        ("one two three four five six seven eight. One two three four five six seven eight", True),
        ("one two three four five six seven eight. One two three four five six seven nine", False),
        ('"It was very late." He said: It was very late!', False),  # sentence 2 has "He said" too
        ('"It was very late." He sang. IT was very late!', True),
        ("I see it. I see it. I see it.", False),
        ("", False),
        ("I see. You see?", False),
    ],
)
def test_loops(text: str, expected: bool) -> None:
    assert loops(text) is expected


class Writes:
    """A decoder that writes the given texts, turn by turn, each with its finish reason."""

    def __init__(self, *turns: list[tuple[str, str]], length: int = 60) -> None:
        self.turns, self.read, self.free = list(turns), [], []
        self.tokenizer, self.max_seq_length = tokenizer_of(["a"], 300), length

    def generate(self, texts: list[str], *, max_new_tokens: int, **given: float) -> list[str]:
        assert given == {"temperature": 0.8, "top_k": 40, "seed": 5 + len(self.read)}
        self.read.append(texts)
        self.free.append(max_new_tokens)
        return [Ended(*one) for one in self.turns.pop(0)]


class Ended(str):
    """A text with a finish reason."""

    def __new__(cls, text: str, reason: str) -> "Ended":
        found = super().__new__(cls, text)
        found.finish_reason = reason
        return found


def test_continuations_have_forty_words() -> None:
    many = " ".join(f"w{n}" for n in range(44))
    forty = many[: many.index(" w40")]
    model = Writes(
        [(f" {many}", "length"), (" It ran.", "eos"), (f" {forty}. (w4", "length"), ("", "eos")],
        [(f" {many}", "eos"), (" 1 b", "length")],
        *[[("", "eos")]] * 4,
        length=160,
    )
    found = continuations(model, ["x", "y", "z", "a"], seed=5)
    assert model.read[:4] == [
        *[["x", "y", "z", "a"], ["y It ran.\n", "a\n"]],
        *[["a\n 1"], ["a\n 1\n"]],
    ]
    assert [one.text for one in found] == [
        *[f" {forty}", f" It ran.\n {forty[: forty.index(' w38')]}", f" {forty}.", "\n 1"]
    ]
    assert [one.ended for one in found] == [False, True, False, True]
    assert model.free[:2] == [100, 100]


def test_continuations_end_with_the_positions() -> None:
    model = Writes([(" b", "eos")], length=7)
    assert continuations(model, ["a b c"], seed=5)[0].text == " b"
    assert model.free == [2]


def test_continuations_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "TURNS", 1)
    model = Writes(
        [
            (" saw it again. It was zorp 3", "eos"),
            (" and he ran and he ran and he so", "length"),
            (" cat? No", "eos"),
        ]
    )
    found = continued(model, {"saw", "it", "again", "was", "ran", "he"}, ["a", "he ran", "the"], 5)
    assert found["texts"] == 3
    assert found["loop"] == 1
    assert found["end"] == found["closed"] == 2
    assert (found["words"], found["unknown"]) == (6 + 8 + 2, 1 + 3 + 2)  # "3" is not a word
    assert not loops(" and he ran and he ran and he")  # the loop includes the beginning


def test_there_are_100_beginnings() -> None:
    found = beginnings()
    assert len(found) == len(set(found)) == 100
    others = [one.text for path in (GAPS, OPENINGS) for part in PARTS for one in asked(path, part)]
    assert not set(found) & set(others)
    assert all(text == text.casefold() or " i" in f" {text}" for text in found)
    assert all(2 < len(words_of(text)) < 12 for text in found)


def test_induction_on_three_kinds_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    scores = np.array([[0.1, 0.2], [0.7, 0.3]])

    def measured(model: Model, texts: list[str], of: str) -> dict[str, np.ndarray]:
        assert of == "induction"
        read.append(texts)
        return {"induction": scores * len(read)}

    monkeypatch.setattr(prose, "copying", lambda model, seed: {"heads": scores / 2})
    monkeypatch.setattr(prose, "head_scores", measured)
    sentences = ["too short a one.", *(f"a b c d e f g h {n}" for n in range(99)), "a " * 17]
    found = induction(wild(8), sentences)
    assert found["tokens"]["best"] == {"score": 0.35, "layer": 1, "head": 0}
    assert found["words"]["best"]["score"] == 0.7
    assert found["sentences"]["heads"] == (2 * scores).tolist()
    for texts in read:
        assert len(texts) == len(set(texts)) == 64
        for text in texts:
            words = text.split()
            half = len(words) // 2
            assert words[:half] == words[half:]
    assert len(set(read[0][0].split())) == 20
    assert {len(text.split()) for text in read[1]} == {18}


def test_the_command_measures_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = {"train": [["the cat sat by the door. the cat ran by."]]}
    held_out = "The old cat by the door sat by the cat."
    parts |= {"test": [[held_out]] * 9, "choose": [[held_out, "Cat."]]}
    monkeypatch.setattr(prose.books, "read", lambda _, wanted: [(None, parts["".join(wanted)])])
    monkeypatch.setattr(prose.qkv, "load", lambda _: wild(120))
    monkeypatch.setattr(prose, "beginnings", lambda: ["the cat", "it was"])
    monkeypatch.setattr(prose, "WORDS", 4)
    monkeypatch.setattr(prose, "_TWICE", 5)
    said: list[str] = []
    main(["some", str(tmp_path), "--choose", "--json"], said.append)
    found = json.loads(said[0])
    assert set(found) == {"model", "perplexity", "induction", "continued"}
    assert found["perplexity"]["words"] == 7  # "the", "cat" and "by" twice, and "Cat"
    assert len(found["continued"]["continuations"]) == 2
    main(["some", str(tmp_path), "--first", "25"], said.append)
    of = json.loads(said[0])
    assert (
        in_card(of).splitlines()[2].startswith("| perplexity per known word of held-out books (7 w")
    )
    assert "(20 words)" in said[1]  # 7 in each of three passages, but the first word is given
    assert "| continuations that loop, of 2 with 4 words | 0, 0.0% (0.0 to 65.8) |" in said[1]


def test_copying_is_measured_in_the_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wild(16)
    monkeypatch.setattr(prose, "COPIED", 5)
    monkeypatch.setattr(prose, "_COPIES", 3)
    asked: list[list[np.ndarray]] = []
    real = prose.head_scores
    monkeypatch.setattr(prose, "head_scores", lambda m, t, of: asked.append(t) or real(m, t, of))
    found = prose.copying(model)
    texts = np.array(asked[0])
    assert texts.shape == (3, 10)
    np.testing.assert_array_equal(texts[:, :5], texts[:, 5:])
    assert all(len(set(text)) == 5 for text in texts)
    weights = np.stack(model.trace(texts).attentions)  # (layers, B, H, T, T)
    positions = np.arange(5, 10)
    expected = weights[:, :, :, positions, positions - 4].mean(axis=(1, 3))
    np.testing.assert_allclose(found["heads"], expected, rtol=1e-5)
    logits = np.asarray(model(texts).logits, np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(logs[:, :-1], texts[:, 1:, None], -1)[..., 0]  # (B, T - 1)
    assert found["first"] == pytest.approx(losses[:, :4].mean(), rel=1e-5)
    assert found["second"] == pytest.approx(losses[:, 5:].mean(), rel=1e-5)
