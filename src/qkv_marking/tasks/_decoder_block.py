"""The task `decoder-block`: self-attention, cross-attention and an MLP, each after a norm.

Sources: Vaswani et al. 2017 (three parts per block), Xiong et al. 2020 (pre-norm).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from qkv.arrays import Array, Shape
from qkv_marking._engine import Group, Marking, generator, per_seed
from qkv_marking._formula import Formula, Lines
from qkv_marking._mistake import Function, Mistake
from qkv_marking._outcome import close, options_of
from qkv_marking.tasks import _block, _cross_attention as cross
from qkv_marking.tasks._block import BlockMarking, make_mlp, make_norm
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Computation, make_task
from qkv_marking.tasks.attention import mistakes
from qkv_marking.tasks.attention.steps import Trial, values_of

_BLOCK = _block.TABLE.formula
_BASE = Formula({**_BLOCK.lines, **cross.RIGHT}, _BLOCK.when, _BLOCK.helpers)
TABLE = Table(__package__, "decoder_block", base=_BASE)
RIGHT = TABLE.formula.lines
_ATTENTION = mistakes.FORMULA.lines
_WIRES = TABLE.formula.part("norms", "add_self", "context", "add_cross", "add_mlp")
_SELF = TABLE.formula.part("self_weights", "self_texts", "self_mask", "self_causal", *_ATTENTION)
_CROSS = TABLE.formula.part("cross_weights", "texts", "keys", "cross_causal", *_ATTENTION)


class BlockOfTwoTexts(cross.TwoTexts):
    """One call: x (..., T, D), context (..., S, D), named parameters, and a context mask."""

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        named = {f'parameters["{name}"]': a for name, a in self.parameters.items()}
        return {"x": self.x, "context": self.context, **named, "mask": self.mask}


def compute(case: cross.TwoTexts, steps: Lines) -> Array:
    """Return the block's output (..., T, D)."""
    p = case.parameters
    given = {**values_of(Trial({"context": case.context}, case.mask)), "parameters": p}

    def self_attention(x: Array) -> Array:
        out: Array = _SELF.run({**given, "x": x}, steps)["out"]
        return out

    def cross_attention(x: Array, context: Array) -> Array:
        out: Array = _CROSS.run({**given, "x": x, "context": context}, steps)["out"]
        return out

    values = {
        "x": case.x,
        "context": case.context,
        "norm": lambda number: make_norm(number, p, steps),
        "self_attention": self_attention,
        "cross_attention": cross_attention,
        "mlp": make_mlp(p, steps),
    }
    out: Array = _WIRES.run(values, steps)["x"]
    return out


_PARTS = {"add_self": "self-attention", "add_cross": "cross-attention", "add_mlp": "the MLP"}


def _list_orders() -> Iterator[Lines]:
    """Yield each wrong order of the parts twice: the norms move with their parts, or stay."""
    right = [RIGHT[line] for line in _PARTS]
    for order in [*permutations(range(3))][1:]:
        yield dict(zip(_PARTS, (right[n] for n in order), strict=True))
        stay = (right[n].replace(f"norm{n + 1}", f"norm{at + 1}") for at, n in enumerate(order))
        yield dict(zip(_PARTS, stay, strict=True))


def _use_some_lines(mistake: Mistake) -> Mistake:
    """Add variants to a mistake: each variant makes the mistake in some or all of its lines."""
    (way,) = mistake.variants
    some = (names for size in (1, 2, 3) for names in combinations(way, size))
    return replace(mistake, variants=tuple({name: way[name] for name in names} for names in some))


WIRING = (
    TABLE.mistake("decoder-block-order", *_list_orders()),
    *(
        TABLE.mistake(line.replace("add_", "decoder-block-no-"), {line: "pass"}, part=part)
        for line, part in _PARTS.items()
    ),
    *map(_use_some_lines, TABLE.group("of-some-parts")),
    *TABLE.group("of-the-block"),
)
KNOWN = (
    *WIRING,
    *TABLE.group("texts", "decoder-block-projections", "visible"),
    cross.INVERTED,
    *mistakes.HIDING,
    *TABLE.group("cross-mask-on-queries", "decoder-block-no-output-projection"),
    *_block.TABLE.group("norms", "mlps"),
    *map(cross.use_texts, cross.CORE_OF_TWO),
    *_block.SLIPS,
)

# the tests


def _draw(rng: np.random.Generator, sizes: Shape, *masks: str) -> BlockOfTwoTexts:
    """Draw random parameters (multiples of 1/2), and word vectors so large that eps is negligible.

    Args:
        rng: the random generator.
        sizes: the number of words of x, the size of a word vector, and the MLP's hidden size.
        masks: for each text, a string such as "110", in which 1 means visible.
    """
    (words, width, wide), mask = sizes, cross.masks_of(*masks)
    shapes = {
        **{f"norm{n}_{part}": (width,) for n in (1, 2, 3) for part in ("scale", "shift")},
        **{f"{name}_{role}": (width, width) for name in ("self", "cross") for role in "qkvo"},
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
        # Dividing by 4 makes the scores small, so that no key gets all the weight.
        context = vectors(*mask.shape) / 4
        case = BlockOfTwoTexts(vectors(*mask.shape[:-1], words), context, parameters, mask)
        if close(compute(case, {}), compute(case, *_block.EMPTY[0].variants)):
            return case


@per_seed
def one_text() -> list[BlockOfTwoTexts]:
    """Draw single texts, smallest first; the first word of the context is never masked."""
    return [
        _draw(generator(701), (1, 2, 2), "1"),
        _draw(generator(721), (2, 2, 3), "11"),
        _draw(generator(702), (2, 2, 3), "10"),
        _draw(generator(704), (3, 4, 2), "1101"),
        _draw(generator(705), (4, 5, 3), "101"),
        _draw(generator(706), (3, 4, 6), "110"),
    ]


@per_seed
def _others() -> tuple[Group, ...]:
    on_batch = TABLE.group("cross-mask-on-batch")
    batches = (*mistakes.BATCHES, *on_batch, *mistakes.OF_TEXTS)
    two, three = (
        _draw(generator(711), (2, 4, 3), "110", "101"),
        _draw(generator(712), (3, 4, 2), "1100", "1111", "1010"),
    )
    empty, large = (
        _draw(np.random.default_rng(8), (2, 2, 2), "10"),
        _draw(generator(728), (2, 2, 2), "11"),
    )
    empty.x[0] = 0
    ones = {**large.parameters, "self_q": 1000 * np.eye(2), "self_k": np.eye(2)}
    return (
        Group("batches", [two, three], batches, cross.one_text_only),
        Group("a word of zeros", [empty], _block.EMPTY),
        Group("scores of 1000", [replace(large, parameters=ones)], mistakes.LARGE),
    )


def _mark(function: Function) -> Marking:
    """Test a decoder's block."""
    options_of(function, ("x", "context", "parameters", "mask"), {})

    def call(case: BlockOfTwoTexts) -> Any:
        return function(case.x, case.context, case.parameters, case.mask)

    right = Computation("decoder-block", compute, RIGHT, "return x  # (..., T, D)")
    m = BlockMarking(right, function, call)
    m.parts = {
        "self-attention": ["self_o"],
        "cross-attention": ["cross_o"],
        "the MLP": ["w_out", "b_out"],
    }
    first = Group("three parts, residuals, norms, padding of the context", one_text(), KNOWN)
    m.test_all([first, *_others()])
    return m


DECODER_BLOCK = make_task("decoder-block", _mark)
