"""The gradients of attention with respect to its inputs."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, DType, Shape, as_array, is_float, quote, without_tiny
from qkv.attend import _native, arguments
from qkv.attend._grouped import Grouped, group_call
from qkv.attend._native import Gradients, Outputs
from qkv.attend._tiled import QUERIES, Tile, apply_mask, capped_of, exp_sums, key_blocks, tiles
from qkv.attend._varlen import as_batch, as_call, attend_rows, check_packed, equal_runs
from qkv.attend.arguments import Call, Options, Packed
from qkv.attend.attention import scores_and_weights, solve
from qkv.attend.formula import weigh
from qkv.ops.kernel import variant
from qkv.ops.threads import Case, matmul_alone, run_all
from qkv.trace.activations import PATTERN, SCORES

Keep = Callable[[str, Array], Array]  # a `Recorder`, or `unkept`
_Calls = TypeVar("_Calls", Call, Packed)
_NOT_PACKED = {*arguments.OPTIONS} - {*arguments.PACKED} | {"return_lse"}
# The kernel computes heads whose log-sum-exps are at most EXACT. Up to this limit, rounding a
# log-sum-exp to float32 changes the weights `exp(score - lse)` less than rounding the scores does.
EXACT = 1e3
# Below this log-sum-exp, NumPy need not divide the weights `exp(score - lse)` by their sum.
SMALL = 64.0


class AttentionGradient(NamedTuple):
    """The gradients for the inputs of attention.

    Each gradient has the shape of its input. If the bias, the sinks or the slopes are not given,
    their gradient is None.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    sinks: Array | None
    alibi_slopes: Array | None


@public_call("attention_grad")
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
    """Compute the gradients of `sum(grad_out * attention(query, key, value, ...))`.

    For each row, let P be the weights, s the scores and O the output. The gradient for P is `dP =
    grad_out @ value.T`, and the gradient for s is `ds = P * (dP - sum(grad_out * O))`. The chain
    rule gives the gradients for query, key and value. P is recomputed block by block from the
    log-sum-exp, so that memory grows linearly with the length. A number of P in float32 differs
    from the formula in float64 by at most `4 * (2e-6 + 2**-23 * s)`, with `s` as in the README:
    the forward pass may have added the products of a score in another order.

    Args:
        query: `(..., Hq, L, d)`, as in `qkv.attention`.
        key: `(..., Hkv, S, d)`.
        value: `(..., Hkv, S, dv)`.
        grad_out: `(..., Hq, L, dv)`, the gradient for the output.
        attn_mask: as in `qkv.attention`; it has no gradient.
        forward: `(out, lse)`, the result of `qkv.attention(..., return_lse=True)`. If None, or if
            `out` is in half precision, the forward pass is computed again.
        options: the options of `qkv.attention`, except `return_weights`, `return_lse` and `out`.

    Returns:
        The gradients `.query`, `.key` and `.value` have the shapes and the dtype of the inputs.
        `.bias`, `.sinks` and `.alibi_slopes` have the shapes of the inputs and the dtype of the
        weights. Masked keys have gradient 0, and masked values never affect the gradients. The
        result is bit-identical for any number of threads.

    Raises:
        ValueError: the shapes are incompatible.
        TypeError: the types are incompatible, or an option is unknown.

    Source:
        Dao et al. 2022, FlashAttention, appendix B.2.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> attention_grad(x, x, x, np.ones((2, 2))).value.round(2)  # the columns of the weights
    array([[1., 1.],
           [1., 1.]])
    """
    arguments.check_options(options, without=arguments.RETURNS, why=": it returns only gradients")
    call = arguments.check_call(query, key, value, attn_mask, **options)
    grad_out = _check_array(grad_out, "grad_out", call.plan.out, call.plan.dtype)
    clean, grad_out = _without_hidden(call, grad_out)
    gradients = _gradients(clean, _outputs(clean, grad_out, forward))
    return _result(gradients, (call.query, call.key, call.value), call.plan.dtype, options)


def _without_hidden(call: _Calls, grad_out: Array) -> tuple[_Calls, Array]:
    """Replace NaN, infinite and huge numbers with 0 in keys and queries that are masked everywhere.

    Masked numbers are multiplied by 0, but 0 * NaN is NaN. Without this step, the kernel would
    reject the head, and the last bits of NumPy's results would differ from the kernel's.
    """
    whole = call.call if isinstance(call, Packed) else call
    query, key, value = call.rows if isinstance(call, Packed) else whole[1:4]
    arrays = (query, grad_out, key, value)
    huge = [_is_huge(x) for x in arrays]
    if not any(map(np.any, huge)):
        return call, grad_out
    if isinstance(call, Packed):
        seeing, seen = np.zeros(query.shape[:-1], bool), np.zeros(key.shape[:-1], bool)
        for run in equal_runs(call):
            one, other = _visible(as_call(call, *run))
            as_batch(seeing, call.starts, *run)[...] = one
            as_batch(seen, call.key_starts, *run)[...] = other
    else:
        seeing, seen = _visible(call)
    query, grad_out, key, value = (
        np.where((real | ~rows)[..., None], x, x.dtype.type(0)) if rows.any() else x
        for x, rows, real in zip(arrays, huge, (seeing, seeing, seen, seen), strict=True)
    )
    if isinstance(call, Packed):
        query, key, value = (x.swapaxes(0, 1) for x in (query, key, value))
    whole = whole._replace(query=query, key=key, value=value)
    return call._replace(call=whole) if isinstance(call, Packed) else whole, grad_out


def _visible(call: Call) -> tuple[Array, Array]:
    """Return which queries see a key, `(*lead, Hq, L)`, and which keys are seen."""
    plan, wide = call.plan, group_call(call)
    seeing, seen = np.zeros(wide.shape, bool), np.zeros((*plan.groups[:-1], plan.keys), bool)
    for tile in tiles(wide):
        for j in key_blocks(wide, tile):
            visible = wide.visibility.block(tile.index, tile.rows, tile.queries, j)
            seeing[tile.at] |= True if visible is None else visible.any(-1)
            seen[(*tile.index, j)] |= True if visible is None else visible.any((-3, -2))
    return seeing.reshape(plan.rows), seen.reshape(*plan.lead, plan.kv_heads, plan.keys)


def _is_huge(array: Array) -> Array:
    """Return which rows contain NaN or a number above 1e4, which may overflow in a product."""
    order, size = array.dtype.byteorder, array.itemsize
    view = array.view(f"{order}u{size}")  # ordered like the floats, except for the sign bit
    low, high = np.array([-1e4, 1e4], array.dtype).view(view.dtype)
    if view.max(initial=0) <= low and view.view(f"{order}i{size}").max(initial=0) <= high:
        return np.array(False)
    return np.asarray((view << 1 > high << 1).any(-1))


def gradient_by_weights(
    call: Call, grad_out: Array, weights: tuple[Array, Array] | None, record: Keep
) -> tuple[Array, Array, Array, Array]:
    """Compute the gradients for query, key, value and the bias `(*lead, Hq, L, S)`.

    The gradients for the weights and for the scores are computed first.

    Args:
        call: the checked call.
        grad_out: `(*lead, Hq, L, dv)`.
        weights: two arrays `(*lead, Hq, L, S)`, the softmax of the scores and the edited weights.
            None if neither the scores nor the weights were edited.
        record: a function that takes a name ("hook_pattern" for the weights, "hook_attn_scores"
            for the scores) and a gradient. The computation continues with the returned gradient.
    """
    plan, wide = call.plan, group_call(call)
    scores, softmax = scores_and_weights(call)
    softmax, pattern = (softmax, softmax) if weights is None else weights
    query, key, value = wide[:3]
    used, grad = plan.group(pattern), plan.group(grad_out)
    grad_value = matmul_alone(np.swapaxes(used, -2, -1), grad).sum(-3)
    change = record(PATTERN, plan.ungroup(matmul_alone(grad, np.swapaxes(value, -2, -1))))
    change = record(SCORES, softmax * (change - (softmax * change).sum(-1, keepdims=True)))
    bias = np.where(np.isneginf(scores), 0, change)
    change = plan.group(bias)
    if wide.softcap is not None:
        raw = matmul_alone(query, np.swapaxes(key, -2, -1)) * (wide.scale / wide.softcap)
        change = change * (1 - np.square(np.tanh(raw)))
    change = change * plan.kind.type(wide.scale)
    grad_key = matmul_alone(np.swapaxes(change, -2, -1), query).sum(-3)
    return plan.ungroup(matmul_alone(change, key)), grad_key, grad_value, bias


@public_call("varlen_attention_grad")
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
    """Compute the gradients of `sum(grad_out * varlen_attention(query, key, value, ...))`.

    Args:
        query: `(total queries, Hq, d)`, as in `qkv.varlen_attention`.
        key: `(total keys, Hkv, d)`.
        value: `(total keys, Hkv, dv)`.
        grad_out: `(total queries, Hq, dv)`, the gradient for the output.
        cu_query_lengths: `(B + 1,)`, as in `qkv.varlen_attention`.
        cu_key_lengths: `(B + 1,)`, as in `qkv.varlen_attention`.
        forward: `(out, lse)`, the result of `qkv.varlen_attention(..., return_lse=True)`. If None,
            or if `out` is in half precision, the forward pass is computed again.
        options: `is_causal`, `q_offset`, `window`, `softcap`, `alibi_slopes`, `sinks` and `scale`
            of `qkv.varlen_attention`.

    Returns:
        The same gradients as `qkv.attention_grad` returns, for packed rows.
        The gradients for sinks and slopes are summed over all sequences.

    Raises:
        ValueError: the shapes are incompatible.
        TypeError: the types are incompatible.

    Source:
        Dao et al. 2022, FlashAttention, appendix B.2.

    >>> x = np.array([[1.0], [2.0], [5.0]])[:, None, :]  # three rows, one head of size 1
    >>> gradients = varlen_attention_grad(x, x, x, np.ones((3, 1, 1)), [0, 2, 3], [0, 2, 3])
    >>> gradients.value.ravel().round(2)
    array([0.39, 1.61, 1.  ])
    """
    arguments.check_options(options, without=_NOT_PACKED)
    packed = check_packed((query, key, value), (cu_query_lengths, cu_key_lengths), **options)
    plan = packed.plan
    shape = (plan.length, plan.heads, plan.out[-1])
    grad_out = _check_array(grad_out, "grad_out", shape, plan.dtype)
    clean, grad_out = _without_hidden(packed, grad_out)
    gradients = _packed_gradients(clean, _outputs(clean, grad_out, forward))
    return _result(gradients, packed.rows, plan.dtype, options)


def _outputs(call: Call | Packed, grad_out: Array, forward: Any) -> Outputs:
    """Check the shapes of `forward`; compute `forward` if it is None or in half precision."""
    # With nearly all weight on one key, `dP` and `sum(grad_out * O)` are nearly equal, and the
    # rounding error of an O in half precision would be larger than their difference.
    plan, shape = call.plan, grad_out.shape
    if forward is not None:
        if not isinstance(forward, (tuple, list)) or len(forward) != 2:
            raise type_error(
                f"`forward` is {quote(forward)}; pass (out, lse), "
                "the result of attention with return_lse=True"
            )
        out = _check_array(forward[0], "forward[0]", shape, plan.dtype)
        lse = _check_array(forward[1], "forward[1]", shape[:-1], plan.kind)
        if out.dtype.itemsize >= plan.kind.itemsize:
            return Outputs(grad_out, out, lse[..., None], EXACT)
    if isinstance(call, Packed):
        out, sums = attend_rows(call, lse=True, exact=True)
    else:
        out, sums, _ = solve([call], lse=True, exact=True)[0]
    assert sums is not None
    return Outputs(grad_out, out, sums, EXACT)


def _result(
    gradients: Gradients, inputs: tuple[Array, Array, Array], dtype: DType, options: Options
) -> AttentionGradient:
    """Convert the gradients to the shapes and types of the inputs."""
    query, key, value = (
        summed_to(gradient, array.shape).astype(dtype, copy=False)
        for gradient, array in zip(gradients[:3], inputs, strict=True)
    )
    lead = gradients.slopes.ndim - 2
    sinks, slopes = (
        None if array is None else gradient.sum(tuple(range(lead))).reshape(np.shape(array))
        for gradient, array in (
            (gradients.sinks, options.get("sinks")),
            (gradients.slopes, options.get("alibi_slopes")),
        )
    )
    bias = None if options.get("bias") is None else gradients.bias
    return AttentionGradient(query, key, value, bias, sinks, slopes)


def _gradients(call: Call, outputs: Outputs) -> Gradients:
    """Compute gradients with the kernel, and with NumPy for the heads that the kernel rejects.

    The kernel rejects heads with a log-sum-exp above `outputs.exact`, or with infinite or NaN
    values.
    """
    plan, kind = call.plan, call.plan.kind
    kv_rows = (*plan.lead, plan.kv_heads, plan.keys)
    gradients = Gradients(
        np.empty((*plan.lead, plan.heads, plan.length, plan.size), kind),
        np.empty((*kv_rows, plan.size), kind),
        np.empty((*kv_rows, plan.out[-1]), kind),
        np.zeros(() if call.bias is None else call.bias.shape, kind),
        *_zeros_per_head(call, plan.groups),
    )
    wrong = _by_kernel(call, outputs, gradients)
    if not wrong.any():
        return gradients
    if call.bias is not None:  # heads may share a bias, so recompute the gradients of all heads
        wrong[...] = True
        gradients.bias[...] = 0
    views = gradients._replace(
        query=plan.group(gradients.query),
        key=plan.grouped_keys(gradients.key),
        value=plan.grouped_keys(gradients.value),
        bias=gradients.bias.reshape(_grouped_shape(gradients.bias.shape, plan)),
    )
    heads = _heads(group_call(call), wrong, outputs.each(plan.group), views)
    # If heads share a bias, they add numbers to the same entries of the bias's gradient. Therefore,
    # with a bias, the heads run one after the other.
    for at_once in [heads] if call.bias is None else [[head] for head in heads]:
        run_all(_head, at_once)
    return gradients


def _packed_gradients(packed: Packed, outputs: Outputs) -> Gradients:
    """Compute gradients for packed rows with the kernel; use NumPy if the kernel rejects a head."""
    starts, key_starts, plan = packed.starts, packed.key_starts, packed.plan
    groups = (len(starts) - 1, *plan.groups[-2:])
    query, key, value = (np.empty(x.shape, plan.kind) for x in packed.rows)
    gradients = Gradients(query, key, value, np.zeros(()), *_zeros_per_head(packed.call, groups))
    wrong = _by_kernel(packed, outputs, gradients)
    heads = []
    for first, last in equal_runs(packed) if wrong.any() else ():
        if not wrong[first:last].any():
            continue
        call = as_call(packed, first, last)
        grad_out, out, lse, grad_query = (
            call.plan.group(as_batch(x, starts, first, last)) for x in (*outputs[:3], query)
        )
        views = Gradients(
            grad_query,
            as_batch(key, key_starts, first, last)[..., None, :, :],
            as_batch(value, key_starts, first, last)[..., None, :, :],
            gradients.bias,
            gradients.sinks[first:last],
            gradients.slopes[first:last],
        )
        results = Outputs(grad_out, out, lse, outputs.exact)
        heads += _heads(group_call(call), wrong[first:last], results, views)
    run_all(_head, heads)
    return gradients


def _by_kernel(call: Call | Packed, outputs: Outputs, gradients: Gradients) -> Array:
    """Write the kernel's results to `gradients`; return which heads NumPy must compute.

    The result `(*lead, Hkv)` is True for each key head that the kernel rejects.
    """
    plan = call.plan
    chosen, takes_values = variant(), arguments.takes(plan.dtype, plan.out[-1])
    if chosen is None or not (plan.is_native and takes_values and gradients.query.size):
        return np.ones(gradients.slopes.shape[:-1], bool)
    grad_out, out, lse, _ = outputs
    if grad_out.dtype == np.float64:
        grad_out = grad_out.astype(plan.kind)
    out, lse = out.astype(plan.kind, copy=False), lse.astype(np.float64, copy=False)
    outputs = outputs._replace(grad_out=grad_out, out=out, lse=lse)
    return _native.differentiate(chosen, call, outputs, gradients)


def _zeros_per_head(call: Call, groups: Shape) -> tuple[Array, Array]:
    """Return zeros as the gradients for sinks `(*groups, n)` and for slopes."""
    sinks = 0 if call.sinks is None else call.sinks.shape[-1]
    return np.zeros((*groups, sinks), call.plan.kind), np.zeros(groups, call.plan.kind)


def _heads(call: Grouped, wrong: Array, outputs: Outputs, gradients: Gradients) -> list[Case]:
    """Return the arguments of `_head` for each key head whose entry in `wrong` is True.

    The shape of `wrong` is `(*lead, Hkv)`. The gradients of these heads are first set to 0,
    because `_head` adds to the gradients.
    """
    outputs = outputs.each(lambda array: arguments.round_to(array, call.kind))
    heads = []
    for *text, head in np.argwhere(wrong).tolist():
        index = tuple(slice(t, t + 1) for t in (*text, head))
        for array in (*gradients[:3], gradients.sinks, gradients.slopes):
            array[index] = 0
        heads.append((call, index, outputs, gradients))
    return heads


def _head(call: Grouped, index: tuple[Any, ...], outputs: Outputs, gradients: Gradients) -> None:
    """Compute the gradients of one key head, tile by tile in a fixed order."""
    *_, group, length = call.shape
    step = max(1, QUERIES // max(group, 1))
    for start in range(0, length, step):
        tile = Tile(index[:-1], index, slice(start, min(length, start + step)))
        with np.errstate(all="ignore"):
            _tile(call, tile, outputs.each(operator.itemgetter(tile.at)), gradients)


def _tile(call: Grouped, tile: Tile, outputs: Outputs, gradients: Gradients) -> None:
    """Add the part of the gradients that comes from the queries of one tile."""
    grad_out, out, lse, _ = outputs
    blind = np.isneginf(lse)
    base = np.where(blind, 0, lse)
    total = _total(call, tile, base)
    # A query that sees no key never affects the gradients, even if its numbers are NaN.
    grad_out = np.where(blind | _is_padding(call, tile), 0, grad_out)
    delta = (grad_out * out).sum(-1, keepdims=True)
    if call.sinks is not None:
        shares = np.exp(call.sinks[tile.index[-1]] - base) / total  # (heads, G, l, n)
        gradients.sinks[(*tile.index, slice(None))] -= (shares * delta).sum(-2)
    query = call.query[tile.at]
    for j in key_blocks(call, tile):
        keys = (*tile.index, slice(None), j)
        capped = capped_of(call, tile, j)
        slope = None if call.softcap is None else 1 - (capped / call.softcap) ** 2
        scores, visible = apply_mask(call, tile, j, capped.copy())
        weights = without_tiny(np.exp(scores - base) / total, 100)
        if visible is not None:
            weights = np.where(visible, weights, 0)
        transposed = None if visible is None else np.swapaxes(visible, -1, -2)
        gradients.value[keys] += _sum_heads(np.swapaxes(weights, -1, -2), grad_out, transposed)
        upstream = matmul_alone(grad_out, np.swapaxes(call.value[keys], -1, -2))
        change = without_tiny(weights * (upstream - delta))
        if visible is not None:
            change = np.where(visible, change, 0)
        if call.bias is not None:
            _add_to_bias(gradients.bias, tile, j, change)
        if call.slopes is not None:
            distance = call.visibility.distance(tile.rows, tile.queries, j).astype(call.kind)
            gradients.slopes[(*tile.index, slice(None))] -= (change * distance).sum((-1, -2))
        if slope is not None:
            change = change * slope
            if visible is not None:
                change = np.where(visible, change, 0)
        change *= change.dtype.type(call.scale)
        change = without_tiny(change)
        gradients.query[tile.at] += weigh(change, call.key[keys], visible, matmul_alone)
        gradients.key[keys] += _sum_heads(np.swapaxes(change, -1, -2), query, transposed)


def _total(call: Grouped, tile: Tile, base: Array) -> Array | float:
    """Return each row's sum of `exp(score - lse)`, which would be 1 if `lse` were exact.

    For example, if n keys have a score of -3e38, rounding makes `lse` equal to -3e38 instead of
    -3e38 + log(n). In this example, the sum is n instead of 1.
    """
    if np.abs(base).max(initial=0) < SMALL:
        return 1.0
    total = exp_sums(call, tile, base)
    return np.where(total == 0, 1, total)


def _sum_heads(weights: Array, rows: Array, visible: Array | None) -> Array:
    """Compute `weights (..., G, s, l) @ rows (..., G, l, n)`, summed over the heads of a group."""
    summed: Array = weigh(weights, rows, visible, matmul_alone).sum(-3, keepdims=True)
    return summed


def _is_padding(call: Grouped, tile: Tile) -> Array | bool:
    """Return booleans `(..., 1, l, 1)` that are True where a query of a tile is padding."""
    lengths = call.visibility.query_lengths
    if lengths is None:
        return False
    positions = np.arange(tile.queries.start, tile.queries.stop)
    return np.asarray(positions >= lengths[tile.rows][..., None, None, None])[..., None]


def _grouped_shape(shape: Shape, plan: arguments.Plan) -> Shape:
    """Return the shape of a bias `(..., Hq, L, S)` after its heads are grouped by key head."""
    axes = len(plan.groups) + 1
    *lead, heads, length, keys = ((1,) * axes + shape)[-axes:]
    return (*lead, *(plan.groups[-2:] if heads > 1 else (1, 1)), length, keys)


def _add_to_bias(bias: Array, tile: Tile, keys: slice, change: Array) -> None:
    """Add a block's gradient `change` to `bias`, summed over the axes where `bias` has length 1."""
    index = (*tile.at, keys)
    repeated = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
    at = tuple(slice(None) if axis in repeated else part for axis, part in enumerate(index))
    bias[at] += change.sum(repeated, keepdims=True)


def _check_array(value: Any, name: str, shape: Shape, dtype: DType) -> Array:
    """Check the shape and type of an array of floats, and make its last axis contiguous."""
    array = as_array(value, name=name)
    if array.shape != shape:
        raise value_error(
            f"{name} has shape {array.shape} and the result of attention has {shape}: "
            "both shapes must be the same"
        )
    if not is_float(array.dtype):
        raise type_error(f"{name} is {array.dtype}; pass {dtype}")
    return array if _native.is_contiguous(array) else np.ascontiguousarray(array)


def summed_to(array: Array, shape: Shape) -> Array:
    """Sum a gradient over the axes along which the input, of shape `shape`, was broadcast."""
    sizes = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(sizes) if size == 1 != array.shape[axis])
    summed: Array = array.sum(axes, keepdims=True) if axes else array
    return summed.reshape(shape)
