"""The task `writing-step`: a decoder with a cache of written words and a cache of the context.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention, with an encoder).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Marking, generator, per_seed
from qkv_marking._mistake import Function, Steps
from qkv_marking._outcome import options_of
from qkv_marking.tasks import _kv_cache
from qkv_marking.tasks._block import NO_RESIDUAL, pre_norm
from qkv_marking.tasks._cross_attention import CORE_OF_TWO, EXCHANGED
from qkv_marking.tasks._kv_cache import Calls, Past, StepMarking, advance, attend
from qkv_marking.tasks._task import Computation, Phrases, make_task
from qkv_marking.tasks.attention.steps import same
from qkv_marking.tasks.mistakes.formula import OF_CAUSAL

_TEXTS = Phrases(__name__)
NAMES = tuple(f"{text}_{role}" for text in ("self", "cross") for role in "qkv")

# the computation, step by step


class Writing(Calls):
    """A text that is split into several calls, and a context (S, D) that each call receives."""

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat these calls."""
        named = ((*name.partition(" "), a) for name, a in super().list_arguments().items())
        return {
            f'parameters["{name}"]{space}{rest}' if name in NAMES else f"{name}{space}{rest}": a
            for name, space, rest, a in named
        }


def compute(case: Calls, steps: Steps) -> Array:
    """Return the outputs (T, D) of all calls, concatenated."""
    context, width = case.arrays["context"], case.arrays["x"].shape[1]
    past = cross = Past(*np.zeros((2, 0, width)))
    words = case.arrays["x"][:0]  # all words that self-attention has read so far
    outs: list[Array] = []
    for x in case.pieces():
        p = (case.later or case.arrays) if outs else case.arrays
        first, second = steps["projections"]("self", "cross")
        own_w = tuple(p[f"{first}_{role}"] for role in "qkv")
        cross_w = tuple(p[f"{second}_{role}"] for role in "qkv")

        def self_attention(x: Array, w: tuple[Array, ...] = own_w) -> Array:
            nonlocal past, words
            past = Past(*steps["recalls"](past, words, w[1], w[2]))
            words = np.concatenate([words, x])
            out, past = advance(x, w, past, steps)
            return out

        def cross_attention(x: Array, w: tuple[Array, ...] = cross_w, before: Array = x) -> Array:
            nonlocal cross
            new = steps["words"](x, before)
            made = Past(context @ w[1], context @ w[2]), Past(new @ w[1], new @ w[2])
            source = steps["source"](cross, *made)
            cross = steps["stored"](source)
            read = steps["read"](source, past)
            i, j = np.arange(len(x))[:, None], np.arange(len(read.key))
            sees = steps["source_sees"](i, j, len(words) - len(x))
            out = attend(x @ w[0], read.key, read.value, sees, x.shape[1], steps)
            return out if steps["reads_context"](len(outs)) else np.zeros_like(out)

        outs.append(steps["wire"](x, (self_attention, cross_attention), (same, same)))
    return np.concatenate(outs)


def _once(past: Past, context: Past, words: Past) -> Past:
    """Return the cached keys and values of the context; if the cache is empty, return `context`."""
    return past if len(past.key) else context


RIGHT: Steps = {
    **_kv_cache.RIGHT,
    "projections": lambda first, second: (first, second),
    "words": same,  # some wrong steps compute keys and values from these words
    "source": _once,
    "stored": same,
    "read": lambda source, past: source,
    "source_sees": lambda i, j, before: j >= 0,
    "reads_context": lambda calls: True,
    "wire": pre_norm,
}

# the mistakes

WIRING = _TEXTS.mistakes(
    {
        "writing-order": [
            lambda x, parts, norms: pre_norm(x, parts[::-1], norms),
            lambda x, parts, norms: x + parts[0](x) + parts[1](x),
        ],
        "writing-no-residual": NO_RESIDUAL,
        "writing-context-at-first": [{"reads_context": lambda calls: not calls}],
        "writing-self-alone": [lambda x, parts, norms: x + parts[0](x)],
    },
    step="wire",
)


def _join(a: Past, b: Past) -> Past:
    return Past(np.concatenate([a.key, b.key]), np.concatenate([a.value, b.value]))


def _with_words(past: Past, context: Past, words: Past) -> Past:
    """Append the keys and values of new words to the cached rows of the context."""
    return _join(_once(past, context, words), words)


def _of_words(*sources: Callable[[Past, Past, Past], Past]) -> list[Steps]:
    """Return the variants of a mistake: two variants for each function in `sources`.

    In both variants, the function takes the place of the step "source". Its third argument holds
    the keys and values of the words that the call adds. The first variant computes these keys and
    values from the words' vectors after self-attention, and the second variant from the vectors
    before self-attention.
    """
    befores: tuple[Steps, ...] = ({}, {"words": lambda x, before: before})
    return [{"source": source, **before} for source in sources for before in befores]


SOURCE = _TEXTS.mistakes(
    {
        "cross-cache-grows": _of_words(
            _with_words,
            lambda past, context, words: (_with_words if len(past.key) else _once)(
                past, context, words
            ),
        ),
        "cross-self": _of_words(
            lambda past, context, words: words, lambda past, context, words: _join(past, words)
        ),
        "cross-keys-from-x": _of_words(lambda past, context, words: Past(words.key, context.value)),
        "cross-values-from-x": _of_words(
            lambda past, context, words: Past(context.key, words.value)
        ),
        "cross-cache-exchanged": [{"stored": lambda source: Past(source.value, source.key)}],
        "cross-reads-own-cache": [{"read": lambda source, past: past}],
    }
)
# The test changes the projections after the first call. A correct step function still uses its
# cached rows. A step function with one of these mistakes projects the context again.
RECOMPUTED = _TEXTS.mistakes(
    {
        "cross-recomputed": [
            lambda past, context, words: context,
            lambda past, context, words: Past(context.key, _once(past, context, words).value),
            lambda past, context, words: Past(_once(past, context, words).key, context.value),
        ],
        "cross-appended": [lambda past, context, words: _join(past, context)],
    },
    step="source",
)
KNOWN = (
    *_kv_cache.CACHING,
    *_kv_cache.MASKING,
    *WIRING,
    *SOURCE,
    *_TEXTS.mistakes(
        {
            "cross-causal": [lambda i, j, before: j <= before + i, lambda i, j, before: j <= i],
            "writing-projections": [{"projections": way} for way in EXCHANGED],
        },
        step="source_sees",
    ),
    *CORE_OF_TWO,
    *OF_CAUSAL,
    _kv_cache.EXCHANGED,
)

# the tests


def _draw(seed: int, parts: tuple[int, ...], source: int, width: int) -> Writing:
    """Return random projections, word vectors, and context vectors (source, width).

    All entries are multiples of 1/2.
    """
    rng = generator(seed)
    shapes = {"x": (sum(parts), width), "context": (source, width)}
    shapes |= dict.fromkeys(NAMES, (width, width))
    return Writing({name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}, parts)


@per_seed
def word_by_word() -> list[Calls]:
    """Draw texts that are read one word per call; smaller texts come first."""
    return [_draw(801, (1, 1), 2, 2), _draw(802, (1, 1), 3, 2), _draw(803, (1, 1, 1), 4, 3)]


@per_seed
def several() -> list[Calls]:
    """Draw texts that are read in one or more calls; at least one call reads several words."""
    return [
        _draw(811, (2,), 2, 2),
        _draw(816, (3,), 3, 3),
        _draw(817, (3, 1), 4, 4),
        _draw(812, (2, 1), 4, 3),
        _draw(813, (1, 2), 3, 3),
        _draw(814, (2, 2), 4, 2),
        _draw(815, (1, 3, 2), 5, 4),
    ]


def _call(step: Function, case: Calls, x: Array, cache: Any) -> Any:
    """Call a step function with these words and this cache."""
    parameters = {name: case.arrays[name] for name in NAMES}
    return step(x, case.arrays["context"], cache, parameters)


def _mark(function: Function) -> Marking:
    """Test a step function that writes words after a context."""
    options_of(function, ("x", "context", "cache", "parameters"), {})
    smallest = word_by_word()[0]
    returns = "return out, (k, v, source)  # k, v from all words; source from the context"
    m = StepMarking(Computation("writing-step", compute, RIGHT, returns), function, _call, smallest)
    m.first_calls()
    if m.wrong:
        return m
    known = (_kv_cache.NOT_FILLED, *KNOWN) if m.gives_none else KNOWN
    m.test_in_parts(word_by_word(), several(), known)
    others = [_with_other_projections(case) for case in (smallest, several()[-1])]
    m.last_calls(others, [_kv_cache.RECOMPUTED, *RECOMPUTED])
    return m


def _with_other_projections(case: Calls) -> Calls:
    """Change the key and value projections of a case after the first call."""
    w = case.arrays
    changed = {"self_k": w["self_k"] + 1, "self_v": w["self_v"] - 2}
    changed |= {"cross_k": 1 - w["cross_k"], "cross_v": 2 - w["cross_v"]}
    return replace(case, later={name: w[name] for name in NAMES} | changed)


WRITING_STEP = make_task("writing-step", _mark)
