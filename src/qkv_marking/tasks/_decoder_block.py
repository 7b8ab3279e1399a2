"""The task `decoder-block`: self-attention, cross-attention and an MLP, each after a norm.

Sources: Vaswani et al. 2017 (three parts per block), Xiong et al. 2020 (pre-norm).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from qkv.arrays import Array, Shape
from qkv_marking._engine import Group, Marking, generator, per_seed
from qkv_marking._mistake import Function, Mistake, Steps
from qkv_marking._outcome import close, options_of
from qkv_marking.tasks import _block, _cross_attention as cross
from qkv_marking.tasks._block import BlockMarking, Part, pre_norm, some_parts, wire
from qkv_marking.tasks._task import Computation, Phrases, make_task
from qkv_marking.tasks.attention.steps import Trial, same
from qkv_marking.tasks.mistakes.formula import BATCHES, LARGE
from qkv_marking.tasks.mistakes.masks import HIDING, TEXTS as MASKS_OF_A_BATCH

_TEXTS = Phrases(__name__)

# the computation, step by step


class BlockOfTwoTexts(cross.TwoTexts):
    """One call: x (..., T, D), context (..., S, D), named parameters, and a context mask."""

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat this call."""
        named = {f'parameters["{name}"]': a for name, a in self.parameters.items()}
        return {"x": self.x, "context": self.context, **named, "mask": self.mask}


def compute(case: cross.TwoTexts, steps: Steps) -> Array:
    """Return the block's output (..., T, D)."""
    p, visible = case.parameters, cross.of_keys(case.mask)

    def norm(number: int) -> Part:
        scale, shift = p[f"norm{number}_scale"], p[f"norm{number}_shift"]
        return lambda x: steps["affine"](steps["normalize"](x), scale, shift)

    norms = [norm(number) for number in steps["norms"]((1, 2, 3))]
    first, second = steps["projections"]("self", "cross")

    def attention(name: str, texts: tuple[Array, Array, Array], mask: Any, causal: bool) -> Array:
        arrays = {"x": texts[0], **{f"w_{role}": p[f"{name}_{role}"] for role in "qkv"}}
        one = Trial(arrays, mask=mask, causal=causal, output=p[f"{name}_o"])
        return cross.attend(one, texts, steps)

    def self_attention(x: Array) -> Array:
        texts = steps["own"](x, case.context)
        return attention(first, texts, steps["own_mask"](visible), steps["own_causal"]())

    def cross_attention(x: Array) -> Array:
        texts = steps["texts"](x, steps["context"](case.context, norms[1]))
        return attention(second, texts, steps["other_mask"](visible), steps["other_causal"]())

    def mlp(x: Array) -> Array:
        out: Array = steps["mlp"](x, p, steps["activation"])
        return out

    out: Array = steps["wire"](case.x, (self_attention, cross_attention, mlp), norms)
    return out


RIGHT: Steps = {
    **_block.RIGHT,
    "norms": same,
    "projections": lambda first, second: (first, second),
    "own": lambda x, context: (x, x, x),
    "own_mask": lambda visible: None,
    "own_causal": lambda: True,
    "texts": lambda x, context: (x, context, context),
    "context": same,
    "other_mask": same,
    "other_causal": lambda: False,
    "blank": same,  # no case has a fully masked row
}

# the mistakes

_SUBSETS = [numbers for size in (1, 2, 3) for numbers in combinations(range(3), size)]


def _some(other: Callable[[Array, Part, Part], Array]) -> list[Steps]:
    """Return one step for each subset of the three parts.

    The step uses `other` for the parts in the subset, and pre-norm for the remaining parts.
    """
    return [some_parts(numbers, other) for numbers in _SUBSETS]


def _reorder(order: Sequence[int], norms_too: bool) -> Steps:
    """Return a step that changes the order of the parts; `norms_too` moves the norms as well."""
    return wire(
        lambda x, parts, norms: pre_norm(
            x, [parts[n] for n in order], [norms[n] for n in order] if norms_too else norms
        )
    )


def _parallel(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Let self-attention and cross-attention read the same x."""
    self_attention, cross_attention, mlp = parts
    x = x + self_attention(norms[0](x)) + cross_attention(norms[1](x))
    return x + mlp(norms[2](x))


def _from_start(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Add the MLP's output to the input of cross-attention, not to the input of the MLP."""
    self_attention, cross_attention, mlp = parts
    x = x + self_attention(norms[0](x))
    return x + mlp(norms[2](x + cross_attention(norms[1](x))))


WIRING = (
    _TEXTS.mistake(
        "decoder-block-order",
        *(
            _reorder(order, norms_too)
            for order in [*permutations(range(3))][1:]
            for norms_too in (True, False)
        ),
    ),
    *(
        _TEXTS.mistake(
            "part-missing", some_parts((number,), lambda x, part, norm: x), short=short, part=part
        )
        for number, (short, part) in enumerate(
            [("self", "self-attention"), ("cross", "cross-attention"), ("mlp", "the MLP")]
        )
    ),
    *_TEXTS.mistakes(
        {
            "decoder-block-no-residual": _some(lambda x, part, norm: part(norm(x))),
            "decoder-block-normed-stream": _some(lambda x, part, norm: norm(x) + part(norm(x))),
            "decoder-block-no-norm": _some(lambda x, part, norm: x + part(x)),
            "decoder-block-post-norm": _some(lambda x, part, norm: norm(x + part(x)))[-1:],
            "decoder-block-norm-of-part": _some(lambda x, part, norm: x + norm(part(x)))[-1:],
            "decoder-block-parallel": [_parallel],
            "decoder-block-from-start": [_from_start],
            "decoder-block-norm-shared": [
                {"norms": lambda numbers, used=used: [*map(int, str(used))]}
                for used in (113, 122, 121, 223, 323, 133, 111, 112, 213, 132, 321)
            ],
        },
        step="wire",
    ),
)

TEXTS = _TEXTS.mistakes(
    {
        "cross-keys-from-x": [lambda x, context: (x, x, context)],
        "cross-values-from-x": [lambda x, context: (x, context, x)],
        "cross-self": [
            {"texts": RIGHT["own"], "other_mask": RIGHT["own_mask"]},
            RIGHT["own"],
            {
                "texts": RIGHT["own"],
                "other_mask": RIGHT["own_mask"],
                "other_causal": RIGHT["own_causal"],
            },
        ],
        "decoder-block-context-normed": [{"context": lambda context, norm: norm(context)}],
        "self-reads-context": [
            {"own": RIGHT["texts"]},
            {"own": RIGHT["texts"], "own_causal": RIGHT["other_causal"]},
            {
                "own": RIGHT["texts"],
                "own_causal": RIGHT["other_causal"],
                "own_mask": RIGHT["other_mask"],
            },
        ],
        "decoder-block-projections": [{"projections": way} for way in cross.EXCHANGED],
    },
    step="texts",
)

VISIBLE = (
    *_TEXTS.mistakes(
        {
            "self-not-causal": [{"own_causal": lambda: False}],
            "cross-causal": [{"other_causal": lambda: True}],
            "cross-padding-seen": [{"other_mask": lambda visible: None}],
            "self-masked-as-context": [
                {"own_mask": same},
                {"own_mask": same, "own_causal": lambda: False},
                {"own_mask": same, "other_mask": lambda visible: None},
            ],
        }
    ),
    cross.INVERTED,
    *HIDING,
    _TEXTS.mistake(
        "cross-mask-on-queries", {"other_mask": lambda visible: visible[..., 0, :, None]}
    ),
)
ON_BATCH = _TEXTS.mistake("cross-mask-on-batch", {"other_mask": lambda visible: visible[..., 0, :]})


def _of_three(known: Sequence[Mistake]) -> Iterator[Mistake]:
    """Yield the mistakes of the task `block` that can occur in a decoder block (three parts)."""
    for mistake in known:
        wires = any("wire" in variant for variant in mistake.variants)
        if not wires and not mistake.key.startswith("block-"):
            yield mistake


KNOWN = (
    *WIRING,
    *TEXTS,
    *VISIBLE,
    _TEXTS.mistake("decoder-block-no-output-projection", {"output": same}),
    *_of_three((*_block.NORMS, *_block.MLPS)),
    *cross.CORE_OF_TWO,
    *_of_three(_block.SLIPS),
)

# the tests

_WITHOUT_EPS: Steps = {**RIGHT, "normalize": lambda x: _block.layer_norm(x, eps=0.0)}


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
        with np.errstate(all="ignore"):
            if close(compute(case, RIGHT), compute(case, _WITHOUT_EPS)):
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
    batches = (*BATCHES, ON_BATCH, *MASKS_OF_A_BATCH)
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
        Group("scores of 1000", [replace(large, parameters=ones)], LARGE),
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
