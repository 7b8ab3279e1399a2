"""Interventions on a run: edited activations, ablated heads, masked tokens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from qkv._argument_errors import type_error, value_error
from qkv.arrays import Array, Arrays, as_array, is_float
from qkv.models.network.batch import Batch, Layout
from qkv.models.network.transformer import Transformer
from qkv.trace import Recorder
from qkv.trace.activations import activation, parse
from qkv.trace.recorder import GradientRecorder

CANNOT = "the model's weights may be broken, or its float type may be too narrow"


@dataclass(frozen=True, eq=False)
class At:
    """Describes an activation for the functions in `edit`.

    Attributes:
        name: the full name of the activation.
        layer: the layer; None for activations outside layers, such as embeddings.
        texts: (B,), the index of each text among all texts of the call.
        positions: (B, T), the position of each token, counted as in `hide`; -1 in padding. For
            scores and weights, these are the positions of the queries.
        step: the step of `generate`, 0 for the prompt; None in every other call.
    """

    name: str
    layer: int | None
    texts: Array
    positions: Array
    step: int | None


Change = Callable[[Array, At], Array]
Keep = Callable[[str], bool]  # Returns whether to keep the activation with a given name.


class EditStep(NamedTuple):
    """The effect of an edit record on an activation (`do`), and on its gradient (`back`)."""

    do: Change
    back: Change


@runtime_checkable
class Spliced(Protocol):
    """A layer, such as an autoencoder, that replaces an activation of a model.

    Attributes:
        hooks: the names of the layer's own activations, which edits can change. If the layer's
            output replaces the model's activation "x", a trace stores the layer's activation "a" as
            "x.a".
    """

    hooks: Sequence[str]

    @property
    def num_features(self) -> int:
        """The size of the layer's own activations, e.g. the number of features of an SAE."""

    def run(self, x: Array, *, record: Recorder | None = None) -> Array:
        """Return the replacement of `x`."""

    def backward(self, x: Array, grad: Array, *, record: Recorder | None = None) -> Array:
        """Return the gradient for `x`, given the gradient for the replacement of `x`."""


class MaskedKey(NamedTuple):
    """A masked key of one text.

    If `query`, `layer` or `head` is None, the key is masked for every query, layer or head. If
    `key` is None, all keys after the query are masked.
    """

    text: int
    query: int | None
    key: int | None
    layer: int | None
    head: int | None


@dataclass(frozen=True)
class EditedRun:
    """The interventions of one run, after checks against the model and the texts.

    Attributes:
        changes: maps the full name of an activation to its replacement. The replacement is an array
            (B or 1, ...), a spliced layer, or a function of an array and an `At`.
        recorded: maps the full name of an activation to a list of steps. Each step applies one
            edit record to the activation. These steps run before `changes`.
        ablated: the replacement of each ablated head's output: `ablated[layer][head]`.
        masked: the masked keys.
        heads: the number of heads in each layer.
        is_pair: whether the model has an encoder and a decoder. If `is_pair` is True, the full name
            of each activation begins with "encoder." or "decoder.".
        user_edits: the user's edits, as in `Trace.changed`: a dict with up to three keys, "edit",
            "ablate" and "hide". For example, {"ablate": [(0, 3)]} means that head 3 of layer 0 is
            ablated, and nothing else is edited or masked.
        first: the index of the first text among all texts of the call.
        inputs: receives the inputs of spliced layers, for `gradient_recorder`.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Sequence[EditStep]] = field(default_factory=dict)
    ablated: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    masked: Sequence[MaskedKey] = ()
    heads: Sequence[int] = ()
    is_pair: bool = False
    user_edits: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    first: int = 0
    inputs: dict[str, Array] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """The likely cause of non-finite logits, for the error message."""
        return "check the values of `edit` and `ablate`" if self.user_edits else CANNOT

    @property
    def changed(self) -> list[str]:
        """The full names of all changed activations."""
        return list(dict.fromkeys((*self.recorded, *self.changes)))

    @property
    def calls(self) -> bool:
        """Whether the run calls a user's function."""
        return any(
            callable(change) and not isinstance(change, Spliced) for change in self.changes.values()
        )

    def below(self, stop: int | None) -> Self:
        """Return the interventions in layers before `stop`; if `stop` is None, return all."""
        if stop is None:
            return self

        def below_stop(changes: Mapping[str, Any]) -> dict[str, Any]:
            layers = {name: parse(name).layer for name in changes}
            return {name: changes[name] for name, at in layers.items() if at is None or at < stop}

        ablated = {layer: values for layer, values in self.ablated.items() if layer < stop}
        changes, recorded = below_stop(self.changes), below_stop(self.recorded)
        return replace(self, changes=changes, recorded=recorded, ablated=ablated)

    def recorder(self, layout: Layout, record: Recorder | None = None) -> Recorder | None:
        """Return a recorder that changes activations of a batch.

        Args:
            layout: the texts of the batch.
            record: a recorder that keeps activations. The result also keeps these activations; if
                no activation changes, the result is `record` itself.
        """
        names = self._names
        if not names:
            return record
        record = record or Recorder(_never)
        batch = _Batch(layout, record, self.inputs)
        record.edit({name: partial(self._edit_array, name, batch) for name in names})
        return record

    def recorder_and_masks(
        self, batch: Batch, record: Recorder | None
    ) -> tuple[Recorder | None, dict[int, Array]]:
        """Return what `Transformer.run` needs: a recorder as in `recorder`, and masks of keys."""
        layout = batch.layout
        record = self.recorder(layout, record)
        if self.is_pair:
            record = record and record.under("encoder.")
        return record, self.masks(layout, batch.longest)

    def gradient_recorder(self, layout: Layout, wanted: Keep, added: Arrays) -> GradientRecorder:
        """Return a recorder that passes gradients back through the changes, for the backward pass.

        If an array or a function replaces an activation, the gradient for the activation's computed
        value is 0. For a function, this 0 may be wrong, because the function's derivative is
        unknown. But no result depends on this 0: `check_functions` rejects every call in which
        gradients would pass through a function.

        Args:
            layout: the texts of the batch.
            wanted: a function that returns whether to keep the gradient for an activation.
            added: as in `GradientRecorder`.
        """
        record = GradientRecorder(wanted, {}, added)
        batch = _Batch(layout, record, self.inputs)
        record.edit({name: partial(self._back, name, batch) for name in self._names})
        return record

    def masks(self, layout: Layout, keys: int, queries: int | None = None) -> dict[int, Array]:
        """Return a boolean mask (B, Hq or 1, Q or 1, K) for each layer that has masked keys.

        A mask is False at the masked keys.

        Args:
            layout: the texts of the batch.
            keys: K, the number of keys.
            queries: Q, the number of queries. The default is the number of keys.
        """
        if not self.masked:
            return {}
        count = len(layout.texts)
        first = np.zeros(count, np.int64) if layout.first is None else layout.first
        rows = {text: row for row, text in enumerate(layout.texts)}
        masked_keys = [
            one._replace(text=rows[one.text])
            for one in self.masked
            if one.text in rows and one.key is None
        ]
        masked_keys += [
            one._replace(text=rows[one.text], key=key, query=query)
            for one in self.masked
            if one.text in rows
            and one.key is not None
            and (key := layout.computed_position(rows[one.text], one.key)) is not None
            and key < keys
            and (
                (query := one.query) is None
                or (query := layout.computed_position(rows[one.text], query)) is not None
            )
        ]
        masks: dict[int, Array] = {}
        made: dict[Any, Array] = {}
        for layer, heads in enumerate(self.heads):
            cells = tuple(one for one in masked_keys if one.layer in (None, layer))
            if cells and (cells, heads) not in made:
                sizes = heads, keys if queries is None else queries, keys
                made[cells, heads] = _mask(cells, first, *sizes)
            if cells:
                masks[layer] = made[cells, heads]
        return masks

    def visible(self, layout: Layout, keys: int) -> Array | None:
        """Return a mask (B, 1, 1, K) that is False at keys masked in every layer for every query.

        If no key is masked in this way, return None.
        """
        everywhere = [
            one
            for one in self.masked
            if one.key is not None and one.query is None and one.layer is None
        ]
        return replace(self, masked=everywhere, heads=[1]).masks(layout, keys).get(0)

    def average_outputs(
        self, network: Transformer, batches: Iterable[Batch], stop: int | None = None
    ) -> Self:
        """Run all texts without edits, and compute the mean head outputs for mean ablation.

        If no head is replaced by its mean, nothing is run.

        Args:
            network: the network.
            batches: all texts.
            stop: only layers before this layer are run; None runs all layers.
        """
        wanted = {
            self._z(layer): layer
            for layer, values in self.ablated.items()
            if any(isinstance(value, str) and value == "mean" for value in values.values())
        }
        if not wanted:
            return self
        sums, tokens = dict[str, Any](dict.fromkeys(wanted, 0.0)), 0

        def add(name: str, layout: Layout, whole: Array) -> Array:
            sums[name] += layout.to_caller(whole, name).sum((0, 1), dtype=np.float64)  # (Hq, d)
            return whole

        for batch in batches:
            record = Recorder(_never, {name: partial(add, name, batch.layout) for name in wanted})
            record = record.under("encoder.") if self.is_pair else record
            network.run(batch, record=record, stop=stop)
            tokens += batch.tokens
        ablated = dict(self.ablated)
        for name, layer in wanted.items():
            ablated[layer] = {
                head: sums[name][head] / tokens if isinstance(value, str) else value
                for head, value in ablated[layer].items()
            }
        return replace(self, ablated=ablated)

    def step(self, number: int, seen: Array, lengths: Array, count: int) -> dict[str, Any]:
        """Return the options of `Transformer.step` for `count` new positions of each text.

        Args:
            number: the index of the step; the prompt is step 0.
            seen: (B,), the number of earlier positions of each text.
            lengths: (B,), the number of new tokens of each text, without padding.
            count: the number of new positions of each text, with padding.
        """
        if not self.user_edits:
            return {}
        layout = Layout(range(len(seen)), lengths, seen, step=number)
        record = self.recorder(layout)
        if self.is_pair:
            return {"record": None if record is None else record.under("decoder.")}
        keys = int((seen + lengths).max(initial=0))
        masks = self.masks(layout, keys, queries=count)
        return {"record": record, "masks": masks}

    def check_summaries(self, top_k: int | None) -> None:
        """Raise a ValueError if `top_k` is given and an edit changes attention weights."""
        names = (name for name in self.changed if activation(name).is_weights)
        name = next(names, None)
        if top_k is not None and name is not None:
            raise value_error(
                f"top_k is {top_k}, but an edit changes {name}, and top_k "
                "cannot summarise edited weights: omit top_k"
            )

    def _z(self, layer: int) -> str:
        return f"{'encoder.' * self.is_pair}blocks.{layer}.attn.hook_z"

    @property
    def _names(self) -> set[str]:
        """The full names of all changed activations, including the outputs of ablated heads."""
        return {*map(self._z, self.ablated), *self.recorded, *self.changes}

    def _outputs(self, name: str) -> Mapping[int, Any]:
        """Return the replacements of ablated heads in this activation, keyed by head."""
        outputs = (values for layer, values in self.ablated.items() if name == self._z(layer))
        return next(outputs, {})

    def _at(self, name: str, layout: Layout, array: Array) -> At:
        """Return the `At` of an array, for a user's function."""
        texts = self.first + np.asarray(layout.texts, np.int64)
        return At(name, parse(name).layer, texts, layout.positions(array, name), layout.step)

    def _back(self, name: str, batch: "_Batch", grad: Array) -> Array:
        """Return the gradient for an activation, given the gradient for its edited value."""
        change, layout = self.changes.get(name), batch.layout
        before = layout.to_caller(grad, name)
        if isinstance(change, Spliced):
            record = batch.record.under(f"{name}.")
            before = change.backward(batch.inputs[name], before, record=record)
        elif change is not None:
            return np.zeros_like(grad)
        at = self._at(name, layout, before)
        for step in reversed(self.recorded.get(name, ())):
            before = step.back(before, at)
        for head in self._outputs(name):
            before[..., head, :] = 0
        return before

    def _edit_array(self, name: str, batch: "_Batch", whole: Array) -> Array:
        """Apply the edits of the activation `name` to its computed array, `whole`."""
        layout = batch.layout
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
        edited = layout.to_caller(whole, name)
        shape = edited.shape
        at = self._at(name, layout, edited)
        for change in changes:
            if isinstance(change, np.ndarray):
                rows = change if len(change) == 1 else change[list(layout.texts)]
                edited = rows[(slice(None), *map(slice, shape[1:]))]
            elif isinstance(change, Spliced):
                inner = batch.record.under(f"{name}.", partial(_without_padding, layout))
                batch.inputs[name] = x = layout.to_network(edited, name)
                edited = change.run(x, record=inner)
                edited = layout.to_caller(self._check_result(name, edited, whole.shape), name)
            else:
                edited = self._check_result(name, change(edited, at), shape)
        edited = np.array(np.broadcast_to(edited, shape), dtype=whole.dtype)
        return layout.to_network(edited, name)

    def _check_result(self, name: str, value: Any, shape: tuple[int, ...]) -> Array:
        """Return the result of a user's function; raise an error for a wrong type or shape."""
        where = f"the function for {name}"
        if value is None:
            raise type_error(f"{where} returned None: return an array, even if nothing changes")
        array = as_array(value, name=f"the result of the function for {name}")
        if not is_number(array):
            raise type_error(f"{where} returned {array.dtype}: return floats {shape}")
        if array.shape != shape:
            raise value_error(
                f"{where} got {shape} and returned {array.shape}: return the same shape"
            )
        return array


class _Batch(NamedTuple):
    """The batch that the network computes, its recorder, and the inputs of spliced layers."""

    layout: Layout
    record: Recorder
    inputs: dict[str, Array]


def is_number(array: Array) -> bool:
    """Return True for an array of floats or integers."""
    return is_float(array.dtype) or array.dtype.kind in "iu"


def _without_padding(layout: Layout, array: Array) -> Array:
    """Return an array (B, T, ...) with zeros after the end of each text."""
    if layout.lengths is None:
        return array
    real = np.arange(array.shape[1]) < layout.lengths[:, None]
    return np.where(real.reshape(*real.shape, *[1] * (array.ndim - 2)), array, 0)


def _never(name: str) -> bool:
    """Keep no activation."""
    return False


def _mask(cells: Sequence[MaskedKey], first: Array, heads: int, queries: int, keys: int) -> Array:
    """Return a mask (B, heads or 1, queries or 1, keys) that is False at the masked keys."""
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
