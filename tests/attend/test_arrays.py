"""Test input types, input strides, arrays of other libraries, and the argument `out`."""

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import qkv
from rows import failing

from .support import BFLOAT16, FLOATS, agree, numbers, qkv_arrays

NATIVE = [dtype for dtype in FLOATS if dtype != BFLOAT16]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("added", FLOATS, ids=str)
def test_mask_bias_sinks_and_slopes_may_be_any_float_type(added: np.dtype, dtype: np.dtype) -> None:
    options = {
        "attn_mask": numbers((5, 7), 5).astype(added),
        "bias": numbers((5, 7), 6).astype(added),
        "sinks": np.array([0.5, 1.5]).astype(added),
        "alibi_slopes": np.array([0.25, 0.1]).astype(added),
        "q_offset": 0,
    }
    agree(*qkv_arrays(dtype=dtype), **options)


@pytest.mark.parametrize("name", ["bias", "sinks", "alibi_slopes"])
@pytest.mark.parametrize("dtype", [bool, np.complex128, object])
def test_biases_sinks_and_slopes_must_be_floats(dtype: type, name: str) -> None:
    shape = (5, 7) if name == "bias" else (2,)
    with pytest.raises(TypeError, match=rf"attention.*{name}"):
        qkv.attention(*qkv_arrays(), q_offset=0, **{name: np.ones(shape).astype(dtype)})


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize(
    ("first", "second"),
    [(np.float32, np.float64), (np.float16, ml_dtypes.bfloat16), (np.float32, np.int64)],
)
def test_mixed_types_are_refused_by_name(first: type, second: type, odd: int) -> None:
    arrays = [x.astype(second if i == odd else first) for i, x in enumerate(qkv_arrays())]
    with pytest.raises(TypeError, match="attention") as caught:
        qkv.attention(*arrays)
    assert np.dtype(first).name in str(caught.value)
    assert np.dtype(second).name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.complex64, object, np.longdouble])
def test_unsupported_types_are_refused_by_name(dtype: type) -> None:
    with pytest.raises(TypeError, match=rf"attention.*{np.dtype(dtype).name}"):
        qkv.attention(*(x.astype(dtype) for x in qkv_arrays()))


def _transposed(x: np.ndarray) -> np.ndarray:
    """Return a copy that has the usual memory layout, (B, T, H, d)."""
    return np.ascontiguousarray(x.swapaxes(-3, -2)).swapaxes(-3, -2)


def _backwards(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def _sparse(x: np.ndarray) -> np.ndarray:
    wide = np.full((*x.shape[:-2], 2 * x.shape[-2], 3 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2, ::3] = x
    return wide[..., ::2, ::3]


def _unaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[:] = x
    return view


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "transposed": _transposed,
    "backwards": _backwards,
    "sparse": _sparse,
    "columns": np.asfortranarray,
    "unaligned": _unaligned,
    "read-only": _read_only,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_strides_are_read(dtype: np.dtype, layout: str) -> None:
    arrays = qkv_arrays(dtype=dtype)
    views = [LAYOUTS[layout](x) for x in arrays]
    assert all((view == x).all() for view, x in zip(views, arrays, strict=True))
    agree(*views)
    agree(*views, LAYOUTS[layout](numbers((2, 2, 5, 7), 3)), is_causal=True, q_offset=1)


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_byte_swapped_inputs(dtype: np.dtype) -> None:
    other = dtype.newbyteorder()
    swapped = [x.astype(other) for x in qkv_arrays(dtype=dtype)]
    agree(*swapped, numbers((5, 7), 3).astype(other), bias=numbers((5, 7), 4).astype(other))
    agree(*swapped, sinks=np.array([0.5, 1.0]).astype(other))
    agree(swapped[0], *qkv_arrays(dtype=dtype)[1:])
    agree(
        *swapped,
        key_lengths=np.array([3, 7]).astype(">i4"),
        q_offset=np.array([3, 7]).astype(">i8"),
    )


def test_no_input_is_written_to() -> None:
    options = {
        "attn_mask": np.where(numbers((2, 2, 5, 7), 3) < -0.5, -np.inf, 0.25),
        "bias": numbers((2, 2, 5, 7), 4),
        "sinks": np.array([0.5, 1.0]),
        "alibi_slopes": np.array([0.5, 1.0]),
        "q_offset": np.array([0, 3]),
        "query_lengths": np.array([5, 3]),
        "key_lengths": np.array([7, 3]),
    }
    for dtype in FLOATS:
        arrays = qkv_arrays(dtype=dtype)
        everything = [*arrays, *options.values()]
        before = [x.tobytes() for x in everything]
        for returned in ({}, {"return_weights": True}, {"return_lse": True}):
            qkv.attention(
                *arrays, is_causal=True, window=(3, 3), softcap=2.0, **options, **returned
            )
        assert [x.tobytes() for x in everything] == before


def test_results_are_not_views_of_inputs() -> None:
    query, key, value = qkv_arrays((), 1, L=1, S=1)
    out, weights, lse = qkv.attention(query, key, value, return_weights=True, return_lse=True)
    for result in (out, weights, lse):
        assert not any(np.shares_memory(result, x) for x in (query, key, value))
        assert result.flags.writeable


class OnlyArray:
    """An object that is not an array, but that NumPy can read through __array__."""

    def __init__(self, x: np.ndarray) -> None:
        self._x = x

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self._x if dtype is None else self._x.astype(dtype)


class OnlyDLPack:
    """An object whose memory can be read only through DLPack."""

    def __init__(self, x: np.ndarray) -> None:
        self._x = x

    def __dlpack__(self, **options: object) -> object:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._x.__dlpack_device__()


@pytest.mark.parametrize("kind", [OnlyArray, OnlyDLPack])
def test_foreign_arrays_are_accepted_and_numpy_arrays_returned(kind: type) -> None:
    arrays = qkv_arrays()
    options = {
        **{"attn_mask": numbers((5, 7), 3) < 1, "bias": numbers((5, 7), 4)},
        **{"sinks": np.array([0.5, 1.0]), "alibi_slopes": np.array([0.5, 1.0])},
        **{"q_offset": np.array([0, 3]), "key_lengths": np.array([7, 3])},
    }
    wanted = {"return_weights": True, "return_lse": True}
    plain = qkv.attention(*arrays, **options, **wanted)
    foreign = {name: kind(x) for name, x in options.items()}
    foreign = qkv.attention(*map(kind, arrays), **foreign, **wanted)
    for result, expected in zip(foreign, plain, strict=True):
        assert type(result) is np.ndarray
        assert (result == expected).all()


@pytest.mark.parametrize("thing", [None, "words", {"a": 1}])
def test_a_query_that_is_not_an_array_is_refused(thing: object) -> None:
    _, key, value = qkv_arrays()
    with pytest.raises(TypeError, match=r"attention.*query"):
        qkv.attention(thing, key, value)


# out=


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_out_is_filled_and_returned(dtype: np.dtype) -> None:
    arrays = qkv_arrays(dtype=dtype)
    expected = qkv.attention(*arrays)
    out = np.full((2, 2, 5, 3), 7).astype(dtype)
    assert qkv.attention(*arrays, out=out) is out
    assert (out == expected).all()
    for options in ({"return_weights": True}, {"return_lse": True}):
        out[:] = 7
        result = qkv.attention(*arrays, out=out, **options)
        assert result[0] is out
        np.testing.assert_allclose(out.astype(float), expected.astype(float), atol=1e-2)


def test_out_is_filled_with_0_where_no_key_is_visible() -> None:
    out = np.full((2, 2, 5, 3), np.nan, np.float32)
    qkv.attention(*qkv_arrays(), np.arange(5)[:, None] != 2, out=out, query_lengths=[5, 3])
    assert (out[:, :, 2] == 0).all()
    assert (out[1, :, 3:] == 0).all()
    assert np.isfinite(out).all()
    out = np.full((2, 2, 5, 3), np.nan, np.float32)
    qkv.attention(*qkv_arrays(S=0), out=out)
    assert (out == 0).all()


@pytest.mark.parametrize("size", [(5, 7), (700, 900)])
def test_out_may_have_any_strides(size: tuple[int, int]) -> None:
    L, S = size
    arrays = qkv_arrays(L=L, S=S, d=8, dv=4)
    expected = qkv.attention(*arrays)
    out = np.zeros((2, L, 2, 4), np.float32).swapaxes(1, 2)
    assert qkv.attention(*arrays, out=out) is out
    assert (out == expected).all()
    buffer = np.full((2, 2, 2 * L, 8), 7, np.float32)
    qkv.attention(*arrays, out=buffer[:, :, ::-2, ::2])
    assert (buffer[:, :, ::-2, ::2] == expected).all()
    assert (buffer[:, :, :, 1::2] == 7).all()


def test_a_wrong_out_is_refused_and_not_written_to() -> None:
    right = np.full((2, 2, 5, 3), 7, np.float32)
    for out, said in (
        *((np.full(shape, 7, "f4"), str(shape)) for shape in [(2, 2, 5, 4), (1, 2, 5, 3), ()]),
        *((right.astype(dtype), "float32") for dtype in ["f8", "f2", "i4", ">f4"]),
        (_read_only(right), "out"),
    ):
        with failing(out.dtype, out.shape), pytest.raises((TypeError, ValueError)) as caught:
            qkv.attention(*qkv_arrays(), out=out)
        assert "attention" in str(caught.value)
        assert said in str(caught.value)
        assert (out == 7).all()
    with pytest.raises(TypeError, match=r"attention.*out"):
        qkv.attention(*qkv_arrays(), out=[0.0])


@pytest.mark.parametrize(
    "strides",
    [
        (0, 0, 0, 4),  # the same memory for many numbers
        (120, 60, 12, 2),  # each number shares 2 of its 4 bytes with the next number
        (120, 60, 8, 4),  # the last number of a row is the first number of the next row
        (60, 60, 12, 4),
        (120, 60, -8, 4),
    ],
)
def test_out_must_not_share_memory_with_itself(strides: tuple[int, ...]) -> None:
    buffer = np.full(800, 7, np.float32)
    out = as_strided(buffer[400:], (2, 2, 5, 3), strides)
    with pytest.raises(ValueError, match=r"^attention: several elements of `out` share"):
        qkv.attention(*qkv_arrays(), out=out)
    assert (buffer == 7).all()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_out_must_not_share_memory_with_query_key_or_value(which: int) -> None:
    arrays = list(qkv_arrays(L=5, S=5, d=3, dv=3))
    buffer = np.zeros((3, 2, 5, 3), np.float32)
    buffer[:2] = arrays[which]
    arrays[which] = buffer[:2]
    before = buffer.copy()
    for out in (buffer[:2], buffer[1:], buffer[1::-1], buffer[:2, ::-1]):
        with pytest.raises(ValueError, match=r"attention.*out"):
            qkv.attention(*arrays, out=out)
        assert (buffer == before).all()


@pytest.mark.parametrize("name", ["attn_mask", "bias", "sinks", "alibi_slopes"])
def test_out_must_not_share_memory_with_masks_biases_sinks_or_slopes(name: str) -> None:
    out = np.full((2, 2, 5, 3), 7, np.float32)
    shared = (
        out.reshape(-1)[:35].reshape(5, 7) if name in ("attn_mask", "bias") else out[0, :, 0, 0]
    )
    with pytest.raises(ValueError, match=r"attention.*out"):
        qkv.attention(*qkv_arrays(), out=out, q_offset=0, **{name: shared})
    assert (out == 7).all()


def test_out_may_interleave_with_an_input_in_memory() -> None:
    buffer = np.zeros((2, 2, 5, 6), np.float32)
    query, key, value = qkv_arrays(d=3)
    buffer[..., ::2] = query
    expected = qkv.attention(buffer[..., ::2], key, value)
    qkv.attention(buffer[..., ::2], key, value, out=buffer[..., 1::2])
    assert (buffer[..., 1::2] == expected).all()
    assert (buffer[..., ::2] == query).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"attn_mask": np.ones((5, 8), bool)},
        {"bias": np.ones((3, 5, 7))},
        {"is_causal": True},
        {"window": (-1, 0), "q_offset": 0},
        {"softcap": 0.0},
        {"alibi_slopes": [1.0], "q_offset": 0},
        {"key_lengths": 9},
        {"q_offset": "middle"},
    ],
    ids=str,
)
def test_out_is_unchanged_after_an_invalid_option(wrong: dict) -> None:
    out = np.full((2, 2, 5, 3), 7, np.float32)
    with pytest.raises((TypeError, ValueError), match="attention") as caught:
        qkv.attention(*qkv_arrays(), out=out, return_weights=True, **wrong)
    assert (out == 7).all()
    assert "\n" not in str(caught.value)
