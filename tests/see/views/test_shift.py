"""Tests of the plane of words before attention and after each layer, against its definition."""

import json

import numpy as np
import pytest

from qkv.models import Model, random_model
from qkv.see import plot_shift
from qkv.see.analysis.word_vectors import fit_plane, shift_of_traces
from qkv.see.page.html import script_json
from qkv.see.page.payload import shift_payload

from ..support import BANK, CAT, MONEY, vectors_trace


def unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def centred(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x - x.mean(axis=0)


def test_all_stages_are_projected_onto_the_plane_of_first_and_last(minilm: Model) -> None:
    traces = [minilm.trace(text) for text in (BANK, MONEY)]
    shift = shift_of_traces(traces)
    words = [slice(1, -1), slice(1, -1)]  # without [CLS] and [SEP]

    def both(name: str, layer: int | None = None) -> np.ndarray:
        key = name if layer is None else (name, layer)
        return np.concatenate([t[key][0][part] for t, part in zip(traces, words, strict=True)])

    static, last = both("embed"), both("normalized_resid_post", 5)
    plane = fit_plane(unit(static), unit(last))
    np.testing.assert_allclose(shift.before, plane.original, atol=1e-12)
    np.testing.assert_allclose(shift.stages[-1].points, plane.contextual, atol=1e-12)
    np.testing.assert_allclose(shift.explained, plane.explained, atol=1e-12)
    assert [stage.name for stage in shift.stages] == [
        "embeddings",
        *(f"after layer {layer}" for layer in range(6)),
    ]
    states = [both("resid_pre", 0), *(both("normalized_resid_post", n) for n in range(6))]
    for stage, state in zip(shift.stages, states, strict=True):
        around = centred(unit(state))
        points = around @ plane.axes.T
        np.testing.assert_allclose(stage.points, points, atol=1e-10)
        assert stage.held == pytest.approx((points**2).sum() / (around**2).sum())
        for position, (a, b) in enumerate(zip(static, state, strict=True)):
            expected = float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b))
            assert stage.cosine[position] == pytest.approx(expected, abs=1e-5)
    assert shift.of == [0] * 9 + [1] * 7
    assert shift.sentences == [BANK, MONEY]
    assert shift.labelled == list(range(16))


def test_words_that_sentences_share_are_compared(minilm: Model) -> None:
    traces = [minilm.trace(text) for text in (BANK, MONEY, "A bank, a river bank.")]
    shift = shift_of_traces(traces)
    found = {(pair.word, shift.of[pair.a], shift.of[pair.b]): pair for pair in shift.pairs}
    assert set(found) == {
        ("bank", 0, 1), ("bank", 0, 2), ("bank", 1, 2), ("the", 0, 1), ("river", 0, 2),
    }  # fmt: skip
    pair = found["bank", 0, 2]
    assert (pair.a, pair.b) == (4, 17)  # the first occurrence in each sentence
    a, b = traces[0], traces[2]
    for value, name in zip(
        pair.cosine,
        ["embed", ("resid_pre", 0), *(("normalized_resid_post", layer) for layer in range(6))],
        strict=True,
    ):
        u, v = a[name][0, 5].astype(float), b[name][0, 2].astype(float)
        assert value == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v), abs=1e-6)
    assert pair.cosine[0] == pytest.approx(1)
    traces = [minilm.trace(text) for text in ("He repays.", "She repays.")]
    assert [pair.word for pair in shift_of_traces(traces).pairs] == ["repays"]
    subwords = shift_of_traces(traces, pieces=True)
    assert subwords.tokens.count("##s") == 2
    assert [pair.word for pair in subwords.pairs] == ["repay"]


def test_only_the_words_that_moved_furthest_are_labelled() -> None:
    text = " ".join(f"w{number}" for number in range(40))
    shift = shift_of_traces([random_model(text, dim=12).trace(text)])
    moved = np.linalg.norm(shift.stages[-1].points - shift.before, axis=1)
    assert shift.labelled == sorted(np.argsort(-moved)[:20].tolist())


def test_one_trace_and_a_lesson_without_a_norm() -> None:
    model = random_model(CAT)
    shift = shift_of_traces([model.trace(CAT)])
    assert shift.tokens == CAT.lower().split()
    assert [stage.name for stage in shift.stages] == ["embeddings", "after layer 0"]
    assert shift.pairs == []


def test_vectors_alone_have_one_stage() -> None:
    before, after = np.random.default_rng(0).normal(size=(2, 5, 4))
    shift = shift_of_traces([vectors_trace(before, after, list("abcde"))])
    plane = fit_plane(unit(before), unit(after))
    np.testing.assert_allclose(shift.stages[0].points, plane.contextual, atol=1e-12)
    assert len(shift.stages) == 1
    assert shift.sentences == ["a b c d e"]
    same = shift_of_traces([vectors_trace(np.ones((2, 3)), np.ones((2, 3)), ["a", "b"])])
    assert same.stages[0].held == 0
    assert not same.stages[0].points.any()


def test_mismatched_or_incomplete_traces_are_refused(minilm: Model) -> None:
    lesson = random_model(CAT)
    with pytest.raises(ValueError, match="from different models"):
        shift_of_traces([lesson.trace(CAT), minilm.trace(CAT)])
    with pytest.raises(ValueError, match="from different models"):
        shift_of_traces([lesson.trace(CAT), random_model(CAT, dim=4).trace(CAT)])
    with pytest.raises(ValueError, match="holds 2 texts"):
        plot_shift(lesson.trace([CAT, CAT]))
    with pytest.raises(ValueError, match="lacks hook_embed or the vectors after the last layer"):
        shift_of_traces([lesson.trace(CAT, names=["embed", "pattern"])])


def test_the_page_has_the_same_numbers(minilm: Model) -> None:
    shift = shift_of_traces([minilm.trace(text) for text in (BANK, MONEY)])
    data = json.loads(script_json(shift_payload(shift)))
    size = np.abs(shift.before).max()
    np.testing.assert_allclose(data["before"], shift.before, atol=1e-4 * size)
    for made, stage in zip(data["stages"], shift.stages, strict=True):
        size = np.abs(stage.points).max()
        np.testing.assert_allclose(made["points"], stage.points, atol=1e-4 * size)
        assert made["cosine"] == stage.cosine.tolist()
        assert made["held"] == stage.held
        assert made["name"] == stage.name
    assert data["tokens"] == shift.tokens
    assert (data["of"], data["labelled"]) == (shift.of, shift.labelled)
    assert data["sentences"] == shift.sentences
    assert data["explained"] == shift.explained.tolist()
    for made, pair in zip(data["pairs"], shift.pairs, strict=True):
        assert (made["word"], made["a"], made["b"]) == (pair.word, pair.a, pair.b)
        assert made["cosine"] == pair.cosine.tolist()


def test_a_trace_of_only_the_last_layer_has_one_stage(minilm: Model) -> None:
    trace = minilm.trace(CAT, names=["embed", "normalized_resid_post"], layers=5)
    assert [stage.name for stage in shift_of_traces([trace]).stages] == ["after layer 5"]


def test_a_word_of_several_subwords_is_one_arrow(minilm: Model) -> None:
    trace = minilm.trace("The snowboarder smiled.")
    assert trace.tokens == ["[CLS]", "the", "snow", "##board", "##er", "smiled", ".", "[SEP]"]
    merged, apart = shift_of_traces([trace]), shift_of_traces([trace], pieces=True)
    assert merged.tokens == ["the", "snowboarder", "smiled", "."]
    assert apart.tokens == trace.tokens[1:-1]
    last = trace.num_layers - 1
    after = trace["normalized_resid_post", last][0][2:5].mean(0)
    static = trace["hook_embed"][0][2:5].mean(0)
    expected = static @ after / np.linalg.norm(static) / np.linalg.norm(after)
    assert merged.stages[-1].cosine[1] == pytest.approx(expected, rel=1e-5)


def test_a_sign_stands_for_a_mask_token() -> None:
    texts = ["The oak is a small [MASK].", "The [MASK] is red."]
    view = plot_shift(texts)
    assert "[MASK]" in view.shift.tokens
    assert {"___ (1)", "___ (2)"} <= {*view.names}
    shown = view._payload()["shift"]
    assert [pair["word"] for pair in shown["pairs"]] == ["the", "is", "___"]
    assert view.shift.pairs[-1].word == "[MASK]"
    drawn = view.svg() + script_json(shown)
    assert "___" in drawn
    assert "[MASK]" not in drawn


def test_arrays_have_one_stage_without_a_text() -> None:
    before, after = np.random.default_rng(0).normal(size=(2, 5, 4))
    tokens = ["the", "snow", "##board", "[MASK]", "the"]
    view = plot_shift(before, after, tokens, theme="dark")
    plane = fit_plane(unit(before), unit(after))
    np.testing.assert_allclose(view.shift.before, plane.original, atol=1e-12)
    (stage,) = view.shift.stages
    np.testing.assert_allclose(stage.points, plane.contextual, atol=1e-12)
    np.testing.assert_allclose(stage.cosine, (unit(before) * unit(after)).sum(1), atol=1e-12)
    assert view.shift.tokens == tokens  # subwords are not merged
    assert view.to_dict()["models"] == []
    moved = np.linalg.norm(plane.contextual - plane.original, axis=1)
    assert f" has the longest arrow: {moved.max():.2f} in the plane. " in view.sentence
    assert f"its vector in context is {stage.cosine[moved.argmax()]:.3f}" in view.sentence
    picture = view.svg()
    assert picture.count("<circle") == 10
    assert picture.count(">##board<") == 3  # a row of the map, and both ends of the arrow
    assert 'fill="#12161c"' in picture
    assert view._payload()["shift"]["stages"][0]["name"] == "in context"


def test_one_vector_and_equal_vectors_have_points() -> None:
    for before, after, tokens in (
        (np.ones((1, 4)), np.zeros((1, 4)), ["alone"]),
        (np.ones((3, 4)), np.ones((3, 4)), ["a", "b", "c"]),
        ([[0.0], [1.0]], [[5.0], [5.0]], ["one", "dimension"]),
    ):
        view = plot_shift(before, after, tokens)
        assert view.svg().count("<circle") == 2 * len(tokens)
        assert str(view)


def test_invalid_arrays_are_refused(lesson: Model) -> None:
    two = np.eye(2)
    with pytest.raises(ValueError, match="plot_shift: there are 2 vectors, but 1 tokens"):
        plot_shift(two, two, ["a"])
    with pytest.raises(ValueError, match=r"plot_shift: original has shape .* and contextual has"):
        plot_shift(two, np.eye(3), ["a", "b"])
    with pytest.raises(ValueError, match="plot_shift: original has NaN, infinity"):
        plot_shift(two * np.nan, two, ["a", "b"])
    with pytest.raises(TypeError, match="pass original, contextual and tokens, or one trace"):
        plot_shift(two)
    with pytest.raises(TypeError, match="pass only the trace"):
        plot_shift(lesson.trace(CAT), two, ["a", "b"])
