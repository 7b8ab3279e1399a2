"""Tests that packed rows get the same gradients as each sequence alone."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.ops.kernel import BACKENDS

from . import loops
from .support import BFLOAT16, ON_ONE_BACKEND, numbers
from .test_gradient import saturated, terms

F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
QUERIES, KEYS = [3, 1, 0, 40, 2, 2, 7, 2], [4, 6, 2, 33, 5, 5, 7, 0]
PER_HEAD = ("sinks", "alibi_slopes")


def packed(
    queries: list[int] = QUERIES,
    keys: list[int] = KEYS,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: Any = F32,
    d: int = 6,
    dv: int = 5,
) -> tuple[np.ndarray, ...]:
    """Draw query, key, value and grad_out; return them with the cumulative lengths of sequences."""
    starts, key_starts = (np.cumsum([0, *lengths]) for lengths in (queries, keys))
    return (
        numbers((starts[-1], heads, d), 0, dtype),
        numbers((key_starts[-1], kv_heads, d), 1, dtype),
        numbers((key_starts[-1], kv_heads, dv), 2, dtype),
        numbers((starts[-1], heads, dv), 3, dtype),
        starts,
        key_starts,
    )


def one_by_one(
    query: Any, key: Any, value: Any, grad_out: Any, starts: Any, key_starts: Any, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the gradients of each sequence alone in float64, and the sizes of their terms."""
    arrays = [x.astype(F64) for x in (query, key, value, grad_out)]
    found: dict[str, Any] = {
        name: np.zeros(x.shape) for name, x in zip(("query", "key", "value"), arrays, strict=False)
    }
    found |= {name: np.zeros(np.shape(options[name])) for name in PER_HEAD if name in options}
    largest = dict.fromkeys(found, 0.0)
    offset = options.pop("q_offset", None)
    for n, ((a, b), (c, d)) in enumerate(zip(pairwise(starts), pairwise(key_starts), strict=True)):
        q, k, v, above = (
            x[part].swapaxes(0, 1)
            for x, part in zip(arrays, (slice(a, b), *[slice(c, d)] * 2, slice(a, b)), strict=True)
        )
        at = offset if offset is None or np.ndim(offset) == 0 else int(offset[n])
        here = qkv.attention_grad(q, k, v, above, q_offset=at, **options)
        found["query"][a:b] = here.query.swapaxes(0, 1)
        found["key"][c:d] = here.key.swapaxes(0, 1)
        found["value"][c:d] = here.value.swapaxes(0, 1)
        for name in PER_HEAD:
            if name in options:
                found[name] += getattr(here, name)
        weights, change = terms((q, k, v), above, options | {"q_offset": at})
        reach = max(b - a, d - c, 1) + (0 if at is None or isinstance(at, str) else abs(at))
        for name, size in (
            ("query", change.sum(-1).max(initial=0) * 10),
            ("key", change.sum((-1, -2)).max(initial=0) * 10),
            ("value", weights.sum(-2).max(initial=0) * 10),
        ):
            largest[name] = max(largest[name], size)
        for name in PER_HEAD:
            if name in options:
                largest[name] += change.sum() * reach
    return found, largest


def agree(arrays: tuple[np.ndarray, ...], **options: Any) -> qkv.attend.AttentionGradient:
    """Compare with each sequence alone, both with and without a saved forward pass."""
    dtype = arrays[0].dtype.newbyteorder("=")
    truth, largest = one_by_one(*arrays, **options)
    query, key, value, _, *starts = arrays
    forward = qkv.varlen_attention(query, key, value, *starts, **options, return_lse=True)
    for saved in (None, forward):
        found = qkv.attend.varlen_attention_grad(*arrays, forward=saved, **options)
        assert found.bias is None
        bound = {F16: 1e-3, F32: 2e-6, BFLOAT16: 8e-3, F64: 1e-13}[dtype]
        for name in ("query", "key", "value", *PER_HEAD):
            ours = getattr(found, name)
            if name not in truth:
                assert ours is None
                continue
            per_head = np.dtype(F64 if dtype == F64 else F32)
            assert ours.dtype == (per_head if name in PER_HEAD else dtype), name
            assert ours.shape == truth[name].shape, name
            error = np.abs(ours.astype(F64) - truth[name]).max(initial=0)
            assert error <= bound * max(1, largest[name]), (name, error, largest[name])
    return found


OPTIONS: dict[str, Any] = {
    "is_causal": True,
    "window": (5, 2),
    "softcap": 1.5,
    "scale": 0.7,
    "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0]),
    "sinks": numbers((4, 2), 5, F64),
}
PAIRS = [(), *((name,) for name in OPTIONS), *combinations(OPTIONS, 2)]


@pytest.mark.attack
@pytest.mark.parametrize("names", PAIRS, ids="+".join)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_pairs_of_options(names: tuple[str, ...], dtype: Any) -> None:
    options = {name: OPTIONS[name] for name in names}
    agree(packed(dtype=dtype), q_offset="end", **options)


@pytest.mark.parametrize("offset", ["start", "end", 0, 2, -1, [1, 2, -3, 5, 0, 3, -1, 9]])
@pytest.mark.parametrize("name", ["is_causal", "window", "alibi_slopes"])
def test_offsets_apply_to_each_sequence(name: str, offset: Any) -> None:
    agree(packed(), q_offset=offset, **{name: OPTIONS[name]})


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        ([], []),
        ([0, 0], [0, 0]),
        ([0, 0], [3, 1]),
        ([3, 1], [0, 0]),
        ([0, 2, 0, 3, 0], [2, 0, 0, 3, 1]),
        ([2, 2, 2], [3, 5, 1]),
        ([2, 2, 3, 3], [4, 4, 1, 1]),
        ([1] * 40, [1] * 40),
        ([300, 2, 1, 700, 5], [280, 2, 600, 530, 3]),
    ],
    ids=str,
)
def test_lengths(queries: list[int], keys: list[int]) -> None:
    agree(packed(queries, keys))
    agree(packed(queries, keys), sinks=OPTIONS["sinks"], is_causal=True, q_offset="end")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "dv"),
    [(6, 6, 32, 32), (6, 1, 5, 17), (4, 2, 300, 3), (4, 4, 3, 300), (2, 1, 1, 1), (3, 1, 16, 64)],
)
def test_heads_and_sizes(heads: int, kv_heads: int, d: int, dv: int) -> None:
    agree(packed(heads=heads, kv_heads=kv_heads, d=d, dv=dv))


@pytest.mark.parametrize("name", ["query", "key", "value", *PER_HEAD])
def test_finite_differences(name: str) -> None:
    query, key, value, above, starts, key_starts = packed(dtype=F64)
    rules = {"is_causal": True, "window": (20, None), "softcap": 3.0, "q_offset": 1}
    given = {"query": query, "key": key, "value": value, **{n: OPTIONS[n] for n in PER_HEAD}}

    def total(inputs: dict[str, Any]) -> float:
        """Sum `out * grad_out` over all sequences, with outputs from the loops."""
        per_head = {n: inputs[n] for n in PER_HEAD}
        sums = 0.0
        for (a, b), (c, d) in zip(pairwise(starts), pairwise(key_starts), strict=True):
            parts = (inputs["query"][a:b], inputs["key"][c:d], inputs["value"][c:d])
            out = loops.attention(*(x.swapaxes(0, 1) for x in parts), **rules, **per_head).out
            sums += float((out * above[a:b].swapaxes(0, 1)).sum())
        return sums

    found = qkv.attend.varlen_attention_grad(
        **given, grad_out=above, **rules, **cumulative(packed())
    )
    direction = numbers(np.shape(given[name]), 9, F64)
    step = 1e-5
    ends = [total(given | {name: given[name] + sign * step * direction}) for sign in (1, -1)]
    expected = (ends[0] - ends[1]) / (2 * step)
    ours = float((getattr(found, name) * direction).sum())
    assert abs(ours - expected) < 1e-6 * max(1, abs(expected))


def cumulative(arrays: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    return {"cu_query_lengths": arrays[4], "cu_key_lengths": arrays[5]}


@pytest.mark.parametrize("dtype", [F32, F64])
def test_masked_nan_and_infinity_do_not_show_and_get_gradient_0(dtype: Any) -> None:
    arrays = packed([3, 0, 4, 6], [3, 5, 0, 9], dtype=dtype)
    query, key, value, above, *_ = arrays
    options = {"window": (1, 0), "q_offset": "start"}
    clean = qkv.attend.varlen_attention_grad(*arrays, **options)
    key[3:8] = value[3:8] = np.nan  # the keys of the sequence without queries
    query[3:7] = above[3:7] = np.nan  # the queries of the sequence without keys
    key[14:] = value[14:] = np.inf  # keys outside all windows
    found = qkv.attend.varlen_attention_grad(*arrays, **options)
    for ours, before in zip(found[:3], clean[:3], strict=True):
        np.testing.assert_array_equal(ours, before)
    assert (found.query[3:7] == 0).all()
    for gradient in (found.key, found.value):
        assert (gradient[3:8] == 0).all()
        assert (gradient[14:] == 0).all()
        assert (gradient[8:14] != 0).all()


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", ["query", "key", "value", "grad_out"])
def test_nan_shows_only_in_its_sequence_and_key_head(name: str, dtype: Any) -> None:
    arrays = packed([3, 9, 4], [3, 6, 4], dtype=dtype)
    clean = qkv.attend.varlen_attention_grad(*arrays)
    at = {"query": (4, 2), "key": (4, 1), "value": (4, 1), "grad_out": (4, 2)}[name]
    dict(zip(("query", "key", "value", "grad_out"), arrays[:4], strict=True))[name][at] = np.nan
    found = qkv.attend.varlen_attention_grad(*arrays)
    assert np.isnan(found.query[4, 2]).all()
    for part, rows, heads in (("query", (3, 12), 2), ("key", (3, 9), 1), ("value", (3, 9), 1)):
        others = np.ones(getattr(found, part).shape, bool)
        others[slice(*rows), heads:] = False
        ours, before = (getattr(x, part)[others] for x in (found, clean))
        np.testing.assert_array_equal(ours, before)


@pytest.mark.parametrize("size", [100.0, 3e7])
def test_equal_keys_share_the_value_gradient_at_any_score(size: float) -> None:
    query, key, value, above, starts, key_starts = packed([4, 20, 5], [4, 33, 5])
    key[:] = query[0, 0] = 1
    query[4:24, 2:] = size  # float32 rounds `size + log(33)`, and may lose log(33)
    arrays = query, key, value, above, starts, key_starts
    forward = qkv.varlen_attention(*arrays[:3], starts, key_starts, return_lse=True)
    for saved in (None, forward):
        found = qkv.attend.varlen_attention_grad(*arrays, forward=saved)
        expected = above[4:24, 2:].astype(F64).sum((0, 1)) / 33
        error = np.abs(found.value[4:37, 1] - expected).max()
        assert error < 4e-6 * np.abs(above[4:24, 2:]).sum((0, 1)).max() / 33


@pytest.mark.parametrize("size", [30.0, 1000.0])
def test_gradients_stay_accurate_if_one_sequence_has_huge_scores(size: float) -> None:
    arrays = packed([20, 30, 5], [20, 40, 5])
    clean = qkv.attend.varlen_attention_grad(*arrays)
    arrays[0][20:50, 2] *= size  # log-sum-exps of hundreds
    truth, _ = one_by_one(*arrays)
    query, key, value, _, *starts = arrays
    forward = qkv.varlen_attention(query, key, value, *starts, return_lse=True)
    assert np.abs(forward[1][20:50, 2]).max() > 60
    for saved in (None, forward):
        found = qkv.attend.varlen_attention_grad(*arrays, forward=saved)
        for name in ("query", "key", "value"):
            ours = getattr(found, name)
            scale = np.abs(truth[name]).max()
            assert np.abs(ours - truth[name]).max() < 2e-7 * size * scale, name
        if saved is None:  # a saved log-sum-exp is rounded to float32
            for rows in (slice(20), slice(50, None)):
                np.testing.assert_array_equal(found.query[rows], clean.query[rows])


def test_any_number_of_threads_gives_the_same_bits() -> None:
    lengths = np.random.default_rng(2).integers(0, 40, 60).tolist()
    for more in ([], [700, 300]):
        arrays = packed(lengths + more, lengths + more, d=16, dv=16)
        arrays[0][5, 1] *= 1000
        options = {"is_causal": True, "sinks": OPTIONS["sinks"], "alibi_slopes": np.ones(4) / 50}
        found = []
        for threads in (1, 2, 3, 5):
            qkv.set_num_threads(threads)
            found.append(qkv.attend.varlen_attention_grad(*arrays, **options))
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                assert a is b is None or a.tobytes() == b.tobytes()


def test_arrays_of_any_layout_and_byte_order_are_read() -> None:
    query, key, value, above, starts, _ = packed([4, 3, 9], [4, 3, 9], 2, 2, d=6, dv=6)
    whole = np.stack([query, key, value], 1)  # (total, 3, H, d), the result of one projection
    usual = qkv.attend.varlen_attention_grad(query, key, value, above, starts, starts)
    out, lse = qkv.varlen_attention(query, key, value, starts, starts, return_lse=True)
    for arrays in (
        (whole[:, 0], whole[:, 1], whole[:, 2], above),
        tuple(np.asfortranarray(x) for x in (query, key, value, above)),
        tuple(x[::-1].copy()[::-1] for x in (query, key, value, above)),
        tuple(x.astype(">f4") for x in (query, key, value, above)),
    ):
        before = [x.copy() for x in arrays]
        for forward in (None, (np.asfortranarray(out), np.asfortranarray(lse))):
            found = qkv.attend.varlen_attention_grad(*arrays, starts, starts, forward=forward)
            for ours, expected in zip(found[:3], usual[:3], strict=True):
                np.testing.assert_allclose(ours, expected, atol=1e-6)
                assert ours.dtype == F32
                assert ours.flags.writeable
        for x, y in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.alone
@pytest.mark.attack
@ON_ONE_BACKEND  # the test's subprocess runs every backend
def test_memory_grows_with_the_rows_and_not_the_longest_sequence() -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("the peak is read from /proc")
    program = """if True:
        import os, sys
        import numpy as np, qkv
        def megabytes(name):
            with open("/proc/self/status") as status:
                (line,) = (line for line in status if line.startswith(name + ":"))
            return int(line.split()[1]) / 1024
        starts = np.array([*range(20001), 22000])
        arrays = [np.ones((22000, 2, 8), np.float32) for _ in range(4)]
        for os.environ["QKV_BACKEND"] in sys.argv[1:]:
            forward = qkv.varlen_attention(*arrays[:3], starts, starts, return_lse=True)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # reset the peak
            before = megabytes("VmRSS")
            qkv.attend.varlen_attention_grad(*arrays, starts, starts, forward=forward)
            print(megabytes("VmHWM") - before)
    """
    result = subprocess.run(
        [sys.executable, "-c", program, *BACKENDS], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    peaks = [float(peak) for peak in result.stdout.split()]
    assert len(peaks) == len(BACKENDS)
    assert max(peaks) < 200, f"peaks {peaks} MB above the inputs"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"grad_out": np.ones((3, 1, 2))}, ValueError, r"grad_out has shape .* \(2, 1, 3\)"),
        ({"grad_out": np.ones((2, 1, 3), int)}, TypeError, "grad_out is int64"),
        ({"forward": (np.ones((2, 1, 3)), np.ones(2))}, ValueError, r"forward\[1\] has shape"),
        ({"forward": (np.ones((2, 3)), np.ones((2, 1)))}, ValueError, r"forward\[0\] has shape"),
        ({"cu_key_lengths": [0, 1]}, ValueError, "cu_key_lengths runs from 0 to 1"),
        ({"query": np.ones((2, 3))}, ValueError, "pass packed rows"),
        ({"softcap": -1.0}, ValueError, "softcap"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    x = np.ones((2, 1, 3))
    given: dict[str, Any] = {"query": x, "key": x, "value": x, "grad_out": x}
    given |= {"cu_query_lengths": [0, 2], "cu_key_lengths": [0, 2]} | change
    with pytest.raises(error, match="varlen_attention_grad: .*" + message):
        qkv.attend.varlen_attention_grad(**given)


@pytest.mark.parametrize("dtype", [F16, BFLOAT16], ids=str)
@pytest.mark.parametrize("with_forward", [False, True])
def test_gradients_of_half_precision_where_softmax_saturates(
    with_forward: bool, dtype: Any
) -> None:
    rows = [x[0].swapaxes(0, 1) for x in saturated(dtype, 10.0, 0)]
    starts = [0, len(rows[0])]
    forward = None
    if with_forward:
        forward = qkv.varlen_attention(*rows[:3], starts, starts, return_lse=True)
    found = qkv.attend.varlen_attention_grad(*rows, starts, starts, forward=forward)
    truth = qkv.attend.varlen_attention_grad(*(x.astype(F64) for x in rows), starts, starts)
    for ours, expected in zip(found[:3], truth[:3], strict=True):
        assert np.abs(ours - expected).max() <= 0.01 * np.abs(expected).max()
