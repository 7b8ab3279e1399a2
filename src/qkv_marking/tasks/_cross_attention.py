"""The task `cross-attention`: queries come from one text, keys and values from another text.

Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.3 (encoder-decoder attention).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv_marking._engine import Group, Marking, generator, per_seed
from qkv_marking._findings import Symptom, of_mistake
from qkv_marking._mistake import Function, Steps, fill_hints
from qkv_marking._outcome import Outcome, options_of
from qkv_marking.tasks._task import Computation, Phrases, StepwiseMarking, make_task
from qkv_marking.tasks.attention.steps import RIGHT as ATTENTION, Trial, compute as attention, same
from qkv_marking.tasks.mistakes.formula import BATCHES as ATTENTION_BATCHES, LARGE, ONE_TEXT, core
from qkv_marking.tasks.mistakes.masks import HIDING, MASK, TEXTS as TEXTS_OF_A_BATCH

_TEXTS = Phrases(__name__)

# the computation, step by step


@dataclass(frozen=True)
class TwoTexts:
    """One call: x (..., L, D), context (..., S, D), parameters, and a mask of keys (..., S)."""

    x: Array
    context: Array
    parameters: Arrays
    mask: Array

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        return {"x": self.x, "context": self.context, **self.parameters, "mask": self.mask}


def attend(case: Trial, texts: tuple[Array, Array, Array], steps: Steps) -> Array:
    """Compute attention (..., L, dv) with queries, keys and values from three texts.

    Args:
        case: the first text as `x`, the projections, the masks, and `w_o`, if any.
        texts: the word vectors for the queries, for the keys and for the values.
        steps: the steps that compute attention.
    """

    def project(_: Array, *matrices: Array) -> list[Array]:
        projections = (steps["project"](text, *matrices) for text in texts)
        return [projected[n] for n, projected in enumerate(projections)]

    return attention(case, {**steps, "project": project})


def compute(case: TwoTexts, steps: Steps) -> Array:
    """Return the output (..., L, dv) of attention from x to the context."""
    texts = steps["texts"](case.x, case.context)
    arrays = {"x": texts[0], **case.parameters}
    return attend(Trial(arrays, mask=steps["keys"](case.mask)), texts, steps)


def of_keys(mask: Array) -> Array:
    """Reshape a key mask (..., S) to (..., 1, S), so that all queries share it."""
    return mask[..., None, :]


RIGHT: Steps = {
    **ATTENTION,
    "texts": lambda x, context: (x, context, context),
    "keys": of_keys,
    "blank": same,  # no case has a fully masked row
}

# the mistakes

TEXTS = _TEXTS.mistakes(
    {
        "cross-keys-from-x": [lambda x, context: (x, x, context)],
        "cross-values-from-x": [lambda x, context: (x, context, x)],
        "cross-self": [lambda x, context: (x, x, x)],
        "cross-queries-from-context": [lambda x, context: (context, context, context)],
        "cross-texts-exchanged": [lambda x, context: (context, x, x)],
    },
    step="texts",
)
CAUSAL = _TEXTS.mistakes(
    {
        "cross-causal": [
            lambda i, j: j <= i,
            lambda i, j: j <= i + j.max() - i.max(),  # the last word sees the whole context
        ]
    },
    step="not_causal",
)
_INVERTED, _IGNORED = MASK[:2]
_LOW: Steps = {"mask": np.logical_not, "hide": lambda s, visible: np.where(visible, s, -1e9)}
# _LOW inverts the mask and uses -1e9, because -inf would give nan in fully masked rows
INVERTED = replace(_INVERTED, variants=(*_INVERTED.variants, _LOW))
BATCHES = (
    _TEXTS.mistake("cross-mask-on-batch", {"keys": same}),
    *TEXTS_OF_A_BATCH,
    *ATTENTION_BATCHES,
)

# In a decoder block, the marker reports these mistakes only if the block has no second mistake.
# If the marker combined one of these mistakes with a second mistake, such a pair would match the
# results of too many wrong functions by chance.
_ROLES = ("query-key-swapped", "key-as-value", "projections-swapped", "projections-shared")
CORE = [known for known in core("x,w_q,w_k,w_v") if known.key != "causal-always"]
CORE_OF_TWO = [replace(known, alone=known.alone or known.key in _ROLES) for known in CORE]
KNOWN = (
    *TEXTS,
    *CAUSAL,
    *fill_hints(
        "scores = np.where(mask[..., None, :], scores, -np.inf)  # (..., L, S)",
        INVERTED,
        _IGNORED,
        *HIDING,
    ),
    _TEXTS.mistake("cross-mask-on-queries", {"keys": lambda mask: mask[..., :, None]}),
    *CORE,
)

# wrong projections in a decoder block: self-attention and cross-attention swap their projections,
# or both use the same projections
EXCHANGED: tuple[Function, ...] = (
    lambda first, second: (second, first),
    lambda first, second: (first, first),
    lambda first, second: (second, second),
)

# the tests


def masks_of(*words: str) -> Array:
    """Return the mask (S,) for "110", where 1 means visible; several strings give (B, S)."""
    masks = np.array([[digit == "1" for digit in text] for text in words])
    return masks if len(words) > 1 else masks[0]


def _draw(seed: int, sizes: tuple[int, ...], *masks: str) -> TwoTexts:
    """Draw arrays of random multiples of 1/2, with sizes (L, D, d, dv) and masks such as "110"."""
    rng, mask = generator(seed), masks_of(*masks)
    words, width, d, dv = sizes
    shapes = {"x": (*mask.shape[:-1], words, width), "context": (*mask.shape, width)}
    shapes |= {"w_q": (width, d), "w_k": (width, d), "w_v": (width, dv)}
    arrays = {name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}
    return TwoTexts(arrays.pop("x"), arrays.pop("context"), arrays, mask)


@per_seed
def one_text() -> list[TwoTexts]:
    """Draw single texts, smallest first; the first word of the context is never masked."""
    return [
        _draw(600, (2, 2, 2, 2), "11"),
        _draw(601, (3, 3, 4, 4), "111"),
        _draw(602, (2, 2, 2, 2), "10"),
        _draw(603, (3, 3, 2, 2), "101"),
        _draw(604, (2, 4, 3, 3), "1101"),
        _draw(605, (4, 4, 5, 2), "110"),
        _draw(606, (3, 5, 4, 5), "10110"),
    ]


@per_seed
def _others() -> tuple[Group, ...]:
    two = _draw(610, (2, 4, 3, 3), "110", "101")
    three = _draw(611, (3, 4, 4, 2), "1100", "1111", "1010")
    four = _draw(612, (3, 3, 2, 4), "11000", "10011", "11110", "10101")
    x, context, one = np.array([[1.0], [-1]]), np.array([[1.0], [0]]), np.eye(1)
    large = TwoTexts(x, context, {"w_q": 1000 * one, "w_k": one, "w_v": one}, masks_of("11"))
    return (
        Group("batches", [two, three, four], BATCHES, one_text_only),
        Group("scores of 1000", [large], LARGE),
    )


def one_text_only(wrong: Outcome) -> Symptom | None:
    """Return a finding if a call with a batch raises an error."""
    return of_mistake(ONE_TEXT, wrong) if wrong.error is not None else None


def _mark(function: Function) -> Marking:
    """Test cross-attention."""
    options_of(function, ("x", "context", "w_q", "w_k", "w_v", "mask"), {})

    def call(case: TwoTexts) -> Any:
        return function(case.x, case.context, *case.parameters.values(), case.mask)

    right = Computation("cross-attention", compute, RIGHT, "return weights @ v  # (..., L, dv)")
    m = StepwiseMarking(right, function, call)
    m.test_all([Group("two texts, padding of the context", one_text(), KNOWN), *_others()])
    return m


CROSS_ATTENTION = make_task("cross-attention", _mark)
