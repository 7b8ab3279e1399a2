"""Mark a step of writing: a function of new words, a context, a cache and parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.arrays import Array
from qkv.marking.draws import generator, per_seed
from qkv.marking.functions import options_of
from qkv.marking.result import CheckResult
from qkv.marking.tasks.cross.writing import RIGHT, Writing, compute
from qkv.marking.tasks.cross.writing_mistakes import KNOWN, RECOMPUTED
from qkv.marking.tasks.kv_cache import NOT_FILLED
from qkv.marking.tasks.kv_cache import RECOMPUTED as OWN_RECOMPUTED
from qkv.marking.tasks.stepping import Run, StepMarking
from qkv.marking.tasks.task import Task

NAMES = tuple(f"{text}_{role}" for text in ("self", "cross") for role in "qkv")


def _drawn(seed: int, parts: tuple[int, ...], source: int, width: int) -> Writing:
    """Multiples of 1/2 between -2 and 2, for a context of so many words."""
    rng = generator(seed)
    shapes = {"x": (sum(parts), width), "context": (source, width)}
    shapes |= dict.fromkeys(NAMES, (width, width))
    arrays = {name: rng.integers(-4, 5, shape) / 2 for name, shape in shapes.items()}
    return Writing(arrays, parts)


@per_seed
def word_by_word() -> list[Run]:
    """One word in each call, smallest first."""
    return [
        _drawn(801, (1, 1), 2, 2),
        _drawn(802, (1, 1), 3, 2),
        _drawn(803, (1, 1, 1), 4, 3),
    ]


@per_seed
def several() -> list[Run]:
    """Several words in a call."""
    return [
        _drawn(811, (2,), 2, 2),
        _drawn(816, (3,), 3, 3),
        _drawn(817, (3, 1), 4, 4),
        _drawn(812, (2, 1), 4, 3),
        _drawn(813, (1, 2), 3, 3),
        _drawn(814, (2, 2), 4, 2),
        _drawn(815, (1, 3, 2), 5, 4),
    ]


def _call(step: Callable[..., Any], case: Run, x: Array, cache: Any) -> Any:
    """What a step gives for these words and this cache."""
    parameters = {name: case.arrays[name] for name in NAMES}
    return step(x, case.arrays["context"], cache, parameters)


def _mark(function: Callable[..., Any], way: str) -> CheckResult:
    """Mark a step of writing."""
    options_of(function, ("x", "context", "cache", "parameters"), {})
    smallest = word_by_word()[0]
    m = StepMarking(
        "writing-step",
        function,
        _call,
        compute,
        RIGHT,
        returns="return out, (k, v, source)  # self keys and values so far, those of the context",
        smallest=smallest,
    )
    m.first_calls()
    if m.wrong:
        return m.result()
    m.test_in_parts(word_by_word(), several(), (NOT_FILLED, *KNOWN) if m.gives_none else KNOWN)
    others = [_with_other_projections(case) for case in (smallest, several()[-1])]
    m.last_calls(others, [OWN_RECOMPUTED, *RECOMPUTED])
    return m.result()


def _with_other_projections(case: Run) -> Run:
    """The same text, with keys and values that are projected otherwise from the second call on."""
    w = case.arrays
    changed = {"self_k": w["self_k"] + 1, "self_v": w["self_v"] - 2}
    changed |= {"cross_k": 1 - w["cross_k"], "cross_v": 2 - w["cross_v"]}
    return replace(case, later={name: w[name] for name in NAMES} | changed)


WRITING_STEP = Task(
    name="writing-step",
    looks_for=("decoder_step", "writing_step"),
    signature="decoder_step(x, context, cache, parameters) -> (out, cache)",
    asks="x = x + causal self-attention(x), then out = x + cross-attention(x, context), of the n"
    " new words x (n, D), given what earlier calls kept (None at first); parameters has self_q,"
    " self_k, self_v, cross_q, cross_k, cross_v, each (D, D); those of self-attention project the"
    " new words alone, cross_k and cross_v the context (S, D) once",
    mark=_mark,
)
