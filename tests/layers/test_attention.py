"""Tests of the attention layer and `self_attention`, against loops and manual arithmetic."""

import inspect
import math
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from embed.test_rotary import rotated
from qkv.attend import KVCache, attention, varlen_attention
from qkv.attend.arguments import OPTIONS
from qkv.embed import alibi_slopes
from qkv.layers import MultiHeadAttention, RMSNorm, Rotary, SelfAttention, self_attention
from qkv.layers.base import PACKED
from rows import failing

from .support import Array, loops, numbers


def layer_of(seed: int = 0, **options: Any) -> MultiHeadAttention:
    """Make a float64 layer whose biases, if any, are not 0."""
    layer = MultiHeadAttention(seed=seed, dtype=np.float64, **options)
    for place, (name, array) in enumerate(layer.parameters.items()):
        if name.endswith("bias"):
            array[:] = numbers(len(array), seed=place)
    return layer


SHAPES: list[dict[str, Any]] = [
    {"embed_dim": 4},
    {"embed_dim": 6, "num_heads": 3},
    {"embed_dim": 8, "num_heads": 4, "num_kv_heads": 2},
    {"embed_dim": 8, "num_heads": 4, "num_kv_heads": 1, "bias": True},
    {"embed_dim": 5, "num_heads": 2, "d_query": 6, "d_value": 8},
    {"embed_dim": 6, "num_heads": 2, "d_query": 7, "out_proj": False},
    {"embed_dim": 6, "num_heads": 2, "d_value": 1, "num_kv_heads": 1, "bias": True},
    {"embed_dim": 4, "out_proj": False, "bias": True},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_cell_by_cell(shape: dict[str, Any], causal: bool) -> None:
    layer = layer_of(**shape)
    x = numbers(3, 5, shape["embed_dim"], seed=1)
    out, weights = layer(x, is_causal=causal, return_weights=True)
    assert weights.shape == (3, layer.num_heads, 5, 5)
    for text in range(3):
        expected = loops(
            x[text],
            x[text],
            layer.parameters,
            layer.num_heads,
            layer.num_kv_heads,
            causal,
        )
        np.testing.assert_allclose(out[text], expected[0], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(weights[text], expected[1], rtol=1e-12, atol=1e-14)
    assert out.shape == (3, 5, layer.output_dim)


@pytest.mark.parametrize("shape", SHAPES)
def test_cross_attention_cell_by_cell(shape: dict[str, Any]) -> None:
    layer = layer_of(**shape)
    x, context = numbers(2, shape["embed_dim"], seed=1), numbers(7, shape["embed_dim"], seed=2)
    out = layer.forward(x, context)
    expected, _ = loops(x, context, layer.parameters, layer.num_heads, layer.num_kv_heads)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-13)


def test_function_layer_and_forward_give_equal_results() -> None:
    x = numbers(2, 5, 6)
    layer = SelfAttention(6, 3, seed=4, dtype=np.float64)
    weights = [layer.parameters[f"{name}_proj.weight"] for name in ("q", "k", "v", "out")]
    out = layer(x, is_causal=True)
    np.testing.assert_array_equal(out, layer.forward(x, is_causal=True))
    np.testing.assert_array_equal(out, self_attention(x, *weights, num_heads=3, is_causal=True))
    np.testing.assert_array_equal(
        out, MultiHeadAttention.from_weights(*weights, num_heads=3)(x, x, is_causal=True)
    )


def test_both_layouts() -> None:
    x = numbers(5, 10)
    w_q, w_k, w_v, w_o = (
        numbers(*shape, seed=place)
        for place, shape in enumerate([(10, 20), (10, 20), (10, 25), (25, 7)])
    )
    expected, _ = loops(x, x, named(w_q, w_k, w_v, w_o), heads=5)
    turned = [w.T for w in (w_q, w_k, w_v, w_o)]
    for weights, layout in (((w_q, w_k, w_v, w_o), "in_out"), (turned, "out_in")):
        out = self_attention(x, *weights, num_heads=5, layout=layout)
        assert out.shape == (5, 7)
        np.testing.assert_allclose(out, expected, rtol=1e-12)
        layer = MultiHeadAttention.from_weights(*weights, num_heads=5, layout=layout)
        np.testing.assert_array_equal(layer(x), out)
        assert (layer.embed_dim, layer.d_query, layer.d_value, layer.output_dim) == (10, 4, 5, 7)


def named(w_q: Array, w_k: Array, w_v: Array, w_o: Array | None = None) -> dict[str, Array]:
    given = {"q_proj.weight": w_q, "k_proj.weight": w_k, "v_proj.weight": w_v}
    return given if w_o is None else given | {"out_proj.weight": w_o}


def test_first_values_of_the_parameters() -> None:
    layer = MultiHeadAttention(256, 4, d_query=100, d_value=36, bias=True, seed=0)
    shapes = {name: array.shape for name, array in layer.parameters.items()}
    assert shapes == {
        "q_proj.weight": (256, 400),
        "q_proj.bias": (400,),
        "k_proj.weight": (256, 400),
        "k_proj.bias": (400,),
        "v_proj.weight": (256, 144),
        "v_proj.bias": (144,),
        "out_proj.weight": (144, 256),
        "out_proj.bias": (256,),
    }
    for name, array in layer.parameters.items():
        assert array.dtype == np.float32
        if name.endswith("bias"):
            assert not array.any()
        else:
            assert abs(array.std() * math.sqrt(len(array)) - 1) < 0.02
            assert abs(array.mean() * math.sqrt(len(array))) < 0.02


def test_a_seed_gives_the_same_layer() -> None:
    one, same, other = (SelfAttention(8, 2, seed=seed).parameters for seed in (3, 3, 4))
    double = SelfAttention(8, 2, seed=3, dtype=np.float64).parameters
    for name, array in one.items():
        np.testing.assert_array_equal(array, same[name])
        np.testing.assert_array_equal(array, double[name].astype(np.float32))
        assert not np.array_equal(array, other[name])
    assert not np.array_equal(one["q_proj.weight"], one["k_proj.weight"])
    without = SelfAttention(8, 2).parameters["q_proj.weight"]
    assert not np.array_equal(without, SelfAttention(8, 2).parameters["q_proj.weight"])


def test_parameters_are_live() -> None:
    layer = SelfAttention(4, seed=0)
    x = numbers(3, 4, dtype=np.float32)
    layer.parameters["out_proj.weight"][:] = 0
    assert not layer(x).any()
    layer.parameters["out_proj.weight"] = np.eye(4, dtype=np.float32)
    assert layer(x).all()


@pytest.mark.parametrize(
    ("x", "weight", "result"),
    [
        (np.float32, np.float32, np.float32),
        (np.int64, np.float32, np.float32),
        (np.uint8, np.float64, np.float64),
        (np.int16, np.float16, np.float16),
        (np.int16, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (np.float64, np.float32, np.float64),
        (np.float32, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
        (np.float16, np.float16, np.float16),
        (np.float16, ml_dtypes.bfloat16, np.float32),
        (">f8", "<f4", np.float64),
        (">f4", ">f4", np.float32),
    ],
)
def test_types_promote(x: Any, weight: Any, result: Any) -> None:
    words = np.array([[1, 2, 0], [3, 1, 1]]).astype(x)
    weights = [numbers(3, 3, seed=seed).astype(weight) for seed in range(4)]
    out, cells = self_attention(words, *weights, return_weights=True)
    assert out.dtype == np.dtype(result)
    assert out.dtype.isnative
    assert cells.dtype == (np.float64 if result is np.float64 else np.float32)
    expected, _ = loops(words.astype(float), words.astype(float), named(*weights), 1)
    step = float(ml_dtypes.finfo(result).eps)
    np.testing.assert_allclose(out.astype(float), expected, rtol=8 * step, atol=8 * step)


@pytest.mark.parametrize("out_proj", [True, False])
def test_a_residual_is_added(out_proj: bool) -> None:
    layer = SelfAttention(8, 2, seed=1, dtype=np.float64, out_proj=out_proj)
    x, residual = numbers(2, 5, 8), numbers(2, 5, 8, seed=1)
    expected, weights = layer(x, return_weights=True)
    found, same = layer(x, residual=residual, return_weights=True)
    np.testing.assert_allclose(found, expected + residual, rtol=1e-14)
    np.testing.assert_array_equal(same, weights)


def test_halves_are_rounded_once() -> None:
    half = SelfAttention(32, 4, seed=0, dtype=np.float16)
    x = numbers(9, 32).astype(np.float16)
    wide = {name: array.astype(np.float64) for name, array in half.parameters.items()}
    expected = SelfAttention.from_parameters(wide, num_heads=4)(x.astype(np.float64))
    np.testing.assert_allclose(half(x), expected, rtol=2.0**-11 * 1.01, atol=2e-6)


def test_shapes_of_output_weights_and_lse() -> None:
    x = numbers(5, 8)
    one, two = (SelfAttention(8, heads, seed=0, dtype=np.float64) for heads in (1, 2))
    all_of = {"return_weights": True, "return_lse": True}
    shapes = {
        "plain, one head": one(x, **all_of),
        "plain, two heads": two(x, **all_of),
        "batch, one head": one(x[None], **all_of),
        "two axes, two heads": two(x[None, None], **all_of),
    }
    assert {name: [a.shape for a in found] for name, found in shapes.items()} == {
        "plain, one head": [(5, 8), (5, 5), (5,)],
        "plain, two heads": [(5, 8), (2, 5, 5), (2, 5)],
        "batch, one head": [(1, 5, 8), (1, 1, 5, 5), (1, 1, 5)],
        "two axes, two heads": [(1, 1, 5, 8), (1, 1, 2, 5, 5), (1, 1, 2, 5)],
    }
    out, lse = one(x, return_lse=True)
    scores = (x @ one.parameters["q_proj.weight"]) @ (x @ one.parameters["k_proj.weight"]).T
    np.testing.assert_allclose(lse, np.log(np.exp(scores / math.sqrt(8)).sum(-1)), rtol=1e-13)
    assert one(x, return_weights=False).shape == out.shape


def test_leading_dimensions_broadcast() -> None:
    layer = MultiHeadAttention(4, 2, seed=0, dtype=np.float64)
    x, context = numbers(3, 1, 5, 4), numbers(2, 6, 4, seed=1)
    out, weights = layer(x, context, return_weights=True)
    assert (out.shape, weights.shape) == ((3, 2, 5, 4), (3, 2, 2, 5, 6))
    for a in range(3):
        for b in range(2):
            np.testing.assert_allclose(out[a, b], layer(x[a, 0], context[b]), rtol=1e-12)
    one = layer(x[0, 0], context)
    np.testing.assert_allclose(one, out[0], rtol=1e-12)


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (2, 0, 4)])
def test_empty_input_gives_empty_output(shape: tuple[int, ...]) -> None:
    layer = MultiHeadAttention(4, 2, seed=0)
    assert layer(np.ones(shape, np.float32)).shape == shape


def test_no_context_gives_the_bias() -> None:
    layer = layer_of(embed_dim=4, num_heads=2, bias=True)
    out = layer(numbers(3, 4), np.ones((0, 4)))
    np.testing.assert_array_equal(out, np.tile(layer.parameters["out_proj.bias"], (3, 1)))


def test_every_option_of_the_formula_reaches_it() -> None:
    """Compare each option with `qkv.attention` on projections that are computed here."""
    layer = layer_of(embed_dim=8, num_heads=2)
    x = numbers(3, 5, 8)
    given: dict[str, Any] = {
        "attn_mask": numbers(5, 5, seed=1) > 0,
        "is_causal": True,
        "q_offset": np.array([0, 1, -1]),
        "window": (2, 1),
        "bias": numbers(2, 5, 5, seed=2),
        "alibi_slopes": alibi_slopes(2),
        "softcap": 2.0,
        "sinks": np.array([0.5, -1.0]),
        "scale": 3.0,
        "query_lengths": np.array([5, 2, 4]),
        "key_lengths": np.array([5, 2, 4]),
    }
    assert set(OPTIONS) == {*given, "return_weights", "return_lse", "out"}
    heads = [
        (x @ layer.parameters[f"{name}_proj.weight"]).reshape(3, 5, 2, 4).transpose(0, 2, 1, 3)
        for name in "qkv"
    ]
    plain = layer(x)
    for chosen in [*({name: value} for name, value in given.items()), given]:
        if set(chosen) == {"q_offset"}:
            chosen = {**chosen, "is_causal": True}
        z = attention(*heads, **chosen).transpose(0, 2, 1, 3).reshape(3, 5, 8)
        out = layer(x, **chosen)
        np.testing.assert_allclose(
            out, z @ layer.parameters["out_proj.weight"], rtol=1e-12, atol=1e-14
        )
        assert not np.allclose(out, plain)


def test_layer_options_match_those_of_attention() -> None:
    inputs = {"query", "key", "value", "cu_query_lengths", "cu_key_lengths"}
    assert set(OPTIONS) == set(inspect.signature(attention).parameters) - inputs
    packed = set(inspect.signature(varlen_attention).parameters) - inputs
    assert set(PACKED) == packed | {"attn_mask", "bias"}


def test_padding_may_hold_anything() -> None:
    layer = layer_of(embed_dim=4, num_heads=2)
    x = numbers(2, 6, 4)
    lengths = np.array([6, 3])
    x[1, 3:] = [[np.nan] * 4, [np.inf, -np.inf, 1, 1], [1e308] * 4]
    out = layer(x, query_lengths=lengths, key_lengths=lengths)
    np.testing.assert_allclose(out[1, :3], layer(x[1, :3]), rtol=1e-12)
    assert not out[1, 3:].any()


def test_any_strides_and_byte_order() -> None:
    layer = layer_of(embed_dim=4, num_heads=2)
    x = numbers(3, 5, 4)
    expected = layer(x)
    strided = np.zeros((5, 3, 8)).swapaxes(0, 1)[..., ::-2]
    strided[...] = x
    np.testing.assert_allclose(layer(strided), expected, rtol=1e-12)
    np.testing.assert_allclose(layer(x.astype(">f8")), expected, rtol=1e-12)


class Given:
    """An array type of another library."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array


def test_arrays_of_other_libraries_are_accepted() -> None:
    x, w = numbers(3, 4), numbers(4, 4, seed=1)
    out = self_attention(Given(x), Given(w), Given(w), Given(w))
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, self_attention(x, w, w, w))


# ---- out= ----------------------------------------------------------------------------------------


def test_out_takes_the_result_of_the_layer() -> None:
    layer = MultiHeadAttention(4, 2, d_value=3, seed=0)
    x = numbers(2, 5, 4, dtype=np.float32)
    out = np.full((2, 5, 4), 7, np.float32)
    found, weights = layer(x, out=out, return_weights=True)
    assert found is out
    np.testing.assert_array_equal(out, layer(x))
    np.testing.assert_array_equal(weights, layer(x, return_weights=True)[1])


def test_out_that_cannot_be_used() -> None:
    layer = MultiHeadAttention(4, 2, seed=0)
    x = numbers(2, 5, 4, dtype=np.float32)
    frozen = np.zeros((2, 5, 4), np.float32)
    frozen.setflags(write=False)
    for out, error, message in [
        ([1], TypeError, "`out` is list"),
        (np.zeros((2, 5, 3), np.float32), ValueError, r"\(2, 5, 3\) float32.* \(2, 5, 4\) float32"),
        (np.zeros((2, 5, 4)), ValueError, "float64, but the result is"),
        (frozen, ValueError, "cannot be written to"),
        (x, ValueError, "shares memory"),
    ]:
        with failing(message), pytest.raises(error, match=message):
            layer(x, out=out)
    target = np.full((2, 5, 4), 7, np.float32)
    with pytest.raises(ValueError, match="window"):
        layer(x, out=target, window=(-1, 0))
    assert (target == 7).all()


# ---- rotary --------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("length", "keys", "q_offset", "start"),
    [(5, 5, None, 0), (5, 5, 3, 3), (2, 5, "end", 3), (2, 5, "start", 0), (3, 5, -1, -1)],
)
def test_rotary_rotates_queries_and_keys_by_their_positions(
    interleaved: bool, length: int, keys: int, q_offset: Any, start: int
) -> None:
    how = {"base": 50.0, "dims": 4, "interleaved": interleaved}
    layer = layer_of(embed_dim=12, num_heads=2, rotary=how)
    assert layer.rotary == Rotary(50.0, 4, interleaved)
    context = numbers(keys, 12)
    x = context if length == keys else numbers(length, 12, seed=1)
    trace = layer.trace(x, None if length == keys else context, q_offset=q_offset)
    for head in range(2):
        part = slice(6 * head, 6 * head + 6)
        query = (x @ layer.parameters["q_proj.weight"])[:, part]
        key = (context @ layer.parameters["k_proj.weight"])[:, part]
        query = rotated(query, range(start, start + length), **how)
        key = rotated(key, range(keys), **how)
        np.testing.assert_allclose(trace["rot_q"][0, :, head], query, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(trace["rot_k"][0, :, head], key, rtol=1e-11, atol=1e-13)
        scores = np.exp(query @ key.T / math.sqrt(6))
        expected = scores / scores.sum(-1, keepdims=True)
        np.testing.assert_allclose(trace["pattern"][0, head], expected, rtol=1e-11)


def test_rotary_with_a_q_offset_for_each_text() -> None:
    layer = layer_of(embed_dim=4, num_heads=2, rotary=Rotary())
    x, context = numbers(3, 2, 4), numbers(3, 6, 4, seed=1)
    offsets = np.array([0, 4, 2])
    out = layer(x, context, is_causal=True, q_offset=offsets)
    for row, offset in enumerate(offsets):
        one = layer(x[row], context[row], is_causal=True, q_offset=int(offset))
        np.testing.assert_allclose(out[row], one, rtol=1e-12)
    shared = layer(x[0], context, is_causal=True, q_offset=offsets)  # x has no batch axis
    np.testing.assert_allclose(shared[0], out[0], rtol=1e-12)
    assert shared.shape == (3, 2, 4)


# ---- traces --------------------------------------------------------------------------------------


def test_traced_arrays_equal_recomputed_arrays() -> None:
    layer = layer_of(embed_dim=8, num_heads=4, num_kv_heads=2, d_value=3, bias=True)
    x = numbers(2, 5, 8)
    trace = layer.trace(x, is_causal=True)
    assert trace.names() == [
        *("hook_q", "hook_k", "hook_v"),
        *("hook_attn_scores", "hook_pattern", "hook_z", "hook_attn_out"),
    ]
    p = layer.parameters
    shapes = {"q": (2, 5, 4, 2), "k": (2, 5, 2, 2), "v": (2, 5, 2, 3)}
    for name, shape in shapes.items():
        expected = x @ p[f"{name}_proj.weight"] + p[f"{name}_proj.bias"]
        assert trace[name].shape == shape
        np.testing.assert_allclose(trace[name].reshape(expected.shape), expected, rtol=1e-12)
    scores = np.einsum("bqhd,bkhd->bhqk", trace["q"], trace["k"].repeat(2, axis=2)) / math.sqrt(2)
    hidden = np.triu(np.ones((5, 5), bool), 1)
    assert (trace["attn_scores"][..., hidden] == -np.inf).all()
    np.testing.assert_allclose(trace["attn_scores"][..., ~hidden], scores[..., ~hidden], rtol=1e-11)
    powers = np.where(hidden, 0, np.exp(scores))
    pattern = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(trace["pattern"], pattern, rtol=1e-11)
    z = np.einsum("bhqk,bkhd->bqhd", pattern, trace["v"].repeat(2, axis=2))
    np.testing.assert_allclose(trace["z"], z, rtol=1e-11, atol=1e-14)
    out = z.reshape(2, 5, 12) @ p["out_proj.weight"] + p["out_proj.bias"]
    np.testing.assert_allclose(trace["attn_out"], out, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(layer(x, is_causal=True), out, rtol=1e-11, atol=1e-14)


def test_top_k_replaces_the_weights_with_summaries() -> None:
    layer = layer_of(embed_dim=8, num_heads=2)
    x = numbers(2, 6, 8)
    full, short = layer.trace(x, is_causal=True), layer.trace(x, is_causal=True, top_k=3)
    assert "pattern" not in short
    assert "attn_scores" not in short
    pattern = full["pattern"]
    np.testing.assert_allclose(short["top_weights"], -np.sort(-pattern)[..., :3], rtol=1e-11)
    np.testing.assert_array_equal(
        short["top_indices"][..., 2:, :], np.argsort(-pattern)[..., 2:, :3]
    )
    assert (short["top_indices"][..., 0, :] == [0, -1, -1]).all()
    np.testing.assert_allclose(short["received"], pattern.sum(-2), rtol=1e-11)
    visible = np.where(np.isneginf(full["attn_scores"]), 0, np.exp(full["attn_scores"]))
    np.testing.assert_allclose(short["lse"], np.log(visible.sum(-1)), rtol=1e-11)
    np.testing.assert_allclose(short["attn_out"], full["attn_out"], rtol=1e-11, atol=1e-14)


# ---- packed rows ---------------------------------------------------------------------------------

LENGTHS = [3, 0, 5, 1, 4]
CU = np.cumsum([0, *LENGTHS])
MASKS = np.random.default_rng(3).random((5, 2, 5, 5)) < 0.6
MASKS[2, 1] = False


@pytest.mark.parametrize("rotary", [None, {}])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"window": (1, 1), "scale": 0.7},
        {"alibi_slopes": np.array([0.5, 0.25]), "softcap": 5.0, "sinks": np.array([0.1, 2.0])},
        {"is_causal": True, "q_offset": "end"},
        {"attn_mask": MASKS},
        {"attn_mask": MASKS, "is_causal": True, "q_offset": "end", "scale": 0.7},
    ],
)
def test_packed_texts_equal_separate_texts(rotary: Any, options: dict[str, Any]) -> None:
    layer = layer_of(embed_dim=8, num_heads=2, num_kv_heads=1, bias=True, rotary=rotary)
    rows = numbers(13, 8)
    out, lse = layer(rows, cu_lengths=CU, return_lse=True, **options)
    assert (out.shape, lse.shape) == ((13, 8), (13, 2))
    trace = layer.trace(rows, cu_lengths=CU, **options)
    for text, (start, stop) in enumerate(pairwise(CU)):
        length = stop - start
        if not length:
            continue
        if "attn_mask" in options:
            seen = MASKS[text, :, :length, :length]
            options = options | {"attn_mask": seen}
            assert not trace["hook_pattern"][text, :, :length, :length][~seen].any()
        one, one_lse = layer(rows[start:stop], return_lse=True, **options)
        np.testing.assert_allclose(out[start:stop], one, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(lse[start:stop], one_lse.T, rtol=1e-12)
        alone = layer.trace(rows[start:stop], **options)
        for name in alone.names():
            array = trace[name][text]
            if name in ("hook_attn_scores", "hook_pattern"):
                part = array[:, :length, :length]
                padding = [array[:, length:], array[:, :, length:]]
                empty = -np.inf if name == "hook_attn_scores" else 0
            else:
                part, padding, empty = array[:length], [array[length:]], 0
            np.testing.assert_allclose(part, alone[name][0], rtol=1e-11, atol=1e-13)
            assert all((rest == empty).all() for rest in padding)


def test_packed_rotary_uses_the_q_offset_of_each_text() -> None:
    layer = layer_of(embed_dim=4, rotary={}, num_heads=2)
    rows = numbers(13, 4)
    trace = layer.trace(rows, cu_lengths=CU, q_offset=np.array([0, 7, 2, 0, 0]))
    for text, (length, offset) in enumerate(zip(LENGTHS, [0, 7, 2, 0, 0], strict=True)):
        for head in range(2):
            for name, start in (("q", offset), ("k", 0)):
                plain = trace[name][text, :length, head]
                expected = rotated(plain, range(start, start + length))
                found = trace[f"rot_{name}"][text, :length, head]
                np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)


# ---- bad input -----------------------------------------------------------------------------------


def ones(*shape: int) -> Array:
    return np.ones(shape)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((10, 4), "embed_dim is 10 and num_heads is 4: .*d_query"),
        ((0,), "embed_dim is 0"),
        ((8, 2.0), "num_heads is 2.0; pass a whole number"),
        ((8, 0), "num_heads is 0"),
        ((8, 4, {"num_kv_heads": 3}), "num_heads is 4 and num_kv_heads"),
        ((8, 2, {"d_query": 0}), "d_query is 0"),
        ((8, 2, {"d_value": -1}), "d_value is -1"),
        ((8, 2, {"dtype": int}), "dtype is int64: choose float16"),
        ((8, 2, {"rotary": {"bass": 1.0}}), "rotary is {'bass': 1.0}"),
        ((8, 2, {"rotary": True}), "rotary is True; pass Rotary"),
        ((6, 2, {"rotary": {}}), "size 3, whose entries cannot"),
        ((8, 2, {"rotary": {"dims": 6}}), "dims is 6 and x has rows"),
    ],
    ids=str,
)
def test_a_layer_that_cannot_be_made(given: Any, message: str) -> None:
    *sizes, options = given if isinstance(given[-1], dict) else (*given, {})
    with pytest.raises((ValueError, TypeError), match=message):
        SelfAttention(*sizes, **options)


def test_weights_that_do_not_fit() -> None:
    for shapes, options, message in (
        ([(4, 6), (4, 6), (4, 6)], {"num_heads": 4}, r"^self_attention: w_q \(4.*6"),
        ([(4, 6), (4, 5), (4, 6)], {}, r"w_q \(4, 6\) and w_k \(4, 5\): a query head has size 6"),
        ([(4, 6), (4, 6), (4, 5)], {"num_heads": 3}, r"w_v \(4, 5\): there are 3 key heads"),
        ([(4, 6), (4, 6), (5, 6)], {}, r"w_k \(4, 6\) takes .* 4 and w_v \(5, 6\) takes .* size 5"),
        ([(4, 6), (5, 6), (5, 6)], {}, r"w_q \(4, 6\) takes .* 4 and w_k \(5, 6\) takes .* size 5"),
        ([(4, 6), (4, 6), (4, 8), (6, 4)], {}, r"w_v \(4, 8\) and w_o \(6, 4\): .* 8 .* takes 6"),
        ([(4,), (4, 6), (4, 6)], {}, r"w_q \(4,\): a weight must be 2-D"),
        # transposed weights: the error suggests the other layout if the weights fit that layout
        ([(7, 4), (7, 4), (9, 4)], {}, r'w_k \(7, 4\) takes .* size 7 and w_v .*layout="out_in"'),
        ([(7, 4)] * 3, {}, r'x \(3, 4\) has .* 4 and w_q \(7, 4\) takes .* 7; .*layout="out_in"'),
        ([(4, 7)] * 3, {"layout": "out_in"}, r'w_q \(4, 7\) takes .* size 7; .*layout="in_out"'),
        ([(4, 4)] * 3, {"layout": "io"}, 'layout is \'io\'; pass "in_out" or "out_in"'),
    ):
        with failing(shapes, options, message), pytest.raises(ValueError, match=message):
            self_attention(ones(3, 4), *(ones(*shape) for shape in shapes), **options)


EYES = {f"{name}_proj.weight": np.eye(4) for name in "qkv"}
PACKED_ROWS = {"cu_lengths": [0, 3]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: self_attention(ones(3, 4), *[np.eye(4, dtype=int)] * 3), "w_q is int64, .* w_q"),
        # parameters by name
        (lambda: SelfAttention.from_parameters(EYES | {"o": 1.0}), "no parameter o: choose from q"),
        (lambda: SelfAttention.from_parameters({"q_proj.weight": ones(4, 4)}), "k_proj.weight is"),
        (lambda: SelfAttention.from_parameters(EYES | {"out_proj.bias": ones(4)}), "weight is mis"),
        (lambda: SelfAttention.from_parameters(EYES | {"k_proj.bias": ones(3)}), r"\(3,\).* \(4"),
        # inputs
        (lambda: SelfAttention(4)(ones(3, 5)), r"x \(3, 5\) has vectors of size 5 and"),
        (lambda: SelfAttention(4)(ones(4)), r"x has shape \(4,\): it must be"),
        (lambda: SelfAttention(4)("words"), "x is <U5; pass floats or integers"),
        (lambda: SelfAttention(4)(ones(2, 4) > 0), "x is bool"),
        (lambda: SelfAttention(4)(None), "x .* cannot be read as an array"),
        (lambda: MultiHeadAttention(4)(ones(3, 4), ones(3, 5)), r"context \(3, 5\) .* \(4, 4\) ta"),
        (lambda: MultiHeadAttention(4)(ones(2, 3, 4), ones(3, 3, 4)), r"x \(2, 3, 4\) and context"),
        (
            lambda: MultiHeadAttention.from_weights(ones(4, 2), ones(6, 2), ones(6, 2))(ones(3, 4)),
            r"x has vectors of size 4 and w_k \(6, 2\) takes .* 6; pass a context",
        ),
        (lambda: SelfAttention(4)(ones(3, 4), ones(3, 3) > 0), "context is given, .* attn_mask="),
        # options
        (lambda: SelfAttention(4)(ones(3, 4), causal=True), "causal: did you mean is_causal"),
        (lambda: SelfAttention(4)(ones(3, 4), dropout=0.1), "option dropout: choose from"),
        (lambda: MultiHeadAttention(4)(ones(2, 4), ones(3, 4), is_causal=True), "2 .* 3, .*q_offs"),
        (lambda: MultiHeadAttention(4, rotary={})(ones(2, 4), ones(3, 4)), "2 rows .* 3, .*q_offs"),
        (lambda: SelfAttention(4).trace(ones(3, 4), return_weights=True), "does not take return_w"),
        # packed rows
        (lambda: SelfAttention(4)(ones(3, 4), cu_lengths=[0, 2]), "runs from 0 to 2, but x has 3"),
        (lambda: SelfAttention(4)(ones(3, 4), cu_lengths=[1, 3]), "runs from 1 to 3, but x has 3"),
        (lambda: SelfAttention(4)(ones(3, 4), cu_lengths=[0, 2, 1, 3]), "decreases from 2 to 1"),
        (lambda: SelfAttention(4)(ones(3, 4), cu_lengths=[]), r"\(0,\): for B sequences, it must"),
        (lambda: SelfAttention(4)(ones(3, 4), cu_lengths=3), r"cu_lengths has shape \(\)"),
        (lambda: SelfAttention(4)(ones(3, 4), cu_lengths=[0.0, 3.0]), "cu_lengths is float64"),
        (lambda: SelfAttention(4)(ones(1, 3, 4), cu_lengths=[0, 1]), r"x has shape \(1, 3.*4"),
        (lambda: MultiHeadAttention(4)(ones(3, 4), ones(3, 4), **PACKED_ROWS), "with a context"),
        (
            lambda: MultiHeadAttention(4)(ones(1, 3, 4), ones(1, 3, 4), cache=KVCache()),
            "^MultiHeadAttention: a cache cannot be used with context or cu_lengths: omit them",
        ),
        (lambda: SelfAttention(4)(ones(3, 4), **PACKED_ROWS, cache=KVCache()), "a cache cannot be"),
        (lambda: SelfAttention(4)(ones(3, 4), **PACKED_ROWS, key_lengths=3), "key_lengths cannot"),
        (
            lambda: SelfAttention(4)(ones(3, 4), cu_lengths=[0, 1, 3], attn_mask=ones(3, 3) > 0),
            r"attn_mask has shape \(3, 3\) and \(L, S\) is \(2, 2\)",
        ),
        (
            lambda: SelfAttention(4)(ones(3, 4), **PACKED_ROWS, return_weights=True),
            "weights cannot",
        ),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_packed_rows_accept_options_at_their_defaults() -> None:
    layer = layer_of(embed_dim=4)
    rows = numbers(3, 4)
    out = layer(rows, cu_lengths=[0, 3], attn_mask=None, return_weights=False, window=None)
    np.testing.assert_allclose(out, layer(rows), rtol=1e-13)


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": np.ones((2, 2), bool)},
        {"attn_mask": np.ones((3, 3), int)},
        {"softcap": -1.0},
        {"key_lengths": 9},
        {"window": 3},
        {"sinks": [1.0, 2.0, 3.0]},
    ],
)
def test_options_are_checked_before_projections_and_errors_name_the_call(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a projection was computed")

    monkeypatch.setattr("qkv.layers.attention.forward.project", never)
    eye = np.eye(4)
    with pytest.raises((ValueError, TypeError), match=r"^self_attention: "):
        self_attention(ones(3, 4), eye, eye, eye, **options)
    with pytest.raises((ValueError, TypeError), match=r"^SelfAttention: "):
        SelfAttention(4)(ones(3, 4), **options)


def test_zero_one_float_mask_warns_once_at_the_callers_line() -> None:
    with pytest.warns(UserWarning, match=r"^attn_mask .* 0 and 1") as caught:
        SelfAttention(4).trace(ones(3, 4), attn_mask=np.eye(3))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(("name", "size"), [("q_norm", 8), ("k_norm", 16)])
def test_q_norm_and_k_norm_fit_one_head_or_all_heads(name: str, size: int) -> None:
    plain = MultiHeadAttention(16, 4, num_kv_heads=2, seed=0).parameters
    whole = {"q_norm": 16, "k_norm": 8}[name]
    for fine in (4, whole):
        MultiHeadAttention.from_parameters(plain, num_heads=4, **{name: RMSNorm(fine)})
    ending = rf"of size 4 \(one head\) or {whole} \(all {whole // 4} heads\)$"
    with pytest.raises(ValueError, match=rf"{name} takes vectors of size {size}: .* {ending}"):
        MultiHeadAttention.from_parameters(plain, num_heads=4, **{name: RMSNorm(size)})
