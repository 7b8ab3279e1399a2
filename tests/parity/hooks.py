"""Hooks that change the activations of a torch model, under the names that a trace gives them."""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

Change = Callable[[torch.Tensor], torch.Tensor]
INSIDE = ("attn_scores", "pattern", "z")  # inside the attention: no torch module returns them

# The module in a family's block that has an activation as its input ("in") or its output ("out").
# "both": the activation is the module's input, and the block uses the same tensor again in its
# residual connection. A hook changes this tensor in place, so both uses get the changed values.
WHERE: dict[str, dict[str, tuple[str, str]]] = {
    "gpt2": {
        "resid_pre": ("", "in"),
        "resid_mid": ("ln_2", "both"),
        "resid_post": ("", "out"),
        "attn_out": ("attn", "out"),
        "mlp_out": ("mlp", "out"),
        "mlp.pre": ("mlp.c_fc", "out"),
        "mlp.post": ("mlp.c_proj", "in"),
    },
    "llama": {
        "resid_pre": ("", "in"),
        "resid_mid": ("post_attention_layernorm", "both"),
        "resid_post": ("", "out"),
        "attn_out": ("self_attn", "out"),
        "mlp_out": ("mlp", "out"),
        "mlp.pre": ("mlp.gate_proj", "out"),
        "mlp.post": ("mlp.down_proj", "in"),
        **{name: (f"self_attn.{name}_proj", "out") for name in "qkv"},
    },
    "bert": {
        "resid_pre": ("", "in"),
        "resid_mid": ("attention.output.LayerNorm", "in"),
        "resid_post": ("output.LayerNorm", "in"),
        "attn_out": ("attention.output.dense", "out"),
        "mlp_out": ("output.dense", "out"),
        "mlp.pre": ("intermediate.dense", "out"),
        "mlp.post": ("output.dense", "in"),
        "q": ("attention.self.query", "out"),
        "k": ("attention.self.key", "out"),
        "v": ("attention.self.value", "out"),
    },
    "t5": {
        "resid_pre": ("", "in"),
        "resid_mid": ("layer.0", "out"),
        "resid_post": ("", "out"),
        "attn_out": ("layer.0.SelfAttention", "out"),
        "mlp_out": ("layer.-1.DenseReluDense", "out"),
        "mlp.pre": ("layer.-1.DenseReluDense.wi", "out"),
        "mlp.post": ("layer.-1.DenseReluDense.wo", "in"),
        **{name: (f"layer.0.SelfAttention.{name}", "out") for name in "qkv"},
        "resid_mid_cross": ("layer.1", "out"),
        "cross_attn_out": ("layer.1.EncDecAttention", "out"),
        **{f"cross_attn.{name}": (f"layer.1.EncDecAttention.{name}", "out") for name in "qkv"},
    },
    "vit": {
        "resid_pre": ("", "in"),
        "resid_mid": ("layernorm_after", "both"),
        "resid_post": ("", "out"),
        "attn_out": ("attention", "out"),
        "mlp_out": ("mlp", "out"),
        "mlp.pre": ("mlp.fc1", "out"),
        "mlp.post": ("mlp.fc2", "in"),
        **{name: (f"attention.{name}_proj", "out") for name in "qkv"},
    },
}
WHERE["gpt_neox"] = {
    "resid_pre": ("", "in"),
    "resid_post": ("", "out"),
    "attn_out": ("attention", "out"),
    "mlp_out": ("mlp", "out"),
    "mlp.pre": ("mlp.dense_h_to_4h", "out"),
    "mlp.post": ("mlp.dense_4h_to_h", "in"),
}
WHERE["gptj"] = {
    "resid_pre": ("", "in"),
    "resid_post": ("", "out"),
    "attn_out": ("attn", "out"),
    "mlp_out": ("mlp", "out"),
    "mlp.pre": ("mlp.fc_in", "out"),
    "mlp.post": ("mlp.fc_out", "in"),
    **{name: (f"attn.{name}_proj", "out") for name in "qkv"},
}
WHERE["albert"] = {
    "resid_pre": ("", "in"),
    "resid_mid": ("attention.LayerNorm", "in"),
    "resid_post": ("full_layer_layer_norm", "in"),
    "attn_out": ("attention.dense", "out"),
    "mlp_out": ("ffn_output", "out"),
    "mlp.pre": ("ffn", "out"),
    "mlp.post": ("ffn_output", "in"),
    "q": ("attention.query", "out"),
    "k": ("attention.key", "out"),
    "v": ("attention.value", "out"),
}
WHERE["mixtral"] = WHERE["llama"]  # except inside the experts
WHERE["gemma2"] = WHERE["llama"] | {
    "resid_mid": ("pre_feedforward_layernorm", "both"),
    "attn_out": ("post_attention_layernorm", "out"),
    "mlp_out": ("post_feedforward_layernorm", "out"),
}
ATTENTION = {
    "gpt2": "attn",
    "llama": "self_attn",
    "gemma2": "self_attn",
    "mixtral": "self_attn",
    "gpt_neox": "attention",
    "gptj": "attn",
    "albert": "attention",
    "bert": "attention.self",
    "t5": "layer.0.SelfAttention",
    "vit": "attention",
}
BLOCKS = {
    "gpt2": "transformer.h",
    "llama": "model.layers",
    "gemma2": "model.layers",
    "mixtral": "model.layers",
    "gpt_neox": "gpt_neox.layers",
    "gptj": "transformer.h",
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers",  # the first and only group
    "bert": "bert.encoder.layer",
    "vit": "vit.layers",
    "encoder": "encoder.block",
    "decoder": "decoder.block",
}


def inner(module: Any, path: str) -> Any:
    """Return the module at `path` inside another; an index of -1 is the last of a list."""
    for name in filter(None, path.split(".")):
        module = module[int(name)] if name.lstrip("-").isdigit() else getattr(module, name)
    return module


@contextmanager
def edited(
    model: Any, family: str, changes: Mapping[tuple[str, int], Change], side: str = ""
) -> Iterator[None]:
    """Within this context, replace each activation (name, layer) by its function's result."""
    inside: dict[tuple[int, str], Change] = {}
    with ExitStack() as stack:
        for (name, layer), change in changes.items():
            blocks = inner(model, BLOCKS[side or family])
            block = blocks[layer % len(blocks)]
            if len(blocks) < model.config.get_text_config().num_hidden_layers:
                change = at_turn(change, layer, model.config.num_hidden_layers)
            short = name.removeprefix("cross_attn.")
            if short in INSIDE:
                crosses = short != name
                path = "layer.1.EncDecAttention" if crosses else ATTENTION[family]
                key = id(inner(block, path)), short
                inside[key] = both(inside[key], change) if key in inside else change
            elif family in FUSED and name in "qkv":
                path, heads = FUSED[family]
                part = inner(block, path)
                count = heads and model.config.num_attention_heads
                size = inner(block, ATTENTION[family])
                size = getattr(size, "head_dim", None) or size.head_size
                stack.enter_context(hooked(part, "out", third(name, change, size, count)))
            else:
                path, where = WHERE[family][name]
                part = inner(block, path)
                if short in "qkv":
                    size = getattr(inner(block, path.rpartition(".")[0]), SIZE[family])
                    change = by_head(change, size)
                stack.enter_context(hooked(part, where, change))
        module = sys.modules[type(model).__module__]
        attend = attention(inside)
        if family == "gptj":  # its attention is a method

            def method(self: Any, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
                z, weights = attend(self, query, key, value, mask, 1 / self.scale_attn)
                return z.transpose(1, 2), weights

            kind = type(inner(model, BLOCKS[family])[0].attn)
            stack.enter_context(patch.object(kind, "_attn", method))
        else:
            stack.enter_context(patch.object(module, "eager_attention_forward", attend))
        yield


SIZE = {
    "llama": "head_dim",
    "gemma2": "head_dim",
    "mixtral": "head_dim",
    "gptj": "head_dim",
    "albert": "attention_head_size",
    "bert": "attention_head_size",
    "t5": "key_value_proj_dim",
    "vit": "head_dim",
}


# Each family's module that computes queries, keys and values together, and whether the output of
# this module is grouped by head.
FUSED = {"gpt2": ("attn.c_attn", False), "gpt_neox": ("attention.query_key_value", True)}


def by_head(change: Change, size: int) -> Change:
    """Turn a change of (B, T, H, d) into a change of (B, T, H * d)."""
    return lambda x: change(x.unflatten(-1, (-1, size))).flatten(-2)


def third(name: str, change: Change, size: int, heads: int) -> Change:
    """Turn a change of queries, keys or values into a change of all three, side by side.

    If `heads` is 0, the queries of all heads come first, then all keys, then all values. Otherwise,
    `heads` is the number of heads, and each head has its query, key and value side by side.
    """

    def of_all(x: torch.Tensor) -> torch.Tensor:
        parts = list((x.unflatten(-1, (heads, -1)) if heads else x).chunk(3, -1))
        number = "qkv".index(name)
        of_heads = by_head(change, size) if not heads else change
        parts[number] = of_heads(parts[number])
        found = torch.cat(parts, -1)
        return found.flatten(-2) if heads else found

    return of_all


def at_turn(change: Change, turn: int, count: int) -> Change:
    """Return a change that acts only in layer `turn` of a model whose layers share one module.

    A run calls the module `count` times, once for each layer.
    """
    calls = itertools.count()
    return lambda x: change(x) if next(calls) % count == turn else x


def both(one: Change, other: Change) -> Change:
    """Return a change that applies one change, then the other."""
    return lambda x: other(one(x))


@contextmanager
def hooked(module: Any, where: str, change: Change) -> Iterator[None]:
    """Within this context, replace a module's input or output by a function's result."""

    def first(given: Any) -> Any:
        return given[0] if isinstance(given, tuple) else given

    def replaced(given: Any, new: Any) -> Any:
        return (new, *given[1:]) if isinstance(given, tuple) else new

    def before(_: Any, given: Any) -> Any:
        if where == "both":  # the block adds the same tensor later
            given[0].copy_(change(given[0].clone()))
            return None
        return replaced(given, change(given[0].clone()))

    def behind(_: Any, __: Any, found: Any) -> Any:
        return replaced(found, change(first(found).clone()))

    register = module.register_forward_pre_hook if where != "out" else module.register_forward_hook
    with register(behind if where == "out" else before):
        yield


def attention(changes: Mapping[tuple[int, str], Change]) -> Callable[..., Any]:
    """Return a reimplementation of attention that changes some of its activations.

    Each key of `changes` is a pair: a module's id and an activation's name.
    """

    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        softcap: float | None = None,
        position_bias: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = query @ key.mT * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if position_bias is not None:
            scores = scores + position_bias
        if attention_mask is not None:
            mask = attention_mask[..., : key.shape[-2]]
            mask = mask if mask.dtype == torch.bool else mask > -1e30
            scores = scores.masked_fill(~mask, -torch.inf)
        scores = changes.get((id(module), "attn_scores"), same)(scores.clone())
        weights = torch.softmax(scores, -1)
        weights = torch.where(torch.isneginf(scores), 0, weights)
        weights = changes.get((id(module), "pattern"), same)(weights)
        z = (weights @ value).transpose(1, 2)
        return changes.get((id(module), "z"), same)(z).contiguous(), weights

    return attend
