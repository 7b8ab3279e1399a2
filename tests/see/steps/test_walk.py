"""Tests of the walk: its printed NumPy code can be executed, and the results equal the trace."""

import base64
import json
import math
import re
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.layers import MLP, Block, LayerNorm, MultiHeadAttention, RMSNorm
from qkv.models import Model, random_model
from qkv.see import WalkView, walk
from qkv.see.page.payload import MOST_TOKENS, walk_payload
from qkv.trace import Trace

from ..support import CAT, changed, random_of, small_llama

# the tolerance for MiniLM: 2e-6 of 222, the largest number in its residual stream
ROUNDING = 4e-4


def run_lines(view: WalkView) -> dict[str, np.ndarray]:
    """Run all printed lines in order, and return their results."""
    names = dict(view.walk.inputs)
    kind = view.walk.arrays["scores"].dtype
    for step in view.steps:
        exec(step.code, names)
        np.testing.assert_array_equal(names[step.name], step.values)
        assert step.values.dtype == (np.float64 if step.name == "probs" else kind), step.name
    return names


LESSONS = [
    {},
    {"causal": True},
    {"positions": False},
    {"causal": True, "positions": False, "dim": 12, "heads": 3, "seed": 5},
    {"dim": 4, "heads": 1},
]


@pytest.mark.parametrize("options", LESSONS)
@pytest.mark.parametrize("head", [0, -1])
def test_the_printed_lines_give_the_printed_numbers(options: dict, head: int) -> None:
    model = random_model(CAT, **options)
    view = walk(CAT, 0, head % model.num_heads, model=model)
    names = run_lines(view)
    trace = model.trace(CAT)
    np.testing.assert_allclose(names["out"], trace["attn_out", 0][0], atol=1e-6)
    assert view.difference < 1e-6


ROTARY = {"rope_theta": 100.0}
DECODERS = {
    "gpt2": {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 32},
    "llama": small_llama("llama", **ROTARY),
    "llama, angles scaled": small_llama(
        "llama", rope_parameters={"rope_type": "linear", "factor": 3.0, **ROTARY}
    ),
    "queries and keys normed": small_llama("qwen3", head_dim=6, **ROTARY),
    "embeddings scaled, norms on both sides": small_llama(
        "gemma3_text", head_dim=6, query_pre_attn_scalar=6, sliding_window=3, **ROTARY
    ),
}


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", DECODERS)
def test_the_printed_lines_run_on_decoders(name: str, layer: int) -> None:
    model = random_of(DECODERS[name] | {"vocab_size": 30})
    view = walk(model.trace([3, 14, 15, 9, 2]), layer, 1, model=model)
    run_lines(view)
    assert view.difference < 3e-5
    assert ("N" in [step.name for step in view.steps]) is True
    assert view.walk.own_name == "ln_final.hook_normalized"


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (0, 11), (3, 5), (5, 2)])
def test_the_printed_lines_run_on_trained_weights(minilm: Model, layer: int, head: int) -> None:
    view = walk(CAT, layer, head, model=minilm)
    run_lines(view)
    assert view.difference < ROUNDING
    names = [step.name for step in view.steps]
    first = ["E", "P", "H", "X"] if layer == 0 else ["X"]
    assert names == [
        *first,
        "Q",
        "K",
        "V",
        "scores",
        "scaled",
        "weights",
        "context",
        "joined",
        "out",
        *("R", "N1", "pre", "post", "mlp", "R2", "Y"),
        *(["Z"] if layer < 5 else []),
    ]
    assert view.walk.own_name == f"blocks.{layer}.hook_normalized_resid_post"


@pytest.mark.parametrize("causal", [False, True])
def test_the_numbers_are_those_of_the_trace(causal: bool) -> None:
    model = random_model(CAT, causal=causal)
    trace = model.trace(CAT)
    view = walk(CAT, 0, 1, model=model)
    steps = {step.name: step for step in view.steps}
    expected = {
        "E": trace["embed"][0],
        "P": trace["pos_embed"][0],
        "X": trace["full_embed"][0],
        "Q": trace["q", 0][0, :, 1],
        "K": trace["k", 0][0, :, 1],
        "V": trace["v", 0][0, :, 1],
        "weights": trace.pattern(layer=0, head=1),
        "context": trace["z", 0][0, :, 1],
        "joined": trace["z", 0][0].reshape(6, 8),
        "out": trace["attn_out", 0][0],
        "masked" if causal else "scaled": trace["attn_scores", 0][0, 1],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(steps[name].values, values, atol=1e-6, err_msg=name)
    assert ("masked" in steps) is causal


def test_a_causal_mask_is_a_step_and_masks_later_tokens() -> None:
    view = walk(CAT, model=random_model(CAT, causal=True))
    steps = {step.name: step for step in view.steps}
    later = np.triu(np.ones((6, 6), dtype=bool), 1)
    assert (np.isneginf(steps["masked"].values) == later).all()
    assert (steps["masked"].hidden == later).all()
    assert not steps["weights"].values[later].any()
    assert "no mask" not in steps["scaled"].note
    assert "no mask" in walk(CAT, model=random_model(CAT)).steps[7].note


def test_shapes_name_their_dimensions(minilm: Model) -> None:
    shapes = {step.name: step.shape for step in walk(CAT, 0, 0, model=minilm).steps}
    assert shapes == {
        **dict.fromkeys("EPHX", "(T=8, D=384)"),
        **dict.fromkeys("QK", "(T=8, d=32)"),
        "V": "(T=8, dv=32)",
        **dict.fromkeys(("scores", "scaled", "weights"), "(T=8, T=8)"),
        "context": "(T=8, dv=32)",
        "joined": "(T=8, Hq·dv=12·32=384)",
        **dict.fromkeys(("out", "R", "N1", "mlp", "R2", "Y", "Z"), "(T=8, D=384)"),
        **dict.fromkeys(("pre", "post"), "(T=8, F=1536)"),
    }


def spelled_total(text: str) -> tuple[float, float]:
    """Return the sum of the terms that are written out, and the number after the last `=`."""
    terms, _, total = text.partition(" = ")[2].rpartition(" = ")
    found = 0.0
    for term in terms.split(" + "):
        if "more:" in term:
            found += float(re.search(r"more: (\S+)\)", term)[1])
        elif term.startswith("bias"):
            found += float(term.split()[1])
        else:
            left, right = term.split("*")
            found += float(left) * float(right)
    return found, float(total)


@pytest.fixture(scope="module", params=range(3))
def trained(minilm: Model, request: pytest.FixtureRequest) -> WalkView:
    return walk(CAT, 1, request.param, model=minilm)


@pytest.mark.parametrize("name", ["Q", "K", "V", "scores", "context", "out"])
def test_the_spelled_sum_adds_up_to_its_cell(trained: WalkView, name: str) -> None:
    step = next(step for step in trained.steps if step.name == name)
    assert step.cell is not None
    found, total = spelled_total(step.sum)
    assert total == pytest.approx(step.values[step.cell], abs=6e-4)
    assert found == pytest.approx(total, abs=0.03)  # the terms are rounded to three decimals
    assert "more: " in step.sum


def test_scaling_and_softmax_are_spelled_out() -> None:
    view = walk(CAT, model=random_model(CAT))
    steps = {step.name: step for step in view.steps}
    i, j = steps["weights"].cell
    row = steps["scaled"].values[i].astype(np.float64)
    powers = np.exp(row - row.max())
    raw = steps["scores"].values[i, j]
    assert f"{raw:.3f} / √4 = {row[j]:.3f}" in steps["scaled"].sum
    assert (
        f"= {powers[j]:.3f} / {powers.sum():.3f} = {powers[j] / powers.sum():.3f}"
        in steps["weights"].sum
    )


def test_the_cell_that_is_spelled_out_is_the_strongest_link() -> None:
    view = walk(CAT, 0, 1, model=random_model(CAT, seed=3))
    weights = view.walk.trace.pattern(layer=0, head=1)
    content = (1, 2, 5)  # cat, sat, mat
    pairs = [(i, j) for i in content for j in content if i != j]
    scores = next(step for step in view.steps if step.name == "scores")
    assert scores.cell == max(pairs, key=lambda pair: weights[pair])


def test_a_walk_without_the_model_goes_through_the_traced_steps(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    view = walk(trace, 0, 1)
    run_lines(view)
    assert [step.name for step in view.steps][:4] == ["X", "Q", "K", "V"]
    assert [step.name for step in view.steps][-3:] == ["joined", "out", "Y"]
    assert view.walk.own_name == "blocks.0.attn.hook_z"
    assert view.difference < 1e-6


def test_a_trace_with_its_model_is_walked_to_the_end(lesson: Model) -> None:
    view = walk(lesson.trace(CAT), 0, 1, model=lesson)
    assert view.steps[-1].name == "out"
    assert view.difference < 1e-6


def test_a_wrong_output_shows_as_a_difference(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    wrong = trace["attn_out", 0][0, 2, 3] + 0.25
    trace = changed(trace, "blocks.0.hook_attn_out", (0, 2, 3), wrong)
    assert walk(trace, model=lesson).difference == pytest.approx(0.25, rel=1e-4)


def test_shared_key_heads_are_read_by_their_queries() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 3, heads, 2)) for heads in (4, 2, 2))
    front = [np.swapaxes(part, 1, 2) for part in (q, k, v)]
    _, weights = qkv.attention(*front, return_weights=True)
    trace = Trace(
        {
            **{
                f"blocks.0.attn.hook_{name}": part
                for name, part in zip("qkv", (q, k, v), strict=True)
            },
            "blocks.0.attn.hook_pattern": weights,
            "blocks.0.attn.hook_z": np.swapaxes(qkv.attention(*front), 1, 2),
        },
        tokens=[["a", "b", "c"]],
        special=[[False] * 3],
    )
    for head in range(4):
        view = walk(trace, 0, head)
        run_lines(view)
        assert view.difference < 1e-12
        assert view.steps[1].code == f'K = trace["k", 0][0, :, {head // 2}]'


def test_a_walk_refuses_traces_that_it_cannot_show(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    arrays = {name: trace[name] for name in trace.names()}
    about = {"tokens": [trace.tokens], "special": [trace.special]}
    capped = Trace(arrays, settings={0: {"softcap": 5.0}}, **about)
    with pytest.raises(ValueError, match=r"layer 0 uses softcap, .*: use qkv\.show to see its"):
        walk(capped)
    assert qkv.show(capped, layer=0, head=0).weights.shape == (6, 6)
    kept = lesson.trace(CAT, top_k=2)
    with pytest.raises(ValueError, match=r"holds only summaries of layer 0, .* qkv\.show\(trace\)"):
        walk(kept)
    assert qkv.show(kept).links
    with pytest.raises(ValueError, match=r"To compare the attention of a word, pass word="):
        qkv.compare(kept, kept)
    assert qkv.compare(kept, kept, word="cat").sentence
    half = Trace(arrays | {"blocks.0.attn.hook_rot_q": trace["q", 0]}, **about)
    with pytest.raises(ValueError, match="lacks hook_rot_k of layer 0"):
        walk(half)
    turned = arrays | {f"blocks.0.attn.hook_rot_{name}": trace[name, 0] for name in "qk"}
    assert walk(Trace(turned, **about)).difference < 1e-6
    del arrays["blocks.0.attn.hook_k"]
    with pytest.raises(ValueError, match="lacks hook_k of layer 0: trace it too"):
        walk(Trace(arrays, **about))


def test_a_walk_uses_a_custom_scale(lesson: Model) -> None:
    trace = lesson.trace(CAT)
    front = trace.attention_inputs(0)
    out, weights = qkv.attention(**front, scale=2.0, return_weights=True)
    arrays = {f"blocks.0.attn.hook_{name}": trace[name, 0] for name in "qkv"}
    arrays["blocks.0.attn.hook_pattern"] = weights
    arrays["blocks.0.attn.hook_z"] = np.swapaxes(out, 1, 2)
    scaled = Trace(
        arrays, tokens=[trace.tokens], special=[trace.special], settings={0: {"scale": 2.0}}
    )
    view = walk(scaled)
    run_lines(view)
    assert view.difference < 1e-6
    assert "scaled = scores * 2.0" in [step.code for step in view.steps]


def test_layer_and_head_out_of_range_name_the_range(lesson: Model) -> None:
    with pytest.raises(IndexError, match="walk: there is no layer 1: the layers are 0 only"):
        walk(CAT, 1, model=lesson)
    with pytest.raises(IndexError, match="walk: there is no head 2: the heads are 0 to 1"):
        walk(CAT, 0, 2, model=lesson)


def test_the_view_ends_with_the_comparison(lesson: Model) -> None:
    view = walk(CAT, model=lesson)
    text = str(view)
    assert f" is {view.difference:.1e}." in " ".join(text.split())
    recomputed, own = text.splitlines()[-2:]
    assert recomputed.split()[1:] == own.split()[1:]
    assert [float(x) for x in own.split()[1:]] == pytest.approx(
        lesson.trace(CAT)["attn_out", 0][0, 0].tolist(), abs=6e-4
    )


def test_json_has_every_number_and_null_for_masked_scores() -> None:
    model = random_model(CAT, causal=True)
    data = walk(CAT, model=model).to_dict()
    trace = model.trace(CAT)
    steps = {step["name"]: step for step in data["steps"]}
    assert steps["masked"]["values"][0][1:] == [None] * 5
    assert data["own"] == trace["attn_out", 0][0].tolist()
    assert data["largest_difference"] < 1e-6
    np.testing.assert_allclose(
        steps["weights"]["values"], trace.pattern(layer=0, head=data["head"]), atol=1e-6
    )
    assert all(step["formula"] and step["code"] and step["shape"] for step in data["steps"])


# layers without a model


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def layer_of(*args: Any, **options: Any) -> MultiHeadAttention:
    """Make a layer in float64 whose biases are not 0."""
    layer = MultiHeadAttention(*args, bias=True, seed=1, dtype=np.float64, **options)
    for name, array in layer.parameters.items():
        if name.endswith("bias"):
            array[:] = normal(*array.shape, seed=len(name))
    return layer


GROUPED = {"num_heads": 4, "num_kv_heads": 2}
KINDS = {
    "encoder": (GROUPED | {"num_kv_heads": 4}, {}),
    "one head": ({"num_heads": 1}, {}),
    "causal": (GROUPED, {"is_causal": True}),
    "rotary": (GROUPED | {"rotary": {}}, {}),
    "rotary, interleaved": (GROUPED | {"rotary": {"interleaved": True}}, {"is_causal": True}),
    "rotary, interleaved, wider": ({"num_heads": 2, "rotary": {"interleaved": True}}, {}),
    "rotary, in part": (
        {"num_heads": 2, "d_query": 6, "d_value": 5, "rotary": {"dims": 4, "base": 100.0}},
        {},
    ),
    "rotary, interleaved in part": (
        {"num_heads": 2, "d_query": 6, "d_value": 3, "rotary": {"dims": 2, "interleaved": True}},
        {"window": (1, 1)},
    ),
    "without an output projection": (GROUPED | {"out_proj": False}, {"is_causal": True}),
    "scale": (GROUPED, {"scale": 0.3, "is_causal": True}),
    "mask": (GROUPED, {"attn_mask": normal(4, 5, 5) > 0}),
    "mask of numbers": (GROUPED, {"attn_mask": normal(4, 5, 5)}),
    "mask of numbers that hides": (
        GROUPED,
        {"attn_mask": np.where(normal(5, 5) > 1, -np.inf, normal(5, 5)), "is_causal": True},
    ),
    "lengths": (GROUPED, {"query_lengths": 4, "key_lengths": 3}),
    "window": (GROUPED, {"window": (1, 0)}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", [0, -1])
def test_a_layer_of_any_kind_is_walked_to_its_own_output(kind: str, head: int) -> None:
    sizes, options = KINDS[kind]
    layer = layer_of(8, **sizes)
    x = normal(5, 8)
    view = walk(layer, 0, head % layer.num_heads, x=x, tokens=list("abcde"), **options)
    names = run_lines(view)
    assert view.difference < 1e-14
    np.testing.assert_allclose(names[view.steps[-1].name], layer(x, **options), atol=1e-14)
    last = "hook_attn_out" if layer.output_dim == 8 and "out" in names else "attn.hook_z"
    assert view.walk.own_name == f"blocks.0.{last}"


CROSS = [{}, {"is_causal": True, "q_offset": "end"}, {"window": (2, 1), "q_offset": 1}]


@pytest.mark.parametrize("options", CROSS)
@pytest.mark.parametrize("rotary", [None, {}])
def test_cross_attention_looks_at_other_tokens(options: dict, rotary: Any) -> None:
    layer = layer_of(8, rotary=rotary, **GROUPED)
    if rotary is not None and not options:
        options = {"q_offset": 3}
    x, context = normal(5, 8), normal(7, 8, seed=2)
    view = walk(
        layer, 0, 3, x=x, context=context, tokens=list("abcde"), keys=list("tuvwxyz"), **options
    )
    names = run_lines(view)
    np.testing.assert_allclose(names["out"], layer(x, context, **options), atol=1e-14)
    steps = {step.name: step for step in view.steps}
    assert [name for name in steps][:5] == ["X", "C", "Q", "K", "V"]
    assert steps["Q"].rows == list("abcde")
    assert steps["K"].rows == steps["V"].rows == steps["weights"].columns == list("tuvwxyz")
    shapes = {name: steps[name].shape for name in ("X", "C", "Q", "K", "scores", "context")}
    assert shapes == {
        "X": "(L=5, D=8)",
        "C": "(S=7, D=8)",
        "Q": "(L=5, d=2)",
        "K": "(S=7, d=2)",
        "scores": "(L=5, S=7)",
        "context": "(L=5, dv=2)",
    }
    if options.get("is_causal"):
        assert "np.tri(L, S, 2, dtype=bool)" in steps["masked"].code


def test_pictures_and_the_terminal_name_the_keys() -> None:
    layer = layer_of(8, **GROUPED)
    names = {"tokens": ["a", "b"], "keys": ["uno", "dos", "tres"]}
    view = walk(layer, x=normal(2, 8), context=normal(3, 8, seed=2), **names)
    drawn = re.findall(r"<text[^>]*>([^<]*)</text>", view.svg())
    for name in (*names["keys"], *names["tokens"]):
        assert drawn.count(name) >= 2  # the scores and the weights
    lines = str(view).splitlines()
    heads = [line.split() for line in lines if line.split()[:1] == ["uno"]]
    assert heads.count(names["keys"]) >= 3  # scores, scaled, weights
    assert view.to_dict()["keys"] == names["keys"]


def test_an_offset_in_self_attention_appears_in_the_lines() -> None:
    layer = layer_of(8, rotary={}, **GROUPED)
    view = walk(layer, x=normal(4, 8), is_causal=True, q_offset=1)
    run_lines(view)
    codes = "\n".join(step.code for step in view.steps)
    assert "np.tri(T, T, 1, dtype=bool)" in codes
    assert "np.arange(1, 1 + T)" in codes
    assert view.difference < 1e-14


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("post_norm", [False, True])
def test_a_block_is_walked_past_its_attention(norm: Any, post_norm: bool) -> None:
    norms = [norm(8, dtype=np.float64) for _ in range(2)]
    for number, one in enumerate(norms):
        for name, array in one.parameters.items():
            array[:] = normal(8, seed=10 * number + len(name))
    mlp = MLP(8, 12, seed=2, dtype=np.float64)
    block = Block(layer_of(8, **GROUPED), norms[0], mlp, norms[1], post_norm=post_norm)
    x = normal(5, 8)
    view = walk(block, 0, 2, x=x, is_causal=True)
    names = run_lines(view)
    last = "normalized_resid_post" if post_norm else "resid_post"
    assert view.walk.own_name == f"blocks.0.hook_{last}"
    expected = block.trace(x, is_causal=True)
    np.testing.assert_allclose(names["R"], expected["resid_mid", 0][0], atol=1e-14)
    np.testing.assert_allclose(names["Y"], block(x, is_causal=True), atol=1e-13)
    assert view.difference < 1e-13
    assert ("N" in names) is not post_norm
    with pytest.raises(ValueError, match="a block attends only to x"):
        walk(block, x=x, context=x)


def test_a_layer_that_limits_queries_is_refused() -> None:
    plain = MultiHeadAttention(8, 2, seed=0)
    layer = MultiHeadAttention.from_parameters(plain.parameters, num_heads=2, clip=0.5)
    with pytest.raises(ValueError, match=r"values to 0\.5, which a walk cannot show"):
        walk(layer, x=normal(5, 8))


@pytest.mark.parametrize("shared", [False, True])
def test_a_parallel_block_is_walked_to_its_sum_of_three(shared: bool) -> None:
    norms = [LayerNorm(8, dtype=np.float64) for _ in range(2)]
    for number, one in enumerate(norms):
        one.parameters["weight"][:] = normal(8, seed=number)
    mlp = MLP(8, 12, seed=2, dtype=np.float64)
    second = None if shared else norms[1]
    block = Block(layer_of(8, **GROUPED), norms[0], mlp, second, post_norm=False, parallel=True)
    x = normal(5, 8)
    view = walk(block, 0, 2, x=x, is_causal=True)
    names = run_lines(view)
    assert view.walk.own_name == "blocks.0.hook_resid_post"
    assert view.walk.steps[-1].formula == "Y = X + out + mlp"
    np.testing.assert_allclose(names["Y"], block(x, is_causal=True), atol=1e-13)
    assert view.difference < 1e-13
    assert ("N2" in names) is not shared
    assert "R" not in names
    assert every_sum(view) > 200


def test_float16_and_integers_are_walked_in_float32() -> None:
    layer = MultiHeadAttention(4, 2, seed=0)
    view = walk(layer, x=np.arange(12).reshape(3, 4))
    run_lines(view)
    assert view.difference < 1e-5
    half = MultiHeadAttention(4, 2, seed=0, dtype=np.float16)
    view = walk(half, x=np.ones((3, 4), np.float16))
    assert view.difference < 2e-3  # the layer's own output is rounded to float16


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"x": normal(2, 3, 8)}, ValueError, r"x has shape \(2, 3, 8\); pass one text"),
        ({"x": normal(8)}, ValueError, r"x has shape \(8,\)"),
        ({"x": normal(0, 8)}, ValueError, "pass one text"),
        ({"x": normal(3, 8), "tokens": ["a"]}, ValueError, "3 vectors and 1 tokens"),
        (
            {"x": normal(3, 8), "context": normal(2, 8), "keys": ["a"]},
            ValueError,
            "2 vectors and 1 keys",
        ),
        ({"x": normal(3, 8), "softcap": 2.0}, ValueError, "softcap is not .* To see the weights"),
        ({"x": normal(3, 8), "head": 4}, IndexError, "no head 4: the heads are 0 to 3"),
        ({"x": normal(3, 8), "head": -1}, IndexError, "no head -1"),
    ],
)
def test_a_walk_through_a_layer_refuses_invalid_arguments(
    options: dict, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"walk: .*{said}"):
        walk(layer_of(8, **GROUPED), **options)


def test_shared_keys_are_named() -> None:
    steps = {step.name: step for step in walk(layer_of(8, **GROUPED), 0, 3, x=normal(3, 8)).steps}
    assert "key head 1, shared by heads 2 to 3" in steps["K"].note
    assert "head 3 owns columns 6 to 7 of W_Q" in steps["Q"].note
    assert steps["K"].code == "K = X @ W_K[:, 2:4] + b_K[2:4]"


# interventions


def test_a_walk_keeps_the_ablated_heads_and_hidden_words_of_a_run(minilm: Model) -> None:
    trace = minilm.trace(CAT, ablate=[(1, 3)], hide=["cat"])
    for head in (3, 4):
        view = walk(trace, 1, head, model=minilm)
        run_lines(view)
        assert view.difference < ROUNDING
        steps = {step.name: step for step in view.steps}
        assert steps["masked"].note == "removed or hidden in this run: layer 1, head 3; cat"
        column = trace.tokens.index("cat")
        assert not steps["weights"].values[:, column].any()
        assert steps["weights"].values.any()
        assert ("instead" in steps) == (head == 3)
        if head == 3:
            assert not steps["instead"].values.any()


def test_a_walk_through_an_edited_layer_is_refused(minilm: Model) -> None:
    trace = minilm.trace(CAT, edit={("k", 1): np.abs})
    assert walk(trace, 2, 0, model=minilm).difference < ROUNDING
    with pytest.raises(ValueError, match=r"^walk: this run was edited at blocks\.1\.attn\.hook_k"):
        walk(trace, 1, 0, model=minilm)


def test_a_mask_that_was_not_traced_is_reconstructed() -> None:
    model = random_model(CAT, causal=True)
    trace = model.trace(CAT, names=["q", "k", "v", "z", "pattern"])
    view = walk(trace, 0, 1)
    run_lines(view)
    assert view.difference < 1e-6
    assert "masked" in [step.name for step in view.steps]


# the sum of any cell


def terms(text: str) -> str | None:
    """Return the arithmetic in the text of a cell as a Python expression, or None.

    For "C[cat, 0] = 1.000*3.000 = 3.000", the arithmetic is "1.000*3.000". Some texts contain the
    name of a cell or column, or the word "hidden", instead of arithmetic. For these texts, the
    result is None.
    """
    middle = text.split(" = ")[1]
    if "[" in middle or "column" in middle or middle == "hidden":
        return None
    middle = re.sub(r"… \(\d+ more: (\S+)\)", r"\1", middle.replace(", not rotated", ""))
    middle = re.sub(r"√(\S+)", r"sqrt(\1)", middle).replace("^", "**")
    return re.sub(r"\b(?!cos|sin|exp|erf|max|sqrt|tanh)[A-Za-z_]\w* ", "", middle)


def every_sum(view: WalkView) -> int:
    """Check the written-out sum of every cell; return how many cells have a sum."""
    names = ("cos", "sin", "exp", "erf", "sqrt", "tanh")
    known = {name: getattr(math, name) for name in names}
    added = 0
    for step in view.steps:
        for place in np.ndindex(*step.values.shape):
            text = view.walk.spell(step, place)
            row = step.rows[place[0]]
            column = step.columns[place[1]] if step.columns else place[1]
            assert text.startswith(f"{step.name}[{row}, {column}] = ")
            value = float(step.values[place])
            last = text.rpartition(" = ")[2]
            assert last == ("-∞" if value == -math.inf else f"{value:.3f}")
            python = terms(text)
            if python is not None and last != "-∞":
                size = 1 + float(np.abs(step.values[np.isfinite(step.values)]).max())
                assert eval(python, known) == pytest.approx(value, abs=0.02 * size), text
                added += python != last
    return added


@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_of_a_layer_has_a_sum_that_adds_up(kind: str) -> None:
    sizes, options = KINDS[kind]
    assert every_sum(walk(layer_of(8, **sizes), 0, 0, x=normal(5, 8), **options)) > 100


def test_every_cell_of_a_block_and_of_the_lesson_has_a_sum_that_adds_up() -> None:
    assert every_sum(walk(CAT, model=random_model(CAT, causal=True, dim=7, heads=1))) > 200
    block = Block(
        layer_of(8, **GROUPED), RMSNorm(8), MLP(8, 8, seed=0), RMSNorm(8), post_norm=False
    )
    assert every_sum(walk(block, x=normal(5, 8))) > 200


def test_a_joined_column_names_its_head() -> None:
    view = walk(layer_of(8, **GROUPED), x=normal(3, 8), tokens=["a", "cat", "sat"])
    step = next(step for step in view.steps if step.name == "joined")
    value = view.walk.inputs["contexts"][2][1, 1]  # two columns for each head
    expected = f"joined[cat, 5] = context of head 2, column 1 = {value:.3f}"
    assert view.walk.spell(step, (1, 5)) == expected


def test_the_largest_terms_of_a_long_sum_are_written_out(trained: WalkView) -> None:
    step = next(step for step in trained.steps if step.name == "scores")
    q, k = (trained.walk.arrays[name].astype(np.float64) for name in "QK")
    products = q[1] * k[2]
    best = np.argsort(-np.abs(products))[:4]
    written = [f"{q[1, c]:.3f}*{k[2, c]:.3f}" for c in best]
    rest = f"… ({len(products) - 4} more: {np.delete(products, best).sum():.3f})"
    value = f"{step.values[1, 2]:.3f}"
    found = trained.walk.spell(step, (1, 2), most=4).split(" = ")[1:]
    assert found == [" + ".join([*written, rest]), value]


def test_more_terms_are_written_out_on_request(trained: WalkView) -> None:
    step = next(step for step in trained.steps if step.name == "Q")
    short, long = (trained.walk.spell(step, (1, 2), most=most) for most in (3, 10))
    assert "(381 more: " in short
    assert "(374 more: " in long
    assert spelled_total(long)[0] == pytest.approx(spelled_total(short)[0], abs=0.01)


# the data of the page


def unpacked(array: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["b64"]), "<f4").reshape(array["shape"])


def test_the_page_holds_what_the_sums_need(minilm: Model) -> None:
    view = walk(CAT, 1, 5, model=minilm)
    data = json.loads(json.dumps(walk_payload(view.walk)))
    arrays = {name: unpacked(array) for name, array in data["arrays"].items()}
    assert data["tokens"] == ["[CLS]", *CAT.lower().split(), "[SEP]"]
    assert (data["layer"], data["head"], data["keys"], data["rows"]) == (1, 5, None, None)
    assert data["own"] == "blocks.1.hook_normalized_resid_post"
    assert data["steps"][data["own_step"]]["name"] == "Y"
    assert data["difference"] == view.difference
    for step, made in zip(view.steps, data["steps"], strict=True):
        np.testing.assert_array_equal(arrays[step.name], step.few)
        assert made["code"] == step.code
        if step.columns is None:
            lengths = np.sqrt((step.values.astype(np.float64) ** 2).sum(1))
            np.testing.assert_allclose(unpacked(made["lengths"]), lengths, rtol=1e-6)
        else:
            assert made["lengths"] is None
        for operand in ("left", "right", "bias", "of", "gain", "shift"):
            assert made["op"].get(operand) in (None, *arrays)
    np.testing.assert_array_equal(arrays["own"], view.walk.own)
    part = minilm.parameters["blocks.1.attn.q_proj.weight"][:, 160:192]
    whole = minilm.parameters["blocks.1.attn.out_proj.weight"]
    for name, weights in (("W_Q", part), ("W_O", whole)):
        np.testing.assert_array_equal(arrays[name], weights)
    assert data["arrays"]["X"]["rows"] is None


def test_a_long_text_is_cut_to_the_tokens_of_the_largest_weights() -> None:
    words = [f"w{number}" for number in range(100)]
    text = " ".join(words)
    view = walk(text, model=random_model(text, seed=4))
    data = walk_payload(view.walk)
    rows = data["rows"]
    assert len(rows) == MOST_TOKENS
    assert rows == sorted(set(rows)) == data["key_rows"]
    assert set(view.walk.cell) <= set(rows)
    arrays = data["arrays"]
    for name, array in arrays.items():
        whole = view.walk.own if name == "own" else view.walk.arrays[name]
        kept = whole[rows] if array["rows"] else whole
        if "step" not in array:
            np.testing.assert_array_equal(unpacked(array), kept.astype(np.float32))
        assert array["rows"] == (None if name[0] in "KVWb" else "rows"), name
    kept = np.zeros((100, 100), bool)
    kept[np.ix_(rows, rows)] = True
    weights = view.walk.arrays["weights"]
    assert kept.ravel()[np.argsort(-weights, axis=None)[:30]].all()


def test_the_cell_that_is_spelled_out_is_never_cut() -> None:
    text = f"w0 {'. ' * 98} w1"  # only these two words are content words
    view = walk(text, model=random_model(text, seed=1))
    i, j = view.walk.cell
    assert {i, j} == {0, 99}
    weights = view.walk.arrays["weights"]
    largest = np.argsort(-weights, axis=None)[:MOST_TOKENS]
    assert i * 100 + j not in largest
    assert {i, j} <= set(walk_payload(view.walk)["rows"])


def test_the_context_of_cross_attention_is_cut_separately() -> None:
    layer = layer_of(8, **GROUPED)
    mask = np.zeros((4, 70, 90))
    view = walk(layer, x=normal(70, 8), context=normal(90, 8, seed=3), attn_mask=mask)
    data = walk_payload(view.walk)
    assert (len(data["rows"]), len(data["key_rows"])) == (64, 64)
    assert max(data["key_rows"]) > 69
    shapes = {name: array["shape"] for name, array in data["arrays"].items()}
    assert shapes["X"] == shapes["C"] == [64, 8]
    assert shapes["K"] == [90, 2]
    assert shapes["scores"] == shapes["mask"] == [64, 90]
    sides = {step["name"]: (step["side"], step["columns"]) for step in data["steps"]}
    assert sides["Q"] == ("queries", None)
    assert sides["K"] == sides["C"] == ("keys", None)
    assert sides["weights"] == ("queries", "keys")


def test_a_matrix_that_is_too_large_is_left_out() -> None:
    layer = MultiHeadAttention(1300, 13, seed=0)
    data = walk_payload(walk(layer, x=normal(2, 1300)).walk)
    assert data["arrays"]["W_O"] == {"b64": None, "shape": [1300, 1300], "rows": None}
    assert data["arrays"]["W_Q"]["b64"]
