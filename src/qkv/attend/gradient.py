"""The gradient of attention: what a change of each input does to a sum of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, as_array, is_float, shown
from qkv.attend import native
from qkv.attend.attention import scores_and_weights
from qkv.attend.call import Call, Packed, check_call, rounded
from qkv.attend.formula import weigh
from qkv.attend.grouped import Grouped, grouped
from qkv.attend.heads import group_queries
from qkv.attend.native import Gradients
from qkv.attend.options import OPTIONS, PACKED, RETURNS, check_options
from qkv.attend.plan import Plan, takes
from qkv.attend.solve import solve
from qkv.attend.tiled import QUERIES, Part, capped_of, key_blocks, masked
from qkv.attend.varlen import as_batch, as_call, attend_rows, check_packed, equal_runs
from qkv.ops.kernel import body
from qkv.ops.threads import one_blas_thread, run_all
from qkv.trace.activations import PATTERN, SCORES

_NOT_PACKED = {*OPTIONS} - {*PACKED} | {"return_lse"}
EXACT = 64.0  # log-sum-exps up to here leave weights as exact as the formula's
EXACT_WIDE = 1e3  # in float64


class AttentionGradient(NamedTuple):
    """A gradient for each input, of its shape; None for what was not given."""

    query: Array
    key: Array
    value: Array
    bias: Array | None
    sinks: Array | None
    alibi_slopes: Array | None


def attention_grad(
    query: Any,
    key: Any,
    value: Any,
    grad_out: Any,
    attn_mask: Any = None,
    *,
    forward: tuple[Any, Any] | None = None,
    **options: Any,
) -> AttentionGradient:
    """The gradients of `sum(grad_out * attention(query, key, value, ...))`.

    With the weights P, their scores s and the output O of a row: the weights' gradient is
    `dP = grad_out @ value.T`, the scores' `ds = P * (dP - sum(grad_out * O))`, and from there the
    chain goes on to each input. P is computed anew from the log-sum-exp, block by block, so that
    memory grows with the length and not with its square.

    Args:
        query: `(..., Hq, L, d)`, as `qkv.attention` takes it.
        key: `(..., Hkv, S, d)`.
        value: `(..., Hkv, S, dv)`.
        grad_out: `(..., Hq, L, dv)`, the gradient of what comes after, of the output's type.
        attn_mask: as for `qkv.attention`; it has no gradient.
        forward: `(out, lse)` that `qkv.attention(..., return_lse=True)` gave, which spares a
            second forward pass.
        options: those of `qkv.attention`, but for what it returns.

    Returns:
        `.query`, `.key`, `.value` of the shapes and the type of the inputs, and `.bias`, `.sinks`,
        `.alibi_slopes` of the shapes given, in the type of weights. What is hidden has gradient 0,
        and nothing in a hidden place shows. The same to the last bit on any number of threads.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: types that do not fit, or an option that there is not.

    Source:
        Dao et al. 2022, FlashAttention, appendix B.2.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> attention_grad(x, x, x, np.ones((2, 2))).value.round(2)  # the columns of the weights
    array([[1., 1.],
           [1., 1.]])
    """
    name = "attention_grad"
    check_options(options, call=name, without=RETURNS, why=": a gradient is all it gives")
    call = check_call(query, key, value, attn_mask, call=name, **options)
    plan = call.plan
    grad_out = _checked(grad_out, "grad_out", plan.out, plan.dtype, name)
    if forward is None:
        [(out, lse, _)] = solve([call], lse=True)
        exact = EXACT_WIDE
    else:
        out, lse = _saved(forward, plan.out, plan, name)
        exact = EXACT
    assert lse is not None
    found = _gradients(call, grad_out, out, lse, exact)
    lead = len(plan.groups) - 2
    return AttentionGradient(
        summed_to(found.query, call.query.shape).astype(plan.dtype, copy=False),
        summed_to(found.key, call.key.shape).astype(plan.dtype, copy=False),
        summed_to(found.value, call.value.shape).astype(plan.dtype, copy=False),
        None if call.bias is None else found.bias,
        _over_rows(found.sinks, options.get("sinks"), lead),
        _over_rows(found.slopes, options.get("alibi_slopes"), lead),
    )


def gradient_by_weights(
    call: Call,
    grad_out: Array,
    weights: tuple[Array, Array] | None,
    record: Callable[[str, Array], Array],
) -> tuple[Array, Array, Array]:
    """The gradients of query, key and value of a checked call, by those of weights and scores.

    Args:
        call: the call.
        grad_out: `(*lead, Hq, L, dv)`.
        weights: the softmax of the scores and what values were multiplied by, `(*lead, Hq, L, S)`,
            where scores or weights were edited; None for those of the call.
        record: gets the name of weights or scores and their gradient, and gives what goes on.
    """
    plan, wide = call.plan, grouped(call)
    scores, own = scores_and_weights(call)
    softmax, pattern = (own, own) if weights is None else weights
    query, key, value = wide[:3]
    used, grad = plan.grouped(pattern), plan.grouped(grad_out)
    with one_blas_thread():
        grad_value = (np.swapaxes(used, -2, -1) @ grad).sum(-3)
        change = record(PATTERN, plan.ungrouped(grad @ np.swapaxes(value, -2, -1)))
        change = record(SCORES, softmax * (change - (softmax * change).sum(-1, keepdims=True)))
        change = plan.grouped(np.where(np.isneginf(scores), 0, change))
        if wide.softcap is not None:
            raw = query @ np.swapaxes(key, -2, -1) * (wide.scale / wide.softcap)
            change = change * (1 - np.square(np.tanh(raw)))
        change = change * plan.kind.type(wide.scale)
        grad_key = (np.swapaxes(change, -2, -1) @ query).sum(-3)
        return plan.ungrouped(change @ key), grad_key, grad_value


def varlen_attention_grad(
    query: Any,
    key: Any,
    value: Any,
    grad_out: Any,
    cu_query_lengths: Any,
    cu_key_lengths: Any,
    *,
    forward: tuple[Any, Any] | None = None,
    **options: Any,
) -> AttentionGradient:
    """The gradients of `sum(grad_out * varlen_attention(query, key, value, ...))`.

    Args:
        query: `(total queries, Hq, d)`, as `qkv.varlen_attention` takes it.
        key: `(total keys, Hkv, d)`.
        value: `(total keys, Hkv, dv)`.
        grad_out: `(total queries, Hq, dv)`, the gradient of what comes after.
        cu_query_lengths: `(B + 1,)`, as for `qkv.varlen_attention`.
        cu_key_lengths: the same for key and value.
        forward: `(out, lse)` that `qkv.varlen_attention(..., return_lse=True)` gave, which spares
            a second forward pass.
        options: `is_causal`, `q_offset`, `window`, `softcap`, `alibi_slopes`, `sinks` and `scale`
            of `qkv.varlen_attention`.

    Returns:
        What `qkv.attention_grad` gives, of packed rows; those of sinks and slopes are summed over
        the sequences.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: types that do not fit.

    Source:
        Dao et al. 2022, FlashAttention, appendix B.2.

    >>> x = np.array([[1.0], [2.0], [5.0]])[:, None, :]  # three rows, one head of size 1
    >>> found = varlen_attention_grad(x, x, x, np.ones((3, 1, 1)), [0, 2, 3], [0, 2, 3])
    >>> found.value.ravel().round(2)
    array([0.39, 1.61, 1.  ])
    """
    name = "varlen_attention_grad"
    check_options(options, call=name, without=_NOT_PACKED)
    packed = check_packed(query, key, value, cu_query_lengths, cu_key_lengths, **options, call=name)
    plan = packed.call.plan
    shape = (plan.length, plan.heads, plan.out[-1])
    grad_out = _checked(grad_out, "grad_out", shape, plan.dtype, name)
    if forward is None:
        out, lse = attend_rows(packed, lse=True)
        exact = EXACT_WIDE
    else:
        out, lse = _saved(forward, shape, plan, name)
        exact = EXACT
    assert lse is not None
    found = _packed_gradients(packed, grad_out, out, lse, exact)
    return AttentionGradient(
        found.query.astype(plan.dtype, copy=False),
        found.key.astype(plan.dtype, copy=False),
        found.value.astype(plan.dtype, copy=False),
        None,
        _over_rows(found.sinks, options.get("sinks"), 1),
        _over_rows(found.slopes, options.get("alibi_slopes"), 1),
    )


def _gradients(call: Call, grad_out: Array, out: Array, lse: Array, exact: float) -> Gradients:
    """Compute with the kernel, and with NumPy the heads that the kernel rejects.

    Those have a log-sum-exp beyond `exact`, or infinite or NaN values.
    """
    plan, kind = call.plan, call.plan.kind
    kv_rows = (*plan.lead, plan.kv_heads, plan.keys)
    found = Gradients(
        np.empty((*plan.lead, plan.heads, plan.length, plan.size), kind),
        np.empty((*kv_rows, plan.size), kind),
        np.empty((*kv_rows, plan.out[-1]), kind),
        np.zeros(() if call.bias is None else call.bias.shape, kind),
        *_zeros_per_head(call, plan.groups),
    )
    wrong = _by_kernel(call, grad_out, out, lse, exact, found)
    if not wrong.any():
        return found
    if call.bias is not None:  # its gradient has sums over heads
        wrong[...] = True
        found.bias[...] = 0
    views = found._replace(
        query=plan.grouped(found.query),
        key=plan.grouped_keys(found.key),
        value=plan.grouped_keys(found.value),
        bias=found.bias.reshape(_grouped_shape(found.bias.shape, plan)),
    )
    given, result, sums = (plan.grouped(x) for x in (grad_out, out, lse))
    heads = _heads(grouped(call), wrong, given, result, sums, views)
    # several heads may add to one number of a bias
    for at_once in [heads] if call.bias is None else [[head] for head in heads]:
        run_all(_head, at_once)
    return found


def _packed_gradients(
    packed: Packed, grad_out: Array, out: Array, lse: Array, exact: float
) -> Gradients:
    """The same of packed rows."""
    starts, key_starts, plan = packed.starts, packed.key_starts, packed.call.plan
    groups = (len(starts) - 1, *plan.groups[-2:])
    query, key, value = (np.empty(x.shape, plan.kind) for x in packed.rows)
    found = Gradients(query, key, value, np.zeros(()), *_zeros_per_head(packed.call, groups))
    wrong = _by_kernel(packed, grad_out, out, lse, exact, found)
    heads = []
    for first, last in equal_runs(packed) if wrong.any() else ():
        if not wrong[first:last].any():
            continue
        given, results, sums, queries = (
            group_queries(as_batch(x, starts, first, last), plan.kv_heads)
            for x in (grad_out, out, lse, query)
        )
        views = Gradients(
            queries,
            as_batch(key, key_starts, first, last)[..., None, :, :],
            as_batch(value, key_starts, first, last)[..., None, :, :],
            found.bias,
            found.sinks[first:last],
            found.slopes[first:last],
        )
        call = grouped(as_call(packed, first, last))
        heads += _heads(call, wrong[first:last], given, results, sums, views)
    run_all(_head, heads)
    return found


def _by_kernel(
    call: Call | Packed, grad_out: Array, out: Array, lse: Array, exact: float, found: Gradients
) -> Array:
    """Fill in what the kernel computes; gives which key heads `(*lead, Hkv)` it does not."""
    plan = call.call.plan if isinstance(call, Packed) else call.plan
    chosen, takes_values = body(), takes(plan.dtype, plan.out[-1])
    if chosen is None or not (plan.is_native and takes_values and found.query.size):
        return np.ones(found.slopes.shape[:-1], bool)
    if grad_out.dtype == np.float64:
        grad_out = grad_out.astype(plan.kind)
    out, lse = out.astype(plan.dtype, copy=False), lse.astype(np.float64, copy=False)
    return native.differentiate(chosen, call, grad_out, out, lse, exact, found)


def _zeros_per_head(call: Call, groups: tuple[int, ...]) -> tuple[Array, Array]:
    """What gradients of sinks `(*groups, n)` and slopes are summed in."""
    sinks = 0 if call.sinks is None else call.sinks.shape[-1]
    return np.zeros((*groups, sinks), call.plan.kind), np.zeros(groups, call.plan.kind)


def _over_rows(found: Array, given: Any, lead: int) -> Array | None:
    """The gradient of one number for each head, of the shape given: summed over `lead` axes."""
    return None if given is None else found.sum(tuple(range(lead))).reshape(np.shape(given))


def _heads(
    call: Grouped,
    wrong: Array,
    grad_out: Array,
    out: Array,
    lse: Array,
    found: Gradients,
) -> list[tuple[Any, ...]]:
    """The key heads `wrong (*lead, Hkv)` for `_head`, with 0 where they are to be summed."""
    grad_out, out, lse = (rounded(x, call.kind) for x in (grad_out, out, lse))
    heads = []
    for *text, head in np.argwhere(wrong).tolist():
        rows = tuple(slice(t, t + 1) for t in text)
        index = (*rows, slice(head, head + 1))
        for array in (found.query, found.key, found.value, found.sinks, found.slopes):
            array[index] = 0
        heads.append((call, index, rows, grad_out, out, lse, found))
    return heads


def _head(
    call: Grouped,
    index: tuple[Any, ...],
    rows: tuple[Any, ...],
    grad_out: Array,
    out: Array,
    lse: Array,
    found: Gradients,
) -> None:
    """All of one key head: its blocks one after the other, so that sums have one order."""
    *_, group, length = call.shape
    step = max(1, QUERIES // max(group, 1))
    for start in range(0, length, step):
        part = Part(rows, index, slice(start, min(length, start + step)))
        here = (*index, slice(None), part.queries)
        with np.errstate(all="ignore"):
            _block(call, part, grad_out[here], out[here], lse[here], found)


def _block(
    call: Grouped,
    part: Part,
    grad_out: Array,
    out: Array,
    lse: Array,
    found: Gradients,
) -> None:
    """Add what some queries of one head contribute to every gradient."""
    blind = np.isneginf(lse)
    base = np.where(blind, 0, lse)
    total = _total(call, part, base)
    # nothing that a blind row holds counts, be it NaN
    grad_out = np.where(blind | (_unseen(call, part)), 0, grad_out)
    delta = (grad_out * out).sum(-1, keepdims=True)
    here = (*part.index, slice(None), part.queries)
    if call.sinks is not None:
        shares = np.exp(call.sinks[part.index[-1]] - base) / total  # (heads, G, l, n)
        found.sinks[(*part.index, slice(None))] -= (shares * delta).sum(-2)
    asked = call.query[here]
    for j in key_blocks(call, part):
        there = (*part.index, slice(None), j)
        capped = capped_of(call, part, j)
        slope = None if call.softcap is None else 1 - (capped / call.softcap) ** 2
        scores, visible = masked(call, part, j, capped.copy())
        weights = np.exp(scores - base) / total
        if visible is not None:
            weights = np.where(visible, weights, 0)
        transposed = None if visible is None else np.swapaxes(visible, -1, -2)
        found.value[there] += _summed(np.swapaxes(weights, -1, -2), grad_out, transposed)
        change = weights * (grad_out @ np.swapaxes(call.value[there], -1, -2) - delta)
        if visible is not None:
            change = np.where(visible, change, 0)
        if call.bias is not None:
            _add_to_bias(found.bias, part, j, change)
        if call.slopes is not None:
            distance = call.visibility.distance(part.rows, part.queries, j).astype(call.kind)
            found.slopes[(*part.index, slice(None))] -= (change * distance).sum((-1, -2))
        if slope is not None:
            change = change * slope
            if visible is not None:
                change = np.where(visible, change, 0)
        change *= change.dtype.type(call.scale)
        found.query[here] += weigh(change, call.key[there], visible)
        found.key[there] += _summed(np.swapaxes(change, -1, -2), asked, transposed)


def _total(call: Grouped, part: Part, base: Array) -> Array | float:
    """What the weights of each row sum to by their log-sum-exp: 1 but for its rounding.

    Beside scores of -3e38, say, which masks of the lowest number make, all digits of the logarithm
    of the number of keys are lost.
    """
    if np.abs(base).max(initial=0) < EXACT:
        return 1.0
    total = np.zeros_like(base)
    if call.sinks is not None:
        total += np.exp(call.sinks[part.index[-1]] - base).sum(-1, keepdims=True)
    for j in key_blocks(call, part):
        scores, visible = masked(call, part, j, capped_of(call, part, j))
        weights = np.exp(scores - base)
        if visible is not None:
            weights = np.where(visible, weights, 0)
        total += weights.sum(-1, keepdims=True)
    return np.where(total == 0, 1, total)


def _summed(weights: Array, rows: Array, visible: Array | None) -> Array:
    """`weights (..., G, s, l) @ rows (..., G, l, n)`, summed over the heads of a group."""
    summed: Array = weigh(weights, rows, visible).sum(-3, keepdims=True)
    return summed


def _unseen(call: Grouped, part: Part) -> Array | bool:
    """Which queries of a part are padding, `(..., 1, l, 1)`."""
    lengths = call.visibility.query_lengths
    if lengths is None:
        return False
    places = np.arange(part.queries.start, part.queries.stop)
    unseen: Array = (places >= lengths[part.rows][..., None, None, None])[..., None]
    return unseen


def _grouped_shape(shape: tuple[int, ...], plan: Plan) -> tuple[int, ...]:
    """The shape of a bias as it was given, `(..., Hq, L, S)`, with heads grouped."""
    axes = len(plan.groups) + 1
    *lead, heads, length, keys = ((1,) * axes + shape)[-axes:]
    return (*lead, *(plan.groups[-2:] if heads > 1 else (1, 1)), length, keys)


def _add_to_bias(bias: Array, part: Part, keys: slice, change: Array) -> None:
    """Sum a block's change over the places that share a number of the bias."""
    place = (*part.index, slice(None), part.queries, keys)
    repeated = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
    at = tuple(slice(None) if axis in repeated else p for axis, p in enumerate(place))
    bias[at] += change.sum(repeated, keepdims=True)


def _saved(forward: Any, shape: tuple[int, ...], plan: Plan, name: str) -> tuple[Array, Array]:
    """`forward`, the result of attention and its log-sum-exp `(..., 1)`."""
    if not isinstance(forward, (tuple, list)) or len(forward) != 2:
        raise TypeError(
            f"{name}: forward is {shown(forward)}: give (out, lse), "
            "as attention gives them with return_lse=True"
        )
    out = _checked(forward[0], "forward[0]", shape, plan.dtype, name)
    return out, _checked(forward[1], "forward[1]", shape[:-1], plan.kind, name)[..., None]


def _checked(
    given: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], call: str
) -> Array:
    """An array of floats of this shape, its last axis contiguous."""
    array = as_array(given, call=call, name=name)
    if array.shape != shape:
        raise ValueError(
            f"{call}: {name} has shape {array.shape} and the result of attention {shape}: "
            "they must be the same"
        )
    if not is_float(array.dtype):
        raise TypeError(f"{call}: {name} is {array.dtype}: write {dtype}")
    return array if native.is_contiguous(array) else np.ascontiguousarray(array)


def summed_to(array: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of what was repeated to the shape of `array`: summed over where it was."""
    own = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(own) if size == 1 != array.shape[axis])
    summed: Array = array.sum(axes, keepdims=True) if axes else array
    return summed.reshape(shape)
