"""Tests of `qkv.scale.attention` against the formula in float64, for any chunks."""

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import qkv
from attend import exact
from attend.drawn import Case, draw
from attend.loops import Array
from attend.support import numbers, qkv_arrays
from qkv import scale
from qkv.attend.attention import solve
from qkv.ops.kernel import get_num_threads

from .chunks import a_backend, assert_results, cut, cut_case

F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))


@pytest.fixture(autouse=True)
def _in_this_thread() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def computed(case: Case, seed: int) -> tuple[Array, Array, Array]:
    """Return output, weights and log-sum-exp of a case, computed from arrays in random chunks.

    The seed determines the chunks.
    """
    arrays, options = cut_case(np.random.default_rng(seed), case)
    with warnings.catch_warnings():
        # NumPy may warn about visible infinities, and qkv about a float mask of only 0 and 1
        warnings.simplefilter("ignore")
        found = scale.attention(*arrays, **options, return_weights=True, return_lse=True)
        for result in found:
            result.__dask_graph__().validate()
        return dask.compute(*found)


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_random_settings_in_any_chunks_agree_with_the_formula(start: int) -> None:
    for seed in range(start, start + 40):
        case = draw(seed + 30_000, cells=20_000)
        expected = exact.attention(*case.arrays, **case.options)
        certain, dtype = expected.loops, case.arrays[0].dtype.newbyteorder("=")
        with a_backend(seed) as backend:
            try:
                out, weights, lse = computed(case, seed)
                assert_results(
                    exact.settled(out, certain.out, expected.out).astype(out.dtype),
                    exact.settled(weights, certain.weights, expected.rows[..., None]).astype(
                        weights.dtype
                    ),
                    exact.settled(lse, certain.lse, expected.rows).astype(lse.dtype),
                    certain,
                    dtype,
                )
            except Exception as error:
                error.add_note(f"{backend}: draw({seed + 30_000}), chunks of seed {seed}")
                raise


def layer(array: Any, name: str) -> dict[Any, Any]:
    """Return the tasks of the graph layer whose name begins with `name`.

    Exactly one layer of the graph must have such a name.
    """
    (found,) = (x for key, x in array.__dask_graph__().layers.items() if key.startswith(name))
    return dict(found)


def words(tokens: int, chunk: int, size: int = 4, heads: int = 1) -> Any:
    return da.from_array(numbers((heads, tokens, size), 0), chunks=(heads, chunk, size))


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({}, 100),
        ({"is_causal": True}, 55),  # 10 + 9 + ... + 1
        ({"is_causal": True, "window": (9, None)}, 19),  # each query's own block and the one before
        ({"is_causal": True, "window": (10, None)}, 19),  # query 10 sees key 0
        ({"is_causal": True, "window": (11, None)}, 27),  # query 20 sees key 9
        ({"window": (0, 0)}, 10),
        ({"window": (None, 1), "q_offset": -1}, 55),
        ({"is_causal": True, "q_offset": -10}, 45),  # the first block of queries sees nothing
        ({"is_causal": True, "q_offset": 1000}, 100),
        ({"key_lengths": 35}, 40),
        ({"query_lengths": 30, "key_lengths": 30}, 9),
        ({"key_lengths": 0}, 0),
    ],
)
def test_fully_masked_blocks_make_no_task(options: dict[str, Any], blocks: int) -> None:
    x = words(100, 10)
    out = scale.attention(x, x, x, **options)
    tasks = layer(out, "attention-parts-")
    met = [key for key in tasks if len(key) == 4 and tasks[key].func.__name__ == "_attend"]
    joined = [key for key in tasks if tasks[key].func.__name__ == "join_parts"]
    rows = {key[:3] for key in met}
    assert len(met) == blocks
    assert len(joined) == blocks - len(rows)
    assert len(tasks) == len(met) + len(joined) + 10 - len(rows)
    expected = qkv.attention(*[np.asarray(x, F64)] * 3, **options)
    assert np.abs(out.compute() - expected).max() < 1e-5


def test_nothing_is_computed_at_the_call() -> None:
    def poisoned(block: Array) -> Array:
        raise RuntimeError("the source was read")

    x = words(100, 10).map_blocks(poisoned, dtype=np.float32, meta=np.empty((0, 0, 0), np.float32))
    mask = da.ones((100, 100), chunks=30, dtype=bool).map_blocks(
        poisoned, dtype=bool, meta=np.ones((0, 0), bool)
    )
    out, weights, lse = scale.attention(
        x, x, x, mask, is_causal=True, bias=mask.astype(F32), return_weights=True, return_lse=True
    )
    for lazy in (out, weights, lse, out[:, 5:7].sum(), scale.attention(out, x, x)):
        with pytest.raises(RuntimeError, match="the source was read"):
            lazy.compute()


def test_results_can_be_used_in_further_dask_computations() -> None:
    query, key, value = qkv_arrays(heads=2, L=40, S=30, d=4, dv=4, dtype=F64)
    rng = np.random.default_rng(0)
    lazy = [cut(rng, x) for x in (query, key, value)]
    twice = scale.attention(scale.attention(*lazy), lazy[1], lazy[2].persist())
    expected = qkv.attention(qkv.attention(query, key, value), key, value)
    np.testing.assert_allclose((twice * 2)[0, :, 7:9], 2 * expected[0, :, 7:9], rtol=1e-12)
    assert scale.attention(*lazy).name == scale.attention(*lazy).name
    assert scale.attention(*lazy).name != scale.attention(*lazy, scale=0.3).name
    assert scale.attention(*lazy).name != scale.attention(*lazy, key_lengths=3).name


def test_results_are_chunked_like_the_arrays() -> None:
    query, key, value = qkv_arrays(lead=(4,), heads=6, kv_heads=2, L=9, S=11, d=4, dv=3)
    found = scale.attention(
        da.from_array(query, chunks=((1, 3), (2, 3, 1), (2, 7), 4)),
        da.from_array(key, chunks=((3, 1), 2, (5, 6), 1)),
        da.from_array(value, chunks=(4, 2, (1, 10), 2)),
        return_weights=True,
        return_lse=True,
    )
    # the chunk of heads 2 to 4 spans both groups of three heads, so it is cut where the second
    # group begins
    rows = ((1, 2, 1), (2, 1, 2, 1), (2, 7))
    assert [x.chunks for x in found] == [(*rows, (3,)), (*rows, (1, 4, 6)), rows]
    expected = qkv.attention(query, key, value, return_weights=True, return_lse=True)
    for ours, truth in zip(found, expected, strict=True):
        assert ours.dtype == truth.dtype
        np.testing.assert_allclose(ours, truth, atol=1e-6)


def test_numpy_arrays_are_accepted_beside_dask_arrays() -> None:
    query, key, value = qkv_arrays(L=8, S=8)
    found = scale.attention(query, da.from_array(key, chunks=3), value, is_causal=True)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found, qkv.attention(query, key, value, is_causal=True), atol=1e-6)


@pytest.mark.parametrize("scores", ["lowest", "large"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_extreme_scores_agree_with_the_exact_result(scores: str, dtype: Any) -> None:
    query, key, value = (x.astype(dtype) for x in qkv_arrays(L=6, S=20, dtype=F64))
    mask = np.zeros((6, 20), dtype)
    if scores == "lowest":
        mask[2] = np.finfo(dtype).min  # all keys get equal weights, in blocks of 7, 7 and 6
        mask[3, :9] = np.finfo(dtype).min
    else:
        query[...] = 0  # now each score is only the mask's number
        mask[2] = -1e12
        mask[2, 4:9] += 1e5
        mask[3] = 3e9
        mask[1] = -np.inf  # sees no key, next to rows with such scores
    chunked = [da.from_array(x, chunks=(2, 2, 4, 7)) for x in (query, key, value)]
    out, weights, lse = scale.attention(*chunked, mask, return_weights=True, return_lse=True)
    truth = exact.attention(query, key, value, mask).loops
    wide = 1e-5 if dtype == F32 else 1e-12
    if scores == "lowest":
        assert np.allclose(out[..., 2, :], value.mean(-2), atol=wide)
    assert np.abs(out - truth.out).max() < wide
    assert np.abs(weights - truth.weights).max() < wide
    np.testing.assert_allclose(lse, truth.lse.astype(dtype), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": words(9, 3, size=5)}, ValueError, "scale.attention: query has size 4 and key has"),
        ({"value": words(8, 3)}, ValueError, "key has 9 rows and value has 8"),
        ({"query": words(9, 3).astype(F64)}, TypeError, "all must have the same type"),
        ({"query": words(7, 3), "is_causal": True}, ValueError, "query has 7 rows and key has 9"),
        ({"attn_mask": da.ones((9, 9), dtype=int)}, TypeError, "attn_mask is int64: pass bool"),
        ({"attn_mask": da.ones((9, 8), dtype=bool)}, ValueError, r"shape \(9, 8\) and \(L, S\) is"),
        ({"sinks": np.zeros(3)}, ValueError, r"sinks has shape \(3,\) and query has 1 heads"),
        ({"alibi_slopes": da.zeros(3)}, ValueError, r"alibi_slopes has shape \(3,\)"),
        ({"key_lengths": 10}, ValueError, "key_lengths contains 10, but key has 9 rows"),
        ({"key_lengths": da.ones(1, dtype=int)}, TypeError, "key_lengths is a dask array.*compute"),
        ({"out": np.zeros(3)}, TypeError, "out is not an option of this call: Dask decides"),
        ({"return_lse": 1}, TypeError, "return_lse is 1; pass True or False"),
        (
            {"query": words(9, 3)[:, da.arange(9, chunks=3) > 4]},
            ValueError,
            r"query has shape \(1, nan, 4\).*call query.compute_chunk_sizes\(\) first",
        ),
        (
            {"attn_mask": da.ones((9, 9), dtype=bool, chunks=3)[da.arange(9, chunks=3) > 4]},
            ValueError,
            r"attn_mask has shape \(nan, 9\)",
        ),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    x = words(9, 3)
    arguments: dict[str, Any] = {"query": x, "key": x, "value": x, **change}
    with pytest.raises(error, match=message):
        scale.attention(**arguments)


def test_a_float_mask_of_zeros_and_ones_draws_a_warning_at_the_call() -> None:
    x = words(9, 3)
    mask = np.eye(9)
    with pytest.warns(UserWarning, match="attn_mask is float64 and holds only"):
        out = scale.attention(x, x, x, mask)
    out.compute()  # computing does not warn again


def test_a_task_computes_on_the_thread_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def counting(calls: Any, **wanted: Any) -> Any:
        used.append(get_num_threads())
        return solve(calls, **wanted)

    monkeypatch.setattr("qkv.scale._forward.solve", counting)
    qkv.set_num_threads(3)
    x = words(20, 10)
    dask.compute(scale.attention(x, x, x, return_weights=True))
    assert used == [1] * 8
    assert get_num_threads() == 3
