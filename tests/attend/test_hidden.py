"""Tests of masked NaN, visible NaN, and queries that see no key."""

import math
import warnings

import numpy as np
import pytest

import qkv

from . import loops
from .support import FLOATS, agree, assert_lse, assert_out, numbers, qkv_arrays, tolerances

L, S = 5, 7
POISON = 3  # this key is masked for some queries, or for all


def _mask(float_mask: bool = False) -> np.ndarray:
    """Return an attention mask of shape (L, S) with five masked cells.

    As (query, key), these cells are (0, 3), (2, 3), (4, 3), (1, 0) and (4, 6).
    """
    mask = np.ones((L, S), bool)
    mask[::2, POISON] = False
    mask[1, 0] = mask[4, 6] = False
    return np.where(mask, 0.25, -np.inf) if float_mask else mask


# Every option that masks, with values that mask key 3 for some queries and not for others.
HIDING = {
    "bool mask": {"attn_mask": _mask()},
    "float mask": {"attn_mask": _mask(float_mask=True)},
    "float16 mask": {"attn_mask": _mask(float_mask=True).astype(np.float16)},
    "bias": {"bias": _mask(float_mask=True)},
    "causal": {"is_causal": True, "q_offset": 0},
    "window to the left": {"window": (1, None), "q_offset": 1},
    "window to the right": {"window": (None, 0), "q_offset": -1},
    "window": {"window": (1, 1), "q_offset": 2},
    "query_lengths": {"query_lengths": 2},
}
# Every option that masks, with values that mask keys 3 to 6 for all queries.
GONE = {
    "bool mask": {"attn_mask": np.arange(S) < POISON},
    "float mask": {"attn_mask": np.where(np.arange(S) < POISON, 0.5, -np.inf)},
    "float16 mask": {"attn_mask": np.where(np.arange(S) < POISON, 0.5, -np.inf).astype(np.float16)},
    "bias": {"bias": np.where(np.arange(S) < POISON, 0.5, -np.inf)},
    "causal": {"is_causal": True, "q_offset": -2},
    "window": {"window": (None, 0), "q_offset": -2},
    "key_lengths": {"key_lengths": POISON},
}
MORE = {
    "": {},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": [0.5, -1.0]},
    "bias": {"bias": numbers((L, S), 9)},
    "slopes": {"alibi_slopes": [0.5, 0.1], "q_offset": 0},
}


@pytest.mark.parametrize(
    ("more", "poison"),
    [
        pytest.param(
            more, poison, marks=[] if more == "" or np.isnan(poison) else pytest.mark.attack
        )
        for more in MORE
        for poison in (np.nan, np.inf, -np.inf)
    ],
)
@pytest.mark.parametrize("hiding", GONE)
def test_masked_nan_and_infinity_never_show(hiding: str, poison: float, more: str) -> None:
    options = MORE[more] | GONE[hiding]
    for spoil_key, spoil_value in [(True, True), (True, False), (False, True)]:
        query, key, value = qkv_arrays(L=L, S=S)
        clean = qkv.attention(query, key, value, **options)
        if spoil_key:
            key[..., POISON:, :] = poison
        if spoil_value:
            value[..., POISON:, :] = poison
        expected = agree(query, key, value, **options)
        assert np.isfinite(expected.out).all()
        assert (qkv.attention(query, key, value, **options) == clean).all()


@pytest.mark.parametrize("what", ["key", "value", "one number of value"])
@pytest.mark.parametrize("hiding", HIDING)
def test_a_nan_shows_in_exactly_the_rows_that_attend_to_it(hiding: str, what: str) -> None:
    for dtype in FLOATS:
        query, key, value = qkv_arrays(L=L, S=S, dtype=dtype)
        spoiled = key if what == "key" else value
        spoiled[..., POISON, slice(1) if what == "one number of value" else slice(None)] = np.nan
        expected = agree(query, key, value, **HIDING[hiding])
        shown = np.isnan(expected.out).any(axis=-1)
        assert shown.any(), "the case needs a row that sees the NaN"
        assert not shown.all(), "the case needs a row that does not see the NaN"
        assert (shown == expected.visible[..., POISON]).all()


def _quiet(*arrays: np.ndarray, **options: object) -> np.ndarray:
    """Compute attention without NumPy's warnings, which visible infinities may cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return qkv.attention(*arrays, **options)


def test_a_visible_infinite_score_is_not_treated_as_masked() -> None:
    query, key, value = np.ones((1, 1)), np.array([[1.0], [np.inf], [0.0]]), np.eye(3)
    out = _quiet(query, key, value)
    assert np.isnan(out).all() or out.tolist() == [[0, 1, 0]]
    key[1] = -np.inf
    out = _quiet(query, key, value)
    e = math.e
    right = np.array([[e / (1 + e), 0, 1 / (1 + e)]])
    assert np.isnan(out).all() or np.allclose(out, right)
    out = _quiet(query, key[1:2], value[1:2])
    assert not (out == 0).all(), "only a query that sees no key has the output 0"


def test_a_nan_shows_where_its_weight_underflows_to_zero() -> None:
    for size in (1e3, 1e5):
        query = np.full((1, 1), size, np.float32)
        key = np.array([[0.0], [-1.0], [-2.0]], np.float32)
        value = np.array([[1.0, 1.0], [np.nan, 2.0], [3.0, 3.0]], np.float32)
        out, weights = qkv.attention(query, key, value, return_weights=True)
        assert weights.tolist() == [[1, 0, 0]]
        assert np.isnan(out[0, 0])
        assert out[0, 1] == 1
        assert np.isnan(qkv.attention(query, key, value)[0, 0])


def test_a_nan_far_away_shows_where_its_weight_underflows_to_zero() -> None:
    # In the first call, the last key gets all the weight. The NaN is so far from this key that the
    # NaN and the key are in different blocks.
    query, key = np.full((600, 1), 1e3, np.float32), np.zeros((3000, 1), np.float32)
    key[:-1] = -1
    for place in (0, 1700):
        value = np.ones((3000, 2), np.float32)
        value[place, 1] = np.nan
        out = qkv.attention(query, key, value)
        assert np.isnan(out[:, 1]).all()
        assert (out[:, 0] == 1).all()
        out = qkv.attention(query, key, value, is_causal=True, q_offset=1500)
        sees = np.arange(600) + 1500 >= place
        assert (np.isnan(out[:, 1]) == sees).all()
        assert np.isfinite(out[:, 0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_in_partly_masked_blocks_shows_only_where_visible(dtype: type) -> None:
    query, key, value = qkv_arrays((), 2, L=900, S=1300, d=3, dv=2, dtype=dtype)
    clean = (query, key.copy(), value.copy())
    key[:, 700] = np.nan
    value[0, 1100] = np.nan
    options = {"is_causal": True, "q_offset": 300, "window": (350, None)}
    out, lse = qkv.attention(query, key, value, **options, return_lse=True)
    place = np.arange(900) + 300
    sees_key = (place >= 700) & (place - 350 <= 700)
    sees_value = (place >= 1100) & (place - 350 <= 1100)
    assert (np.isnan(lse) == sees_key).all()
    shown = np.stack([sees_key | sees_value, sees_key])
    assert (np.isnan(out) == shown[..., None]).all()
    good = qkv.attention(*clean, **options)
    np.testing.assert_allclose(out[~shown], good[~shown], atol=4e-6)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("spoiler", [np.nan, np.inf])
def test_rows_that_mask_nan_or_infinity_stay_exact_at_any_size(spoiler: float, size: float) -> None:
    query, key, value = qkv_arrays(L=L, S=S)
    value *= np.float32(size)
    value[..., POISON, :] = spoiler
    expected = loops.attention(query, key, value, is_causal=True, q_offset=0)
    out = _quiet(query, key, value, is_causal=True, q_offset=0)
    allowed = tolerances(expected, out.dtype)[0]
    assert np.abs(out[..., :POISON, :] - expected.out[..., :POISON, :]).max() <= allowed
    assert not np.isfinite(out[..., POISON:, :]).any()


@pytest.mark.parametrize("place", ["attn_mask", "bias"])
def test_a_nan_in_a_visible_cell_of_a_mask_shows(place: str) -> None:
    added = np.full((L, S), 0.5)
    added[1, 2] = np.nan
    added[3, 2] = np.nan
    expected = agree(*qkv_arrays(L=L, S=S), **{place: added})
    assert np.isnan(expected.out[:, :, [1, 3]]).all()
    expected = agree(*qkv_arrays(L=L, S=S), **{place: added}, is_causal=True, q_offset=0)
    assert np.isfinite(expected.out[:, :, 1]).all()
    assert np.isnan(expected.out[:, :, 3]).all()


def test_a_nan_in_a_query_shows_unless_fully_masked() -> None:
    query, key, value = qkv_arrays(L=L, S=S)
    query[..., 1, 0] = query[..., 3, :] = np.nan
    expected = agree(query, key, value)
    assert (np.isnan(expected.out).all(axis=-1) == np.isin(np.arange(L), [1, 3])).all()
    mask = np.ones((L, S), bool)
    mask[1] = False
    expected = agree(query, key, value, mask)
    assert (expected.out[..., 1, :] == 0).all()
    assert np.isnan(expected.out[..., 3, :]).all()
    agree(query, key, value, query_lengths=1)


def test_a_nan_among_the_sinks_and_slopes_shows() -> None:
    assert np.isnan(agree(*qkv_arrays(), sinks=[np.nan, 0.0]).out[:, 0]).all()
    assert np.isnan(agree(*qkv_arrays(), alibi_slopes=[0.5, np.nan], q_offset=0).out[:, 1]).all()


BLIND = {
    "bool mask": {"attn_mask": np.arange(L)[:, None] != 2},
    "float mask": {"attn_mask": np.where(np.arange(L)[:, None] != 2, 0.5, -np.inf)},
    "bias": {"bias": np.where(np.arange(L)[:, None] != 2, 0.5, -np.inf)},
    "causal": {"is_causal": True, "q_offset": -3},
    "window": {"window": (0, 0), "q_offset": 4},
    "window beyond the last key": {"window": (1, 0), "q_offset": 100},
    "key_lengths": {"key_lengths": 0},
    "query_lengths": {"query_lengths": 2},
    "rules that allow different keys": {
        "is_causal": True,
        "q_offset": 0,
        "attn_mask": np.arange(S) > 2,
    },
}


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_fully_masked_row_has_log_sum_exp_minus_infinity(dtype: np.dtype, blind: str) -> None:
    expected = agree(*qkv_arrays(L=L, S=S, dtype=dtype), **BLIND[blind])
    nothing = ~expected.visible.any(axis=-1)
    assert nothing.any()
    assert (expected.lse[nothing] == -np.inf).all()


@pytest.mark.parametrize("blind", BLIND)
@pytest.mark.parametrize(
    "sinks",
    [
        np.array([0.5, -2.0]),
        np.array([[0.5, 1.0, -9.0], [2.0, 0.0, 1.0]]),
        np.array([[999.0, 1000.0], [-1000.0, -999.0]]),  # exp would be infinite, or 0
    ],
)
def test_a_fully_masked_row_has_the_log_sum_exp_of_its_sinks(sinks: np.ndarray, blind: str) -> None:
    query, key, value = qkv_arrays(L=L, S=S)
    expected = agree(query, key, value, **BLIND[blind], sinks=sinks)
    nothing = ~expected.visible.any(axis=-1)
    total = np.logaddexp.reduce(sinks.reshape(2, -1), axis=-1)[:, None]
    np.testing.assert_allclose(expected.lse[nothing], np.broadcast_to(total, (2, 2, L))[nothing])


@pytest.mark.parametrize("sinks", [None, [0.5, -1.0]])
@pytest.mark.parametrize(
    "sizes", [{"L": 0}, {"S": 0}, {"L": 0, "S": 0}, {"lead": (0,)}, {"lead": (2, 0)}]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_empty_sizes(dtype: np.dtype, sizes: dict, sinks: object) -> None:
    arrays = qkv_arrays(**{"L": L, "S": S, "dtype": dtype} | sizes)
    agree(*arrays, sinks=sinks)
    agree(*arrays, sinks=sinks, is_causal=True, q_offset="end", key_lengths=0, query_lengths=0)
    agree(*arrays, sinks=sinks, window=(1, 1), q_offset=0)
    agree(*arrays, np.ones((arrays[0].shape[-2], arrays[1].shape[-2]), bool), sinks=sinks)
    agree(*arrays, bias=np.ones((arrays[0].shape[-2], arrays[1].shape[-2])), softcap=2.0)


def test_a_large_call_with_fully_masked_rows() -> None:
    query, key, value = qkv_arrays((), 1, L=1200, S=1000, d=2, dv=2)
    rows = [0, 1, 99, 100, 101, 600, 1098, 1099, 1100, 1199]
    for options in ({}, {"sinks": [-2.0]}):
        options |= {"window": (0, 0), "q_offset": -100}
        expected = loops.attention(query, key, value, **options, rows=rows)
        out, lse = qkv.attention(query, key, value, **options, return_lse=True)
        assert_out(out[:, rows], expected, np.dtype(np.float32))
        assert_lse(lse[:, rows], expected, np.dtype(np.float32))
        assert (out[:, :100] == 0).all()
        assert (out[:, 1100:] == 0).all()
