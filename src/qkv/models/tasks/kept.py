"""Choose the activations that a trace keeps: by layer, by name, or only summaries."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from qkv.arrays import is_whole_number, shown
from qkv.trace.activations import activation, is_tuple_name, meant, parse, spellings

# The name of an activation (full, short, or a tuple, as in a trace); and one name or several.
Name = str | tuple[Any, ...]
Names = Name | Iterable[Name]
_USUAL = ("pattern", "q", "resid_post")  # suggested if no similar name exists


def names_to_keep(
    known: Sequence[str],
    layers: int | Iterable[int] | None = None,
    names: Names | None = None,
    top_k: Any = None,
    *,
    call: str = "trace",
) -> Callable[[str], bool]:
    """Return a function that returns whether a trace keeps a name.

    Args:
        known: all names that a trace of the model may have.
        layers: the numbers of the layers to keep, from the end with -1; all if None.
        names: the names to keep, in full, short, or as tuples; the default names if None.
        top_k: keep the summaries of this many weights, and the names in `names`.
        call: the public call that errors name.

    Raises:
        TypeError: a layer or `top_k` is not a whole number, or a name neither string nor tuple.
        ValueError: a layer does not exist, or `top_k` is below 1.
        KeyError: a name does not exist.

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
    """Return the number of layers to run for the names that are kept; None for the whole network.

    Args:
        known: every name that a trace of the model may hold.
        keep: returns whether a name is kept.
        side: count only names of this side, "encoder" or "decoder"; all names by default.

    >>> known = ["hook_embed", "blocks.0.attn.hook_q", "blocks.1.hook_mlp_out", "ln_final.hook_x"]
    >>> [layers_to_run(known, [name].__contains__) for name in known]
    [0, 1, 2, None]
    """
    kept = [at for at in map(parse, filter(keep, known)) if side in ("", at.side)]
    if any(at.layer is None and at.is_last for at in kept):
        return None
    return max((at.layer + 1 for at in kept if at.layer is not None), default=0)


def _named(known: Sequence[str], names: Names, call: str) -> tuple[set[str], set[str]]:
    """Return `(names, outside)`: the wanted full names, and those of them outside layers."""
    wanted: Any = [names] if isinstance(names, str) or is_tuple_name(names) else names
    if not isinstance(wanted, Iterable):
        raise TypeError(
            f'{call}: names is {shown(names)}: give names, such as ["pattern", ("q", 0)]'
        )
    spelled = {full: spellings(full) for full in known}
    kept: set[str] = set()
    outside: set[str] = set()
    for name in wanted:
        if not isinstance(name, str | tuple):
            raise TypeError(
                f'{call}: names has {shown(name)}: give names, such as "pattern" or ("q", 0)'
            )
        if isinstance(name, str):
            matches = {full for full, own in spelled.items() if name in own}
        else:
            matches = _meant(known, name)
        if not matches:
            raise KeyError(f"{call}: {_unknown(known, name, set().union(*spelled.values()))}")
        kept |= matches
        if all(parse(full).layer is None for full in matches):
            outside |= matches
    return kept, outside


def _meant(known: Sequence[str], name: tuple[Any, ...]) -> set[str]:
    """Return the names that a tuple stands for, in the encoder, the decoder or both."""
    matches = set()
    for side, count in _counts(known).items():
        before = f"{side}." if side else ""
        names = (before + full for full in meant(name, count))
        matches |= set(islice((full for full in names if full in known), 1))
    return matches


def _unknown(known: Sequence[str], name: Name, ways: Iterable[str]) -> str:
    """Return the message about an unknown name; `ways` are all spellings of known names."""
    most = max(_counts(known).values())
    layer: Any = name[1] if is_tuple_name(name) else None
    if layer is not None and not -most <= layer < most:
        return f"there is no layer {layer}: the model has {most}, 0 to {most - 1}"
    wanted = str(name[0] if is_tuple_name(name) else name)
    near = difflib.get_close_matches(wanted, sorted(ways), n=3, cutoff=0.5)
    return f"there is no {name!r}; the nearest are {', '.join(near or _USUAL)}"


def _counts(known: Sequence[str]) -> dict[str, int]:
    """Return the number of layers of each side."""
    counts: dict[str, int] = {}
    for side, layer, _ in map(parse, known):
        counts[side] = max(counts.get(side, 0), 0 if layer is None else layer + 1)
    return counts


def _in_layers(known: Sequence[str], layers: int | Iterable[int], call: str) -> set[str]:
    """Return names in these layers or outside layers; the last layer includes the final norm."""
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
    wanted, names = {int(number) for number in numbers}, set()
    for full in known:
        at = parse(full)
        layer = counts[at.side] - 1 if at.is_last else at.layer
        if layer is None or {layer, layer - counts[at.side]} & wanted:
            names.add(full)
    return names
