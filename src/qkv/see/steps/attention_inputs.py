"""What a head's steps begin with: Q, K and V, from weights or as traced, and the options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qkv.arrays import Array
from qkv.attend import softmax, trace_attention
from qkv.embed import apply_rotary
from qkv.layers.attention import Rotary
from qkv.trace import Trace

# The options of an attention that the steps know; a walk past others would be a wrong one.
KNOWN = {"is_causal", "window", "attn_mask", "scale", "q_offset", "query_lengths", "key_lengths"}


@dataclass(eq=False)
class AttentionInputs:
    """Q, K and V of each head of a layer, from its input and weights or as traced; its options.

    Attributes:
        trace: of one text.
        layer: the layer.
        parameters: the model's; none where Q, K and V are taken as traced.
        rotary: how queries and keys are rotated, where that is all that happens to them.
        x: for "q", "k" and "v" the word vectors that it is made of, and what those are called.
        known: weights and biases of the projections by their short names: "W_Q", "b_Q".
    """

    trace: Trace
    layer: int
    parameters: Mapping[str, Array]
    rotary: Rotary | None = None
    x: dict[str, tuple[Array, str]] = field(default_factory=dict)
    known: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace, layer = self.trace, self.layer
        self.rotated = ("rot_q", layer) in trace or ("rot_k", layer) in trace
        if ("q", layer) not in trace and ("top_weights", layer) in trace:
            raise ValueError(
                f"walk: this trace holds summaries of layer {layer}, and a walk needs its "
                "queries, keys and values: walk(text, model=...) has them, qkv.show(trace) shows "
                "what was kept"
            )
        for name in ("q", "k", "v", "z", *(("rot_q", "rot_k") if self.rotated else ())):
            if (name, layer) not in trace:
                raise ValueError(
                    f"walk: the trace lacks hook_{name} of layer {layer}: trace it too, or "
                    "walk(text, model=...); qkv.show(trace) shows the weights"
                )
        inputs = trace.attention_inputs(layer)
        self.settings = {n: v for n, v in inputs.items() if n not in ("query", "key", "value")}
        others = sorted(set(self.settings) - KNOWN)
        if others:
            raise ValueError(
                f"walk: layer {layer} uses {', '.join(others)}, which a walk does not show: "
                "qkv.show shows its weights"
            )
        self.traced = {name: trace[name, layer][0] for name in "qkv"}  # (T, H, d)
        self.count, self.d = self.traced["q"].shape[1:]
        self.shared = self.count // self.traced["k"].shape[1]
        known = ("attn_scores", layer) in trace
        scores = trace["attn_scores", layer] if known else trace_attention(**inputs)["scores"]
        self.hidden = np.isneginf(scores[0])  # (Hq, L, S)
        self.length, self.keys = self.hidden.shape[1:]
        mask = self.settings.get("attn_mask")
        added = mask is not None and np.asarray(mask).dtype != bool
        self.added = np.broadcast_to(np.asarray(mask), scores.shape)[0] if added else None
        offset = self.settings.get("q_offset")
        if offset is None or isinstance(offset, str):
            offset = self.keys - self.length if offset == "end" else 0
        self.offset = int(np.ravel(offset)[0])

    def start(self, x: Array, name: str, of: str = "qkv") -> None:
        """What queries, keys and values are made of, or those that are named."""
        self.x |= dict.fromkeys(of, (x, name))
        for part, letter in (("q_proj", "Q"), ("k_proj", "K"), ("v_proj", "V"), ("out_proj", "O")):
            for kind, short in (("weight", "W"), ("bias", "b")):
                array = self.parameters.get(f"blocks.{self.layer}.attn.{part}.{kind}")
                if array is not None:
                    self.known[f"{short}_{letter}"] = array

    def of(self, name: str, head: int) -> int:
        """The head that is read: queries have one each, keys and values may be shared."""
        return head if name == "q" else head // self.shared

    def part(self, name: str, head: int) -> slice:
        """The columns of a head in its projection."""
        size = self.traced[name].shape[2]
        return slice(self.of(name, head) * size, (self.of(name, head) + 1) * size)

    def one(self, name: str, head: int) -> Array:
        """Q, K or V of one head, `(n, size)`."""
        if not self.known:
            return np.asarray(self.traced[name][:, self.of(name, head)])
        part, letter = self.part(name, head), name.upper()
        bias = self.known.get(f"b_{letter}")
        product = self.x[name][0] @ self.known[f"W_{letter}"][:, part]
        return np.asarray(product if bias is None else product + bias[part])

    def compared(self, name: str, head: int) -> Array:
        """Queries or keys of one head as they are compared: rotated, where the layer does that."""
        x, how = self.one(name, head), self.rotary
        if not self.rotated:
            return x
        if how is None:
            return np.asarray(self.trace[f"rot_{name}", self.layer][0][:, self.of(name, head)])
        return apply_rotary(
            x, self.places(name), base=how.base, dims=how.dims, interleaved=how.interleaved
        )

    def places(self, name: str) -> Array:
        """Where queries or keys stand."""
        return np.arange(self.length) + self.offset if name == "q" else np.arange(self.keys)

    def context(self, head: int) -> Array:
        """What a head whose steps are not shown gives."""
        q, k = (self.compared(name, head) for name in "qk")
        scale = self.settings.get("scale")
        scores = q @ k.T * q.dtype.type(1 / math.sqrt(q.shape[1]) if scale is None else scale)
        if self.added is not None:
            scores = (scores + self.added[head]).astype(q.dtype)
        scores = np.where(self.hidden[head], -np.inf, scores).astype(q.dtype)
        return np.asarray(softmax(scores) @ self.one("v", head))
