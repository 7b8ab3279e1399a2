"""Which heads and MLPs a logit is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.checks import check_logit, check_trace, check_words, kept
from qkv.circuits.lens import has_linear_head, unembedding
from qkv.circuits.results import Result
from qkv.layers import LayerNorm, RMSNorm
from qkv.models.model import Model
from qkv.models.network.design import Design
from qkv.trace import Trace

_CALL = "attribute_logits"


def attribute_logits(model: Model, trace: Trace, of: tuple[Any, ...]) -> dict[str, Any]:
    """Each part's share of a logit: direct logit attribution.

    Where norms stand before the parts of a block, every head and every MLP adds its vector to one
    sum, and a norm and a matrix make the logits of that. A norm divides by a number that depends on
    all parts together; held at what it was in this run, what is left is linear, and the shares sum
    to the logit, before a soft cap if the head has one.

    A share is what a part wrote, not what would be missing without it: `patch` and `ablate=` change
    what comes behind as well.

    Args:
        model: a decoder whose norms stand before its parts, with or without norms behind them
            (GPT-2, Llama, Gemma), in parallel too (GPT-NeoX), and whose head is a norm and a
            matrix.
        trace: of one text by this model, with "full_embed", "z" (or "result") and "mlp_out" of all
            layers and the scales of the norms, as it is unless `names=` leaves something out.
        of: (place, token), or (place, token, other token) for how far the one logit is above the
            other. A place counts from the end with -1; a token is an id, or a string that is one.

    Returns:
        "embed", the share of the embeddings, positions included; "heads" (layers, Hq); "mlp"
        (layers,), each with its own bias, 0 where a block has none; and "bias", that of the output
        projections, of the final norm and of the head. Numbers and arrays are float64.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: the model gives no logits over words; its head is not linear (BERT's has a layer
            and an activation), or its norms stand behind its parts; the trace is of several texts
            or of another model; there is no such place or token.
        KeyError: the trace lacks an activation; the message says what to trace.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and nostalgebraist
        2020; scales held fixed as in TransformerLens.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> found = attribute_logits(model, trace, of=(-1, 7))
    >>> total = found["embed"] + found["heads"].sum() + found["mlp"].sum() + found["bias"]
    >>> bool(abs(total - trace["logits"][0, -1, 7]) < 1e-4)
    True
    """
    model = check_words(model, _CALL)
    _check_linear(model)
    trace = check_trace(trace, _CALL, model)
    embed = kept(trace, _CALL, "full_embed", ("resid_pre", 0))
    logit = check_logit(of, model, len(embed), _CALL, "of")
    place = logit.place
    towards, bias = _from_head(model, logit.of)
    design, parameters = model.design, model.parameters
    assert isinstance(design, Design)  # of a model of one text
    final = design.norm(parameters, "final_norm")
    if final is not None:
        scale = kept(trace, _CALL, "ln_final.hook_scale")[place]
        towards, more = _through(final, scale, towards)
        bias += more
    heads, mlp = [], np.zeros(model.num_layers)
    for number, block in enumerate(model.layers):
        own = towards
        if block.out_norm1 is not None:
            scale = kept(trace, _CALL, f"blocks.{number}.ln1_post.hook_scale")[place]
            own, more = _through(block.out_norm1, scale, towards)
            bias += more
        heads.append(_each_head(trace, number, block.attn, place) @ own)
        if "out_proj.bias" in block.attn.parameters:
            bias += float(_wide(block.attn.parameters["out_proj.bias"]) @ own)
        if block.mlp is not None:
            mlp[number] = kept(trace, _CALL, ("mlp_out", number))[place] @ towards
    share = "share of the logit"
    return {
        "embed": float(embed[place] @ towards),
        "heads": Result(heads, ("layer", "head"), of=share, title="heads"),
        "mlp": Result(mlp, ("layer",), of=share, title="mlp"),
        "bias": bias,
    }


def _check_linear(model: Model) -> None:
    """An error where logits are no sum of parts, whatever the scales of the norms."""
    if not has_linear_head(model):
        raise ValueError(
            f"{_CALL}: the head of {model.name} has a layer of its own before the last matrix, so "
            "a logit is no sum of parts: take a decoder, or patch(model, ...) for what parts do"
        )
    if any(block.post_norm for block in model.layers):
        raise ValueError(
            f"{_CALL}: the norms of {model.name} stand behind its parts, so each changes what "
            "those before it added: take a decoder whose norms stand before, or patch(model, ...)"
        )


def _from_head(model: Model, chosen: Any) -> tuple[Array, float]:
    """What the vector in front of the head is multiplied by, (D,), and what is added."""
    head, parameters = model.design.head, model.parameters
    assert head is not None
    bias = parameters.get("head.out_proj.bias")
    return chosen(unembedding(model)) * head.scale, 0.0 if bias is None else float(chosen(bias))


def _through(norm: LayerNorm | RMSNorm, scale: Array, towards: Array) -> tuple[Array, float]:
    """The same in front of a norm that divides by `scale`, and what the norm's bias adds."""
    found = _wide(norm.scaled()) * towards / _wide(scale)
    if isinstance(norm, LayerNorm):
        found = found - found.mean()  # the norm takes the mean away
    bias = norm.parameters.get("bias")
    return found, 0.0 if bias is None else float(_wide(bias) @ towards)


def _each_head(trace: Trace, layer: int, attn: Any, place: int) -> Array:
    """What each head adds at a place, (Hq, D), the bias of the output projection left out."""
    name = ("result", layer)
    if name in trace:
        return _wide(trace[name][0, place])
    z = _wide(kept(trace, _CALL, ("z", layer))[place])  # (Hq, dv)
    weight = _wide(attn.parameters["out_proj.weight"])
    each: Array = np.einsum("hd,hde->he", z, weight.reshape(*z.shape, -1))
    return each


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)
