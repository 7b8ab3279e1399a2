"""What the logits of a cross-encoder go through, as its files or somebody says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files.sentence import Sentence
from qkv.models.files.sentence_files import ACTIVATIONS
from qkv.models.network.finishing import activated

# Where config.json says what follows the logits: before sentence-transformers 4 by the second key.
_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_IDENTITY = "torch.nn.modules.linear.Identity"

Activation = str | Callable[[Array], Array] | None


def applied(activation: Activation, logits: Array, call: str) -> Array:
    """What follows logits (n, C): as many numbers.

    Raises:
        TypeError: a function gives something else.
    """
    if activation is None:
        return logits
    if isinstance(activation, str):
        return activated(logits, activation)
    found = activation(logits)
    if not isinstance(found, np.ndarray) or found.shape != logits.shape:
        about = found.shape if isinstance(found, np.ndarray) else type(found).__name__
        raise TypeError(
            f"{call}: activation_fn gives {about}: it must give an array {logits.shape}, as it gets"
        )
    return found


def given_activation(function: Any, call: str) -> Activation:
    """What somebody wants behind the logits: a module of torch that we know, or a function.

    Raises:
        TypeError: it is neither.
    """
    kind = type(function)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    if not callable(function) or kind.__module__.startswith("torch."):
        raise TypeError(
            f"{call}: activation_fn is {name}: give a function of an array, or one of torch.nn's "
            f"{', '.join(dict.fromkeys(one.rpartition('.')[2] for one in ACTIVATIONS))}"
        )
    made: Callable[[Array], Array] = function
    return made


def activation_of(
    sentence: Sentence, config: Mapping[str, Any], name: str, classes: int, call: str
) -> str | None:
    """What follows the logits of a cross-encoder, as its files say it.

    Else a sigmoid where there is one class, and nothing where there are several. As in
    sentence-transformers, what config_sentence_transformers.json says comes first, and a function
    that is not torch's is not run.

    Raises:
        ValueError: it is none that we know.
    """
    inner = config.get(_KEYS[0])
    older = [inner.get("activation_fn") if isinstance(inner, Mapping) else None]
    said = [sentence.activation, *older, config.get(_KEYS[1])]
    own = [one for one in said if isinstance(one, str) and one.startswith("torch.")]
    function = own[0] if own else _SIGMOID if classes == 1 else _IDENTITY
    if function not in ACTIVATIONS:
        raise ValueError(
            f"{call}: what follows the logits of {name} is {function:.80}: qkv knows "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[function]
