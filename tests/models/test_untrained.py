"""Tests of untrained models, and of models with other weights."""

from __future__ import annotations

import numpy as np
import pytest

import qkv
from qkv.models import ModelError
from qkv.models.untrained import fresh_model

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    **{"vocab_size": 500, "n_embd": 64, "n_layer": 8, "n_head": 4, "n_positions": 32},
}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    **{"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4},
    **{"intermediate_size": 128, "max_position_embeddings": 32},
}
GEMMA = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    **{"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 1, "intermediate_size": 32, "head_dim": 8},
}


def spread(model: qkv.Model, name: str) -> float:
    return float(model.parameters[name].std())


@pytest.mark.parametrize("config", [GPT2, BERT], ids=["gpt2", "bert"])
def test_the_first_weights(config) -> None:
    model = fresh_model(config, seed=1)
    into_the_stream = 0.02 / 4 if config is GPT2 else 0.02  # 8 layers add 16 times to the stream
    for name, array in model.parameters.items():
        if name.endswith(("out_proj.weight", "down_proj.weight")) and "blocks" in name:
            assert spread(model, name) == pytest.approx(into_the_stream, rel=0.05)
        elif array.ndim == 2:
            assert spread(model, name) == pytest.approx(0.02, rel=0.15)
        else:
            assert (array == ("norm" in name and name.endswith("weight"))).all()


def test_weights_of_norms_with_an_offset_are_initialized_to_0() -> None:
    model = fresh_model(GEMMA)
    assert not model.parameters["blocks.0.norm1.weight"].any()
    assert not model.parameters["final_norm.weight"].any()


def test_the_seed_decides() -> None:
    one, two, three = (fresh_model(GPT2, seed=seed).parameters for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(one["embed.weight"], three["embed.weight"])
    assert fresh_model(GPT2, dtype=np.float64).parameters["embed.weight"].dtype == np.float64


def test_what_is_refused() -> None:
    with pytest.raises(ModelError, match="an unknown family"):
        fresh_model({"model_type": "perceptron"})
    with pytest.raises(ModelError, match="model_type is t5; pass the config of a text"):
        fresh_model({"model_type": "t5"})
    with pytest.raises(ModelError, match="n_embd is 10 and n_head is 4"):
        fresh_model(GPT2 | {"n_embd": 10})


def test_other_weights() -> None:
    model = fresh_model(GPT2)
    arrays = {name: np.array(array) for name, array in model.parameters.items()}
    arrays["embed.weight"] += 1
    other = model.with_parameters(arrays)
    arrays["embed.weight"] += 1  # `other` has a copy
    assert (other.design, other.config) == (model.design, model.config)
    found = other.parameters["embed.weight"]
    np.testing.assert_array_equal(found, model.parameters["embed.weight"] + 1)
    assert (other([[3]]).logits != model([[3]]).logits).any()
    assert not found.flags.writeable
    half = model.with_parameters(arrays, np.float16)
    assert {array.dtype.name for array in half.parameters.values()} == {"float16"}


def test_other_weights_that_do_not_fit() -> None:
    model = fresh_model(GPT2)
    arrays = dict(model.parameters)
    with pytest.raises(ValueError, match=r"extra is not a parameter"):
        model.with_parameters({**arrays, "extra": np.ones(3)})
    with pytest.raises(ValueError, match=r"has shape \(3,\), but must have \(64,\)"):
        model.with_parameters({**arrays, "final_norm.bias": np.ones(3)})
    del arrays["embed.weight"]
    with pytest.raises(ValueError, match=r"embed.weight is missing"):
        model.with_parameters(arrays)
