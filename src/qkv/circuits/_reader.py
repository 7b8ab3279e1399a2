"""Check the arguments of `qkv.circuits`, and run many texts in batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import invalid, type_error, value_error
from qkv.arrays import Array, is_whole_number, quote
from qkv.attend import attention
from qkv.models.model import Model
from qkv.models.network.batch import PackedIds
from qkv.models.run.batches import windows as grouped
from qkv.models.run.text_reader import as_ids, ids_given
from qkv.models.tasks.gradient import Reading, is_reading, readings_of, word_id
from qkv.models.tasks.tracing import layers_to_run, names_to_keep
from qkv.text.tokenizer import check_text
from qkv.trace import Recorder, Seq2SeqTrace, Trace
from qkv.trace.activations import activation, parse, short_name

Texts = Iterable[Any] | Array  # Texts, or the token ids of one text.
Names = str | Iterable[str]  # One name or several.
Target = tuple[Any, ...]  # (position, token) or (position, token, other token).


def check_model(model: Any) -> Model:
    """Return the model; raise an error unless the model is a text encoder or decoder."""
    if not isinstance(model, Model):
        kind = type(model).__name__
        raise type_error(f"`model` is {kind}; pass a model from qkv.load(name)")
    model.need("analyse")
    return model


def check_words(model: Any) -> Model:
    """Return the model; raise an error unless the model reads text and has an LM head."""
    checked = check_model(model)
    checked.need("predict")
    return checked


def check_trace(trace: Any, model: Model | None = None, *, many: bool = False) -> Trace:
    """Check a trace, and return it.

    The trace must be from a model with as many layers as `model`. Unless `many` is true, the trace
    must hold a single text.
    """
    if isinstance(trace, Seq2SeqTrace):
        name = trace.encoder.model
        raise value_error(
            f"{name} reads one text and writes another: load a text encoder or decoder"
        )
    if not isinstance(trace, Trace):
        kind = type(trace).__name__
        raise type_error(f"`trace` is {kind}; pass a trace from model.trace(text)")
    if len(trace) > 1 and not many:
        raise value_error(f"`trace` holds {len(trace)} texts; pass one, for example trace[0]")
    if model is not None and trace.num_layers != model.num_layers:
        raise value_error(
            f"`trace` has {trace.num_layers} layers and {model.name} has "
            f"{model.num_layers}: trace the text with this model"
        )
    return trace


def check_index(number: Any, count: int, name: str, error: type[Exception] = IndexError) -> int:
    """Return `number` as an index below `count`; negative numbers count from the end.

    `error` is the class of the exception for an index that does not exist.

    >>> check_index(-1, 3, "examples", "layer")
    2
    """
    if not is_whole_number(number):
        raise type_error(f"{name} is {quote(number)}; pass a whole number")
    if not -count <= number < count:
        raise invalid(error, f"there is no {name} {number}; pass 0 to {count - 1}")
    return int(number) % count


def pick(trace: Trace, *names: Any) -> Array:
    """Return the activation (B, ...) of the first name in `names` that the trace contains.

    Raises:
        KeyError: the trace has none of the names; the message says which name to trace.
    """
    for name in names:
        if name in trace:
            return np.asarray(trace[name])
    short = names[0] if isinstance(names[0], str) else names[0][0]
    raise invalid(
        KeyError,
        f"`trace` has no {quote(names[0])}: call trace() without names=, or add {short!r} "
        "to names=",
    )


def readings(
    model: Model, value: Any, lengths: Sequence[int], name: str, unit: str, what: str
) -> list[Reading]:
    """Return the reading of each text: a function of its logits, with its gradient if known.

    Args:
        model: a model with an LM head.
        value: a tuple, a metric or a function, or a list with one of these for each text.
        lengths: the number of tokens of each text.
        name: the name of the argument in error messages.
        unit: "text" or "pair", for error messages.
        what: the kinds of values that are allowed: "any"; "gradient", which excludes functions; or
            "logit", which allows only a logit or the difference of two logits.
    """
    token_id = partial(word_id, model, model.need_words(), argument=f"`{name}`")

    def is_known(one: Any) -> bool:
        return is_reading(one) or callable(one) or isinstance(one, tuple | list)

    found = readings_of(value, lengths, token_id, name, unit, is_known)
    ways = "pass (position, token) or (position, token, other token)"
    if found is None:
        raise type_error(
            f"`{name}` is {quote(value)}; {ways}" + ", or a metric" * (what != "logit")
        )
    if what == "gradient" and any(one.slopes is None for one in found):
        raise type_error(
            f"`{name}` is a function, whose gradient is unknown; {ways}, pass an object with the "
            'methods value and gradient, or measure the effects exactly (patch, method="exact")'
        )
    if what == "logit" and any(one.tokens is None for one in found):
        raise type_error(
            f"`{name}` is neither a logit nor a logit difference, so it cannot be split into "
            f"contributions; {ways}"
        )
    return found


TEXTS = 4096  # The maximum number of texts in a list that `windows` yields.
MOST_POSITIONS = 2**11  # the maximum number of positions per run; a longer text runs alone


class Read(NamedTuple):
    """A text and its token ids."""

    number: int  # The index of the text.
    source: str | Array  # The text as the caller passed it: a string, or token ids.
    ids: Array  # The token ids (T,), truncated as in `trace`.


class _Reader:
    """Converts texts (strings or token ids) to ids (T,), truncated as in `trace`."""

    def __init__(self, model: Model, empty: bool) -> None:
        self.model, self.empty = model, empty
        self.truncator = model.tokenizer and model.reader.truncator(model.max_seq_length)

    def check(self, text: Any, number: int) -> str | Array:
        """Return a text or its ids. Raise an error if the model cannot read the text or the ids."""
        model, name, text = self.model, f"text {number}", as_ids(text)
        if not isinstance(text, np.ndarray | list | tuple):
            if self.truncator is None:
                raise value_error(
                    f"{name} is not a list of ids and {model.name} has no tokenizer; pass token ids"
                )
            return check_text(text, name=name)
        rows, limit = len(model.embedding.table), model.max_seq_length
        ids = ids_given([text], rows=rows, limit=limit, first=number)
        assert ids is not None
        return ids[1][0].ids

    def __call__(self, window: Sequence[str | Array], first: int) -> list[Read]:
        """Return texts with their token ids; `first` is the index of the first text."""
        strings = [text for text in window if isinstance(text, str)]
        cut = iter(self.truncator(strings) if self.truncator else ())
        texts = [
            Read(number, text, next(cut).ids if isinstance(text, str) else text)
            for number, text in enumerate(window, first)
        ]
        return [text for text in texts if len(text.ids) or self.empty]


def windows(model: Model, texts: Any, *, empty: bool = False) -> Iterator[list[Read]]:
    """Yield lists of at most `TEXTS` texts; after the last list, warn if texts were truncated.

    Args:
        model: the model, whose tokenizer splits the texts into tokens.
        texts: any iterable of texts, or a single text. A text is a string or an array of ids.
        empty: whether to yield texts that have no token.

    Raises:
        TypeError: `texts` is not iterable, or a text is neither a string nor ids.
        ValueError: an id is outside the model's vocabulary, or a text is a string and the model has
            no tokenizer.
    """
    texts = as_ids(texts)
    if isinstance(texts, str) or _is_ids(texts):
        texts = [texts]
    if not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise type_error(f"`texts` is {kind}; pass strings, or the ids of their tokens")
    read, first = _Reader(model, empty), 0
    for window in grouped(map(read.check, texts, count()), TEXTS):
        yield read(window, first)
        first += len(window)
    if read.truncator:
        read.truncator.cut.warn()


def _is_ids(texts: Any) -> bool:
    """Return whether `texts` are the ids of one text."""
    if isinstance(texts, np.ndarray):
        return texts.ndim == 1 and texts.dtype.kind in "iu"
    return isinstance(texts, list | tuple) and isinstance(next(iter(texts), None), int | np.integer)


def batches(window: Sequence[Read], most: int) -> Iterator[list[Read]]:
    """Yield batches of texts of similar length.

    A batch has at most `MOST_POSITIONS` positions, and at most `most` attention weights per head. A
    text that exceeds a limit runs alone. A text that needs padding, because its batch contains a
    longer text, is added only if the batch then has at most `MOST_POSITIONS / 2` positions.
    Otherwise, it starts a new batch.

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
        size = (1 + len(batch)) * longest
        shorter = len(text.ids) < longest and 2 * size > MOST_POSITIONS
        if batch and (shorter or size > MOST_POSITIONS or size * longest > most):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


CELLS = 2**21  # the maximum number of one layer's attention weights in memory

# A function of the layer, the position of the first query, and the weights (B, Hq, Q, K).
Use = Callable[[int, int, Array], None]


class _Enough(Exception):
    """An exception that ends a run as soon as the last layer's attention weights are computed."""


def max_cells(model: Model) -> int:
    """Return how many attention weights of one head may be in memory at once."""
    return CELLS // model.num_heads


def watch(model: Model, batch: Sequence[Array], use: Use) -> None:
    """Run texts, and pass the attention weights of each layer to a function.

    Args:
        model: a text encoder or decoder.
        batch: the token ids of each text, (T,).
        use: a function that receives a copy of the weights (B, Hq, Q, K) of each layer, in order;
            the weights are 0 in the padding. If a single text has more than `CELLS` weights in a
            layer, its queries are split: `use` receives the weights of the first queries in all
            layers, then the weights of the next queries in all layers.

    >>> import numpy as np
    >>> import qkv
    >>> model = qkv.load("random")
    >>> watch(model, [np.array([1, 2]), np.array([3])], lambda *args: print(args[2].shape))
    (2, 2, 2, 2)
    """
    longest = max(map(len, batch))
    if len(batch) == 1 and longest * longest > max_cells(model):
        _in_parts(model, batch[0], use)
        return

    def use_weights(name: str, weights: Array) -> None:
        layer = parse(name).layer
        assert layer is not None
        use(layer, 0, weights)
        if layer == model.num_layers - 1:
            raise _Enough

    record = Recorder(lambda name: short_name(name) == "pattern", use=use_weights)
    with suppress(_Enough):
        model.network.run(PackedIds.of(batch), record=record)


def _in_parts(model: Model, ids: Array, use: Use) -> None:
    """Split the queries of one long text into parts, and pass each part's weights to `use`."""
    rotated = any(layer.attn.rotary or layer.attn.q_norm for layer in model.layers)
    trace = model.trace(ids, names=["q", "k", "v", *["rot_q", "rot_k"] * rotated])
    step = max(1, max_cells(model) // len(ids))
    for first in range(0, len(ids), step):
        queries = slice(first, first + step)
        for layer in range(trace.num_layers):
            inputs = trace.attention_inputs(layer) | {"q_offset": first}
            for name in {"query", "bias"} & set(inputs):
                inputs[name] = inputs[name][..., queries, :]
            use(layer, first, attention(**inputs, return_weights=True)[1])


def sites(model: Model, names: Any, argument: str) -> list[str]:
    """Return the full names of activations. Each activation must have one row per token.

    Args:
        model: a text encoder or decoder.
        names: as for `model.trace`.
        argument: the argument name for error messages.

    Raises:
        KeyError: an activation does not exist; the message lists the nearest names.
        ValueError: an activation does not have one row per token, or `names` is empty.

    >>> import qkv
    >>> sites(qkv.load("random"), ("z", 0), "names")
    ['blocks.0.attn.hook_z']
    """
    known = model.network.hook_names
    full = list(filter(names_to_keep(known, names=names), known))
    for name in full:
        if activation(name).axes[:2] != ("text", "token"):
            raise value_error(
                f"`{argument}` has {name}, which does not have one row per "
                'token; pass activations such as ("resid_post", 0) or ("z", 0)'
            )
    if not full:
        raise value_error(f"`{argument}` is empty; pass activations, for example ('resid_post', 0)")
    return full


def one_site(model: Model, name: Any, argument: str) -> str:
    """Return the full name of one activation, which must have one row per token."""
    full = sites(model, [name], argument)
    if len(full) > 1:
        raise value_error(
            f"`{argument}` is {quote(name)}, which names {len(full)} "
            f'activations; pass one of them, such as ("{name}", 0)'
        )
    return full[0]


Rows = Iterator[tuple[list[Read], Array]]


def rows_of(model: Model, texts: Any, name: str, *, may_be_empty: bool = False) -> Rows:
    """Run batches of texts of similar length; yield each batch with the rows of an activation.

    Args:
        model: a text encoder or decoder.
        texts: any iterable of texts. A text is a string or an array of token ids.
        name: the full name of the activation.
        may_be_empty: if True and the texts contain no tokens, the function yields nothing instead
            of raising an error.

    Yields:
        `(texts, rows)`: the texts of a batch and the rows of their tokens, (tokens, n). If the
        activation has one vector per head, a row is the concatenation of these vectors.

    Raises:
        ValueError: the texts contain no tokens and `may_be_empty` is false.
    """
    empty = not may_be_empty
    for window in windows(model, texts):
        for batch in batches(window, max_cells(model)):
            rows = record_rows(model, [text.ids for text in batch], [name])[name]
            empty = False
            yield batch, rows.reshape(len(rows), -1)
    if empty:
        raise value_error("the texts contain no tokens; pass a text with tokens")


def record_rows(model: Model, ids: Sequence[Array], names: Sequence[str]) -> dict[str, Array]:
    """Return activations of texts, one row per token. Later layers of the model do not run."""
    keep = set(names).__contains__
    record = Recorder(keep)
    stop = layers_to_run(model.network.hook_names, keep)
    model.network.run(PackedIds.of(ids), record=record, stop=stop)
    lengths = np.array([len(text) for text in ids])
    there = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
    return {name: record.arrays[name][there] for name in names}
