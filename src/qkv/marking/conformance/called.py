"""How a function is called: which arguments of the formula it takes, and under which names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from qkv.attend.call import OPTIONS

_TAKEN = frozenset({*OPTIONS} - {"out"})
# what others call them; `names` has the last word
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
    """A function that is judged, as it is called.

    Attributes:
        function: takes (query, key, value, **arguments).
        names: ours -> theirs, of the arguments that it takes.
        absent: features that it does not offer, whatever its arguments say.
        arrays: the library whose arrays it takes.
        aligned: where queries stand without `q_offset`: at the "start" or the "end" of the keys.
        says: what it is and which version.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    absent: frozenset[str] = field(default_factory=frozenset)
    arrays: str | None = None
    aligned: str | None = None
    says: str = ""

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Call it with our names."""
        return self.function(query, key, value, **{self.names[k]: v for k, v in options.items()})


def callee(
    function: Callable[..., Any],
    names: Mapping[str, str] | None = None,
    also: Iterable[str] = (),
) -> Callee:
    """How a function is called, by its signature and by what its caller says.

    Args:
        function: something to call.
        names: theirs -> ours or ours -> theirs, where they differ.
        also: names of arguments; the signature then says nothing.
    """
    found: dict[str, str] = {}
    theirs = [*also]
    with suppress(TypeError, ValueError):  # some of compiled code do not say
        for one in inspect.signature(function).parameters.values() if not theirs else ():
            if one.kind is one.VAR_KEYWORD:
                found = dict(zip(_TAKEN, _TAKEN, strict=True))
            elif one.kind is not one.VAR_POSITIONAL:
                theirs.append(one.name)
    given = [(_ALSO.get(name, name), name) for name in theirs]
    for ours, name in sorted(given, key=lambda pair: pair[0] == pair[1]):  # our own names win
        if ours in _TAKEN:
            found[ours] = name
    return Callee(function, {**found, **_given(names or {}, {*theirs})})


def _given(names: Mapping[str, str], theirs: set[str]) -> dict[str, str]:
    """Ours -> theirs, from either direction."""
    found = {}
    for one, other in names.items():
        if other in _TAKEN and (one in theirs or one not in _TAKEN):
            found[other] = one
        elif one in _TAKEN:
            found[one] = other
        else:
            raise ValueError(
                f"conform: names has {one}={other}, and neither is an argument of qkv.attention:"
                f" write theirs=ours, with ours one of {', '.join(sorted(_TAKEN))}"
            )
    return found
