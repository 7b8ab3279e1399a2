"""Check edits against a model and the texts of a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from itertools import chain
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, type_error, value_error
from qkv.arrays import Array, Shape, as_array, is_whole_number, quote
from qkv.edits import Edits, Record, operations
from qkv.models.network import EncoderDecoder
from qkv.models.network.batch import Batch
from qkv.models.network.transformer import Transformer
from qkv.models.run._edit_ops import OPS, Plan, are_numbers, shape_of, wrong
from qkv.models.run.edited_run import At, EditedRun, MaskedKey, Spliced, is_number
from qkv.models.run.text_reader import TextReader
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenized import joined_words, plain_tokens
from qkv.trace.activations import activation, parse
from qkv.trace.names import NameIndex

CheckedEdits = tuple[Batch, EditedRun]  # The texts of a run, and its interventions.
# Maps "", "encoder" and "decoder" to the number of texts and the length of the longest text.
Counts = Mapping[str, tuple[int, int]]


def fit(
    edits: Edits,
    batch: Batch,
    network: Transformer,
    reader: TextReader,
    *,
    more: Sequence[int] = (),
    written: int | None = None,
    first: int = 0,
    absent: set[Any] | None = None,
) -> CheckedEdits:
    """Check edits against a model and texts.

    Return `(batch, edited)`. `batch` holds the texts with the "swap" records applied, and `edited`
    holds the other interventions.

    Args:
        edits: the user's edits.
        batch: the texts.
        network: the network.
        reader: the model's reader of texts.
        more: the maximum number of tokens that the run may add to each text.
        written: the number of positions that the decoder computes in its first forward pass. If the
            model has no decoder, `written` is None.
        first: the index of the first text among all texts of the call.
        absent: the entries of `hide` that no earlier batch contains. The function removes from
            `absent` each entry that `batch` contains. If `absent` is None, an entry of `hide` that
            no text contains is an error.

    Raises:
        TypeError: the replacement of an activation is not an array of numbers.
        ValueError: a layer, head, word, position or entry of the vocabulary does not exist; a shape
            is wrong; or every word of a text is masked.
        KeyError: an activation does not exist; the message suggests similar names.
    """
    is_pair = written is not None
    if not edits:
        return batch, EditedRun(is_pair=is_pair)
    batch = swap_tokens(edits, batch, reader.tokenizer, first)
    heads = [layer.attn.num_heads for layer in network.layers]
    named = _resolve_keys(edits.changes, network, is_pair)
    records = [_in_model(record, network, edits.knows_means) for record in edits.records]
    texts = list(map(reader.with_names, batch))
    lengths = [len(text) for text in texts]
    counts = {"": (len(texts), max(lengths, default=0))}
    counts["encoder"], counts["decoder"] = counts[""], (len(texts), written or 0)
    changes = {
        name: change
        if callable(change) or isinstance(change, Spliced)
        else _array(name, change, _shape(name, network, counts, named))
        for name, change in named.items()
    }
    plan = Plan(network, lengths, "encoder." * is_pair, first, reader.known_ids)
    # If several records scale attention scores, only the last of these records has an effect.
    scales = [record for record in records if record.op == "scale"]
    for record in (*(record for record in records if record.op != "scale"), *scales[-1:]):
        if not record.is_hide_argument:
            _check_tokens(record, texts, first)
            OPS[record.op].apply(plan, record)
    hides = [hide_value(record) for record in records if record.is_hide_argument]
    limits = [sum(pair) for pair in zip(lengths, more or [0] * len(texts), strict=True)]
    masking = _Masking(texts, limits, reader, first, absent)
    others = (one for one in records if not one.is_hide_argument and OPS[one.op].masks)
    user_edits: dict[str, Sequence[Any]] = {
        "edit": list(dict.fromkeys((*plan.changes, *changes))),
        "ablate": sorted((layer, head) for layer, parts in plan.ablated.items() for head in parts),
        "hide": list(dict.fromkeys([*hides, *map(hide_value, others)])),
    }
    return batch, EditedRun(
        changes,
        plan.changes,
        plan.ablated,
        list(dict.fromkeys([*masking.keys(hides), *plan.masked])),
        heads,
        is_pair,
        {name: value for name, value in user_edits.items() if value},
        first,
    )


def spliced_names(edits: Edits, network: Transformer) -> dict[str, int]:
    """Return the names that spliced layers add to a trace, with their numbers of features."""
    changes = {name: layer for name, layer in edits.changes.items() if isinstance(layer, Spliced)}
    known = NameIndex(filter(_is_editable, network.hook_names)) if changes else NameIndex(())
    return {
        f"{full}.{hook}": change.num_features
        for name, change in changes.items()
        for full in _resolve_key(name, known)
        for hook in change.hooks
    }


def _is_editable(name: str) -> bool:
    return activation(name).editable


def _resolve_keys(edit: Mapping[Any, Any], network: Transformer, is_pair: bool) -> dict[str, Any]:
    """Return the changes in `edit`, keyed by full name."""
    if not edit:
        return {}
    if is_pair and isinstance(network, EncoderDecoder):
        names = network.pair_hook_names
    else:
        names = [*network.hook_names, *spliced_names(Edits((), edit), network)]
    known = NameIndex(filter(_is_editable, names))
    changes: dict[str, Any] = {}
    for name, change in edit.items():
        for full in _resolve_key(name, known, names):
            if full in changes:
                raise value_error(f"`edit` has two changes for {full}; pass only one")
            if isinstance(change, str | bytes) or change is None:
                raise type_error(
                    f"`edit` has {quote(change)} for {full}; pass a function or an array"
                )
            if isinstance(change, Spliced):
                if getattr(change, "is_transcoder", False):
                    raise value_error(
                        f"`edit` has the transcoder {change!r} for {full}, but an edit reads only "
                        f"{full}; pass the transcoder's output: "
                        "{coder.at_out: coder(trace[coder.at])}"
                    )
                changes[full] = change
                continue
            read: Any = _function if callable(change) else _numbers
            changes[full] = read(full, change)
    return changes


def _resolve_key(name: Any, known: NameIndex, recorded: Iterable[str] = ()) -> list[str]:
    """Return the full names of the activations that a key of `edit` stands for.

    `known` holds the activations that an edit may change, and `recorded` all activations.
    """
    if not isinstance(name, str | tuple):
        raise type_error(
            f"`edit` has {quote(name)}; pass an activation's full name, or a tuple "
            'such as ("resid_post", 0)'
        )
    if name in ("logits", "decoder.logits"):
        raise value_error(
            f"`edit` has {name!r}, which is the output of the run: change the result instead"
        )
    if isinstance(name, tuple) and name[1:2] in (((),), (range(0),)):
        raise value_error(
            f"`edit` has {quote(name)}, which does not name a layer; pass layer numbers, such "
            "as (0, 1), or None for all layers"
        )
    names = known.find(name)
    if not names and NameIndex(recorded).find(name):
        raise value_error(
            f"`edit` has {quote(name)}, which a run only records and never reads; choose an "
            'activation that it reads, such as ("q_in", 0), ("q", 0) or ("resid_pre", 0)'
        )
    if not names:
        raise invalid(KeyError, f"`edit` has {quote(name)}, and {known.why_not(name)}")
    return names


def _function(name: str, function: Any) -> Callable[[Array, At], Any]:
    """Return a function `f(array, at)` that calls the user's function.

    The user's function is called as `function(array)` or as `function(array, at)`, depending on its
    parameters.
    """
    try:
        takes = signature(function)
    except (TypeError, ValueError):  # Python cannot inspect some functions that are written in C.
        return lambda array, at: function(array)
    fits = []
    for count in (1, 2):
        with suppress(TypeError):
            takes.bind(*range(count))
            fits.append(count)
    if not fits:
        raise type_error(
            f"`edit` has a function with parameters {takes} for {name}; pass f(array) or "
            "f(array, at)"
        )
    # An optional second parameter of the user's function receives `at` only if its name is `at`. A
    # required second parameter always receives `at`.
    if 2 not in fits or (1 in fits and [*takes.parameters][1:2] != ["at"]):
        return lambda array, at: function(array)
    return lambda array, at: function(array, at)


def _numbers(name: str, value: Any) -> Array:
    """Convert the numbers that replace an activation to an array."""
    array = as_array(value, name=f"edit[{name!r}]")
    if not is_number(array):
        raise type_error(f"`edit` has {array.dtype} for {name}; pass floats, or a function")
    return array


def _shape(name: str, network: Transformer, counts: Counts, changes: Mapping[str, Any]) -> Shape:
    """Return the shape (B, ...) of an activation, which may belong to a spliced layer."""
    at, outer = parse(name), changes.get(name.rpartition(".")[0])
    side = (
        network.decoder if at.side == "decoder" and isinstance(network, EncoderDecoder) else network
    )
    (texts, length), other = counts[at.side], counts["encoder"][1]
    features = outer.num_features if isinstance(outer, Spliced) else 0
    return texts, *shape_of(at, side, length, other if at.crosses else length, features)


def _array(name: str, array: Array, shape: Shape) -> Array:
    """Return an activation's replacement, (B or 1, ...), after checking its shape."""
    if array.shape not in (shape, (1, *shape[1:])):
        has = f"shape {array.shape}" if array.ndim else quote(array.item())
        more = f", or {(1, *shape[1:])} for the same values in every text" if shape[0] != 1 else ""
        raise value_error(
            f"`edit` has {has} for {name}, whose shape is {shape} here; pass an array "
            f"of this shape{more}"
        )
    return array


def plain(
    edits: Edits, text: Tokenized, network: Transformer, reader: TextReader
) -> list[dict[str, Any]]:
    """Return the edits of one text as records of JSON values, with positions instead of words.

    An array that replaces an activation becomes a "set" record.

    Args:
        edits: the user's edits, which fit the model and the text.
        text: the text, with swapped tokens.
        network: the network.
        reader: the model's reader of texts.

    Raises:
        ValueError: an edit is a function, which no record can express; or a layer, head, word or
            position does not exist.
    """
    records: list[dict[str, Any]] = []
    plan = Plan(network, [])
    for name, change in _resolve_keys(edits.changes, network, False).items():
        _, layer, local = parse(name)
        whole = local.replace("hook_", "")
        inner = whole.removeprefix("attn.").removeprefix("mlp.")
        at = next((at for at in (inner, whole) if plan.name(at, layer) == name), None)
        if callable(change) or at is None:
            what = "a function" if callable(change) else "an array"
            raise value_error(
                f"`edit` has {what} for {name}, but no record can express this edit; "
                "pass an array, or records such as "
                '[{"op": "add", "at": "resid_post", "layer": 0, "vector": [...]}]'
            )
        where = {} if layer is None else {"layer": layer}
        records.append({"op": "set", "at": at, **where, "value": change[0].tolist()})
    for record in (_in_model(record, network, edits.knows_means) for record in edits.records):
        if not record.is_hide_argument:
            records.append({name: _as_json(value) for name, value in record.fields.items()})
            if record.op == "swap":
                records[-1]["with"] = _entry(record, reader.tokenizer)[0]
            continue
        masking = _Masking([text], [len(text)], reader)
        for _, query, key, layer, head in masking.keys([hide_value(record)]):
            edge = {"query": query, "key": key, "layer": layer, "head": head}
            edge = {name: number for name, number in edge.items() if number is not None}
            plain = {"op": "hide", "token": key} if query is None else {"op": "mask", **edge}
            records += [plain] * (plain not in records)
    return records


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check(edits: Edits, network: Transformer, reader: TextReader) -> None:
    """Raise the errors of `fit` that do not depend on texts."""
    _resolve_keys(edits.changes, network, False)
    plan = Plan(network, [], read=reader.known_ids)
    for record in (_in_model(record, network, edits.knows_means) for record in edits.records):
        OPS[record.op].apply(plan, record)


def swap_tokens(edits: Edits, batch: Batch, tokenizer: Tokenizer | None, first: int) -> Batch:
    """Return the texts with some tokens swapped for other entries of the vocabulary.

    Raises:
        ValueError: a token or an entry does not exist. In the error message, the
            number of text i is `first + i`.
    """
    texts = list(batch)
    swaps = [record for record in edits.records if record.op == "swap"]
    if not swaps:
        return batch
    for record in swaps:
        (entry, index), token = _entry(record, tokenizer), record.fields["token"]
        _check_tokens(record, texts, first)
        for number, text in enumerate(texts):
            ids, tokens = text.ids.copy(), list(text.tokens)
            ids[token], tokens[token] = index, entry
            texts[number] = replace(text, ids=ids, tokens=tokens)
    return batch.replace_texts(texts)


def _entry(record: Record, tokenizer: Tokenizer | None) -> tuple[str, int]:
    """Return the token of the vocabulary that a "swap" record names, and its id."""
    word = record.fields["with"]
    found = {} if tokenizer is None or not isinstance(word, str) else tokenizer.entries(word)
    if len(found) > 1:
        raise wrong(record, "with", f"{f' {word}'!r}, because the vocabulary has both")
    if not found:
        raise wrong(record, "with", "one entry of the vocabulary")
    return next(iter(found.items()))


def hide_value(record: Record) -> Any:
    """Return the word, position or edge that a record masks, in the format of `Trace.changed`.

    >>> from qkv.edits import edits_of
    >>> records = edits_of([{"op": "causal"}], hide=["cat", (4, 1)]).records
    >>> [hide_value(record) for record in records]
    [(None, None), 'cat', (4, 1)]
    """
    if record.op == "hide":
        return record.fields["token"]
    names = ("query", "key", "layer", "head")
    return tuple(record.fields[name] for name in names if name in record.fields) or (None, None)


def _in_model(record: Record, network: Transformer, knows_means: bool) -> Record:
    """Check a record's layer, head and numbers; return the record with non-negative indices."""
    fields, source = dict(record.fields), record.source
    if "layer" in fields:
        count = len(network.layers)
        if record.is_argument:
            fields["layer"] = from_start(fields["layer"], count, source, "layer", "the model")
        elif not _is_below(fields["layer"], count):
            raise wrong(record, "layer", f"0 to {count - 1}, because the model has {count} layers")
    if "head" in fields:
        layer = fields["layer"]
        count = network.layers[layer].attn.num_heads
        if record.is_argument:
            whole = f"layer {layer}"
            fields["head"] = from_start(fields["head"], count, source, "head", whole)
        elif not _is_below(fields["head"], count):
            raise wrong(record, "head", f"0 to {count - 1}, because a layer has {count} heads")
    for name, about in operations()[record.op].items():
        if name not in fields:
            continue
        if about.kind == "output":
            size = network.layers[fields["layer"]].attn.d_value
            fields[name] = _output(record, fields[name], size, knows_means)
        elif about.kind == "number" and not are_numbers(fields[name], ()):
            fits = " that fits in 64 bits" * isinstance(fields[name], int)
            raise wrong(record, name, f"a finite number{fits}")
    return Record(fields, source)


def _check_tokens(record: Record, batch: Sequence[Sized], first: int) -> None:
    """Check that each text contains the tokens that a record refers to.

    If the record has weights, also check that each token of the text has one weight.
    """
    for number, text in enumerate(batch, first):
        count = len(text)
        which = "the text" if len(batch) == 1 and not first else f"text {number}"
        for name, about in operations()[record.op].items():
            value = record.fields.get(name)
            if about.kind == "token" and value is not None and not _is_below(value, count):
                raise wrong(record, name, f"0 to {count - 1}, because {which} has {count} tokens")
            if about.kind == "weights" and not are_numbers(value, (count,)):
                way = f"{count} finite numbers, one for each token of {which}"
                raise wrong(record, name, way)


def _is_below(number: Any, count: int) -> bool:
    return is_whole_number(number) and 0 <= number < count


def _output(record: Record, value: Any, size: int, knows_means: bool) -> Any:
    """Return the replacement of a head's output: 0, "mean" or an array (d,)."""
    pair = record.fields["layer"], record.fields.get("head")
    has = f"{record.source} has"
    if isinstance(value, str):
        if value not in ("zero", "mean"):
            raise value_error(
                f'{has} {value!r:.40} for {pair}; pass "zero", "mean" or an array ({size},)'
            )
        if value == "mean" and not knows_means:
            raise value_error(
                f'{has} "mean" for {pair}, but the mean is unknown until all text has been read; '
                f'pass "zero" or an array ({size},)'
            )
        return 0 if value == "zero" else value
    array = as_array(value, name=f"{record.source}[{pair}]")
    if not is_number(array):
        raise type_error(f'{has} {array.dtype} for {pair}; pass "zero", "mean" or floats ({size},)')
    if array.shape != (size,):
        raise value_error(
            f"{has} an array {array.shape} for {pair}, but a head's output has shape ({size},); "
            "pass an array of this shape"
        )
    return array


@dataclass(frozen=True)
class _Masking:
    """Finds the words, positions and edges of `hide` in each text.

    Attributes:
        batch: the texts.
        limits: the maximum number of tokens in each text, including tokens that the run adds.
        reader: the model's reader of texts.
        first: the index of the first text among all texts of the call.
        absent: as in `fit`.
    """

    batch: Sequence[Tokenized]
    limits: Sequence[int]
    reader: TextReader
    first: int = 0
    absent: set[Any] | None = None

    def keys(self, hides: Sequence[Any]) -> list[MaskedKey]:
        """Return the attention keys that the words, positions and edges in `hides` mask."""
        words = [value for value in hides if isinstance(value, str)]
        masked = self._of_words(words) if words else []
        for value in hides:
            if not isinstance(value, str):
                masked += self._of_positions(value)
        return masked

    def _of_words(self, words: Sequence[str]) -> list[MaskedKey]:
        """Return the keys to mask: all occurrences of words or special tokens such as "[SEP]"."""
        batch, absent = self.batch, self.absent
        if not self.reader.knows_words:
            raise value_error(
                f"`hide` has the word {words[0]!r}, but the model has no tokenizer "
                "to find it; pass positions, such as hide=[3]"
            )
        keys: list[set[int]] = [set() for _ in batch]
        for word in words:
            find, is_found = self.reader.finder(word), False
            for text, row in zip(batch, keys, strict=True):
                hits = find(text.tokens, text.special, what="`hide`")
                row.update(chain.from_iterable(hits))
                is_found |= bool(hits)
            if absent is not None:
                absent.difference_update([word] * is_found)
            elif not is_found:
                raise value_error(
                    f"`hide` has {word!r}, which is in no text: the words are {_list_words(batch)}"
                )
        for number, (text, row) in enumerate(zip(batch, keys, strict=True), self.first):
            positions = {i for i, special in enumerate(text.special) if not special}
            if positions and positions <= row:
                which = "the text" if len(batch) == 1 and not number else f"text {number}"
                raise value_error(f"hide masks every word of {which}: leave at least one visible")
        return [
            MaskedKey(number, None, position, None, None)
            for number, row in enumerate(keys)
            for position in sorted(row)
        ]

    def _of_positions(self, entry: int | tuple[int, ...]) -> list[MaskedKey]:
        """Return the attention keys to mask for a position or an edge in `hide`.

        A text that is too short for the position has no masked key. Position -1 is the last token.
        """
        fields: list[Any] = [None, entry] if isinstance(entry, int) else [*entry]
        query, key, layer, head = [*fields, None, None][:4]
        lengths = list(map(len, self.batch))
        least, most = -max(lengths, default=0), max(self.limits, default=0)
        outside = [at for at in (query, key) if at is not None and not least <= at < most]
        if self.absent is not None:
            self.absent.difference_update([] if outside else [entry])
        elif outside:
            raise value_error(
                f"`hide` has position {outside[0]}, but no text has "
                f"more than {most} tokens; pass {least} to {most - 1}, or a word"
            )

        def from_end(at: int | None, length: int) -> int | None:
            return None if at is None else at + length * (at < 0)

        return [
            MaskedKey(number, from_end(query, length), from_end(key, length), layer, head)
            for number, (length, limit) in enumerate(zip(lengths, self.limits, strict=True))
            if all(at is None or -length <= at < limit for at in (query, key))
        ]


def from_start(number: int, count: int, source: str, what: str, whole: str) -> int:
    """Return the index of a layer or head: for -1, for example, return `count - 1`."""
    if not -count <= number < count:
        raise value_error(
            f"{source} names {what} {number}, but {whole} has {count} {what}s, "
            f"numbered 0 to {count - 1}"
        )
    return number % count


def _list_words(batch: Sequence[Tokenized], most: int = 20) -> str:
    """Join the distinct words of texts; after `most` words, end with, e.g., " and 5 more"."""
    named = (joined_words(plain_tokens(text.tokens, text.special), text.special) for text in batch)
    words = list(dict.fromkeys(chain.from_iterable(named)))
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
