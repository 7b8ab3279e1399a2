"""Attention you can read, see and run, on NumPy arrays."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qkv.attend import (
    KVCache,
    attention,
    attention_grad,
    merge_attention,
    softmax,
    summarize_attention,
    trace_attention,
    varlen_attention,
)
from qkv.embed import TokenEmbedding, alibi_slopes, apply_rotary, sinusoidal_positions
from qkv.layers import MultiHeadAttention, SelfAttention, self_attention
from qkv.ops.kernel import backend, get_num_threads, set_num_threads
from qkv.text import WordTokenizer
from qkv.trace import Trace

if TYPE_CHECKING:
    from qkv.findings import Finding, finding, publish
    from qkv.models import Model, ModelError, load
    from qkv.see import compare, head_view, image_view, play, plot_shift, replay, show, walk, why
    from qkv_marking import check, conform

__version__ = "0.1.0"

__all__ = [
    "Finding",
    "KVCache",
    "Model",
    "ModelError",
    "MultiHeadAttention",
    "SelfAttention",
    "TokenEmbedding",
    "Trace",
    "WordTokenizer",
    "alibi_slopes",
    "apply_rotary",
    "attention",
    "attention_grad",
    "backend",
    "check",
    "compare",
    "conform",
    "finding",
    "get_num_threads",
    "head_view",
    "image_view",
    "load",
    "merge_attention",
    "play",
    "plot_shift",
    "publish",
    "replay",
    "self_attention",
    "set_num_threads",
    "show",
    "sinusoidal_positions",
    "softmax",
    "summarize_attention",
    "trace_attention",
    "varlen_attention",
    "walk",
    "why",
]

# The public packages.
_PACKAGES = (
    "attend",
    "circuits",
    "compat",
    "embed",
    "findings",
    "integrations",
    "layers",
    "learn",
    "models",
    "scale",
    "search",
    "see",
    "text",
)

# For each public name, the package that is imported when a user first uses the name. If a name of
# `__all__` is missing here, it is loaded from `qkv.see`.
_LATER = {
    "Finding": "qkv.findings",
    "Model": "qkv.models",
    "ModelError": "qkv.models",
    "check": "qkv_marking",
    "conform": "qkv_marking",
    "finding": "qkv.findings",
    "load": "qkv.models",
    "publish": "qkv.findings",
}


def __getattr__(name: str) -> Any:
    """Load models, views and integrations on first use."""
    if name in _PACKAGES:
        return import_module(f"qkv.{name}")
    if name in __all__:
        return getattr(import_module(_LATER.get(name, "qkv.see")), name)
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all public names for Tab completion, including names that load on first use."""
    return [*__all__, *_PACKAGES, "__version__"]
