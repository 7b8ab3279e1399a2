"""Numbers that know what their axes are: what the calls of `qkv.circuits` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from qkv.arrays import Array
from qkv.extras import need
from qkv.text.tokenized import plain_tokens
from qkv.trace import Trace


class Result(np.ndarray[Any, Any]):
    """An array with names for its axes, which `to_xarray` and `qkv.circuits.plot` read.

    In all other respects it is a plain array, and what is computed from it (a slice, a sum, a
    difference) is one, without names. `to_xarray()` keeps the names through slices and arithmetic.

    Attributes:
        axes: a name for each axis: "layer", "head", "token", "query", "key" and so on, as the
            dimensions of `Trace.to_xarray()`; empty for an array made from a result.
        words: for some axes a word for each place, such as the tokens of the text.
        of: what the numbers are.
        ground: the number that means "no effect", where that is not 0.
        title: what was measured.

    >>> found = Result(np.eye(2), ("query", "key"), of="weight", words={"key": ["a", "b"]})
    >>> found.axes, type(found[0]).__name__, type(found * 2).__name__
    (('query', 'key'), 'ndarray', 'ndarray')
    >>> found.to_xarray().sel(query=1).dims
    ('key',)
    """

    axes: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = MappingProxyType({})
    of: str = "number"
    ground: float = 0.0
    title: str = ""

    def __new__(
        cls,
        values: ArrayLike,
        axes: Sequence[str],
        *,
        of: str,
        title: str = "",
        words: Mapping[str, Sequence[str]] | None = None,
        ground: float = 0.0,
    ) -> Self:
        """The same numbers, with their names; words are kept for axes with as many places."""
        found = np.asarray(values).view(cls)
        sizes = dict(zip(axes, found.shape, strict=True))
        found.axes, found.of, found.title, found.ground = tuple(axes), of, title, ground
        known = (words or {}).items()
        found.words = {axis: list(one) for axis, one in known if len(one) == sizes.get(axis)}
        return found

    def to_xarray(self) -> Any:
        """The numbers as an `xarray.DataArray`, not copied.

        Its dimensions are `axes`, counted from 0. Words are coordinates: `token_text` beside
        `token`.

        Raises:
            ValueError: the array was made from a result, and its axes have no names.
            ImportError: xarray is missing (the extra `tables`).
        """
        if not self.axes:
            raise ValueError(
                f"to_xarray: this array {self.shape} was made from a result, and its axes have no "
                "names: call to_xarray() on the result, and change what that returns"
            )
        xarray = need("xarray", "tables")
        return xarray.DataArray(
            np.asarray(self),
            dims=self.axes,
            coords={
                **{axis: range(size) for axis, size in zip(self.axes, self.shape, strict=True)},
                **{f"{axis}_text": (axis, words) for axis, words in self.words.items()},
            },
            name=self.title or None,
            attrs={"of": self.of, "ground": self.ground},
        )

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What a function of NumPy makes of a result is a plain array, or a number."""
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        """Pickled with its names."""
        return _unpickled, (np.asarray(self), vars(self))


def _unpickled(values: Array, names: dict[str, Any]) -> Result:
    """A result as it was pickled."""
    found = values.view(Result)
    vars(found).update(names)
    return found


def words_of(trace: Trace) -> list[str]:
    """The tokens of one text as a reader knows them."""
    return plain_tokens(trace.tokens, trace.special)
