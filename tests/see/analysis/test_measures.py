"""Tests of the measures of heads, against arithmetic by hand."""

import numpy as np
import pytest

from qkv.models import Model
from qkv.see.analysis import head_weights, measures
from qkv.see.analysis.head_weights import Axis, Heads, Summary, heads_of

from ..support import BANK

# CAUSAL is a causal head over three tokens; in BLIND, the middle token attends to nothing
CAUSAL = [[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.1, 0.7, 0.2]]
BLIND = [[0.5, 0.25, 0.25], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
TWO = np.array([CAUSAL, BLIND])


def test_entropy_is_in_bits_and_skips_fully_masked_queries() -> None:
    halves = np.array([[[0.5, 0.5, 0.0, 0.0], [0.25] * 4]])
    assert measures.entropy(halves).tolist() == [1.5]
    # without the query that attends to nothing: (1.5 + 0) / 2
    assert measures.entropy(TWO)[1] == pytest.approx(0.75)


def test_weight_on_the_previous_and_next_token() -> None:
    previous, following = measures.on_offset(TWO, -1), measures.on_offset(TWO, 1)
    # In BLIND, token 0 has no previous token, and token 1 attends to nothing. So only token 2
    # counts in the mean weight on the previous token.
    assert previous.tolist() == pytest.approx([(0.6 + 0.7) / 2, 1.0])
    assert following.tolist() == pytest.approx([0.0, 0.25])
    assert measures.on_offset(np.ones((1, 1, 1)), -1).tolist() == [0.0]


def test_weight_on_keys() -> None:
    assert measures.on_keys(TWO, [0]).tolist() == pytest.approx([1.7 / 3, 0.25])
    assert measures.on_keys(TWO, [1, 2]).tolist() == pytest.approx([1.3 / 3, 0.75])


def test_mean_distance_is_in_tokens() -> None:
    # In CAUSAL, the distances of the three rows are 0, 0.6 and 0.9, which is 0.1 * 2 + 0.7.
    # In BLIND, the distance of row 0 is 0.75, which is 0.25 + 0.25 * 2. Row 1 attends to nothing,
    # so it has no distance. The distance of row 2 is 1.
    assert measures.distance(TWO).tolist() == pytest.approx([(0 + 0.6 + 0.9) / 3, (0.75 + 1) / 2])


def test_all_measures_of_a_text() -> None:
    heads = Heads(Axis(["[CLS]", "a", "[SEP]"], [True, False, True]), [3], [TWO])
    found = measures.measures_of(heads)
    # the weight on [SEP], without the weight on [CLS]
    assert found["separators"].tolist() == [pytest.approx([0.2 / 3, 0.125])]
    assert found["first"].tolist() == [pytest.approx([1.7 / 3, 0.25])]
    assert found["previous"].shape == found["entropy"].shape == found["distance"].shape == (1, 2)
    assert found["next"].tolist() == [pytest.approx([0.0, 0.25])]


def test_measures_that_do_not_apply_are_none() -> None:
    abc = Axis(["a", "b", "c"], [False] * 3)
    plain = measures.measures_of(Heads(abc, [0], [TWO]))
    assert plain["separators"] is None
    assert plain["previous"] is not None
    cross = measures.measures_of(
        Heads(abc, [0], [TWO], other_keys=Axis(["x", "y", "</s>"], [False, False, True]))
    )
    assert {name for name, values in cross.items() if values is None} == {
        "previous", "next", "distance",
    }  # fmt: skip
    assert cross["separators"].tolist() == [pytest.approx([0.2 / 3, 0.125])]
    one = measures.measures_of(Heads(Axis(["a"], [False]), [0], [np.ones((1, 1, 1))]))
    assert one["previous"] is None
    assert one["distance"].tolist() == [[0.0]]


def test_a_summary_gives_only_the_measures_of_received_weight() -> None:
    kept = Summary(np.zeros((1, 4, 1), int), np.ones((1, 4, 1)), np.array([[2.0, 1.0, 1.0]]))
    heads = Heads(
        Axis(["[CLS]", "a", "[SEP]", "b"], [True, False, True, False]), [0], summary=[kept]
    )
    found = measures.measures_of(heads)
    assert found["first"].tolist() == [[0.5]]
    assert found["separators"].tolist() == [[0.25]]
    assert found["entropy"] is found["previous"] is found["next"] is found["distance"] is None


def test_value_norms_of_shared_values() -> None:
    v = np.array([[[1.0, 2.0]], [[0.0, 1.0]]])  # two keys, one key head of size 2
    out_proj = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [3.0, 0.0]])  # two query heads
    norms = head_weights.value_norms(v, out_proj)
    np.testing.assert_allclose(norms, [[np.sqrt(5), 1.0], [6.0, 3.0]])


def test_value_norms_of_grouped_query_heads() -> None:
    v = np.array([[[1.0], [10.0]]])  # one key, two key heads of size 1
    out_proj = np.array([[1.0], [2.0], [3.0], [4.0]])  # four query heads
    assert head_weights.value_norms(v, out_proj).tolist() == [[1.0], [2.0], [30.0], [40.0]]


def test_value_norms_are_the_norms_of_projected_values(minilm: Model) -> None:
    trace = minilm.trace(BANK)
    (norms,) = heads_of(trace, parameters=minilm.parameters).norms[2:3]
    weight = minilm.parameters["blocks.2.attn.out_proj.weight"].astype(np.float64)
    v = trace["v", 2][0].astype(np.float64)
    for head in (0, 7):
        for key in (0, 5):
            carried = v[key, head] @ weight[head * 32 : (head + 1) * 32]
            assert norms[head, key] == pytest.approx(np.sqrt((carried**2).sum()))
    # the sum of all contributions is the layer's output without its bias
    pattern = trace["pattern", 2][0].astype(np.float64)
    whole = sum(pattern[h] @ v[:, h] @ weight[h * 32 : (h + 1) * 32] for h in range(len(pattern)))
    bias = minilm.parameters["blocks.2.attn.out_proj.bias"]
    np.testing.assert_allclose(whole + bias, trace["attn_out", 2][0], atol=1e-5)


def test_words_sum_keys_and_average_queries() -> None:
    words = [(0, 1, "a"), (1, 3, "bc")]
    merged = head_weights.merge_words(TWO, words, words)
    np.testing.assert_allclose(merged[0], [[1.0, 0.0], [(0.6 + 0.1) / 2, (0.4 + 0.9) / 2]])
    np.testing.assert_allclose(merged[0].sum(axis=1), 1)
    cross = head_weights.merge_words(TWO[0], words, [(0, 3, "abc")])
    np.testing.assert_allclose(cross, [[1.0], [1.0]])


def test_a_summary_keeps_the_largest_with_ties_to_the_lower_key() -> None:
    weights = np.array([[[0.4, 0.1, 0.4, 0.1], [0.0, 0.0, 1.0, 0.0]]])
    kept = measures.summarize(weights, 3)
    assert kept.indices.tolist() == [[[0, 2, 1], [2, -1, -1]]]
    assert kept.weights.tolist() == [[[0.4, 0.4, 0.1], [1.0, 0.0, 0.0]]]
    assert kept.received.tolist() == [[0.4, 0.1, 1.4, 0.1]]
    assert measures.summarize(weights, 9).indices.shape == (1, 2, 4)
