"""Tests of searching for stories and of storing stories.

The results of the search are compared with a separate run of each edit.
"""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qkv
from learn.support import tiny_bert
from qkv.models.model import Model
from training import stories, told
from training.frames import MASK, Repeats, candidates
from training.stories import Found, main, search
from training.wordnet import WordNet

TEXT = """
# of animals
== young
why: "{hidden}" says whose young it is
A {} is a young [MASK].
The {} saw a [MASK].
> kitten: cat | owl: bird
> old cat: bird cow
{} slept near its [MASK].
> the cow: cat
+ dog
== tools
why: each does one thing
We cut bread with a [MASK].
> : knife
"""
WORDS = "a an the is young old saw slept near its we cut bread with"
CONTENT = "kitten owl cat cow bird dog knife bread saw slept cut young old cats"


def wordnet(words: str) -> WordNet:
    """Return a WordNet with these nouns, in which "geese" is the plural of "goose"."""
    exceptions = {"n": {"geese": ("goose",)}, "v": {}, "a": {}, "r": {}}
    return WordNet([], {(word, "n"): () for word in words.split()}, exceptions, frozenset())


@pytest.fixture(scope="module")
def model() -> Model:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
    found = tiny_bert([f"{WORDS} {CONTENT} ."] * 9, 300, seed=1, **sizes)
    for name, array in found.parameters.items():
        found.parameters[name] = array * np.float32(30 if array.ndim == 2 else 1)
    bias = np.full(len(found.tokenizer), -20, np.float32)
    bias[[found.tokenizer.vocabulary[word] for word in f"{CONTENT} the".split()]] = 0
    found.parameters["head.out_proj.bias"] = bias
    return found


def test_the_sentences_are_many_and_short_and_none_holds_its_answer() -> None:
    every = candidates()
    assert len(every) > 2500
    assert len({one.sentence for one in every}) == len(every)
    families = Counter(one.family for one in every)
    assert len(families) > 50
    for one in every:
        words = one.sentence.replace(MASK, "word").rstrip(".").split()
        assert 5 <= len(words) <= 12, one.sentence
        assert one.sentence[0].isupper(), one.sentence
        assert not {word.strip(",").lower() for word in words} & one.right, one.sentence
        assert one.right <= one.fits, one.sentence


def test_frames_and_fillers() -> None:
    every = {one.sentence: one for one in candidates(TEXT)}
    assert list(every) == [
        "A kitten is a young [MASK].",
        "An owl is a young [MASK].",
        "An old cat is a young [MASK].",
        "The kitten saw a [MASK].",
        "The owl saw a [MASK].",
        "The old cat saw a [MASK].",
        "The cow slept near its [MASK].",
        "We cut bread with a [MASK].",
    ]
    one = every["An old cat is a young [MASK]."]
    assert (one.family, one.why) == ("young", '"{hidden}" says whose young it is')
    assert (one.cue, one.right) == ({"old", "cat"}, {"bird", "cow"})
    assert one.fits == {"cat", "bird", "cow", "dog"}
    assert one.words == {
        "an": [(0, 2)],
        "old": [(3, 6)],
        "cat": [(7, 10)],
        "is": [(11, 13)],
        "a": [(14, 15)],
        "young": [(16, 21)],
    }
    assert every["We cut bread with a [MASK]."].cue == frozenset()
    with pytest.raises(ValueError, match=r"The owl flew\. needs exactly one \[MASK\]"):
        candidates("== a\nwhy: b\nThe {} flew.\n> owl: x")


@pytest.mark.parametrize(
    ("word", "other", "repeated"),
    [
        *(("cat", "cat", True), ("cats", "cat", True), ("geese", "goose", True)),
        *(("pig", "piglet", True), ("oven", "ovenware", True), ("teacher", "teaches", True)),
        *(("house", "lighthouse", True), ("man", "woman", False), ("pi", "pig", False)),
        *(("horse", "house", False), ("grandson", "granddaughter", False), ("kit", "cat", False)),
    ],
)
def test_what_repeats_a_word(word: str, other: str, repeated: bool) -> None:
    repeats = Repeats(wordnet("cat goose pig"))
    assert repeats(word, other) == repeats(other, word) == repeated


def by_itself(model: Model, sentence: str, words: set[str], **edit: object) -> tuple[str, dict]:
    """Return the first guess of `predict` ("" if it is not allowed) and all probabilities."""
    [ranked] = model.predict(sentence, top_k=len(model.tokenizer), **edit)
    word = ranked[0][0]
    return (word if word in CONTENT.split() and word not in words else ""), dict(ranked)


def test_the_search_equals_a_separate_run_of_each_edit(model: Model) -> None:
    every = candidates(TEXT)
    known = Repeats(wordnet(CONTENT))
    # "cats" is a form of "cat", which occurs in some sentences
    forms = {"cat": {"cat", "cats"}, "cats": {"cat", "cats"}}
    expected: dict[tuple, tuple] = {}
    for one in every:
        words = set().union(*(forms.get(word, {word}) for word in one.words))
        first, before = by_itself(model, one.sentence, words)
        heads = [{"ablate": [pair]} for pair in itertools.product(range(2), range(2))]
        drops, rows = [], []
        for edit in (*({"hide": [word]} for word in one.words), *heads):
            second, after = by_itself(model, one.sentence, words, **edit)
            drop = np.log(before[first] / after[first]) if first else 0
            drops += [drop] if "ablate" in edit else []
            if first and second not in ("", first) and drop >= np.log(2):
                swing = drop + np.log(after[second] / before[second])
                rows.append((edit, second, swing, drop))
        for edit, second, swing, drop in rows:
            [what] = next(iter(edit.values()))
            median = np.median(drops) if "ablate" in edit else 0
            expected[one.sentence, what] = (first, second, swing, drop, median)
    assert len(expected) > 5
    assert len({isinstance(what, str) for _, what in expected}) == 2
    found = search(model, every, known, least=0.0)
    kinds = {(sentence, isinstance(what, str)) for sentence, what in expected}
    assert {(one.candidate.sentence, one.ablate is None) for one in found} == kinds
    assert len(found) == len(kinds)
    assert [one.rank for one in found] == sorted((one.rank for one in found), reverse=True)
    for one in found:
        first, second, swing, drop, median = expected[
            one.candidate.sentence, one.hide or one.ablate
        ]
        assert (one.before[0][0], one.after[0][0]) == (first, second)
        got = (one.swing, one.drop, one.median)
        np.testing.assert_allclose(got, (swing, drop, median), atol=1e-4)
        if one.ablate is not None:
            layer, head = one.ablate
            trace = model.trace(one.candidate.sentence)
            weights = trace.pattern(layer=layer, head=head)[trace.tokens.index(MASK)]
            total = Counter()
            for token, weight in zip(trace.tokens, weights, strict=True):
                total[token] += float(weight)
            word = max(one.candidate.words, key=lambda word: total[word])
            assert one.looks == (word, pytest.approx(total[word]))
            after, _ = by_itself(model, one.candidate.sentence, set(), hide=[word])
            assert one.alike == (after == second)


def test_a_guess_needs_its_probability(model: Model) -> None:
    every, known = candidates(TEXT), Repeats(wordnet(CONTENT))
    found = search(model, every, known, least=0.2)
    assert all(min(one.before[0][1], one.after[0][1]) >= 0.2 for one in found)
    assert 0 < len(found) < len(search(model, every, known, least=0.0))
    # a story needs two different guesses that WordNet knows, and this WordNet knows one word
    assert search(model, every, Repeats(wordnet("dog")), least=0.0) == []
    with pytest.raises(ValueError, match="random cannot predict masked words"):
        search(qkv.load("random"), every, known)


def test_marks_rank_and_reason_of_a_story() -> None:
    [one, *_] = candidates(TEXT)
    plain = (("cat", 0.5), ("bird", 0.1)), (("bird", 0.4),), 3.0, 2.0
    word = Found(one, *plain, hide="kitten")
    head = Found(one, *plain, ablate=(1, 0), looks=("young", 0.9))
    other = Found(one, (("cow", 0.5),), (("knife", 0.4),), 9.0, 2.0, hide="young")
    assert word.marks == (True, True, True)
    assert head.marks == (True, False, True)
    assert other.marks == (False, False, False)
    assert sorted([other, head, word], key=lambda one: one.rank) == [other, head, word]
    assert word.reason == '"kitten" says whose young it is.'
    assert other.reason == '"young" is what leads to "cow".'
    looked = "Head 1.0 attends from the gap to"
    assert head.reason == f'{looked} "young", which is what leads to "cat".'
    *_, last = candidates(TEXT.replace("> : knife", "> thin: knife").replace("cut", "cut {}"))
    tools = Found(last, *plain, ablate=(1, 0), looks=("thin", 0.9))
    assert tools.reason == f'{looked} "thin": each does one thing.'


KEPT = {
    "searched": 2000,
    "found": 30,
    "stories": [
        {
            "sentence": "A kitten is a young [MASK].",
            "hide": ["kitten"],
            "ablate": [[1, 0]],
            "before": {"word": "cat", "probability": 0.314},
            "after": {"word": "bird", "probability": 0.2},
            "reason": "It says which.",
        }
    ],
}
CARD = "# Model\n\n## Training\n\nLong.\n\n## Licence\n\nFree.\n"


def test_stories_are_kept_beside_the_model_and_in_its_card(tmp_path: Path) -> None:
    assert told.kept_in(tmp_path) == {"searched": 0, "found": 0, "stories": []}
    told.keep(tmp_path, KEPT)
    assert told.kept_in(tmp_path) == KEPT
    assert not (tmp_path / "README.md").exists()
    card = tmp_path / "README.md"
    card.write_text(CARD)
    told.keep(tmp_path, KEPT)
    told.keep(tmp_path, KEPT)  # replaces the kept stories
    text = card.read_text()
    row = (
        '| A kitten is a young [MASK]. | cat (0.31) | "kitten" hidden, without head 1.0 '
        "| bird (0.20) | It says which. |"
    )
    assert text.count(row) == 1
    assert "changes of the first guess in 30 of 2,000 sentences" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        *("## Training", "## What one word, or one head, does", "## Licence")
    ]
    told.keep(tmp_path, told.NONE)
    assert card.read_text() == CARD


def test_stories_that_the_model_no_longer_tells_are_left_out(model: Model) -> None:
    sentence = "The owl saw a [MASK]."
    [[(before, probability)]] = model.predict(sentence, top_k=1)
    [[(after, then)]] = model.predict(sentence, top_k=1, hide=["owl"])
    good = {"sentence": sentence, "hide": ["owl"], "ablate": [], "reason": "So."}
    good |= {
        "before": {"word": before, "probability": 0.9},
        "after": {"word": after, "probability": 0.9},
    }
    now = {"before": round(probability, 3), "after": round(then, 3)}
    right = {**good, **{x: {**good[x], "probability": now[x]} for x in now}}
    wrong = [
        {**good, "before": {"word": "elk", "probability": 0.1}},
        {**good, "after": {"word": "elk", "probability": 0.1}},
        {**good, "hide": ["elk"]},
        {**good, "ablate": [[9, 9]]},
    ]
    kept = told.again(model, {"searched": 7, "found": 5, "stories": [*wrong, good]})
    assert kept == {"searched": 7, "found": 5, "stories": [right]}


def test_the_command(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save(tmp_path)
    monkeypatch.setattr(stories, "read", lambda _: wordnet(CONTENT))
    monkeypatch.setattr(stories, "candidates", lambda: candidates(TEXT))
    given, said = [str(tmp_path), "--least", "0"], []
    main([*given, "--json"], said.append)
    main([*given, "--top", "2"], said.append)
    rows = json.loads(said[0])
    assert said[1].startswith(f"{len(rows)} found in 8 sentences")
    assert f"   1 {''.join('-*'[mark] for mark in rows[0]['marks'])} " in said[1]
    assert "\n   2 " in said[1]
    assert "\n   3 " not in said[1]
    main([*given, "--keep", "3", "1"], said.append)
    kept = told.kept_in(tmp_path)
    assert (kept["searched"], kept["found"]) == (8, len({row["sentence"] for row in rows}))
    for one, row in zip(kept["stories"], (rows[2], rows[0]), strict=True):
        assert all(one[x] == row[x] for x in ("sentence", "hide", "ablate", "reason"))
        assert one["before"]["word"] == row["before"][0][0]
        assert one["after"] == {
            "word": row["after"][0][0],
            "probability": pytest.approx(row["after"][0][1], abs=1e-3),
        }
    with pytest.raises(ValueError, match=f"--keep has 99, but only {len(rows)} stories were found"):
        main([*given, "--keep", "99"], said.append)


def test_every_occurrence_of_a_word_is_hidden(model: Model) -> None:
    [one] = candidates("== a\nwhy: b\nThe {} saw the cow near its [MASK].\n> owl: cat")
    guesser = stories._Guesser(model)
    run, words = guesser.run(0, one)
    assert words["the"] == (1, 4)
    [(_, log_probabilities)] = guesser.log_probabilities([replace(run, hide=words["the"])])
    [guesses] = model.predict(one.sentence, hide=[1, 4])
    assert guesser.ranked(log_probabilities)[0] == (
        guesses[0][0],
        pytest.approx(guesses[0][1], rel=1e-4),
    )
    assert guesses != model.predict(one.sentence, hide=[1])[0]
