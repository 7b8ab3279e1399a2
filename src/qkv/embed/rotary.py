"""Rotary positions: rotate queries and keys by their positions."""

import numpy as np

from qkv import arrays
from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike
from qkv.embed._table import positive_number


@public_call("apply_rotary")
def apply_rotary(
    x: ArrayLike,
    positions: ArrayLike,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    dims: int | None = None,
    speeds: ArrayLike | None = None,
) -> Array:
    """Rotate pairs of numbers in queries or keys by angles that grow with the position.

    Pair i at position p is rotated by `p * base**(-2i / dims)`. The dot product of a rotated query
    and a rotated key then depends only on the distance between their positions.

    Args:
        x: (..., L, d), queries or keys; float16, bfloat16, float32 or float64.
        positions: integers or floats that broadcast to (..., L), for example (L,) for queries (...,
            H, L, d), or (B, 1, L) for a batch (B, H, L, d) with different positions in each text.
        base: a larger base makes the last pairs rotate more slowly.
        interleaved: if True, the numbers at indices 2i and 2i + 1 form a pair, as in RoFormer and
            GPT-J. If False, the numbers at indices i and i + dims / 2 form a pair, as in GPT-NeoX
            and Llama.
        dims: rotate only the first `dims` of the d numbers; None for all.
        speeds: (dims / 2,), the angle by which each pair rotates per position. By default, the
            angles are computed from `base`. If `speeds` is given, `base` is not used. Some models
            use `speeds` to read texts that are longer than the training texts.

    Returns:
        A new array with the shape and type of `x`.
        Angles are computed in float64. Half-precision inputs are rotated in float32.

    Raises:
        TypeError: `x` is not a float array, or `positions` are not numbers.
        ValueError: `dims` is odd or larger than d; `positions` do not broadcast or are not finite;
            `base` is not a finite positive number; or `speeds` does not hold one finite number per
            pair.

    Source:
        Su et al. 2021, RoFormer, equation 34. GPT-NeoX's code rotates only `dims` numbers.

    Example:
        A quarter turn moves (1, 0) to (0, 1):

        >>> apply_rotary(np.array([[1.0, 0.0]]), [np.pi / 2]).round(6)
        array([[0., 1.]])
    """
    array = arrays.as_array(x, name="x")
    if not arrays.is_float(array.dtype):
        raise type_error(f"x is {array.dtype}; pass float16, bfloat16, float32 or float64")
    if array.ndim == 0:
        raise value_error("x is a single number; pass (..., L, d)")
    base, dims = checked_rotary(base, dims, array.shape[-1])
    speeds = rotary_speeds(base, dims) if speeds is None else _checked_speeds(speeds, dims)
    cos, sin = rotation_at(array, positions, speeds, interleaved)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite inputs cause no warnings
        return rotate_pairs(array, cos, sin, interleaved=interleaved)


def rotation_at(
    x: Array, positions: ArrayLike, speeds: Array, interleaved: bool, scale: float = 1.0
) -> tuple[Array, Array]:
    """Return the factors that `rotate_pairs` applies to `x (..., L, d)`.

    `speeds` has shape (dims / 2,), or contains one row of dims / 2 numbers for each position.

    Returns:
        `(cosines, sines)`, multiplied by `scale`.
        Cosines and sines have the axes of `positions`, followed by a last axis of length `dims`.
        The sine for the first number of each pair is negative: -sin(angle).
    """
    dims = 2 * speeds.shape[-1]
    angle = _checked_positions(positions, x.shape[:-1])[..., None] * speeds
    work = arrays.compute_type(x.dtype)
    cos, sin = (scale * np.cos(angle)).astype(work), (scale * np.sin(angle)).astype(work)
    cosines, sines = (np.empty((*angle.shape[:-1], dims), work) for _ in range(2))
    first, second = _pairs(dims, interleaved)
    cosines[..., first] = cosines[..., second] = cos
    sines[..., first], sines[..., second] = -sin, sin
    return cosines, sines


def rotate_pairs(array: Array, cosines: Array, sines: Array, *, interleaved: bool) -> Array:
    """Return a copy of an array (..., L, d), with pairs rotated by the factors of `rotation_at`."""
    dims = cosines.shape[-1]
    whole = array.astype(cosines.dtype, copy=False)
    x = whole[..., :dims]
    first, second = _pairs(dims, interleaved)
    other = np.empty_like(x, subok=False)
    other[..., first], other[..., second] = x[..., second], x[..., first]
    other *= sines
    if dims == whole.shape[-1]:
        out = x * cosines
    else:
        out = whole.copy("K")
        out[..., :dims] *= cosines
    out[..., :dims] += other
    return out.astype(arrays.native(array.dtype), copy=False)


def _pairs(dims: int, interleaved: bool) -> tuple[slice, slice]:
    """Return the indices of the first numbers and of the second numbers of all pairs."""
    if interleaved:
        return slice(0, dims, 2), slice(1, dims, 2)
    return slice(0, dims // 2), slice(dims // 2, dims)


def _rotated_size(dims: int | None, size: int) -> int:
    """Return how many numbers of each row are rotated."""
    if dims is None:
        if size == 0 or size % 2:
            raise value_error(
                f"x has rows of size {size}, whose entries cannot be paired; "
                "pass an even size, or set dims to the number of rotated entries"
            )
        return size
    dims = arrays.whole_number(dims, name="dims", least=2)
    if dims % 2 or dims > size:
        raise value_error(
            f"dims is {arrays.quote(dims)} and x has rows of size {size}; pass an even number up "
            f"to {size}"
        )
    return dims


def rotary_speeds(base: float, dims: int) -> Array:
    """Return the angles `base**(-2i / dims)`, (dims / 2,), by which pairs rotate per position.

    Source:
        Su et al. 2021, RoFormer, section 3.2.2.
    """
    speeds: Array = base ** (-np.arange(0, dims, 2) / dims)
    return speeds


def checked_rotary(base: float, dims: int | None, size: int) -> tuple[float, int]:
    """Check `apply_rotary`'s `base` and `dims` for vectors of size `size`; return both."""
    dims = _rotated_size(dims, size)
    return positive_number(base, name="base"), dims


def _checked_speeds(speeds: ArrayLike, dims: int) -> Array:
    """Return the given speeds as float64; raise an error unless their shape fits."""
    checked = arrays.as_array(speeds, name="speeds").astype(np.float64)
    if checked.shape != (dims // 2,) or not np.isfinite(checked).all():
        raise value_error(
            f"speeds has shape {checked.shape} and {dims} dimensions are rotated; pass finite "
            f"numbers of shape ({dims // 2},)"
        )
    return checked


def _checked_positions(positions: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return positions as float64; raise an error unless they broadcast to `shape`."""
    checked = arrays.as_array(positions, name="positions")
    if checked.size and not arrays.is_float(checked.dtype) and checked.dtype.kind not in "iu":
        raise type_error(f"positions are {checked.dtype}; pass integers or floats")
    try:
        np.broadcast_to(checked, shape)
    except ValueError:
        raise value_error(
            f"positions have shape {checked.shape} and x has {shape} before its last "
            "dimension; pass positions that broadcast to this shape"
        ) from None
    checked = checked.astype(np.float64)
    if not np.isfinite(checked).all():
        raise value_error("positions are not all finite; pass finite numbers")
    return checked
