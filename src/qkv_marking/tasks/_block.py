"""The task `block`: attention and an MLP. Each part reads norm(x), and its output is added to x.

Sources: Vaswani et al. 2017 (the block), Xiong et al. 2020 (pre-norm), Ba et al. 2016
(LayerNorm), Zhang and Sennrich 2019 (RMSNorm), Hendrycks and Gimpel 2016 (GELU).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays, Shape
from qkv_marking import _findings
from qkv_marking._engine import Group, Marking, generator, per_seed, reproduces
from qkv_marking._findings import Symptom
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function
from qkv_marking._outcome import Outcome, first_wrong, options_of
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Computation, StepwiseMarking, make_task
from qkv_marking.tasks.attention import mistakes
from qkv_marking.tasks.attention.steps import Trial, compute as attention

Part = Callable[[Array], Array]

_ERF = np.vectorize(math.erf, otypes=[float])
TABLE = Table(__package__, "block", {**mistakes.HELPERS, "erf": _ERF}, mistakes.FORMULA)
RIGHT = TABLE.formula.lines
_WIRES = TABLE.formula.part("add_attention", "add_mlp")
_NORM = TABLE.formula.part("centre", "variance", "divide", "affine")
_MLP = TABLE.formula.part("hidden", "mlp_output")
_GELU = TABLE.formula.part("erf", "gelu")


@dataclass(frozen=True)
class BlockCall:
    """Word vectors (T, D), the block's parameters keyed by name, and the number of heads."""

    x: Array
    parameters: Arrays
    heads: int = 1

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        heads = {"num_heads": self.heads} if self.heads > 1 else {}
        return {
            "x": self.x,
            **{f'parameters["{n}"]': a for n, a in self.parameters.items()},
        } | heads


def compute(case: BlockCall, steps: Lines) -> Array:
    """Return the block's output (T, D)."""
    p = case.parameters

    def attend(x: Array) -> Array:
        arrays = {"x": x, **{name: p[name] for name in ("w_q", "w_k", "w_v")}}
        return attention(Trial(arrays, heads=case.heads, output=p["w_o"]), steps)

    norms = {f"norm{number}": make_norm(number, p, steps) for number in (1, 2)}
    values = {"x": case.x, "attend": attend, "mlp": make_mlp(p, steps), **norms}
    out: Array = _WIRES.run(values, steps)["x"]
    return out


def make_norm(number: int, p: Arrays, steps: Lines) -> Part:
    """Return a norm of a block; norms are numbered from 1."""
    values = {name: p[f"norm{number}_{name}"] for name in ("scale", "shift")}
    return lambda x: _NORM.run({**values, "x": x}, steps)["x"]


def make_mlp(p: Arrays, steps: Lines) -> Part:
    """Return the MLP of a block: two linear layers with an activation between the layers."""

    def gelu(x: Array) -> Array:
        out: Array = _GELU.run({"x": x}, steps)["out"]
        return out

    return lambda x: _MLP.run({**p, "x": x, "gelu": gelu}, steps)["out"]


EMPTY = TABLE.group("norm-no-eps")
SLIPS = (*TABLE.group("norm-slips", "mlp-slips"), *mistakes.OF_OUTPUT)
KNOWN = (
    *TABLE.group("wiring", "wired-otherwise", "norms", "norm-shared", "mlps"),
    *TABLE.group("block-no-output-projection"),
    *mistakes.core("x,w_q,w_k,w_v"),
    *SLIPS,
)

# The random inputs, and the function that marks an answer.


def _draw(rng: np.random.Generator, sizes: Shape, heads: int = 1) -> BlockCall:
    """Draw random parameters (multiples of 1/2), and word vectors so large that eps is negligible.

    Args:
        rng: the random generator.
        sizes: the number of words, the size of a word vector, and the MLP's hidden size.
        heads: the number of heads.
    """
    tokens, width, wide = sizes
    shapes = {
        "norm1_scale": (width,),
        "norm1_shift": (width,),
        **{f"w_{role}": (width, width) for role in "qkvo"},
        "norm2_scale": (width,),
        "norm2_shift": (width,),
        "w_in": (width, wide),
        "b_in": (wide,),
        "w_out": (wide, width),
        "b_out": (width,),
    }
    x = np.array([rng.permutation(np.arange(-18.0, 19, 6))[:width] for _ in range(tokens)])
    return BlockCall(
        x, {name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, heads
    )


@per_seed
def words() -> list[BlockCall]:
    """Return the inputs of the first test, smallest first."""
    return [
        *(
            _draw(generator(1), (1, 2, 2)),
            _draw(generator(2), (1, 4, 3)),
            _draw(generator(3), (2, 2, 2)),
            _draw(generator(4), (3, 4, 6)),
        ),
        _draw(generator(57), (2, 5, 3)),  # attention weights that are not close to 0 or 1
    ]


@per_seed
def _others() -> tuple[Group, ...]:
    """Return all tests except the first; only functions that take heads get the last test."""
    zeros, large = (_draw(np.random.default_rng(seed), (2, 2, 2)) for seed in (5, 6))
    zeros.x[0] = 0  # in a longer text, eps would change the right output
    scores_of_1000 = {"w_q": 1000 * np.eye(2), "w_k": np.eye(2)}
    large = replace(large, parameters={**large.parameters, **scores_of_1000})
    return (
        Group("a word of zeros", [zeros], EMPTY),
        Group("scores of 1000", [large], mistakes.LARGE),
        Group(
            "two heads",
            [_draw(generator(7), (2, 4, 2), 2), _draw(generator(8), (3, 4, 6), 2)],
            mistakes.HEADS,
        ),
    )


# the correct variants of a block: for each variant, its lines and the sentences that describe it
_RMS = {"centre": "pass"}
_NO_SHIFT = {**_RMS, "affine": "x = x * scale"}
_TANH = {"erf": "t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))"}  # as in GPT-2
_IS_RMS, _IS_TANH = "Its norm is RMSNorm.", "Its GELU is the approximation by tanh."
STYLES: tuple[tuple[Lines, tuple[str, ...]], ...] = (
    ({}, ()),
    (_TANH, (_IS_TANH,)),
    (_RMS, (_IS_RMS,)),
    (_NO_SHIFT, (_IS_RMS,)),
    ({**_RMS, **_TANH}, (_IS_RMS, _IS_TANH)),
    ({**_NO_SHIFT, **_TANH}, (_IS_RMS, _IS_TANH)),
)


class BlockMarking(StepwiseMarking):
    """The tests of one block; the expected results come from a correct block of the same style.

    For example, the results of a block with RMSNorm are compared with the results of a correct
    block with RMSNorm.

    Attributes:
        parts: for each part, the names of the parameters that switch off the part if they are zero.
    """

    parts: Mapping[str, Sequence[str]]

    def test_all(self, groups: Sequence[Group]) -> None:
        """Find the style of the block, such as RMSNorm, with the first test; then run all tests."""
        self._choose_style(groups[0])
        super().test_all(groups)

    def _choose_style(self, first: Group) -> None:
        """Choose the first style that explains the results with at most one known mistake."""
        runs = self.run(first.cases)
        none: Lines = {}
        for variants in ((none,), *(one.variants for one in first.known)):
            for (style, said), variant in product(STYLES, variants):
                right = {**self.right, **style}
                if all(reproduces(run, {**right, **variant}, self.compute) for run in runs):
                    self.right = self.steps = right
                    self.limits += said
                    return

    def report_odd(self, runs: list[Outcome], what: str) -> Symptom:
        """Switch off one part at a time, to find the part with the mistake."""
        case = first_wrong(runs).case
        hints = []
        for part, names in self.parts.items():
            zeros = {name: np.zeros_like(case.parameters[name]) for name in names}
            if self.call(replace(case, parameters={**case.parameters, **zeros})).is_right:
                hints.append(
                    f"the output is right if {' and '.join(names)} are all zeros: look into {part}"
                )
        return _findings.report_odd(runs, what, self.returns, hints)


def _mark(function: Function) -> Marking:
    """Test a block."""
    options, _ = options_of(function, ("x", "parameters"), {"heads": ("num_heads", "n_heads")})

    def call(case: BlockCall) -> Any:
        heads = {options["heads"]: case.heads} if options else {}
        return function(case.x, case.parameters, **heads)

    m = BlockMarking(Computation("block", compute, RIGHT, "return x  # (T, D)"), function, call)
    m.parts = {"the MLP's half": ["w_out", "b_out"], "attention's half": ["w_o"]}
    known = (*KNOWN, *mistakes.ONE_HEAD) if options else KNOWN
    first = Group("attention, residuals, norms, MLP", words(), known)
    m.test_all([first, *(_others() if options else _others()[:-1])])
    if not options and not m.wrong:
        m.untried.append("num_heads")
    return m


BLOCK = make_task("block", _mark)
