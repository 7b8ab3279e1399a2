"""The task `cross-attention`: queries come from one text, keys and values from another text.

Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.3 (encoder-decoder attention).
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays
from qkv_marking._engine import Group, Marking, generator, per_seed
from qkv_marking._findings import Symptom, of_mistake
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import Outcome, options_of
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Computation, StepwiseMarking, make_task
from qkv_marking.tasks.attention import mistakes
from qkv_marking.tasks.attention.steps import Trial, values_of

TABLE = Table(__package__, "cross_attention", mistakes.HELPERS, mistakes.FORMULA)
FORMULA = TABLE.formula.part("texts", "keys", *mistakes.FORMULA.lines)
RIGHT = FORMULA.lines


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


def compute(case: TwoTexts, steps: Lines) -> Array:
    """Return the output (..., L, dv) of attention from x to the context."""
    arrays = {"x": case.x, "context": case.context, **case.parameters}
    out: Array = FORMULA.run(values_of(Trial(arrays, case.mask)), steps)["out"]
    return out


def use_texts(known: Mistake) -> Mistake:
    """Rewrite a mistake of attention: q, k and v come from the texts x_q, x_k and x_v.

    If q, k or v is computed with the matrix of another array, the mistake has two forms: the array
    is computed from the text that belongs to this matrix, or from its own text.
    """

    def rewrite(way: Lines, moved: bool) -> Lines:
        if "project" not in way:
            return way
        texts = []
        for role, product in zip("qkv", way["project"].split(" = ")[1].split(", "), strict=True):
            matrix = re.search(r"w_(.)", product)
            text = matrix[1] if matrix and moved else role
            texts.append(re.sub(r"\bx\b", f"x_{text}", product))
        return {**way, "project": f"q, k, v = {', '.join(texts)}"}

    ways = [rewrite(way, moved) for way in known.variants for moved in (True, False)]
    once = (way for n, way in enumerate(ways) if way not in ways[:n])
    return replace(known, variants=tuple(once))


_INVERTED, _IGNORED = mistakes.MASK[:2]
_WAY = _INVERTED.variants[0]  # the other way is for masks of numbers
# -inf would give nan in fully masked rows
_LOW = {**_WAY, "hide": "scores = np.where(visible, scores, -1e9)"}
INVERTED = replace(_INVERTED, variants=(_WAY, _LOW))
BATCHES = (*TABLE.group("cross-mask-on-batch"), *mistakes.OF_TEXTS, *mistakes.BATCHES)

# In a decoder block, the marker reports these mistakes only if the block has no second mistake.
# If the marker combined one of these mistakes with a second mistake, such a pair would match the
# results of too many wrong functions by chance.
_ROLES = ("query-key-swapped", "key-as-value", "projections-swapped", "projections-shared")
CORE = [known for known in mistakes.core("x,w_q,w_k,w_v") if known.key != "causal-always"]
CORE_OF_TWO = [replace(known, alone=known.alone or known.key in _ROLES) for known in CORE]
KNOWN = (
    *TABLE.group("texts", "cross-causal"),
    *(INVERTED, _IGNORED, *mistakes.HIDING),
    *TABLE.group("cross-mask-on-queries"),
    *map(use_texts, CORE),
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
        Group("scores of 1000", [large], mistakes.LARGE),
    )


def one_text_only(wrong: Outcome) -> Symptom | None:
    """Return a finding if a call with a batch raises an error."""
    return of_mistake(mistakes.ONE_TEXT, wrong) if wrong.error is not None else None


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
