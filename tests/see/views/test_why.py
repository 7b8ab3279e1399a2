"""Tests of `qkv.why` against `Model.predict` and `Model.trace` of the same masks."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.models.tasks.predict import log_softmax
from qkv.see.analysis import units_of
from qkv.text import Tokenized
from rows import failing

GAP = "The sun rises in the [MASK]."
NEXT = "the king of the"
LONG = "the old king of the north went down to the sea with his son and the queen of the"


def share_of(model: Any, text: str, answer: list[int], hide: list[Any], more: Any) -> float:
    """Return the probability of an answer's tokens, from a trace with masked keys."""
    tokens, positions = model.blanks(text)
    edits = {**more, "hide": [*more.get("hide", []), *hide]}
    ids = np.append(tokens.ids, answer[:-1]).astype(np.int64) if model.generates else text
    logits = model.trace(ids, names=[], logits=True, **edits)["logits"][0, positions[0] :]
    return math.exp(log_softmax(logits)[range(len(answer)), answer].sum())


@pytest.mark.parametrize(
    ("name", "text"),
    [("books", GAP), pytest.param("books-decoder", LONG, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("more", [{}, {"ablate": [(0, 1)], "hide": [2]}], ids=["plain", "edited"])
def test_each_number_is_that_of_a_trace_with_masked_keys(name: str, text: str, more: Any) -> None:
    model = qkv.load(name)
    answer = None if name == "books" else "embarrassingly"
    view = model.why(text, answer=answer, from_layer=1, links=3, **more)
    ids, layers = list(view.answer_ids), range(model.num_layers)
    assert len(ids) > (name == "books-decoder")
    at = model.blanks(text)[1][0]
    queries = range(at, at + len(ids))

    def share(hide: list[Any]) -> float:
        return share_of(model, text, ids, hide, more)

    def log_odds(p: float) -> float:
        return math.log(p / (1 - p))

    whole = share([])
    assert view.probability == pytest.approx(whole, rel=1e-5)
    for number, (first, stop) in enumerate(view.spans):
        keys = range(first, stop)
        hidden, direct = share([*keys]), share([*product(queries, keys)])
        found = view.effects[number], view.direct[number], view.log_odds[number]
        expected = whole - hidden, whole - direct, log_odds(whole) - log_odds(hidden)
        np.testing.assert_allclose(found[:2], expected[:2], rtol=0, atol=1e-6)
        assert found[2] == pytest.approx(expected[2], rel=1e-3, abs=1e-4)
    keys = range(*view.spans[1])
    tokens = range(len(model.blanks(text)[0]) + len(ids) - 1)
    for layer in layers:
        late = [(q, k, n) for q, k, n in product(tokens, keys, layers) if n >= layer]
        assert view.from_layer[layer] == pytest.approx(share(late), rel=1e-4)
    assert view.from_layer[-1] == view.probability
    assert view.largest is not None
    heads = {}
    for layer, head in product(layers, range(model.num_heads)):
        edges = [(q, k, layer, head) for q in queries for k in range(*view.spans[view.largest])]
        heads[layer, head] = whole - share(edges)
    largest = sorted(heads, key=lambda one: -heads[one])[:3]
    assert [(layer, head) for layer, head, *_ in view.links] == largest
    np.testing.assert_allclose(
        [effect for *_, effect in view.links], [heads[one] for one in largest], atol=1e-6
    )
    trace = model.trace(text, **more)
    seen = np.mean([trace["pattern", n][0, :, at].mean(0) for n in layers], axis=0)
    sums = [seen[first:stop].sum() for first, stop in view.spans]
    np.testing.assert_allclose(view.attention, sums, atol=1e-6)
    assert view.rest == pytest.approx(1 - sum(sums), abs=1e-6)
    for hidden, span in zip(view.instead, view.spans, strict=True):
        hide = [*more.get("hide", []), *range(*span)]
        [[(word, one), *_]] = model.predict(text, 1, **{**more, "hide": hide})
        assert hidden[0].startswith(word.removeprefix("##"))
        assert hidden[1] <= one + 1e-6


WORDS = {
    'He said: "don\'t pay 3.14!" (ok)': [
        *("He", "said", ":", '"', "don't", "pay", "3.14", '!"', "(", "ok", ")"),
    ],
    "天气 very\n\nnice U.S.A.": ["天", "气", "very", "nice", "U.S.A", "."],
    "🎉 e\u0301a ==": ["🎉", "e\u0301a", "=="],
}


def test_words_are_unions_of_whole_tokens() -> None:
    """Each character is a token here, or each pair of characters, which may cross a border."""
    for text, expected in WORDS.items():
        for size in (1, 2):
            spans = [(at, min(at + size, len(text))) for at in range(0, len(text), size)]
            names = [text[first:stop] for first, stop in spans]
            found = units_of(Tokenized(np.zeros(0), names, spans, [False] * len(names), text=text))
            with failing(text, size):
                if size == 1:
                    assert [unit.text for unit in found] == expected
                assert [unit.first for unit in found[1:]] == [unit.stop for unit in found[:-1]]
                assert (found[0].first, found[-1].stop) == (0, len(names))
    pieces = Tokenized(
        np.zeros(0),
        ["[CLS]", "a", "##b", "[MASK]", "天", "天", "[SEP]"],
        [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (3, 4), (0, 0)],
        [True, False, False, False, False, False, True],
        text="ab_天",
    )
    assert [unit[1:] for unit in units_of(pieces, mask="[MASK]")] == [(1, 3), (4, 6)]
    assert [unit[1:] for unit in units_of(pieces, "token", "[MASK]")] == [
        *[(1, 2), (2, 3), (4, 5), (5, 6)],
    ]


def test_the_word_with_the_largest_effect() -> None:
    """The largest effect is that of a content word: not of the first or the last of a decoder."""
    view = qkv.why(NEXT, "books-decoder")
    assert view.words[view.own] == "the"
    assert view.own == len(view.words) - 1
    tokens = view.tokens
    assert view.first == (None if tokens.special[0] else 0)
    others = {"king"} if view.first == 0 else {"king", "the"}
    assert view.words[view.largest] in others
    assert "stands out" not in str(view)
    view = qkv.why(GAP, words=[0, 2])
    assert np.isfinite(view.effects).tolist() == [True, False, True, False, False, False]
    assert view.largest == 2  # "rises"; the other word is "The"
    assert view.instead[1] is None
    assert (view.own, view.first) == (None, None)
    [alone] = qkv.why("x [MASK]").effects
    assert math.isnan(alone)
    assert "one word" in qkv.why("x [MASK]").sentence


def test_answers_given_as_text() -> None:
    model = qkv.load("books-decoder")
    (guess, share), *_ = model.predict(NEXT)[0]
    assert model.why(NEXT, answer=guess).probability >= share - 1e-6
    assert model.why(NEXT, answer=f" {guess}").answer == guess
    view = qkv.why(GAP, answer="sky")
    assert view.answer_ids == [qkv.load().tokenizer.id_of("sky")]
    assert view.sentence.startswith(f"books says sky: {view.probability:.2f}.")
    two = qkv.why("The [MASK] rises in the [MASK].", position=2)
    assert two.probability == pytest.approx(
        qkv.load().predict("The [MASK] rises in the [MASK].")[0][0][1]
    )


def test_bad_input() -> None:
    for options, message in (
        ({"answer": "zzzzqq"}, "why: answer is 'zzzzqq', but an answer is one token"),
        ({"position": 1}, "why: position is 1, but the guesses of this text are at 6"),
        ({"units": "line"}, "units is 'line'; choose word or token"),
        (
            {"words": ["moon"]},
            "words is 'moon', which is not a word of the text; pass an index: 0 T",
        ),
        ({"from_layer": 9}, "from_layer"),
        ({"links": -1}, "links"),
        ({"model": "random"}, "mask token|predict"),
    ):
        with failing(options), pytest.raises(ValueError, match=message):
            qkv.why(GAP, **options)
    with pytest.raises(ValueError, match="stands 2 times"):
        qkv.why("the sun and the [MASK]", from_layer="the")


def test_the_view(tmp_path: Any) -> None:
    view = qkv.why(GAP, from_layer="sun", links=2)
    drawn, text = view.svg(), str(view)
    answer = view.answer
    for part in (
        f"Why {answer}?",
        f"How much of {answer}'s probability is lost when no word may look",
    ):
        assert part in text
    assert "The bars do not add up: words that say the same each lose little." in drawn
    assert all(f"{effect:+.2f}" in drawn for effect in view.effects)
    numbers = view.to_dict()
    assert [word["effect"] for word in numbers["words"]] == view.effects.tolist()
    assert numbers["from_layer"] == view.from_layer.tolist()
    frame = view.to_pandas()
    assert frame["effects"].tolist() == view.effects.tolist()
    assert frame["word"].tolist() == list(view.words)
    view.to_html(tmp_path / "why.html")
    assert f"Why {answer}?" in (tmp_path / "why.html").read_text()
