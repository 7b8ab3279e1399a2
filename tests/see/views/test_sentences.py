"""Tests that the sentences and numbers of views agree with the trace."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qkv.layers import MultiHeadAttention
from qkv.models import Model, random_model
from qkv.see import (
    CompareView,
    RunsView,
    ShiftView,
    ShowView,
    View,
    compare,
    plot_shift,
    show,
    walk,
)
from qkv.see.analysis.measures import strongest_links
from qkv.see.analysis.word_vectors import fit_plane
from qkv.trace import Trace

from ..support import BANK, CAT, MONEY, made_trace


def test_the_shown_head_is_the_one_that_stands_out_most(minilm: Model) -> None:
    view = show(BANK, model=minilm)
    trace = minilm.trace(BANK)
    words, content = range(1, 9), (2, 5, 8)  # sat, bank, river

    def stands_out(weights: np.ndarray) -> tuple[float, float, int, int]:
        weight, i, j = max((weights[i, j], i, j) for i in content for j in content if i != j)
        along = np.mean([weights[k, k + j - i] for k in words if k + j - i in words])
        onto = np.mean([weights[k, j] for k in words if k not in (i, j)])
        return weight - max(2 * along, onto), weight, i, j

    found = {
        (layer, head): stands_out(trace.pattern(layer, head).astype(np.float64))
        for layer in range(6)
        for head in range(12)
    }
    best = max(found, key=lambda place: found[place])
    assert (view.head.layer, view.head.head) == best
    _, weight, i, j = found[best]
    where = f"layer {best[0]}, head {best[1]}"
    names = trace.tokens[i], trace.tokens[j]
    assert view.sentence == f"{names[0]} attends to {names[1]}: {weight:.2f} ({where})."
    said = " ".join(str(view).split())
    assert "because its link between two content words stands out most among all layers" in said


def test_a_requested_head_is_shown_with_its_weights(lesson: Model) -> None:
    view = show(CAT, model=lesson, layer=0, head=1)
    np.testing.assert_array_equal(view.weights, lesson.trace(CAT).pattern(layer=0, head=1))
    text = str(view)
    assert "Weights of layer 0, head 1" in text
    for i, row in enumerate(view.weights):
        (line,) = [
            line
            for line in text.splitlines()
            if re.findall(r"\d\.\d\d", line) == [f"{x:.2f}" for x in row]
        ]
        assert line.split()[0] == view.tokens[i]


def test_movement_is_shown_for_each_word(minilm: Model) -> None:
    view = show(BANK, model=minilm)
    trace = minilm.trace(BANK)
    after = str(view).partition("How far each word moved")[2]
    for i, token in enumerate(trace.tokens[1:-1], 1):
        static, last = trace["embed"][0, i], trace.hidden_states[-1][0, i]
        cosine = static @ last / np.linalg.norm(static) / np.linalg.norm(last)
        found = re.search(rf"^{re.escape(token)} +{cosine:.3f} ", after, re.MULTILINE)
        assert found, token
        assert f"{np.linalg.norm(static):.2f} → {np.linalg.norm(last):.2f}" in after
    assert "[CLS]" not in after


def test_json_is_the_trace_to_the_last_bit(lesson: Model) -> None:
    view = show(CAT, model=lesson)
    data = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    trace = lesson.trace(CAT)
    assert data["tokens"] == trace.tokens
    weights = np.array(data["weights"], dtype=np.float32)
    np.testing.assert_array_equal(weights, trace.pattern(data["layer"], data["head"]))
    assert data["chosen"] == view.head.reason
    assert data["links"][0]["weight"] == view.head.link.weight
    assert data["links"][0]["from_token"] == view.tokens[data["links"][0]["from"]]
    assert [entry["token"] for entry in data["movement"]] == trace.tokens
    assert data["model"] == "random"


def test_a_trace_is_shown_like_its_text(lesson: Model) -> None:
    assert str(show(lesson.trace(CAT))) == str(show(CAT, model=lesson))
    assert str(show(lesson.trace([CAT, BANK])[1])) == str(show(BANK, model=lesson))


def test_a_list_of_one_text_is_a_text(lesson: Model) -> None:
    assert show(lesson.trace([CAT])).tokens == lesson.trace(CAT).tokens


def test_the_view_says_if_a_text_has_too_few_content_words(lesson: Model) -> None:
    text = " ".join(str(show("cat", model=lesson)).split())
    assert "No head stands out in this sentence, because the model is untrained: no" in text
    assert "This head is shown because it is the first of all layers and heads" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_view_fits_its_screen(lesson: Model, width: int) -> None:
    import io

    from rich.console import Console

    for view in (show(BANK, model=lesson), compare(BANK, MONEY, word="bank", model=lesson)):
        console = Console(file=io.StringIO(), width=width, _environ={})
        view.print(console)
        assert max(map(len, console.file.getvalue().splitlines())) <= width


def test_a_view_is_printed_even_if_columns_is_0(
    lesson: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    view = show(CAT, model=lesson)
    view.print()
    assert view.sentence in " ".join(capsys.readouterr().out.split())


def test_compare_gives_the_similarity_of_each_layer(minilm: Model) -> None:
    view = compare(BANK, MONEY, word="bank", model=minilm)
    a, b = minilm.trace(BANK), minilm.trace(MONEY)
    for found, state_a, state_b in zip(
        view.similarity, a.hidden_states, b.hidden_states, strict=True
    ):
        x, y = state_a[0, 5].astype(np.float64), state_b[0, 2].astype(np.float64)
        assert found == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)), abs=1e-9)
    # transformers 5.23.0 gives these numbers
    assert view.similarity[0] == pytest.approx(0.958, abs=5e-4)
    assert view.similarity[-1] == pytest.approx(0.795, abs=5e-4)
    assert "vectors: 0.958 at the embeddings, 0.795 after the last layer" in view.sentence
    assert view.sentence.startswith("bank attends to river in A (0.71) and to [CLS] in B (0.33)")
    for side, name in zip(view.sides, ("river", "[CLS]"), strict=True):
        row = side.trace.pattern(view.head.layer, view.head.head)[side.positions[0]]
        assert side.trace.tokens[row.argmax()] == name
    assert (view.head.layer, view.head.head) == (0, 4)
    np.testing.assert_array_equal(view.sides[0].weights, a.pattern(layer=0, head=4)[5])
    np.testing.assert_array_equal(view.sides[1].weights, b.pattern(layer=0, head=4)[2])
    text = str(view)
    assert re.search(r"^river  0.71 ", text, re.MULTILINE)
    assert re.search(r"^river  0.71  --layer 0 --head 4 ", text, re.MULTILINE)


def test_the_first_word_in_a_decoder_looks_at_itself() -> None:
    """In a decoder, the first word attends only to itself."""
    texts = ["cat sat", "cat ran", "the cat"]
    model = random_model(texts, causal=True)
    first, second, third = texts
    view = compare(first, second, word="cat", model=model)
    assert "cat attends to itself in A (1.00) and to itself in B (1.00): " in view.sentence
    said = compare(first, third, word="cat", model=model).sentence
    assert re.search(r"cat attends to itself in A \(1\.00\) and to itself in B \(0\.\d\d\): ", said)


def test_compare_shows_both_sentences_in_every_medium(lesson: Model) -> None:
    view = compare(f"  {BANK}", MONEY, word="bank", model=lesson)
    for name, text in (("A", BANK), ("B", MONEY)):
        assert f"\n{name}: {text}\n" in str(view)
        assert f"{name}: {text}" in view.svg()
    assert [one["text"] for one in view.to_dict()["texts"]] == [BANK, MONEY]


def test_a_word_of_several_subwords_is_compared_by_their_mean(minilm: Model) -> None:
    view = compare("Tokenization helps.", "We like tokenization", word="tokenization", model=minilm)
    first, second = view.sides
    assert (first.positions, second.positions) == ([1, 2], [3, 4])
    means = [
        side.trace.hidden_states[-1][0, side.positions].mean(axis=0).astype(np.float64)
        for side in (first, second)
    ]
    cosine = means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])
    assert view.similarity[-1] == pytest.approx(cosine, abs=1e-5)
    pattern = first.trace.pattern(view.head.layer, view.head.head)
    np.testing.assert_allclose(first.weights, (pattern[1] + pattern[2]) / 2, atol=1e-6)


def test_compare_uses_the_first_occurrence_of_a_repeated_word(lesson: Model) -> None:
    view = compare("the cat and the mat", "sat on the mat", word="the", model=lesson)
    assert (view.sides[0].positions, view.sides[0].occurrences) == ([0], 2)
    assert "the occurs 2 times: the first occurrence is used" in str(view)
    assert view.to_dict()["texts"][0]["occurrences"] == 2


def test_json_of_compare(lesson: Model) -> None:
    view = compare(BANK, MONEY, word="bank", model=lesson)
    data = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert data["similarity"] == view.similarity.tolist()
    for text, side in zip(data["texts"], view.sides, strict=True):
        assert text["weights"] == side.weights.tolist()
        assert text["tokens"][text["positions"][0]] == "bank"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("zebra", ("'zebra' is in neither text: the first has the words i, sat, on, .*; the")),
        ("river", "'river' is not in the second text: its words are the, bank, raised"),
        ("raised", "'raised' is not in the first text: its words are i, sat, on"),
        ("", "is in neither text"),
        ("ban", "is in neither text"),
    ],
)
def test_the_error_for_a_missing_word_lists_the_available_words(
    lesson: Model, word: str | None, said: str
) -> None:
    with pytest.raises(ValueError, match=f"compare: .*{said}"):
        compare(BANK, MONEY, word=word, model=lesson)


def test_compare_without_a_word_takes_a_shared_content_word(lesson: Model) -> None:
    view = compare(BANK, MONEY, model=lesson)  # the texts also share "the"
    assert (view.word, view.why) == ("bank", "it is the only content word that both texts share")
    assert "The word is bank because it is the only content word" in " ".join(str(view).split())
    texts = "the cat sat on the river bank", "the bank on the mat, the cat"
    several = compare(*texts, model=lesson)
    last = {
        word: compare(*texts, word=word, model=lesson).similarity[-1] for word in ("cat", "bank")
    }
    assert several.word == min(last, key=lambda word: last[word])
    assert several.why.endswith(
        "the least similar among the content words that both texts share (cat, bank)"
    )
    arrays = [lesson.trace(text) for text in texts]
    plain = compare(*(list(trace.attentions) for trace in arrays),
                    tokens=[trace.tokens for trace in arrays])  # fmt: skip
    assert isinstance(plain, CompareView)
    assert plain.why == "it is the first of the content words that both texts share (cat, bank)"
    assert compare("the mat sat", "the bank sat on a cat", word=None, model=lesson).word == "sat"


def test_heads_are_ranked_for_the_requested_words(minilm: Model) -> None:
    trace = minilm.trace(BANK)
    sat, bank, river = 2, 5, 8
    words = range(1, 9)

    def stands_out(weights: np.ndarray, i: int, j: int) -> float:
        along = np.mean([weights[k, k + j - i] for k in words if k + j - i in words])
        onto = np.mean([weights[k, j] for k in words if k not in (i, j)])
        return weights[i, j] - max(2 * along, onto)

    heads = {
        (layer, head): trace.pattern(layer, head).astype(float)
        for layer in range(6)
        for head in range(12)
    }
    one = {place: stands_out(weights, sat, bank) for place, weights in heads.items()}
    view = show(BANK, model=minilm, query="Sat", key="bank")
    assert places(view) == max(one, key=lambda place: one[place])
    weight = heads[places(view)][sat, bank]
    assert view.sentence.startswith(f"sat attends to bank: {weight:.2f} (layer ")
    others = [(link.layer, link.head) for link in view.elsewhere if link.stands_out > 0]
    assert others == sorted(others, key=lambda place: -one[place])
    assert {(link.query, link.key) for link in view.elsewhere} == {(sat, bank)}
    assert "Other heads with this link" in str(view)
    assert show(trace, query=sat, key=bank - 11).sentence == view.sentence
    for asked, at in (({"query": "river"}, "query"), ({"key": "river"}, "key")):
        link = show(BANK, model=minilm, **asked).head.link
        assert link is not None
        assert getattr(link, at) == river
    assert show(trace, key="[SEP]").head.link.key == 10


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"query": "zebra"}, ValueError, "show: 'zebra' is not in the text: its words are the"),
        ({"key": 6}, IndexError, "show: key=6 is out of range: tokens are numbered 0 to 5"),
        ({"key": -7}, ValueError, "show: key .*-7"),
        ({"key": 1.5}, TypeError, "show: key"),
        ({"query": "cat", "key": "mat"}, ValueError, "show: no head attends from this query to"),
    ],
)
def test_an_invalid_link_is_refused(asked: dict, error: type, said: str) -> None:
    model = random_model(CAT, causal=True)
    with pytest.raises(error, match=said):
        show(CAT, model=model, **asked)


def test_two_unknown_words_are_not_one_word(lesson: Model) -> None:
    with pytest.raises(ValueError, match="'zebra' is in neither text"):
        compare("a zebra sat", "a gnu sat", word="zebra", model=lesson)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda m: show("", model=m), ValueError, "show: the text is empty"),
        (lambda m: show(" \n", model=m), ValueError, "show: the text is empty"),
        (lambda m: compare("a", " ", model=m), ValueError, "compare: the second text is empty"),
        (lambda m: compare("", "a", model=m), ValueError, "compare: the first text is empty"),
        (lambda m: show(b"text", model=m), TypeError, "show: the text is bytes"),
        (lambda m: show(7, model=m), TypeError, "show: the text is int"),
        (lambda m: show("a\udcff", model=m), ValueError, "show: the text has the lone surrogate"),
        (lambda m: show(m.trace([CAT, BANK])), ValueError, "show: this trace holds 2 texts"),
        (lambda m: show(CAT, model=m, layer=1), IndexError, "the layers are 0 only"),
        (lambda m: compare(CAT, CAT, word="cat", model=m, head=9), IndexError, "heads are 0 to 1"),
        (lambda m: show(CAT, model="randon"), ValueError, "the nearest names are random"),
    ],
)
def test_bad_input_is_one_clear_error(call, error: type, said: str, lesson: Model) -> None:
    with pytest.raises(error, match=said):
        call(lesson)


def test_the_random_model_knows_the_words_of_its_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show("zebras graze", model="random").tokens == ["zebras", "graze"]
    assert isinstance(compare("a gnu", "the gnu", word="gnu", model="random"), CompareView)
    monkeypatch.setenv("QKV_MODEL", "random")
    view = show("zebras graze")
    assert isinstance(view, ShowView)
    assert view.tokens == ["zebras", "graze"]


def test_a_long_text_does_not_flood_the_screen(lesson: Model) -> None:
    text = " ".join([BANK, MONEY, CAT] * 15)
    view = show(text, model=lesson)
    assert len(view.tokens) > 250
    assert len(str(view).splitlines()) < 80
    assert f"and {len(view.tokens) - 60} more" in str(view)


def test_a_trace_of_weights_alone_can_be_shown() -> None:
    view = show(made_trace(["a", "b"], np.array([[[[0.25, 0.75], [0.5, 0.5]]]])), layer=0, head=0)
    assert view.sentence == "a attends to b: 0.75 (layer 0, head 0)."
    assert view.movement is None
    assert view.to_dict()["movement"] is None
    assert "moved" not in str(view)
    arrays = {"blocks.0.attn.hook_pattern": np.full((1, 1, 1, 1), 1.0)}
    bare = show(Trace(arrays, tokens=[["a"]]))  # the trace does not say which tokens are special
    assert str(bare).startswith("1 token: a\n")


@pytest.mark.parametrize("view", [show, walk])
def test_an_interpreter_prints_the_view_itself(view: Callable[..., View]) -> None:
    shown = view("the cat sat", model="random")
    assert repr(shown) == str(shown)
    assert "layer 0, head" in repr(shown).lower()


# Weights from other libraries


def test_arrays_are_shown_like_a_trace(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    view = show(list(trace.attentions), tokens=trace.tokens)
    assert view.head.link == show(trace).head.link
    np.testing.assert_array_equal(view.weights, show(trace).weights)
    assert show(np.array([layer[0] for layer in trace.attentions]), tokens=CAT.lower().split())


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_token_ids_are_shown_like_their_trace(kind: Callable, lesson: Model) -> None:
    ids, other = lesson.trace(CAT).ids, lesson.trace(MONEY).ids
    first, second = lesson.trace(ids), lesson.trace(other)
    same = compare(kind(ids), kind(ids), model=lesson)
    assert isinstance(same, RunsView)
    assert str(same) == str(compare(first, first, model=lesson))
    for given, expected in [
        ((kind(ids), kind(other)), (first, second)),
        ((first, kind(other)), (first, second)),
        ((kind(ids), second), (first, second)),
    ]:
        found = compare(*given, model=lesson)
        assert str(found) == str(compare(*expected, model=lesson))
    assert str(show(kind(ids), model=lesson)) == str(show(first, model=lesson))
    assert str(walk(kind(ids), model=lesson)) == str(walk(first, model=lesson))


def test_ids_beside_a_text_share_no_word(lesson: Model) -> None:
    ids = lesson.trace(CAT).ids
    for pair in ((ids, CAT), (CAT, ids)):
        with pytest.raises(ValueError, match=f"the texts share no word: .*{ids[1]}, "):
            compare(*pair, model=lesson)


def test_the_word_of_ids_is_an_id(lesson: Model) -> None:
    ids = lesson.trace(CAT).ids
    view = compare(ids, ids, word=str(ids[2]), model=lesson)
    assert [side.positions for side in view.sides] == [[2], [2]]


def test_special_tokens_of_arrays_are_known_by_their_looks() -> None:
    weights = np.array([[[[0.1, 0.5, 0.4], [0.9, 0.0, 0.1], [0.6, 0.4, 0.0]]]])
    view = show(weights, tokens=["<s>", "a", "b"], layer=0, head=0)
    assert view.sentence == "b attends to a: 0.40 (layer 0, head 0)."


@pytest.mark.parametrize(
    ("given", "options", "error", "said"),
    [
        (np.ones((1, 1, 1, 1)), {}, TypeError, "weights need tokens; pass tokens"),
        ([np.ones((1, 1, 1, 1))], {}, TypeError, "weights need tokens"),
        (np.ones((1, 1, 1, 1)), {"tokens": ["a", "b"]}, ValueError, "1 queries, .* 2 tokens"),
        ([], {}, TypeError, "the text is list"),
    ],
)
def test_arrays_need_their_tokens(given, options: dict, error: type, said: str) -> None:
    with pytest.raises(error, match=f"show: .*{said}"):
        show(given, **options)


def test_arrays_of_two_texts_are_compared_without_vectors(lesson: Model) -> None:
    a, b = lesson.trace(BANK), lesson.trace(MONEY)
    view = compare(list(a.attentions), list(b.attentions), tokens=(a.tokens, b.tokens), word="bank")
    assert view.similarity.size == 0
    sides = view.sides
    np.testing.assert_array_equal(
        sides[0].weights, a.pattern(view.head.layer, view.head.head)[sides[0].positions[0]]
    )
    (in_a, first), (in_b, second) = (
        max(zip(side.weights.tolist(), side.trace.tokens, strict=True)) for side in sides
    )
    assert view.sentence == (
        f"No head stands out for bank. Where its attention differs most, bank attends to {first} "
        "in A "
        f"({in_a:.2f}) and to {second} in B ({in_b:.2f}): "
        f"layer {view.head.layer}, head {view.head.head}."
    )
    assert "cosine" not in str(view)
    assert view.to_dict()["similarity"] == []
    with pytest.raises(ValueError, match="compare: `tokens` has 1 lists"):
        compare(list(a.attentions), list(b.attentions), tokens=[a.tokens], word="bank")


def test_traces_are_compared_like_their_texts(minilm: Model) -> None:
    a, b = minilm.trace(BANK), minilm.trace(MONEY)
    view, texts = compare(a, b, word="Bank"), compare(BANK, MONEY, word="bank", model=minilm)
    np.testing.assert_array_equal(view.similarity, texts.similarity)
    assert (view.head.layer, view.head.head) == (texts.head.layer, texts.head.head)
    long = compare(minilm.trace("Tokenization helps."), minilm.trace("We like tokenization"),
                   word="tokenization")  # fmt: skip
    assert [side.positions for side in long.sides] == [[1, 2], [3, 4]]
    assert view.sides[0].heads.norms == []
    assert len(compare(a, b, word="bank", model=minilm).sides[0].heads.norms) == 6
    with pytest.raises(ValueError, match="'zebra' is in neither text"):
        compare(a, b, word="zebra")


@pytest.mark.parametrize("word", ["bank", None])
@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"dim": 16}, r"\(random\) has 8 numbers in a vector, but the second \(other\) has 16: "),
        ({"heads": 4}, r"\(random\) has 2 heads in a layer, but the second \(other\) has 4: "),
    ],
)
def test_traces_of_models_of_other_sizes_are_not_compared(
    sizes: dict, said: str, word: str | None, lesson: Model
) -> None:
    other = random_model([BANK, MONEY], **sizes)
    other.name = "other"
    with pytest.raises(ValueError, match=f"compare: the first trace {said}trace both with models"):
        compare(lesson.trace(BANK), other.trace(MONEY if word else BANK), word=word)


def test_traces_of_models_of_other_depths_are_not_compared(lesson: Model, minilm: Model) -> None:
    said = r"the first trace \(random\) has 1 layers, but the second \(minilm\) has 6"
    with pytest.raises(ValueError, match=said):
        compare(lesson.trace(BANK), minilm.trace(MONEY), word="bank")


def of_two_models() -> tuple[Trace, Trace, Trace]:
    """Trace a text in two different models, and another text in the second model."""
    first, second = (random_model([BANK, MONEY], seed=seed) for seed in (0, 1))
    first.name, second.name = "before", "after"
    return first.trace(BANK), second.trace(BANK), second.trace(MONEY)


@pytest.mark.parametrize("word", ["bank", None])
def test_compare_names_both_models(word: str | None) -> None:
    a, same, other = of_two_models()
    view = compare(a, other if word else same, word=word)
    told = view.to_dict()
    assert (told["model"], told["models"]) == ("before and after", ["before", "after"])
    named = ["A in before, B in after"] if word else ["'before' to 'after'", "before and after"]
    page = view._document()
    for one in named:
        assert one in " ".join(str(view).split())
        assert any(one in said for said in [*view.notes, view.sentence, told["model"]])
    assert "before and after" in page
    if not word:
        assert told["runs"] == ["before", "after"]


def test_one_model_is_named_once(lesson: Model) -> None:
    told = compare(lesson.trace(BANK), lesson.trace(MONEY), word="bank")
    assert (told.to_dict()["model"], told.to_dict()["models"]) == ("random", ["random"] * 2)
    assert not [note for note in told.notes if "models" in note]


def test_runs_of_two_models_name_their_ablations() -> None:
    a, _, _ = of_two_models()
    second = random_model([BANK, MONEY], seed=1)
    second.name = "after"
    view = compare(a, second.trace(BANK, ablate=[(0, 1)]))
    assert isinstance(view, RunsView)
    assert view.names == ("before", "after, without layer 0, head 1")


def test_runs_of_one_name_are_told_apart(lesson: Model) -> None:
    namesake = random_model([CAT, BANK, MONEY], seed=1)
    view = compare(lesson.trace(CAT), namesake.trace(CAT))
    assert isinstance(view, RunsView)
    assert view.names == ("A, as it is", "B, as it is")


def test_a_shift_through_two_models_names_both() -> None:
    a, _, other = of_two_models()
    view = plot_shift([a, other])
    assert view.to_dict()["models"] == ["before", "after"]
    assert "The texts ran in different models: 1 in before, 2 in after." in view.notes


# Two runs


def test_the_effect_of_ablating_a_head_is_measured_for_each_token(minilm: Model) -> None:
    a, b = minilm.trace(BANK), minilm.trace(BANK, ablate=[(0, 4)])
    view = compare(a, b)
    assert isinstance(view, RunsView)
    assert view.names == ("as it is", "without layer 0, head 4")
    before, after = (trace.hidden_states[-1][0].astype(np.float64) for trace in (a, b))
    for change in view.changes:
        x, y = before[change.token], after[change.token]
        assert change.distance == pytest.approx(np.sqrt(((y - x) ** 2).sum()))
        assert change.cosine == pytest.approx(x @ y / np.sqrt((x @ x) * (y @ y)))
        assert change.length == pytest.approx(np.sqrt(x @ x))
    assert [c.distance for c in view.changes] == sorted(
        (c.distance for c in view.changes), reverse=True
    )
    first = view.changes[0]
    assert view.sentence == (
        f"From 'as it is' to 'without layer 0, head 4' the output of {a.tokens[first.token]} "
        f"changes most: by {first.distance:.2f} (length in the first run {first.length:.2f}, "
        f"cosine {first.cosine:.3f})."
    )
    assert view.by_layer[0] == 0
    data = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert data["changes"][0]["place"] == first.token
    assert data["runs"] == list(view.names)
    text = str(view)
    assert re.search(rf"^{a.tokens[first.token]} +{first.distance:.3f} +█+ +{first.cosine:.3f}",
                     text, re.MULTILINE)  # fmt: skip


def test_compare_of_two_runs_shows_the_head_that_changed_most(minilm: Model) -> None:
    a, b = minilm.trace(BANK), minilm.trace(BANK, ablate=[(0, 4), (3, 1)])
    view = compare(a, b)
    apart = {
        (layer, head): np.abs(
            a.pattern(layer, head).astype(float) - b.pattern(layer, head)
        ).sum(axis=1).mean() / 2
        for layer in range(6)
        for head in range(12)
        if (layer, head) not in [(0, 4), (3, 1)]
    }  # fmt: skip
    best = max(apart, key=lambda place: apart[place])
    assert (view.head.layer, view.head.head) == best
    assert f": {apart[best]:.2f} of the weight moves to other keys" in view.head.reason
    asked = compare(a, b, layer=0, head=4)
    assert asked.head.reason == "it was requested"
    with pytest.raises(IndexError, match="compare: there is no head 12"):
        compare(a, b, head=12)


def test_two_equal_runs_show_no_change(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    view = compare(trace, trace)
    assert view.sentence == "From 'A, as it is' to 'B, as it is' no token's output changes."
    assert {change.distance for change in view.changes} == {0.0}
    assert str(view)


def test_runs_of_different_texts_or_without_vectors_are_refused(lesson: Model) -> None:
    with pytest.raises(ValueError, match="share no word: the first has mat; the second has river"):
        compare(lesson.trace("mat"), lesson.trace("river"))
    bare = lesson.trace(CAT, names=["pattern"])
    with pytest.raises(ValueError, match="a trace lacks the vectors after the last layer"):
        compare(bare, bare)


# Files


def test_a_file_that_cannot_be_written_leaves_nothing(lesson: Model, tmp_path: Path) -> None:
    view = show(CAT, model=lesson)
    for write in (view.to_html, view.to_svg):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            write(tmp_path / "no" / "a")
        with pytest.raises(IsADirectoryError):
            write(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Summaries


def test_a_trace_of_summaries_is_shown_by_its_links(minilm: Model) -> None:
    whole, kept = minilm.trace(BANK), minilm.trace(BANK, top_k=3)
    view, full = show(kept), show(whole)
    assert view.sentence == full.sentence
    assert places(view) == places(full)
    assert view.head.link.weight == pytest.approx(full.head.link.weight, abs=1e-5)
    pattern = whole.pattern(*places(view))
    largest = np.argsort(-pattern, axis=1)[:, :3]
    exact = [
        (link.query, link.key)
        for link in strongest_links(full.heads, *places(view))
        if link.key in largest[link.query]
    ]
    assert [(link.query, link.key) for link in view.links] == exact[:10]
    assert view.to_dict()["weights"] is None
    with pytest.raises(ValueError, match="only the largest weights of each query were kept"):
        _ = view.weights
    text = str(view)
    assert "the 3 largest weights of each query were kept" in text
    received = whole.pattern(*places(view)).sum(axis=0)
    assert re.search(
        rf"^{re.escape(whole.tokens[received.argmax()])} +{received.max():.2f}  █+$", text, re.M
    )


def places(view: ShowView) -> tuple[int, int]:
    return view.head.layer, view.head.head


def test_a_text_too_long_to_be_traced_whole_is_summarized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.see.analysis._view_inputs.WHOLE", 5)
    view = show(CAT, model="random")  # the text has 6 tokens
    assert view.heads.summary
    assert not view.heads.weights
    assert len(view.heads.norms) == 1
    assert view.movement is None
    assert show("the cat sat on mats", model="random").heads.weights
    assert compare(CAT, "a cat sat in the sun", word="cat", model="random").sides[0].heads.summary
    short = random_model(CAT)
    short.max_seq_length = 5  # the text is cut to 5 tokens, so all its weights are kept
    with pytest.warns(UserWarning, match="cut to 5 tokens"):
        assert show(CAT, model=short).heads.weights


# A walk through a layer


def test_a_layer_is_walked_through() -> None:
    layer = MultiHeadAttention(8, num_heads=4, num_kv_heads=2, rotary={}, seed=0)
    rng = np.random.default_rng(0)
    x, context = rng.normal(size=(3, 8)), rng.normal(size=(5, 8))
    view = walk(layer, head=3, x=x, context=context, tokens=list("abc"), keys=list("vwxyz"),
                q_offset=0)  # fmt: skip
    assert view.difference < 1e-6
    assert view.to_dict()["keys"] == list("vwxyz")
    text = str(view)
    assert "vwxyz"[int(view.walk.cell[1])] in text
    assert view._repr_html_()
    assert view.svg()
    with pytest.raises(TypeError, match="walk: a layer needs word vectors"):
        walk(layer)
    with pytest.raises(TypeError, match="walk: is_causal applies only to a walk through a layer"):
        walk(CAT, model="random", is_causal=True)


# The shift


def test_the_shift_of_a_trace_is_a_view(minilm: Model) -> None:
    trace = minilm.trace(BANK)
    view = plot_shift(trace)
    assert isinstance(view, ShiftView)
    static, last = (
        part[0, 1:-1].astype(float) for part in (trace["embed"], trace.hidden_states[-1])
    )
    cosine = (static * last).sum(1) / np.linalg.norm(static, axis=1) / np.linalg.norm(last, axis=1)
    data = view.to_dict()
    np.testing.assert_allclose(data["stages"][-1]["cosine"], cosine, atol=1e-6)
    own = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (static, last)]
    plane = fit_plane(*own)
    moved = np.linalg.norm(plane.contextual - plane.original, axis=1)
    place = moved.argmax()
    lowest = ", the lowest of all" if place == cosine.argmin() else ""
    assert view.sentence == (
        f"{trace.tokens[1 + place]} has the longest arrow: {moved[place]:.2f} in the plane. Before "
        "the projection onto the plane, all vectors are scaled to length 1, and then each set of "
        "vectors is centred. The cosine between the word's static vector and its vector after "
        f"layer 5 is {cosine[place]:.3f}{lowest}."
    )
    middle = trace.hidden_states[3][0, 8].astype(float)
    turned = middle @ static[7] / np.linalg.norm(middle) / np.linalg.norm(static[7])
    assert re.search(
        rf"^river .* {turned:.3f} .* {cosine[7]:.3f} +{moved[7]:.2f}$", str(view), re.MULTILINE
    )
    several = plot_shift([trace, minilm.trace(MONEY)])
    assert several.names[4] == "bank (1)"
    assert re.search(r"^bank +1 and 2 +1\.000 → +0\.795$", str(several), re.MULTILINE)
    assert ">bank (2)<" in several.svg()
    grid = several.panels()[2][0].values  # each word's cosine at each layer
    assert grid.shape == (16, 7)
    np.testing.assert_allclose(grid[:9, -1], cosine, atol=1e-6)


def test_lines_join_the_tokens_of_the_largest_weights(lesson: Model) -> None:
    trace = lesson.trace("the cat sat on the mat")
    view = show(trace, layer=0, head=1)
    lines = str(view).split("Links of layer 0, head 1")[1].splitlines()
    weights = trace.pattern(0, 1)
    for link, line in zip(view.links[:6], lines[1:], strict=False):
        said = line.split()
        assert said[0] == trace.tokens[link.query]
        assert said[-1] == trace.tokens[link.key]
        assert float(said[1]) == round(float(weights[link.query, link.key]), 2)


@pytest.mark.parametrize(
    "make", [lambda m: compare(CAT, BANK, word="sat", model=m), lambda m: walk(CAT, model=m)]
)
def test_printing_a_view_does_not_fit_a_plane(
    make, lesson: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = make(lesson)
    expected = str(view)

    def fit(*_: object, **__: object) -> None:
        raise AssertionError("a plane takes a third of a second of 900 words")

    monkeypatch.setattr("qkv.see.views.view.fit_plane", fit)
    assert str(view) == expected
    with pytest.raises(AssertionError, match="a plane"):
        view.svg()
