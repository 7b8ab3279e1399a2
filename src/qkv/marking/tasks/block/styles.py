"""What is as right as LayerNorm and GELU, to the last digit: RMSNorm, and GELU by tanh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from qkv.marking.explain import Compute, reproduces
from qkv.marking.mistake import Mistake, Steps
from qkv.marking.outcome import Outcome
from qkv.marking.tasks.block.steps import gelu_tanh, rms_norm

_RMS: Steps = {"normalize": rms_norm}
_NO_SHIFT: Steps = {**_RMS, "affine": lambda x, scale, shift: x * scale}
_TANH: Steps = {"activation": gelu_tanh}
_SAID_RMS, _SAID_TANH = "Its norm is RMSNorm.", "Its GELU is the one by tanh."
STYLES: tuple[tuple[Steps, tuple[str, ...]], ...] = (
    ({}, ()),
    (_TANH, (_SAID_TANH,)),
    (_RMS, (_SAID_RMS,)),
    (_NO_SHIFT, (_SAID_RMS,)),
    ({**_RMS, **_TANH}, (_SAID_RMS, _SAID_TANH)),
    ({**_NO_SHIFT, **_TANH}, (_SAID_RMS, _SAID_TANH)),
)


def style_of(
    runs: list[Outcome], right: Steps, known: Sequence[Mistake], compute: Compute
) -> tuple[Steps, tuple[str, ...]]:
    """The style in which a function is right, or wrong by one mistake; else the first.

    Args:
        runs: what its calls gave.
        right: the right steps, in the first style.
        known: the mistakes.
        compute: what a case gives if it is computed by some steps.
    """
    none: Steps = {}
    for variants in ((none,), *(one.variants for one in known)):
        for (steps, said), variant in product(STYLES, variants):
            done = {**right, **steps, **variant}
            if all(reproduces(run, done, compute) for run in runs):
                return steps, said
    return STYLES[0]
