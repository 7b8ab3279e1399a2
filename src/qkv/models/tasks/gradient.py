"""Gradients of a logit or an activation with respect to activations: `Model.gradient`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv.arrays import Array, Arrays, as_array, compute_type, is_float, is_whole_number, quote
from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.layers.base import starts_of
from qkv.models._model_base import ModelBase
from qkv.models.network.batch import Batch
from qkv.models.network.transformer import Transformer
from qkv.models.run import shape_of
from qkv.models.run.check_edits import spliced_names
from qkv.models.run.edited_run import EditedRun, Spliced, is_number
from qkv.models.tasks.tracing import layers_to_run
from qkv.trace.activations import activation, parse
from qkv.trace.names import NameIndex, is_tuple_name

Name = str | tuple[Any, ...]
# Maps each name in `at` to one full name, or to a list with one full name for each layer.
FullNames = dict[Name, str | list[str]]
TokenId = Callable[[Any], int]


@public_call("gradient")
def gradient(
    model: ModelBase,
    text: Any,
    *,
    of: Any,
    at: Any = ("embed",),
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> dict[Any, Array]:
    """Return the gradient of a logit or an activation with respect to activations.

    Gradients of parameters are not computed, and layers that have no influence are not run.

    Args:
        text: one text or several, or token ids, as in `trace`.
        of: the number to differentiate. `(position, token)` is the logit of a token at a position
            of each text; `(position, token, other)` is the difference between the logits of two
            tokens. -1 is the last position. A token is an id, or a string that is one token of the
            vocabulary: " the" and "Ġthe" are the same token, and "the" is this token or the token
            without a space, if only one of them exists. `of` can also be a metric: one of
            `qkv.circuits.metrics`, or another object whose methods `value` and `gradient` take the
            logits (1, T, V) of one text. A list gives each text its own tuple or metric. With an
            array of floats (B, T, V), the number is a weighted sum of the logits in
            `trace(..., logits=True)`, and the array holds the weights. With a mapping
            `{activation: array}`, the number is a weighted sum of activations, including features
            of an `SAE` in `edit`: {("sae_acts_post", 3): array}. For a single neuron, the array is
            1 at the neuron and 0 elsewhere.
        at: the names of the activations, as in a trace, for example "embed", ("resid_post", 3) or
            "blocks.3.attn.hook_result". The name "z" without a layer means z in all layers.
        ablate: heads to ablate, as in `trace`.
        hide: words, positions and edges to mask, as in `trace`.
        edit: activations to change, as in `trace`. The gradient of an edited activation is the
            gradient of its replacement. Gradients pass through an edit whose result depends on the
            computed activation, such as an "add" record or an `SAE`. No gradient passes through an
            activation that is replaced by an array, or by a record of the kind "set", "ablate",
            "patch" or "row". `at` may name the features of an `SAE`. If a function changes an
            activation, gradients cannot pass through the function, because its derivative is
            unknown. In this case, `at` may name only the changed activation and activations of
            later layers.

    Returns:
        The gradients, keyed by the names in `at`.
        A gradient has the shape of its activation in a trace, (B, T, ...), and is 0 in padding.
        For an activation in all layers, the shape is (layers, B, T, ...), as from `trace.stack`.
        The type is float32, or float64 for a float64 model.

    Raises:
        TypeError: an argument has the wrong type, or the model is in half precision.
        ValueError: the model is an encoder-decoder model or a model of images; `of` names logits,
            but the model has no head that predicts words; a position or token does not exist; an
            array does not have the shape of its activation; the gradient needs the derivative of a
            function in `edit`; a text is empty; or `trace` does not accept the text or an edit.
        KeyError: an activation does not exist; the message suggests similar names.

    Source:
        Simonyan, Vedaldi and Zisserman 2014, "Deep Inside Convolutional Networks"; Rumelhart,
        Hinton and Williams 1986, for the backward pass.

    >>> import qkv
    >>> model = qkv.load()
    >>> trace = model.trace("The sun [MASK].")
    >>> grads = model.gradient("The sun [MASK].", of=(3, "the"), at=["embed", ("z", -1)])
    >>> all(grads[name].shape == trace[name].shape for name in ("embed", ("z", -1)))
    True
    >>> neuron = np.zeros(trace["post", 1].shape)
    >>> neuron[0, 3, 7] = 1  # of layer 1, at the mask
    >>> grads = model.gradient("The sun [MASK].", of={("post", 1): neuron}, at=[("pattern", 0)])
    >>> grads["pattern", 0].shape == trace["pattern", 0].shape
    True
    """
    network = model.network
    model.need("gradient")
    words = 0 if isinstance(of, Mapping) else model.need_words()
    check_type(model.parameters.values(), model.name)
    edits = edits_of(edit, ablate, hide)
    spliced = spliced_names(edits, network)
    names = names_of(at, network, "at", spliced)
    batch = model.read(text)

    token_id = partial(word_id, model, words)
    target = target_of(of, [len(tokens) for tokens in batch], network, token_id, spliced)
    batch, edited = model.check_edits(edits, batch)
    check_functions(edited.changes, names, network)
    return gradients(network, batch, target, names, model.with_means(edited, batch))


@dataclass(frozen=True)
class Target:
    """The number to differentiate: a weighted sum of logits and activations.

    Attributes:
        rows: (n,), the packed rows whose logits are in the sum.
        logits: a function from the logits (n, V) at `rows` to their weights (n, V).
        activations: arrays of weights, in the shapes of the activations, keyed by full name.
    """

    rows: Array
    logits: Callable[[Array], Array]
    activations: Arrays


def target_of(
    of: Any,
    lengths: Sequence[int],
    network: Transformer,
    token_id: TokenId,
    spliced: Mapping[str, int],
) -> Target:
    """Convert `gradient`'s argument `of` to a target, for texts of given lengths.

    `spliced` holds the number of features of each layer that `edit` adds, keyed by full name.

    Raises:
        TypeError: `of` has the wrong type.
        ValueError: a position does not exist, or the weights of a target do not have the shape of
            the logits or of the activation.
        KeyError: an activation does not exist; the message suggests similar names.
    """
    if not isinstance(of, Mapping):
        assert network.head is not None
        readings = readings_of(of, lengths, token_id, "of", "text")
        if readings is not None:
            return Target(*rows_and_slopes(readings, lengths), {})
        rows, array = weigh(of, lengths, network.head.steps.outputs)
        return Target(rows, lambda _: array, {})
    if not of:
        raise value_error("`of` is empty; pass an activation: {('post', 3): array}")
    weights: dict[str, Array] = {}
    for name, full in names_of(list(of), network, "of", [*spliced]).items():
        every = [full] if isinstance(full, str) else full
        longest, features = max(lengths), spliced.get(every[0], 0)
        inner = shape_of(parse(every[0]), network, longest, longest, features)
        shape = (*[len(every)] * (not isinstance(full, str)), len(lengths), *inner)
        array = as_array(of[name], name=f"of[{name!r}]")
        if not is_number(array):
            raise type_error(f"`of` has {quote(of[name])} for {name!r}; pass floats {shape}")
        if array.shape != shape:
            raise value_error(
                f"`of` has shape {array.shape} for {name!r}, whose shape is {shape} "
                "in this run: the two shapes must be the same"
            )
        parts = array.astype(network.dtype).reshape(len(every), len(lengths), *inner)
        weights |= zip(every, parts, strict=True)
    return Target(np.zeros(0, int), lambda logits: logits, weights)


def gradients(
    network: Transformer, batch: Batch, target: Target, names: FullNames, edited: EditedRun
) -> dict[Name, Array]:
    """Return the target's gradient with respect to each activation.

    Layers that have no influence are not run, and gradients for parameters are not computed.

    Args:
        network: the network.
        batch: the texts.
        target: the number to differentiate.
        names: maps each name in the result to the activation's full name, or to its full names in
            all layers.
        edited: the edits of the run.
    """
    wanted = {
        name for full in names.values() for name in ([full] if isinstance(full, str) else full)
    }
    stop = None
    if not len(target.rows):
        counts = {*wanted, *target.activations}
        known = {*network.hook_names, *counts}  # `counts` may name activations of spliced layers
        stop = layers_to_run(list(known), counts.__contains__)
        edited = edited.below(stop)
    rows, saved = network.run(batch, edited, stop=stop, save=True)
    record = edited.gradient_recorder(batch.layout, wanted.__contains__, target.activations)
    grad = np.zeros_like(rows)
    if len(target.rows):
        assert network.head is not None
        at = target.rows
        logits, head_saved = network.head.training_forward(rows[at], np.arange(len(at) + 1))
        up = target.logits(logits).astype(rows.dtype)
        grad[at] = network.head.backward(up, head_saved, record=record).x
    network.backward(grad, saved, record=record)
    grads = record.arrays
    return {
        name: grads[full] if isinstance(full, str) else np.stack([grads[name] for name in full])
        for name, full in names.items()
    }


def weigh(of: Any, lengths: Sequence[int], words: int) -> tuple[Array, Array]:
    """Return `(rows, weights)`: the rows with logits, and the weights (n, V) of the array `of`.

    >>> weights = np.arange(12.0).reshape(2, 2, 3)
    >>> weigh(weights, [2, 1], 3)[1].tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    """
    longest = max(lengths)
    shape = (len(lengths), longest, words)
    array = as_array(of, name="of") if hasattr(of, "__array__") else np.empty(0, bool)
    if not is_float(array.dtype):
        raise type_error(
            f"`of` is {quote(of)}; pass (position, token), (position, token, other "
            f"token), a metric, {{activation: array}}, or an array of floats {shape} with the "
            "weight of each logit"
        )
    if array.shape != shape:
        raise value_error(
            f"`of` has shape {array.shape} and the logits have {shape}: they must be the same"
        )
    real = np.arange(longest) < np.array(lengths)[:, None]
    return np.arange(sum(lengths)), array[real]


class Reading(NamedTuple):
    """A number that is computed from the logits of one text.

    Attributes:
        of: a function. If `position` is not None, it turns logits (..., V) at this position into
            numbers (...). Otherwise, it turns the logits (1, T, V) of a text into one number.
        slopes: the gradient of `of`, which has the shape of the logits; None if it is not known.
        position: the only position whose logits count, or None.
        tokens: the ids of the only tokens whose logits count, or None. If `tokens` is given, `of`
            and `slopes` take the logits (..., n) of these tokens instead of (..., V).

    >>> reading = logit_of(0, [2, 0])
    >>> float(reading.value(np.array([1.0, 0.0, 4.0]))), reading.slope(np.zeros(3)).tolist()
    (3.0, [-1.0, 0.0, 1.0])
    """

    of: Callable[[Array], Any]
    slopes: Callable[[Array], Array] | None = None
    position: int | None = None
    tokens: list[int] | None = None

    def value(self, logits: Array) -> Array:
        """Return the number for the logits (..., V)."""
        return np.asarray(self.of(logits if self.tokens is None else logits[..., self.tokens]))

    def slope(self, logits: Array) -> Array:
        """Return the gradient with respect to the logits (..., V), in their shape."""
        assert self.slopes is not None
        if self.tokens is None:
            return self.slopes(logits)
        slope = np.zeros(logits.shape)
        for token, part in zip(
            self.tokens, np.moveaxis(self.slopes(logits[..., self.tokens]), -1, 0), strict=True
        ):
            slope[..., token] += part
        return slope


def logit_of(position: int, tokens: list[int]) -> Reading:
    """Return the reading of one logit, or of the first of several logits minus the others."""
    signs = np.array([1.0, *[-1.0] * (len(tokens) - 1)])

    def of(logits: Array) -> Array:
        wide = logits.astype(np.float64)
        return np.asarray(wide[..., 0] - wide[..., 1:].sum(-1))

    return Reading(of, lambda logits: np.broadcast_to(signs, logits.shape), position, tokens)


def is_metric(value: Any) -> bool:
    """Return whether an object is a metric: it has the methods `value` and `gradient`."""
    return callable(getattr(value, "value", None)) and callable(getattr(value, "gradient", None))


def is_reading(value: Any) -> bool:
    """Return whether a value describes a number computed from one text's logits."""
    return isinstance(value, Reading) or is_metric(value) or _is_logit(value)


def _is_logit(value: Any) -> bool:
    sized = isinstance(value, tuple | list) and len(value) in (2, 3)
    return sized and is_whole_number(value[0])


def readings_of(
    of: Any,
    lengths: Sequence[int],
    token_id: TokenId,
    name: str,
    unit: str,
    known: Callable[[Any], bool] = is_reading,
) -> list[Reading] | None:
    """Return the reading of each text, or None if `of` does not describe readings.

    Args:
        of: one value for all texts, or a list with one value for each text. A value is
            `(position, token)`, `(position, token, other)`, a metric, or a reading.
        lengths: the number of tokens of each text.
        token_id: a function that returns the id of a token.
        name: the name of the argument in error messages.
        unit: the word for a text in error messages, "text", or "pair" for pairs of texts.
        known: a function that returns whether a value describes a reading. It may also accept
            functions from logits (1, T, V) to a number.

    >>> [reading.position for reading in readings_of((-1, 7), [4, 2], int, "of", "text")]
    [3, 1]
    """
    count = len(lengths)
    several = isinstance(of, list) and bool(of) and all(map(known, of)) and not _is_logit(of)
    if several and len(of) != count:
        raise value_error(
            f"`{name}` is a list of length {len(of)}, but there are {count} texts; pass one value "
            "for all texts, or a list with one value for each text"
        )
    if not several and not known(of):
        return None
    if hasattr(of, "each"):
        return list(of.each(lengths, token_id, name))
    argument = f"`{name}`"
    return [
        _reading(one, length, token_id, f"{argument} of {unit} {number}" if count > 1 else argument)
        for number, (one, length) in enumerate(
            zip(of if several else [of] * count, lengths, strict=True)
        )
    ]


def _reading(one: Any, length: int, token_id: TokenId, argument: str) -> Reading:
    """Return the reading that a single value describes, for a text of `length` tokens."""
    if isinstance(one, Reading):
        return one
    if _is_logit(one):
        position = checked_position(one[0], length, argument=argument)
        return logit_of(position, [token_id(token) for token in one[1:]])
    if hasattr(one, "each"):
        alone: list[Reading] = one.each([length], token_id, argument.strip("`"))
        return alone[0]
    if not is_metric(one):
        if not callable(one):
            raise type_error(
                f"{argument} is {quote(one)}; pass (position, token) or (position, token, other "
                "token)"
            )
        return Reading(partial(_number, one, argument))

    def slopes(logits: Array) -> Array:
        slope = np.asarray(one.gradient(logits))
        if slope.shape != logits.shape or not is_number(slope):
            raise value_error(
                f"{argument} returned a gradient of shape {slope.shape} and dtype {slope.dtype} "
                f"for logits of shape {logits.shape}: return floats of the same shape"
            )
        return slope

    return Reading(partial(_number, one.value, argument), slopes)


def _number(function: Callable[[Array], Any], argument: str, logits: Array) -> float:
    """Apply a metric's function to logits (1, T, V), and check that it returns a number."""
    number = np.asarray(function(logits))
    if number.shape:
        raise value_error(
            f"{argument} returned an array {number.shape} for logits {logits.shape}: return one "
            "number"
        )
    if number.dtype.kind not in "fiub":
        raise type_error(f"{argument} returned {quote(number.item())}: return one number")
    return float(number)


def rows_and_slopes(readings: Sequence[Reading], lengths: Sequence[int]) -> tuple[Array, Any]:
    """Return the packed rows that the readings of all texts need, and the readings' gradients."""
    starts = starts_of(lengths)
    parts = [
        np.arange(start, start + length) if one.position is None else [start + one.position]
        for one, start, length in zip(readings, starts[:-1], lengths, strict=True)
    ]
    ends = np.cumsum([len(part) for part in parts])[:-1]

    def weights(logits: Array) -> Array:
        each = zip(readings, np.split(logits, ends), strict=True)
        return np.concatenate(
            [one.slope(rows[None] if one.position is None else rows).reshape(rows.shape)
             for one, rows in each]
        )  # fmt: skip

    return np.concatenate(parts), weights


def checked_position(
    position: Any, length: int, *, which: str = "the text", argument: str = "`of`"
) -> int:
    """Return a position in a text of `length` tokens, counted from 0.

    Negative positions count from the end. In error messages, `which` names the text, and `argument`
    names the argument.

    Raises:
        ValueError: the position does not exist.

    >>> checked_position(-1, 3)
    2
    """
    if not -length <= position < length:
        raise value_error(
            f"{argument} has position {position}, but {which} has {length} "
            f"tokens; pass {-length} to {length - 1}"
        )
    return int(position) % length


def word_id(model: ModelBase, words: int, word: Any, *, argument: str = "`of`") -> int:
    """Return the id of a token; `word` is the token's id, or a string that is one token.

    Every id must be below `words`. " the" and "Ġthe" name the same token; "the" names this token or
    the token without a space, if only one of them exists. In error messages, `argument` names the
    argument.

    Raises:
        TypeError: `word` is neither an integer nor a string.
        ValueError: the id does not exist, or the string is not one token or names two tokens.
    """
    if is_whole_number(word):
        if not 0 <= word < words:
            raise value_error(f"there is no token {word}: the ids run from 0 to {words - 1}")
        return int(word)
    if not isinstance(word, str):
        raise type_error(f"{argument} has the token {quote(word)}; pass an id, or a string")
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise value_error(
            f"{argument} has the token {word!r:.60}, but {model.name} has no "
            "tokenizer; pass the token's id"
        )
    found = tokenizer.entries(word)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        ids = " and ".join(map(str, found.values()))
        raise value_error(
            f"{argument} is {word!r:.60}, but {model.name} has both {word!r:.60} and "
            f"{f' {word}'!r:.60} (ids {ids}); pass {f' {word}'!r:.60}, or an id"
        )
    names = [tokenizer.token(int(token)) for token in tokenizer.ids_batch([word])[0]]
    cut = "not in the vocabulary" if tokenizer.unknown in names else f"{len(names)} tokens"
    spelled = f" ({' '.join(map(str, names))})" if names else ""
    raise value_error(
        f"{word!r:.60} is {cut} of {model.name}{spelled:.200}; pass a string that is one "
        "token, or an id"
    )


def names_of(
    at: Any, network: Transformer, argument: str, spliced: Iterable[str] = ()
) -> FullNames:
    """Map each name in `at` to the activation's full name, or to a list of full names.

    A name without a layer, such as "z", can stand for an activation that each layer has. Such a
    name is mapped to a list of full names, one per layer. In error messages, `argument` is the name
    of the argument. `spliced` holds the names of the activations inside layers, such as an `SAE`,
    that an edit adds to the model.

    Raises:
        TypeError: a name is neither a string nor a tuple.
        ValueError: an activation has no gradient; the message lists activations that have a
            gradient.
        KeyError: an activation does not exist; the message suggests similar names.
    """
    single = isinstance(at, str) or is_tuple_name(at)
    if not isinstance(at, Iterable):
        names = "['embed', ('resid_post', 3)]"
        raise type_error(f"`{argument}` is {quote(at)}; pass names, such as {names}")
    known = NameIndex(
        [*(name for name in network.hook_names if activation(name).editable), *spliced]
    )
    full_names: FullNames = {}
    for name in [at] if single else at:
        if not isinstance(name, str | tuple):
            raise type_error(
                f"`{argument}` contains {quote(name)}; pass names, such as ('resid_post', 3)"
            )
        full, every = known.one(name), known.find(name)
        if not every or not (full or _is_of_each_layer(name, every, network)):
            raise _unknown(name, network, known)
        full_names[name] = full or every
    return full_names


def _is_of_each_layer(name: Name, every: Sequence[str], network: Transformer) -> bool:
    """Return whether `every` has an activation for each layer that a name stands for."""
    names_layers = isinstance(name, tuple) and name[1] is not None
    return names_layers or len(every) == len(network.layers)


def _unknown(name: Name, network: Transformer, known: NameIndex) -> Exception:
    """Return the error for an activation that does not exist or has no gradient."""
    if NameIndex(network.hook_names).find(name) and not known.find(name):
        every = dict.fromkeys(parse(full).local for full in known.full)
        return value_error(
            f"{name!r} has no gradient, because a run only records it and never reads it; pass "
            f"{', '.join(every)}"
        )
    return invalid(KeyError, f"{known.why_not(name)}")


def check_functions(edit: Mapping[str, Any], names: FullNames, network: Transformer) -> None:
    """Raise an error if a gradient may need the derivative of a function that edits an activation.

    The derivative of such a function is not known.

    Args:
        edit: the replacements of activations, keyed by full name.
        names: as in `gradients`.
        network: the network.
    """

    def depth(full: str) -> int:
        at = parse(full)
        if at.layer is not None:
            return at.layer
        return len(network.layers) if at.is_last else -1 - (full in network.embedding.hooks[:-1])

    functions = (
        name
        for name, change in edit.items()
        if callable(change) and not isinstance(change, Spliced)
    )
    for name in functions:
        for key, full in names.items():
            for other in [full] if isinstance(full, str) else full:
                beside = depth(other) == depth(name) > -2 and other != name
                if beside or depth(other) < depth(name):
                    raise value_error(
                        f"the gradient at {key!r} may depend on the derivative of the "
                        f"function that edits {name}, but this derivative is not known: edit with "
                        "arrays or records, or pass only activations of later layers in `at`"
                    )


def check_type(parameters: Iterable[Array], model: str) -> None:
    """Raise an error if a model is in half precision, which the backward pass does not support."""
    for array in parameters:
        if compute_type(array.dtype) != array.dtype:
            raise type_error(
                f"{model} is {array.dtype}, but gradients need float32 or float64: load "
                "the model with qkv.load(..., dtype=np.float32)"
            )
