"""Find which arguments of the formula a function takes, and their names in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from qkv.attend.call import OPTIONS

_TAKEN = frozenset({*OPTIONS} - {"out"})
# names of the arguments in other libraries; the argument `names` overrides them
_ALSO = MappingProxyType(
    {
        "attention_mask": "attn_mask",
        "mask": "attn_mask",
        "causal": "is_causal",
        "sm_scale": "scale",
        "softmax_scale": "scale",
        "soft_cap": "softcap",
        "logit_softcap": "softcap",
        "window_size": "window",
        "return_attention": "return_weights",
        "return_attn_weights": "return_weights",
        "return_softmax_lse": "return_lse",
    }
)


@dataclass(frozen=True)
class Callee:
    """A function that is judged, and how to call it.

    Attributes:
        function: takes (query, key, value, **arguments).
        names: the arguments that it takes: our name -> its name.
        absent: features that it does not support, although it has arguments for them.
        arrays: the library whose arrays it takes.
        aligned: the position of the queries if there is no `q_offset`: the "start" or the "end" of
            the keys.
        says: its library and version.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    absent: frozenset[str] = field(default_factory=frozenset)
    arrays: str | None = None
    aligned: str | None = None
    says: str = ""

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Call the function with arguments by our names."""
        return self.function(query, key, value, **{self.names[k]: v for k, v in options.items()})


def callee(
    function: Callable[..., Any],
    names: Mapping[str, str] | None = None,
    also: Iterable[str] = (),
) -> Callee:
    """Find how to call a function, from its signature and from `names`.

    Args:
        function: the function.
        names: the names that differ: its name -> our name, or our name -> its name.
        also: names of its arguments; they replace the signature.
    """
    taken: dict[str, str] = {}
    theirs = [*also]
    with suppress(TypeError, ValueError):  # some compiled functions have no signature
        for parameter in inspect.signature(function).parameters.values() if not theirs else ():
            if parameter.kind is parameter.VAR_KEYWORD:
                taken = dict(zip(_TAKEN, _TAKEN, strict=True))
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                theirs.append(parameter.name)
    pairs = [(_ALSO.get(name, name), name) for name in theirs]
    for ours, name in sorted(pairs, key=lambda pair: pair[0] == pair[1]):  # ours: last, they win
        if ours in _TAKEN:
            taken[ours] = name
    return Callee(function, {**taken, **_ours_to_theirs(names or {}, {*theirs})})


def _ours_to_theirs(names: Mapping[str, str], theirs: set[str]) -> dict[str, str]:
    """Turn names in both directions into a mapping of our names to its names."""
    ours = {}
    for name, other in names.items():
        if other in _TAKEN and (name in theirs or name not in _TAKEN):
            ours[other] = name
        elif name in _TAKEN:
            ours[name] = other
        else:
            raise ValueError(
                f"conform: names has {name}={other}, but neither name is one of qkv.attention:"
                f" write theirs=ours, with ours one of {', '.join(sorted(_TAKEN))}"
            )
    return ours
