"""Which parts of a model send to the residual stream, and which read it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from qkv.layers import Block, MultiHeadAttention
from qkv.models.model import Model
from qkv.ops.packing import frozen

INPUTS = "qkv"  # what a head reads the stream for


class Receiver(NamedTuple):
    """An input of a part.

    Attributes:
        layer: the number of layers for the logits.
        kind: "q", "k" or "v" of a head, "mlp" or "logits".
        head: its number; 0 for what is no head.
        senders: how many of all senders, in their order, it reads.
    """

    layer: int
    kind: str
    head: int
    senders: int


class Wiring:
    """The senders and the receivers of a model, each in the order in which they are computed.

    Attributes:
        senders: their names.
        receivers: by their names.
        starts: for each layer how many senders stand before it.
    """

    def __init__(self, layers: Sequence[Block]) -> None:
        self.senders = ["embed"]
        self.receivers: dict[str, Receiver] = {}
        self.starts: list[int] = []
        for number, block in enumerate(layers):
            before, heads = len(self.senders), range(block.attn.num_heads)
            self.starts.append(before)
            for head in heads:
                for kind in INPUTS:
                    name = f"attn.{number}.{head}.{kind}"
                    self.receivers[name] = Receiver(number, kind, head, before)
            self.senders += [f"attn.{number}.{head}" for head in heads]
            if block.mlp is not None:
                reads = before if block.parallel else len(self.senders)
                self.receivers[f"mlp.{number}"] = Receiver(number, "mlp", 0, reads)
                self.senders.append(f"mlp.{number}")
        self.receivers["logits"] = Receiver(len(layers), "logits", 0, len(self.senders))


def check_residual(model: Model, call: str) -> Model:
    """The model, if what each part reads is a sum of what others add."""
    for block in model.layers:
        if block.post_norm:
            raise ValueError(
                f"{call}: what a part of {model.name} reads is no sum of what others give, as its "
                "norms stand behind them: take a decoder whose norms stand before (GPT-2, Llama, "
                "GPT-NeoX), or patch(model, ...)"
            )
        norm = block.attn.q_norm
        if norm is not None and norm.dim != block.attn.d_query:
            raise ValueError(
                f"{call}: the queries of all heads of {model.name} go through one norm, so that no "
                "head has an input of its own: call patch(model, ...)"
            )
    return model


def ungrouped(model: Model) -> Model:
    """The same model with a key head for each query head, so that each has its own input."""
    found = copy(model)
    found._network = copy(model.network)
    found._network.layers = [_ungrouped(block) for block in model.layers]
    return found


def _ungrouped(block: Block) -> Block:
    attn = block.attn
    group = attn.num_heads // attn.num_kv_heads
    if group == 1:
        return block
    parameters = dict(attn.parameters)
    for name, array in parameters.items():
        if name.startswith(("k_proj.", "v_proj.")):
            heads = array.reshape(*array.shape[:-1], attn.num_kv_heads, -1)
            parameters[name] = frozen(np.repeat(heads, group, -2).reshape(*array.shape[:-1], -1))
    found = copy(block)
    found.attn = MultiHeadAttention.from_parameters(
        parameters,
        num_heads=attn.num_heads,
        rotary=attn.rotary,
        q_norm=attn.q_norm,
        k_norm=attn.k_norm,
    )
    found._parts = block._parts | {"attn": found.attn}
    return found
