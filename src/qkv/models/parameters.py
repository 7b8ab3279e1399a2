"""A model's arrays, keyed by name: each array is read-only, but can be replaced."""

import difflib
from collections.abc import Callable, Iterator, MutableMapping
from typing import NoReturn

from qkv.arrays import Array, ArrayLike, as_array, is_float
from qkv.ops.packing import frozen


class Parameters(MutableMapping[str, Array]):
    """A model's arrays, keyed by name.

    The arrays are read-only, because the model prepares them for matrix products only once. To
    change an array, assign another array: `model.parameters[name] = array`.

    Args:
        arrays: the arrays, keyed by name; they must be read-only.
        changed: a function that is called after each change.

    >>> import numpy as np, qkv
    >>> model = qkv.load("random")
    >>> weight = model.parameters["blocks.0.attn.out_proj.weight"].copy()
    >>> weight[:4] = 0  # the rows of head 0
    >>> model.parameters["blocks.0.attn.out_proj.weight"] = weight
    """

    def __init__(self, arrays: MutableMapping[str, Array], changed: Callable[[], None]) -> None:
        self._arrays, self._changed = arrays, changed

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __setitem__(self, name: str, value: ArrayLike) -> None:
        """Replace an array by a copy of `value`; the type of the array does not change.

        Raises:
            KeyError: the parameter does not exist; the message suggests similar names.
            TypeError: `value` does not hold floats.
            ValueError: `value` has another shape.
        """
        if name not in self._arrays:
            near = difflib.get_close_matches(str(name), self._arrays, n=3)
            raise KeyError(
                f"parameters: unknown name {name!r}: the nearest are {', '.join(near) or 'none'}"
            )
        array, old = as_array(value, call="parameters", name=name), self._arrays[name]
        if not is_float(array.dtype):
            raise TypeError(f"parameters: {name} is {array.dtype}: parameters are floats")
        if array.shape != old.shape:
            raise ValueError(
                f"parameters: {name} has shape {array.shape} and must have {old.shape}, "
                "the shape of the old array"
            )
        self._arrays[name] = frozen(array.astype(old.dtype))
        self._changed()

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(f"parameters: a model needs {name}: assign another array instead")

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
