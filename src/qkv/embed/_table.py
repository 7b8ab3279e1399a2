"""The table of token vectors, and functions that check tables, numbers and ids."""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from qkv._argument_errors import public_method, type_error, value_error
from qkv.arrays import Array, as_array, float_type, is_float, native, real_number, whole_number


def positive_number(value: Any, *, name: str) -> float:
    """Return `value` as a float; raise an error unless it is finite and greater than 0."""
    number = real_number(value, name=name)
    if not (math.isfinite(number) and number > 0):
        raise value_error(f"{name} is {number}: it must be finite and greater than 0")
    return number


def fixed_table(weight: Any, *, dtype: Any = None) -> Array:
    """Return `weight` as a read-only table (rows, dim)."""
    table = as_array(weight, name="weight")
    if table.ndim != 2 or table.shape[1] == 0:
        raise value_error(f"weight has shape {table.shape}; pass a table (rows, dim)")
    if not is_float(table.dtype) and table.dtype.kind not in "iu":
        raise type_error(f"weight is {table.dtype}; pass floats or integers")
    kind = native(table.dtype) if dtype is None else dtype
    table = table.astype(kind, copy=table.flags.writeable)
    table.setflags(write=False)
    return table


def take_rows(table: Array, ids: Any, *, name: str) -> Array:
    """Return a copy of the rows `ids (...)` of `table (N, dim)`; raise an error for unknown ids."""
    wanted = as_array(ids, name=f"{name}s")
    if wanted.size == 0:
        wanted = wanted.astype(np.int64)
    if wanted.dtype.kind not in "iu":
        raise type_error(f"{name}s are {wanted.dtype}; pass integers")
    outside = wanted[(wanted < 0) | (wanted >= len(table))]
    if outside.size:
        numbers = ", ".join(str(value) for value in np.unique(outside)[:5])
        raise value_error(
            f"no row for {name} {numbers}: the table has {len(table)} rows, "
            f"so {name}s run from 0 to {len(table) - 1}"
        )
    return table[wanted]


class _Ids(Protocol):
    @property
    def ids(self) -> Any: ...


class _Tokenizer(Protocol):
    def __call__(self, text: str, /) -> _Ids: ...

    def __len__(self) -> int: ...


class TokenEmbedding:
    """A table (V, dim) with a row for each token of a tokenizer.

    The table does not change. Therefore, a word has the same vector in every sentence.

    Args:
        tokenizer: converts texts to ids. The table has at least `len(tokenizer)` rows.
        dim: the size of a row. If `weight` is given, `dim` may be omitted.
        seed: the seed of the table's random numbers, which have a standard normal distribution.
        weight: a table of floats or integers instead of random numbers. The table must have a row
            for each id of the tokenizer, and may have more rows. A table that is not read-only is
            copied.
        dtype: a float type; by default float32 for random numbers, or the type of `weight`.

    Raises:
        TypeError: `weight` does not hold numbers, or `dtype` is not a float type.
        ValueError: the table does not fit the tokenizer or `dim`; or `seed` and `weight` are both
            given.

    Example:
        >>> from qkv.text import WordTokenizer
        >>> embedding = TokenEmbedding(WordTokenizer("the cat sat on the mat"), 8, seed=0)
        >>> embedding.weight.shape
        (6, 8)
        >>> x = embedding("the cat the")
        >>> x.shape
        (1, 3, 8)
        >>> bool((x[0, 0] == x[0, 2]).all())
        True
    """

    @public_method
    def __init__(
        self,
        tokenizer: _Tokenizer,
        dim: int | None = None,
        *,
        seed: int | None = None,
        weight: ArrayLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        kind = None if dtype is None else float_type(dtype)
        if dim is not None:
            dim = whole_number(dim, name="dim", least=1)
        if weight is not None and seed is not None:
            raise value_error("weight and seed are both given; pass only one of them")
        if weight is None:
            if dim is None:
                raise value_error("neither dim nor weight is given; pass one of them")
            numbers = np.random.default_rng(seed).standard_normal((len(tokenizer), dim))
            weight = numbers.astype(kind or np.float32)
        table = fixed_table(weight, dtype=kind)
        if dim is not None and table.shape[1] != dim:
            raise value_error(
                f"weight has rows of size {table.shape[1]}, but dim is {dim}; pass the same size"
            )
        if len(table) < len(tokenizer):
            raise value_error(
                f"weight has {len(table)} rows and the tokenizer has {len(tokenizer)} "
                "ids; pass a row for each id"
            )
        self.tokenizer = tokenizer
        self.weight = table

    @public_method
    def __call__(self, text: str) -> Array:
        """Return the vectors of one text, (1, T, dim).

        Raises:
            TypeError: `text` is not a string. Several texts are not accepted, because texts of
                different lengths do not fit in one array.
        """
        if not isinstance(text, str):
            raise type_error(
                f"text is {type(text).__name__}; pass one string, and make one call per text"
            )
        return self.rows(self.tokenizer(text).ids)[None]  # (1, T, dim)

    @public_method
    def rows(self, ids: ArrayLike) -> Array:
        """Return a copy of the rows (..., dim) for token ids (...).

        Raises:
            TypeError: `ids` are not integers.
            ValueError: an id has no row.
        """
        return take_rows(self.weight, ids, name="id")
