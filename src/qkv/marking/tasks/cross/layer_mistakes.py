"""The ways to get a decoder's block wrong: each replaces a step of the right computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations

from qkv.arrays import Array
from qkv.marking.mistake import Mistake, Steps, mended, mistake
from qkv.marking.tasks.block.mistakes import MLPS, NORMS
from qkv.marking.tasks.block.mistakes import SLIPS as BLOCK_SLIPS
from qkv.marking.tasks.cross.layer import Rule, pre_norm
from qkv.marking.tasks.cross.mistakes import CORE_OF_TWO, INVERTED, projections_exchanged
from qkv.marking.tasks.mistakes.masks import HIDING
from qkv.marking.tasks.wiring import Part

_WIRES = (
    "x = x + causal_self_attention(norm1(x)); x = x + cross_attention(norm2(x), context);"
    " x = x + mlp(norm3(x))"
)
_NAMES = ("self-attention", "cross-attention", "the MLP")
_SUBSETS = [some for size in (1, 2, 3) for some in combinations(range(3), size)]


def _rule(rule: Rule) -> Steps:
    return {"rule": rule}


def _each(
    some: Sequence[int], other: Callable[[Array, Part, Part], Array]
) -> Callable[[Array, Sequence[Part], Sequence[Part]], Array]:
    """Wired rightly, but some of the three parts in another way."""

    def rule(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
        for number, (part, norm) in enumerate(zip(parts, norms, strict=True)):
            x = other(x, part, norm) if number in some else x + part(norm(x))
        return x

    return rule


def _ordered(order: Sequence[int], norms_too: bool) -> Rule:
    """The parts in another order, each with its own norm or with the norm of its place."""

    def rule(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
        moved = [norms[number] for number in order] if norms_too else norms
        return pre_norm(x, [parts[number] for number in order], moved)

    return rule


def _parallel(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """Self-attention and cross-attention read the same x."""
    own, other, mlp = parts
    x = x + own(norms[0](x)) + other(norms[1](x))
    return x + mlp(norms[2](x))


def _from_start(x: Array, parts: Sequence[Part], norms: Sequence[Part]) -> Array:
    """The last part is added to the x from before cross-attention."""
    own, other, mlp = parts
    x = x + own(norms[0](x))
    return x + mlp(norms[2](x + other(norms[1](x))))


def _missing() -> Iterator[Mistake]:
    """Each of the three parts left out."""
    for number, name in enumerate(_NAMES):
        yield mistake(
            f"decoder-block-no-{('self', 'cross', 'mlp')[number]}",
            f"{name} is missing: a decoder's block has three parts",
            "its parameters make no difference",
            _rule(_each((number,), lambda x, part, norm: x)),
            nudge="Change each parameter in turn: does every one of them make a difference?",
        )


WIRING = mended(
    _WIRES,
    mistake(
        "decoder-block-order",
        "the parts stand in another order than causal self-attention, cross-attention, MLP",
        "a part reads word vectors to which the one before it has not added yet",
        *(
            _rule(_ordered(order, norms_too))
            for order in [*permutations(range(3))][1:]
            for norms_too in (True, False)
        ),
        nudge="Set self_o, cross_o and w_out to zero, all but one: which parts change what comes"
        " after them?",
        alone=True,
    ),
    *_missing(),
    mistake(
        "decoder-block-no-residual",
        "nothing is added to what was there: a residual connection is missing around one of the"
        " three parts, or around several",
        "what the word was before is lost, and only what the part computed is left",
        *(_rule(_each(some, lambda x, part, norm: part(norm(x)))) for some in _SUBSETS),
        nudge="Set self_o, cross_o, w_out and b_out to zero: what should come out?",
    ),
    mistake(
        "decoder-block-normed-stream",
        "x is replaced by its norm, and a part is added to that instead of to x",
        "the size of a word vector is lost in each block",
        *(
            _rule(_each(some, lambda x, part, norm: norm(x) + part(norm(x))))
            for some in _SUBSETS
        ),
        remedy=f"{_WIRES}  # the norm goes into the part alone",
        nudge="Set self_o, cross_o, w_out and b_out to zero: what should come out?",
        alone=True,
    ),
    mistake(
        "decoder-block-no-norm",
        "a norm is missing: one of the three parts gets x as it is",
        "large word vectors make large scores, and one key takes nearly all the weight",
        *(_rule(_each(some, lambda x, part, norm: x + part(x))) for some in _SUBSETS),
        nudge="Change norm1_scale, norm2_scale and norm3_scale: does the output change each time?",
    ),
    mistake(
        "decoder-block-post-norm",
        "the norm comes after the residual is added; the task asks for a norm before each part",
        "what the block gives is normed itself, as in the first transformer",
        _rule(_each((0, 1, 2), lambda x, part, norm: norm(x + part(x)))),
        nudge="Set self_o, cross_o, w_out and b_out to zero: does x come out as it went in?",
    ),
    mistake(
        "decoder-block-norm-of-part",
        "the norm is taken of what a part gives; the task asks for a norm of what it gets",
        "the numbers that a part adds always have the same size",
        _rule(_each((0, 1, 2), lambda x, part, norm: x + norm(part(x)))),
        nudge="Double self_o: does what self-attention adds double?",
    ),
    mistake(
        "decoder-block-parallel",
        "self-attention and cross-attention read the same x; cross-attention should read what"
        " self-attention has added to",
        "what a word looks for in the context does not depend on the words before it",
        _rule(_parallel),
        nudge="Change self_o: does what cross-attention adds change, too?",
    ),
    mistake(
        "decoder-block-from-start",
        "the MLP's part is added to the x from before cross-attention",
        "what cross-attention found reaches the output only through the MLP",
        _rule(_from_start),
        nudge="Set w_out and b_out to zero: is what cross-attention found still there?",
    ),
    mistake(
        "decoder-block-norm-shared",
        "one norm stands before two parts, or two norms have changed places",
        "some of the norms' parameters make no difference, or act on another part",
        *(
            {"norms": lambda numbers, used=used: used}
            for used in (
                (1, 1, 3), (1, 2, 2), (1, 2, 1), (2, 2, 3), (3, 2, 3), (1, 3, 3), (1, 1, 1),
                (1, 1, 2), (2, 1, 3), (1, 3, 2), (3, 2, 1),
            )
        ),
        nudge="Change each parameter in turn: which part does it reach first?",
        alone=True,
    ),
    where="the lines that call the three parts: what goes in, and what is added to what?",
)  # fmt: skip

TEXTS = (
    *mended(
        "k = context @ cross_k; v = context @ cross_v  # and q = norm2(x) @ cross_q",
        mistake(
            "cross-keys-from-x",
            "the keys of cross-attention are made of x; they belong to the context",
            "the words of x are compared with each other, and the weights fall on the context",
            {"texts": lambda x, context: (x, x, context)},
            nudge="Change one word of the context: do the weights change?",
        ),
        mistake(
            "cross-values-from-x",
            "the values of cross-attention are made of x; they belong to the context",
            "what comes back is made of the words that asked, and not of those that were found",
            {"texts": lambda x, context: (x, context, x)},
            nudge="Let all the words of the context be equal: what may cross-attention add?",
        ),
        mistake(
            "cross-self",
            "keys and values of cross-attention are made of x: that is self-attention once more",
            "the output does not depend on the context at all",
            {"texts": lambda x, context: (x, x, x), "other_mask": lambda visible: None},
            {"texts": lambda x, context: (x, x, x)},
            {
                "texts": lambda x, context: (x, x, x),
                "other_mask": lambda visible: None,
                "other_causal": lambda: True,
            },
            nudge="Change one word of the context: does the output change?",
        ),
        mistake(
            "decoder-block-context-normed",
            "norm2 is taken of the context, too; it belongs to x alone, and the encoder has normed"
            " what it gives",
            "keys and values are made of other vectors than those that were handed over",
            {"context": lambda context, norm: norm(context)},
            nudge="Double the context: may what cross-attention adds change?",
        ),
        where="the lines that make q, k and v of cross-attention: from which text does each come?",
    ),
    mistake(
        "self-reads-context",
        "self-attention takes its keys and values from the context; it belongs to x alone",
        "no word sees the words that were written before it",
        {"own": lambda x, context: (x, context, context)},
        {"own": lambda x, context: (x, context, context), "own_causal": lambda: False},
        {
            "own": lambda x, context: (x, context, context),
            "own_causal": lambda: False,
            "own_mask": lambda visible: visible,
        },
        remedy="h = norm1(x); q, k, v = h @ self_q, h @ self_k, h @ self_v",
        nudge="Set cross_o to zero: may the output still depend on the context?",
        where="the lines that make q, k and v of self-attention",
    ),
    projections_exchanged(
        "decoder-block-projections",
        remedy='q = h @ parameters["self_q"]  # and cross_q ... cross_o for the next',
    ),
)

VISIBLE = (
    mistake(
        "self-not-causal",
        "self-attention has no causal mask: a word sees those that are written after it",
        "right for one word; in training the block reads the answer",
        {"own_causal": lambda: False},
        remedy="visible = np.tri(T, dtype=bool)  # for self-attention",
        nudge="Change the last word of x: which rows of the output change?",
        where="the mask of self-attention",
    ),
    mistake(
        "cross-causal",
        "a causal mask hides words of the context; all of it is there before the first word is"
        " written",
        "the first word sees the first word of the context alone",
        {"other_causal": lambda: True},
        remedy="cross-attention gets the mask of the context alone, mask[..., None, :]",
        nudge="Change the last word of the context: which rows of the output change?",
        where="the mask of cross-attention: which words of the context may the first word see?",
    ),
    mistake(
        "cross-padding-seen",
        "the padding of the context is not masked in cross-attention",
        "a text gives something else beside a longer one",
        {"other_mask": lambda visible: None},
        remedy="scores = np.where(mask[..., None, :], scores, -np.inf)  # in cross-attention",
        nudge="Change a word of the context where mask is False: does the output change?",
        where="the mask of cross-attention",
    ),
    mistake(
        "self-masked-as-context",
        "self-attention is masked by the mask of the context, which says nothing of the words of x",
        "it fails where the two texts differ in length, and hides words where they do not",
        {"own_mask": lambda visible: visible},
        {"own_mask": lambda visible: visible, "own_causal": lambda: False},
        {"own_mask": lambda visible: visible, "other_mask": lambda visible: None},
        remedy="self-attention gets np.tri(T, dtype=bool), cross-attention mask[..., None, :]",
        nudge="Of which text does mask have a number for each word?",
        where="the masks of both attentions: which text is each made for?",
    ),
    INVERTED,
    *HIDING,
    mistake(
        "cross-mask-on-queries",
        "the mask is put on the rows of the scores, which are words of x; it says which words of"
        " the context are there",
        "it fails where the two texts differ in length, and hides nothing of the context",
        {"other_mask": lambda visible: visible[..., 0, :, None]},
        remedy="scores = np.where(mask[..., None, :], scores, -np.inf)  # in cross-attention",
        nudge="Print the shapes of the scores and of the mask: which axes meet?",
        where="the place where the mask meets the scores: does it have an axis for the queries?",
    ),
)

ON_BATCH = mistake(
    "cross-mask-on-batch",
    "the mask (B, S) meets the scores (B, T, S) without an axis for the queries, so that its texts"
    " are taken for words",
    "right for one text; for several it fails, or masks word i as text i should be",
    {"other_mask": lambda visible: visible[..., 0, :]},
    remedy="scores = np.where(mask[..., None, :], scores, -np.inf)  # in cross-attention",
    nudge="Print the shapes of the scores and of the mask: which axes meet?",
    where="the place where the mask meets the scores: does it have an axis for the queries?",
)

OUTPUTS = (
    mistake(
        "decoder-block-no-output-projection",
        "what attention gives is not multiplied by self_o, or not by cross_o",
        "self_o or cross_o makes no difference",
        {"output": lambda out, w_o: out},
        remedy='x = x + out @ parameters["self_o"]  # and cross_o',
        nudge="Change each parameter in turn: does every one of them make a difference?",
        where="the end of each attention",
    ),
)


def _of_three(known: Sequence[Mistake]) -> Iterator[Mistake]:
    """Those that do not name a block of two parts."""
    for one in known:
        wires = any("wire" in variant for variant in one.variants)
        if not wires and not one.key.startswith("block-"):
            yield one


KNOWN = (
    *WIRING,
    *TEXTS,
    *VISIBLE,
    *OUTPUTS,
    *_of_three((*NORMS, *MLPS)),
    *CORE_OF_TWO,
    *_of_three(BLOCK_SLIPS),
)
