"""Tests of the tasks of lesson 12: stories, a decoder trained on stories, its induction head."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from qkv_marking import TASKS, check, check_file
from qkv_marking.tasks.stories import _grammar

RIGHT = 10
STORY = """
NAMES = "Ash Blake Cole Dale Drew Ellis Grant Hope Jude Kit Lane Lee Max Ray Reed Scott".split()
DEEDS = ["sang a song", "swam home", "baked bread", "sat by the fire", "slept", "found two keys"]

def story(seed):
    rng = np.random.default_rng(seed)
    six = rng.choice(NAMES, 6, replace=False)
    first, last = six[:3], six[3:]
    sentences = []
    for i in range(10):
        one = rng.integers(3)
        deed = rng.choice(DEEDS)
        sentences.append(f"{first[one]} {last[one]} {deed} .")
    return " ".join(sentences)
"""
PYTHONS = """
import random
def story(number):
    draw = random.Random(number)
    six = draw.sample(NAMES, 6)
    people = [" ".join(six[i : i + 2]) for i in (0, 2, 4)]
    text = ""
    while text.count(".") < 10:
        text += draw.choice(people) + " " + draw.choice(DEEDS) + " . "
    return text.strip()
"""
SIX = "    six = rng.choice(NAMES, 6, replace=False)\n    first, last = six[:3], six[3:]\n"
WRONG_STORIES = [
    ("story-unseeded", "default_rng(seed)", "default_rng()"),
    ("story-same", "default_rng(seed)", "default_rng(0)"),
    ("story-new-people", "        one = rng", SIX.replace("    six", "        six").replace(
        "    first", "        first") + "        one = rng"),
    ("story-new-people", "{first[one]} {last[one]}", "{rng.choice(NAMES)} {rng.choice(NAMES)}"),
    ("story-names-change", "{last[one]}", "{rng.choice(NAMES)}"),
    ("story-names-change", "{last[one]}", "{last[rng.integers(3)]}"),
    ("story-shared-name", "NAMES, 6, replace=False", "NAMES, 6"),
    ("story-shared-name", "six[:3], six[3:]", "six[:3], rng.choice(NAMES, 3, replace=False)"),
    ("story-fixed-pairs", "six[:3], six[3:]",
     "zip(*((NAMES[n], NAMES[n + 8]) for n in rng.permutation(8)))"),
    ("story-split-names", "six[:3], six[3:]",
     "rng.permutation(NAMES[:8])[:3], rng.permutation(NAMES[8:])[:3]"),
    ("story-in-turn", "one = rng.integers(3)", "one = i % 3"),
    ("story-few-people", "one = rng.integers(3)", "one = rng.integers(2)"),
    ("story-few-people", "one = rng.integers(3)", "one = 0"),
    ("story-many-people", SIX.partition("    first")[0], "    six = rng.permutation(NAMES)\n"
     "    first, last = six[:5], six[5:10]; return ' '.join("
     "f'{first[n]} {last[n]} {rng.choice(DEEDS)} .' for n in rng.integers(5, size=10))\n"),
    ("story-one-deed", "rng.choice(DEEDS)", "DEEDS[0]"),
    ("story-length", "range(10)", "range(9)"),
    ("story-grammar", ' ."', '."'),
    ("story-grammar", '" ".join', '"\\n".join'),
    ("story-grammar", '" ".join(sentences)', '" ".join(sentences) + " "'),
    ("story-grammar", "{last[one]} ", ""),
    ("wrong-type", '" ".join(sentences)', "sentences"),
    ("returns-nothing", '    return " ".join(sentences)\n', ""),
    ("name-unknown", "rng.choice(DEEDS)", "rng.choice(DEED)"),
]  # fmt: skip

SCORE = """
def induction_score(weights, ids, names):
    found = []
    for i in range(len(ids)):
        behind = [j + 1 for j in range(i) if ids[j] == ids[i]]
        if behind and ids[i] in names:
            found.append(weights[i, behind].sum())
    return np.mean(found)
"""
ARRAYS = """
def induction_score(a, ids, names):
    ids = np.asarray(ids)
    same = np.tril(ids[:, None] == ids, -1) & np.isin(ids, names)[:, None]
    behind = np.pad(same[:, :-1], ((0, 0), (1, 0)))
    return (a * behind).sum() / same.any(axis=1).sum()
"""
WRONG_SCORES = [
    ("score-same-name", "[j + 1 for", "[j for"),
    ("score-before-name", "[j + 1 for", "[j - 1 for"),
    ("score-transposed", "weights[i, behind]", "weights[behind, i]"),
    ("score-one-place", "weights[i, behind].sum()", "weights[i, behind[-1]]"),
    ("score-one-place", "weights[i, behind].sum()", "weights[i, behind[0]]"),
    ("score-pairs", "found.append(weights[i, behind].sum())", "found += [*weights[i, behind]]"),
    ("score-first-mentions", "if behind and ids[i] in names", "if ids[i] in names"),
    ("score-all-words", "if behind and ids[i] in names", "if behind"),
    ("score-all-words", "if behind and ids[i] in names", "if True"),
    ("score-all-places", "np.mean(found)", "sum(found) / len(ids)"),
    ("score-sum", "np.mean(found)", "sum(found)"),
    ("score-later", "for j in range(i) if", "for j in range(len(ids) - 1) if j != i and"),
    ("score-later", "for j in range(i) if", "for j in range(len(ids) - 1) if"),
    ("score-previous", "weights[i, behind].sum()", "weights[i, i - 1]"),
    ("returns-nothing", "    return np.mean(found)\n", ""),
]


def made(source, name, old="", new="", **given):
    """Run a source text after one replacement, and return the object with this name."""
    assert old in source
    found = {"np": np, "SimpleNamespace": SimpleNamespace, **given}
    exec(source.replace(old, new) if old else source, found)
    return found[name]


# -- the story -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("source", [STORY, STORY + PYTHONS])
def test_a_writer_whose_names_return_is_right(source, seed):
    result = check(made(source, "story"), task="story", seed=seed)
    assert result.points == RIGHT, str(result)


@pytest.mark.parametrize(("key", "old", "new"), WRONG_STORIES)
def test_mistakes_in_stories_are_named(key, old, new):
    result = check(made(STORY, "story", old, new), task="story", seed=7)
    assert result.mistakes == (key,), str(result)
    assert result.points < RIGHT
    assert {"seed", "yours"} <= {*result.example}


def test_the_grammar_writes_and_parses_stories():
    sentences = _grammar.sentences_of(_grammar.story(5))
    assert len(sentences) == 10
    assert len({one[:2] for one in sentences}) <= 3
    both = [("Ash", "Ray", "slept"), ("Ray", "Ash", "slept")]
    assert _grammar.sentences_of("Ash Ray slept . Ray Ash slept .") == both
    for text in ("Ash slept .", "Ash Ray slept", "ash Ray slept .", "Ash  Ray slept .", "Ash"):
        assert _grammar.sentences_of(text) is None
    text = "Ash Ray slept . Ray Lee sang a song . Ash Ray slept ."
    words = text.split()
    # Ray is another person, but the name occurs earlier
    assert _grammar.returning(words) == [4, 10]
    assert _grammar.others(words) == [1, 2, 5, 6, 7, 8, 11, 12]


def test_losses_of_counts_are_those_by_hand():
    """Word b ends two of three pairs; with 1 added to each count, its probability is 3 / 6."""
    alone, follows = _grammar.losses_of_counts(["a b", "a b a"], ["a b"])
    assert alone == pytest.approx(-math.log(3 / 6))
    assert follows == pytest.approx(-math.log(3 / 5))  # both pairs that begin with "a" are "a b"


# -- the score -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("source", [SCORE, ARRAYS])
def test_a_score_is_right_in_loops_and_in_arrays(source, seed):
    result = check(made(source, "induction_score"), task="induction-score", seed=seed)
    assert result.points == RIGHT, str(result)


@pytest.mark.parametrize(("key", "old", "new"), WRONG_SCORES)
def test_mistakes_in_a_score_are_named(key, old, new):
    wrong = made(SCORE, "induction_score", old, new)
    result = check(wrong, task="induction-score", seed=7)
    assert result.mistakes == (key,), str(result)


def test_two_mistakes_in_a_score_are_found_together():
    wrong = SCORE.replace("[j + 1 for", "[j for").replace("np.mean(found)", "sum(found)")
    result = check(made(wrong, "induction_score"), task="induction-score")
    assert {*result.mistakes} == {"score-same-name", "score-sum"}, str(result)
    assert result.diffs["score-sum"] == (("out = np.mean(shares)", "out = sum(shares)"),)


# -- the decoder, made by hand --------------------------------------------------------------------

DECODER = '''
class Decoder:
    """Counts pairs of words; head 0 of layer 1 copies, if head 0 of layer 0 tells it what was."""

    def __init__(self, texts, words):
        self.vocabulary = {word: number for number, word in enumerate(words)}
        self.pairs = np.full((len(words), len(words)), 0.01)
        for text in texts:
            ids = self.tokenize(text).ids
            np.add.at(self.pairs, (ids[:-1], ids[1:]), 1)
        self.dot = self.vocabulary["."]

    def tokenize(self, text):
        ids = np.array([self.vocabulary[word] for word in text.split()])
        return SimpleNamespace(ids=ids, tokens=text.split())

    def __call__(self, ids, ablate=()):
        logits = np.log(self.pairs / self.pairs.sum(axis=1, keepdims=True))[ids]
        if not {(1, 0), (0, 0)} & {*map(tuple, ablate)}:
            for i, one in enumerate(ids):
                behind = [j + 1 for j in range(i) if ids[j] == one]
                if behind and (i == 0 or ids[i - 1] == self.dot):
                    logits[i, ids[behind]] += 6
        return SimpleNamespace(logits=logits[None])

    def trace(self, ids, names=None):
        T = len(ids)
        previous, even, copies = np.eye(T, k=-1), np.tri(T), np.zeros((T, T))
        previous[0, 0] = 1
        for i, one in enumerate(ids):
            behind = [j + 1 for j in range(i) if ids[j] == one]
            copies[i, behind or [0]] = 1 / len(behind or [0])
        even /= even.sum(axis=1, keepdims=True)
        layers = [[previous, even], [copies, np.eye(T)]]
        return SimpleNamespace(attentions=[np.array([heads]) for heads in layers])
'''
WITHOUT = """
def without(ids, heads):
    logits = story_model(ids, ablate=heads).logits[0]
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    p = p[np.arange(len(ids) - 1), ids[1:]]
    starts = [i for i in range(len(ids)) if i == 0 or ids[i - 1] == 16]
    returns = [i for i in starts if ids[i] in ids[:i]]
    rest = [i for i, one in enumerate(ids[1:]) if one >= 16]
    return p[returns].mean(), p[rest].mean()
"""
WORDS = [*_grammar.NAMES, ".", *sorted({w for one in _grammar.DEEDS for w in one.split()})]
TEXTS = [_grammar.story(seed) for seed in range(500)]


def decoder(old="", new=""):
    """Return a hand-written decoder after one replacement in its source text."""
    return made(DECODER, "Decoder", old, new)(TEXTS, WORDS)


COUNTED = "np.log(self.pairs / self.pairs.sum(axis=1, keepdims=True))[ids]"
SIZE, ONE_OF = "(len(ids), len(self.pairs))", "np.eye(len(self.pairs))"
FREQUENT, NOTHING = "np.log(self.pairs.sum(axis=0))", "SimpleNamespace(logits=logits[None])"
WRONG_DECODERS = [
    ("not-filled-in", ...),
    ("not-filled-in", None),
    ("story-model-other", SimpleNamespace(folder="here")),
    ("story-model-other", "my-model"),
    ("story-model-vocabulary", decoder("tokens=text.split()", "tokens=['[UNK]'] * len(ids)")),
    ("story-model-vocabulary", decoder("tokens=text.split()", "tokens=[*text]")),
    ("story-model-other", decoder("logits=logits[None]", "hidden=logits")),
    ("story-model-short", decoder("self.dot =", "self.max_seq_length = 69; self.dot =")),
    ("story-model-looks-ahead", decoder(COUNTED, f"{COUNTED} + ids[-1] * {ONE_OF}[0]")),
    ("story-model-names-itself", decoder(COUNTED, f"{COUNTED} + 99 * {ONE_OF}[ids]")),
    ("story-model-by-heart", decoder(COUNTED, f"9 * {ONE_OF}[(ids + 1) % 9]")),
    ("story-model-untrained", decoder(COUNTED, f"np.zeros({SIZE}); return {NOTHING}")),
    ("story-model-untrained", decoder(COUNTED, f"{FREQUENT} * np.ones({SIZE}); return {NOTHING}")),
    ("story-model-pairs", decoder("+= 6", "+= 0")),
    ("story-model-no-copy", decoder("+= 6", "+= 1.5")),
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 7])
def test_a_decoder_that_copies_is_right(seed):
    result = check(decoder(), task="story-model", seed=seed)
    assert result.points == RIGHT, str(result)


@pytest.mark.parametrize(("key", "wrong"), WRONG_DECODERS)
def test_mistakes_in_a_decoder_are_named(key, wrong):
    result = check(wrong, task="story-model", seed=7)
    assert result.mistakes == (key,), str(result)
    told_nothing = key in ("not-filled-in", "story-model-other", "story-model-vocabulary")
    assert result.points == (0 if told_nothing else 6)


# -- the induction head --------------------------------------------------------------------------

HEADS = [
    ("not-filled-in", ...),
    ("head-no-pair", 2),
    ("head-no-pair", (1, 2)),
    ("head-no-pair", (1, -2)),
    ("head-no-pair", (1.0, 0.0)),
    ("head-no-pair", "1, 0"),
    ("head-exchanged", (0, 1)),
    ("head-previous", (0, 0)),
    ("head-other", (1, 1)),
]


@pytest.mark.parametrize("pair", [(1, 0), [1, 0], np.array([1, 0]), (np.int64(1), np.int64(0))])
def test_the_head_that_copies_is_right(pair):
    result = check((decoder(), pair), task="induction-head")
    assert result.points == RIGHT, str(result)


@pytest.mark.parametrize(("key", "pair"), HEADS)
def test_mistakes_in_a_head_are_named(key, pair):
    result = check((decoder(), pair), task="induction-head", seed=7)
    assert result.mistakes == (key,), str(result)


def test_a_decoder_without_an_induction_head_is_recognized():
    nowhere = decoder("copies[i, behind or [0]]", "copies[i, [0]]")
    assert check((nowhere, (1, 0)), task="induction-head").mistakes == ("head-none",)
    assert check((..., (1, 0)), task="induction-head").mistakes == ("not-filled-in",)
    assert check(("a folder", (1, 0)), task="induction-head").mistakes == ("story-model-other",)


# -- without the induction head ------------------------------------------------------------------

RETURN = "return p[returns].mean(), p[rest].mean()"
WRONG_REMOVALS = [
    ("removal-ignored", ", ablate=heads", ""),
    ("removal-exchanged", "ablate=heads", "ablate=[one[::-1] for one in heads]"),
    ("removal-kept", "ablate=heads", "ablate=[one for one in [(0, 0), (0, 1), (1, 0), (1, 1)]"
     " if one not in [*map(tuple, heads)]]"),
    ("removal-this-word", "np.arange(len(ids) - 1), ids[1:]", "np.arange(len(ids) - 1), ids[:-1]"),
    ("removal-order", RETURN, "return p[rest].mean(), p[returns].mean()"),
    ("removal-first-mentions", " if ids[i] in ids[:i]", ""),
    ("removal-all-words", "p[rest]", "p"),
    ("removal-all-words", "p[rest]", "np.delete(p, returns)"),
    ("removal-last-names", "returns = [i for", "returns = [i + 1 for"),
    ("removal-logits", "p = e / e.sum(axis=1, keepdims=True)", "p = logits"),
    ("removal-losses", RETURN, "p = -np.log(p); " + RETURN),
    ("removal-losses", RETURN, "p = np.log(p); " + RETURN),
    ("returns-nothing", RETURN, "None"),
    ("removal-no-function", "without(ids, heads)", "without(heads)"),
    ("call-arguments", "ablate=heads", "remove=heads"),
]  # fmt: skip


def removal(old="", new=""):
    model = decoder()
    return model, made(WITHOUT, "without", old, new, story_model=model)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("given", ["tuple", "list", "array"])
def test_a_measure_without_heads_is_right(given, seed):
    change = {"list": "return [p[returns].mean(), p[rest].mean()]",
              "array": "return np.array([p[returns].mean(), p[rest].mean()])"}  # fmt: skip
    pair = removal(RETURN, change.get(given, RETURN))
    result = check(pair, task="head-removed", seed=seed)
    assert result.points == RIGHT, str(result)


@pytest.mark.parametrize(("key", "old", "new"), WRONG_REMOVALS)
def test_mistakes_in_a_measure_are_named(key, old, new):
    result = check(removal(old, new), task="head-removed", seed=7)
    assert result.mistakes == (key,), str(result)


def test_a_missing_measure_is_reported():
    def without(ids, heads): ...

    for one in (without, ..., 3):
        result = check((decoder(), one), task="head-removed")
        assert result.points == 0
        assert result.mistakes[0] in ("not-filled-in", "removal-no-function")
    assert check((None, removal()[1]), task="head-removed").mistakes == ("not-filled-in",)


# -- all five tasks in a notebook, and their time limits ------------------------------------------

CELLS = {
    "story": STORY,
    "story-model": f"WORDS = {WORDS}\n{DECODER}\n"
    "story_model = Decoder([story(seed) for seed in range(200)], WORDS)",
    "induction-score": SCORE,
    "induction-head": "induction_head = (1, 0)",
    "head-removed": WITHOUT,
}


@pytest.fixture
def lesson(book, quick):
    def write(**changed):
        cells = CELLS | {name.replace("_", "-"): cell for name, cell in changed.items()}
        first = "import numpy as np\nfrom types import SimpleNamespace"
        return book(first, *cells.values(), tasks=[*CELLS])

    return write


def test_a_notebook_is_marked_for_its_five_tasks(lesson):
    marked = check_file(lesson(), seed=3)
    assert [(one.task, one.points) for one in marked] == [(name, RIGHT) for name in CELLS]


def test_mistakes_in_a_notebook_are_named(lesson):
    model = CELLS["story-model"].replace("+= 6", "+= 0")
    removed = WITHOUT.replace(RETURN, "return p[rest].mean(), p[returns].mean()")
    changed = {"story_model": model, "induction_head": "induction_head = ..."}
    marked = check_file(lesson(**changed, head_removed=removed))
    found = ["", "story-model-pairs", "", "not-filled-in", "removal-order"]
    assert [" ".join(one.mistakes) for one in marked] == found
    missing = check_file(lesson(story_model="1 / 0"))
    found = ["", "missing-function", "", "missing-function", "missing-function"]
    assert [" ".join(one.mistakes) for one in missing] == found


@pytest.mark.attack
def test_a_decoder_has_more_time_to_be_trained_in_than_other_tasks(lesson, monkeypatch):
    for name in CELLS:
        seconds = 1.5 if name == "story-model" else 0.5
        monkeypatch.setitem(TASKS, name, replace(TASKS[name], seconds=seconds))
    loops = SCORE.replace("    found = []", "    while True: pass\n    found = []")
    # the time limit of the notebook is 9 s with this task, and 3 s without this task
    trains = f"{CELLS['story-model']}\nimport time; time.sleep(4)"
    marked = {
        one.task: one for one in check_file(lesson(story_model=trains, induction_score=loops))
    }
    assert marked["story-model"].points == RIGHT
    assert marked["induction-score"].mistakes == ("endless-loop",)
    assert "the process was ended after 0.5 s" in marked["induction-score"].message


def test_most_tasks_have_ten_seconds_and_a_limit_applies_to_all(lesson, monkeypatch):
    # cells have no more time than tasks, so that a busy machine can mark each task in this time
    monkeypatch.setattr("qkv_marking.files._mark_file._CELL", 1)
    assert {name for name, task in TASKS.items() if task.seconds != 10} == {
        *("story-model", "induction-head", "head-removed"),
    }
    sleeps = f"{CELLS['story-model']}\nimport time; time.sleep(60)"
    results = check_file(lesson(story_model=sleeps), seconds=3)
    assert all(one.passed for one in results)  # the model was trained before the endless cell
    assert all("does not end within its time limit" in one.message for one in results)
