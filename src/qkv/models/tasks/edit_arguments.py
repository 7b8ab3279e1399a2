"""What was given as `edit`, `ablate` and `hide`, held against a model and its texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, is_whole_number, shown
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.transformer import Transformer
from qkv.models.tasks.edit import At, Edits, is_number
from qkv.models.tasks.hide_arguments import (
    Hide,
    from_start,
    hidden_places,
    hidden_words,
    hide_asked,
)
from qkv.text import Tokenized
from qkv.trace import Seq2SeqTrace, Trace
from qkv.trace.activations import activation
from qkv.trace.names import Parsed, parse
from qkv.trace.seq2seq import SIDES

# Heads, and layers whole; or what takes the place of what each gives: "zero", "mean", or (d,).
Ablate = Iterable[tuple[int, int | None]] | Mapping[tuple[int, int | None], Any]
# From an activation to a function of its array, or to the array that takes its place.
Edit = Mapping[Any, Any] | None


def edits(
    edit: Edit,
    ablate: Ablate,
    hide: Hide,
    *,
    batch: Iterable[Tokenized],
    body: Transformer,
    pieces: Callable[[str], list[list[str]]] | None,
    call: str,
    more: Sequence[int] = (),
    written: int | None = None,
    first: int = 0,
    absent: set[Any] | None = None,
) -> Edits:
    """What was asked for, checked.

    Args:
        edit: the activations to change, and how.
        ablate: the heads to leave out, None for all of a layer.
        hide: the words, places and edges that are not looked at.
        batch: the texts, which are read only if there is something to edit.
        body: the model.
        pieces: the ways in which a word may be cut, none if the vocabulary does not have it; None
            where the model knows no words.
        call: who is named in an error.
        more: how many tokens may follow each text, where some may.
        written: how many places a decoder begins with, where it runs beside an encoder.
        first: the number that the first text has for the caller.
        absent: what of `hide` no text had so far, where more texts are to come; what these texts
            have is taken out of it. None where these are all, so that it is an error.

    Raises:
        TypeError: `edit` is no mapping to functions and arrays, `ablate` holds something else than
            pairs, or `hide` than words, places and edges.
        ValueError: there is no such layer, head, word or place, a shape does not fit, or a text is
            left with no word.
        KeyError: there is no activation of a name; the message has the nearest ones.
    """
    heads = [layer.attn.num_heads for layer in body.layers]
    named = _named(edit, body, written is not None, call)
    ablated = _ablated(ablate, body, call)
    asked = hide_asked(hide, heads, call)
    if not (named or ablated or asked):
        return Edits()
    texts = list(batch)
    lengths = [len(text) for text in texts]
    counts = {"": (len(texts), max(lengths, default=0))}
    counts["encoder"], counts["decoder"] = counts[""], (len(texts), written or 0)
    changes = {
        name: change if callable(change) else _array(name, change, body, counts, call)
        for name, change in named.items()
    }
    words = [one for one in asked if isinstance(one, str)]
    hidden = hidden_words(words, texts, pieces, call, first, absent) if words else []
    limits = [
        length + extra for length, extra in zip(lengths, more or [0] * len(texts), strict=True)
    ]
    for one in asked:
        if not isinstance(one, str):
            hidden += hidden_places(one, lengths, limits, call, absent)
    pairs = sorted((layer, head) for layer, values in ablated.items() for head in values)
    found: dict[str, Sequence[Any]] = {"edit": list(changes), "ablate": pairs, "hide": asked}
    return Edits(
        call,
        changes,
        ablated,
        list(dict.fromkeys(hidden)),
        heads,
        written is not None,
        {name: value for name, value in found.items() if value},
        first,
    )


def check_edits(
    edit: Edit, ablate: Ablate, hide: Hide, *, body: Transformer, call: str
) -> list[Any]:
    """The errors of `edits` that need no texts, of a model that runs no decoder beside it.

    Returns:
        The words, places and edges to hide.
    """
    _named(edit, body, False, call)
    _ablated(ablate, body, call)
    return hide_asked(hide, [layer.attn.num_heads for layer in body.layers], call)


def held(given: Any) -> Any:
    """What may be read more than once: an iterator as a list, anything else as it is."""
    return list(given) if isinstance(given, Iterator) else given


def is_nothing(edit: Edit, ablate: Ablate, hide: Hide) -> bool:
    """Whether nothing can have been asked for; nothing is read of an iterator.

    What is of a wrong type is something: `edits` has the error.

    >>> is_nothing(None, (), []), is_nothing({}, (), 0), is_nothing(None, None, ())
    (True, False, False)
    """
    several = (list, tuple, set, frozenset)

    def empty(given: Any, kinds: Any) -> bool:
        return isinstance(given, kinds) and not given

    edits_nothing = edit is None or empty(edit, Mapping)
    return edits_nothing and empty(ablate, (*several, Mapping)) and empty(hide, several)


def _named(edit: Any, body: Transformer, is_pair: bool, call: str) -> dict[str, Any]:
    """What is to be changed, by full names."""
    if edit is None:
        return {}
    if not isinstance(edit, Mapping):
        raise TypeError(
            f"{call}: edit is {shown(edit)}: give a mapping from an activation to a function or an "
            'array, as {("resid_post", 0): f}'
        )
    index = _index(body, is_pair) if edit else None
    found: dict[str, Any] = {}
    for name, change in edit.items():
        if not isinstance(name, str | tuple):
            raise TypeError(
                f"{call}: edit has {shown(name)}: name an activation in full, or by a tuple, as "
                '("resid_post", 0)'
            )
        if name in ("logits", "decoder.logits"):
            raise ValueError(
                f"{call}: edit has {name!r}, which is what comes out of a run: change it behind it"
            )
        assert index is not None
        try:
            names = _full_names(name, index)
        except (KeyError, TypeError, ValueError) as error:
            said = str(error.args[0]).removeprefix("trace: ") if error.args else ""
            said = said.replace("it holds", "the model has")
            said = re.sub(r"was not kept: .* traced, and (.*) (is|are)$", r"is of \1 alone", said)
            raise KeyError(f"{call}: edit has {shown(name)}, and {said}") from None
        if not names:
            raise ValueError(
                f"{call}: edit has {shown(name)}, which names no layer: give numbers of layers, as "
                "(0, 1), or None for all"
            )
        for full in names:
            if full in found:
                raise ValueError(f"{call}: edit names {full} twice: give it one change")
            if isinstance(change, str | bytes) or change is None:
                raise TypeError(
                    f"{call}: edit has {shown(change)} for {full}: give a function or an array"
                )
            read: Any = _function if callable(change) else _numbers
            found[full] = read(full, change, call)
    return found


def _full_names(name: str | tuple[Any, ...], index: Trace | Seq2SeqTrace) -> list[str]:
    """The activations that a name stands for: one, or that of several or all layers.

    Raises:
        KeyError: there is none.
    """
    if not isinstance(name, str) and len(name) in (2, 3) and name[1] is not None:
        several = isinstance(name[1], tuple | range)
        layers = name[1] if several else [name[1]]
        return [_of_layer(name, layer, index) for layer in layers]
    try:
        return [str(index[name])]
    except (KeyError, TypeError, ValueError):
        parts = (name, None) if isinstance(name, str) else name
        both = (index.encoder, index) if isinstance(index, Seq2SeqTrace) else (index,)
        found = []
        for layer in range(max(one.num_layers for one in both) if len(parts) > 1 else 0):
            with suppress(KeyError):
                found.append(_of_layer(parts, layer, index))
        if not found:
            raise
        return found


def _of_layer(name: tuple[Any, ...], layer: Any, index: Trace | Seq2SeqTrace) -> str:
    """The full name of `(short, ...)` or `(short, ..., part)` in one layer."""
    short, *part = name[0], *name[2:]
    side, _, rest = str(short).partition(".")
    if isinstance(index, Seq2SeqTrace) and side in SIDES:
        if side == "encoder" or not rest.startswith("cross_attn."):
            return str(getattr(index, side)[rest, layer, *part])
        short = rest
    return str(index[short, layer, *part])


def _index(body: Transformer, is_pair: bool) -> Trace | Seq2SeqTrace:
    """A trace that holds, by each name that can be changed, that name."""

    def named(one: Transformer, side: str = "") -> dict[str, Array]:
        names = (name for name in one.hook_names if activation(name).editable)
        return {name: np.array(side + name) for name in names}

    if not is_pair:
        return Trace(named(body))
    assert isinstance(body, EncoderDecoder)
    own = named(body.decoder, "decoder.")
    cross = {name: own.pop(name) for name in list(own) if parse(name).crosses}
    return Seq2SeqTrace(Trace(named(body, "encoder.")), Trace(own), cross)


def _function(name: str, given: Any, call: str) -> Callable[[Array, At], Any]:
    """A function that a user gave, of an array or of an array and an `At`, as one of both."""
    try:
        takes = signature(given)
    except (TypeError, ValueError):  # one of C that does not say what it takes
        return lambda array, at: given(array)
    fits = []
    for count in (1, 2):
        with suppress(TypeError):
            takes.bind(*range(count))
            fits.append(count)
    if not fits:
        raise TypeError(
            f"{call}: edit has a function {takes} for {name}: give f(array) or f(array, at)"
        )
    # a second parameter with a default is the user's own, unless its name says otherwise
    if 2 not in fits or (1 in fits and [*takes.parameters][1:2] != ["at"]):
        return lambda array, at: given(array)
    return lambda array, at: given(array, at)


def _numbers(name: str, given: Any, call: str) -> Array:
    """An array of numbers that takes the place of an activation, of whatever shape."""
    array = as_array(given, call=call, name=f"edit[{name!r}]")
    if not is_number(array):
        raise TypeError(f"{call}: edit has {array.dtype} for {name}: give floats, or a function")
    return array


def _array(
    name: str, array: Array, body: Transformer, counts: Mapping[str, tuple[int, int]], call: str
) -> Array:
    """An array that takes the place of an activation, (B or 1, ...)."""
    at = parse(name)
    one = body.decoder if at.side == "decoder" and isinstance(body, EncoderDecoder) else body
    (texts, places), other = counts[at.side], counts["encoder"][1]
    shape = (texts, *_shape(at, one, places, other if at.crosses else places))
    if array.shape not in (shape, (1, *shape[1:])):
        has = f"shape {array.shape}" if array.ndim else shown(array.item())
        more = f", or {(1, *shape[1:])} for the same in every text" if texts != 1 else ""
        raise ValueError(
            f"{call}: edit has {has} for {name}, which is {shape} here: give that shape{more}"
        )
    return array


def _shape(at: Parsed, body: Transformer, queries: int, keys: int) -> tuple[int, ...]:
    """The shape of an activation, without the axis of texts."""
    one = activation(at.local)
    sizes = {"query": queries, "key": keys, "token": keys if one.of_keys else queries}
    sizes |= {"one": 1, "D": body.dim}
    part = at.local.rpartition(".")[0]
    block: Any = None if at.layer is None else body.layers[at.layer]
    if part == "mlp":
        sizes["F"] = block.mlp.hidden
    elif part in ("attn", "cross_attn"):
        attn = block.attn if part == "attn" else block.cross_attn.attn
        sizes |= {"head": attn.num_heads, "kv_head": attn.num_kv_heads}
        sizes |= {"d": attn.d_query, "dv": attn.d_value}
    return tuple(sizes[axis] for axis in one.axes[1:])


def _ablated(ablate: Any, body: Transformer, call: str) -> dict[int, dict[int, Any]]:
    """By layer and head, counted from 0, what takes the place of what it gives."""
    has_values = isinstance(ablate, Mapping)
    many = isinstance(ablate, Iterable) and not isinstance(ablate, str | bytes)
    found: dict[int, dict[int, Any]] = {}
    for pair in ablate if many else [ablate]:
        numbers = tuple(pair) if isinstance(pair, tuple | list) else ()
        whole = len(numbers) == 2 and is_whole_number(numbers[0])
        if not whole or not (numbers[1] is None or is_whole_number(numbers[1])):
            raise TypeError(
                f"{call}: ablate has {shown(pair)}: write (layer, head) pairs, as [(0, 4)]"
            )
        layer = from_start(int(numbers[0]), len(body.layers), "ablate", "layer", "the model", call)
        attn = body.layers[layer].attn
        heads = range(attn.num_heads)
        if numbers[1] is not None:
            where = f"layer {layer}"
            head = from_start(int(numbers[1]), len(heads), "ablate", "head", where, call)
            heads = range(head, head + 1)
        value = _value(pair, ablate[pair], attn.d_value, call) if has_values else 0
        found.setdefault(layer, {}).update(dict.fromkeys(heads, value))
    return found


def _value(pair: Any, value: Any, size: int, call: str) -> Any:
    """What takes the place of what a head gives: 0, "mean", or (d,)."""
    if isinstance(value, str):
        if value not in ("zero", "mean"):
            raise ValueError(
                f'{call}: ablate has {value!r:.40} for {pair}: write "zero" or "mean", or give '
                f"an array ({size},)"
            )
        if value == "mean" and call in ("generate", "trace_stream"):
            raise ValueError(
                f'{call}: ablate has "mean" for {pair}, and what is still to come has no mean: '
                f'give "zero" or an array ({size},)'
            )
        return 0 if value == "zero" else value
    array = as_array(value, call=call, name=f"ablate[{pair}]")
    if not is_number(array):
        raise TypeError(
            f'{call}: ablate has {array.dtype} for {pair}: give "zero", "mean" or floats ({size},)'
        )
    if array.shape != (size,):
        raise ValueError(
            f"{call}: ablate has an array {array.shape} for {pair} and a head gives ({size},): "
            "give that"
        )
    return array
