"""Try the masks that a layer takes, in its call or where it is built."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkv.marking.engine import Group, Marking
from qkv.marking.tasks.attention.marker import adds_its_mask, is_made_for_numbers
from qkv.marking.tasks.mistakes.masks import CAUSAL, EMPTY, HIDING, MASK
from qkv.marking.tasks.self_attention_class.layers import Layers
from qkv.marking.tasks.self_attention_class.steps import Call

# every word sees something, and would if they were inverted
_SOME = (
    np.array([[True, False], [False, True]]),
    np.array([[True, False, True], [True, True, False], [True, False, False]]),
)
_NOTHING = np.array([[True, True], [False, False]])


def try_masks(m: Marking, layers: Layers, cases: list[Call], flipped: bool) -> None:
    """A mask and a causal mask, each where the layer takes one; what it does not take is said.

    Args:
        m: the layer's marking, with steps that explain it without masks.
        layers: the layers.
        cases: words of two layers of several heads, with their weights.
        flipped: how the weights were read.
    """
    options, _ = layers.takes(cases[0])
    if "mask" in options:
        masked = [replace(case, mask=mask) for case, mask in zip(cases, _SOME, strict=True)]
        _try_mask(m, layers, masked, replace(cases[0], mask=_NOTHING))
    else:
        m.untried.append("mask")
    if "causal" not in options and "causal" not in layers.when_built:
        m.untried.append("is_causal")
        return
    causal = [layers.weighed(replace(case, causal=True), flipped) for case in cases]
    there = [case for case in causal if case is not None]
    m.test(Group("a causal mask", there, (*CAUSAL, *HIDING, *EMPTY)))


def _try_mask(m: Marking, layers: Layers, cases: list[Call], nothing: Call) -> None:
    """A mask as bool, or as 0 and -inf if that explains more."""
    known = (*MASK, *HIDING)
    as_bool = m.run(cases)
    layers.adds_mask = True
    for_numbers = layers.number_as_mask(nothing) or is_made_for_numbers(m.call(nothing))
    layers.adds_mask = adds_its_mask(m, as_bool, m.run(cases), known, for_numbers)
    before = len(m.limits)
    m.test(Group("a mask", cases, known, may_refuse=True))
    if len(m.limits) == before:  # it was not refused
        m.test(Group("a row masked out", [nothing], EMPTY, may_refuse=True))
