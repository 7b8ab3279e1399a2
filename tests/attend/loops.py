"""The formula in float64 with plain loops: the expected results in the tests of attention."""

import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
STAGES = ("scores_raw", "scores_scaled", "scores_capped", "scores_biased", "scores")


class Loops(NamedTuple):
    """The expected results of one call; `stages` and `visible` have the shape of `weights`."""

    out: Array
    weights: Array
    lse: Array
    visible: Array  # bool: which keys each query may see
    stages: dict[str, Array]  # the scores after each step, -inf where masked
    # the largest finite |score| of a visible key, over all stages except "scores_raw"
    largest_score: float
    largest_value: float  # the largest |finite value| that some query sees


def _log_sum_exp(numbers: list[float]) -> float:
    """Return the natural log of the sum of exponentials: -inf for no numbers, NaN for a NaN."""
    if any(math.isnan(number) for number in numbers):
        return math.nan
    top = max(numbers, default=-math.inf)
    if math.isinf(top):
        return top
    return top + math.log(math.fsum(math.exp(number - top) for number in numbers))


def _sum(numbers: list[float]) -> float:
    """Sum finite numbers exactly, and others by IEEE 754, because fsum rejects inf - inf."""
    if all(math.isfinite(number) for number in numbers):
        return math.fsum(numbers)
    return sum(numbers)


def _identity(argument: Any) -> Any:
    """Return a dictionary key that identifies an argument.

    Two arrays or lists have the same dictionary key if and only if they have the same type, shape
    and bytes. Two other arguments have the same dictionary key if and only if they have the same
    `repr`.
    """
    if not isinstance(argument, np.ndarray | list):
        return repr(argument)
    array = np.asarray(argument)
    digest = hashlib.sha256(array.tobytes()).digest()
    return array.dtype.name, array.dtype.byteorder, array.shape, digest


def _once(compute: Callable[..., Loops]) -> Callable[..., Loops]:
    """Compute each call once for all backends, and make its results read-only."""
    known: dict[Any, Loops] = {}
    held = 0

    @functools.wraps(compute)
    def found(*args: Any, **options: Any) -> Loops:
        nonlocal held
        key = (*map(_identity, args), *((name, _identity(x)) for name, x in options.items()))
        if key not in known:
            result = compute(*args, **options)
            arrays = [*result[:4], *result.stages.values()]
            for array in arrays:
                array.flags.writeable = False
            held += sum(array.nbytes for array in arrays)
            if held > 1 << 28:
                held = 0
                known.clear()
            known[key] = result
        return known[key]

    return found


def _plain(mask: Any) -> Array:
    mask = np.asarray(mask)
    return mask if mask.dtype == bool else mask.astype(np.float64)


@_once
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    query_lengths: Any = None,
    key_lengths: Any = None,
    rows: Any = None,
) -> Loops:
    """Compute scores, weights, output and log-sum-exp, for one query and one key at a time.

    `rows` are the indices of the queries to compute; None for all queries.
    """
    query, key, value = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    one_head = query.ndim == 2
    if one_head:
        query, key, value = query[None], key[None], value[None]

    num_heads, num_queries, size = query.shape[-3:]
    num_kv_heads, num_keys = key.shape[-3:-1]
    value_size = value.shape[-1]
    lead = np.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    every = (*lead, num_heads, num_queries, num_keys)
    rows = range(num_queries) if rows is None else rows
    cells = (*lead, num_heads, len(rows), num_keys)

    query = np.broadcast_to(query, lead + query.shape[-3:])
    key = np.broadcast_to(key, lead + key.shape[-3:])
    value = np.broadcast_to(value, lead + value.shape[-3:])
    mask = None if attn_mask is None else np.broadcast_to(_plain(attn_mask), every)
    extra = None if bias is None else np.broadcast_to(_plain(bias), every)
    factor = 1 / math.sqrt(size) if scale is None else float(scale)

    if q_offset is None or isinstance(q_offset, str):
        q_offset = num_keys - num_queries if q_offset == "end" else 0
    offsets = np.broadcast_to(q_offset, lead)
    real_queries = np.broadcast_to(num_queries if query_lengths is None else query_lengths, lead)
    real_keys = np.broadcast_to(num_keys if key_lengths is None else key_lengths, lead)
    left, right = (None, None) if window is None else window

    out = np.full((*lead, num_heads, len(rows), value_size), np.nan)
    weights = np.full(cells, np.nan)
    lse = np.full(cells[:-1], np.nan)
    visible = np.zeros(cells, dtype=bool)
    stages = {name: np.full(cells, -np.inf) for name in STAGES}
    largest_score = largest_value = 0.0

    for row in np.ndindex(*lead):
        offset, end_of_queries, end_of_keys = (
            int(x[row]) for x in (offsets, real_queries, real_keys)
        )
        for head in range(num_heads):
            keys = key[row][head // (num_heads // num_kv_heads)].tolist()
            values = value[row][head // (num_heads // num_kv_heads)].tolist()
            slope = 0.0 if alibi_slopes is None else float(np.asarray(alibi_slopes)[head])
            sink: list[float] = []
            if sinks is not None:
                sink = [float(number) for number in np.atleast_1d(np.asarray(sinks)[head])]

            for at, i in enumerate(rows):
                numbers = query[row][head][i].tolist()
                mask_row = None if mask is None else mask[row][head][i].tolist()
                bias_row = None if extra is None else extra[row][head][i].tolist()
                position = i + offset

                seen: list[tuple[int, float]] = []
                for j in range(num_keys):
                    if i >= end_of_queries or j >= end_of_keys:
                        continue
                    if is_causal and j > position:
                        continue
                    if left is not None and j < position - left:
                        continue
                    if right is not None and j > position + right:
                        continue
                    if mask_row is not None and (mask_row[j] is False or mask_row[j] == -math.inf):
                        continue
                    if bias_row is not None and bias_row[j] == -math.inf:
                        continue

                    raw = _sum([a * b for a, b in zip(numbers, keys[j], strict=True)])
                    scaled = raw * factor
                    capped = scaled if softcap is None else softcap * math.tanh(scaled / softcap)
                    biased = capped
                    if bias_row is not None:
                        biased += bias_row[j]
                    if alibi_slopes is not None:
                        biased += -slope * abs(position - j)
                    score = biased
                    if mask_row is not None and mask_row[j] is not True:
                        score += mask_row[j]

                    cell = (*row, head, at, j)
                    visible[cell] = True
                    steps = (raw, scaled, capped, biased, score)
                    for name, step in zip(STAGES, steps, strict=True):
                        stages[name][cell] = step
                        if math.isfinite(step) and name != "scores_raw":
                            largest_score = max(largest_score, abs(step))
                    for number in values[j]:
                        if math.isfinite(number):
                            largest_value = max(largest_value, abs(number))
                    seen.append((j, score))

                total = _log_sum_exp([score for _, score in seen] + sink)
                lse[(*row, head, at)] = total
                weights[(*row, head, at)] = 0.0
                for j, score in seen:
                    weights[(*row, head, at, j)] = math.exp(score - total)
                for column in range(value_size):
                    out[(*row, head, at, column)] = _sum(
                        [float(weights[(*row, head, at, j)]) * values[j][column] for j, _ in seen]
                    )

    if one_head:
        out, weights, lse, visible = out[0], weights[0], lse[0], visible[0]
        stages = {name: stage[0] for name, stage in stages.items()}
    return Loops(out, weights, lse, visible, stages, largest_score, largest_value)
