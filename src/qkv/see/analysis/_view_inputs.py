"""Conversion of a view's arguments (text, trace, or weights with tokens) to traces and heads."""

import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, type_error, value_error
from qkv.arrays import Array, as_array, whole_number
from qkv.models import Model, load, load_for
from qkv.models.files.find import DEFAULT, WRITER, places
from qkv.models.run.text_reader import as_ids
from qkv.see.analysis._words import is_special, words_of
from qkv.see.analysis.head_weights import LONG, Axis, Heads
from qkv.see.analysis.word_vectors import similarity_by_layer
from qkv.text.gaps import MASKS, mask_gaps
from qkv.text.tokenized import find_word, plain_tokens, text_of
from qkv.text.tokenizer import check_text
from qkv.trace import Seq2SeqTrace, Trace

Named = Model | str | None  # A model or a model's name. None means the default model.
Tokens = Iterable[str] | None
# The word to compare, the reason for this choice, and the word's positions in each text.
Chosen = tuple[str, str, list[list[list[int]]]]
# A text of up to this many tokens is traced with all (T, T) weights of each head.
WHOLE = 2 * LONG


def trace_of(source: Any, tokens: Tokens, model: Named) -> tuple[Trace, Model | None]:
    """Return `(trace, model)` for a text, ids, a trace or weights; the model may be None."""
    if isinstance(source, Trace | Seq2SeqTrace):
        trace = one_text(source)
        return trace, None if model is None else model_of(model, [" ".join(trace.tokens)])
    if tokens is not None:
        heads = heads_from(source, tokens)
        arrays = {
            f"blocks.{layer}.attn.hook_pattern": weights[None]
            for layer, weights in zip(heads.layers, heads.weights, strict=True)
        }
        return Trace(arrays, tokens=[heads.queries.tokens], special=[heads.queries.special]), None
    first = source[0] if isinstance(source, list | tuple) and source else source
    if hasattr(first, "__array__") and not is_ids(source):
        raise type_error("weights need tokens; pass tokens=[...] too")
    used = reader_for(source, model)
    length = len(used.tokenize(source) if isinstance(source, str) else source)
    size = min(length, used.max_seq_length or WHOLE + 1)
    if size > WHOLE:
        return readable_trace(used.trace(source, names=["embed", "v"], top_k=8)), used
    return readable_trace(used.trace(source)), used


def is_ids(source: Any) -> bool:
    """Return whether an argument holds the token ids of one text, as for `model.trace(ids)`.

    >>> is_ids([2, 5]), is_ids(np.array([2, 5])), is_ids([[2, 5]]), is_ids("a text")
    (True, True, False, False)
    """
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(item, int | np.integer) for item in source)
    ids = as_ids(source)
    return isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu"


def reader_for(source: Any, model: Named) -> Model:
    """Return the model, or load it by name, to run a text or ids; check the text."""
    return reader_of(model, [] if is_ids(source) else texts_of([source]))


def texts_of(texts: list[Any]) -> list[str]:
    """Check that texts are strings with at least one word."""
    names = ["the text"] if len(texts) == 1 else ["the first text", "the second text"]
    for name, text in zip(names, texts, strict=True):
        if not check_text(text, name=name).strip():
            raise value_error(f"{name} is empty; pass at least one word")
    return texts


def model_of(model: Named, texts: list[str]) -> Model:
    """Return the model, or load it by name; "random" builds a model for the words of the texts."""
    return model if isinstance(model, Model) else load_for(texts, model)


def guesser_of(model: Named, text: str, dtype: str | None = None) -> Model:
    """Return the model, or load it by name, to guess a word of a text.

    Without a name and without QKV_MODEL, it is "books" for a text with a gap, else "smollm2" if it
    is installed, else "books-decoder".
    """
    if model is None and not os.environ.get("QKV_MODEL"):
        installed = any(name == "smollm2" and folder for name, _, folder in places())
        gaps = mask_gaps(text, MASKS[0]).gaps
        model = DEFAULT if gaps else "smollm2" if installed else WRITER
    if dtype is None or isinstance(model, Model):
        return model_of(model, [text])
    return load(model, dtype=dtype)


def reader_of(model: Named, texts: list[str]) -> Model:
    """Return the model, or load it by name, and check that it reads texts.

    Raises:
        ValueError: the model reads images instead of texts.
    """
    used = model_of(model, texts)
    used.need("view")
    return used


def positions_in(
    trace: Trace, model: Model | None, word: str | int | Sequence[int], name: str
) -> list[int]:
    """Return the positions of all tokens that spell a word; if `word` is a position, check it.

    `word` may also be several positions.

    Raises:
        ValueError: the word is not in the text (the message lists the words of the text); or `word`
            has no space, and the text contains it with and without a space before it.
        IndexError: the position is out of range.
    """
    size = len(trace.tokens)
    if isinstance(word, list | tuple):
        return [at for one in word for at in positions_in(trace, model, one, name)]
    if isinstance(word, str):
        copies = _find(trace, model, word, name)
        if not copies:
            words = _list_words(words_of(trace.tokens, trace.special))
            raise value_error(f"{word!r} is not in the text: its words are {words}")
        return [position for copy in copies for position in copy]
    position = whole_number(word, name=name, least=-size)
    if position >= size:
        raise invalid(
            IndexError, f"{name}={position} is out of range: tokens are numbered 0 to {size - 1}"
        )
    return [position % size]


def positions_of(model: Model | None, word: str | None, a: Trace, b: Trace) -> Chosen:
    """Choose the word to compare: return `(word, reason, positions in each text)`.

    If `word` is None, choose a content word that both texts share. If they share several, choose
    the word whose two vectors after the last layer are least similar.

    Raises:
        ValueError: the word is not in both texts, or the texts share no word; the message lists
            the words of both texts.
    """
    words = [words_of(trace.tokens, trace.special) for trace in (a, b)]
    if word is None:
        return _shared_word(model, a, b, words)
    copies = [_find(trace, model, word, "word") for trace in (a, b)]
    missing = [number for number, positions in enumerate(copies) if not positions]
    if len(missing) == 2:
        raise value_error(
            f"{word!r} is in neither text: the first has the words {_list_words(words[0])}; "
            f"the second has {_list_words(words[1])}"
        )
    if missing:
        name = ("first", "second")[missing[0]]
        raise value_error(
            f"{word!r} is not in the {name} text: its words are {_list_words(words[missing[0]])}"
        )
    return text_of(word).strip(" ") or word, "it was requested", copies


def _shared_word(model: Model | None, a: Trace, b: Trace, words: list[list[str]]) -> Chosen:
    """Choose a word that both texts share; return the same tuple as `positions_of`."""
    content = [words_of(trace.tokens, trace.special, only_content=True) for trace in (a, b)]
    found = partial(_find, name="word", either=True)
    for what, (first, second) in (("content word", content), ("word", words)):
        both = (word for word in first if word in second)
        positions = {word: [found(trace, model, word) for trace in (a, b)] for word in both}
        shared = [word for word, copies in positions.items() if all(copies)]
        if len(shared) == 1:
            return shared[0], f"it is the only {what} that both texts share", positions[shared[0]]
        if shared:
            firsts = {word: [copies[0] for copies in positions[word]] for word in shared}
            ends = {word: similarity_by_layer(a, x, b, y) for word, (x, y) in firsts.items()}
            word = min(shared, key=lambda word: _last(ends[word]))
            least = "its vectors after the last layer are the least similar among the"
            least = least if len(ends[word]) else "it is the first of the"
            return (
                word,
                f"{least} {what}s that both texts share ({_list_words(shared)})",
                positions[word],
            )
    raise value_error(
        f"the texts share no word: the first has {_list_words(words[0])}; the second has "
        f"{_list_words(words[1])}"
    )


def _last(similarity: Array) -> float:
    """Return the similarity after the last layer, or infinity if the similarity is NaN."""
    value = float(similarity[-1]) if len(similarity) else 0.0
    return math.inf if math.isnan(value) else value


def _find(
    trace: Trace, model: Model | None, word: str, name: str, *, either: bool = False
) -> list[list[int]]:
    """Find the tokens of each occurrence of a word; see `find_word`."""
    tokens = trace.spelled or list(trace.tokens)
    has_words = model is not None and tokens != list(map(str, trace.ids))  # a trace of ids has none
    find = model.reader.finder(word) if model and has_words else partial(find_word, word)
    return find(tokens, trace.special, either=either, what=f"`{name}`")


def _list_words(words: list[str], most: int = 20) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return (", ".join(words[:most]) or "no word") + more


def one_text(trace: Any) -> Trace:
    """Return the trace of the only text; raise an error if there are several texts or no text."""
    if isinstance(trace, Seq2SeqTrace):
        raise type_error(
            "this trace comes from an encoder-decoder; pass trace.encoder or "
            "trace.decoder, or call head_view(trace)"
        )
    if not isinstance(trace, Trace):
        raise type_error(f"a trace is needed, not a {type(trace).__name__}; pass model.trace(...)")
    if len(trace) > 1:
        raise value_error(
            f"this trace holds {len(trace)} texts; pass one of them, for example trace[0]"
        )
    if not len(trace) or not len(trace[0].tokens):
        raise value_error(f"{_no_tokens(trace)}")
    return readable_trace(trace[0])


def _no_tokens(trace: Trace) -> str:
    """Explain why a trace has no tokens, and what to do."""
    if not trace.names():
        return (
            "this trace is empty: a recording is filled when its `with` block ends without an "
            "error; to trace a model of qkv, call model.trace(text)"
        )
    weights = 'trace["pattern"]' if "pattern" in trace else "trace.attentions"
    return (
        "this trace has no tokens: make a trace with model.trace(text), or call "
        f"qkv.show({weights}, tokens=[...])"
    )


def readable_trace(trace: Trace) -> Trace:
    """Remove tokenizer marks, such as "Ġ", from the tokens of a trace."""
    tokens, special = trace[0].tokens, trace[0].special
    names = plain_tokens(tokens, special)
    readable = trace.with_tokens([names])
    readable.spelled = trace.spelled or tokens
    return readable


# The rounding error of a weight near 0 or 1 after a softmax in half precision.
_SLACK = 1e-2


def heads_from(
    weights: Any, tokens: Iterable[str], keys: Tokens = None, *, name: str = "attention"
) -> Heads:
    """Convert plain arrays of weights to `Heads`.

    Args:
        weights: the weights, as one array `(layers, heads, L, S)` or as a list with one array or
            tensor per layer, `(heads, L, S)` or `(1, heads, L, S)`. The library `transformers`
            returns such a list.
        tokens: the L queries.
        keys: the S keys, if they differ from the queries.
        name: the name of the argument, for error messages.
    """
    arrays = _layers(weights, name)
    size, width = arrays[0].shape[1:]
    queries = _axis(tokens, size, name, "queries")
    others = None if keys is None else _axis(keys, width, name, "keys")
    if others is None and size != width:
        raise value_error(
            f"{name} has {size} queries and {width} keys: if keys and queries are "
            "different tokens, call head_view(cross_attention=, encoder_tokens=, decoder_tokens=)"
        )
    return Heads(queries, list(range(len(arrays))), arrays, other_keys=others)


def _layers(attention: Any, name: str) -> list[Array]:
    """Return each layer's weights `(heads, L, S)`."""
    listed = isinstance(attention, (list, tuple)) and len(attention) > 0
    if listed and (attention[0] is None or len(np.shape(attention[0])) != 2):
        parts = list(attention)
    else:
        whole = _read(attention, name)
        if whole.ndim == 5 and whole.shape[1] == 1:
            whole = whole[:, 0]
        if whole.ndim != 4:
            raise value_error(
                f"{name} has shape {whole.shape}; pass (layers, heads, L, S), or one array "
                "(heads, L, S) for each layer"
            )
        parts = list(whole)
    arrays: list[Array] = []
    for number, part in enumerate(parts):
        if part is None:
            raise value_error(
                f"{name} of layer {number} is None: load the transformers model with "
                'attn_implementation="eager" and call it with output_attentions=True'
            )
        array = _read(part, f"{name} of layer {number}")
        if array.ndim == 4 and array.shape[0] == 1:
            array = array[0]
        if array.ndim != 3 or 0 in array.shape:
            several = f"{array.shape[0]} texts" if array.ndim == 4 else f"shape {array.shape}"
            raise value_error(
                f"{name} of layer {number} has {several}; pass one text, (heads, L, S) "
                "or (1, heads, L, S)"
            )
        if arrays and array.shape != arrays[0].shape:
            raise value_error(
                f"{name} has shape {array.shape} in layer {number} and {arrays[0].shape} in layer "
                "0: all layers must have the same shape"
            )
        arrays.append(array)
    if not arrays:
        raise value_error(f"{name} is empty; pass at least one layer")
    return arrays


def _read(x: Any, name: str) -> Array:
    """Convert weights from any device or library to float32 or float64, and check their range."""
    for method in ("detach", "cpu"):  # NumPy cannot read tensors on a GPU or with gradients
        x = getattr(x, method)() if hasattr(x, method) else x
    array = as_array(x, name=name)
    if array.dtype.kind not in "fiuV":
        raise type_error(f"{name} is {array.dtype}; pass weights from 0 to 1")
    array = array if array.dtype == np.float64 else array.astype(np.float32, copy=False)
    numbers = array[~np.isnan(array)]
    low, high = float(numbers.min(initial=0.0)), float(numbers.max(initial=0.0))
    if low < -_SLACK or high > 1 + _SLACK:
        raise value_error(
            f"{name} holds {low if low < 0 else high:.3g}; pass weights from 0 to 1, not scores"
        )
    return array


def _axis(tokens: Iterable[str], size: int, name: str, which: str) -> Axis:
    if isinstance(tokens, str):
        raise type_error("the tokens are one string; pass a list of strings, one for each token")
    listed = [str(token) for token in tokens]
    if len(listed) != size:
        raise value_error(
            f"{name} has {size} {which}, but there are {len(listed)} tokens; "
            f"pass as many tokens as {which}"
        )
    return Axis(listed, [is_special(token) for token in listed])
