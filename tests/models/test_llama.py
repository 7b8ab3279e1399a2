"""Configs of Llama and its followers: what they give, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.models import ModelError
from qkv.models.config import Config
from qkv.models.design import Design
from qkv.models.families import FAMILIES

SIZES = {
    "vocab_size": 30,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
FOLLOWERS = ["llama", "mistral", "qwen2", "qwen3"]
SLIDING = ["full_attention", "sliding_attention", "full_attention"]


def design(name: str, **values: Any) -> Design:
    """The design of a small model; every key that is given must have been read."""
    config = Config({**SIZES, **values}, "config.json")
    found = FAMILIES[name].design(config)
    assert set(values) <= config.used
    assert isinstance(found, Design)
    return found


def windows(name: str, **values: Any) -> list[Any]:
    return [layer.options.get("window") for layer in design(name, **values).layers]


def test_sizes_of_heads() -> None:
    for name, size in (("llama", 4), ("mistral", 4), ("qwen2", 4), ("qwen3", 128)):
        assert {layer.head_size for layer in design(name).layers} == {size}
        assert {layer.head_size for layer in design(name, head_dim=None).layers} == {4}
        assert {layer.head_size for layer in design(name, head_dim=10).layers} == {10}
        assert {layer.num_kv_heads for layer in design(name).layers} == {2}
        assert {layer.num_kv_heads for layer in design(name, num_key_value_heads=None).layers} == {
            6
        }
    # a size of its own need not be a share of the vectors
    assert design("llama", hidden_size=25, head_dim=4).layers[0].head_size == 4


def test_all_layers_turn_with_one_table() -> None:
    for name in FOLLOWERS:
        assert len({id(layer.rotary) for layer in design(name).layers}) == 1


def test_windows() -> None:
    assert windows("mistral", sliding_window=5) == [(4, 0)] * 3
    assert windows("mistral", sliding_window=None) == [None] * 3
    assert windows("mistral") == [(4095, 0)] * 3
    same = {"layer_types": ["sliding_attention"] * 3}
    assert windows("mistral", sliding_window=5, **same) == [(4, 0)] * 3
    for name in ("qwen2", "qwen3"):
        assert windows(name, sliding_window=5, max_window_layers=1) == [None] * 3
        on = {"use_sliding_window": True, "sliding_window": 5}
        assert windows(name, **on) == [None] * 3
        assert windows(name, **on, max_window_layers=2) == [None, None, (4, 0)]
        assert windows(name, **on, max_window_layers=0) == [(4, 0)] * 3
        assert windows(name, **on, max_window_layers=0, layer_types=SLIDING) == [None, (4, 0), None]


def test_biases() -> None:
    def biases(name: str, **values: Any) -> tuple[bool, bool, bool]:
        found = design(name, **values)
        return found.qkv_bias, found.out_bias, found.mlp_bias

    assert biases("llama") == biases("mistral") == biases("qwen3") == (False, False, False)
    assert biases("llama", attention_bias=True) == (True, True, False)
    assert biases("llama", mlp_bias=True) == (False, False, True)
    assert biases("qwen2") == (True, False, False)
    assert biases("qwen3", attention_bias=True) == (True, True, False)


def test_only_a_base_that_grows_has_no_limit() -> None:
    for name in FOLLOWERS:
        assert design(name).max_length == 16
        scaling = {"rope_type": "dynamic", "factor": 2.0}
        assert design(name, rope_scaling=scaling).max_length is None
        assert design(name, rope_parameters={**scaling, "rope_type": "linear"}).max_length == 16


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_key_value_heads": 4}, "num_attention_heads is 6 and num_key_value_heads is 4"),
        ({"num_attention_heads": 5, "head_dim": None}, "hidden_size is 24 and num_attention_head"),
        ({"head_dim": 5}, "a head has 5 numbers"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"rope_scaling": {"type": "mrope"}}, "type is 'mrope'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ],
)
def test_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        design(name, **values)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("llama", {"pretraining_tp": 2}, "pretraining_tp is 2"),
        ("mistral", {"layer_types": SLIDING}, "all layers of a mistral are alike"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen2", {"layer_types": SLIDING}, "there is no window"),
        ("qwen3", {"layer_types": SLIDING[:2]}, "a list of 3"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types has 'chunked_attent"),
        ("qwen3", {"layer_types": "full_attention"}, "a list of 3"),
    ],
)
def test_refused_by_one(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        design(name, **values)
