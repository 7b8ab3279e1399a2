"""Tests of blocks: the order of the parts, traces and packed rows."""

import sys
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qkv
from activations import FORMULAS
from qkv.layers import MLP, Block, LayerNorm, MultiHeadAttention, RMSNorm
from qkv.trace import Recorder, Trace
from rows import failing

from .support import Array, loops, numbers


def block_of(post_norm: bool, *, rms: bool = False, dtype: Any = np.float64, **attn: Any) -> Block:
    """Make a block for vectors of 8 numbers.

    The weights of its norm layers are not 1, and its biases are not 0.
    """
    norm = RMSNorm if rms else LayerNorm
    block = Block(
        MultiHeadAttention(8, 2, bias=True, seed=0, dtype=dtype, **attn),
        norm(8, dtype=dtype),
        MLP(8, 20, seed=1, dtype=dtype),
        norm(8, dtype=dtype),
        post_norm=post_norm,
    )
    for place, (name, array) in enumerate(block.parameters.items()):
        if name.endswith("bias") or "norm" in name:
            array[...] = (numbers(len(array), seed=place) / 2 + 1).astype(dtype)
    return block


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    mean, spread = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(spread + 1e-5) * weight + bias


def steps(block: Block, x: Array) -> dict[str, Array]:
    """Compute every activation of a causal block for texts (B, T, D), step by step."""

    gelu = np.vectorize(FORMULAS["gelu"])

    def spread(name: str, x: Array) -> None:
        found[f"{name}.scale"] = np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    p = block.parameters
    attn = {name[5:]: array for name, array in p.items() if name.startswith("attn.")}
    names = ("norm1", "norm1" if block.norm2 is None else "norm2")
    norms = [lambda x, n=n: layer_norm(x, p[f"{n}.weight"], p[f"{n}.bias"]) for n in names]

    def attend(x: Array) -> Array:
        return np.array([loops(t, t, attn, 2, causal=True)[0] for t in x])

    def mlp(x: Array) -> Array:
        found["mlp.pre"] = x @ p["mlp.up_proj.weight"] + p["mlp.up_proj.bias"]
        hidden = found["mlp.post"] = gelu(found["mlp.pre"])
        return hidden @ p["mlp.down_proj.weight"] + p["mlp.down_proj.bias"]

    found = {"resid_pre": x}
    found["attn_out"] = attend(x) if block.post_norm else attend(norms[0](x))
    if block.parallel:
        found["mlp_out"] = mlp(norms[1](x))
        found["resid_post"] = x + found["attn_out"] + found["mlp_out"]
        return found
    found["resid_mid"] = x + found["attn_out"]
    if block.post_norm:
        h = found["ln1.normalized"] = norms[0](found["resid_mid"])
        spread("ln1", found["resid_mid"])
        found["mlp_out"] = mlp(h)
        found["resid_post"] = h + found["mlp_out"]
        spread("ln2", found["resid_post"])
        found["ln2.normalized"] = norms[1](found["resid_post"])
        found["normalized_resid_post"] = norms[1](found["resid_post"])
    else:
        found["ln1.normalized"], found["ln2.normalized"] = norms[0](x), norms[1](found["resid_mid"])
        spread("ln1", x)
        spread("ln2", found["resid_mid"])
        found["mlp_out"] = mlp(found["ln2.normalized"])
        found["resid_post"] = found["resid_mid"] + found["mlp_out"]
    return found


@pytest.mark.parametrize("post_norm", [True, False])
def test_each_step(post_norm: bool) -> None:
    block = block_of(post_norm)
    x = numbers(2, 4, 8, seed=7)
    expected = steps(block, x)
    out = block(x, is_causal=True)
    np.testing.assert_allclose(out, list(expected.values())[-1], rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(block.forward(x, is_causal=True), out)
    trace = block.trace(x, is_causal=True)
    ln1, ln2 = ([f"{n}.hook_scale", f"{n}.hook_normalized"] for n in ("ln1", "ln2"))
    assert [name.removeprefix("blocks.0.") for name in trace.names()] == [
        *("hook_resid_pre", *([] if post_norm else ln1)),
        *(f"attn.hook_{name}" for name in ("q", "k", "v", "attn_scores", "pattern", "z")),
        *("hook_attn_out", "hook_resid_mid", *(ln1 if post_norm else ln2)),
        *("mlp.hook_pre", "mlp.hook_post", "hook_mlp_out", "hook_resid_post"),
        *([*ln2, "hook_normalized_resid_post"] if post_norm else []),
    ]
    for name, array in expected.items():
        np.testing.assert_allclose(trace[name, 0], array, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("post_norm", [True, False])
def test_traced_inputs_reproduce_the_attention_outputs(post_norm: bool, tmp_path: Any) -> None:
    block = block_of(post_norm)
    x = numbers(5, 8)
    options = {"is_causal": True, "window": (2, 0), "scale": np.float32(0.4)}
    trace = block.trace(x, **options)
    trace.save(tmp_path / "trace")
    for found in (trace, Trace.load(tmp_path / "trace")):
        z = qkv.attention(**found.attention_inputs(0))
        np.testing.assert_allclose(z.swapaxes(1, 2), trace["z", 0], rtol=1e-12)
        np.testing.assert_allclose(found.hidden_states[-1][0], block(x, **options), rtol=1e-12)
        assert found.pattern(layer=0, head=1).shape == (5, 5)


CU = np.array([0, 4, 5, 5, 11])


@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize("post_norm", [True, False])
def test_packed_texts_equal_separate_texts(post_norm: bool, rms: bool) -> None:
    block = block_of(post_norm, rms=rms, rotary={})
    rows = numbers(11, 8)
    out = block(rows, cu_lengths=CU, is_causal=True)
    trace = block.trace(rows, cu_lengths=CU, is_causal=True)
    for text, (start, stop) in enumerate(pairwise(CU)):
        if start == stop:
            continue
        one = block(rows[start:stop], is_causal=True)
        np.testing.assert_allclose(out[start:stop], one, rtol=1e-11, atol=1e-13)
        states = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
        for name in (*states, "ln1.scale", "ln2.normalized", "mlp.pre", "mlp.post"):
            alone = block.trace(rows[start:stop], is_causal=True)[name, 0][0]
            there = trace[name, 0][text]
            np.testing.assert_allclose(there[: stop - start], alone, rtol=1e-11, atol=1e-13)
            assert not there[stop - start :].any()
    again = qkv.attention(**trace.attention_inputs(0))
    np.testing.assert_allclose(again.swapaxes(1, 2), trace["z", 0], rtol=1e-11, atol=1e-14)


def test_padded_texts_equal_separate_texts() -> None:
    block = block_of(True)
    x = numbers(2, 5, 8)
    x[1, 3] = np.nan
    x[1, 4] = [np.inf, -np.inf] * 4
    lengths = np.array([5, 3])
    out = block(x, query_lengths=lengths, key_lengths=lengths)
    np.testing.assert_allclose(out[0], block(x[0]), rtol=1e-11)
    np.testing.assert_allclose(out[1, :3], block(x[1, :3]), rtol=1e-11)


def test_recorder_keeps_only_the_wanted_activations() -> None:
    block = block_of(True)
    asked = []

    def wanted(name: str) -> bool:
        asked.append(name)
        return name in ("blocks.7.hook_mlp_out", "blocks.7.attn.hook_z")

    record = Recorder(wanted)
    block(numbers(2, 3, 8), record=record.under("blocks.7."))
    assert list(record.arrays) == ["blocks.7.attn.hook_z", "blocks.7.hook_mlp_out"]
    assert "blocks.7.attn.hook_pattern" in asked


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("placement", ["post", "pre", "parallel", "one norm", "no first norm"])
def test_what_a_part_reads_is_recorded_before_its_norm(placement: str, packed: bool) -> None:
    pre = block_of(False, num_kv_heads=1)
    block = block_of(True, num_kv_heads=1)
    if placement != "post":
        block = Block(
            pre.attn,
            None if placement == "no first norm" else pre.norm1,
            pre.mlp,
            None if placement == "one norm" else pre.norm2,
            post_norm=False,
            parallel=placement in ("parallel", "one norm"),
            out_norm1=pre.norm1 if placement == "no first norm" else None,
        )
    x = numbers(11, 8) if packed else numbers(2, 4, 8)
    inputs = ("hook_q_input", "hook_k_input", "hook_v_input", "hook_mlp_in")
    assert set(inputs) < set(block.hooks)
    trace = block.trace(x)
    assert not [name for name in trace.names() if name.endswith(inputs)]
    record = Recorder(lambda name: True)
    block(x, record=record, cu_lengths=CU if packed else None)
    found = record.arrays
    read = found["hook_resid_pre"]
    for name, heads in zip(inputs[:3], (2, 1, 1), strict=True):
        assert found[name].shape == (*read.shape[:-1], heads, 8)
        assert (found[name] == read[..., None, :]).all()
    mlp_in = {"post": "ln1.hook_normalized", "pre": "hook_resid_mid"}
    mlp_in |= {"no first norm": "hook_resid_mid"}
    assert (found["hook_mlp_in"] == found[mlp_in.get(placement, "hook_resid_pre")]).all()


@pytest.mark.parametrize("packed", [False, True])
def test_head_results_and_bias_sum_to_the_attention_output(packed: bool) -> None:
    block = block_of(False, num_kv_heads=1, d_query=3, d_value=5)
    x = numbers(11, 8) if packed else numbers(2, 4, 8)
    assert ("result", 0) not in block.trace(x)
    record = Recorder(lambda name: name.endswith(("hook_result", "hook_z", "attn_out")))
    block(x, record=record, cu_lengths=CU if packed else None)
    found = record.arrays
    weight, bias = (block.parameters[f"attn.out_proj.{name}"] for name in ("weight", "bias"))
    for head in (0, 1):
        expected = found["attn.hook_z"][:, :, head] @ weight[5 * head : 5 * head + 5]
        np.testing.assert_allclose(found["attn.hook_result"][:, :, head], expected, atol=1e-12)
    whole = found["attn.hook_result"].sum(-2) + bias
    real = np.arange(6) < np.diff(CU)[:, None] if packed else np.ones((2, 4), bool)
    np.testing.assert_allclose(found["hook_attn_out"][real], whole[real], atol=1e-12)
    assert not found["attn.hook_result"][~real].any()


def test_output_norms_are_traced_under_their_own_names() -> None:
    norms = {name: RMSNorm(8, dtype=np.float64) for name in ("out_norm1", "out_norm2")}
    whole = block_of(False)
    block = Block(whole.attn, whole.norm1, whole.mlp, whole.norm2, post_norm=False, **norms)
    trace = block.trace(numbers(2, 4, 8))
    for norm, out in (("ln1_post", "attn_out"), ("ln2_post", "mlp_out")):
        np.testing.assert_array_equal(trace[f"{norm}.normalized", 0], trace[out, 0])
        before = trace[out, 0] * trace[f"{norm}.scale", 0]  # the weights of the norms are 1
        root = np.sqrt(np.square(before).mean(-1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(trace[f"{norm}.scale", 0], root, rtol=1e-9)


def test_block_may_have_only_output_norms() -> None:
    first, second = RMSNorm(8, dtype=np.float64), RMSNorm(8, eps=0.1, dtype=np.float64)
    whole, x = block_of(False), numbers(2, 4, 8)
    parts = {"post_norm": False, "out_norm1": first, "out_norm2": second}
    block = Block(whole.attn, None, whole.mlp, None, **parts)
    assert not any("ln1." in name or "ln2." in name for name in block.hooks)

    def normed(array: Any, eps: float) -> Any:
        return array / np.sqrt(np.square(array).mean(-1, keepdims=True) + eps)

    middle = x + normed(whole.attn(x), 1e-6)
    np.testing.assert_allclose(block.trace(x)["resid_mid", 0], middle, rtol=1e-11)
    expected = middle + normed(whole.mlp(middle), 0.1)
    np.testing.assert_allclose(block(x), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shared", [False, True])
def test_parallel_attention_and_mlp_both_read_the_block_input(shared: bool) -> None:
    whole = block_of(False)
    own = None if shared else whole.norm2
    block = Block(whole.attn, whole.norm1, whole.mlp, own, post_norm=False, parallel=True)
    x = numbers(2, 4, 8, seed=7)
    expected = steps(block, x)
    trace = block.trace(x, is_causal=True)
    for name, array in expected.items():
        np.testing.assert_allclose(trace[name, 0], array, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(block(x, is_causal=True), expected["resid_post"], rtol=1e-11)
    assert "blocks.0.hook_resid_mid" not in trace.names()
    assert ("blocks.0.ln2.hook_scale" in trace.names()) is not shared
    check_hooks(block)


def check_hooks(block: Block) -> None:
    """Check that the hooks of a block are all names that it records."""
    record = Recorder(lambda name: True)
    for top_k in (None, 2):
        block(numbers(3, 8), record=record, top_k=top_k)
    assert sorted(block.hooks) == sorted(record.arrays)


@pytest.mark.parametrize("post_norm", [True, False])
@pytest.mark.parametrize("rotary", [None, {}])
def test_hooks_of_a_block_list_every_recorded_name(post_norm: bool, rotary: Any) -> None:
    check_hooks(block_of(post_norm, rotary=rotary))


def test_weights_are_not_computed_unless_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    # the attribute `qkv.attend.attention` is the function of this name, not the module
    module = sys.modules["qkv.attend.attention"]

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the scores were computed")

    monkeypatch.setattr(module, "scores_and_weights", never)
    block = block_of(False)
    record = Recorder(lambda name: name.endswith("hook_q"))
    block(numbers(3, 8), record=record)
    block.trace(numbers(3, 8), top_k=2)
    with pytest.raises(AssertionError, match="the scores were computed"):
        block.trace(numbers(3, 8))


def test_top_k_in_a_block() -> None:
    block = block_of(True)
    rows = numbers(11, 8)
    full = block.trace(rows, cu_lengths=CU)
    short = block.trace(rows, cu_lengths=CU, top_k=2)
    assert ("pattern", 0) not in short
    best = -np.sort(-full["pattern", 0])[..., :2]
    np.testing.assert_allclose(short["top_weights", 0], best, rtol=1e-11)
    np.testing.assert_allclose(short["received", 0], full["pattern", 0].sum(-2), rtol=1e-11)
    np.testing.assert_allclose(
        short["resid_post", 0], full["resid_post", 0], rtol=1e-11, atol=1e-13
    )


@pytest.mark.parametrize("post_norm", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_recording_changes_nothing(dtype: Any, post_norm: bool) -> None:
    block = block_of(post_norm, dtype=dtype)
    x = numbers(5, 8, dtype=dtype)
    last = "normalized_resid_post" if post_norm else "resid_post"
    np.testing.assert_array_equal(block.trace(x)[last, 0][0], block(x))


def test_a_trace_keeps_its_own_input() -> None:
    block = block_of(True)
    x = numbers(2, 3, 8)
    trace = block.trace(x)
    before = x.copy()
    x[:] = 0
    np.testing.assert_array_equal(trace["resid_pre", 0], before)


@pytest.mark.parametrize("rms", [True, False])
def test_inputs_are_not_written_to(rms: bool) -> None:
    block = block_of(False, rms=rms)
    x = numbers(2, 3, 8)
    arrays = [x, *block.parameters.values()]
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.setflags(write=False)
    block(x)
    block.trace(x)
    block(x[0], cu_lengths=[0, 1, 3])
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("post_norm", [True, False])
@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16])
def test_halves(half: Any, post_norm: bool) -> None:
    """float16 is rounded once; bfloat16 is rounded after each part, which adds several errors."""
    block = block_of(post_norm, dtype=half)
    x = numbers(2, 5, 8).astype(half)
    wide = block_of(post_norm)
    for name, array in wide.parameters.items():
        array[...] = block.parameters[name].astype(np.float64)
    expected = wide(x.astype(np.float64))
    out = block(x)
    assert out.dtype == half
    step = float(ml_dtypes.finfo(half).eps)
    once = {"rtol": step / 2 * 1.01, "atol": 1e-5}
    allowed = once if half is np.float16 else {"rtol": 0, "atol": 2 * step * abs(expected).max()}
    np.testing.assert_allclose(out.astype(np.float64), expected, **allowed)


def test_float16_overflow_gives_infinity_without_a_warning() -> None:
    block = block_of(False, dtype=np.float16)
    block.mlp.parameters["down_proj.bias"][0] = 6e4
    out = block(np.full((2, 8), 6e4, np.float16))
    assert (out[:, 0] == np.inf).all()
    assert np.isfinite(out[:, 1:]).all()


@pytest.mark.parametrize(
    ("x", "weights", "result"),
    [
        (np.int64, np.float32, np.float32),
        (np.float64, np.float32, np.float64),
        (np.float32, np.float64, np.float64),
        (np.float16, np.float32, np.float32),
    ],
)
def test_types_promote(x: Any, weights: Any, result: Any) -> None:
    block = block_of(True, dtype=weights)
    words = np.arange(24).reshape(3, 8).astype(x)
    assert block(words).dtype == result
    assert block(words, cu_lengths=[0, 1, 3]).dtype == result


def test_parameters_are_flat_and_shared_with_the_layers() -> None:
    block = block_of(True)
    assert list(block.parameters) == [
        *(f"attn.{n}_proj.{part}" for n in ("q", "k", "v", "out") for part in ("weight", "bias")),
        *("norm1.weight", "norm1.bias"),
        *(f"mlp.{n}_proj.{part}" for n in ("up", "down") for part in ("weight", "bias")),
        *("norm2.weight", "norm2.bias"),
    ]
    assert block.parameters["mlp.up_proj.weight"] is block.mlp.parameters["up_proj.weight"]


def parts(dim: int = 8) -> tuple[MultiHeadAttention, LayerNorm, MLP, LayerNorm]:
    return MultiHeadAttention(dim, 2), LayerNorm(dim), MLP(dim, 4), LayerNorm(dim)


THREE = np.ones((3, 8))
WIDE = MultiHeadAttention(8, d_value=3, out_proj=False)


def test_bad_input() -> None:
    for make, message in (
        (lambda: Block(parts()[0], *parts(4)[1:], post_norm=True), "norm1 takes .* 4 and attn.*8"),
        (lambda: Block(*parts()[:2], *parts(4)[2:], post_norm=True), "mlp takes .* 4 and attn.*8"),
        (lambda: Block(*parts()[:3], LayerNorm(2), post_norm=True), "norm2 takes .* 2 and attn.*8"),
        (lambda: Block(WIDE, *parts()[1:], post_norm=True), "attn takes .* size 8 and returns.*3"),
        (
            lambda: Block(*parts()[:2], None, None, post_norm=False, parallel=True),
            "a parallel block needs an mlp, .*; pass mlp and post_norm=False",
        ),
        (lambda: Block(*parts(), post_norm=True, parallel=True), "a parallel block needs an mlp"),
        (lambda: block_of(True)(np.ones((3, 4))), r"x has shape \(3, 4\).* \(\.\.\., 8"),
        (lambda: block_of(True)(np.ones(8)), r"x has shape \(8,\)"),
        (lambda: block_of(True)(THREE, return_lse=True), "return_lse is not an option of this"),
        (lambda: block_of(True)(THREE, casual=True), "did you mean is_causal"),
        (lambda: block_of(True)(THREE, cu_lengths=[0, 4]), "Block: cu_lengths runs from 0 to 4"),
        (lambda: block_of(True)(THREE[None], cu_lengths=[0, 1]), "with cu_lengths, it must be"),
    ):
        with failing(make, message), pytest.raises((ValueError, TypeError), match=message):
            make()


@pytest.mark.parametrize("cu_lengths", [None, [0, 2, 3]])
def test_a_block_call_is_checked_once(
    monkeypatch: pytest.MonkeyPatch, cu_lengths: list[int] | None
) -> None:
    import qkv.layers.attention.forward as module

    checked = []

    def counted(*arrays: Any, **options: Any) -> Any:
        checked.append(options)
        return check_call(*arrays, **options)

    check_call = module.check_call
    monkeypatch.setattr(module, "check_call", counted)
    block_of(False)(numbers(3, 8), cu_lengths=cu_lengths, is_causal=True)
    assert len(checked) == 1
