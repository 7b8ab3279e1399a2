"""Recorders: keep, replace and reshape the activations of a run while it computes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Self

import numpy as np

from qkv.arrays import Array, Arrays
from qkv.trace.activations import activation

Change = Callable[[Array], Array]
Changes = Mapping[str, Change]
Wanted = Callable[[str], bool]
Use = Callable[[str, Array], None]


def unkept(name: str, array: Array) -> Array:
    """Return `array` unchanged. Without a `Recorder`, layers call `unkept`."""
    return array


def kept_unasked(name: str) -> bool:
    """Return whether a trace without `names=` keeps an activation.

    >>> kept_unasked("blocks.0.mlp.hook_post"), kept_unasked("blocks.0.attn.hook_result")
    (True, False)
    """
    return activation(name).unasked


class Recorder:
    """Collects activations by name while a model or a layer runs, and applies edits.

    Args:
        wanted: a function that takes an activation's full name and returns whether to keep the
            activation; the default is `kept_unasked`.
        changes: a function for each edited activation, keyed by full name. The function takes the
            activation's array and returns a replacement. The run continues with the replacement.
        use: a function that is called with the name and the array of each wanted activation. If
            `use` is given, the recorder itself does not keep the arrays.

    Attributes:
        arrays: the arrays of the wanted activations, keyed by full name.
        keeps: whether arrays are kept; False if arrays are passed to `use` instead.

    >>> record = Recorder(lambda name: activation(name) is activation("z"))
    >>> z = record.under("blocks.0.attn.")("hook_z", np.zeros(2))
    >>> list(record.arrays), record.wants("hook_q")
    (['blocks.0.attn.hook_z'], False)
    >>> Recorder(changes={"hook_q": lambda q: q + 1})("hook_q", np.zeros(2))
    array([1., 1.])
    """

    def __init__(
        self, wanted: Wanted = kept_unasked, changes: Changes | None = None, use: Use | None = None
    ) -> None:
        self.arrays: dict[str, Array] = {}
        self._wanted, self._use, self.keeps = wanted, use, use is None
        self._changes = dict(changes or {})
        self._prefix = ""
        self._shaped: Change | None = None
        self._back: Change | None = None

    def edit(self, changes: Changes) -> None:
        """Add functions for edited activations, as in `changes`."""
        self._changes |= changes

    def wants(self, *names: str) -> bool:
        """Return whether any of these activations is kept or edited."""
        return self.changes(*names) or any(self._wanted(self._prefix + name) for name in names)

    def choose(self, names: Iterable[str]) -> set[str]:
        """Return the names whose activations are kept or edited."""
        return {name for name in names if self.wants(name)}

    def changes(self, *names: str) -> bool:
        """Return whether any of these activations is edited."""
        return any(self._prefix + name in self._changes for name in names)

    def __call__(self, name: str, array: Array) -> Array:
        """Keep an array or its replacement; return the array with which the run continues."""
        array = self.change(name, array)
        self.keep(name, array)
        return array

    def change(self, name: str, array: Array) -> Array:
        """Return the replacement of `array`; without an edit, return the object `array` itself."""
        change = self._changes.get(self._prefix + name)
        if change is None:
            return array
        changed = change(self._as_kept(array))
        changed = changed if self._back is None else self._back(changed)
        return changed.astype(array.dtype, copy=False)

    def keep(self, name: str, array: Array) -> None:
        """Keep `array` under `name`, if the name is wanted; convert bfloat16 to float32."""
        full = self._prefix + name
        if not self._wanted(full):
            return
        if self._use is not None:
            self._use(full, self._as_kept(array))
        else:
            self.arrays[full] = self._as_kept(array)

    def again(self, name: str, other: str) -> bool:
        """Also keep the array of the activation `other` under the name `name`.

        Return False if `name` is edited or `other` was not kept.
        """
        array = self.arrays.get(self._prefix + other)
        if array is None or self.changes(name):
            return False
        if self.wants(name):
            self.arrays[self._prefix + name] = array
        return True

    def under(self, prefix: str, shaped: Change | None = None, back: Change | None = None) -> Self:
        """Return a recorder that shares this recorder's arrays and adds `prefix` to every name.

        Args:
            prefix: a prefix such as "blocks.0.".
            shaped: a function that reshapes an array before it is kept.
            back: the inverse function of `shaped`.
        """
        inner = copy(self)  # shares the arrays
        inner._prefix = self._prefix + prefix
        inner._shaped, inner._back = shaped or self._shaped, back or self._back
        return inner

    def _as_kept(self, array: Array) -> Array:
        array = array if self._shaped is None else self._shaped(array)
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


class GradientRecorder(Recorder):
    """Collects the gradients of a loss with respect to activations, during a backward pass.

    With this recorder, a layer does not compute gradients for its parameters.

    Args:
        wanted: as in `Recorder`.
        changes: a function for each edited activation, keyed by full name. The function applies
            the chain rule to the edit: it turns the gradient for the edited array into the gradient
            for the original array.
        added: gradients with respect to activations that a loss reads directly, keyed by full name.
            The recorder adds `added` to the gradients from later layers.

    >>> record = GradientRecorder(kept_unasked, {"hook_q": lambda grad: 0 * grad}, {"hook_q": 1.0})
    >>> record("hook_q", np.zeros(2)), record.arrays["hook_q"]
    (array([0., 0.]), array([1., 1.]))
    """

    def __init__(self, wanted: Wanted, changes: Changes, added: Arrays) -> None:
        super().__init__(wanted, changes)
        self._added = added

    def wants(self, *names: str) -> bool:
        """Return whether the gradient for any of these activations is needed."""
        return super().wants(*names) or any(self._prefix + name in self._added for name in names)

    def __call__(self, name: str, array: Array) -> Array:
        """Keep the gradient for the edited array; return the gradient for the original array."""
        more = self._added.get(self._prefix + name)
        if more is not None:
            array = array + (more if self._back is None else self._back(more))
        self.keep(name, array)
        return self.change(name, array)


def of_rows(record: Recorder | None, cu: Array | None) -> Recorder | None:
    """Return a recorder that converts packed rows `(total, ...)` to padded `(B, T, ...)`."""
    if record is None or cu is None:
        return record
    return record.under("", partial(pad_rows, cu=cu), partial(unpad_rows, cu=cu))


def of_heads(record: Recorder | None, cu: Array | None) -> Recorder | None:
    """Return a recorder that converts heads `(..., H, T, d)` to `(..., T, H, d)`.

    If `cu` is given, the heads are packed: their shape is `(H, total, d)`.
    """
    if record is None:
        return None
    if cu is None:
        return record.under("", _heads_last, _heads_last)
    return record.under(
        "",
        lambda heads: pad_rows(_heads_last(heads), cu),
        lambda whole: _heads_last(unpad_rows(whole, cu)),
    )


def texts_and_positions(cu: Array) -> tuple[Array, Array]:
    """Return the text number of each packed row, and the position of the row in the text."""
    lengths = np.diff(cu)
    text = np.repeat(np.arange(len(lengths)), lengths)
    return text, np.arange(cu[-1]) - cu[:-1][text]


def pad_rows(rows: Array, cu: Array) -> Array:
    """Convert packed rows `(total, ...)` to `(B, T, ...)`, padded with 0 to the longest text."""
    lengths = np.diff(cu)
    shape = len(lengths), lengths.max(initial=0), *rows.shape[1:]
    if _alike(cu):
        return rows.reshape(shape).copy()
    out = np.zeros(shape, rows.dtype)
    out[texts_and_positions(cu)] = rows
    return out


def unpad_rows(whole: Array, cu: Array) -> Array:
    """Convert an array `(B, T, ...)` to packed rows `(total, ...)`, without the padding."""
    if _alike(cu):
        return whole.reshape(-1, *whole.shape[2:])
    return whole[texts_and_positions(cu)]


def padded_heads(parts: Sequence[Array], cu: Array) -> list[Array]:
    """Pad packed arrays `(H, total, d)` to `(B, H, T, d)`."""
    return [np.swapaxes(pad_rows(np.swapaxes(part, 0, 1), cu), 1, 2) for part in parts]


def unpadded_heads(whole: Array, cu: Array) -> Array:
    """Remove the padding of `(B, H, T, d)`, and return packed rows `(H, total, d)`."""
    return np.swapaxes(unpad_rows(np.swapaxes(whole, 1, 2), cu), 0, 1)


def _alike(cu: Array) -> bool:
    """Return whether all texts have the same length and so do not need padding."""
    lengths = np.diff(cu)
    return len(lengths) > 0 and lengths.min() == lengths.max() > 0


def _heads_last(heads: Array) -> Array:
    """Swap heads and positions: `(..., H, T, d)` becomes `(..., T, H, d)`, and vice versa."""
    return np.swapaxes(heads, -3, -2)
