"""Run texts as they come: read and batch them, and hand over activations or attention weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, shown
from qkv.attend import attention
from qkv.models.model import Model
from qkv.models.run.inputs import as_ids, ids_given
from qkv.models.run.truncation import Truncator
from qkv.models.tasks.kept import layers_to_run, names_to_keep
from qkv.text.tokenizer import check_text
from qkv.trace import Recorder, Trace
from qkv.trace.activations import activation, parse, short_name

TEXTS, LETTERS = 4096, 2**19  # that are read and sorted at once, or fewer
PLACES = 2**11  # that are run at once, padding included, or one text


class Read(NamedTuple):
    """One text that was read."""

    number: int  # counted from 0
    given: str | Array  # a string, or the ids of its tokens
    ids: Array  # (T,), cut as in `trace`


class _Reader:
    """Texts, or the ids of their tokens, as ids (T,), cut as in `trace`."""

    def __init__(self, model: Model, call: str, empty: bool) -> None:
        self.model, self.call, self.empty = model, call, empty
        self.truncator = model.tokenizer and Truncator(
            model.tokenizer, model.max_seq_length, model.mask
        )

    def checked(self, text: Any, number: int) -> str | Array:
        """A text that can be read, or ids that are the model's."""
        model, name, text = self.model, f"text {number}", as_ids(text)
        if not isinstance(text, np.ndarray | list | tuple):
            if self.truncator is None:
                raise ValueError(
                    f"{self.call}: {name} is no list of ids and {model.name} has no "
                    "tokenizer: give the ids of tokens"
                )
            return check_text(text, call=self.call, name=name)
        rows, limit = len(model.embedding.table), model.max_seq_length
        found = ids_given([text], rows=rows, limit=limit, call=self.call, first=number)
        assert found is not None
        return found[1][0].ids

    def __call__(self, window: Sequence[str | Array], first: int) -> list[Read]:
        """The tokens of texts that were checked."""
        strings = [self.model.prepared(text) for text in window if isinstance(text, str)]
        cut = iter(self.truncator(strings) if self.truncator else ())
        found = [
            Read(number, text, next(cut).ids if isinstance(text, str) else text)
            for number, text in enumerate(window, first)
        ]
        return [text for text in found if len(text.ids) or self.empty]


def windows(model: Model, texts: Any, call: str, *, empty: bool = False) -> Iterator[list[Read]]:
    """Texts as they come, some hundred at a time; at the end a warning if some were cut.

    Args:
        model: whose tokens they are cut into.
        texts: any iterable of texts, or of the ids of their tokens; or one of these.
        call: who is named in an error.
        empty: whether texts without a token are there too.

    Raises:
        TypeError: `texts` cannot be gone through, or a text is neither a string nor ids.
        ValueError: ids are not the model's, or a text is a string and the model has no tokenizer.
    """
    texts = as_ids(texts)
    if isinstance(texts, str) or _is_ids(texts):
        texts = [texts]
    if not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise TypeError(f"{call}: texts is {kind}: give strings, or the ids of their tokens")
    read = _Reader(model, call, empty)
    window: list[str | Array] = []
    size = first = 0
    for number, text in enumerate(texts):
        window.append(read.checked(text, number))
        size += len(window[-1])
        if len(window) == TEXTS or size >= LETTERS:
            yield read(window, first)
            window, size, first = [], 0, number + 1
    yield read(window, first)
    if read.truncator:
        read.truncator.cut.warn()


def _is_ids(texts: Any) -> bool:
    """Whether it is the ids of one text."""
    if isinstance(texts, np.ndarray):
        return texts.ndim == 1 and texts.dtype.kind in "iu"
    return isinstance(texts, list | tuple) and isinstance(next(iter(texts), None), int | np.integer)


def batches(window: Sequence[Read], most: int) -> Iterator[list[Read]]:
    """Texts of like length together, of at most so many weights a head and `PLACES`, or one.

    Half of these are enough where the next text is shorter: texts of one length need no padding.

    >>> texts = [Read(n, "", np.zeros(length)) for n, length in enumerate((2, 5, 3, 1))]
    >>> [[len(text.ids) for text in batch] for batch in batches(texts, 30)]
    [[5], [3, 2, 1]]
    >>> alike = [Read(n, "", np.zeros(length)) for n, length in enumerate([9] * 120 + [8] * 70)]
    >>> [[len(batch), len(batch[0].ids)] for batch in batches(alike, 9**6)]
    [[120, 9], [70, 8]]
    """
    batch: list[Read] = []
    for text in sorted(window, key=lambda text: -len(text.ids)):
        longest = len((batch or [text])[0].ids)
        places = (1 + len(batch)) * longest
        shorter = len(text.ids) < longest and 2 * places > PLACES
        if batch and (shorter or places > PLACES or places * longest > most):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


CELLS = 2**21  # weights of one layer that are held at once

# Gets a layer, the place of the first of some queries, and their weights (B, Hq, Q, K).
Use = Callable[[int, int, Array], None]


class _Enough(Exception):
    """The weights of the last layer are there: nothing behind them is computed."""


def room(model: Model) -> int:
    """How many weights of a head are held at once: those of one layer are `CELLS` together."""
    return CELLS // model.num_heads


def watch(model: Model, batch: Sequence[Array], use: Use) -> None:
    """Run texts and give the weights of each layer to a function.

    Args:
        model: of one text at a time.
        batch: the ids of texts, (T,) each.
        use: called for each layer in its order with the weights (B, Hq, Q, K), 0 in the padding.
            What it is given is its own. Of a text alone whose layers have more than `CELLS` weights
            it gets some queries at a time, for each of them all layers.

    >>> import numpy as np
    >>> import qkv
    >>> model = qkv.load("random")
    >>> watch(model, [np.array([1, 2]), np.array([3])], lambda *found: print(found[2].shape))
    (2, 2, 2, 2)
    """
    longest = max(map(len, batch))
    if len(batch) == 1 and longest * longest > room(model):
        _in_parts(model, batch[0], use)
        return
    last = model.num_layers - 1

    def seen(name: str, weights: Array) -> None:
        layer = parse(name).layer
        assert layer is not None
        use(layer, 0, weights)
        if layer == last:
            raise _Enough

    record = Recorder(lambda name: short_name(name) == "pattern", use=seen)
    try:
        model.network.packed(batch, record=record)
    except _Enough:
        return


def _in_parts(model: Model, ids: Array, use: Use) -> None:
    """The same of one long text, whose weights would not fit."""
    rotated = any(layer.attn.rotary or layer.attn.q_norm for layer in model.layers)
    trace = model.trace(ids, names=["q", "k", "v", *["rot_q", "rot_k"] * rotated])
    step = max(1, room(model) // len(ids))
    for first in range(0, len(ids), step):
        for layer in range(trace.num_layers):
            use(layer, first, _weights(trace, layer, slice(first, first + step)))


def _weights(trace: Trace, layer: int, queries: slice) -> Array:
    """The weights (1, Hq, Q, K) of some queries."""
    inputs = trace.attention_inputs(layer)
    inputs["query"] = inputs["query"][..., queries, :]
    inputs["q_offset"] = queries.start
    if "bias" in inputs:
        inputs["bias"] = inputs["bias"][..., queries, :]
    weights: Array = attention(**inputs, return_weights=True)[1]
    return weights


def sites(model: Model, names: Any, call: str, given: str) -> list[str]:
    """The full names of activations, each of which has a row for each token.

    Args:
        model: of one text at a time.
        names: as for `model.trace`.
        call: who is named in an error.
        given: the argument that an error names.

    Raises:
        KeyError: there is no such activation; the message has the nearest ones.
        ValueError: one of them has no row for each token, or there is none.

    >>> import qkv
    >>> sites(qkv.load("random"), ("z", 0), "cache", "names")
    ['blocks.0.attn.hook_z']
    """
    known = model.network.hook_names
    found = list(filter(names_to_keep(known, names=names, call=call), known))
    for name in found:
        if activation(name).axes[:2] != ("text", "token"):
            raise ValueError(
                f"{call}: {given} has {name}, which has no row for each token: name vectors, as "
                '("resid_post", 0) or ("z", 0)'
            )
    if not found:
        raise ValueError(f"{call}: {given} is empty: name activations, as ('resid_post', 0)")
    return found


def one_site(model: Model, name: Any, call: str, given: str) -> str:
    """The full name of one activation with a row for each token."""
    found = sites(model, [name], call, given)
    if len(found) > 1:
        raise ValueError(
            f"{call}: {given} is {shown(name)}, which names {len(found)} activations: give one "
            f'layer, as ("{name}", 0)'
        )
    return found[0]


def rows_of(
    model: Model, texts: Any, names: Sequence[str], call: str
) -> Iterator[tuple[list[Read], dict[str, Array]]]:
    """The activations of texts, those of like length together.

    Args:
        model: of one text at a time.
        texts: any iterable of texts, or of the ids of their tokens.
        names: the full names of activations.
        call: who is named in an error.

    Yields:
        Some texts, and by name their rows end to end, (their tokens, ...).
    """
    for window in windows(model, texts, call):
        for batch in batches(window, room(model)):
            yield batch, recorded(model, [text.ids for text in batch], names)


def recorded(model: Model, ids: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    """The rows of texts that are run together, end to end; no layer above the last name is run."""
    keep = set(names).__contains__
    record = Recorder(keep)
    stop = layers_to_run(model.network.hook_names, keep)
    model.network.packed(ids, record=record, stop=stop)
    lengths = np.array([len(text) for text in ids])
    there = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
    return {name: record.arrays[name][there] for name in names}
