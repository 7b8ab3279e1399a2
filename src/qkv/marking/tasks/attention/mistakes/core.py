"""The ways to get attention wrong that show without masks, heads or odd inputs."""

from __future__ import annotations

from qkv.marking.mistake import Mistake, mended, mistake
from qkv.marking.tasks.attention.mistakes.lines import CONTEXT
from qkv.marking.tasks.attention.mistakes.roles import PROJECTIONS, mixed
from qkv.marking.tasks.attention.mistakes.scores import SCALING, SCORES
from qkv.marking.tasks.attention.mistakes.slips import OF_WORDS, SLIPS
from qkv.marking.tasks.attention.mistakes.softmax import SOFTMAX
from qkv.marking.tasks.attention.steps import flip

RESULT = mended(
    CONTEXT,
    mistake(
        "weights-returned",
        "the weights are returned, not the context: the last product with the values is missing",
        "the output has a column for each key, not for each dimension of the values",
        {"weigh": lambda w, v, n: w},
        nudge="Print the shape of the output: it should have a column for each of the values'.",
    ),
    mistake(
        "weights-transposed",
        "the values are mixed with the weights transposed",
        "each output mixes values by the weights of a column, which do not sum to 1",
        {"weigh": lambda w, v, n: flip(w) @ v},
        nudge="Let all the values be 1: what should every output be?",
    ),
    mistake(
        "causal-always",
        "every query sees only the keys up to its own place, though no causal mask was asked for",
        "the first output is the first value, and nothing else",
        {"not_causal": lambda i, j: j <= i},
        remedy="apply the causal mask only where it is asked for: if is_causal: ...",
        nudge="Change the last value: does the first output change?",
        where="the mask that is put on the scores in every call",
    ),
    where="the last product, and what is returned",
)


def core(signature: str) -> tuple[Mistake, ...]:
    """The mistakes that show without masks, heads or odd inputs."""
    of_projections = () if signature == "qkv" else (*PROJECTIONS, *OF_WORDS)
    return (*SOFTMAX, *SCORES, *SCALING, *RESULT, *of_projections, *mixed(signature), *SLIPS)
