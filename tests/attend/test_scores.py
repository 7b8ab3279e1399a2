"""Tests of the steps from scores to weights: softcap, bias, ALiBi, mask and sinks."""

import math

import numpy as np
import pytest

import qkv

from .support import agree, qkv_arrays


@pytest.mark.parametrize("softcap", [1e-300, 1e300])
def test_a_softcap_beyond_float32(softcap: float) -> None:
    agree(*qkv_arrays(), softcap=softcap)


@pytest.mark.parametrize("softcap", [0, 0.0, -1.0, math.inf, -math.inf, math.nan])
def test_an_invalid_softcap_is_refused(softcap: float) -> None:
    with pytest.raises(ValueError, match=r"attention.*softcap"):
        qkv.attention(*qkv_arrays(), softcap=softcap)


def test_sinks_by_hand() -> None:
    out, weights, lse = qkv.attention(
        np.zeros((1, 1)), np.zeros((2, 1)), np.array([[8.0], [4.0]]), sinks=[[0.0, math.log(5)]],
        return_weights=True, return_lse=True,
    )  # fmt: skip
    # The exponentials are 1 and 1 for the keys, and 1 and 5 for the sinks.
    np.testing.assert_allclose(weights, [[1 / 8, 1 / 8]], rtol=1e-14)
    np.testing.assert_allclose(out, [[1.5]], rtol=1e-14)
    np.testing.assert_allclose(lse, [math.log(8)], rtol=1e-14)


def test_very_large_and_very_small_sinks() -> None:
    agree(*qkv_arrays(), sinks=[500.0, -500.0])
    agree(*qkv_arrays(), sinks=[1e4, -1e4])
    agree(*qkv_arrays(), sinks=[-np.inf, 0.0])
    agree(*qkv_arrays(), np.zeros((5, 7), bool), sinks=[-np.inf, 0.0])
    agree(*qkv_arrays(), np.zeros((5, 7), bool), sinks=[-900.0, 900.0])


def test_no_sinks_at_all() -> None:
    agree(*qkv_arrays(), sinks=np.zeros((2, 0)))
    agree(*qkv_arrays(), np.arange(5)[:, None] != 2, sinks=np.zeros((2, 0)))


@pytest.mark.parametrize(
    "sinks", [[0.5], [0.5, 1.0, 2.0], 0.5, np.zeros((3, 2)), np.zeros((2, 1, 1))]
)
def test_sinks_of_a_wrong_shape_are_refused(sinks: object) -> None:
    with pytest.raises(ValueError, match=r"attention.*sinks"):
        qkv.attention(*qkv_arrays(), sinks=sinks)


def test_numbers_near_the_largest_float32() -> None:
    # The mean of these 500 values is finite, but their sum is infinite.
    value = np.full((500, 2), 3e38, np.float32)
    out = qkv.attention(np.zeros((3, 2), np.float32), np.zeros((500, 2), np.float32), value)
    np.testing.assert_allclose(out, 3e38, rtol=4e-6)


def test_numbers_near_the_largest_float16() -> None:
    value = np.full((500, 2), 65000, np.float16)
    query = np.zeros((3, 2), np.float16)
    assert (qkv.attention(query, np.zeros((500, 2), np.float16), value) == np.float16(65000)).all()


@pytest.mark.parametrize("scale", [1e39, -1e-39, 1e300])
def test_a_scale_beyond_float32(scale: float) -> None:
    query, key, value = qkv_arrays(d=4)
    assert np.isfinite(qkv.attention(query * 0, key, value, scale=scale)).all()


def test_a_wide_softcap_leaves_no_float64_in_a_float32_trace() -> None:
    query, key, value = qkv_arrays(d=4)
    trace = qkv.trace_attention(query, key, value, softcap=1e35)
    assert {trace[name].dtype for name in trace.names()} == {np.dtype(np.float32)}
