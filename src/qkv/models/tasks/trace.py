"""Which of all intermediates a trace keeps: by layer, by name, or summaries alone."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from qkv.arrays import is_whole_number
from qkv.layers.attention.forward import SUMMARY
from qkv.trace.recorder import kept_unasked

# The side of an encoder-decoder, the layer, and what it is called in there.
_NAME = re.compile(r"(?:(encoder|decoder)\.)?(?:blocks\.(\d+)\.)?(.+)")


def names_to_keep(
    known: Sequence[str],
    layers: int | Iterable[int] | None = None,
    names: str | Iterable[str] | None = None,
    top_k: Any = None,
) -> Callable[[str], bool]:
    """Says of each name that is known whether it is kept.

    Args:
        known: every name that a trace of the model may hold.
        layers: the numbers of those to keep, from the end with -1; all if None.
        names: what to keep, in full or short; what `kept_unasked` says if None.
        top_k: keep the summaries of this many weights, and what `names` asks for.

    Raises:
        TypeError: a layer or `top_k` is not a whole number.
        ValueError: there is no such layer, or `top_k` is below 1.
        KeyError: there is no such name.

    >>> known = ["hook_embed", "blocks.0.attn.hook_q", "blocks.1.attn.hook_q"]
    >>> keep = names_to_keep(known, -1, "q", None)
    >>> keep("blocks.0.attn.hook_q"), keep("blocks.1.attn.hook_q"), keep("hook_embed")
    (False, True, False)
    """
    if top_k is not None and not is_whole_number(top_k):
        raise TypeError(f"trace: top_k is {top_k!r}: write a whole number")
    if top_k is not None and top_k < 1:
        raise ValueError(f"trace: top_k is {top_k}: keep at least 1 weight")
    kept = {full for full in known if top_k is None and kept_unasked(full)}
    if names is not None:
        asked = [names] if isinstance(names, str) else list(names)
        spellings = {full: _spellings(full) for full in known}
        kept = {full for full, ways in spellings.items() if not ways.isdisjoint(asked)}
        ways = set().union(*spellings.values())
        for name in asked:
            if name not in ways:
                near = difflib.get_close_matches(str(name), sorted(ways), n=3, cutoff=0.5)
                near = near or ["pattern", "q", "resid_post"]
                raise KeyError(f"trace: there is no {name!r}; the nearest are {', '.join(near)}")
    if top_k is not None:
        summaries = tuple(f"attn.{one}" for one in SUMMARY)
        kept |= {full for full in known if full.endswith(summaries)}
    if layers is not None:
        kept &= _in_layers(known, layers)
    return kept.__contains__


def _in_layers(known: Sequence[str], layers: int | Iterable[int]) -> set[str]:
    """The names that belong to one of these layers, or to none."""
    places = {full: _parts(full)[:2] for full in known}
    counts: dict[str, int] = {}
    for side, layer in places.values():
        counts[side] = max(counts.get(side, 0), 0 if layer is None else layer + 1)
    numbers = [layers] if isinstance(layers, int | np.integer) else list(layers)
    most = max(counts.values())
    for number in numbers:
        if not is_whole_number(number):
            raise TypeError(f"trace: layers has {number!r}: layers are whole numbers")
        if not -most <= number < most:
            raise ValueError(
                f"trace: there is no layer {number}: the model has {most}, 0 to {most - 1}"
            )
    return {
        full
        for full, (side, layer) in places.items()
        if layer is None or {layer, layer - counts[side]} & {int(number) for number in numbers}
    }


def _parts(full: str) -> tuple[str, int | None, str]:
    """The side of an encoder-decoder or nothing, the layer, and the name in there."""
    found = _NAME.fullmatch(full)
    assert found is not None
    side, layer, local = found.groups()
    return side or "", None if layer is None else int(layer), local


def _spellings(full: str) -> set[str]:
    """The names by which an array may be asked for, as a `Trace` takes them."""
    side, _, local = _parts(full)
    last = local.rpartition(".")[2]
    found = {full, local, local.replace("hook_", ""), last, last.removeprefix("hook_")}
    return found | {full.replace("blocks.", "", 1), f"{side}.{local}"} if side else found
