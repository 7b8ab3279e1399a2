"""Attention of other libraries, called as their documentation says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from qkv.extras import need
from qkv.marking.conformance.called import Callee

_ABSENT = frozenset({"rows that see nothing", "hidden NaN"})


def _sdpa() -> Callee:
    torch: Any = need("torch", "torch")
    attention = torch.nn.functional.scaled_dot_product_attention

    def sdpa(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return attention(query, key, value, enable_gqa=query.shape[1] != key.shape[1], **options)

    names = {name: name for name in ("attn_mask", "is_causal", "scale")}
    says = f"torch {torch.__version__}, scaled_dot_product_attention"
    return Callee(sdpa, names, arrays="torch", aligned="start", says=says)


BUILT_IN: Mapping[str, Callable[[], Callee]] = MappingProxyType({"torch.sdpa": _sdpa})


def built_in(target: str, device: str, names: Mapping[str, str] | None) -> Callee:
    """What is known under a name."""
    return BUILT_IN[target]()


def known(function: Any) -> Callee | None:
    """A function of a library that was given by itself."""
    if getattr(function, "__name__", "") == "scaled_dot_product_attention":
        return _sdpa()
    return None
