"""Tests of heads from traces: scores, masks, norms, links of summaries, and excerpts."""

from typing import Any

import numpy as np
import pytest

from qkv.models import Model, random_model
from qkv.see.analysis.head_weights import Axis, Heads, heads_of
from qkv.see.analysis.measures import summarize
from qkv.trace import Trace

from ..support import CAT

RNG = np.random.default_rng(0)
WEIGHTS = RNG.dirichlet(np.ones(4), size=(2, 3, 4))  # (layers, heads, L, S)
TOKENS = ["<s>", "a", "b", "."]


def test_a_trace_gives_its_scores_and_their_scale(lesson: Model) -> None:
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
def test_the_scale_is_unknown_if_scores_were_capped_or_added_to(
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
    with pytest.raises(ValueError, match=r"2 heads of size 4 in layer 0, .* has 12 rows"):
        heads_of(trace, parameters=random_model(CAT, dim=12).parameters)


def test_a_summary_gives_the_same_links_as_the_weights() -> None:
    axis = Axis(TOKENS, [True, False, False, False])
    whole = Heads(axis, [0], [WEIGHTS[0]])
    kept = Heads(axis, [0], summary=[summarize(WEIGHTS[0], 4)])
    for found, expected in zip(kept.best_links(0), whole.best_links(0), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(kept.row(0, 2, 1), WEIGHTS[0, 2, 1])
    np.testing.assert_array_equal(kept.excerpt(0, 1, 9)[2], WEIGHTS[0, 1])
    own = Heads(
        Axis(["a", "b"], [False] * 2), [0], summary=[summarize(np.array([[[1, 0], [0.9, 0.1]]]), 2)]
    )
    # the link from "a" to "a" does not count
    assert [part.tolist() for part in own.best_links(0)] == [[0.9], [1], [0]]
    some = Heads(axis, [0], summary=[summarize(WEIGHTS[0], 1)])
    top = WEIGHTS[0, 2, 1].argmax()
    np.testing.assert_array_equal(
        some.row(0, 2, 1), np.where(np.arange(4) == top, WEIGHTS[0, 2, 1], 0)
    )


def test_an_excerpt_has_the_queries_and_keys_of_the_largest_links() -> None:
    tokens = [f"w{i}" for i in range(6)]
    weights = np.zeros((1, 6, 6))
    # the last token attends to itself, which is not a link
    weights[0, 1, 4], weights[0, 3, 0], weights[0, 5, 5] = 0.9, 0.8, 1.0
    heads = Heads(Axis(tokens, [False] * 6), [0], summary=[summarize(weights, 6)])
    queries, keys, values = heads.excerpt(0, 0, 2)
    assert (queries, keys) == ([1, 3], [0, 4])
    np.testing.assert_array_equal(values, [[np.nan, 0.9], [0.8, np.nan]])


def test_a_long_excerpt_marks_what_was_not_kept() -> None:
    tokens = [f"w{i}" for i in range(4)]
    weights = np.array([[[0, 0.6, 0.4, 0], [0.7, 0, 0.3, 0], [0.9, 0.1, 0, 0], [1.0, 0, 0, 0]]])
    heads = Heads(Axis(tokens, [False] * 4), [0], summary=[summarize(weights, 1)])
    _, keys, values = heads.excerpt(0, 0, 4)
    assert keys == [0, 1]
    np.testing.assert_array_equal(
        values, [[np.nan, 0.6], [0.7, np.nan], [0.9, np.nan], [1.0, np.nan]]
    )
