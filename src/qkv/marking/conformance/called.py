"""How a function is called: which arguments of the formula it takes, by which names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from qkv.attend.call import OPTIONS

_TAKEN = frozenset({*OPTIONS} - {"out"})
# other names of the arguments; `names` overrides them
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
        names: the arguments that it takes, our names -> its names.
        absent: features that it does not offer, although it has arguments for them.
        arrays: the library whose arrays it takes.
        aligned: where queries are without `q_offset`: at the "start" or the "end" of the keys.
        says: its library and version.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    absent: frozenset[str] = field(default_factory=frozenset)
    arrays: str | None = None
    aligned: str | None = None
    says: str = ""

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Call the function with our names."""
        return self.function(query, key, value, **{self.names[k]: v for k, v in options.items()})


def callee(
    function: Callable[..., Any],
    names: Mapping[str, str] | None = None,
    also: Iterable[str] = (),
) -> Callee:
    """Find how a function is called, by its signature and by `names`.

    Args:
        function: the function.
        names: its names -> our names, or our names -> its names, where they differ.
        also: names of its arguments, in place of the signature.
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
    for ours, name in sorted(pairs, key=lambda pair: pair[0] == pair[1]):  # our own names win
        if ours in _TAKEN:
            taken[ours] = name
    return Callee(function, {**taken, **_ours_to_theirs(names or {}, {*theirs})})


def _ours_to_theirs(names: Mapping[str, str], theirs: set[str]) -> dict[str, str]:
    """Turn names of either direction into our names -> its names."""
    ours = {}
    for name, other in names.items():
        if other in _TAKEN and (name in theirs or name not in _TAKEN):
            ours[other] = name
        elif name in _TAKEN:
            ours[name] = other
        else:
            raise ValueError(
                f"conform: names has {name}={other}, and neither is an argument of qkv.attention:"
                f" write theirs=ours, with ours one of {', '.join(sorted(_TAKEN))}"
            )
    return ours
