"""A table of positions for a grid of patches, made to fit another grid."""

from __future__ import annotations

import numpy as np

from qkv.arrays import Array, compute_type

_SHARPNESS = -0.75  # of the cubic, as torch has it


def resampling(given: int, wanted: int) -> Array:
    """The matrix (wanted, given) that resamples so many equally spaced values by cubics.

    Value i of the result lies at `(i + 1/2) * given / wanted - 1/2` and is made of the four around
    it; beyond the ends stand the first and the last one again. It is computed in float64.

    Source:
        Keys 1981, "Cubic Convolution Interpolation for Digital Image Processing", equation 4 with
        other coefficients: a = -0.75.

    >>> resampling(2, 3).round(2).tolist()
    [[1.09, -0.09], [0.5, 0.5], [-0.09, 1.09]]
    """
    at = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    first = np.floor(at).astype(np.int64)
    found = np.zeros((wanted, given))
    for place in (first - 1, first, first + 1, first + 2):
        away = np.abs(at - place)
        near = ((_SHARPNESS + 2) * away - (_SHARPNESS + 3)) * away * away + 1
        far = _SHARPNESS * (((away - 5) * away + 8) * away - 4)
        weight = np.where(away <= 1, near, np.where(away < 2, far, 0.0))
        np.add.at(found, (np.arange(wanted), np.clip(place, 0, given - 1)), weight)
    return found


def for_grid(table: Array, grid: tuple[int, int], wanted: tuple[int, int]) -> Array:
    """The rows (1 + h * w, D) of a grid of h x w patches, from those (1 + H * W, D) of H x W.

    Row 0 belongs to the token before the patches and stays as it is. Half precision gives float32.
    """
    rows = _resampled(
        table[1:], grid, [resampling(*pair) for pair in zip(grid, wanted, strict=True)]
    )
    first = table[:1].astype(rows.dtype, copy=False)
    joined: Array = np.concatenate([first, rows])
    return joined


def for_grid_back(grad: Array, grid: tuple[int, int], wanted: tuple[int, int]) -> Array:
    """The backward pass: from the gradient (1 + h * w, D) of those rows to that of the table."""
    back = [resampling(*pair).T for pair in zip(grid, wanted, strict=True)]
    joined: Array = np.concatenate([grad[:1], _resampled(grad[1:], wanted, back)])
    return joined


def _resampled(rows: Array, grid: tuple[int, int], by: list[Array]) -> Array:
    """Rows (H * W, D) of a grid, resampled by a matrix (h, H) and one (w, W): (h * w, D)."""
    kind = compute_type(rows.dtype)
    down, across = (matrix.astype(kind) for matrix in by)
    cells = rows.astype(kind, copy=False).reshape(*grid, -1)
    found: Array = np.einsum("hH,HWd,wW->hwd", down, cells, across, optimize=True)
    return found.reshape(-1, rows.shape[-1])
