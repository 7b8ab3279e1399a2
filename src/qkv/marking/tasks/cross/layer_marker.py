"""Mark a decoder's block: a function of two texts, of named parameters, and of a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking import findings
from qkv.marking.draws import generator, per_seed
from qkv.marking.engine import Group, Marking
from qkv.marking.findings import Finding, of_mistake
from qkv.marking.functions import options_of
from qkv.marking.mistake import Steps
from qkv.marking.outcome import Outcome, close, first_wrong, name_of, outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.block.marker import style_of
from qkv.marking.tasks.block.mistakes import EMPTY
from qkv.marking.tasks.block.steps import layer_norm
from qkv.marking.tasks.cross.layer import RIGHT, Call, compute
from qkv.marking.tasks.cross.layer_mistakes import KNOWN, ON_BATCH
from qkv.marking.tasks.mistakes.formula import BATCHES, LARGE, ONE_TEXT
from qkv.marking.tasks.mistakes.masks import TEXTS as MASKS_OF_A_BATCH
from qkv.marking.tasks.task import Task

_ROLES = ("q", "k", "v", "o")
_WITHOUT_EPS: Steps = {**RIGHT, "normalize": lambda x: layer_norm(x, eps=0.0)}


def _drawn(seed: int | np.random.Generator, words: int, width: int, wide: int, *masks: str) -> Call:
    """Parameters in multiples of 1/2, and words for which no eps of a norm counts.

    Args:
        seed: of the numbers.
        words: how many x has, of each text.
        width: of a word vector.
        wide: the numbers inside the MLP.
        masks: of each text one, a digit for each word of its context: 1 where there is a word.
    """
    rng = seed if isinstance(seed, np.random.Generator) else generator(seed)
    mask = np.array([[digit == "1" for digit in one] for one in masks])
    mask = mask if len(masks) > 1 else mask[0]
    shapes = {
        **{f"norm{n}_{part}": (width,) for n in (1, 2, 3) for part in ("scale", "shift")},
        **{f"{name}_{role}": (width, width) for name in ("self", "cross") for role in _ROLES},
        "w_in": (width, wide),
        "b_in": (wide,),
        "w_out": (wide, width),
        "b_out": (width,),
    }

    def vectors(*shape: int) -> Array:
        count = int(np.prod(shape))
        rows = [rng.permutation(np.arange(-18.0, 19, 6))[:width] for _ in range(count)]
        return np.array(rows).reshape(*shape, width)

    while True:
        parameters = {name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}
        context = vectors(*mask.shape) / 4  # or one key would take all the weight
        case = Call(vectors(*mask.shape[:-1], words), context, parameters, mask)
        with np.errstate(all="ignore"):
            if close(compute(case, RIGHT), compute(case, _WITHOUT_EPS)):
                return case


@per_seed
def one_text() -> list[Call]:
    """Single texts, smallest first; a mask never hides the first word."""
    return [
        _drawn(701, 1, 2, 2, "1"),
        _drawn(721, 2, 2, 3, "11"),
        _drawn(702, 2, 2, 3, "10"),
        _drawn(704, 3, 4, 2, "1101"),
        _drawn(705, 4, 5, 3, "101"),
        _drawn(706, 3, 4, 6, "110"),
    ]


@per_seed
def _others() -> tuple[Group, ...]:
    batches = (*BATCHES, ON_BATCH, *MASKS_OF_A_BATCH)
    two, three = _drawn(711, 2, 4, 3, "110", "101"), _drawn(712, 3, 4, 2, "1100", "1111", "1010")
    empty, large = _drawn(np.random.default_rng(8), 2, 2, 2, "10"), _drawn(728, 2, 2, 2, "11")
    empty.x[0] = 0
    ones = {**large.parameters, "self_q": 1000 * np.eye(2), "self_k": np.eye(2)}
    return (
        Group("batches", [two, three], batches, _one_text_only),
        Group("a word of zeros", [empty], EMPTY),
        Group("scores of 1000", [Call(large.x, large.context, ones, large.mask)], LARGE),
    )


def _one_text_only(wrong: Outcome) -> Finding | None:
    """A function that fails for a batch in a way that is not known."""
    return of_mistake(ONE_TEXT, wrong) if wrong.error is not None else None


class LayerMarking(Marking):
    """A decoder's block on its way through the tests."""

    def unexplained(self, runs: list[Outcome], what: str) -> Finding:
        """In which part the mistake is, found by parameters that are zero."""
        case = first_wrong(runs).case
        hints = []
        for part, names in (
            ("self-attention", ["self_o"]),
            ("cross-attention", ["cross_o"]),
            ("the MLP", ["w_out", "b_out"]),
        ):
            none = {name: np.zeros_like(case.parameters[name]) for name in names}
            without = Call(case.x, case.context, {**case.parameters, **none}, case.mask)
            if self.call(without).is_right:
                hints.append(f"right where {' and '.join(names)} are zeros: look into {part}")
        return findings.unexplained(runs, what, self.returns, hints)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a decoder's block."""
    options_of(function, ("x", "context", "parameters", "mask"), {})

    def call(case: Call) -> Any:
        return function(case.x, case.context, case.parameters, case.mask)

    runs = [outcome(case, call, compute(case, RIGHT)) for case in one_text()]
    steps, said = style_of(runs, RIGHT, KNOWN, compute)
    right = {**RIGHT, **steps}
    m = LayerMarking(
        "decoder-block",
        name_of(function),
        lambda case: outcome(case, call, compute(case, right)),
        compute,
        right,
        returns="return x  # (..., T, D)",
    )
    m.limits += said
    m.first_call(one_text()[0])
    if m.wrong:
        return m.result()
    m.test(Group("three parts, residuals, norms, padding of the context", one_text(), KNOWN))
    for group in _others():
        m.test(group)
    return m.result()


DECODER_BLOCK = Task(
    name="decoder-block",
    looks_for=("decoder_block",),
    signature="decoder_block(x, context, parameters, mask) -> (T, D), also of batches",
    asks="x = x + causal self-attention(norm1(x)), then x = x + cross-attention(norm2(x), context),"
    " where mask (S,) is True, then x = x + mlp(norm3(x)), with LayerNorm or RMSNorm, GELU and one"
    " head; parameters has norm1_scale, norm1_shift, self_q, self_k, self_v, self_o, norm2_scale,"
    " norm2_shift, cross_q, cross_k, cross_v, cross_o, norm3_scale, norm3_shift, w_in, b_in, w_out,"
    " b_out; also of batches (B, T, D), (B, S, D), (B, S)",
    mark=_mark,
    everyday=("decoder_block",),
)
