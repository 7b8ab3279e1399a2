"""The weights of a file used as (in, out), which they are not."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.arrays import Array
from qkv.marking.mistake import Steps, mistake

_EACH = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_SOME = (
    ("q_proj", "k_proj", "v_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("gate_proj", "up_proj"),
    ("gate_proj", "up_proj", "down_proj"),
    _EACH,
)


def _as_they_are(names: Sequence[str]) -> Steps:
    """Multiply with these as they are in the file, and with the others transposed."""

    def linear(x: Array, weight: Array, name: str) -> Array:
        out: Array = x @ (weight if name in names else weight.T)
        return out

    return {"linear": linear}


TRANSPOSED = (
    mistake(
        "decoder-transposed",
        "a weight is used as (in, out); the weights of these files are (out, in)",
        "the product fails where the weight is not square, and is silently wrong where it is",
        *(_as_they_are((name,)) for name in _EACH),
        *(_as_they_are(names) for names in _SOME),
        {"head": lambda x, table: x @ table},
        remedy="q = x @ q_proj.T  # (T, in) @ (in, out); logits = x @ embed_tokens.T",
        nudge="Print the shapes of both sides of each product with a weight of the file.",
        where="the products with weights of the file",
    ),
)
