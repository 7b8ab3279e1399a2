"""Mistakes in attention, in masks and in heads, from mistakes.toml."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv_marking._mistake import Mistake
from qkv_marking._tiles import average_tiles, divide_each_tile, running_maximum
from qkv_marking.tasks._table import Table


def softmax(s: Array) -> Array:
    """Compute softmax over the last axis."""
    e: Array = np.exp(s - s.max(axis=-1, keepdims=True))
    weights: Array = e / e.sum(axis=-1, keepdims=True)
    return weights


def _added_up(terms: Iterable[Array]) -> Array:
    """Add up floats in an integer array, which truncates each sum."""
    total: Array = np.array(0.0)
    for term in terms:
        total = np.trunc(total + term)
    return total


def _without_seen(w: Array, at: int) -> Array:
    """Set the first weight (at = 0) or the last positive weight (at = -1) of each row to 0."""
    positions = np.arange(w.shape[-1])
    last = np.where(w > 0, positions, -1).max(axis=-1, keepdims=True)
    return np.where(positions == (last if at else 0), 0.0, w)


def _cosine(q: Array, k: Array) -> Array:
    """Return the cosine of each query and each key (..., L, S)."""
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    return np.asarray(q @ np.swapaxes(k, -1, -2))


HELPERS: Mapping[str, Any] = {
    "cosine": _cosine,
    "running_maximum": running_maximum,
    "divide_each_tile": divide_each_tile,
    "average_tiles": average_tiles,
    "softmax": softmax,
    "added_up": _added_up,
    "without_seen": _without_seen,
}
TABLE = Table(__package__, "mistakes", HELPERS)
FORMULA = TABLE.formula

SHAPES = TABLE.group("sizes")
OF_CAUSAL = TABLE.group("seen-key-forgotten")
SLIPS = TABLE.group("cut-off", "loops", "of-attention", "forgotten")
LARGE = TABLE.group("large")
BATCHES = TABLE.group("batch-transpose", "batch-axis")
ONE_TEXT = TABLE.mistake("one-text-only")
TILES = TABLE.group("tiles")
OF_OUTPUT = TABLE.group("of-output")

HEADS = TABLE.group("heads")
IN_TURN = TABLE.mistake("heads-interleaved")
ONE_HEAD = TABLE.group("one-head")
JOINED = TABLE.group("heads-join-interleaved", "heads-reversed")
OUTPUT_MISSING = TABLE.mistake("output-missing")

HIDING = TABLE.group("hiding")
MASK = TABLE.group("given")
EMPTY = TABLE.group("empty")
BOTH = TABLE.group("both-masks")
OFFSET = TABLE.group("offset")
WEAK = TABLE.group("weak")  # tried only in tasks that require a mask
LARGE_MASK = TABLE.group("large-mask")
OF_TEXTS = TABLE.group("masks-of-texts")


def causal(keys: Mapping[str, str], remedy: str = "") -> tuple[Mistake, ...]:
    """Return some of the mistakes in causal masks, and give each mistake a new name.

    `keys` maps the name of each returned mistake in this module to its new name. For example,
    `{"ahead": "causal-ahead"}` returns one mistake, whose `key` is "causal-ahead".
    """
    known = (TABLE.mistake(name) for name in keys)
    return tuple(replace(one, key=keys[one.key], remedy=remedy) for one in known)


OFF = {name: f"causal-{name}" for name in ("diagonal", "ahead", "upper")}
CAUSAL = causal(OFF | {"ignored": "causal-ignored"})

# names of mistakes, keyed by the indices of the arrays used as query, key and value; for example,
# (1, 0, 2) swaps query (0) and key (1)
_EXCHANGED: dict[tuple[int, ...], str] = {(1, 0, 2): "query-key-swapped", (0, 1, 1): "key-as-value"}


def mix_inputs(signature: str) -> Iterator[Mistake]:
    """Yield a mistake for each wrong choice of query, key and value, or of their projections."""
    arguments = ("query", "key", "value")
    names, line, order, shared = arguments, "inputs", "arguments-order", "arguments-shared"
    if signature != "qkv":
        names, line = ("w_q", "w_k", "w_v"), "project"
        order, shared = "projections-swapped", "projections-shared"
    for used in product(range(3), repeat=3):
        if used == (0, 1, 2):
            continue
        unused = " or the ".join(name for n, name in enumerate(arguments) if n not in used)
        parts = ", ".join(f"x @ {names[n]}" if line == "project" else names[n] for n in used)
        yield TABLE.mistake(
            _EXCHANGED.get(used, shared if unused else order),
            {line: f"q, k, v = {parts}"},
            **{role: names[n] for role, n in zip(arguments, used, strict=True)},
            unused=unused,
        )


def core(signature: str) -> tuple[Mistake, ...]:
    """Return the mistakes that can be found without masks, heads or special inputs."""
    of_words = () if signature == "qkv" else TABLE.group("projections", "of-words")
    known = TABLE.group("softmax", "softmax-rows", "scores", "scaling", "result")
    return (*known, *of_words, *mix_inputs(signature), *SLIPS)
