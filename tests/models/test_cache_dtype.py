"""Tests of key/value caches in 16 bits: their error, their memory, and what stays unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.attend import KVCache
from qkv.models import load
from qkv.ops.kernel import BACKENDS

from .decoders import gpt2
from .gguf_files import llama_tensors, write_llama
from .small_models import WRITERS, write_small
from .tasks.test_chat import ASKED, then, with_template
from .test_bfloat16 import config_of

HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the largest relative error of rounding
IDS = np.array([[2, 4, 5, 6, 3, 4, 9], [7, 7, 2, 5, 0, 0, 0]])
LENGTHS = np.array([7, 4])


def logits(model: qkv.Model, dtype: str | None) -> np.ndarray:
    """Return the logits (2, 2, V) of two new tokens, after prompts of 7 and 4 tokens."""
    network = model.network
    caches = [KVCache(options.get("window"), dtype=dtype) for options in network.options]
    network.step(IDS, caches, LENGTHS)
    steps = [network.step(np.array(ids), caches)[:, -1] for ids in ([[5], [4]], [[8], [2]])]
    return np.stack([network.logits(x) for x in steps])


def error(model: qkv.Model, dtype: str) -> float:
    """Return the largest error of a logit, relative to the largest logit."""
    expected, found = logits(model, None), logits(model, dtype)
    assert found.dtype == expected.dtype
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", WRITERS)
def test_each_family_is_close_to_itself_with_a_cache_in_float32(
    name: str, dtype: str, tmp_path: Path
) -> None:
    model = load(write_small(tmp_path / "model", config_of(name), spread=0.25))
    assert 0 < error(model, dtype) < 8 * HALVES[dtype]


@pytest.mark.parametrize("chosen", BACKENDS)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["float32", "float64", "int8", "bfloat16"])
def test_each_dtype_of_weights_on_each_backend(
    kind: str, dtype: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_BACKEND", chosen)
    model = load(write_small(tmp_path / "model", config_of("llama"), spread=0.25), dtype=kind)
    # A small change of an activation can change its rounding to int8 or bfloat16.
    assert error(model, dtype) < 8 * HALVES["bfloat16" if kind in ("int8", "bfloat16") else dtype]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [None, "int8"])
def test_a_gguf_file(kind: str | None, dtype: str, tmp_path: Path) -> None:
    blocks = {name: "Q8_0" for name, array in llama_tensors().items() if array.ndim == 2}
    model = load(write_llama(tmp_path / "a.gguf", kinds=blocks), dtype=kind)
    assert 0 < error(model, dtype) < 8 * HALVES[dtype]


def bytes_of(model: qkv.Model) -> int:
    return sum(array.nbytes for cache in model.conversation.caches for array in cache._arrays)


def test_the_caches_of_a_conversation_take_half_the_memory(tmp_path: Path) -> None:
    gpt2(tmp_path / "random", seed=1, eos_token_id=None)
    model = with_template(load(tmp_path / "random", dtype="float32"))
    model.chat(ASKED, max_new_tokens=4)
    whole = bytes_of(model)
    model.cache_dtype = "bfloat16"
    assert model.conversation is None  # its caches have the other dtype
    first = model.chat(ASKED, max_new_tokens=4)
    assert bytes_of(model) * 2 == whole
    # the next call continues with the same caches, and gives the answer of a new conversation
    messages = then(ASKED, first, "sat on the mat")
    caches = model.conversation.caches
    answer = model.chat(messages, max_new_tokens=4)
    assert model.conversation.caches is caches
    model.conversation = None
    assert answer.ids == model.chat(messages, max_new_tokens=4).ids


def test_traces_and_gradients_do_not_change(tmp_path: Path) -> None:
    model = gpt2(tmp_path / "random", seed=1, eos_token_id=None)
    ids = [5, 6, 7, 8]
    expected, gradient = model.trace(ids), model.gradient(ids, of=(3, 3))
    model.cache_dtype = "bfloat16"
    found, again = model.trace(ids), model.gradient(ids, of=(3, 3))
    for name in ("pattern", "resid_post"):
        np.testing.assert_array_equal(found[name, 1], expected[name, 1])
    np.testing.assert_array_equal(again["embed"], gradient["embed"])
    text = model.generate(ids, max_new_tokens=3, trace=True)
    np.testing.assert_array_equal(
        text.trace["resid_post", 1], model.trace(ids + text.ids)["resid_post", 1]
    )


def test_edits_read_activations_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    model = gpt2(tmp_path / "random", seed=1, eos_token_id=None)
    model.cache_dtype = "bfloat16"
    seen = []

    def zero(x: np.ndarray, at: object) -> np.ndarray:
        seen.append(x.dtype)
        return x * 0

    edits = {"blocks.0.attn.hook_v": zero, "blocks.1.attn.hook_pattern": zero}
    edited = model.generate([5, 6, 7], max_new_tokens=3, edit=edits)
    assert set(seen) == {np.dtype(np.float64)}
    model.cache_dtype = None
    assert edited.ids == model.generate([5, 6, 7], max_new_tokens=3, edit=edits).ids


def test_a_value_that_float16_cannot_hold_is_an_error(tmp_path: Path) -> None:
    model = gpt2(tmp_path / "random", seed=1, eos_token_id=None)
    name = "blocks.0.attn.v_proj.bias"
    model.parameters[name] = np.full_like(model.parameters[name], 1e5)
    for dtype in (None, "bfloat16"):
        model.cache_dtype = dtype
        assert len(model.generate([5, 6], max_new_tokens=2).ids) == 2
    model.cache_dtype = "float16"
    with pytest.raises(FloatingPointError, match="logits after 2 tokens are not finite"):
        model.generate([5, 6], max_new_tokens=2)


@pytest.mark.parametrize("value", ["int8", "float32", 16, object()])
def test_other_dtypes_are_an_error(value: object, tmp_path: Path) -> None:
    model = gpt2(tmp_path / "random", seed=1)
    for call in (
        lambda: load(tmp_path / "random", cache_dtype=value),
        lambda: setattr(model, "cache_dtype", value),
    ):
        with pytest.raises(ValueError, match=r"cache_dtype is .*; pass float16, bfloat16 or None$"):
            call()
    assert model.cache_dtype is None


def test_the_argument_of_load_is_the_attribute(tmp_path: Path) -> None:
    gpt2(tmp_path / "random", seed=1)
    model = load(tmp_path / "random", cache_dtype=np.float16)
    assert model.cache_dtype == np.float16
    assert model.with_parameters(model.parameters).cache_dtype == np.float16


@pytest.mark.parametrize("name", ["books", "random", "t5"])
def test_models_without_such_caches_are_refused(name: str, tmp_path: Path) -> None:
    place = write_small(tmp_path / "t5", config_of(name)) if name == "t5" else name
    with pytest.raises(
        ValueError, match=f"load: cache_dtype does not apply to {name}, .*: omit cache_dtype"
    ):
        load(place, cache_dtype="bfloat16")
