"""What is asked of a model, a trace or a logit, checked before anything is computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, is_whole_number, shown
from qkv.models.model import Model, Seq2SeqModel
from qkv.models.tasks.gradient import checked_place, word_id
from qkv.models.vision import VisionModel
from qkv.trace import Trace


class Logit(NamedTuple):
    """A logit at a place, or how far it is above another.

    Attributes:
        place: counted from 0.
        tokens: the ids, one or two.

    >>> Logit(0, [2, 0]).of(np.array([1.0, 0.0, 4.0])).item()
    3.0
    """

    place: int
    tokens: list[int]

    def of(self, logits: Array) -> Array:
        """From logits (..., V) at the place to the number asked for (...), float64."""
        chosen = logits[..., self.tokens].astype(np.float64)
        found: Array = chosen[..., 0] - chosen[..., 1:].sum(-1)
        return found


def check_model(model: Any, call: str) -> Model:
    """The model, if its queries and keys are the tokens of one text."""
    if not isinstance(model, Model):
        kind = type(model).__name__
        raise TypeError(f"{call}: model is {kind}: give what qkv.load(name) gives")
    does = (
        "reads one text and writes another"
        if isinstance(model, Seq2SeqModel)
        else "looks at images"
        if isinstance(model, VisionModel)
        else ""
    )
    if does:
        raise ValueError(f"{call}: {model.name} {does}: load an encoder or a decoder of text")
    return model


def check_words(model: Any, call: str) -> Model:
    """The same, if it gives logits over words."""
    found = check_model(model, call)
    head = found.design.head
    if head is None or head.pool is not None or head.classes:
        of = "vectors" if head is not None and head.embeds else "classes"
        has = "no head" if head is None else f"a head for {of}"
        raise ValueError(
            f"{call}: {found.name} has {has}, so it gives no logits over words: load a model with "
            "its head (architectures in its config.json says ...ForMaskedLM or ...ForCausalLM)"
        )
    return found


def check_trace(
    trace: Any, call: str, model: Model | None = None, *, several: bool = False
) -> Trace:
    """The trace, if it is of one text, or of `several`, and of vectors of this model's size."""
    if not isinstance(trace, Trace):
        kind = type(trace).__name__
        raise TypeError(f"{call}: trace is {kind}: give what model.trace(text) gives")
    if len(trace) > 1 and not several:
        raise ValueError(f"{call}: trace holds {len(trace)} texts: take one, as trace[0]")
    if model is not None and trace.num_layers != model.num_layers:
        raise ValueError(
            f"{call}: trace has {trace.num_layers} layers and {model.name} {model.num_layers}: "
            "trace the text with this model"
        )
    return trace


def kept(trace: Trace, call: str, *names: Any) -> Array:
    """The array of the first of these names that one text's trace has, without the axis of texts.

    Raises:
        KeyError: it has none of them; the message says what to trace.
    """
    found: Array = kept_of_all(trace, call, *names)[0]
    return found


def kept_of_all(trace: Trace, call: str, *names: Any) -> Array:
    """Like `kept`, for all texts of a trace, (B, ...)."""
    for name in names:
        if name in trace:
            found: Array = trace[name]
            return found
    short = names[0] if isinstance(names[0], str) else names[0][0]
    raise KeyError(
        f"{call}: trace has no {shown(names[0])}: trace all, or with {short!r} among names="
    )


def for_each(given: Any, count: int, call: str, name: str) -> list[Any]:
    """What each of several texts is asked for: one thing for all, or a list with one for each.

    >>> for_each((-1, 7), 2, "patch", "metric"), for_each([(-1, 7), (3, 2)], 2, "patch", "metric")
    ([(-1, 7), (-1, 7)], [(-1, 7), (3, 2)])
    """
    if not isinstance(given, list) or not all(
        callable(one) or isinstance(one, tuple | list) for one in given
    ):
        return [given] * count
    if len(given) != count:
        raise ValueError(
            f"{call}: {name} is a list of {len(given)} and the texts are {count}: give one for "
            "all, or a list with one for each"
        )
    return given


def check_logit(given: Any, model: Model, length: int, call: str, name: str) -> Logit:
    """The logit that `(place, token)` or `(place, token, other token)` stands for.

    Args:
        given: it; a place may be negative, a token a string that is one token.
        model: with a head over words.
        length: T.
        call: who is named in an error.
        name: of the argument.
    """
    parts = tuple(given) if isinstance(given, tuple | list) else ()
    if len(parts) not in (2, 3) or not is_whole_number(parts[0]):
        raise TypeError(
            f"{call}: {name} is {shown(given)}: give (place, token) or (place, token, other token)"
        )
    place = checked_place(parts[0], length, call=call, given=name)
    head = model.design.head
    assert head is not None
    tokens = [
        word_id(
            token,
            head.outputs,
            model.tokenizer,
            model.prepared,
            model.name,
            call=call,
            given=name,
        )
        for token in parts[1:]
    ]
    return Logit(place, tokens)
