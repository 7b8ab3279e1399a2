"""Tests that fast steps for single tokens give the same bits as the blocks."""

from __future__ import annotations

import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from qkv.attend import KVCache
from qkv.layers import RMSNorm, Rotary
from qkv.layers.stepping import steps_for
from qkv.models.network.batch import PackedIds
from qkv.models.network.design import Attention, Design
from qkv.models.network.head import Head
from qkv.models.network.transformer import Transformer
from qkv.ops.kernel import compiled, get_num_threads, set_num_threads, variant
from qkv.ops.packing import frozen
from qkv.trace.recorder import pad_rows

if compiled is None:
    pytest.skip("the kernel was not built, and steps need it", allow_module_level=True)

PLAIN = {
    "vocabulary": 40,
    "dim": 36,
    "hidden": 50,
    "activation": "silu",
    "eps": 1e-5,
    "rms": True,
    "gated": True,
    "head": Head(40, tied=True),
}
DESIGNS: dict[str, dict[str, Any]] = {
    "as Llama": {"qkv_bias": False, "out_bias": False, "mlp_bias": False},
    "as GPT-2": {"rms": False, "gated": False, "activation": "gelu_tanh", "positions": 64},
    "norms after": {"norms": "after", "rms": False, "final_norm": False},
    "norms on both sides, weights from 1": {"norms": "both", "norm_offset": 1.0},
    "norms of outputs": {"norms": "behind"},
    "no first norm": {"first_norm": False},
    "in parallel": {"parallel": True, "rms": False, "gated": False, "activation": "gelu"},
    "in parallel, one norm for both": {"parallel": True, "mlp_norm": False},
}


class Slower:
    """A scaling that depends on the length of the text."""

    def speeds(self, base: float, dims: int, length: int) -> tuple[np.ndarray, float]:
        return np.arange(1, dims // 2 + 1) / length, 1.25


ATTENTIONS: dict[str, dict[str, Any]] = {
    "rotary": {"rotary": Rotary(base=100.0)},
    "in pairs, in part": {"rotary": Rotary(dims=8, interleaved=True)},
    "in part": {"rotary": Rotary(dims=8)},
    "scaled": {"rotary": Rotary(scaling=Slower())},
    "ALiBi": {"alibi": True},
    "sinks": {"sinks": True, "rotary": Rotary()},
    "norms of all heads at once": {"qk_norm": "width", "rotary": Rotary(base=50.0)},
    "norms of heads": {"qk_norm": "head", "rotary": Rotary()},
}
OPTIONS: list[dict[str, Any]] = [{}, {"window": (4, 0), "softcap": 5.0, "scale": 0.5}]
# With the second sizes, query, key and value are one product, and so are gate and up (see `built`).
SIZES = {"one product for each": (6, 2, 12), "one for all": (4, 2, 16)}
TYPES = [np.float32, bfloat16]
# Each pair of design and attention occurs twice. The second time, the sizes, the options and the
# type all differ from the first time. This quarter of all cases contains every combination of any
# three of the five parameters. Half of these cases do not have the mark `attack`. These cases
# contain every combination of any two of the five parameters.
TOGETHER = [
    pytest.param(
        *(size ^ other, design, attention, option ^ other, kind ^ other),
        marks=[] if other == (number >> 5 ^ number >> 2) & 1 else pytest.mark.attack,
    )
    for number, (design, attention) in enumerate(product(DESIGNS, ATTENTIONS))
    for size, option, kind in [(0, (number ^ number >> 3) & 1, (number >> 1 ^ number >> 4) & 1)]
    for other in (0, 1)
]


def built(
    dtype: Any,
    attention: dict[str, Any],
    sizes: tuple[int, int, int] = (6, 2, 12),
    **others: Any,
) -> Transformer:
    layer = {"options": {"is_causal": True}, **attention}
    given = {**PLAIN, "hidden": 64 if sizes == SIZES["one for all"] else 50, **others}
    design = Design(layers=(Attention(*sizes, **layer),) * 2, **given)
    rng = np.random.default_rng(0)
    return design.build(
        {
            name: frozen((rng.standard_normal(shape) / 4 + (len(shape) == 1)).astype(dtype))
            for name, shape in design.shapes()
        }
    )


def vectors(model: Transformer, rows: int) -> list[np.ndarray]:
    """Return the last vectors of texts that have different lengths and end one after the other."""
    caches = [KVCache(options.get("window")) for options in model.options]
    texts = PackedIds.of([np.arange(3 + 2 * row) for row in range(rows)])
    ids, lengths = pad_rows(texts.ids, texts.cu), texts.lengths
    model.step(ids, caches, lengths)
    found = []
    for number, real in enumerate([None, None, [1] * rows, [1] + [0] * (rows - 1), None]):
        going = None if real is None else np.array(real)
        x = model.step(np.full((rows, 1), number), caches, going)
        found.append(x if going is None else x[going == 1])
    return found


@pytest.mark.parametrize(("sizes", "design", "attention", "options", "dtype"), TOGETHER)
def test_stepping_equals_running_the_blocks(
    monkeypatch: pytest.MonkeyPatch,
    sizes: int,
    design: str,
    attention: str,
    options: int,
    dtype: int,
) -> None:
    layer = {**ATTENTIONS[attention], "options": {"is_causal": True, **OPTIONS[options]}}
    compare(monkeypatch, built(TYPES[dtype], layer, [*SIZES.values()][sizes], **DESIGNS[design]))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "design",
    [
        {"residual_scale": 0.22},
        {"residual_scale": 0.3, "norms": "both"},
        {"layer_scale": True, "parallel": True},
        {"norm_weight": False, "rms": False},
    ],
    ids=str,
)
def test_stepping_with_scales_and_without_weights_of_norms(
    monkeypatch: pytest.MonkeyPatch, design: dict[str, Any], dtype: Any
) -> None:
    compare(monkeypatch, built(dtype, ATTENTIONS["rotary"], **design))


def compare(monkeypatch: pytest.MonkeyPatch, model: Transformer) -> None:
    """Assert that steps and blocks give the same bits."""
    for rows in (1, 3):
        quick = vectors(model, rows)
        assert model._steps is not None
        assert model._steps[1] is not None
        with monkeypatch.context() as patch:
            patch.setattr(model, "_quick", lambda: None)
            for found, expected in zip(quick, vectors(model, rows), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)


def test_steps_follow_changes_of_backend_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(np.float32, ATTENTIONS["rotary"])
    first = vectors(model, 2)
    steps = model._steps
    vectors(model, 2)
    assert model._steps is steps
    set_num_threads(get_num_threads() + 1)
    again = vectors(model, 2)
    assert model._steps is not steps
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.setenv("QKV_BACKEND", "numpy")
    assert variant() is None
    for a, b in zip(first, vectors(model, 2), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert model._steps is not None
    assert model._steps[1] is None


@pytest.mark.parametrize("ready", [True, False], ids=["frozen", "as it is"])
@pytest.mark.parametrize("part", ["mlp", "attn", "norm1", "norm2", "q_norm"])
def test_replaced_parameters_take_effect_at_once(part: str, ready: bool) -> None:
    layer = {**ATTENTIONS["norms of heads"], "options": {"is_causal": True}}
    model, other = built(np.float32, layer), built(np.float32, layer)
    first = vectors(model, 1)
    for one in (model, other):
        block = one.layers[1]
        where = block.attn.q_norm if part == "q_norm" else getattr(block, part)
        name = {"mlp": "down_proj.weight", "attn": "q_proj.weight"}.get(part, "weight")
        array = np.random.default_rng(1).standard_normal(where.parameters[name].shape) / 4
        array = array.astype(np.float32)
        where.parameters[name] = frozen(array) if ready else array
    found = vectors(model, 1)
    assert not np.allclose(found[-1], first[-1])
    for a, b in zip(found, vectors(other, 1), strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_for_returns_none_for_unsupported_cases() -> None:
    model = built(np.float32, ATTENTIONS["rotary"])
    blocks, options = model.layers, model.options
    f32, f64 = np.dtype(np.float32), np.dtype(np.float64)
    assert steps_for(blocks, options, f32) is not None
    assert steps_for(blocks, options, f64) is None
    assert steps_for(blocks, [{}, {}], f32) is None
    assert steps_for(blocks, [{**one, "bias": np.zeros((1, 1))} for one in options], f32) is None
    assert steps_for([lambda x: x], options[:1], f32) is None
    assert steps_for(blocks, options, np.dtype(np.float16)) is None
    assert steps_for(built(np.float64, {}).layers, options, f32) is None
    design = Design(layers=(Attention(1, 1, 300, options={"is_causal": True}),), **PLAIN)
    wide = design.build({n: frozen(np.ones(s, np.float32)) for n, s in design.shapes()})
    assert steps_for(wide.layers, wide.options, f32) is None
    loose = Design(layers=(Attention(2, 2, 4, options={"is_causal": True}),), **PLAIN)
    open_ = loose.build({n: np.ones(s, np.float32) for n, s in loose.shapes()})
    assert steps_for(open_.layers, open_.options, f32) is None
    model.layers[0].attn.k_norm = RMSNorm(12)
    assert steps_for(blocks, options, f32) is None


def test_weights_are_packed_once_for_prefill_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []

    def pack(*arguments: Any) -> None:
        packed.append(arguments)
        compiled.pack(*arguments)

    packing = sys.modules["qkv.ops.packing"]
    counting = SimpleNamespace(**{**vars(compiled), "pack": pack})
    monkeypatch.setattr(packing, "compiled", counting)
    # Begin a new array for packed weights. The old array also holds packed weights of other tests.
    # When most of the weights in an array are deleted, the library deletes the whole array. It
    # would then have to pack the weights of this test again, and the test would fail.
    monkeypatch.setattr(packing, "_packed", packing._PackedCopies())
    for sizes in SIZES.values():
        model = built(np.float32, ATTENTIONS["rotary"], sizes)
        packed.clear()
        vectors(model, 2)
        assert len(packed) == 2 * 7  # two layers with q, k, v, out, gate, up and down
