"""The task `block`: attention and an MLP. Each part reads norm(x), and its output is added to x.

Sources: Vaswani et al. 2017 (the block), Xiong et al. 2020 (pre-norm), Ba et al. 2016
(LayerNorm), Zhang and Sennrich 2019 (RMSNorm), Hendrycks and Gimpel 2016 (GELU).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array, Arrays, Shape
from qkv_marking import _findings
from qkv_marking._engine import Group, Marking, generator, per_seed, reproduces
from qkv_marking._findings import Symptom
from qkv_marking._mistake import Function, Steps
from qkv_marking._outcome import Outcome, first_wrong, options_of
from qkv_marking.tasks._task import Computation, Phrases, StepwiseMarking, make_task
from qkv_marking.tasks.attention.steps import RIGHT as ATTENTION, Trial, compute as attention, same
from qkv_marking.tasks.mistakes.formula import LARGE, core, of_output
from qkv_marking.tasks.mistakes.heads import HEADS, ONE_HEAD

Part = Callable[[Array], Array]
Rule = Callable[[Array, Sequence[Part], Sequence[Part]], Array]


def pre_norm(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Compute a correct pre-norm block: each part reads `norm(x)`, and its output is added to x."""
    for part, norm in zip(parts, norms, strict=True):
        x = x + part(norm(x))
    return x


def wire(rule: Rule) -> Steps:
    """Return the step "wire", which computes the output of a block as `rule(x, parts, norms)`."""
    return {"wire": rule}


def some_parts(numbers: Collection[int], other: Callable[[Array, Part, Part], Array]) -> Steps:
    """Return a step that uses `other` instead of pre-norm for some parts of a block.

    `numbers` holds the indices of these parts; the first part of the block has index 0.
    """

    def rule(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
        for number, (part, norm) in enumerate(zip(parts, norms, strict=True)):
            x = other(x, part, norm) if number in numbers else x + part(norm(x))
        return x

    return wire(rule)


def _each_part(other: Callable[[Array, Part, Part], Array]) -> list[Steps]:
    """Return three steps with `other`: in both parts, in attention only, and in the MLP only.

    A part without `other` uses pre-norm.
    """
    return [some_parts(numbers, other) for numbers in ((0, 1), (0,), (1,))]


def _normed_by(first: int, second: int) -> Steps:
    """Return a step with `norms[first]` before attention and `norms[second]` before the MLP."""
    return wire(lambda x, parts, norms: pre_norm(x, parts, (norms[first], norms[second])))


def _norm_kept(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Let the MLP read the same normalized x as attention."""
    attend, mlp = parts
    normed = norms[0](x)
    return x + attend(normed) + mlp(normed)


POST_NORM = some_parts((0, 1), lambda x, part, norm: norm(x + part(x)))
NORM_OF_RESULT = some_parts((0, 1), lambda x, part, norm: x + norm(part(x)))
NO_RESIDUAL = _each_part(lambda x, part, norm: part(norm(x)))
NORMED_STREAM = _each_part(lambda x, part, norm: norm(x) + part(norm(x)))
NO_NORM = _each_part(lambda x, part, norm: x + part(x))
ONE_NORM_TWICE = (_normed_by(0, 0), _normed_by(1, 1))
NORMS_EXCHANGED = (_normed_by(1, 0),)
NORM_KEPT = (wire(_norm_kept),)


_TEXTS = Phrases(__name__)
EPS = 1e-5

# the computation, step by step


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


def compute(case: BlockCall, steps: Steps) -> Array:
    """Return the block's output (T, D)."""
    x, p, heads = case.x, case.parameters, case.heads

    def attend(x: Array) -> Array:
        arrays = {"x": x, **{name: p[name] for name in ("w_q", "w_k", "w_v")}}
        return attention(Trial(arrays, heads=heads, output=p["w_o"]), steps)

    def norm(number: int) -> Part:
        scale, shift = p[f"norm{number}_scale"], p[f"norm{number}_shift"]
        return lambda x: steps["affine"](steps["normalize"](x), scale, shift)

    parts = attend, lambda x: steps["mlp"](x, p, steps["activation"])
    out: Array = steps["wire"](x, parts, (norm(1), norm(2)))
    return out


def layer_norm(x: Array, axis: Any = -1, ddof: int = 0, eps: float = EPS) -> Array:
    """Apply LayerNorm: scale each word vector to mean 0 and variance 1."""
    mean, spread = x.mean(axis=axis, keepdims=True), x.var(axis=axis, ddof=ddof, keepdims=True)
    out: Array = (x - mean) / np.sqrt(spread + eps)
    return out


def mean_square(x: Array, axis: Any = -1) -> Any:
    """Return the mean square of each word vector."""
    return (x * x).mean(axis=axis, keepdims=True)


def rms_norm(x: Array, axis: Any = -1, eps: float = EPS) -> Array:
    """Apply RMSNorm: scale each word vector to a mean square of 1."""
    out: Array = x / np.sqrt(mean_square(x, axis) + eps)
    return out


def gelu(x: Array) -> Array:
    """Apply GELU: multiply each number by the standard normal CDF at this number."""
    out: Array = x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2
    return out


def gelu_tanh(x: Array) -> Array:
    """Approximate GELU by tanh, as in GPT-2."""
    out: Array = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return out


def sigmoid(x: Array) -> Array:
    """Return the logistic function."""
    out: Array = 1 / (1 + np.exp(-x))
    return out


def mlp_of(x: Array, p: Arrays, activation: Part) -> Array:
    """Apply the MLP: two linear layers with an activation between the layers."""
    out: Array = activation(x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"]
    return out


RIGHT: Steps = {
    **ATTENTION,
    "wire": pre_norm,
    "normalize": layer_norm,
    "affine": lambda x, scale, shift: x * scale + shift,
    "mlp": mlp_of,
    "activation": gelu,
}

# known mistakes; each mistake replaces some steps


def _variance(x: Array) -> Any:
    return x.var(axis=-1, keepdims=True)


def _centre(x: Array) -> Any:
    return x - x.mean(axis=-1, keepdims=True)


WIRING = _TEXTS.mistakes(
    {
        "block-no-residual": NO_RESIDUAL,
        "block-normed-stream": NORMED_STREAM,
        "block-from-start": [
            lambda x, parts, norms: x + parts[1](norms[1](x + parts[0](norms[0](x))))
        ],
        "block-mlp-first": [lambda x, parts, norms: pre_norm(x, parts[::-1], norms[::-1])],
        "block-no-norm": NO_NORM,
        "block-norm-kept": NORM_KEPT,
        "block-norms-exchanged": NORMS_EXCHANGED,
        "block-post-norm": [POST_NORM],
        "block-norm-of-part": [NORM_OF_RESULT],
        "block-parallel": [
            lambda x, parts, norms: x + parts[0](norms[0](x)) + parts[1](norms[1](x))
        ],
    },
    step="wire",
)

NORMS = _TEXTS.mistakes(
    {
        "norm-tokens": [lambda x: layer_norm(x, -2), lambda x: rms_norm(x, -2)],
        "norm-whole": [lambda x: layer_norm(x, (-1, -2)), lambda x: rms_norm(x, (-1, -2))],
        "norm-no-root": [
            lambda x: _centre(x) / (_variance(x) + EPS),
            lambda x: x / (mean_square(x) + EPS),
        ],
        "norm-ddof": [lambda x: layer_norm(x, ddof=1)],
        "norm-no-mean": [lambda x: x / np.sqrt(_variance(x) + EPS)],
        "norm-no-division": [_centre],
        "norm-affine": [
            {"affine": lambda x, scale, shift: x},
            {"affine": lambda x, scale, shift: x + shift},
            {"affine": lambda x, scale, shift: x * scale},
            {"affine": lambda x, scale, shift: (x + shift) * scale},
        ],
        "norm-shared": ONE_NORM_TWICE,
    },
    step="normalize",
)
EMPTY = _TEXTS.mistakes(
    {"norm-no-eps": [lambda x: layer_norm(x, eps=0.0), lambda x: rms_norm(x, eps=0.0)]},
    step="normalize",
)
MLPS = _TEXTS.mistakes(
    {
        "mlp-no-activation": [{"activation": same}],
        "mlp-activation-late": [
            lambda x, p, act: act((x @ p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"])
        ],
        "mlp-activation-twice": [lambda x, p, act: act(mlp_of(x, p, act))],
        "mlp-no-bias": [
            lambda x, p, act: act(x @ p["w_in"]) @ p["w_out"],
            lambda x, p, act: act(x @ p["w_in"] + p["b_in"]) @ p["w_out"],
            lambda x, p, act: act(x @ p["w_in"]) @ p["w_out"] + p["b_out"],
        ],
        "mlp-other-activation": [
            {"activation": lambda x: np.maximum(x, 0)},
            {"activation": lambda x: x * sigmoid(x)},
            {"activation": lambda x: x * sigmoid(1.702 * x)},
        ],
        "block-no-output-projection": [{"output": lambda out, w_o: out}],
    },
    step="mlp",
)


def _whole_mean(x: Array) -> Any:
    """Compute the mean with // instead of /."""
    return x.sum(axis=-1, keepdims=True) // x.shape[-1]


def _mean_divided(x: Array) -> Any:
    """Divide only the mean by the standard deviation, and subtract the result from `x`."""
    return x - (x - _centre(x)) / np.sqrt(_variance(x) + EPS)


def _by_whole_means(x: Array) -> Any:
    centred = x - _whole_mean(x)
    return centred / np.sqrt(_whole_mean(centred**2) + EPS)


SLIPS = (
    *_TEXTS.mistakes(
        {
            "norm-floor-division": [
                lambda x: _centre(x) // np.sqrt(_variance(x) + EPS),
                lambda x: x // np.sqrt(mean_square(x) + EPS),
                _by_whole_means,
                lambda x: _centre(x) / np.sqrt(_whole_mean(_centre(x) ** 2) + EPS),
                lambda x: x / np.sqrt(_whole_mean(x * x) + EPS),
            ],
            "norm-integer-table": [
                {"affine": lambda x, scale, shift: np.trunc(x * scale + shift)},
                {"affine": lambda x, scale, shift: np.trunc(x * scale)},
                lambda x: np.trunc(layer_norm(x)),
                lambda x: np.trunc(rms_norm(x)),
            ],
            "norm-power": [
                lambda x: _centre(x) / ((_variance(x) + EPS) / 2),
                lambda x: _centre(x) / (_variance(x) + EPS) / 2,
                lambda x: x / ((mean_square(x) + EPS) / 2),
                lambda x: x / (mean_square(x) + EPS) / 2,
            ],
            "norm-brackets": [
                _mean_divided,
                {
                    "normalize": same,
                    "affine": lambda x, scale, shift: x - (x - _mean_divided(x)) * scale + shift,
                },
            ],
        },
        step="normalize",
    ),
    *_TEXTS.mistakes(
        {
            "mlp-floor-division": [
                {"activation": lambda x: gelu(x) / x * 2 * (x // 2)},
                {"activation": lambda x: gelu_tanh(x) / x * 2 * (x // 2)},
                {"activation": lambda x: x * ((gelu(x) / x * 2) // 2)},
                {"activation": lambda x: x * ((gelu_tanh(x) / x * 2) // 2)},
                {"activation": lambda x: gelu(x) * 2 // 2},
                {"activation": lambda x: gelu_tanh(x) * 2 // 2},
            ],
            "mlp-integer-table": [
                {"activation": lambda x: np.trunc(gelu(x))},
                {"activation": lambda x: np.trunc(gelu_tanh(x))},
            ],
            "product-elementwise": [
                lambda x, p, act: act(x * p["w_in"] + p["b_in"]) @ p["w_out"] + p["b_out"],
                lambda x, p, act: act(x @ p["w_in"] + p["b_in"]) * p["w_out"] + p["b_out"],
            ],
            "product-order": [
                lambda x, p, act: act(p["w_in"] @ x + p["b_in"]) @ p["w_out"] + p["b_out"],
                lambda x, p, act: p["w_out"] @ act(x @ p["w_in"] + p["b_in"]) + p["b_out"],
            ],
        },
        step="mlp",
    ),
    *of_output("x = x + out @ w_o"),
)
KNOWN = (*WIRING, *NORMS, *MLPS, *core("x,w_q,w_k,w_v"), *SLIPS)

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
        Group("scores of 1000", [large], LARGE),
        Group(
            "two heads",
            [_draw(generator(7), (2, 4, 2), 2), _draw(generator(8), (3, 4, 6), 2)],
            HEADS,
        ),
    )


# the correct variants of a block: for each variant, its steps and the sentences that describe it
_RMS: Steps = {"normalize": rms_norm}
_NO_SHIFT: Steps = {**_RMS, "affine": lambda x, scale, shift: x * scale}
_TANH: Steps = {"activation": gelu_tanh}
_IS_RMS, _IS_TANH = "Its norm is RMSNorm.", "Its GELU is the approximation by tanh."
STYLES: tuple[tuple[Steps, tuple[str, ...]], ...] = (
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
        """Find the style of the block, such as RMSNorm, by the first test; then run all tests."""
        self._choose_style(groups[0])
        super().test_all(groups)

    def _choose_style(self, first: Group) -> None:
        """Choose the first style that explains the results with at most one known mistake."""
        runs = self.run(first.cases)
        none: Steps = {}
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
    known = (*KNOWN, *ONE_HEAD) if options else KNOWN
    first = Group("attention, residuals, norms, MLP", words(), known)
    m.test_all([first, *(_others() if options else _others()[:-1])])
    if not options and not m.wrong:
        m.untried.append("num_heads")
    return m


BLOCK = make_task("block", _mark)
