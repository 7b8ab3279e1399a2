"""Read array-like objects as NumPy arrays, and check numbers and float types."""

import functools
import math
import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import (
    ArrayLike as ArrayLike,  # imported here for use by other modules
    NDArray,
)

from qkv._argument_errors import type_error, value_error

Array = NDArray[Any]
Arrays = Mapping[str, Array]  # maps names to arrays, for example a layer's parameters
Shape = tuple[int, ...]
DType = np.dtype[Any]

FLOAT_NAMES = ("float16", "bfloat16", "float32", "float64")


def as_array(x: Any, *, call: str = "", name: str) -> Array:
    """Read `x` as a NumPy array, without a copy if possible.

    `x` may be an array, a nested list, a number, or an object with `__array__` or a CPU
    `__dlpack__`. The byte order is preserved. Error messages begin with `call` and `name`.

    >>> as_array([[1.0, 2.0]], call="attention", name="query").shape
    (1, 2)
    """
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise type_error(
            f"{name} is a masked array, whose mask would be lost: "
            f"pass {name}.data, and mask keys with attn_mask",
            call,
        )
    try:
        if _is_torch_bfloat16(x):
            return torch_bfloat16(x)
        if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
            return np.from_dlpack(x)
        array = np.asarray(x)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise type_error(f"{name} cannot be read as an array: {reason}", call) from error
    if array.dtype == object:
        raise type_error(f"{name} ({type(x).__name__}) cannot be read as an array of numbers", call)
    return array


def whole_number(
    value: Any, *, call: str = "", name: str, least: int, most: float = sys.maxsize
) -> int:
    """Return `value` as an int; raise an error unless `least <= value <= most`."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise type_error(f"{name} is {quote(value)}; pass a whole number", call) from None
    if number < least:
        raise value_error(f"{name} is {quote(number)}: it must be {least} or more", call)
    if number > most:
        raise value_error(f"{name} is {quote(number)}: it must be at most {most:,}", call)
    return number


def is_whole_number(value: Any) -> bool:
    """Return whether `value` is a Python int or a NumPy integer, but not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def index_per_axis(key: Any, ndim: int) -> tuple[Any, ...]:
    """Expand an array index to one entry per axis: `...` and missing entries become slices.

    >>> index_per_axis((..., 2), 2), index_per_axis(0, 2)
    ((slice(None, None, None), 2), (0, slice(None, None, None)))
    """
    keys = key if isinstance(key, tuple) else (key,)
    place = next((i for i, one in enumerate(keys) if one is Ellipsis), len(keys))
    before, after = keys[:place], keys[place + 1 :]
    return (*before, *(slice(None),) * (ndim - len(before) - len(after)), *after)


def real_number(value: Any, *, call: str = "", name: str) -> float:
    """Return `value` as a float; NaN and infinity are allowed."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    single = not isinstance(value, bool | str | bytes) and getattr(value, "shape", ()) == ()
    if not single or kind in "bcSUMm":
        raise type_error(f"{name} is {quote(value)}; pass one number", call)
    try:
        return float(value)
    except OverflowError:
        raise value_error(
            f"{name} is {quote(value)}, which is too large for a float", call
        ) from None
    except (TypeError, ValueError):
        raise type_error(f"{name} is {quote(value)}; pass a number", call) from None


def quote(value: Any) -> str:
    """Describe `value` in one short line for an error message.

    >>> quote(0.5), quote("three"), quote(10**400)
    ('0.5', "'three'", '1000000000000000000000000000...')
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # `repr` fails for very long ints and in some users' classes
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else text[:28] + "..."


@functools.lru_cache(64)
def native(dtype: DType) -> DType:
    """Return `dtype` in this machine's byte order."""
    return dtype.newbyteorder("=")


@functools.lru_cache(64)
def is_float(dtype: DType) -> bool:
    """Return whether `dtype` is float16, bfloat16, float32 or float64, in any byte order.

    >>> is_float(np.dtype(">f4")), is_float(np.dtype(np.int64))
    (True, False)
    """
    return dtype.name in FLOAT_NAMES


def float_type(dtype: Any, *, call: str = "") -> DType:
    """Return `dtype` as one of the supported float types. The name "bfloat16" is accepted too.

    >>> float_type("bfloat16", call="load")
    dtype(bfloat16)
    """
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: F401 (registers the name in NumPy)
    try:
        kind = native(np.dtype(dtype))
    except TypeError:
        kind = None
    if kind is None or not is_float(kind):
        name = repr(dtype) if kind is None else kind
        raise type_error(f"dtype is {name}: choose {', '.join(FLOAT_NAMES)}", call)
    return kind


@functools.lru_cache(64)
def compute_type(dtype: DType) -> DType:
    """Return the dtype in which to compute: float32 for half precision, otherwise `dtype`.

    >>> compute_type(np.dtype(np.float16))
    dtype('float32')
    """
    return np.dtype(np.float64) if dtype.name == "float64" else np.dtype(np.float32)


@functools.lru_cache(64)
def common_type(*types: DType) -> DType:
    """Return the dtype to which NumPy promotes these float types.

    For float16 and bfloat16, it is float32, as in torch and in ml_dtypes from 0.7 on.

    >>> common_type(np.dtype(np.float16), np.dtype(">f4"))
    dtype('float32')
    """
    kinds = {native(kind) for kind in types}
    return kinds.pop() if len(kinds) == 1 else np.result_type(*map(compute_type, kinds))


def without_tiny(x: Array, least: int = 125) -> Array:
    """Set numbers whose absolute value is below `2**-least` to 0, in place.

    For float64, the limit is `2**-(least + 896)`. Some processors need about 150 cycles to multiply
    by a subnormal number. With `least=100`, the products of the remaining numbers with numbers of
    ordinary size are not subnormal either.

    >>> without_tiny(np.float32([1e-38, -1e-38, 1e-30, np.inf]))
    array([0.e+00, 0.e+00, 1.e-30,    inf], dtype=float32)
    """
    tiny = 2.0 ** (-least if x.dtype == np.float32 else -least - 896)
    bits = x.view(f"i{x.itemsize}")
    bits *= ~(np.abs(x) < tiny)  # multiplying floats would cost the time that this function saves
    return x


def convert_exactly(array: Array, kind: DType, name: str) -> Array:
    """Convert an array to a different float type. Raise an error if a finite number is too large.

    >>> convert_exactly(np.ones(2), np.dtype(np.float16), "weight").dtype
    dtype('float16')
    """
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array.astype(kind))
    lost = ~np.isfinite(converted.astype(np.float64)) & np.isfinite(array)
    if lost.any():
        raise value_error(
            f"{name} contains {array[lost][0]:.6g}, which is too large for {kind}; pass "
            "dtype='float32'"
        )
    return converted


def check_out(
    out: Any, shape: Shape, dtype: DType, inputs: Iterable[Any], *, call: str = ""
) -> None:
    """Raise an error if `out` cannot store a result with this shape and dtype.

    `out` must be writable and must not share memory with `inputs`.
    """
    if not isinstance(out, np.ndarray):
        raise type_error(f"`out` is {type(out).__name__}; pass a NumPy array", call)
    if out.shape != shape or out.dtype != dtype:
        raise value_error(
            f"`out` is {out.shape} {out.dtype}, but the result is {shape} {dtype}; pass an array "
            "of the result's shape and type",
            call,
        )
    if not out.flags.writeable:
        raise value_error("`out` cannot be written to; pass a writable array", call)
    if _overlaps_itself(out):
        raise value_error(
            "several elements of `out` share memory; pass an array without overlapping elements",
            call,
        )
    for value in inputs:
        if value is None or isinstance(value, (str, int)):
            continue
        if _overlap(out, as_array(value, call=call, name="an input")):
            raise value_error("`out` shares memory with an input; pass a separate array", call)


def _overlap(array: Array, other: Array) -> bool:
    """Return whether two arrays share memory; True if the check would take too long."""
    try:
        # NumPy's type stub allows only -1 and 0 as the limit
        return np.may_share_memory(array, other) and np.shares_memory(array, other, 100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _overlaps_itself(array: Array) -> bool:
    """Return whether two elements of `array` share memory; True if the check takes too long."""
    axes = sorted(zip(map(abs, array.strides), array.shape, strict=True))
    reach = array.itemsize  # the span in bytes of the axes that the loop has visited
    for step, size in axes:
        if size > 1 and step < reach:
            break
        reach += step * (size - 1)
    else:
        return False  # every stride is too large for two elements to overlap
    for axis in range(array.ndim):
        # Check whether the two halves of this axis share memory. If not, two elements that overlap
        # are in the same half. The second half has the same strides as the first half and is not
        # longer. So an overlap in the second half implies an overlap in the first half, and it is
        # enough to continue with the first half.
        part = np.moveaxis(array, axis, 0)
        while (half := (len(part) + 1) // 2) < len(part):
            if _overlap(part[:half], part[half:]):
                return True
            part = part[:half]
    return False


def _is_torch_bfloat16(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch" and str(x.dtype) == "torch.bfloat16"


def torch_bfloat16(x: Any) -> Array:
    """Read the bits of a torch bfloat16 tensor, because torch cannot convert bfloat16 to NumPy."""
    import ml_dtypes

    return np.asarray(x.view(sys.modules["torch"].int16)).view(ml_dtypes.bfloat16)


def finite(data: Any) -> Any:
    """Convert data for JSON: arrays become lists, and numbers that are not finite become None.

    >>> finite({"a": np.array([0.5, np.inf]), "b": (1, float("nan"))})
    {'a': [0.5, None], 'b': [1, None]}
    """
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, np.ndarray):
        return data.tolist() if np.isfinite(data).all() else finite(data.tolist())
    data = data.item() if isinstance(data, np.generic) else data
    return None if isinstance(data, float) and not math.isfinite(data) else data
