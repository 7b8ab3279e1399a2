"""Call a learner's function on a case, whatever it does, and note what came of it."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array
from qkv.marking.inputs import NAMES, Case

# what the marker calls an option: what learners call it
OPTIONS = {
    "mask": ("mask", "attn_mask", "attention_mask"),
    "causal": ("is_causal", "causal"),
    "q_offset": ("q_offset",),
    "heads": ("num_heads", "n_heads"),
}


@dataclass(frozen=True)
class Outcome:
    """What one call gave: an output or an exception, and what it did to its inputs."""

    case: Case
    out: Array | None = None
    second: Array | None = None
    returned: Any = None
    error: Exception | None = None
    changed: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Learner:
    """Somebody's function, what it is called and which of the options it takes."""

    function: Callable[..., Any]
    name: str
    options: dict[str, str] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    by_place: tuple[inspect.Parameter, ...] = ()  # options that cannot be given by name
    unmasked: bool | float = True  # what a mask that must be given holds where none is asked for
    per_key: bool = False  # a mask that must be given is (S,) and not (L, S)
    weights_first: bool = False
    rank: int = 2  # the dimensions of a single text, 3 or 4 where only batches are taken
    adds_mask: bool = False

    def __call__(self, case: Case) -> Outcome:
        """Run the function on copies of the case's arrays; never raises what it raises."""
        case = case.at_rank(self.rank)
        if self.adds_mask:
            case = case.with_added_mask()
        arrays = {name: a.copy() for name, a in case.arrays.items()}
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                given = self._keywords(case)
                places = [given.pop(p.name, p.default) for p in self.by_place]
                returned = self.function(*arrays.values(), *places, **given)
                outputs = returned if isinstance(returned, tuple) else (returned,)
                out, second = (_array(o) for o in (*outputs, None, None)[:2])
        except Exception as error:  # whatever it is, it is the learner's to hear about
            return Outcome(case, error=error)
        changed = {n: a for n, a in arrays.items() if not np.array_equal(a, case.arrays[n])}
        if self.weights_first:
            out, second = second, out
        return Outcome(case, out, second, returned, None, changed)

    def _keywords(self, case: Case) -> dict[str, Any]:
        """The options of a case by the names of the function's parameters."""
        given = {option: getattr(case, option) for option in self.options}
        if case.mask is not None:
            given["mask"] = case.mask.copy()
        elif "mask" in self.needed:
            queries = next(iter(case.arrays.values()))
            keys = case.arrays.get("key", queries)
            before = queries.shape[: -2 if self.per_key else -1]
            given["mask"] = np.full((*before, keys.shape[-2]), self.unmasked)
        if "q_offset" in self.needed:
            given["q_offset"] = case.q_offset or 0
        return {
            name: given[option]
            for option, name in self.options.items()
            if given[option] is not None
        }


def learner(function: Callable[..., Any], signature: str) -> Learner:
    """Look at a function's parameters; a TypeError if it cannot be called with these arrays."""
    names = NAMES[signature]
    name = getattr(function, "__name__", type(function).__name__)
    name = "your function" if name == "<lambda>" else name
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins do not say
        return Learner(function, name)
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = [p for p in parameters if p not in (*places[: len(names)], *several)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in several)
    options = {option: p.name for option, known in OPTIONS.items() for p in rest if p.name in known}
    needed = {p.name for p in rest if p.default is p.empty}
    if needed - {*options.values()} or (len(places) < len(names) and not takes_any):
        other = next(s for s in NAMES if s != signature)
        raise TypeError(
            f'check: signature "{signature}" calls {name}({", ".join(names)}), but it is'
            f" {name}({', '.join(p.name for p in parameters)}): give further parameters a default,"
            f' or say signature="{other}"'
        )
    return Learner(
        function,
        name,
        options,
        frozenset(option for option, p in options.items() if p in needed),
        tuple(p for p in rest if p.kind == p.POSITIONAL_ONLY),
    )


def _array(out: Any) -> Array | None:
    """An output as an array of numbers, or None where it is not one."""
    if out is None:
        return None
    with contextlib.suppress(AttributeError):
        out = out.detach()  # a tensor that remembers how it was computed is no array before
    try:
        a = as_array(out, call="check", name="output")
    except TypeError:
        return None
    return a if a.dtype.kind in "biuf" else None
