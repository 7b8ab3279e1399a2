"""Tests of rotary positions: keys of both config formats, refused values, and rotation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from qkv import KVCache, apply_rotary
from qkv.layers import MultiHeadAttention, Rotary
from qkv.models import ModelError
from qkv.models.families._rope import OlderKeys, RotaryDefaults, read_rotaries, read_rotary
from qkv.models.files.config import Config
from qkv.models.network._rope_scaling import Dynamic, Linear, Llama3, LongRope, Proportional, Yarn
from rows import failing

RNG = np.random.default_rng(5)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DEFAULT, HALF = {"rope_type": "default"}, {"partial_rotary_factor": 0.5}
LINEAR = {"type": "linear", "factor": 2.0}
LONG = {"type": "longrope", "long_factor": [1, 2, 3, 4]}
FULL = "full_attention"
KINDS = {
    "full_attention": OlderKeys("global_rope_theta", 160000.0),
    "sliding_attention": OlderKeys("local_rope_theta", 10000.0, scaled=False),
}


def config_of(**values: Any) -> Config:
    return Config({"max_position_embeddings": 64, **values}, "config.json")


def read(size: int = 8, **values: Any) -> Rotary:
    config = config_of(**values)
    rotary = read_rotary(config, size)
    assert set(values) <= config.used
    return rotary


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_config_keys_of_each_rope_scaling(key: str) -> None:
    def found(**table: Any) -> Any:
        return read(**{key: table}).scaling

    assert found(rope_type="default") is None
    assert found(type="linear", factor=2) == Linear(2.0)
    assert found(rope_type="dynamic", type="dynamic", factor=2.0) == Dynamic(2.0, 64)
    assert found(**LLAMA3) == Llama3(8.0, 1.0, 4.0, 64)
    assert found(**LLAMA3, original_max_position_embeddings=32).limit == 32
    assert found(rope_type="proportional", partial_rotary_factor=0.25) == Proportional(0.25, 1.0)
    assert found(rope_type="proportional") == Proportional(1.0, 1.0)
    lists = {"short_factor": [1, 2, 3, 4], "long_factor": [5, 6, 7, 8.5], "factor": 16.0}
    assert found(rope_type="longrope", **lists, original_max_position_embeddings=4) == LongRope(
        (1, 2, 3, 4), (5, 6, 7, 8.5), 4, math.sqrt(3)
    )
    yarn = {"rope_type": "yarn", "factor": math.e**2, "original_max_position_embeddings": 16}
    assert found(**yarn) == Yarn(math.e**2, 16, 1.2)
    assert found(**yarn, finetuned=True, beta_fast=0, beta_slow=None) == Yarn(math.e**2, 16, 1.2)
    assert found(**yarn, mscale=5.0, mscale_all_dim=10.0).scale == pytest.approx(2 / 3)
    assert found(**yarn, mscale=5.0).scale == pytest.approx(1.2)
    assert found(**yarn, attention_factor=0.5, truncate=False).scale == 0.5
    assert found(**{**yarn, "factor": None}).factor == 4  # 64 / 16
    assert found(**{**yarn, "factor": 0.5}).scale == 1
    assert read(**{key: yarn}, original_max_position_embeddings=8).scaling.limit == 8  # type: ignore[union-attr]


def test_where_the_base_comes_from() -> None:
    assert read().base == 10000
    assert read(rope_theta=5e5, rope_scaling=None).base == 5e5
    assert read(rope_theta=7, rope_parameters={"rope_type": "default", "rope_theta": 9}).base == 9
    assert read(rope_theta=7, rope_parameters={"rope_type": "default"}).base == 7
    assert read_rotary(config_of(), 8, RotaryDefaults(3.0)).base == 3
    defaults = RotaryDefaults(table={"rope_type": "linear", "factor": 3})
    for values in ({}, {"rope_scaling": None}, {"rope_parameters": {}}):
        found = read_rotary(config_of(**values), 8, defaults)
        assert found.scaling == Linear(3.0)
    given = config_of(rope_parameters={"rope_type": "default"})
    assert read_rotary(given, 8, defaults).scaling is None


def test_partial_rotary_factor_rotates_part_of_each_head() -> None:
    def found(part: Any) -> Rotary:
        return read_rotary(config_of(partial_rotary_factor=part), 8, RotaryDefaults(partial=1.0))

    assert [found(part).dims for part in (None, 1, 0.5, 0.3)] == [None, None, 4, 2]
    assert read_rotary(config_of(), 16, RotaryDefaults(partial=0.25)) == Rotary(dims=4)
    assert list(found(0.5).rotation(np.zeros((1, 8)), np.zeros(1), 1)[0].shape) == [1, 4]
    scaling = {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}
    given = config_of(partial_rotary_factor=0.5, rope_scaling=scaling)
    given.defaults = {"original_max_position_embeddings": 32}
    rotary = read_rotary(given, 8, RotaryDefaults(partial=1.0))
    assert rotary == Rotary(dims=4, scaling=LongRope((1, 2), (3, 4), 32, math.sqrt(1.2)))
    for part in (0.1, 0.4, 1.25):  # 0, 3 and 10 of 8 numbers
        with pytest.raises(ModelError, match=f"partial_rotary_factor is {part}"):
            found(part)


def test_both_keys_must_agree() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    assert read(rope_scaling=linear, rope_parameters=linear).scaling == Linear(2.0)
    with pytest.raises(ModelError, match="rope_scaling and rope_parameters disagree"):
        read(rope_scaling=linear, rope_parameters={**linear, "factor": 4.0})


def test_refused() -> None:
    for values, message in (
        ({"rope_parameters": {"rope_type": "mrope"}}, "rope_parameters: rope_type is 'mrope'"),
        ({"rope_scaling": {"type": "axial"}}, "rope_scaling: type is 'axial', which qkv does not"),
        ({"rope_scaling": {"type": "su", "rope_type": "longrope"}}, "rope_type is 'longrope' and"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]; it must be a JSON object"),
        ({"rope_parameters": DEFAULT | {"factor": 2.0}}, "factor is 2.0, which qkv"),
        (
            {"rope_scaling": LINEAR | {"beta_fast": 3}},
            "beta_fast is 3, which .* with type 'linear'",
        ),
        ({"rope_parameters": {FULL: DEFAULT}}, f"{FULL} is {DEFAULT}, which qkv does not"),
        ({"rope_parameters": DEFAULT | HALF}, "partial_rotary_factor is 0.5"),
        (
            {"rope_scaling": {"type": "proportional", "partial_rotary_factor": 1.5}},
            "partial_rotary_factor is 1.5: it must be at most 1",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0; it must be a number"),
        ({"rope_scaling": {"type": "dynamic", "factor": 1e300}}, r"factor is 1e\+300; it"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_theta": 1}, "no finite angles"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor is 4 and"),
        (
            {"rope_scaling": LONG | {"short_factor": [1, 2]}},
            r"short_factor is \[1, 2\]; it must be a list of 4 numbers",
        ),
        (
            {"rope_scaling": LONG | {"short_factor": [1, 2, 0, 4]}},
            r"short_factor\[2\] is 0; it must be a number above 0",
        ),
    ):
        with failing(values, message), pytest.raises(ModelError, match=message):
            read(**values)


def test_refused_sizes() -> None:
    for size in (7, 2**17):
        with pytest.raises(ModelError, match=f"a head has {size} dimensions"):
            read(size)
    with pytest.raises(ModelError, match=r"a head has 2 dimensions, .* needs at least 4"):
        read(2, rope_scaling={"type": "dynamic", "factor": 2.0})
    with pytest.raises(ModelError, match="rope_theta is 1e-320; it must be a number above 0"):
        read(512, rope_theta=1e-320)


def by_layer(**values: Any) -> dict[str, Rotary]:
    config = config_of(**values)
    found = read_rotaries(config, 8, KINDS)
    assert set(values) <= config.used
    return found


def test_one_dict_for_each_kind_of_layer() -> None:
    plain = {"full_attention": Rotary(160000.0), "sliding_attention": Rotary(10000.0)}
    assert by_layer() == plain
    assert by_layer(rope_parameters={"full_attention": None}) == plain
    found = by_layer(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default"},
        },
        local_rope_theta=500.0,
    )
    assert found == {
        "full_attention": Rotary(1e6, scaling=Linear(8.0)),
        "sliding_attention": Rotary(500.0),
    }
    older = by_layer(global_rope_theta=9.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert older == {
        "full_attention": Rotary(9.0, scaling=Linear(2.0)),
        "sliding_attention": Rotary(10000.0),
    }


def test_refused_by_layer() -> None:
    for table, message in (
        ({"rope_type": "default"}, "rope_parameters has 'rope_type', which qkv does not support"),
        ({"full_attention": 3}, "rope_parameters: full_attention is 3; it must be a JSON object"),
        ({"full_attention": {"rope_type": "x"}}, "rope_parameters: full_attention: rope_type.*'x'"),
    ):
        with failing(table, message), pytest.raises(ModelError, match=message):
            by_layer(rope_parameters=table)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [None, 4])
def test_rotate_equals_apply_rotary(interleaved: bool, dims: int | None) -> None:
    """`rotate` equals `apply_rotary`, whatever positions and types earlier calls had."""
    rotary = Rotary(50.0, dims, interleaved)
    places = [np.arange(5), np.arange(5) + 2, np.arange(5).reshape(1, 1, 5), np.arange(5)]
    for positions in places:
        for dtype in (np.float32, np.float64, np.float16, np.float32):
            x = RNG.standard_normal((2, 3, 5, 8)).astype(dtype)
            expected = apply_rotary(x, positions, base=50.0, dims=dims, interleaved=interleaved)
            for _ in range(2):
                found = rotary.rotate(x, positions, 5)
                np.testing.assert_array_equal(found, expected)
                assert found.dtype == dtype


def test_keys_in_a_cache_stay_as_they_were_turned() -> None:
    rotary = Rotary(16.0, scaling=Dynamic(2.0, 4))
    layer = MultiHeadAttention(8, rotary=rotary, seed=0, dtype=np.float64)
    x = RNG.standard_normal((1, 6, 8))
    whole = layer(x, is_causal=True)
    cache = KVCache()
    steps = [layer(x[:, :3], cache=cache, is_causal=True)]
    steps += [layer(x[:, at : at + 1], cache=cache, is_causal=True) for at in (3, 4, 5)]
    apart = np.concatenate(steps, axis=1)
    within = layer(x[:, :4], is_causal=True)
    np.testing.assert_allclose(apart[:, :4], within, rtol=1e-12)
    # the limit is 4 tokens: the key at position 4 is rotated for a text of 5 tokens, and the key
    # at position 5 for a text of 6 tokens
    query, key, value = (x @ layer.parameters[f"{name}_proj.weight"] for name in "qkv")
    turned = [
        rotary.rotate(key[:, position], np.array([position]), max(4, position + 1))
        for position in range(6)
    ]
    scores = rotary.rotate(query[:, 5], np.array([5]), 6) @ np.concatenate(turned).T / math.sqrt(8)
    weights = np.exp(scores - scores.max())
    expected = weights / weights.sum() @ value[0] @ layer.parameters["out_proj.weight"]
    np.testing.assert_allclose(apart[:, 5], expected, rtol=1e-12)
    assert np.abs(apart[:, 5] - whole[:, 5]).max() > 1e-3
