"""Tests of the backward pass of each layer, against central differences in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from activations import FORMULAS
from qkv.attend import KVCache
from qkv.layers import (
    MLP,
    Block,
    Experts,
    GatedExperts,
    LayerNorm,
    LayerScale,
    MultiHeadAttention,
    RMSNorm,
    SelfAttention,
)
from qkv.layers._convolution import Convolution
from qkv.layers.experts import gated_expert_shapes
from qkv.layers.norm import HeadNorms
from qkv.models.network._embedding import Embedding
from qkv.models.network._relative_bias import Buckets
from qkv.models.network.head import Head
from qkv.trace.recorder import GradientRecorder

STEP = 1e-5
CU = np.array([0, 3, 3, 7, 8])


def slope(function: Any, array: Any, rng: Any) -> tuple[float, Any]:
    """Return the slope of a sum when `array` moves in a random direction, and the direction."""
    way = rng.standard_normal(array.shape)
    before = array.copy()
    sums = []
    for sign in (1, -1):
        array[...] = before + sign * STEP * way
        sums.append(function())
    array[...] = before
    return (sums[0] - sums[1]) / (2 * STEP), way


def check(layer: Any, call: Any, inputs: dict[str, Any], seed: int = 0) -> Any:
    """Check every gradient of `layer.backward`; the keys of `inputs` are names in `Gradient`.

    `call` runs the layer, or its `training_forward`, on the inputs.
    """
    rng = np.random.default_rng(seed)
    out, saved = call(layer.training_forward)
    np.testing.assert_array_equal(out, call(layer))
    up = rng.standard_normal(out.shape)

    def total() -> float:
        return float((up * call(layer)).sum())

    found = layer.backward(up, saved)
    grads = {"x": found.x, "context": found.context, **found.options, **found.parameters}
    grads = {name: grad for name, grad in grads.items() if grad is not None}
    assert grads.keys() == inputs.keys()
    for name, array in inputs.items():
        expected, way = slope(total, array, rng)
        assert grads[name].shape == array.shape, name
        assert (grads[name] * way).sum() == pytest.approx(expected, rel=1e-6, abs=1e-7), name
    alone = layer.backward(up, saved, record=GradientRecorder(lambda name: False, {}, {}))
    assert not alone.parameters
    np.testing.assert_array_equal(alone.x, found.x)
    return found


def numbers(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def scattered(layer: Any) -> Any:
    """Change the biases and norms of a float64 layer, so that they are not 0 or 1."""
    for number, array in enumerate(layer.parameters.values()):
        if array.ndim == 1:
            array += 0.3 * numbers(*array.shape, seed=number)
    return layer


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 0, 6), (2, 3, 6)])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "RMSNorm with an offset"])
def test_norms(kind: str, shape: tuple[int, ...]) -> None:
    norm = scattered((LayerNorm if kind == "LayerNorm" else RMSNorm)(6, dtype=np.float64))
    if kind.endswith("offset"):
        norm = RMSNorm.from_parameters({"weight": numbers(6)}, offset=1.0)
    x = numbers(*shape)
    check(norm, lambda run: run(x), {"x": x, **norm.parameters})


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("bias", [False, True])
def test_mlp(gated: bool, activation: str, bias: bool) -> None:
    mlp = MLP(4, 10, activation=activation, gated=gated, bias=bias, seed=0, dtype=np.float64)
    scattered(mlp)
    x = numbers(2, 3, 4)
    check(mlp, lambda run: run(x), {"x": x, **mlp.parameters})


def expert_parameters(dtype: Any = np.float64) -> dict[str, Any]:
    shapes = {"gate_up": (4, 6, 10), "gate_up_bias": (4, 10), "down": (4, 5, 6)}
    shapes = {f"experts.{name}": shape for name, shape in shapes.items()}
    shapes |= {"experts.down_bias": (4, 6), "router_proj.weight": (6, 4), "router_proj.bias": (4,)}
    return {name: numbers(*shape).astype(dtype) for name, shape in shapes.items()}


def test_experts() -> None:
    layer = Experts(expert_parameters(), top_k=2, limit=1.0)  # some numbers are beyond the limit
    x = numbers(2, 5, 6)
    check(layer, lambda run: run(x), {"x": x, **layer.parameters})


@pytest.mark.parametrize("normalized", [True, False])
def test_gated_experts(normalized: bool) -> None:
    shapes = dict(gated_expert_shapes(6, 5, 4))
    parameters = {name: numbers(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}
    layer = GatedExperts(parameters, top_k=2, activation="gelu", normalized=normalized)
    x = numbers(2, 5, 6)
    check(layer, lambda run: run(x), {"x": x, **layer.parameters})


def test_experts_of_float32_with_wide_vectors() -> None:
    narrow = expert_parameters(np.float32)
    wide = {name: array.astype(np.float64) for name, array in narrow.items()}
    x, up, found = numbers(5, 6), numbers(5, 6, seed=3), []
    for parameters in (narrow, wide):
        layer = Experts(parameters, top_k=2)
        _, saved = layer.training_forward(x)
        found.append(layer.backward(up, saved).parameters)
    for name, expected in found[1].items():
        assert found[0][name].dtype == np.float64, name
        np.testing.assert_allclose(found[0][name], expected, rtol=1e-12, atol=1e-14)


BIAS = numbers(1, 4, 5, 5, seed=5)
MASK = np.tril(np.ones((5, 5), bool))
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window and softcap": {"window": (2, 1), "softcap": 1.5},
    "scale and slopes": {"scale": 0.3, "alibi_slopes": np.array([0.1, 0.2, 0.4, 0.8])},
    "bias": {"bias": BIAS},
    "mask": {"attn_mask": MASK},
    "sinks": {"sinks": np.array([0.5, -0.5, 1.0, 0.0])},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention(options: dict[str, Any], packed: bool, kv_heads: int) -> None:
    layer = MultiHeadAttention(
        8, 4, num_kv_heads=kv_heads, d_query=6, d_value=3, bias=True, seed=0, dtype=np.float64
    )
    scattered(layer)
    options = dict(options)
    x = numbers(8, 8) if packed else numbers(2, 5, 8)
    if packed:
        options |= {"cu_lengths": CU}
        if "bias" in options:
            options["bias"] = BIAS[..., :4, :4].copy()
        if "attn_mask" in options:
            options["attn_mask"] = MASK[:4, :4]
    learned = {n: options[n] for n in ("bias", "sinks", "alibi_slopes") if n in options}
    check(
        layer,
        lambda run: run(x, **options),
        {"x": x, **learned, **layer.parameters},
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_attention_with_rotary_and_query_and_key_norms(
    packed: bool, interleaved: bool, whole: bool
) -> None:
    plain = MultiHeadAttention(8, 2, d_query=6, seed=0, d_value=4, dtype=np.float64)
    norms = {
        name: scattered(kind(12 if whole else 6, dtype=np.float64))
        for name, kind in (("q_norm", RMSNorm), ("k_norm", LayerNorm))
    }
    layer = MultiHeadAttention.from_parameters(
        plain.parameters,
        num_heads=2,
        rotary={"base": 50.0, "dims": 4, "interleaved": interleaved},
        **norms,
    )
    x = numbers(8, 8) if packed else numbers(2, 4, 8)
    offset = np.array([0, 1, 2, 5]) if packed else np.array([1, 3])
    options = {"cu_lengths": CU, "q_offset": offset} if packed else {"q_offset": offset}
    own = {f"{n}.{name}": a for n, norm in norms.items() for name, a in norm.parameters.items()}
    check(
        layer,
        lambda run: run(x, is_causal=True, **options),
        {"x": x, **own, **layer.parameters},
    )


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
@pytest.mark.parametrize(("groups", "size"), [(1, 3), (2, 5)])
def test_a_convolution_in_a_block(activation: str, groups: int, size: int) -> None:
    weight = {"weight": numbers(4, 4 // groups, size), "bias": numbers(4, seed=1)}
    conv, norm = Convolution(weight, activation), scattered(LayerNorm(4, dtype=np.float64))
    layer, mlp = (kind(4, 2, seed=0, dtype=np.float64) for kind in (MultiHeadAttention, MLP))
    norms = [scattered(LayerNorm(4, dtype=np.float64)) for _ in range(2)]
    block = Block(layer, norms[0], mlp, norms[1], post_norm=True, conv=conv, conv_norm=norm)
    x, cu = numbers(8, 4, seed=3), np.array([0, 3, 4, 8])
    check(block, lambda run: run(x, cu_lengths=cu), {"x": x, **block.parameters})
    alone = np.concatenate([block(x[a:b]) for a, b in itertools.pairwise(cu)])
    np.testing.assert_allclose(block(x, cu_lengths=cu), alone, atol=1e-14)


def test_clipped_heads_with_their_own_norms() -> None:
    """Some of the queries, keys and values are limited, and each head has its own norm."""
    plain = MultiHeadAttention(8, 2, d_query=6, seed=0, dtype=np.float64)
    norms = {
        f"{name}_norm": HeadNorms([scattered(LayerNorm(6, dtype=np.float64)) for _ in range(2)])
        for name in "qk"
    }
    layer = MultiHeadAttention.from_parameters(plain.parameters, num_heads=2, clip=0.8, **norms)
    x = numbers(2, 4, 8)
    limited = np.abs(x @ plain.parameters["q_proj.weight"]) > 0.8
    assert 0 < limited.sum() < limited.size
    own = {f"{n}.{name}": a for n, norm in norms.items() for name, a in norm.parameters.items()}
    own["q_norm.1.weight"] *= 2
    check(layer, lambda run: run(x, is_causal=True), {"x": x, **own, **layer.parameters})


@pytest.mark.parametrize("shared", [False, True])
def test_cross_attention(shared: bool) -> None:
    """A context without a batch axis belongs to all rows, and its gradient is a sum over rows."""
    layer = MultiHeadAttention(6, 2, seed=0, dtype=np.float64, out_proj=False)
    x, context = numbers(3, 4, 6), numbers(*(() if shared else (3,)), 5, 6, seed=2)
    check(
        layer,
        lambda run: run(x, context, key_lengths=4),
        {"x": x, "context": context, **layer.parameters},
    )


@pytest.mark.parametrize(
    "norms",
    [
        *("after", "before", "both", "behind", "no first", "parallel", "one norm for both"),
        *("scaled", "scaled by a constant", "without parameters"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_block(norms: str, packed: bool) -> None:
    parts = [scattered(LayerNorm(8, dtype=np.float64)) for _ in range(4)]
    if norms == "without parameters":
        parts = [LayerNorm(8, affine=False)] * 4
    behind = norms in ("both", "behind")
    out_norms = {"out_norm1": parts[2], "out_norm2": parts[3]} if behind else {}
    if norms == "scaled":
        weights = (numbers(8, seed=seed) for seed in (8, 9))
        scales = (LayerScale.from_parameters({"weight": weight}) for weight in weights)
        out_norms = dict(zip(("scale1", "scale2"), scales, strict=True))
    if norms == "scaled by a constant":
        out_norms = {"scale1": LayerScale.constant(8, 0.3), "scale2": LayerScale.constant(8, -2.0)}
    block = Block(
        MultiHeadAttention(8, 2, seed=0, dtype=np.float64),
        None if norms in ("no first", "behind") else parts[0],
        MLP(8, 12, seed=1, dtype=np.float64),
        None if norms in ("one norm for both", "behind") else parts[1],
        post_norm=norms == "after",
        parallel=norms in ("parallel", "one norm for both"),
        **out_norms,
    )
    x = numbers(8, 8) if packed else numbers(2, 4, 8)
    options = {"cu_lengths": CU} if packed else {}
    check(
        block,
        lambda run: run(x, is_causal=True, **options),
        {"x": x, **block.parameters},
    )


def test_buckets() -> None:
    bias = Buckets(8, 6).with_table(numbers(8, 3))
    up, way = numbers(2, 3, 4, 7, seed=2), numbers(8, 3, seed=3)
    expected = (
        up * Buckets(8, 6).with_table(way)(4, 7, 2)
    ).sum()  # the bias is linear in the table
    assert (bias.backward(up, 4, 7, 2) * way).sum() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("segments", [None, np.array([0, 1, 1, 0])])
def test_embedding(segments: np.ndarray | None, narrow: bool) -> None:
    norm = scattered(LayerNorm(6, dtype=np.float64))
    tables = {"embed.weight": numbers(5, 6), "pos_embed.weight": numbers(7, 6, seed=2)}
    tables["token_type_embed.weight"] = numbers(2, 6, seed=3)
    table, positions, kinds = tables.values()
    projection = {}
    if narrow:
        projection["embed_proj.weight"] = numbers(6, 9, seed=5)
        projection["embed_proj.bias"] = numbers(9, seed=6)
    embedding = Embedding(
        table,
        positions=positions,
        token_types=kinds,
        norm=norm,
        projection=projection,
        scale=3.0,
        first_position=2,
    )
    ids, places = np.array([4, 1, 4, 0]), np.array([0, 1, 2, 0])
    up = numbers(4, 9 if narrow else 6, seed=4)
    given = {} if segments is None else {"segments": segments}
    _, saved = embedding(ids, places, **given)
    found = embedding.backward(up, saved)
    rng = np.random.default_rng(0)
    tables |= {f"embed_norm.{name}": array for name, array in norm.parameters.items()}
    tables |= projection
    assert found.keys() == tables.keys()
    for name, array in tables.items():
        expected, way = slope(lambda: (up * embedding(ids, places, **given)[0]).sum(), array, rng)
        assert (found[name] * way).sum() == pytest.approx(expected, rel=1e-6), name
    assert not found["embed.weight"][2:4].any()  # tokens that do not occur


@pytest.mark.parametrize("pool", [None, "cls", "lasttoken", "mean", "cls and mean"])
@pytest.mark.parametrize("activation", ["tanh", "gelu", None])
@pytest.mark.parametrize("width", [None, 4])
def test_head(pool: Any, activation: str | None, width: int | None) -> None:
    head = Head(
        5,
        bias=True,
        pool=pool,
        dense=True,
        width=width,
        activation=activation,
        norm=True,
        scale=2.0,
        softcap=3.0,
    )
    parameters = {name: numbers(*shape, seed=7) for name, shape in head.shapes(6)}
    built = head.build(
        parameters,
        norm=lambda own, name: LayerNorm.from_parameters(
            {part: own[f"{name}.{part}"] for part in ("weight", "bias")}
        ),
    )
    x = numbers(8, 6)
    check(built, lambda run: run(x, CU), {"x": x, **parameters})


def test_a_head_that_reads_the_last_token_before_padding_tokens() -> None:
    head = Head(5, pool="lasttoken", padding=9)
    parameters = {name: numbers(*shape, seed=7) for name, shape in head.shapes(6)}
    built, x = head.build(parameters, norm=lambda own, name: None), numbers(8, 6)
    ids = np.array([4, 9, 9, 9, 3, 9, 2, 9])
    check(built, lambda run: run(x, CU, ids), {"x": x, **parameters})
    rows = np.stack([x[0], np.zeros(6), x[6], x[7]])  # a text without tokens gives zeros
    expected = rows @ parameters["head.out_proj.weight"]
    np.testing.assert_allclose(built(x, CU, ids), expected, rtol=1e-12)


def test_unsupported_training_calls_are_refused() -> None:
    layer = MultiHeadAttention(4, seed=0)
    x = np.ones((1, 3, 4), np.float32)
    for part in (layer, Block(layer, LayerNorm(4), None, None, post_norm=False)):
        with pytest.raises(TypeError, match="no option cache"):
            part.training_forward(x, cache=KVCache())
    with pytest.raises(TypeError, match="return_weights is not an option of this call"):
        layer.training_forward(x, return_weights=True)
    with pytest.raises(ValueError, match="context is given, but self-attention does not take one"):
        SelfAttention(4, seed=0).training_forward(x, x)
    _, saved = layer.training_forward(x)
    with pytest.raises(ValueError, match=r"grad has shape \(3, 4\) and the result has \(1, 3, 4\)"):
        layer.backward(x[0], saved)
    for half in (LayerNorm(4, dtype="bfloat16"), MLP(4, 8, dtype="bfloat16")):
        kind = next(iter(half.parameters.values())).dtype
        with pytest.raises(TypeError, match="computes in bfloat16: load the model"):
            half.training_forward(np.ones((3, 4), kind))
