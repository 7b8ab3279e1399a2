"""What collects the intermediates of a run while it runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qkv.arrays import Array


class Recorder:
    """Collects arrays by name while a model or a layer runs.

    Args:
        wanted: says of a name whether it is kept; everything is kept without it.

    >>> record = Recorder(lambda name: name.endswith("hook_z"))
    >>> record.under("blocks.0.attn.")("hook_z", np.zeros(2))
    >>> list(record.arrays), record.wants("hook_q")
    (['blocks.0.attn.hook_z'], False)
    """

    def __init__(self, wanted: Callable[[str], bool] | None = None) -> None:
        self.arrays: dict[str, Array] = {}
        self._wanted = wanted
        self._prefix = ""

    def wants(self, *names: str) -> bool:
        """Whether any of these names is kept: ask before computing something for it alone."""
        return self._wanted is None or any(self._wanted(self._prefix + name) for name in names)

    def __call__(self, name: str, array: Array) -> None:
        """Keep `array` under `name`, if it is wanted; bfloat16, which few can read, as float32."""
        if self.wants(name):
            short = array.dtype.name == "bfloat16"
            self.arrays[self._prefix + name] = array.astype(np.float32) if short else array

    def under(self, prefix: str) -> Recorder:
        """The same recorder, with `prefix` put in front of every name."""
        inner = Recorder(self._wanted)
        inner.arrays = self.arrays
        inner._prefix = self._prefix + prefix
        return inner
