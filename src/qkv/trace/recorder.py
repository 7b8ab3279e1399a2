"""What collects the intermediates of a run while it runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array

_BY_NAME = "hook_result"  # one vector a head, which is computed for it alone


def kept_unasked(name: str) -> bool:
    """Whether an array is kept where nobody has said by name what is kept.

    >>> kept_unasked("blocks.0.mlp.hook_post"), kept_unasked("blocks.0.attn.hook_result")
    (True, False)
    """
    return not name.endswith(_BY_NAME)


class Recorder:
    """Collects arrays by name while a model or a layer runs.

    Args:
        wanted: says of a name whether it is kept; `kept_unasked` says so without it.

    >>> record = Recorder(lambda name: name.endswith("hook_z"))
    >>> record.under("blocks.0.attn.")("hook_z", np.zeros(2))
    >>> list(record.arrays), record.wants("hook_q")
    (['blocks.0.attn.hook_z'], False)
    """

    def __init__(self, wanted: Callable[[str], bool] = kept_unasked) -> None:
        self.arrays: dict[str, Array] = {}
        self._wanted = wanted
        self._prefix = ""
        self._shaped: Callable[[Array], Array] | None = None

    def wants(self, *names: str) -> bool:
        """Whether any of these names is kept: ask before computing something for it alone."""
        return any(self._wanted(self._prefix + name) for name in names)

    def __call__(self, name: str, array: Array) -> None:
        """Keep `array` under `name`, if it is wanted; bfloat16, which few can read, as float32."""
        if self.wants(name):
            array = array if self._shaped is None else self._shaped(array)
            short = array.dtype.name == "bfloat16"
            self.arrays[self._prefix + name] = array.astype(np.float32) if short else array

    def again(self, name: str, other: str) -> bool:
        """Keep the array that is kept as `other` as `name` too; whether there is one."""
        found = self.arrays.get(self._prefix + other)
        if found is not None and self.wants(name):
            self.arrays[self._prefix + name] = found
        return found is not None

    def under(self, prefix: str, shaped: Callable[[Array], Array] | None = None) -> Recorder:
        """The same recorder, with `prefix` put in front of every name.

        Args:
            prefix: it.
            shaped: what is done to an array before it is kept.
        """
        inner = Recorder(self._wanted)
        inner.arrays = self.arrays
        inner._prefix = self._prefix + prefix
        inner._shaped = shaped or self._shaped
        return inner
