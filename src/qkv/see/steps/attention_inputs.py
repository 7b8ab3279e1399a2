"""Q, K and V of each head of a layer, from its weights or as traced, and its options."""

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

# The options of an attention that the steps below know; a walk past others would be a wrong one.
KNOWN = {"is_causal", "window", "attn_mask", "scale", "q_offset", "query_lengths", "key_lengths"}


@dataclass(eq=False)
class Source:
    """Q, K and V of each head, from the layer's input and weights or as traced; and its options."""

    trace: Trace
    number: int
    parameters: Mapping[str, Array]
    rotary: Rotary | None = None
    x: Array | None = None
    x_name: str = ""
    other: Array | None = None
    other_name: str = ""
    known: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace, number = self.trace, self.number
        self.rotated = ("rot_q", number) in trace or ("rot_k", number) in trace
        if ("q", number) not in trace and ("top_weights", number) in trace:
            raise ValueError(
                f"walk: this trace holds summaries of layer {number}, and a walk needs its "
                "queries, keys and values: walk(text, model=...) has them, qkv.show(trace) shows "
                "what was kept"
            )
        for name in ("q", "k", "v", "z", *(("rot_q", "rot_k") if self.rotated else ())):
            if (name, number) not in trace:
                raise ValueError(
                    f"walk: the trace lacks hook_{name} of layer {number}: trace it too, or "
                    "walk(text, model=...); qkv.show(trace) shows the weights"
                )
        inputs = trace.attention_inputs(number)
        self.settings = {n: v for n, v in inputs.items() if n not in ("query", "key", "value")}
        others = sorted(set(self.settings) - KNOWN)
        if others:
            raise ValueError(
                f"walk: layer {number} uses {', '.join(others)}, which a walk does not show: "
                "qkv.show shows its weights"
            )
        self.traced = {name: trace[name, number][0] for name in "qkv"}  # (T, H, d)
        self.count, self.d = self.traced["q"].shape[1:]
        self.shared = self.count // self.traced["k"].shape[1]
        scores = (
            trace["attn_scores", number]
            if ("attn_scores", number) in trace
            else trace_attention(**inputs)["scores"]
        )
        self.hidden = np.isneginf(scores[0])  # (Hq, L, S)
        self.length, self.keys = self.hidden.shape[1:]
        mask = self.settings.get("attn_mask")
        self.added = (
            None
            if mask is None or np.asarray(mask).dtype == bool
            else np.broadcast_to(np.asarray(mask), scores.shape)[0]
        )
        offset = self.settings.get("q_offset")
        if offset is None or isinstance(offset, str):
            offset = self.keys - self.length if offset == "end" else 0
        self.offset = int(np.ravel(offset)[0])

    def start(self, x: Array, name: str) -> None:
        """What queries are made of, and keys and values unless those have something else."""
        self.x, self.x_name = x, name
        self.start_keys(x, name)
        if not self.parameters:
            return
        for part, letter in (("q_proj", "Q"), ("k_proj", "K"), ("v_proj", "V"), ("out_proj", "O")):
            for kind, short in (("weight", "W"), ("bias", "b")):
                array = self.parameters.get(f"blocks.{self.number}.attn.{part}.{kind}")
                if array is not None:
                    self.known[f"{short}_{letter}"] = array

    def start_keys(self, x: Array, name: str) -> None:
        """What keys and values are made of."""
        self.other, self.other_name = x, name

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
        x = self.x if name == "q" else self.other
        bias = self.known.get(f"b_{letter}")
        product = x @ self.known[f"W_{letter}"][:, part]
        return np.asarray(product if bias is None else product + bias[part])

    def rotate(self, x: Array, name: str, head: int) -> Array:
        """Queries or keys of one head as they are compared: rotated, where the layer does that."""
        if not self.rotated:
            return x
        if self.rotary is None:
            return np.asarray(self.trace[f"rot_{name}", self.number][0][:, self.of(name, head)])
        how = self.rotary
        return apply_rotary(
            x, self.places(name), base=how.base, dims=how.dims, interleaved=how.interleaved
        )

    @property
    def rotary_dims(self) -> int:
        """How many numbers of a query are turned."""
        assert self.rotary is not None
        return self.d if self.rotary.dims is None else self.rotary.dims

    def places(self, name: str) -> Array:
        """Where queries or keys stand."""
        return np.arange(self.length) + self.offset if name == "q" else np.arange(self.keys)

    def context(self, head: int) -> Array:
        """What a head whose steps are not shown gives."""
        q, k = (self.rotate(self.one(name, head), name, head) for name in "qk")
        scale = self.settings.get("scale")
        scores = q @ k.T * q.dtype.type(1 / math.sqrt(q.shape[1]) if scale is None else scale)
        if self.added is not None:
            scores = (scores + self.added[head]).astype(q.dtype)
        scores = np.where(self.hidden[head], -np.inf, scores).astype(q.dtype)
        return np.asarray(softmax(scores) @ self.one("v", head))
