"""Metrics with gradients: logit differences, log probabilities, losses and KL divergences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, is_float, is_whole_number, quote
from qkv.models.tasks.gradient import Reading, checked_position, logit_of
from qkv.models.tasks.predict import log_softmax

IGNORED = -100  # a target that is ignored, as in torch
TokenId = Callable[[Any], int]


@dataclass(frozen=True, eq=False)
class Metric:
    """A number that is computed from logits, and its gradient.

    `patch`, `edges`, `Model.gradient` and other functions accept one metric for all texts. A metric
    with lists has one value for each text, or for each pair of texts.

    Attributes:
        name: the name of the function that made the metric.
        parts: the arguments of the function. In a list, each text has its own value.
        read: a function that takes a text's values, its number of tokens, and a function that turns
            tokens into ids, and that returns the text's `Reading`.

    >>> metric = logit_difference(2, 0)
    >>> logits = np.array([[[0.0, 0.0, 0.0], [1.0, 0.0, 4.0]]])  # (1, T, V)
    >>> metric.value(logits), metric.gradient(logits)[0, -1].tolist()
    (3.0, [-1.0, 0.0, 1.0])
    """

    name: str
    parts: dict[str, Any]
    read: Callable[..., Reading]

    def __repr__(self) -> str:
        return f"metrics.{self.name}({', '.join(self.parts)})"

    def each(self, lengths: Sequence[int], token_id: TokenId, argument: str) -> list[Reading]:
        """Return the reading of each text.

        Args:
            lengths: the number of tokens in each text.
            token_id: a function that returns the id of a token.
            argument: the name of the argument in error messages.
        """
        count = len(lengths)
        for part, value in self.parts.items():
            if isinstance(value, list) and len(value) != count:
                raise value_error(
                    f"`{argument}` has {len(value)} values of `{part}` for {count} texts; pass one "
                    f"value of `{part}`, or a list with one value for each text or pair"
                )
        return [
            self.read(
                length=length,
                token_id=token_id,
                argument=f"`{argument}`" + f" of text {number}" * (count > 1),
                **{
                    part: value[number] if isinstance(value, list) else value
                    for part, value in self.parts.items()
                },
            )
            for number, length in enumerate(lengths)
        ]

    @public_call("value")
    def value(self, logits: Array) -> float:
        """Return the metric of logits (B, T, V), the mean over B texts without padding."""
        each = self._each(logits)
        return float(np.mean([one.value(_rows(one, x)) for one, x in each]))

    @public_call("gradient")
    def gradient(self, logits: Array) -> Array:
        """Return the gradient of `value` with respect to the logits (B, T, V), in their shape."""
        slopes = np.zeros(np.shape(logits))
        for slope, (one, x) in zip(slopes, self._each(logits), strict=True):
            if one.position is None:
                slope[:] = one.slope(x[None])[0]
            else:
                slope[one.position] = one.slope(x[one.position])
        return slopes / len(slopes)

    def _each(self, logits: Array) -> list[tuple[Reading, Array]]:
        array = np.asarray(logits)
        if array.ndim != 3 or not is_float(array.dtype):
            raise type_error(
                f"`logits` is an array of {array.dtype} with shape {array.shape}; pass floats "
                "(B, T, V)"
            )

        def token_id(token: Any) -> int:
            if not is_whole_number(token) or not 0 <= token < array.shape[-1]:
                raise value_error(
                    f"{self.name} has the token {quote(token)}; pass token ids from 0 to "
                    f"{array.shape[-1] - 1}, because logits alone have no tokenizer"
                )
            return int(token)

        readings = self.each([array.shape[1]] * len(array), token_id, self.name)
        return list(zip(readings, array, strict=True))


def _rows(reading: Reading, logits: Array) -> Array:
    """Return the logits that a reading uses, from the logits (T, V) of a text."""
    return logits[None] if reading.position is None else logits[reading.position]


@public_call("logit_difference")
def logit_difference(answers: Any, others: Any, *, position: Any = -1) -> Metric:
    """Return the metric: the logit of an answer minus the logit of another token.

    Args:
        answers: a token, as an id or a one-token string, or a list with a token for each text.
        others: like `answers`.
        position: the position of the logits, or a list with a position for each text. Negative
            positions count from the end.

    >>> logit_difference(2, 0).value(np.array([[[1.0, 0.0, 4.0]]]))
    3.0
    """

    def read(
        answers: Any, others: Any, positions: Any, length: int, token_id: TokenId, argument: str
    ) -> Reading:
        at = checked_position(positions, length, argument=argument)
        return logit_of(at, [token_id(answers), token_id(others)])

    parts = {"answers": answers, "others": others, "positions": _positions(position)}
    return Metric("logit_difference", parts, read)


@public_call("log_probability")
def log_probability(answers: Any, *, position: Any = -1) -> Metric:
    """Return the metric: the logarithm of the probability of an answer.

    Args:
        answers: as for `logit_difference`.
        position: as for `logit_difference`.

    >>> round(log_probability(0).value(np.zeros((1, 5, 4))), 4)  # log(1 / 4)
    -1.3863
    """

    def read(
        answers: Any, positions: Any, length: int, token_id: TokenId, argument: str
    ) -> Reading:
        at, token = checked_position(positions, length, argument=argument), token_id(answers)

        def slopes(logits: Array) -> Array:
            slope = -np.exp(log_softmax(logits))
            slope[..., token] += 1
            return slope

        return Reading(lambda logits: log_softmax(logits)[..., token], slopes, at)

    parts = {"answers": answers, "positions": _positions(position)}
    return Metric("log_probability", parts, read)


@public_call("loss")
def loss(targets: Any) -> Metric:
    """Return the metric: the mean of -log(probability) over the targets of a text.

    Args:
        targets: (T,), the id of the target of each position, for example of the next token; -100
            for positions that do not count. Or a list with such an array for each text.

    >>> round(loss(np.array([0, 3, -100])).value(np.zeros((1, 3, 4))), 4)  # -log(1 / 4)
    1.3863
    """

    def read(targets: Array, length: int, token_id: TokenId, argument: str) -> Reading:
        if len(targets) != length:
            raise value_error(
                f"{argument} has {len(targets)} targets and the text has {length} tokens; pass one "
                "target for each token, and -100 for positions that do not count"
            )
        at = np.flatnonzero(targets != IGNORED)
        ids = np.array([token_id(int(token)) for token in targets[at]], int)

        def of(logits: Array) -> float:
            return float(-log_softmax(logits[0, at])[range(len(at)), ids].mean())

        def slopes(logits: Array) -> Array:
            slope = np.zeros(logits.shape)
            slope[0, at] = np.exp(log_softmax(logits[0, at]))
            slope[0, at, ids] -= 1
            return slope / len(at)

        return Reading(of, slopes)

    arrays = [_targets(one) for one in _list(targets, 1)]
    return Metric("loss", {"targets": arrays if _is_listed(targets, 1) else arrays[0]}, read)


@public_call("kl")
def kl(reference: Any, *, position: Any = None) -> Metric:
    """Return the metric: the Kullback-Leibler divergence between a reference and a run.

    The metric is the sum of `p * log(p / q)` over the tokens. `p` is the softmax of the reference
    logits, and `q` is the softmax of the logits of the run.

    Args:
        reference: the logits (T, V) or (1, T, V) of another run, such as the clean run; or a list
            or array (B, T, V) with such logits for each text.
        position: the position to compare, or a list with a position for each text. None means the
            mean over all positions.

    >>> kl(np.zeros((1, 2, 4))).value(np.zeros((1, 2, 4)))
    0.0
    """

    def read(
        logits: Array, positions: Any, length: int, token_id: TokenId, argument: str
    ) -> Reading:
        if len(logits) != length:
            raise value_error(
                f"{argument} has reference logits of {len(logits)} tokens and the text has "
                f"{length}; pass logits (T, V) of a run with {length} tokens"
            )
        if positions is None:
            rows, at = logits, None
        else:
            at = checked_position(positions, length, argument=argument)
            rows = logits[at]
        wanted = log_softmax(rows)
        shares = np.exp(wanted)

        def of(found: Array) -> Array:
            with np.errstate(invalid="ignore"):  # 0 * (-inf - x) is NaN
                terms = np.where(shares == 0, 0, shares * (wanted - log_softmax(found)))
            divergence = terms.sum(-1)
            return np.asarray(divergence.mean() if at is None else divergence)

        def slopes(found: Array) -> Array:
            slope: Array = np.exp(log_softmax(found)) - shares
            return slope / (length if at is None else 1)

        return Reading(of, slopes, at)

    arrays = [_reference(one) for one in _list(reference, 2)]
    several = _is_listed(reference, 2) and len(arrays) > 1
    parts = {"logits": arrays if several else arrays[0], "positions": _positions(position)}
    return Metric("kl", parts, read)


def _positions(position: Any) -> Any:
    """Check that positions are whole numbers, or None."""
    for one in position if isinstance(position, list) else [position]:
        if one is not None and not is_whole_number(one):
            raise type_error(f"`position` is {quote(position)}; pass a whole number, or a list")
    return position


def _is_listed(values: Any, axes: int) -> bool:
    """Return whether `values` lists an array with `axes` axes for each text."""
    if isinstance(values, list | tuple):
        return len(values) > 0 and np.ndim(values[0]) > 0
    return np.ndim(values) > axes


def _list(values: Any, axes: int) -> list[Any]:
    return list(values) if _is_listed(values, axes) else [values]


def _targets(values: Any) -> Array:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not (array != IGNORED).any():
        raise type_error(
            f"`targets` has {quote(values)}; pass the target ids as an array (T,), with at least "
            "one id other than -100"
        )
    return array


def _reference(values: Any) -> Array:
    array = np.asarray(values)
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.ndim != 2 or not is_float(array.dtype):
        raise type_error(
            f"`reference` has an array of {array.dtype} with shape {array.shape}; pass the "
            "logits (T, V) of "
            "each text"
        )
    return array
