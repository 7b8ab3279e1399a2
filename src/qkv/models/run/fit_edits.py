"""Edits, held against a model and its texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, is_whole_number, shown
from qkv.edits import Edits, Record, operations, schema
from qkv.models.network.decoder import EncoderDecoder
from qkv.models.network.transformer import Transformer
from qkv.models.run.edit import At, EditedRun, Spliced, is_number
from qkv.models.run.edit_ops import OPS, Plan, are_numbers, shape_of, wrong
from qkv.models.run.masking import from_start, hidden_places, hidden_words
from qkv.text import Tokenized, Tokenizer
from qkv.trace import Seq2SeqTrace, Trace
from qkv.trace.activations import activation, meant, parse
from qkv.trace.seq2seq import SIDES

_HIDES = ("hide", "mask", "causal")  # what `Trace.changed` tells as "hide"


def fit(
    edits: Edits,
    *,
    batch: Iterable[Tokenized],
    body: Transformer,
    pieces: Callable[[str], list[list[str]]] | None,
    read: Callable[[str, str], Array] | None = None,
    more: Sequence[int] = (),
    written: int | None = None,
    first: int = 0,
    absent: set[Any] | None = None,
) -> EditedRun:
    """What a run does differently, once it is known to fit a model and its texts.

    Args:
        edits: what was asked for.
        batch: the texts, which are read only if there is something to edit.
        body: the model.
        pieces: the ways in which a word may be cut, none if the vocabulary does not have it; None
            where the model knows no words.
        read: the ids of a text, (T,), for a call; None where the model reads none.
        more: how many tokens may follow each text, where some may.
        written: how many places a decoder begins with, where it runs beside an encoder.
        first: the number that the first text has for the caller.
        absent: what of `hide` no text had so far, where more texts are to come; what these texts
            have is taken out of it. None where these are all, so that it is an error.

    Raises:
        TypeError: something takes the place of an activation that is no array of numbers.
        ValueError: there is no such layer, head, word or place, a shape does not fit, or a text is
            left with no word.
        KeyError: there is no activation of a name; the message has the nearest ones.
    """
    if not edits:
        return EditedRun()
    call, heads = edits.call, [layer.attn.num_heads for layer in body.layers]
    named = _named(edits.changes, body, written is not None, call)
    records = [_in_model(one, body, call) for one in edits.records]
    texts = list(batch)
    lengths = [len(text) for text in texts]
    counts = {"": (len(texts), max(lengths, default=0))}
    counts["encoder"], counts["decoder"] = counts[""], (len(texts), written or 0)
    changes = {
        name: change
        if callable(change) or isinstance(change, Spliced)
        else _array(name, change, body, counts, call, named.get(name.rpartition(".")[0]))
        for name, change in named.items()
    }
    plan = Plan(call, body, lengths, "encoder." * (written is not None), first, read)
    scales = [one for one in records if one.op == "scale"]  # the last counts, and is the last
    for one in (*(one for one in records if one.op != "scale"), *scales[-1:]):
        if one.source != "hide" and one.op in OPS:
            _check_tokens(one, texts, first, call)
            OPS[one.op](plan, one)
    asked = [hide_value(one) for one in records if one.source == "hide"]
    words = [one for one in asked if isinstance(one, str)]
    hidden = hidden_words(words, texts, pieces, call, first, absent) if words else []
    limits = [
        length + extra for length, extra in zip(lengths, more or [0] * len(texts), strict=True)
    ]
    for one in asked:
        if not isinstance(one, str):
            hidden += hidden_places(one, lengths, limits, call, absent)
    pairs = sorted((layer, head) for layer, values in plan.ablated.items() for head in values)
    asked += [hide_value(one) for one in records if one.source != "hide" and one.op in _HIDES]
    names = list(dict.fromkeys((*plan.changes, *changes)))
    found: dict[str, Sequence[Any]] = {
        "edit": names,
        "ablate": pairs,
        "hide": list(dict.fromkeys(asked)),
    }
    return EditedRun(
        call,
        changes,
        plan.changes,
        plan.ablated,
        list(dict.fromkeys([*hidden, *plan.hidden])),
        heads,
        written is not None,
        {name: value for name, value in found.items() if value},
        first,
    )


def spliced_names(edits: Edits, body: Transformer) -> list[str]:
    """The names that a trace has beside the model's own, of layers that edits put into it."""
    changes = {name: one for name, one in edits.changes.items() if isinstance(one, Spliced)}
    index = _index(body.hook_names) if changes else None
    return [
        f"{full}.{hook}"
        for name, change in changes.items()
        for full in _resolved(name, index, edits.call)
        for hook in change.hooks
    ]


def _named(edit: Mapping[Any, Any], body: Transformer, is_pair: bool, call: str) -> dict[str, Any]:
    """What is to be changed, by full names."""
    index: Trace | Seq2SeqTrace | None = None
    if edit and is_pair:
        index = _index_of_pair(body)
    elif edit:
        index = _index([*body.hook_names, *spliced_names(Edits(call, (), edit), body)])
    found: dict[str, Any] = {}
    for name, change in edit.items():
        for full in _resolved(name, index, call):
            if full in found:
                raise ValueError(f"{call}: edit names {full} twice: give it one change")
            if isinstance(change, str | bytes) or change is None:
                raise TypeError(
                    f"{call}: edit has {shown(change)} for {full}: give a function or an array"
                )
            if isinstance(change, Spliced):
                found[full] = change
                continue
            read: Any = _function if callable(change) else _numbers
            found[full] = read(full, change, call)
    return found


def _resolved(name: Any, index: Any, call: str) -> list[str]:
    """The full names of the activations that a key of `edit` stands for."""
    if not isinstance(name, str | tuple):
        raise TypeError(
            f"{call}: edit has {shown(name)}: name an activation in full, or by a tuple, as "
            '("resid_post", 0)'
        )
    if name in ("logits", "decoder.logits"):
        raise ValueError(
            f"{call}: edit has {name!r}, which is what comes out of a run: change it behind it"
        )
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
    return names


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


def _index(names: Iterable[str], side: str = "") -> Trace:
    """A trace that holds, by each of these names that can be changed, that name."""
    return Trace({name: np.array(side + name) for name in names if activation(name).editable})


def _index_of_pair(body: Transformer) -> Seq2SeqTrace:
    """The same of an encoder and a decoder."""
    assert isinstance(body, EncoderDecoder)
    names = body.decoder.hook_names
    crosses = [name for name in names if parse(name).crosses]
    own = [name for name in names if name not in crosses]
    cross = {name: np.array(f"decoder.{name}") for name in crosses if activation(name).editable}
    return Seq2SeqTrace(_index(body.hook_names, "encoder."), _index(own, "decoder."), cross)


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
    name: str,
    array: Array,
    body: Transformer,
    counts: Mapping[str, tuple[int, int]],
    call: str,
    outer: Any,
) -> Array:
    """An array that takes the place of an activation, (B or 1, ...); `outer` is a spliced layer."""
    at = parse(name)
    one = body.decoder if at.side == "decoder" and isinstance(body, EncoderDecoder) else body
    (texts, places), other = counts[at.side], counts["encoder"][1]
    features = outer.num_features if isinstance(outer, Spliced) else 0
    shape = (texts, *shape_of(at, one, places, other if at.crosses else places, features))
    if array.shape not in (shape, (1, *shape[1:])):
        has = f"shape {array.shape}" if array.ndim else shown(array.item())
        more = f", or {(1, *shape[1:])} for the same in every text" if texts != 1 else ""
        raise ValueError(
            f"{call}: edit has {has} for {name}, which is {shape} here: give that shape{more}"
        )
    return array


def plain(
    edits: Edits,
    text: Tokenized,
    body: Transformer,
    pieces: Callable[[str], list[list[str]]] | None,
) -> list[dict[str, Any]]:
    """The records of one text as JSON can hold them: no words, and nothing counted from the end.

    An array that takes the place of an activation is a record "set".

    Args:
        edits: what was asked for, which fits the model and the text.
        text: the text, with what records swap.
        body: the model.
        pieces: as for `fit`.

    Raises:
        ValueError: something is a function, or an array for an activation that no record names; or
            there is no such layer, head, word or place.
    """
    call = edits.call
    sites = schema()["$defs"]["site"]["enum"]
    found: list[dict[str, Any]] = []
    for name, change in _named(edits.changes, body, False, call).items():
        layer = parse(name).layer
        at = [site for site in sites if name in meant((site, layer), len(body.layers))]
        if callable(change) or not at:
            what = "a function" if callable(change) else "an array"
            raise ValueError(
                f"{call}: edit has {what} for {name}, which no record holds: give an array for "
                f"{', '.join(sites[:-1])} or {sites[-1]}, or records, as "
                '[{"op": "add", "at": "resid_post", "layer": 0, "vector": [...]}]'
            )
        found.append({"op": "set", "at": at[0], "layer": layer, "value": change[0].tolist()})
    for one in (_in_model(each, body, call) for each in edits.records):
        value = hide_value(one) if one.source == "hide" else None
        if isinstance(value, str):
            hidden = hidden_words([value], [text], pieces, call)
        elif value is not None:
            hidden = hidden_places(value, [len(text)], [len(text)], call)
        else:
            found.append({name: _as_json(value) for name, value in one.fields.items()})
            continue
        for _, query, key, layer, head in hidden:
            edge = {"query": query, "key": key, "layer": layer, "head": head}
            edge = {name: place for name, place in edge.items() if place is not None}
            record = {"op": "hide", "token": key} if query is None else {"op": "mask", **edge}
            found += [record] * (record not in found)
    return found


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check(edits: Edits, body: Transformer, read: Callable[[str, str], Array] | None = None) -> None:
    """The errors of `fit` that need no texts, of a model that runs no decoder beside it."""
    _named(edits.changes, body, False, edits.call)
    plan = Plan(edits.call, body, [], read=read)
    for one in (_in_model(one, body, edits.call) for one in edits.records):
        if one.op in OPS:
            OPS[one.op](plan, one)


def swapped(
    edits: Edits, batch: Iterable[Tokenized], tokenizer: Tokenizer | None, first: int = 0
) -> list[Tokenized]:
    """The texts with other entries of the vocabulary in the place of some tokens.

    Raises:
        ValueError: there is no such token or entry; texts are counted from `first`.
    """
    texts = list(batch)
    swaps = [one for one in edits.records if one.op == "swap"]
    vocabulary = tokenizer.vocabulary if swaps and tokenizer is not None else {}
    for one in swaps:
        entry, token = one.fields["with"], one.fields["token"]
        if not isinstance(entry, str) or entry not in vocabulary:
            raise wrong(edits.call, one, "with", "one entry of the vocabulary")
        _check_tokens(one, texts, first, edits.call)
        for number, text in enumerate(texts):
            ids, tokens = text.ids.copy(), list(text.tokens)
            ids[token], tokens[token] = vocabulary[entry], entry
            texts[number] = replace(text, ids=ids, tokens=tokens)
    return texts


def hide_value(one: Record) -> Any:
    """What hides tokens, as `Trace.changed` tells it: a word, a place or an edge.

    >>> from qkv.edits import edits_of
    >>> records = edits_of([{"op": "causal"}], hide=["cat", (4, 1)], call="trace").records
    >>> [hide_value(one) for one in records]
    [(None, None), 'cat', (4, 1)]
    """
    if one.op == "hide":
        return one.fields["token"]
    names = ("query", "key", "layer", "head")
    return tuple(one.fields[name] for name in names if name in one.fields) or (None, None)


def _in_model(one: Record, body: Transformer, call: str) -> Record:
    """A record whose layer and head the model has, counted from 0, and whose numbers fit it."""
    fields, source = dict(one.fields), one.source
    if "layer" in fields:
        count = len(body.layers)
        if one.is_argument:
            fields["layer"] = from_start(fields["layer"], count, source, "layer", "the model", call)
        elif not _is_below(fields["layer"], count):
            raise wrong(call, one, "layer", f"0 to {count - 1}, as the model has layers")
    if "head" in fields:
        layer = fields["layer"]
        count = body.layers[layer].attn.num_heads
        if one.is_argument:
            whole = f"layer {layer}"
            fields["head"] = from_start(fields["head"], count, source, "head", whole, call)
        elif not _is_below(fields["head"], count):
            raise wrong(call, one, "head", f"0 to {count - 1}, as a layer has heads")
    for name, about in operations()[one.op].items():
        if name not in fields:
            continue
        if about.kind == "output":
            fields[name] = _output(
                one, fields[name], body.layers[fields["layer"]].attn.d_value, call
            )
        elif about.kind == "number" and not are_numbers(fields[name], ()):
            raise wrong(call, one, name, "a finite number")
    return Record(fields, source)


def _check_tokens(one: Record, batch: Sequence[Sized], first: int, call: str) -> None:
    """An error where a text has no such token, or not as many as there are numbers for."""
    for number, text in enumerate(batch, first):
        count = len(text)
        of = "the text" if len(batch) == 1 and not first else f"text {number}"
        for name, about in operations()[one.op].items():
            value = one.fields.get(name)
            if about.kind == "token" and value is not None and not _is_below(value, count):
                raise wrong(call, one, name, f"0 to {count - 1}, as {of} has tokens")
            if about.kind == "weights" and not are_numbers(value, (count,)):
                way = f"{count} finite numbers, one for each token of {of}"
                raise wrong(call, one, name, way)


def _is_below(number: Any, count: int) -> bool:
    return is_whole_number(number) and 0 <= number < count


def _output(one: Record, value: Any, size: int, call: str) -> Any:
    """What takes the place of what a head gives: 0, "mean", or (d,)."""
    pair = one.fields["layer"], one.fields.get("head")
    has = f"{call}: {one.source} has"
    if isinstance(value, str):
        if value not in ("zero", "mean"):
            raise ValueError(
                f'{has} {value!r:.40} for {pair}: write "zero" or "mean", or give an array '
                f"({size},)"
            )
        if value == "mean" and call in ("generate", "trace_stream"):
            raise ValueError(
                f'{has} "mean" for {pair}, and what is still to come has no mean: give "zero" or '
                f"an array ({size},)"
            )
        return 0 if value == "zero" else value
    array = as_array(value, call=call, name=f"{one.source}[{pair}]")
    if not is_number(array):
        raise TypeError(f'{has} {array.dtype} for {pair}: give "zero", "mean" or floats ({size},)')
    if array.shape != (size,):
        raise ValueError(
            f"{has} an array {array.shape} for {pair} and a head gives ({size},): give that"
        )
    return array
