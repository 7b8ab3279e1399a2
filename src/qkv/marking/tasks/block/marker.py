"""Mark a block: a function of word vectors and of named parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.marking import findings
from qkv.marking.draws import generator, per_seed
from qkv.marking.engine import Compute, Group, Marking, reproduces
from qkv.marking.findings import Finding
from qkv.marking.functions import options_of
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome, first_wrong, name_of, outcome
from qkv.marking.result import CheckResult
from qkv.marking.tasks.block.mistakes import EMPTY, MLPS, NORMS, SLIPS, WIRING
from qkv.marking.tasks.block.steps import RIGHT, Call, compute, gelu_tanh, rms_norm
from qkv.marking.tasks.mistakes.formula import LARGE, core
from qkv.marking.tasks.mistakes.heads import HEADS, ONE_HEAD
from qkv.marking.tasks.task import task


def _drawn(
    seed: int | np.random.Generator, tokens: int, width: int, wide: int, heads: int = 1
) -> Call:
    """Parameters in multiples of 1/2; words spread so far that no eps of a norm counts."""
    rng = seed if isinstance(seed, np.random.Generator) else generator(seed)
    shapes = {
        "norm1_scale": (width,),
        "norm1_shift": (width,),
        "w_q": (width, width),
        "w_k": (width, width),
        "w_v": (width, width),
        "w_o": (width, width),
        "norm2_scale": (width,),
        "norm2_shift": (width,),
        "w_in": (width, wide),
        "b_in": (wide,),
        "w_out": (wide, width),
        "b_out": (width,),
    }
    x = np.array([rng.permutation(np.arange(-18.0, 19, 6))[:width] for _ in range(tokens)])
    return Call(x, {name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, heads)


def _zeros() -> Call:
    """Of two words one is all zeros."""
    case = _drawn(np.random.default_rng(5), 2, 2, 2)  # by others the eps of a norm counts
    case.x[0] = 0
    return case


def _large() -> Call:
    """Scores as large as 1000."""
    case = _drawn(np.random.default_rng(6), 2, 2, 2)
    parameters = {**case.parameters, "w_q": 1000 * np.eye(2), "w_k": np.eye(2)}
    return Call(case.x, parameters)


KNOWN = (*WIRING, *NORMS, *MLPS, *core("x,w_q,w_k,w_v"), *SLIPS)


@per_seed
def words() -> list[Call]:
    """The inputs of the first test, smallest first."""
    return [
        *(_drawn(1, 1, 2, 2), _drawn(2, 1, 4, 3), _drawn(3, 2, 2, 2), _drawn(4, 3, 4, 6)),
        _drawn(57, 2, 5, 3),  # of weights that neither 0 nor 1 is near
    ]


@per_seed
def _others() -> tuple[Group, ...]:
    return (
        Group("a word of zeros", [_zeros()], EMPTY),
        Group("scores of 1000", [_large()], LARGE),
    )


@per_seed
def _two_heads() -> Group:
    return Group("two heads", [_drawn(7, 2, 4, 2, 2), _drawn(8, 3, 4, 6, 2)], HEADS)


# what is as right as LayerNorm and GELU: RMSNorm, and GELU by tanh
_RMS: Steps = {"normalize": rms_norm}
_NO_SHIFT: Steps = {**_RMS, "affine": lambda x, scale, shift: x * scale}
_TANH: Steps = {"activation": gelu_tanh}
_SAID_RMS, _SAID_TANH = "Its norm is RMSNorm.", "Its GELU is the one by tanh."
STYLES: tuple[tuple[Steps, tuple[str, ...]], ...] = (
    ({}, ()),
    (_TANH, (_SAID_TANH,)),
    (_RMS, (_SAID_RMS,)),
    (_NO_SHIFT, (_SAID_RMS,)),
    ({**_RMS, **_TANH}, (_SAID_RMS, _SAID_TANH)),
    ({**_NO_SHIFT, **_TANH}, (_SAID_RMS, _SAID_TANH)),
)


def style_of(
    runs: list[Outcome], right: Steps, known: Sequence[Mistake], compute: Compute
) -> tuple[Steps, tuple[str, ...]]:
    """The style in which a function is right, or wrong by one mistake; else the first.

    Args:
        runs: what its calls gave.
        right: the right steps, in the first style.
        known: the mistakes.
        compute: what a case gives if it is computed by some steps.
    """
    none: Steps = {}
    for variants in ((none,), *(one.variants for one in known)):
        for (steps, said), variant in product(STYLES, variants):
            done = {**right, **steps, **variant}
            if all(reproduces(run, done, compute) for run in runs):
                return steps, said
    return STYLES[0]


class BlockMarking(Marking):
    """A block on its way through the tests, marked in its own style.

    Args:
        task: the task's name.
        function: a learner's block.
        call: calls the block for a case, and returns its output.
        compute: computes the output of a case by some steps.
        steps: the right steps, in the first style.
        first: the first test.
        parts: the parameters that switch a part off if they are zero, by the part's name.
        returns: the right return statement.
    """

    def __init__(
        self,
        task: str,
        function: Callable[..., Any],
        call: Callable[[Any], Any],
        compute: Compute,
        steps: Steps,
        first: Group,
        parts: Mapping[str, Sequence[str]],
        *,
        returns: str,
    ) -> None:
        runs = [outcome(case, call, compute(case, steps)) for case in first.cases]
        style, said = style_of(runs, steps, first.known, compute)
        right = {**steps, **style}
        super().__init__(
            task,
            name_of(function),
            lambda case: outcome(case, call, compute(case, right)),
            compute,
            right,
            returns=returns,
        )
        self.parts = parts
        self.limits += said

    def unexplained(self, runs: list[Outcome], what: str) -> Finding:
        """Find the part with the mistake, by parameters that are zero."""
        case = first_wrong(runs).case
        hints = []
        for part, names in self.parts.items():
            zeros = {name: np.zeros_like(case.parameters[name]) for name in names}
            if self.call(replace(case, parameters={**case.parameters, **zeros})).is_right:
                hints.append(f"right where {' and '.join(names)} are zeros: look into {part}")
        return findings.unexplained(runs, what, self.returns, hints)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a block."""
    options, _ = options_of(function, ("x", "parameters"), {"heads": ("num_heads", "n_heads")})

    def call(case: Call) -> Any:
        heads = {options["heads"]: case.heads} if options else {}
        return function(case.x, case.parameters, **heads)

    known = (*KNOWN, *ONE_HEAD) if options else KNOWN
    first = Group("attention, residuals, norms, MLP", words(), known)
    parts = {"the MLP's half": ["w_out", "b_out"], "attention's half": ["w_o"]}
    m = BlockMarking(
        "block", function, call, compute, RIGHT, first, parts, returns="return x  # (T, D)"
    )
    m.first_call(words()[0])
    if m.wrong:
        return m.result()
    for group in (first, *_others(), *([_two_heads()] if options else [])):
        m.test(group)
    if not options:
        m.untried.append("num_heads")
    return m.result()


BLOCK = task("block", _mark)
