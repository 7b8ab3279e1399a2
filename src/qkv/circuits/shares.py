"""Which heads and MLPs a logit is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, shown
from qkv.circuits.checks import (
    Logit,
    check_logit,
    check_trace,
    check_words,
    for_each,
    kept_of_all,
)
from qkv.circuits.lens import has_linear_head, unembedding
from qkv.circuits.results import Result
from qkv.layers import MLP, LayerNorm, RMSNorm
from qkv.models.model import Model
from qkv.models.network.design import Design
from qkv.trace import Trace

_CALL = "attribute_logits"


def attribute_logits(
    model: Model,
    trace: Trace,
    of: tuple[Any, ...] | list[tuple[Any, ...]],
    *,
    by: Literal["neuron"] | None = None,
) -> dict[str, Any]:
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
        trace: by this model, of one text or several, with "full_embed", "z" (or "result") and
            "mlp_out" of all layers and the scales of the norms, as it is unless `names=` leaves
            something out; by neuron also "post".
        of: (place, token), or (place, token, other token) for how far the one logit is above the
            other. A place counts from the end of each text with -1; a token is an id, or a string
            that is one. Of several texts, a list has one such tuple for each.
        by: "neuron" to divide the MLPs' shares among their neurons.

    Returns:
        "embed", the share of the embeddings, positions included; "heads" (layers, Hq); "mlp"
        (layers,), each with its own bias, 0 where a block has none; and "bias", that of the output
        projections, of the final norm and of the head. By neuron also "neurons" (layers, F), which
        are parts of "mlp": `found["mlp"] - found["neurons"].sum(-1)` are the shares of the MLPs'
        output biases. Of several texts all have a first axis more, (B, ...). Numbers and arrays are
        float64.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: the model gives no logits over words; its head is not linear (BERT's has a layer
            and an activation), or its norms stand behind its parts; by neuron, its blocks have no
            MLP or a mixture of experts; the trace is of another model; there is no such `by`, place
            or token; or `of` is a list of another length.
        KeyError: the trace lacks an activation; the message says what to trace.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and nostalgebraist
        2020; scales held fixed as in TransformerLens.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> found = attribute_logits(model, trace, of=(-1, 7), by="neuron")
    >>> total = found["embed"] + found["heads"].sum() + found["mlp"].sum() + found["bias"]
    >>> bool(abs(total - trace["logits"][0, -1, 7]) < 1e-4)
    True
    >>> found["neurons"].shape[0] == model.num_layers
    True
    """
    model = check_words(model, _CALL)
    _check_linear(model, by)
    trace = check_trace(trace, _CALL, model, several=True)
    embed = kept_of_all(trace, _CALL, "full_embed", ("resid_pre", 0))  # (B, T, D)
    texts = len(embed)
    lengths = trace.lengths if texts > 1 else [embed.shape[1]]
    logits = [
        check_logit(one, model, int(length), _CALL, "of" if texts == 1 else f"of text {number}")
        for number, (one, length) in enumerate(
            zip(for_each(of, texts, _CALL, "of"), lengths, strict=True)
        )
    ]
    rows, places = np.arange(texts), [logit.place for logit in logits]

    def at(*names: Any) -> Array:
        """An activation at the place of each text, (B, ...)."""
        return _wide(kept_of_all(trace, _CALL, *names)[rows, places])

    towards, bias = _from_head(model, logits)  # (B, D), (B,)
    design, parameters = model.design, model.parameters
    assert isinstance(design, Design)  # of a model of one text
    final = design.norm(parameters, "final_norm")
    if final is not None:
        towards, more = _through(final, at("ln_final.hook_scale"), towards)
        bias += more
    heads, mlp, neurons = [], np.zeros((texts, model.num_layers)), []
    for number, block in enumerate(model.layers):
        own = towards
        if block.out_norm1 is not None:
            own, more = _through(
                block.out_norm1, at(f"blocks.{number}.ln1_post.hook_scale"), towards
            )
            bias += more
        result = ("result", number)
        if result in trace:
            heads.append(np.einsum("bhd,bd->bh", at(result), own))
        else:
            z = at(("z", number))  # (B, Hq, dv)
            each = z * _back(block.attn, "out_proj", own).reshape(z.shape)
            heads.append(each.sum(-1))
        if "out_proj.bias" in block.attn.parameters:
            bias += own @ _wide(block.attn.parameters["out_proj.bias"])
        if block.mlp is not None:
            mlp[:, number] = (at(("mlp_out", number)) * towards).sum(-1)
        if by is not None:
            own = towards
            if block.out_norm2 is not None:
                scale = at(f"blocks.{number}.ln2_post.hook_scale")
                own, _ = _through(block.out_norm2, scale, towards)
            neurons.append(at(("post", number)) * _back(block.mlp, "down_proj", own))
    found: dict[str, Any] = {
        "embed": (at("full_embed", ("resid_pre", 0)) * towards).sum(-1),
        "heads": np.stack(heads, 1),
        "mlp": mlp,
        "bias": bias,
    }
    if by is not None:
        found["neurons"] = np.stack(neurons, 1)
    axes = {"heads": ("layer", "head"), "mlp": ("layer",), "neurons": ("layer", "neuron")}
    if texts == 1:
        found = {name: share[0] for name, share in found.items()}
    front = ("text",) * (texts > 1)
    return {
        name: Result(share, (*front, *axes.get(name, ())), of="share of the logit", title=name)
        if share.ndim
        else float(share)
        for name, share in found.items()
    }


def _check_linear(model: Model, by: Any) -> None:
    """An error where logits are no sum of parts, whatever the scales of the norms."""
    if by not in (None, "neuron"):
        raise ValueError(f"{_CALL}: by is {shown(by)}: give 'neuron', or leave it out")
    if by is not None and not all(isinstance(block.mlp, MLP) for block in model.layers):
        raise ValueError(
            f"{_CALL}: by is 'neuron' and a block of {model.name} has no MLP or a mixture of "
            "experts: leave by out"
        )
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


def _from_head(model: Model, logits: Sequence[Logit]) -> tuple[Array, Array]:
    """What the vectors in front of the head are multiplied by, (B, D), and what is added, (B,)."""
    head, parameters = model.design.head, model.parameters
    assert head is not None
    out, bias = unembedding(model), parameters.get("head.out_proj.bias")
    towards = np.array([logit.of(out) for logit in logits]) * head.scale
    return towards, np.array([0.0 if bias is None else logit.of(bias) for logit in logits])


def _through(norm: LayerNorm | RMSNorm, scale: Array, towards: Array) -> tuple[Array, Array]:
    """The same in front of a norm that divides by `scale`, and what the norm's bias adds."""
    found = _wide(norm.scaled()) * towards / scale
    if isinstance(norm, LayerNorm):
        found = found - found.mean(-1, keepdims=True)  # the norm takes the mean away
    bias = norm.parameters.get("bias")
    return found, np.zeros(len(towards)) if bias is None else towards @ _wide(bias)


def _back(part: Any, name: str, own: Array) -> Array:
    """What a part's last projection multiplies its input by towards the logits, (B, in)."""
    found: Array = own @ _wide(part.parameters[f"{name}.weight"]).T
    return found


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)
