"""The backward pass of the attention layer: the steps of the forward pass in reverse order."""

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend import attention_grad, join_heads, split_heads, varlen_attention_grad
from qkv.attend.arguments import check_call
from qkv.attend.gradient import AttentionGradient, Keep, gradient_by_weights, summed_to
from qkv.layers import base
from qkv.layers.attention._relative import Relative
from qkv.layers.attention.forward import AttentionSaved, Parts, formula_options
from qkv.ops.linear import project_back
from qkv.trace import Recorder
from qkv.trace.activations import WEIGHTS
from qkv.trace.recorder import of_heads, of_rows, padded_heads, unkept, unpadded_heads

_LEARNED = ("bias", "sinks", "alibi_slopes")


def attention_backward(
    layer: Parts, grad: Any, saved: AttentionSaved, record: Recorder | None = None
) -> base.Gradient:
    """Compute the gradients for the layer's inputs from the gradient for its output."""
    gradients = base.for_parameters(record)
    z, inputs = saved.z, saved.inputs
    shape = (*z.shape[:-3], z.shape[-2], layer.output_dim)
    grad = base.upstream(grad, shape, inputs.dtype)
    if base.asks(record, "hook_result"):
        z = _from_results(layer, grad, z, of_rows(record, inputs.cu) or unkept)
    else:
        if "out_proj.weight" in layer.parameters:
            grad = project_back(join_heads(z), layer.parameters, "out_proj", grad, gradients)
        z = split_heads(grad, layer.num_heads)
    changed = bool(saved.norms or saved.positions)
    keep, rows = of_heads(record, inputs.cu) or unkept, of_rows(record, inputs.cu) or unkept
    z = keep("hook_z", z)
    if saved.weighed is not None or base.asks(record, *WEIGHTS):
        heads = _from_weights(z, saved, record or unkept)
    else:
        heads = _attention_grad(z, saved)

    grad_rows, more = None, dict[str, Array]()
    if inputs.relative is not None:
        heads, grad_rows, more = _relative_grad(layer, heads, inputs.relative, saved)

    def to_words(name: str, part: Array, x: Array) -> Array:
        """Compute the gradient for `x` from the gradient `part` (..., H, T, d) for q, k or v."""
        if changed and name != "v":
            part = keep(f"hook_rot_{name}", part)
        if name in saved.positions:
            assert layer.rotary is not None
            part = layer.rotary.rotate_back(part, *saved.positions[name])
        part = summed_to(part, saved.shapes[name])
        norm = {"q": layer.q_norm, "k": layer.k_norm}.get(name)
        if norm is not None:
            whole = norm.dim != part.shape[-1]  # The norm acts on the joined vectors of all heads.
            vectors = join_heads(part) if whole else part
            inner = record and record.under(f"{name}_norm.")
            vectors = base.part_back(
                norm, vectors, saved.norms[name], f"{name}_norm", gradients, inner
            ).x
            part = split_heads(vectors, part.shape[-3]) if whole else vectors
        part = keep(f"hook_{name}", part)
        part = part * saved.inside[name] if saved.inside else part
        back = project_back(x, layer.parameters, f"{name}_proj", join_heads(part), gradients)
        return rows(f"hook_{name}_in", back)

    query = to_words("q", heads.query, inputs.words)
    others = to_words("k", heads.key, inputs.others) + to_words("v", heads.value, inputs.others)
    options = {name: getattr(heads, name) for name in _LEARNED} | {"relative": grad_rows}
    options = {name: array for name, array in options.items() if array is not None}
    if gradients is not None:
        gradients |= {name: gradients.get(name, 0) + array for name, array in more.items()}
    if inputs.context is None:
        return base.Gradient(query + others, gradients or {}, options=options)
    return base.Gradient(query, gradients or {}, context=others, options=options)


def _from_results(layer: Parts, grad: Array, z: Array, record: Keep) -> Array:
    """Compute the gradient for `z`, and record the gradient for the output of each head."""
    weight = layer.parameters["out_proj.weight"].reshape(*z.shape[-3::2], -1)  # (Hq, dv, D)
    results = np.broadcast_to(grad[..., None, :], (*grad.shape[:-1], *weight.shape[::2]))
    results = np.swapaxes(record("hook_result", results), -3, -2)  # (..., Hq, L, D)
    return results @ np.swapaxes(weight, -2, -1)


def _from_weights(grad: Array, saved: AttentionSaved, record: Keep) -> AttentionGradient:
    """Compute the gradients for q, k and v through the recorded weights and scores."""
    cu, options = saved.inputs.cu, formula_options(saved.inputs.options)
    parts = [saved.query, saved.key, saved.value, grad]
    if cu is not None:
        parts, lengths = padded_heads(parts, cu), np.diff(cu)
        options |= {"query_lengths": lengths, "key_lengths": lengths}
    call = check_call(*parts[:3], **options)
    weights = None if saved.weighed is None else saved.weighed[1:]
    *heads, bias = gradient_by_weights(call, parts[3], weights, record)
    query, key, value = heads if cu is None else (unpadded_heads(part, cu) for part in heads)
    given = saved.inputs.relative is not None
    return AttentionGradient(query, key, value, bias if given else None, None, None)


def _relative_grad(
    layer: Parts, heads: AttentionGradient, relative: Relative, saved: AttentionSaved
) -> tuple[AttentionGradient, Array, dict[str, Array]]:
    """Add the gradients through the relative positions to the gradients for queries and keys.

    The function also returns the gradients for the rows of relative positions, and for parameters.
    """
    assert heads.bias is not None
    query, key, cu = saved.query, saved.key, saved.inputs.cu
    if cu is not None:
        query, key = padded_heads([query, key], cu)
    pair = {"q": query, "k": key}
    more, grad_rows, gradients = relative.backward(heads.bias, layer.parameters, pair)
    if cu is not None:
        more = {name: unpadded_heads(part, cu) for name, part in more.items()}
    query, key = heads.query + more.get("q", 0), heads.key + more.get("k", 0)
    return heads._replace(query=query, key=key, bias=None), grad_rows, gradients


def _attention_grad(grad: Array, saved: AttentionSaved) -> AttentionGradient:
    """Compute the gradients for the values, the rotated queries and the rotated keys."""
    cu, options = saved.inputs.cu, formula_options(saved.inputs.options)
    parts, z, lse = [saved.query, saved.key, saved.value, grad], saved.z, saved.lse
    assert lse is not None
    if cu is None:
        return attention_grad(*parts, forward=(z, lse), **options)
    if any(name in options for name in base.PADDED):
        lengths = np.diff(cu)
        padded = padded_heads([*parts, z, lse.T[..., None]], cu)
        heads = attention_grad(
            *padded[:4],
            forward=(padded[4], padded[5][..., 0]),
            query_lengths=lengths,
            key_lengths=lengths,
            **options,
        )
        query, key, value = (unpadded_heads(part, cu) for part in heads[:3])
        return heads._replace(query=query, key=key, value=value)
    query, key, value, grad = (np.swapaxes(part, 0, 1) for part in parts)  # (total, H, d)
    heads = varlen_attention_grad(
        query, key, value, grad, cu, cu, forward=(np.swapaxes(z, 0, 1), lse), **options
    )
    return heads._replace(
        query=np.swapaxes(heads.query, 0, 1),
        key=np.swapaxes(heads.key, 0, 1),
        value=np.swapaxes(heads.value, 0, 1),
    )
