"""Tests of reading arrays, and of the float types."""

import ml_dtypes
import numpy as np
import pytest

from qkv.arrays import as_array, compute_type, is_float, native


class OnlyDLPack:
    """An array that supports only the DLPack protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def read(x: object) -> np.ndarray:
    return as_array(x, call="there", name="it")


def test_arrays_are_not_copied() -> None:
    array = np.arange(6.0)
    assert read(array) is array
    assert np.shares_memory(read(OnlyDLPack(array)), array)
    assert np.shares_memory(read(memoryview(array)), array)


def test_subclasses_become_plain_arrays() -> None:
    class Other(np.ndarray):
        pass

    assert type(read(np.zeros(2).view(Other))) is np.ndarray


@pytest.mark.parametrize("x", [[[1.0, 2.0], [3.0]], object(), "text", None, {"a": 1}])
def test_ragged_lists_and_objects_are_refused_but_strings_are_read(x: object) -> None:
    if isinstance(x, str):
        assert read(x).dtype.kind == "U"  # the callers check the dtype and refuse strings
        return
    with pytest.raises(TypeError, match=r"^there: it"):
        read(x)


def test_a_masked_array_is_refused_because_its_mask_would_be_lost() -> None:
    with pytest.raises(TypeError, match="mask would be lost"):
        read(np.ma.masked_array([1.0, 2.0], [True, False]))


def test_the_float_types() -> None:
    known = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
    assert all(is_float(np.dtype(kind)) for kind in known)
    others = [np.int64, bool, np.complex64, np.longdouble, ml_dtypes.float8_e4m3fn]
    assert not any(is_float(np.dtype(kind)) for kind in others)
    work = [compute_type(np.dtype(kind)) for kind in known]
    assert work == [np.float32, np.float32, np.float32, np.float64]
    assert compute_type(np.dtype(">f8")).isnative
    assert native(np.dtype(">f2")) == np.float16
