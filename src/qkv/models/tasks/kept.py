"""Which of all intermediates a trace keeps: by layer, by name, or summaries alone."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from qkv.arrays import is_whole_number, shown
from qkv.trace.activations import activation, is_tuple_name, meant, parse, spellings

# An activation in full or short, or by a tuple as a trace is indexed; and one or several such.
Name = str | tuple[Any, ...]
Names = Name | Iterable[Name]
_USUAL = ("pattern", "q", "resid_post")  # where a name is near no other


def names_to_keep(
    known: Sequence[str],
    layers: int | Iterable[int] | None = None,
    names: Names | None = None,
    top_k: Any = None,
    *,
    call: str = "trace",
) -> Callable[[str], bool]:
    """Says of each name that is known whether it is kept.

    Args:
        known: every name that a trace of the model may hold.
        layers: the numbers of those to keep, from the end with -1; all if None.
        names: what to keep, in full or short, or by tuples as a trace is indexed; all that
            is kept unasked if None.
        top_k: keep the summaries of this many weights, and what `names` asks for.
        call: who is named in an error.

    Raises:
        TypeError: a layer or `top_k` is not a whole number, or a name neither string nor tuple.
        ValueError: there is no such layer, or `top_k` is below 1.
        KeyError: there is no such name.

    >>> known = ["hook_embed", "blocks.0.attn.hook_q", "blocks.1.attn.hook_q"]
    >>> keep = names_to_keep(known, -1, "q", None)
    >>> keep("blocks.0.attn.hook_q"), keep("blocks.1.attn.hook_q"), keep("hook_embed")
    (False, True, False)
    >>> [full for full in known if names_to_keep(known, names=("q", 0))(full)]
    ['blocks.0.attn.hook_q']
    """
    if top_k is not None and not is_whole_number(top_k):
        raise TypeError(f"{call}: top_k is {top_k!r}: write a whole number")
    if top_k is not None and top_k < 1:
        raise ValueError(f"{call}: top_k is {top_k}: keep at least 1 weight")
    kept = {full for full in known if top_k is None and activation(full).unasked}
    alone: set[str] = set()
    if names is not None:
        kept, alone = _named(known, names, call)
    if top_k is not None:
        kept |= {full for full in known if not activation(full).editable}
    if layers is not None:
        kept &= _in_layers(known, layers, call) | alone
    return kept.__contains__


def layers_to_run(known: Sequence[str], keep: Callable[[str], bool], side: str = "") -> int | None:
    """How many layers are run for what a trace keeps; None for all and what follows them.

    Args:
        known: every name that a trace of the model may hold.
        keep: says of each whether it is kept.
        side: whose names count, "encoder" or "decoder"; those of all unless given.

    >>> known = ["hook_embed", "blocks.0.attn.hook_q", "blocks.1.hook_mlp_out", "ln_final.hook_x"]
    >>> [layers_to_run(known, [name].__contains__) for name in known]
    [0, 1, 2, None]
    """
    kept = [at for at in map(parse, filter(keep, known)) if side in ("", at.side)]
    if any(at.layer is None and at.is_last for at in kept):
        return None
    return max((at.layer + 1 for at in kept if at.layer is not None), default=0)


def _named(known: Sequence[str], names: Names, call: str) -> tuple[set[str], set[str]]:
    """The full names that are asked for, and those of them that are in no layer by their name."""
    given: Any = [names] if isinstance(names, str) or is_tuple_name(names) else names
    if not isinstance(given, Iterable):
        raise TypeError(f'{call}: names is {shown(names)}: give names, as ["pattern", ("q", 0)]')
    called = {full: spellings(full) for full in known}
    ways = set().union(*called.values())
    kept: set[str] = set()
    alone: set[str] = set()
    for name in given:
        if not isinstance(name, str | tuple):
            raise TypeError(f'{call}: names has {shown(name)}: give names, as "pattern", ("q", 0)')
        if isinstance(name, str):
            found = {full for full, own in called.items() if name in own}
        else:
            found = _meant(known, name)
        if not found:
            raise KeyError(f"{call}: {_unknown(known, name, ways)}")
        kept |= found
        if all(parse(full).layer is None for full in found):
            alone |= found
    return kept, alone


def _meant(known: Sequence[str], name: tuple[Any, ...]) -> set[str]:
    """What a tuple stands for, on each side that has it."""
    found = set()
    for side, count in _counts(known).items():
        before = f"{side}." if side else ""
        names = (before + full for full in meant(name, count))
        found |= set(islice((full for full in names if full in known), 1))
    return found


def _unknown(known: Sequence[str], name: Name, ways: Iterable[str]) -> str:
    """What an error says of a name that is none."""
    most = max(_counts(known).values())
    layer: Any = name[1] if is_tuple_name(name) else None
    if layer is not None and not -most <= layer < most:
        return f"there is no layer {layer}: the model has {most}, 0 to {most - 1}"
    wanted = str(name[0] if is_tuple_name(name) else name)
    near = difflib.get_close_matches(wanted, sorted(ways), n=3, cutoff=0.5)
    return f"there is no {name!r}; the nearest are {', '.join(near or _USUAL)}"


def _counts(known: Sequence[str]) -> dict[str, int]:
    """How many layers each side has."""
    counts: dict[str, int] = {}
    for side, layer, _ in map(parse, known):
        counts[side] = max(counts.get(side, 0), 0 if layer is None else layer + 1)
    return counts


def _in_layers(known: Sequence[str], layers: int | Iterable[int], call: str) -> set[str]:
    """The names that belong to one of these layers, or to none; the final norm is of the last."""
    counts = _counts(known)
    numbers = list(layers) if isinstance(layers, Iterable) else [layers]
    most = max(counts.values())
    for number in numbers:
        if not is_whole_number(number):
            raise TypeError(f"{call}: layers has {shown(number)}: layers are whole numbers")
        if not -most <= number < most:
            raise ValueError(
                f"{call}: there is no layer {number}: the model has {most}, 0 to {most - 1}"
            )
    wanted, found = {int(number) for number in numbers}, set()
    for full in known:
        at = parse(full)
        layer = counts[at.side] - 1 if at.is_last else at.layer
        if layer is None or {layer, layer - counts[at.side]} & wanted:
            found.add(full)
    return found
