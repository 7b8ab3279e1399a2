"""Tests of options that are numbers: each value is accepted, or rejected with a one-line error."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qkv
from rows import failing

from .support import numbers

NAN, INF = float("nan"), float("inf")
INTS = [0, 1, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, -(10**400), 10**5000, -(10**5000)]
FLOATS = [0.0, -0.0, 1.5, 5e-324, 1e39, 1e308, NAN, INF, -INF, 1j]
SCALARS = [np.float32(1.5), np.float16(2), np.int8(2), np.uint64(2**64 - 1), np.int64(-(2**63))]
SCALARS += [ml_dtypes.bfloat16(2), np.longdouble("1e400"), np.complex64(1), np.timedelta64(2, "s")]
ARRAYS = [np.array(2), np.array(2.0), np.array(True), np.array("2"), np.array(3, object)]
ARRAYS += [np.array([2]), np.array([[1.0], [2.0]]), np.full((9, 9), 10**400)]
OTHERS = [True, np.bool_(False), "2", "x", "", b"2", [], [1], [[1], [1, 2]], (1, 2), {}, object()]
OTHERS += [[10**400], [2**64], [NAN], Fraction(1, 3), Decimal("2")]
VALUES: list[Any] = [*INTS, *FLOATS, *SCALARS, *ARRAYS, *OTHERS]

Q, K, V = (numbers((1, 2, 5, 4), seed) for seed in range(3))
ROWS = [x[0].swapaxes(0, 1) for x in (Q, K, V)]
AT = [0, 5]
PLAIN = ("scale", "softcap", "q_offset", "window", "is_causal", "alibi_slopes", "sinks")
OPTIONS = (*PLAIN, "attn_mask", "bias", "query_lengths", "key_lengths")

CALLS: dict[str, Callable[[Any], object]] = {
    "softmax of": qkv.softmax,
    "softmax axis": lambda x: qkv.softmax(Q, x),
    "softmax axes": lambda x: qkv.softmax(Q, (x,)),
    "merge_attention lse": lambda x: qkv.merge_attention(Q, Q[..., 0], Q, x),
    "summarize_attention top_k": lambda x: qkv.summarize_attention(Q, K, V, top_k=x),
    "attention_grad grad_out": lambda x: qkv.attention_grad(Q, K, V, x),
    "attention_grad forward": lambda x: qkv.attention_grad(Q, K, V, V, forward=x),
    "attention_grad forward[0]": lambda x: qkv.attention_grad(Q, K, V, V, forward=(x, x)),
    "varlen_attention_grad forward": lambda x: qkv.attend.varlen_attention_grad(
        *ROWS, ROWS[0], AT, AT, forward=x
    ),
    "varlen_attention cu": lambda x: qkv.varlen_attention(*ROWS, x, AT),
    "varlen_attention cu[1]": lambda x: qkv.varlen_attention(*ROWS, [0, x, 5], [0, 2, 5]),
    "KVCache": lambda x: qkv.KVCache(x).append(K, V),
    "KVCache left": lambda x: qkv.KVCache((x, None)).append(K, V),
    "KVCache lengths": lambda x: qkv.KVCache().append(K, V, x),
    "attention left": lambda x: qkv.attention(Q, K, V, window=(x, None)),
    "attention right": lambda x: qkv.attention(Q, K, V, window=(None, x)),
    "attention query": lambda x: qkv.attention(x, x, x),
    "attention return_weights": lambda x: qkv.attention(Q, K, V, return_weights=x),
    "attention return_lse": lambda x: qkv.attention(Q, K, V, return_lse=x),
    "varlen_attention return_lse": lambda x: qkv.varlen_attention(*ROWS, AT, AT, return_lse=x),
}
for option in OPTIONS:
    CALLS[f"attention {option}"] = lambda x, o=option: qkv.attention(Q, K, V, **{o: x})
    CALLS[f"trace_attention {option}"] = lambda x, o=option: qkv.trace_attention(Q, K, V, **{o: x})
    CALLS[f"summarize_attention {option}"] = lambda x, o=option: qkv.summarize_attention(
        Q, K, V, **{o: x}
    )
    CALLS[f"attention_grad {option}"] = lambda x, o=option: qkv.attention_grad(Q, K, V, V, **{o: x})
for option in PLAIN:
    CALLS[f"varlen_attention {option}"] = lambda x, o=option: qkv.varlen_attention(
        *ROWS, AT, AT, **{o: x}
    )
    CALLS[f"varlen_attention_grad {option}"] = lambda x, o=option: qkv.attend.varlen_attention_grad(
        *ROWS, ROWS[0], AT, AT, **{o: x}
    )


def test_errors_for_invalid_arguments_are_one_line_and_name_the_call() -> None:
    for call, run in CALLS.items():
        with failing(call):
            said = []
            for value in VALUES:
                if call.endswith("top_k") and isinstance(value, int) and value == 2**31:
                    value -= 2**31 - 1  # 2**31 weights for each query would take 160 GB
                try:
                    run(value)
                except (TypeError, ValueError) as error:
                    said.append(str(error))
            assert said
            for message in said:
                assert message.startswith(call.split()[0])
                assert "\n" not in message
                assert len(message) < 250


@pytest.mark.parametrize("option", ["scale", "softcap"])
def test_scale_and_softcap_accept_numbers_of_any_type(option: str) -> None:
    expected = qkv.attention(Q, K, V, **{option: 2.0})
    for value in (2, np.float32(2), np.int8(2), np.array(2.0), Fraction(2), ml_dtypes.bfloat16(2)):
        assert (qkv.attention(Q, K, V, **{option: value}) == expected).all()
    for wrong in (True, np.bool_(True), np.array(True), "2", b"2", [2.0], np.array([2.0]), 2j):
        with pytest.raises(TypeError, match=rf"^attention: {option} is .*; pass (one|a) number$"):
            qkv.attention(Q, K, V, **{option: wrong})
    for beyond in (10**400, -(10**5000), NAN, INF, np.longdouble("1e400")):
        reason = rf"^attention: {option} is .*(finite|too large for a float$)"
        with pytest.raises(ValueError, match=reason):
            qkv.attention(Q, K, V, **{option: beyond})


@pytest.mark.parametrize("count", [1025, 2**31, 2**64, 10**5000], ids=[1025, 31, 64, "huge"])
def test_too_many_threads_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=r"^set_num_threads: n is .*: it must be at most 1,024$"):
        qkv.set_num_threads(count)
    x = np.zeros((3, 3), np.float32)
    assert (qkv.attention(x, x, x) == 0).all()
