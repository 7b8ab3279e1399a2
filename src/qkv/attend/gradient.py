"""The gradient of attention: what a change of each input does to a sum of the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, as_array, is_float, shown
from qkv.attend import native
from qkv.attend.call import Call, check_call, rounded
from qkv.attend.formula import weigh
from qkv.attend.heads import group_queries, ungroup_queries
from qkv.attend.options import RETURNS, check_options
from qkv.attend.solve import solve
from qkv.attend.tiled import QUERIES, Part, capped_of, key_blocks, masked
from qkv.attend.varlen import Packed, as_batch, attend_rows, check_packed
from qkv.ops.kernel import body
from qkv.ops.threads import run_all

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
    shape = call.result(np.broadcast_to(np.zeros((), call.kind), (*call.shape, 0))).shape[:-1]
    shape = (*shape, call.value.shape[-1])
    above = _grouped(_like(grad_out, "grad_out", shape, call.dtype, name), call)
    if forward is None:
        [solved] = solve([call], lse=True)
        out, lse, exact = solved.context, solved.lse, EXACT_WIDE
    else:
        given, sums = _saved(forward, shape, call, name)
        out = _grouped(given, call)
        lse = _grouped(sums[..., None], call)[..., 0]
        exact = EXACT
    assert lse is not None
    cells = () if options.get("bias") is None else _cells(np.shape(options["bias"]), call)
    found = _gradients(call, cells, above, out, lse, exact)
    query, key, value = (
        _as_given(part, np.shape(as_array(x, call=name, name=n))).astype(call.dtype, copy=False)
        for part, x, n in (
            (found.query, query, "query"),
            (found.key, key, "key"),
            (found.value, value, "value"),
        )
    )
    bias, sinks, slopes = (options.get(n) for n in ("bias", "sinks", "alibi_slopes"))
    lead = tuple(range(len(call.lead)))
    return AttentionGradient(
        query,
        key,
        value,
        None if bias is None else _as_given(found.bias, np.shape(bias)),
        None if sinks is None else found.sinks.sum(lead).reshape(np.shape(sinks)),
        None if slopes is None else found.slopes.sum(lead).reshape(np.shape(slopes)),
    )


def varlen_attention_grad(
    query: Any,
    key: Any,
    value: Any,
    grad_out: Any,
    cu_query_lengths: Any,
    cu_key_lengths: Any,
    *,
    forward: tuple[Any, Any] | None = None,
    is_causal: bool = False,
    q_offset: Any = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
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
        is_causal: as for `qkv.varlen_attention`, and so are the next six.
        q_offset: one number or one for each sequence; `"end"` means its own lengths.
        window: `(left, right)`.
        softcap: above 0.
        alibi_slopes: `(Hq,)`.
        sinks: `(Hq,)` or `(Hq, n)`.
        scale: `1 / sqrt(d)` unless given.

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
    packed = check_packed(
        query,
        key,
        value,
        cu_query_lengths,
        cu_key_lengths,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        scale=scale,
        call=name,
    )
    whole = packed.whole
    shape = (*packed.query.shape[:2], packed.value.shape[2])
    above = _like(grad_out, "grad_out", shape, whole.dtype, name)
    if forward is None:
        out, found_lse = attend_rows(packed, lse=True)
        assert found_lse is not None
        lse, exact = found_lse, EXACT_WIDE
    else:
        out, lse = _saved(forward, shape, whole, name)
        exact = EXACT

    grads, sink_sums, slope_sums = _packed_gradients(packed, above, out, lse, exact)
    q, k, v = (x.astype(whole.dtype, copy=False) for x in grads)
    return AttentionGradient(
        q,
        k,
        v,
        None,
        None if sinks is None else sink_sums.sum(0).reshape(np.shape(sinks)),
        None if alibi_slopes is None else slope_sums.sum(0).reshape(np.shape(alibi_slopes)),
    )


@dataclass(frozen=True)
class _Sums:
    """What blocks add to: gradients in the layout of a `Call`, those of heads for each text."""

    query: Array  # (*lead, Hkv, G, L, d)
    key: Array  # (*lead, Hkv, 1, S, d)
    value: Array  # (*lead, Hkv, 1, S, dv)
    bias: Array  # (*lead, Hkv, G, L, S), 1 where the bias is repeated
    sinks: Array  # (*lead, Hkv, G, n)
    slopes: Array  # (*lead, Hkv, G)


def _gradients(
    call: Call, cells: tuple[int, ...], above: Array, out: Array, lse: Array, exact: float
) -> _Sums:
    """By the kernel, and by NumPy the heads that it does not take.

    They have a log-sum-exp beyond `exact`, or numbers that are infinite or NaN. `cells` is the
    shape of the bias in the layout of a `Call`.
    """
    *lead, kv_heads, group, _ = call.shape
    sinks = 0 if call.sinks is None else call.sinks.shape[-1]
    sums = _Sums(
        np.empty((*call.shape, call.query.shape[-1]), call.kind),
        np.empty((*lead, kv_heads, 1, call.keys, call.key.shape[-1]), call.kind),
        np.empty((*lead, kv_heads, 1, call.keys, call.value.shape[-1]), call.kind),
        np.zeros(cells, call.kind),
        np.zeros((*lead, kv_heads, group, sinks), call.kind),
        np.zeros((*lead, kv_heads, group), call.kind),
    )
    wrong = np.ones((*lead, kv_heads), bool)
    if (chosen := _kernel_for(call)) is not None:
        saved = _as_saved(call, above, out, lse)
        wrong = native.differentiate(
            chosen,
            call,
            *saved,
            exact,
            sums.query,
            sums.key,
            sums.value,
            sums.bias,
            sums.sinks,
            sums.slopes,
        )
        if call.bias is not None and wrong.any():  # its gradient has sums over heads
            wrong[...] = True
            sums.bias[...] = 0
    heads = _heads(call, wrong, above, out, lse, sums)
    if call.bias is None:
        run_all(_head, heads)
    else:  # several heads may add to one number of a bias

        def in_order() -> None:
            for head in heads:
                _head(*head)

        run_all(in_order, [()])
    return sums


def _packed_gradients(
    packed: Packed, above: Array, out: Array, lse: Array, exact: float
) -> tuple[tuple[Array, Array, Array], Array, Array]:
    """The same of packed rows: of query, key and value, and of each sequence's sinks and slopes."""
    whole, starts, key_starts = packed.whole, packed.starts, packed.key_starts
    texts, (kv_heads, group, _) = len(starts) - 1, whole.shape[-3:]
    num_sinks = 0 if whole.sinks is None else whole.sinks.shape[-1]
    arrays = packed.query, packed.key, packed.value
    query, key, value = (np.empty(x.shape, whole.kind) for x in arrays)
    sinks = np.zeros((texts, kv_heads, group, num_sinks), whole.kind)
    slopes = np.zeros((texts, kv_heads, group), whole.kind)
    wrong = np.ones((texts, kv_heads), bool)
    if (chosen := _kernel_for(whole)) is not None:
        saved = _as_saved(whole, above, out, lse)
        wrong = native.differentiate_packed(
            chosen,
            whole,
            *arrays,
            starts,
            key_starts,
            packed.offsets,
            *saved,
            exact,
            query,
            key,
            value,
            sinks,
            slopes,
        )
    heads = []
    for first, last in packed.runs() if wrong.any() else ():
        if not wrong[first:last].any():
            continue
        own = (
            group_queries(as_batch(x, starts, first, last), kv_heads)
            for x in (above, out, lse[..., None], query)
        )
        given, results, base, queries = own
        sums = _Sums(
            queries,
            as_batch(key, key_starts, first, last)[..., None, :, :],
            as_batch(value, key_starts, first, last)[..., None, :, :],
            np.zeros(()),
            sinks[first:last],
            slopes[first:last],
        )
        call = packed.batch(first, last)
        heads += _heads(call, wrong[first:last], given, results, base[..., 0], sums)
    run_all(_head, heads)
    return (query, key, value), sinks, slopes


def _kernel_for(call: Call) -> int | None:
    """The body of the kernel that computes the gradient of a call, None where NumPy does."""
    chosen = body()
    return chosen if call.query.size and native.takes_gradient(call) else None


def _as_saved(call: Call, above: Array, out: Array, lse: Array) -> tuple[Array, Array, Array]:
    """The gradient of the output, and what was saved, in types that the kernel takes."""
    if native.handed_as(above.dtype) is None:
        above = above.astype(call.kind)
    return above, out.astype(call.dtype, copy=False), lse.astype(np.float64, copy=False)


def _heads(
    call: Call, wrong: Array, above: Array, out: Array, lse: Array, sums: _Sums
) -> list[tuple[Any, ...]]:
    """The key heads `wrong (*lead, Hkv)` for `_head`, with 0 where they are to be summed."""
    if not wrong.any():
        return []
    call = call.widened()
    above, out, lse = (rounded(x, call.kind) for x in (above, out, lse))
    heads = []
    for *text, head in np.argwhere(wrong).tolist():
        rows = tuple(slice(t, t + 1) for t in text)
        index = (*rows, slice(head, head + 1))
        for array in (sums.query, sums.key, sums.value, sums.sinks, sums.slopes):
            array[index] = 0
        heads.append((call, index, rows, above, out, lse, sums))
    return heads


def _head(
    call: Call,
    index: tuple[Any, ...],
    rows: tuple[Any, ...],
    above: Array,
    out: Array,
    lse: Array,
    sums: _Sums,
) -> None:
    """All of one key head: its blocks one after the other, so that sums have one order."""
    *_, group, length = call.shape
    step = max(1, QUERIES // max(group, 1))
    for start in range(0, length, step):
        part = Part(rows, index, slice(start, min(length, start + step)))
        here = (*index, slice(None), part.queries)
        with np.errstate(all="ignore"):
            _block(call, part, above[here], out[here], lse[here], sums)


def _block(
    call: Call,
    part: Part,
    above: Array,
    out: Array,
    lse: Array,
    sums: _Sums,
) -> None:
    """Add what some queries of one head contribute to every gradient."""
    lse = lse[..., None]  # (1, ..., 1, G, l, 1)
    blind = np.isneginf(lse)
    base = np.where(blind, 0, lse)
    total = _total(call, part, base)
    # nothing that a blind row holds counts, be it NaN
    above = np.where(blind | (_unseen(call, part)), 0, above)
    delta = (above * out).sum(-1, keepdims=True)
    here = (*part.index, slice(None), part.queries)
    if call.sinks is not None:
        shares = np.exp(call.sinks[part.index[-1]] - base) / total  # (heads, G, l, n)
        sums.sinks[(*part.index, slice(None))] -= (shares * delta).sum(-2)
    asked = call.query[here]
    for j in key_blocks(call, part):
        there = (*part.index, slice(None), j)
        capped = capped_of(call, part, j)
        slope = None if call.softcap is None else 1 - (capped / call.softcap) ** 2
        scores, visible = masked(call, part, j, capped.copy())
        weights = np.exp(scores - base) / total
        if visible is not None:
            weights = np.where(visible, weights, 0)
        turned = None if visible is None else np.swapaxes(visible, -1, -2)
        sums.value[there] += _summed(np.swapaxes(weights, -1, -2), above, turned)
        change = weights * (above @ np.swapaxes(call.value[there], -1, -2) - delta)
        if visible is not None:
            change = np.where(visible, change, 0)
        if call.bias is not None:
            _add_to_bias(sums.bias, part, j, change)
        if call.slopes is not None:
            distance = call.visibility.distance(part.rows, part.queries, j).astype(call.kind)
            sums.slopes[(*part.index, slice(None))] -= (change * distance).sum((-1, -2))
        if slope is not None:
            change = change * slope
            if visible is not None:
                change = np.where(visible, change, 0)
        change *= change.dtype.type(call.scale)
        sums.query[here] += weigh(change, call.key[there], visible)
        sums.key[there] += _summed(np.swapaxes(change, -1, -2), asked, turned)


def _total(call: Call, part: Part, base: Array) -> Array | float:
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


def _unseen(call: Call, part: Part) -> Array | bool:
    """Which queries of a part are padding, `(..., 1, l, 1)`."""
    lengths = call.visibility.query_lengths
    if lengths is None:
        return False
    places = np.arange(part.queries.start, part.queries.stop)
    unseen: Array = (places >= lengths[part.rows][..., None, None, None])[..., None]
    return unseen


def _cells(shape: tuple[int, ...], call: Call) -> tuple[int, ...]:
    """The shape of a bias as it was given, `(..., Hq, L, S)`, with heads grouped."""
    axes = len(call.lead) + 3
    *lead, heads, length, keys = ((1,) * axes + tuple(shape))[-axes:]
    return (*lead, *(call.shape[-3:-1] if heads > 1 else (1, 1)), length, keys)


def _add_to_bias(bias: Array, part: Part, keys: slice, change: Array) -> None:
    """Sum a block's change over the places that share a number of the bias."""
    place = (*part.index, slice(None), part.queries, keys)
    repeated = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
    at = tuple(slice(None) if axis in repeated else p for axis, p in enumerate(place))
    bias[at] += change.sum(repeated, keepdims=True)


def _saved(forward: Any, shape: tuple[int, ...], call: Call, name: str) -> tuple[Array, Array]:
    """`forward`, of the shape of the result of attention."""
    if not isinstance(forward, (tuple, list)) or len(forward) != 2:
        raise TypeError(
            f"{name}: forward is {shown(forward)}: give (out, lse), "
            "as attention gives them with return_lse=True"
        )
    out = _like(forward[0], "forward[0]", shape, call.dtype, name)
    return out, _like(forward[1], "forward[1]", shape[:-1], call.kind, name)


def _like(given: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], call: str) -> Array:
    array = as_array(given, call=call, name=name)
    if array.shape != shape:
        raise ValueError(
            f"{call}: {name} has shape {array.shape} and the result of attention {shape}: "
            "they must be the same"
        )
    if not is_float(array.dtype):
        raise TypeError(f"{call}: {name} is {array.dtype}: write {dtype}")
    return array if native.stands(array) else np.ascontiguousarray(array)


def _grouped(array: Array, call: Call) -> Array:
    """`(..., Hq, L, n)` as `(*lead, Hkv, G, L, n)`."""
    heads = call.shape[-3] * call.shape[-2]
    whole = array.reshape(*call.lead, heads, *array.shape[-2:])
    return group_queries(whole, call.shape[-3])


def _as_given(found: Array, shape: tuple[int, ...]) -> Array:
    """`(*lead, Hkv, G, n, m)` in the shape that an input had: summed where it was repeated."""
    whole = ungroup_queries(found)
    own = (1,) * (whole.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, size in enumerate(own) if size == 1 != whole.shape[axis])
    if axes:
        whole = whole.sum(axes, keepdims=True)
    # of what is seen repeated nothing can be written to
    return (whole if whole.shape == own else np.broadcast_to(whole, own)).reshape(shape)
