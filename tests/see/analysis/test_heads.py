"""Heads of traces and of plain arrays: what is read, what is refused."""

from typing import Any

import numpy as np
import pytest

from qkv.models import Model, random_model
from qkv.see.analysis.heads import Heads, heads_from, heads_of
from qkv.see.analysis.measures import summarize
from qkv.trace import Trace

from ..support import CAT

RNG = np.random.default_rng(0)
WEIGHTS = RNG.dirichlet(np.ones(4), size=(2, 3, 4))  # (layers, heads, L, S)
TOKENS = ["<s>", "a", "b", "."]


class Tensor:
    """What a tensor does that wants gradients and sits on another device."""

    def __init__(self, array: np.ndarray, ready: int = 0) -> None:
        self.array, self.ready, self.shape = array, ready, array.shape

    def detach(self) -> "Tensor":
        return Tensor(self.array, 1)

    def cpu(self) -> "Tensor":
        return Tensor(self.array, self.ready + 1)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        if self.ready < 2:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.array


@pytest.mark.parametrize(
    "given",
    [
        WEIGHTS,
        WEIGHTS[:, None],
        WEIGHTS.tolist(),
        list(WEIGHTS),
        tuple(WEIGHTS[:, None]),
        [Tensor(layer[None]) for layer in WEIGHTS],
        Tensor(WEIGHTS),
    ],
)
def test_every_form_of_attention_is_read(given: Any) -> None:
    heads = heads_from(given, TOKENS, call="show")
    np.testing.assert_allclose(np.array(heads.weights), WEIGHTS, rtol=1e-6)
    assert (heads.layers, heads.count, heads.cells) == ([0, 1], 3, 96)
    assert heads.special == [True, False, False, False]


def test_layers_can_be_picked() -> None:
    heads = heads_from(WEIGHTS, TOKENS, layers=[1], call="show")
    assert heads.layers == [1]
    np.testing.assert_array_equal(heads.weights[0], WEIGHTS[1])
    for layers, said in (([2], "no layer 2: attention holds 0 to 1"), ([], "no layer left")):
        with pytest.raises(ValueError, match=said):
            heads_from(WEIGHTS, TOKENS, layers=layers, call="show")


@pytest.mark.parametrize(
    ("given", "tokens", "error", "said"),
    [
        (WEIGHTS[0, 0], TOKENS, ValueError, r"has shape \(4, 4\): give \(layers, heads, L, S\)"),
        (WEIGHTS, TOKENS[:3], ValueError, "has 4 queries and there are 3 tokens"),
        (WEIGHTS, "abcd", TypeError, "the tokens are one string"),
        (WEIGHTS[..., :3], TOKENS, ValueError, "4 queries and 3 keys: .*head_view"),
        ([WEIGHTS], TOKENS, ValueError, "layer 0 has 2 texts: give one text"),
        (
            [WEIGHTS[0], WEIGHTS[1, :2]],
            TOKENS,
            ValueError,
            r"layer 1 is \(2, 4, 4\) and of layer 0",
        ),
        ([None, None], TOKENS, ValueError, "layer 0 is None: .*eager"),
        ([], TOKENS, ValueError, r"has shape \(0,\)"),
        (WEIGHTS * 40, TOKENS, ValueError, "give weights, from 0 to 1, not scores"),
        (WEIGHTS - 0.5, TOKENS, ValueError, "attention of layer|attention holds -0"),
        (WEIGHTS.astype(complex), TOKENS, TypeError, "complex128: give weights"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, tokens: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=f"^show: .*{said}"):
        heads_from(given, tokens, call="show")


def test_keys_may_be_other_tokens() -> None:
    heads = heads_from([WEIGHTS[0, :, :, :2]], TOKENS, ["x", "</s>"], call="head_view")
    assert (heads.all_keys, heads.all_key_special) == (["x", "</s>"], [False, True])
    weights, queries, keys = heads.best_links(0)
    # neither <s> nor the full stop asks, and </s> is not looked at
    expected = WEIGHTS[0, :, 1:3, 0]
    np.testing.assert_array_equal(weights, expected.max(axis=1))
    np.testing.assert_array_equal(queries, expected.argmax(axis=1) + 1)
    assert keys.tolist() == [0, 0, 0]


def test_a_trace_gives_its_scores_and_what_they_were_scaled_by(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    heads = heads_of(trace, parameters=lesson.parameters)
    np.testing.assert_array_equal(heads.weights[0], trace["pattern", 0][0])
    q, k = (trace[name, 0][0, :, 1] for name in "qk")
    np.testing.assert_allclose(heads.scores[0][1], q @ k.T * heads.scale[0], rtol=1e-5, atol=1e-6)
    assert heads.scale == {0: 0.5}  # 1 / sqrt(4)
    assert heads.hidden(0, 1).sum() == 0
    causal = heads_of(random_model(CAT, causal=True).trace(CAT))
    np.testing.assert_array_equal(causal.hidden(0, 1), ~np.tri(6, dtype=bool))


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ({}, 1 / np.sqrt(4)),
        ({"scale": 0.25}, 0.25),
        ({"attn_mask": np.ones((6, 6), bool)}, 0.5),
        ({"is_causal": True, "window": (2, None)}, 0.5),
        ({"attn_mask": np.zeros((6, 6))}, None),
        ({"softcap": 5.0}, None),
        ({"bias": np.zeros((6, 6))}, None),
        ({"alibi_slopes": np.ones(2)}, None),
    ],
)
def test_raw_scores_are_known_where_nothing_but_a_scale_was_done_to_them(
    settings: dict[str, Any], known: float | None, lesson: Model
) -> None:
    trace = lesson.trace(CAT)
    arrays = {name: trace[name] for name in trace.names()}
    made = Trace(arrays, tokens=[trace.tokens], settings={0: settings})
    assert heads_of(made).scale.get(0) == known


def test_norms_need_the_model_that_the_trace_was_made_with(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    assert not heads_of(trace).norms
    assert not heads_of(lesson.trace(CAT, names=["pattern"]), parameters=lesson.parameters).norms
    with pytest.raises(ValueError, match=r"2 heads of 4 in layer 0 .* of 12 rows"):
        heads_of(trace, parameters=random_model(CAT, dim=12).parameters)


def test_a_summary_has_the_links_of_the_whole() -> None:
    whole = Heads(TOKENS, [True, False, False, False], [0], [WEIGHTS[0]])
    kept = Heads(TOKENS, whole.special, [0], summary=[summarize(WEIGHTS[0], 4)])
    for found, expected in zip(kept.best_links(0), whole.best_links(0), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(kept.row(0, 2, 1), WEIGHTS[0, 2, 1])
    np.testing.assert_array_equal(kept.excerpt(0, 1, 9).values, WEIGHTS[0, 1])
    own = Heads(
        ["a", "b"], [False] * 2, [0], summary=[summarize(np.array([[[1, 0], [0.9, 0.1]]]), 2)]
    )
    assert [part.tolist() for part in own.best_links(0)] == [[0.9], [1], [0]]  # not a on a
    some = Heads(TOKENS, whole.special, [0], summary=[summarize(WEIGHTS[0], 1)])
    top = WEIGHTS[0, 2, 1].argmax()
    np.testing.assert_array_equal(
        some.row(0, 2, 1), np.where(np.arange(4) == top, WEIGHTS[0, 2, 1], 0)
    )


def test_an_excerpt_has_the_rows_and_columns_of_the_largest_links() -> None:
    tokens = [f"w{i}" for i in range(6)]
    weights = np.zeros((1, 6, 6))
    weights[0, 1, 4], weights[0, 3, 0], weights[0, 5, 5] = 0.9, 0.8, 1.0  # the last on itself
    excerpt = Heads(tokens, [False] * 6, [0], [weights]).excerpt(0, 0, 2)
    assert (excerpt.rows, excerpt.columns, excerpt.places) == (["w1", "w3"], ["w0", "w4"], [1, 3])
    assert excerpt.values.tolist() == [[0.0, 0.9], [0.8, 0.0]]


def test_a_long_excerpt_marks_what_was_not_kept() -> None:
    tokens = [f"w{i}" for i in range(4)]
    weights = np.array([[[0, 0.6, 0.4, 0], [0.7, 0, 0.3, 0], [0.9, 0.1, 0, 0], [1.0, 0, 0, 0]]])
    heads = Heads(tokens, [False] * 4, [0], summary=[summarize(weights, 1)])
    excerpt = heads.excerpt(0, 0, 4)
    assert excerpt.columns == ["w0", "w1"]
    np.testing.assert_array_equal(
        excerpt.values, [[np.nan, 0.6], [0.7, np.nan], [0.9, np.nan], [1.0, np.nan]]
    )
    assert excerpt.missing == "not among the weights that were kept"
