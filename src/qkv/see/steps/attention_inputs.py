"""What a head's steps begin with: Q, K and V, from weights or as traced, and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qkv.arrays import Array
from qkv.attend import trace_attention
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
        x: for "q", "k" and "v" what the word vectors are called that it is made of.
        known: weights and biases of the projections by their short names: "W_Q", "b_Q".
    """

    trace: Trace
    layer: int
    parameters: Mapping[str, Array]
    rotary: Rotary | None = None
    x: dict[str, str] = field(default_factory=dict)
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
        self.sizes = {name: trace[name, layer].shape[3] for name in "qkv"}
        self.count, self.d = trace["q", layer].shape[2:]
        self.shared = self.count // trace["k", layer].shape[2]
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

    def start(self, name: str, of: str = "qkv") -> None:
        """What queries, keys and values are made of, or those that are named."""
        self.x |= dict.fromkeys(of, name)
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
        size, own = self.sizes[name], self.of(name, head)
        return slice(own * size, (own + 1) * size)
