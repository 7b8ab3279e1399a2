"""What collects the intermediates of a run while it runs, and puts others in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import numpy as np

from qkv.arrays import Array
from qkv.trace.activations import activation

Change = Callable[[Array], Array]


def unkept(name: str, array: Array) -> Array:
    """The array that a run goes on with where nobody records: this one."""
    return array


def kept_unasked(name: str) -> bool:
    """Whether an array is kept where nobody has said by name what is kept.

    >>> kept_unasked("blocks.0.mlp.hook_post"), kept_unasked("blocks.0.attn.hook_result")
    (True, False)
    """
    return activation(name).unasked


class Recorder:
    """Collects arrays by name while a model or a layer runs, and puts others in their place.

    Args:
        wanted: says of a name whether it is kept; `kept_unasked` says so without it.
        changes: by a name in full, from its array as it would be kept to a new one that takes its
            place. The run goes on with that, and that is kept.
        use: gets the name and the array of what is wanted, as it comes, and it is not kept.

    >>> record = Recorder(lambda name: activation(name) is activation("z"))
    >>> z = record.under("blocks.0.attn.")("hook_z", np.zeros(2))
    >>> list(record.arrays), record.wants("hook_q")
    (['blocks.0.attn.hook_z'], False)
    >>> Recorder(changes={"hook_q": lambda q: q + 1})("hook_q", np.zeros(2))
    array([1., 1.])
    """

    def __init__(
        self,
        wanted: Callable[[str], bool] = kept_unasked,
        changes: Mapping[str, Change] | None = None,
        use: Callable[[str, Array], None] | None = None,
    ) -> None:
        self.arrays: dict[str, Array] = {}
        self._wanted, self._use = wanted, use
        self._changes = {} if changes is None else changes
        self._prefix = ""
        self._shaped: Change | None = None
        self._back: Change | None = None

    @property
    def keeps(self) -> bool:
        """Whether it keeps what it gets, in place of handing it on."""
        return self._use is None

    def wants(self, *names: str) -> bool:
        """Whether any is kept or changed: ask before computing something for it alone."""
        return self.changes(*names) or any(self._wanted(self._prefix + name) for name in names)

    def changes(self, *names: str) -> bool:
        """Whether another array takes the place of any of these."""
        return any(self._prefix + name in self._changes for name in names)

    def __call__(self, name: str, array: Array) -> Array:
        """The array that the run goes on with: this one, or what takes its place; and keep it."""
        array = self.change(name, array)
        self.keep(name, array)
        return array

    def change(self, name: str, array: Array) -> Array:
        """What takes the place of `array`; itself, the same object, if nothing does."""
        change = self._changes.get(self._prefix + name)
        if change is None:
            return array
        found = change(self._as_kept(array))
        found = found if self._back is None else self._back(found)
        return found.astype(array.dtype, copy=False)

    def keep(self, name: str, array: Array) -> None:
        """Keep `array` under `name`, if it is wanted; bfloat16, which few can read, as float32."""
        full = self._prefix + name
        if not self._wanted(full):
            return
        if self._use is not None:
            self._use(full, self._as_kept(array))
        else:
            self.arrays[full] = self._as_kept(array)

    def again(self, name: str, other: str) -> bool:
        """Keep the array that is kept as `other` as `name` too; whether that is all of it."""
        found = self.arrays.get(self._prefix + other)
        if found is None or self.changes(name):
            return False
        if self.wants(name):
            self.arrays[self._prefix + name] = found
        return True

    def under(
        self, prefix: str, shaped: Change | None = None, back: Change | None = None
    ) -> Recorder:
        """The same recorder, with `prefix` put in front of every name.

        Args:
            prefix: it.
            shaped: what is done to an array before it is kept.
            back: the other way round.
        """
        inner = copy(self)  # which shares the arrays
        inner._prefix = self._prefix + prefix
        inner._shaped, inner._back = shaped or self._shaped, back or self._back
        return inner

    def _as_kept(self, array: Array) -> Array:
        array = array if self._shaped is None else self._shaped(array)
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


class GradientRecorder(Recorder):
    """Collects gradients of activations during a backward pass, which then has no others.

    A layer that is given one computes no gradients of its parameters.

    Args:
        wanted: as for `Recorder`.
        changes: by the full name of an activation that was edited in the forward pass, from its
            gradient behind the edit to that in front of it.
        added: by the full name of an activation what is added to its gradient, because what is
            differentiated depends on it directly.

    >>> record = GradientRecorder(kept_unasked, {"hook_q": lambda grad: 0 * grad}, {"hook_q": 1.0})
    >>> record("hook_q", np.zeros(2)), record.arrays["hook_q"]
    (array([0., 0.]), array([1., 1.]))
    """

    def __init__(
        self,
        wanted: Callable[[str], bool],
        changes: Mapping[str, Change],
        added: Mapping[str, Array],
    ) -> None:
        super().__init__(wanted, changes)
        self._added = added

    def wants(self, *names: str) -> bool:
        """Whether the gradient of any of these is kept, changed or added to."""
        return super().wants(*names) or any(self._prefix + name in self._added for name in names)

    def __call__(self, name: str, array: Array) -> Array:
        """Keep the gradient of an activation as it is behind its edit; give that in front of it."""
        more = self._added.get(self._prefix + name)
        if more is not None:
            array = array + (more if self._back is None else self._back(more))
        self.keep(name, array)
        return self.change(name, array)
