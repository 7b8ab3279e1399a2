"""What a run does otherwise than the model would: activations changed, heads and words left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from qkv.arrays import Array, as_array, is_float
from qkv.models.run.layout import Layout, layout_of
from qkv.trace import Recorder
from qkv.trace.activations import activation, parse
from qkv.trace.recorder import GradientRecorder

CANNOT = "its weights or its type cannot compute this text"


@dataclass(frozen=True, eq=False)
class At:
    """Where in a run the array stands that a function of `edit` gets.

    Attributes:
        name: the activation by its full name.
        layer: its layer; None for what is in none, such as the embeddings.
        texts: (B,), the numbers of the texts, of all texts of the call.
        positions: (B, T), where the tokens of each text stand, as `hide` counts them; -1 in
            padding. Of scores and weights they are those of the queries.
        step: the step of `generate`, 0 for the prompt; None in every other call.
    """

    name: str
    layer: int | None
    texts: Array
    positions: Array
    step: int | None


Change = Callable[[Array, At], Array]


class Step(NamedTuple):
    """What a record does to an activation, and to its gradient on the way back."""

    do: Change
    back: Change


@runtime_checkable
class Spliced(Protocol):
    """A layer that is put into a model in the place of an activation, such as an autoencoder.

    Attributes:
        hooks: the names of what it computes on the way. A trace has them behind the name of the
            activation, and they can be edited there.
    """

    hooks: Sequence[str]

    @property
    def num_features(self) -> int:
        """The size of the vectors that it computes on the way."""

    def run(self, x: Array, *, record: Recorder | None = None) -> Array:
        """What takes the place of `x`."""

    def backward(self, x: Array, grad: Array, *, record: Recorder | None = None) -> Array:
        """The gradient for `x`, by the one for what took its place."""


class Hidden(NamedTuple):
    """A masked key of one text: for this query, in this layer and head, or for all of them.

    Without a key, each query masks the keys that follow it.
    """

    text: int
    query: int | None
    key: int | None
    layer: int | None
    head: int | None


@dataclass(frozen=True)
class EditedRun:
    """What a run does differently, once it is known to fit the model and its texts.

    Attributes:
        call: who is named in an error.
        changes: by full names, functions of an array and an `At`, and arrays (B or 1, ...).
        recorded: by full names, what records do to an array, in turn, before `changes`.
        ablated: by layer and head what takes the place of what it gives.
        hidden: what is not looked at.
        heads: how many each layer has.
        is_pair: whether an encoder and a decoder are run, so that names begin with the side.
        asked: "edit", names, "ablate", pairs of layer and head, and "hide", words, places and
            edges, where there are any.
        first: the number that the first text has for the caller.
    """

    call: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    ablated: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    hidden: Sequence[Hidden] = ()
    heads: Sequence[int] = ()
    is_pair: bool = False
    asked: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    first: int = 0

    @property
    def why(self) -> str:
        """What an error gives as the reason for logits that are not finite."""
        return "look at what edit and ablate put in" if self.asked else CANNOT

    @property
    def changed(self) -> list[str]:
        """The full names of the activations that are changed."""
        return list(dict.fromkeys((*self.recorded, *self.changes)))

    @property
    def calls(self) -> bool:
        """Whether a function is called, which then sees the texts that are run together."""
        return any(
            callable(change) and not isinstance(change, Spliced) for change in self.changes.values()
        )

    def below(self, stop: int | None) -> EditedRun:
        """The same for a run that ends before a layer; None for one of all layers."""
        if stop is None:
            return self

        def kept(changes: Mapping[str, Any]) -> dict[str, Any]:
            layers = {name: parse(name).layer for name in changes}
            return {
                name: changes[name]
                for name, layer in layers.items()
                if layer is None or layer < stop
            }

        ablated = {layer: values for layer, values in self.ablated.items() if layer < stop}
        changes, recorded = kept(self.changes), kept(self.recorded)
        return replace(self, changes=changes, recorded=recorded, ablated=ablated)

    def recorder(
        self,
        layout: Layout,
        wanted: Callable[[str], bool] | None = None,
        *,
        inputs: dict[str, Array] | None = None,
    ) -> Recorder | None:
        """What changes the activations of texts that are run together, and keeps those wanted.

        None where it would do nothing. `inputs` gets the inputs of spliced layers, for
        `gradient_recorder`.
        """
        names = self._names
        if wanted is None and not names:
            return None
        changes: dict[str, Callable[[Array], Array]] = {}
        record = Recorder(wanted or _never, changes)
        changes |= {name: partial(self._changed, name, layout, record, inputs) for name in names}
        return record

    def gradient_recorder(
        self,
        layout: Layout,
        wanted: Callable[[str], bool],
        added: Mapping[str, Array],
        inputs: Mapping[str, Array],
    ) -> GradientRecorder:
        """What a backward pass is recorded by: it takes gradients back through the changes.

        The gradient before an array or a function is 0: `check_functions` rejects what would need
        that of a function.

        Args:
            layout: the texts that are run together.
            wanted: says of a name whether its gradient is kept.
            added: as for `GradientRecorder`.
            inputs: of spliced layers, as `recorder` got them in the forward pass.
        """
        changes: dict[str, Callable[[Array], Array]] = {}
        record = GradientRecorder(wanted, changes, added)
        changes |= {name: partial(self._back, name, layout, record, inputs) for name in self._names}
        return record

    def masks(
        self, layout: Layout, keys: int, *, first: Array | None = None, queries: int | None = None
    ) -> dict[int, Array]:
        """Which keys each head sees, (B, Hq or 1, Q or 1, K), of the layers where that is not all.

        Args:
            layout: the texts that are run together.
            keys: K.
            first: (B,), the place of each text's first query; 0 unless given.
            queries: Q; K unless given.
        """
        first = np.zeros(len(layout.texts), np.int64) if first is None else first
        rows = {text: row for row, text in enumerate(layout.texts)}
        own = [
            one._replace(text=rows[one.text])
            for one in self.hidden
            if one.text in rows and one.key is None
        ]
        own += [
            one._replace(text=rows[one.text], key=key, query=query)
            for one in self.hidden
            if one.text in rows
            and one.key is not None
            and (key := layout.place(rows[one.text], one.key)) is not None
            and key < keys
            and (
                (query := one.query) is None
                or (query := layout.place(rows[one.text], query)) is not None
            )
        ]
        found: dict[int, Array] = {}
        made: dict[Any, Array] = {}
        for layer, heads in enumerate(self.heads):
            cells = tuple(one for one in own if one.layer in (None, layer))
            if cells and (cells, heads) not in made:
                sizes = heads, keys if queries is None else queries, keys
                made[cells, heads] = _mask(cells, first, *sizes)
            if cells:
                found[layer] = made[cells, heads]
        return found

    def visible(self, layout: Layout, keys: int) -> Array | None:
        """Which keys everybody sees, (B, 1, 1, K); None for all."""
        everywhere = [
            one
            for one in self.hidden
            if one.key is not None and one.query is None and one.layer is None
        ]
        return replace(self, hidden=everywhere, heads=[1]).masks(layout, keys).get(0)

    def averaged(
        self, tokens: int, run: Callable[[Callable[[Layout], Recorder]], object]
    ) -> EditedRun:
        """The same with the mean of what a head gives where that was asked for.

        It is that of a run of the model as it is.

        Args:
            tokens: how many the texts have together.
            run: runs all texts, with what the function that it is given makes of a layout.
        """
        wanted = {
            self._z(layer): layer
            for layer, values in self.ablated.items()
            if any(isinstance(value, str) and value == "mean" for value in values.values())
        }
        if not wanted:
            return self
        sums: dict[str, Any] = dict.fromkeys(wanted, 0.0)

        def add(name: str, layout: Layout, whole: Array) -> Array:
            sums[name] += layout.shown(whole, name).sum((0, 1), dtype=np.float64)  # (Hq, d)
            return whole

        def recorder(layout: Layout) -> Recorder:
            found = Recorder(_never, {name: partial(add, name, layout) for name in wanted})
            return found.under("encoder.") if self.is_pair else found

        run(recorder)
        ablated = dict(self.ablated)
        for name, layer in wanted.items():
            ablated[layer] = {
                head: sums[name][head] / tokens if isinstance(value, str) else value
                for head, value in ablated[layer].items()
            }
        return replace(self, ablated=ablated)

    def step(self, number: int, seen: Array, lengths: Array, count: int) -> dict[str, Any]:
        """The options of `Transformer.step` for `count` places behind (B,) that were run before.

        `lengths` (B,) says how many of them are real, `number` which step it is.
        """
        if not self.asked:
            return {}
        layout = Layout(range(len(seen)), lengths, seen, step=number)
        record = self.recorder(layout)
        if self.is_pair:
            return {"record": None if record is None else record.under("decoder.")}
        keys = int((seen + lengths).max(initial=0))
        masks = self.masks(layout, keys, first=seen, queries=count)
        return {"record": record, "masks": masks}

    def packed(self, texts: Sequence[int], batch: Sequence[Sized]) -> dict[str, Any]:
        """The options of a run of a batch end to end, whose texts have these numbers."""
        if not self.asked:
            return {}
        layout = layout_of(texts, batch)
        masks = self.masks(layout, max(map(len, batch), default=0))
        return {"record": self.recorder(layout), "masks": masks}

    def begin(self, batch: Sequence[Sized]) -> dict[str, Any]:
        """The options of `EncoderDecoder.begin` for these texts; none for another model."""
        if not self.asked or not self.is_pair:
            return {}
        layout = layout_of(range(len(batch)), batch)._replace(step=0)
        record = self.recorder(layout._replace(other=layout))
        masks, visible = (
            found(layout, max(map(len, batch), default=0)) for found in (self.masks, self.visible)
        )
        return {"record": record, "masks": masks, "visible": visible}

    def check_summaries(self, top_k: int | None) -> None:
        """An error where weights are changed and `top_k` asks for summaries of what they were."""
        names = (name for name in self.changed if activation(name).is_weights)
        name = next(names, None)
        if top_k is not None and name is not None:
            raise ValueError(
                f"{self.call}: top_k is {top_k} and edit changes {name}: summaries are of what "
                "attention computes itself: leave top_k out"
            )

    def _z(self, layer: int) -> str:
        return f"{'encoder.' * self.is_pair}blocks.{layer}.attn.hook_z"

    @property
    def _names(self) -> set[str]:
        """The full names of all that is changed, ablated heads included."""
        return {*map(self._z, self.ablated), *self.recorded, *self.changes}

    def _outputs(self, name: str) -> Mapping[int, Any]:
        """By head what takes the place of what it gives, if this is where heads give it."""
        own = (values for layer, values in self.ablated.items() if name == self._z(layer))
        return next(own, {})

    def _at(self, name: str, layout: Layout, shown: Array) -> At:
        """Where an array stands that is shown to what changes it."""
        texts = self.first + np.asarray(layout.texts, np.int64)
        return At(name, parse(name).layer, texts, layout.positions(shown, name), layout.step)

    def _back(
        self,
        name: str,
        layout: Layout,
        record: Recorder,
        inputs: Mapping[str, Array],
        grad: Array,
    ) -> Array:
        """The gradient before what changed an activation, by that behind it."""
        change = self.changes.get(name)
        found = layout.shown(grad, name)
        if isinstance(change, Spliced):
            found = change.backward(inputs[name], found, record=record.under(f"{name}."))
        elif change is not None:
            return np.zeros_like(grad)
        at = self._at(name, layout, found)
        for step in reversed(self.recorded.get(name, ())):
            found = step.back(found, at)
        for head in self._outputs(name):
            found[..., head, :] = 0
        return found

    def _changed(
        self,
        name: str,
        layout: Layout,
        record: Recorder,
        inputs: dict[str, Array] | None,
        whole: Array,
    ) -> Array:
        """What takes the place of an array that was computed."""
        ablated = self._outputs(name)
        whole = whole.copy() if ablated else whole
        for head, value in ablated.items():
            whole[..., head, :] = value
        changes: list[Any] = [step.do for step in self.recorded.get(name, ())]
        change = self.changes.get(name)
        if change is not None and not (isinstance(change, np.ndarray) and layout.is_later):
            changes.append(change)
        if not changes:
            return whole
        found = layout.shown(whole, name)
        shape = found.shape
        at = self._at(name, layout, found)
        for change in changes:
            if isinstance(change, np.ndarray):
                rows = change if len(change) == 1 else change[list(layout.texts)]
                found = rows[(slice(None), *map(slice, shape[1:]))]
            elif isinstance(change, Spliced):
                inner = record.under(f"{name}.", partial(_without_padding, layout))
                given = layout.computed(found, name)
                if inputs is not None:
                    inputs[name] = given
                found = change.run(given, record=inner)
                found = layout.shown(self._given(name, found, whole.shape), name)
            else:
                found = self._given(name, change(found, at), shape)
        found = np.array(np.broadcast_to(found, shape), dtype=whole.dtype)
        return layout.computed(found, name)

    def _given(self, name: str, found: Any, shape: tuple[int, ...]) -> Array:
        """What a function gave, as an array of this shape."""
        where = f"{self.call}: the function for {name}"
        if found is None:
            raise TypeError(f"{where} gave None: give the array back, changed or not")
        array = as_array(found, call=self.call, name=f"what the function for {name} gave")
        if not is_number(array):
            raise TypeError(f"{where} gave {array.dtype}: give floats {shape}")
        if array.shape != shape:
            raise ValueError(f"{where} got {shape} and gave {array.shape}: give the same shape")
        return array


def is_number(array: Array) -> bool:
    """Whether it holds floats or integers."""
    return is_float(array.dtype) or array.dtype.kind in "iu"


def _without_padding(layout: Layout, array: Array) -> Array:
    """The array (B, T, ...) with 0 behind the end of each text."""
    if layout.lengths is None:
        return array
    there = np.arange(array.shape[1]) < layout.lengths[:, None]
    return np.where(there.reshape(*there.shape, *[1] * (array.ndim - 2)), array, 0)


def _never(name: str) -> bool:
    """Nothing is kept."""
    return False


def _mask(cells: Sequence[Hidden], first: Array, heads: int, queries: int, keys: int) -> Array:
    """(B, heads or 1, queries or 1, keys), False where these are not looked at."""
    per_head = any(one.head is not None for one in cells)
    per_query = any(one.query is not None or one.key is None for one in cells)
    shape = len(first), heads if per_head else 1, queries if per_query else 1, keys
    mask = np.ones(shape, bool)
    for text, query, key, _, head in cells:
        if key is None:
            mask[text] &= np.tri(queries, keys, int(first[text]), dtype=bool)
            continue
        row: Any = slice(None)
        if query is not None:
            row = query - int(first[text])
        if query is None or 0 <= row < queries:
            mask[text, slice(None) if head is None else head, row, key] = False
    return mask
