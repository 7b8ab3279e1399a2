"""Tests of counting: look-up by hand, and Kneser-Ney against the formula written out."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from training import counting
from training.counting import Corpus, KneserNey, LookUp, looked_up, main, perplexity
from training.fits import Asked

SENTENCES = [
    *["the cat sat on the mat.", "the cat lay on the mat.", "the dog sat on the rug."],
    *["a dog lay by the door.", "the cat sat by the fire.", "a dog sat on the mat."],
    *["the cat lay by the door.", "the fire and the rug."],
]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.of(SENTENCES)


def plain(corpus: Corpus, order: int, history: tuple[int, ...], word: int) -> float:
    """Return a probability by interpolated Kneser-Ney with three discounts, as in the paper."""
    text = corpus.words.tolist()
    size = len(corpus.vocabulary)
    probability = 1 / size
    for n in range(1, order + 1):
        before = history[len(history) - n + 1 :] if n > 1 else ()
        if len(before) < n - 1:
            break
        counts: Counter[tuple[int, ...]] = Counter()
        if n == order:
            counts.update(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
        else:
            longer = {tuple(text[i : i + n + 1]) for i in range(len(text) - n)}
            counts.update(one[1:] for one in longer)
        of = Counter(counts.values())
        share = of[1] / (of[1] + 2 * of[2])
        discount = [0.0] + [
            k - (k + 1) * share * max(1, of[k + 1]) / max(1, of[k]) for k in (1, 2, 3)
        ]
        discount = [min(max(one, 0), k) for k, one in enumerate(discount)]
        own = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == before}
        total = sum(own.values())
        if not total:
            break
        left = sum(discount[min(count, 3)] for count in own.values()) / total
        count = own.get(word, 0)
        probability = (count - discount[min(count, 3)]) / total + left * probability
    return probability


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_are_those_of_the_paper(corpus: Corpus, order: int) -> None:
    model = KneserNey(corpus, order)
    held_out = Corpus.of(["the dog lay on the rug.", "a cat sat"], corpus.vocabulary).words
    found = model.probabilities(held_out)
    for position in range(len(held_out)):
        history = tuple(held_out[max(0, position - order + 1) : position].tolist())
        expected = plain(corpus, order, history, int(held_out[position]))
        np.testing.assert_allclose(found[position], expected, rtol=1e-12)


def test_probabilities_sum_to_one(corpus: Corpus) -> None:
    model = KneserNey(corpus, 3)
    for history in ([0], [0, 2], [0, 2, 3, 4], [0, 5, 5, 5]):
        probabilities = [
            model.probabilities(np.array([*history, w]))[-1] for w in range(len(corpus.vocabulary))
        ]
        np.testing.assert_allclose(sum(probabilities), 1)


def test_perplexity_leaves_out_unknown_words_and_punctuation(corpus: Corpus) -> None:
    model = KneserNey(corpus, 2)
    held_out = Corpus.of(["the zebra sat."], corpus.vocabulary)
    probabilities = model.probabilities(held_out.words)
    expected = np.exp(-np.log(probabilities[[1, 3]]).mean())  # the known words "the" and "sat"
    np.testing.assert_allclose(perplexity(model, held_out), expected)


@pytest.mark.parametrize(
    ("before", "behind", "expected"),
    [
        (["the", "cat"], ["on"], ["sat", "lay"]),  # both occur once; "sat" has the lower id
        (["", "the", "dog"], [], ["sat"]),
        (["by", "the"], [".", ""], ["door", "fire"]),
        (["the", "zebra"], ["by"], ["lay", "sat"]),  # an unknown word is no context
    ],
)
def test_the_longest_context_counts(
    corpus: Corpus, before: list[str], behind: list[str], expected: list[str]
) -> None:
    found = LookUp(corpus).guesses(before, behind)
    assert found[: len(expected)] == expected


def test_look_up_answers_gaps_and_openings(corpus: Corpus) -> None:
    gap = Asked("a dog sat on the _", frozenset(["mat"]))
    opening = Asked("the cat", frozenset(["sat"]))
    found = looked_up(LookUp(corpus), [gap, opening])
    assert found[0].fits
    assert set(found[1].words) >= {"sat", "lay"}


def test_the_command_reads_books(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held_out = ["the dog sat on the mat."]
    parts = {"train": [SENTENCES] * 2, "test": [held_out]}
    monkeypatch.setattr(counting, "read", lambda _, wanted: [(None, parts.get(wanted[0], []))])
    said: list[str] = []
    main([str(tmp_path)], said.append)
    kinds = ["looked up, gaps", "looked up, openings", "Kneser-Ney of 5 words"]
    assert [line.split(":")[0] for line in said] == kinds
    corpus = Corpus.of(SENTENCES * 2)
    expected = perplexity(KneserNey(corpus), Corpus.of(held_out, corpus.vocabulary))
    assert f"perplexity {expected:.1f} per known word" in said[-1]


def test_the_same_first_words_of_each_book_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passages = [["the dog sat on the mat.", "the cat sat."], ["the fire."], ["a cat lay."]]
    parts = {"train": [[SENTENCES] * 2], "choose": [passages] * 2}
    monkeypatch.setattr(
        counting, "read", lambda _, wanted: [(None, book) for book in parts["".join(wanted)]]
    )
    monkeypatch.setattr(counting, "looked_up", lambda model, questions: [])
    said: list[str] = []
    main([str(tmp_path), "--choose", "--first", "10"], said.append)
    corpus = Corpus.of(SENTENCES * 2)
    # The first passage has 9 words, fewer than 10, so the second passage (2 words) is added.
    first = [*passages[0], *passages[1]]
    expected = perplexity(KneserNey(corpus), Corpus.of(first * 2, corpus.vocabulary))
    assert f"perplexity {expected:.1f} per known word" in said[-1]
    main([str(tmp_path), "--choose"], said.append)
    assert said[-1] != said[2]
