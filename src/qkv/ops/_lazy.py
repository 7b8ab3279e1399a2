"""Matrices that compute their float values when the values are needed, and do not keep them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from qkv.arrays import Array, DType, Shape

Copies = dict[tuple[int, DType, bool], Array]  # keyed by variant, kind and `transposed`


class LazyMatrix(NDArrayOperatorsMixin, ABC):
    """A read-only matrix that stores no float values, but behaves like a float array where needed.

    `linear` multiplies the matrix in the form that the kernel needs. All other NumPy operations
    work too: each computes the float values that it needs, and does not keep them.

    Attributes:
        dtype: the dtype of the values.
        shape: the shape of the matrix.
    """

    dtype: DType
    shape: Shape
    ndim = 2

    @property
    @abstractmethod
    def T(self) -> Self:
        """The transposed matrix, which shares the memory of this matrix."""

    @abstractmethod
    def read(self) -> Array:
        """Return the values, as an array that is new or read-only."""

    @abstractmethod
    def _read_rows(self, rows: Array) -> Array:
        """Return the values (n, columns) of the rows `rows` (n,), valid indices from 0."""

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The size of a value in bytes."""
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, np.ndarray) and index.dtype.kind in "iu":
            count, columns = self.shape
            rows = np.where(index < 0, index + count, index)
            if rows.size and not 0 <= rows.min() <= rows.max() < count:
                raise IndexError(f"an index is out of bounds for {count} rows")
            return self._read_rows(rows.reshape(-1)).reshape(*index.shape, columns)
        return np.asarray(self.read()[index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self.read()
        return values.astype(dtype or self.dtype, copy=bool(copy))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = (x.read() if isinstance(x, LazyMatrix) else x for x in inputs)
        return getattr(ufunc, method)(*plain, **options)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the float array, such as `astype` or `sum`."""
        if name.startswith("_") or name in ("packed", "rows", "width", "transposed", "values"):
            raise AttributeError(name)
        return getattr(self.read(), name)


class StoredMatrix(LazyMatrix):
    """A matrix whose values are read from a file, or from a read-only array.

    The kernel's packed copies are kept in `copies`; the transposed matrix shares them.

    Args:
        values: a function that returns the values, as floats of any type.
        shape: the shape of the values.
        dtype: the dtype of the matrix.
        narrow: the dtype of the values if it is float16 or bfloat16; None otherwise. If `dtype` is
            float32, the kernel keeps the narrow numbers and computes in float32.
        rows_of: a function that returns the values of rows (n,); it should read only these rows.
        columns_of: like `rows_of`, for the transposed matrix.
        in_int8: whether `linear` computes products with float32 vectors in int8.
        exact: two booleans, which say whether each row, and whether each column, is a finite
            float16 scale times whole numbers from -127 to 127.
    """

    def __init__(
        self,
        values: Callable[[], Array],
        shape: Shape,
        dtype: DType,
        *,
        narrow: DType | None = None,
        rows_of: Callable[[Array], Array] | None = None,
        columns_of: Callable[[Array], Array] | None = None,
        in_int8: bool = False,
        exact: tuple[bool, bool] = (False, False),
    ) -> None:
        self.values, self.shape, self.dtype, self.narrow = values, shape, dtype, narrow
        self.rows_of, self.columns_of = rows_of, columns_of
        self.in_int8, self.exact = in_int8, exact
        self.transposed, self.copies = False, Copies()

    @classmethod
    def of(cls, array: Array, **options: Any) -> "StoredMatrix":
        """Return a matrix with the values of a read-only array."""
        return cls(lambda: array, array.shape, array.dtype, **options)

    def __reduce__(self) -> Any:
        """Let `pickle` and `copy` store the values instead of the function that reads them."""
        state = (self.read_narrow(), self.dtype, self.narrow, self.in_int8, self.exact)
        return _restore, state

    @property
    def T(self) -> "StoredMatrix":
        """The transposed matrix, which shares the packed copies."""
        other = object.__new__(StoredMatrix)
        other.__dict__ = {**self.__dict__, "transposed": not self.transposed}
        other.shape, other.exact = self.shape[::-1], self.exact[::-1]
        other.rows_of, other.columns_of = self.columns_of, self.rows_of
        return other

    def mark(self) -> "StoredMatrix":
        """Return the matrix, marked for products in int8, without the packed copies."""
        other = self.T.T
        other.in_int8, other.copies = True, Copies()
        return other

    def read(self) -> Array:
        """Return the values, as an array that is new or read-only."""
        return self.read_narrow().astype(self.dtype, copy=False)

    def read_narrow(self) -> Array:
        """Return the values in the narrowest dtype that represents them."""
        values = self.values()
        values = values.astype(self.narrow or values.dtype, copy=False)
        return values.T if self.transposed else values

    def _read_rows(self, rows: Array) -> Array:
        if self.rows_of is None:
            return np.asarray(self.read()[rows])
        values = self.rows_of(rows)
        return values.astype(self.narrow or values.dtype, copy=False).astype(self.dtype, copy=False)


def _restore(
    values: Array, dtype: DType, narrow: DType | None, in_int8: bool, exact: tuple[bool, bool]
) -> StoredMatrix:
    """Return the matrix that `StoredMatrix.__reduce__` describes."""
    values.setflags(write=False)
    return StoredMatrix(
        lambda: values,
        values.shape,
        dtype,
        narrow=narrow,
        rows_of=values.__getitem__,
        in_int8=in_int8,
        exact=exact,
    )
