"""The task `writing-step`: a decoder with a cache of written words and a cache of the context.

Source: Shazeer 2019, Fast Transformer Decoding (incremental attention, with an encoder).
"""

from dataclasses import replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._engine import Marking, generator, per_seed
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function
from qkv_marking._outcome import options_of
from qkv_marking.tasks import _kv_cache
from qkv_marking.tasks._cross_attention import CORE_OF_TWO
from qkv_marking.tasks._kv_cache import SCORE, SELF_ATTEND, WEIGH, Calls, StepMarking
from qkv_marking.tasks._table import Table
from qkv_marking.tasks._task import Computation, make_task
from qkv_marking.tasks.attention.mistakes import OF_CAUSAL

_TABLE = Table(__package__, "writing_step", base=_kv_cache.FORMULA)
RIGHT = _TABLE.formula.lines
_SELF = _TABLE.formula.part("own_weights", *SELF_ATTEND)
_CROSS = _TABLE.formula.part("cross_weights", "ask", "source", "store", *SCORE, "whole", *WEIGH)
_STEP = _TABLE.formula.part("own", "read", "out")
NAMES = tuple(f"{text}_{role}" for text in ("self", "cross") for role in "qkv")


class Writing(Calls):
    """A text that is split into several calls, and a context (S, D) that each call receives."""

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments that a learner needs to repeat these calls."""
        named = ((*name.partition(" "), a) for name, a in super().list_arguments().items())
        return {
            f'parameters["{name}"]{space}{rest}' if name in NAMES else f"{name}{space}{rest}": a
            for name, space, rest, a in named
        }


def compute(case: Calls, steps: Lines) -> Array:
    """Return the outputs (T, D) of all calls, concatenated."""
    words = case.arrays["x"][:0]
    # the words of the earlier calls, and the keys and values of these words and of the context
    now: dict[str, Any] = {"words": words, "cache": (words, words), "source": (words, words)}

    def self_attention(x: Array) -> Array:
        names = _SELF.run({**now, "x": x}, steps)
        now.update(cache=names["new_cache"], words=np.concatenate([now["words"], x]))
        out: Array = names["out"]
        return out

    def cross_attention(x: Array, context: Array) -> Array:
        names = _CROSS.run({**now, "x": x, "context": context}, steps)
        now["source"] = names["new_source"]
        out: Array = names["out"]
        return out

    parts = {"self_attention": self_attention, "cross_attention": cross_attention}
    outs = []
    for arrays in case.split_arrays():
        # some wrong lines project the words as they were before self-attention
        now.update(parameters=arrays, start=arrays["x"], before=len(now["words"]))
        outs.append(_STEP.run({**now, **arrays, **parts}, steps)["out"])
    return np.concatenate(outs)


SOURCE = _TABLE.group("source")
# The test changes the projections after the first call. A correct step function still uses its
# cached rows. A step function with one of these mistakes projects the context again.
RECOMPUTED = _TABLE.group("recomputed")
KNOWN = (
    *_kv_cache.CACHING,
    *_kv_cache.MASKING,
    *_TABLE.group("wiring"),
    *SOURCE,
    *_TABLE.group("cross-causal", "writing-projections"),
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
