"""Tests of a walk's steps after the heads, against the trace and float64 arithmetic."""

import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import qkv
from qkv.layers import Block, Experts, MultiHeadAttention, RMSNorm
from qkv.layers.experts import expert_shapes
from qkv.models import Model
from qkv.see import WalkView, walk
from qkv.see.page.payload import walk_payload
from qkv.trace import Trace

from ..support import changed, random_of, small_llama
from .test_walk import every_sum, run_lines, unpacked

IDS = [3, 14, 15, 9, 2, 14]
BLANK = "The baker put the [MASK] into the oven."
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": 30,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 30,
    "n_embd": 12,
    "n_head": 3,
    "n_layer": 2,
    "n_inner": 20,
    "n_positions": 16,
}
LLAMA = small_llama("llama", vocab_size=30, architectures=["LlamaForCausalLM"], rope_theta=100.0)
GEMMA = small_llama(
    "gemma3_text",
    architectures=["Gemma3ForCausalLM"],
    vocab_size=30,
    head_dim=6,
    query_pre_attn_scalar=6,
    sliding_window=3,
    rope_theta=100.0,
)
CONFIGS = {"bert": BERT, "gpt2": GPT2, "llama": LLAMA}

Arrays = dict[str, np.ndarray]


# Float64 arithmetic that uses only the parameters


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, p: Arrays, name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return centred / scale * p[f"{name}.weight"] + p[f"{name}.bias"]


def rms_norm(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p[f"{name}.weight"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def dense(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    return x @ p[f"{name}.weight"] + p.get(f"{name}.bias", 0.0)


def rotated(x: np.ndarray) -> np.ndarray:
    """Rotate the queries or keys of one head, (T, d), by their positions, with base 100."""
    half = x.shape[1] // 2
    angles = np.arange(len(x))[:, None] * 100.0 ** (-np.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], 1)


def attend(
    x: np.ndarray, p: Arrays, block: str, heads: int, shared: int = 1, *, rotary=False, causal=False
) -> np.ndarray:
    q, k, v = (dense(x, p, f"{block}attn.{name}_proj") for name in "qkv")
    size, joined = q.shape[1] // heads, []
    for head in range(heads):
        own = slice(head // shared * size, (head // shared + 1) * size)
        query, key = q[:, head * size : (head + 1) * size], k[:, own]
        if rotary:
            query, key = rotated(query), rotated(key)
        scores = query @ key.T / math.sqrt(size)
        if causal:
            scores[np.triu_indices(len(x), 1)] = -np.inf
        joined.append(softmax(scores) @ v[:, own])
    return dense(np.concatenate(joined, 1), p, f"{block}attn.out_proj")


def bert(p: Arrays, layer: int, position: int) -> Arrays:
    """Compute every step of a BERT after the heads, layer by layer."""
    eps, found = 1e-12, {}
    x = p["embed.weight"][IDS] + p["pos_embed.weight"][: len(IDS)] + p["token_type_embed.weight"][0]
    x = layer_norm(x, p, "embed_norm", eps)
    for number in range(3):
        b = f"blocks.{number}."
        r = x + attend(x, p, b, 3)
        n1 = layer_norm(r, p, f"{b}norm1", eps)
        pre = dense(n1, p, f"{b}mlp.up_proj")
        mlp = dense(gelu(pre), p, f"{b}mlp.down_proj")
        x = layer_norm(n1 + mlp, p, f"{b}norm2", eps)
        if number == layer:
            found = {"R": r, "N1": n1, "pre": pre, "post": gelu(pre), "mlp": mlp, "R2": n1 + mlp}
            found["Y"] = x
    if layer < 2:
        found["Z"] = x
    y = x[[position]]
    h = dense(y, p, "head.dense_proj")
    u = layer_norm(gelu(h), p, "head.norm", eps)
    logits = u @ p["embed.weight"].T + p["head.out_proj.bias"]
    found |= {"y": y, "h": h, "a": gelu(h), "u": u}
    return found | {"logits": logits, "probs": softmax(logits)}


def gpt2(p: Arrays, layer: int, position: int) -> Arrays:
    eps, found = 1e-5, {}
    x = p["embed.weight"][IDS] + p["pos_embed.weight"][: len(IDS)]
    for number in range(2):
        b = f"blocks.{number}."
        r = x + attend(layer_norm(x, p, f"{b}norm1", eps), p, b, 3, causal=True)
        n2 = layer_norm(r, p, f"{b}norm2", eps)
        pre = dense(n2, p, f"{b}mlp.up_proj")
        cube = math.sqrt(2 / math.pi) * (pre + 0.044715 * pre**3)
        post = pre / 2 * (1 + np.tanh(cube))
        mlp = dense(post, p, f"{b}mlp.down_proj")
        x = r + mlp
        if number == layer:
            found = {"R": r, "N2": n2, "pre": pre, "post": post, "mlp": mlp, "Y": x}
    if layer < 1:
        found["Z"] = x
    final = layer_norm(x, p, "final_norm", eps)
    logits = final[[position]] @ p["embed.weight"].T
    found |= {"final": final, "y": final[[position]]}
    return found | {"logits": logits, "probs": softmax(logits)}


def llama(p: Arrays, layer: int, position: int) -> Arrays:
    found: Arrays = {}
    x = p["embed.weight"][IDS]
    for number in range(2):
        b = f"blocks.{number}."
        r = x + attend(rms_norm(x, p, f"{b}norm1"), p, b, 4, 2, rotary=True, causal=True)
        n2 = rms_norm(r, p, f"{b}norm2")
        pre, up = dense(n2, p, f"{b}mlp.gate_proj"), dense(n2, p, f"{b}mlp.up_proj")
        act = pre / (1 + np.exp(-pre))
        mlp = dense(act * up, p, f"{b}mlp.down_proj")
        x = r + mlp
        if number == layer:
            found = {"R": r, "N2": n2, "pre": pre, "act": act, "up": up, "post": act * up}
            found |= {"mlp": mlp, "Y": x}
    if layer < 1:
        found["Z"] = x
    final = rms_norm(x, p, "final_norm")
    logits = dense(final[[position]], p, "head.out_proj")
    found |= {"final": final, "y": final[[position]]}
    return found | {"logits": logits, "probs": softmax(logits)}


BY_HAND: Mapping[str, Callable[[Arrays, int, int], Arrays]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
}


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest) -> tuple[str, Model]:
    return request.param, random_of(CONFIGS[request.param])


def behind(view: WalkView) -> list[str]:
    """Return the names of the steps after the output projection."""
    names = [step.name for step in view.steps]
    return names[names.index("out") + 1 :]


@pytest.mark.parametrize("last", [False, True])
def test_every_step_agrees_with_the_formula_in_order(family: Any, last: bool) -> None:
    name, model = family
    layer = model.num_layers - 1 if last else 0
    view = walk(model.trace(IDS), layer, 1, model=model)
    wide = {one: np.float64(array) for one, array in model.parameters.items()}
    expected = BY_HAND[name](wide, layer, view.walk.position)
    assert behind(view) == list(expected)
    steps = {step.name: step for step in view.steps}
    for one, values in expected.items():
        atol = 3e-5 * max(1.0, float(np.abs(values).max()))
        np.testing.assert_allclose(steps[one].values, values, atol=atol, err_msg=one)


TRACED = {
    "R": "resid_mid", "N1": "ln1.normalized", "N2": "ln2.normalized", "pre": "mlp.pre",
    "up": "mlp.pre_linear", "post": "mlp.post", "mlp": "mlp_out",
}  # fmt: skip


def test_every_step_agrees_with_the_trace(family: Any) -> None:
    name, model = family
    trace = model.trace(IDS, logits=True)
    view = walk(trace, 0, 2, model=model)
    steps, end = {step.name: step for step in view.steps}, model.num_layers - 1
    expected = {called: trace[TRACED[called], 0][0] for called in TRACED if called in steps}
    if name == "bert":
        expected |= {"R2": trace["resid_post", 0][0], "Y": trace["normalized_resid_post", 0][0]}
        expected["Z"] = trace["normalized_resid_post", end][0]
    else:
        expected |= {"Y": trace["resid_post", 0][0], "Z": trace["resid_post", end][0]}
        expected["final"] = trace["ln_final.hook_normalized"][0]
    expected["logits"] = trace["logits"][0][[view.walk.position]]
    for one, values in expected.items():
        assert steps[one].values.shape == values.shape
        atol = 3e-6 * max(1.0, float(np.abs(values).max()))
        np.testing.assert_allclose(steps[one].values, values, atol=atol, err_msg=one)
    assert view.walk.own_name == "logits"
    np.testing.assert_array_equal(view.walk.own, expected["logits"])
    share = softmax(expected["logits"].astype(np.float64))[0]
    ids = np.argsort(-share, kind="stable")[:8]
    assert view.words == [(str(one), pytest.approx(share[one], abs=1e-12)) for one in ids]
    assert steps["probs"].shown == {int(one): str(one) for one in ids}


def test_the_lines_run_and_every_number_has_a_sum(family: Any) -> None:
    _, model = family
    view = walk(model.trace(IDS), 0, 1, model=model)
    run_lines(view)
    assert every_sum(view) > 500
    assert view.difference < 5e-5


def test_shapes_and_shown_columns_of_wide_steps(family: Any) -> None:
    name, model = family
    view = walk(model.trace(IDS), 0, 1, model=model)
    steps, position = {step.name: step for step in view.steps}, view.walk.position
    size, token = model.dim, view.walk.tokens[position]
    assert steps["pre"].shape == steps["post"].shape == "(T=6, F=20)"
    assert steps["mlp"].shape == steps["Z"].shape == f"(T=6, D={size})"
    assert (steps["y"].shape, steps["logits"].shape) == (f"(1, D={size})", "(1, V=30)")
    assert steps["y"].rows == steps["probs"].rows == [token]
    row = np.abs(steps["post"].values[position])
    units = np.argsort(-row)[:8].tolist()
    for one in ("pre", "post") + (("act", "up") if name == "llama" else ()):
        assert list(steps[one].shown) == units
        assert steps[one].few.shape == (6, 8)
        assert steps[one].cell == (position, units[0])
    assert (
        f"shown: the 8 of F=20 units that are largest after the activation at {token}"
        in steps["pre"].note
    )
    largest = sorted(units[:3], key=lambda unit: -row[unit])
    down = model.parameters["blocks.0.mlp.down_proj.weight"]
    written = " + ".join(
        f"{steps['post'].values[position, unit]:.3f}*{down[unit, 0]:.3f}" for unit in largest
    )
    assert f" = {written} + … (17 more: " in steps["mlp"].sum


def test_later_blocks_are_one_line() -> None:
    model = random_of(BERT)
    titles = {
        layer: [step.title for step in walk(model.trace(IDS), layer, model=model).steps]
        for layer in range(3)
    }
    assert "Layers 1 to 2, omitted here, have the same steps with different weights" in titles[0]
    assert "Layer 2, omitted here, has the same steps with different weights" in titles[1]
    assert not any("same with other" in title for title in titles[2])


def test_norms_on_both_sides_of_a_sublayer_are_in_order() -> None:
    model = random_of(GEMMA)
    view = walk(model.trace(IDS), 1, 3, model=model)
    run_lines(view)
    expected = ["A", "R", "N2", "pre", "act", "up", "post", "mlp", "M", "Y", "final"]
    assert behind(view) == [*expected, "y", "logits", "probs"]
    steps, trace = {step.name: step for step in view.steps}, view.walk.trace
    for one, hook in (("A", "attn_out"), ("M", "mlp_out"), ("Y", "resid_post")):
        np.testing.assert_allclose(steps[one].values, trace[hook, 1][0], rtol=1e-4, atol=1e-4)
    assert every_sum(view) > 500


def test_capping_the_logits_is_a_separate_step() -> None:
    model = random_of(GEMMA | {"final_logit_softcapping": 3.0})
    view = walk(model.trace(IDS, logits=True), model=model)
    names = run_lines(view)
    assert behind(view)[-3:] == ["raw", "logits", "probs"]
    np.testing.assert_allclose(names["logits"], 3 * np.tanh(names["raw"] / 3), rtol=1e-5)
    np.testing.assert_allclose(
        names["logits"], view.walk.trace["logits"][0][[view.walk.position]], atol=1e-4
    )
    assert every_sum(view) > 500


def test_experts_are_taken_as_traced() -> None:
    rng, shapes = np.random.default_rng(0), expert_shapes(8, 6, 3)
    parameters = {name: np.float32(rng.standard_normal(shape)) for name, shape in shapes.items()}
    one = Experts(parameters, top_k=2)
    block = Block(MultiHeadAttention(8, 2, seed=0), RMSNorm(8), one, RMSNorm(8), post_norm=False)
    x = rng.standard_normal((4, 8)).astype(np.float32)
    view = walk(block, x=x)
    names = run_lines(view)
    assert behind(view) == ["R", "N2", "mlp", "Y"]
    np.testing.assert_allclose(names["Y"], block(x), rtol=1e-4)


# the words and their position


def test_a_walk_to_a_mask_token_ends_with_the_words_of_predict() -> None:
    model = qkv.load()
    (guesses,) = model.predict(BLANK, top_k=8)
    for layer, head in ((0, 0), (1, 2), (model.num_layers - 1, model.num_heads - 1)):
        view = walk(BLANK, layer, head, model=model)
        position = view.walk.tokens.index("[MASK]")
        assert view.walk.position == position
        scores = next(step for step in view.steps if step.name == "scores")
        assert scores.cell[0] == position
        assert [word for word, _ in view.words] == [word for word, _ in guesses]
        probabilities = [probability for _, probability in guesses]
        assert [probability for _, probability in view.words] == pytest.approx(
            probabilities, abs=1e-5
        )
        assert next(iter(view.steps[-1].shown.values())) == guesses[0][0]
        word, probability = guesses[0]
        assert view.sentence.startswith(
            f"The likeliest word at the gap is {word}, {probability:.2f}."
        )
        run_lines(view)


def test_a_walk_takes_the_first_of_several_mask_tokens() -> None:
    view = walk("The [MASK] sat on the [MASK].")
    assert view.walk.position == view.walk.tokens.index("[MASK]")


def test_the_key_of_a_mask_token_is_its_strongest_word_or_token() -> None:
    tokens = ["[CLS]", "the", "cat", "[MASK]", "mats", "[SEP]"]
    weights = np.full((1, 2, 6, 6), 1 / 6, np.float32)
    # the largest weight is on [CLS]; the largest weight on a word is on "cat"
    weights[0, :, 3] = [0.5, 0.05, 0.3, 0.03, 0.02, 0.1]
    weights[0, 1, 3] = [0.7, 0.07, 0.09, 0.05, 0.05, 0.04]
    rng = np.random.default_rng(0)
    arrays = {
        f"blocks.0.attn.hook_{name}": rng.standard_normal((1, 6, 2, 4)).astype(np.float32)
        for name in "qkvz"
    }
    arrays["blocks.0.attn.hook_pattern"] = weights
    special = [token.startswith("[") for token in tokens]
    trace = Trace(arrays, tokens=[tokens], special=[special])
    assert [walk(trace, 0, head).walk.cell for head in (0, 1)] == [(3, 2), (3, 0)]
    plain = Trace(arrays, tokens=[[*tokens[:3], "dog", *tokens[4:]]], special=[special])
    assert walk(plain, 0, 1).walk.cell == (2, 4)


def test_a_walk_with_hide_and_ablate_ends_with_the_words_of_predict() -> None:
    model = qkv.load()
    trace = model.trace(BLANK, hide=["oven"], ablate=[(0, 1)])
    view = walk(trace, 0, 1, model=model)
    (guesses,) = model.predict(BLANK, top_k=8, hide=["oven"], ablate=[(0, 1)])
    assert [word for word, _ in view.words] == [word for word, _ in guesses]
    assert view.words[0][1] == pytest.approx(guesses[0][1], abs=1e-5)


def test_predicted_words_follow_edits_of_later_blocks() -> None:
    model = random_of(GPT2)
    trace = model.trace(IDS, edit={("resid_post", 1): np.negative}, logits=True)
    view = walk(trace, 0, 0, model=model)
    share = softmax(trace["logits"][0, view.walk.position].astype(np.float64))
    assert view.words[0] == (str(share.argmax()), pytest.approx(share.max(), abs=1e-12))
    assert view.difference < 5e-5
    trace = model.trace(IDS, edit={"ln_final.hook_normalized": np.negative})
    with pytest.raises(ValueError, match=r"^walk: this run was edited at"):
        walk(trace, 0, 0, model=model)
    assert behind(walk(trace, 0, 0))[-1] == "final"


def test_a_decoder_walk_predicts_the_word_after_the_position() -> None:
    model = random_of(GPT2)
    view = walk(model.trace(IDS), 1, 0, model=model)
    token = view.walk.tokens[view.walk.position]
    assert view.steps[-1].title == f"Softmax: the probability of each word to follow {token}"
    assert view.sentence.startswith(f"The likeliest word after {token} is ")


# the step at which a walk ends


def without_a_head(config: dict[str, Any]) -> Model:
    return random_of({name: value for name, value in config.items() if name != "architectures"})


@pytest.mark.parametrize(("name", "last"), [("bert", "Z"), ("gpt2", "final"), ("llama", "final")])
def test_a_walk_without_language_model_head_ends_at_the_last_vectors(name: str, last: str) -> None:
    model = without_a_head(CONFIGS[name])
    view = walk(model.trace(IDS), model=model)
    assert view.steps[-1].name == last
    expected = model([IDS]).last_hidden_state[0]
    np.testing.assert_allclose(view.steps[-1].values, expected, atol=2e-5)
    assert view.steps[-1].note.endswith(
        "the model has no language-model head, so the walk ends with the last vectors"
    )
    assert view.words == view.to_dict()["words"] == []
    assert view.sentence.startswith("The largest difference between the recomputed numbers and")


def test_a_head_over_classes_gives_no_words() -> None:
    config = BERT | {"architectures": ["BertForSequenceClassification"]}
    model = random_of(config | {"id2label": {"0": "a", "1": "b"}})
    assert "no language-model head" in walk(model.trace(IDS), model=model).steps[-1].note


def test_the_walk_names_hooks_that_the_trace_lacks() -> None:
    model = random_of(GPT2)
    view = walk(model.trace(IDS, layers=0), model=model)
    assert view.steps[-1].name == "Y"
    assert "the trace lacks hook_resid_post of layer 1, where the walk" in (view.steps[-1].note)
    names = ["q", "k", "v", "z", "pattern", "attn_out", "resid_post"]
    view = walk(model.trace(IDS, names=names), model=model)
    assert view.steps[-1].name == "out"
    assert "the trace lacks hook_attn_out or hook_resid_mid of layer 0" in view.steps[-1].note


@pytest.mark.parametrize("layer", [0, 1])
def test_a_walk_without_the_model_ends_where_the_trace_ends(family: Any, layer: int) -> None:
    _, model = family
    trace = model.trace(IDS, logits=True)
    alone, whole = walk(trace, layer, 1), walk(trace, layer, 1, model=model)
    run_lines(alone)
    recomputed = [one for one in behind(whole) if one not in ("act", "y", "h", "a", "u")]
    assert behind(alone) == recomputed
    steps = {step.name: step for step in whole.steps}
    for step in alone.steps[-len(recomputed) :]:
        atol = 3e-6 * max(1.0, float(np.abs(step.values).max()))
        np.testing.assert_allclose(step.values, steps[step.name].values, atol=atol)
        assert step.code.startswith(f"{step.name} = trace[") or step.name == "probs"
    assert alone.words == []
    assert list(alone.steps[-1].shown) == list(whole.steps[-1].shown)
    assert alone.walk.own_name == f"blocks.{layer}.attn.hook_z"
    assert alone.steps[-1].note == (
        "walk(trace, model=...) shows how these numbers are computed, and which words they "
        "belong to"
    )
    without = walk(model.trace(IDS), layer, 1)
    assert behind(without) == recomputed[:-2]
    assert without.steps[-1].note.endswith(
        "walk(trace, model=...) shows how these numbers are computed, and adds the steps up to the "
        "predicted words; without model=..., a walk shows the logits of a trace made with "
        "trace(text, logits=True)"
    )


def test_a_walk_without_the_model_infers_the_order_of_the_block() -> None:
    model = random_of(GPT2)
    trace = model.trace(IDS)
    kept = {name: trace[name] for name in trace.names()}
    parallel = {name: array for name, array in kept.items() if "resid_mid" not in name}
    about = {"tokens": [trace.tokens], "ids": [trace.ids]}
    view = walk(Trace(dict(sorted(parallel.items(), reverse=True)), **about), 1)
    assert behind(view) == ["N2", "pre", "post", "mlp", "Y", "final"]
    title = next(step.title for step in view.steps if step.name == "Y")
    assert (
        title == "The residual connection: the input and the outputs of attention and MLP are added"
    )
    bare = {name: kept[name] for name in kept if ".attn." in name}
    view = walk(Trace(bare, **about), 1)
    assert view.steps[-1].name == "joined"
    assert view.steps[-1].note.endswith("call walk(trace, model=...) for more steps")


def test_a_wrong_number_anywhere_shows_as_a_difference() -> None:
    model = random_of(BERT)
    trace, own = model.trace(IDS), walk(model.trace(IDS), 1, model=model).walk
    names = ("ln1.hook_normalized", "mlp.hook_pre", "mlp.hook_post", "hook_mlp_out")
    for name in (f"blocks.1.{hook}" for hook in (*names, "hook_resid_post")):
        wrong = changed(trace, name, (0, 2, 3), trace[name][0, 2, 3] + 0.25)
        assert walk(wrong, 1, model=model).difference == pytest.approx(0.25, rel=1e-3), name
    trace, position = model.trace(IDS, logits=True), (0, own.position, 3)
    wrong = changed(trace, "logits", position, trace["logits"][position] + 0.25)
    assert walk(wrong, 1, model=model).difference == pytest.approx(0.25, rel=1e-3)


# the terminal, the page and the picture


def test_json_has_the_shown_numbers_and_the_words() -> None:
    model = random_of(LLAMA)
    view = walk(model.trace(IDS), model=model)
    data = json.loads(json.dumps(view.to_dict()))
    steps = {step["name"]: step for step in data["steps"]}
    assert list(steps["pre"]) == [
        "title", "formula", "shape", "code", "name", "sum", "note", "columns", "values", "shown"
    ]  # fmt: skip
    made = {step.name: step for step in view.steps}
    for name in ("pre", "act", "up", "post"):
        shown = steps[name]["shown"]
        assert steps[name]["columns"] == [str(unit) for unit in shown]
        assert steps[name]["values"] == made[name].values[:, shown].tolist()
    assert steps["mlp"]["shown"] is None
    assert steps["mlp"]["columns"] is None
    assert steps["weights"]["columns"] == view.walk.tokens
    words = data["words"]
    assert [one["word"] for one in words] == steps["probs"]["columns"]
    assert [one["probability"] for one in words] == pytest.approx(steps["probs"]["values"][0])
    assert data["place"] == view.walk.position
    assert len(data["own"][0]) == len(data["recomputed"][0]) == 8


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_has_the_steps_and_a_bar_for_each_word(width: int) -> None:
    model = qkv.load()
    view = walk(BLANK, 1, 0, model=model)
    file = io.StringIO()
    view.print(Console(file=file, width=width, force_terminal=False))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for number, step in enumerate(view.steps, 1):
        assert f"{number}. {step.title}" in text
    for word, probability in view.words:
        bars = [
            line for line in lines if line.startswith(f"{word} ") and f" {probability:.3f}" in line
        ]
        assert len(bars) == 1, word
    assert f"The likeliest word at the gap is {view.words[0][0]}" in text


def test_a_picture_has_a_bar_for_each_word() -> None:
    model = random_of(BERT)
    view = walk(model.trace(IDS), model=model)
    found = view.svg()
    assert "the probability of each word to be at" in found
    for word, probability in view.words:
        assert f">{word}<" in found
        assert f"{probability:.3f}" in found


def test_the_page_holds_the_shown_columns_of_wide_steps() -> None:
    model = random_of(BERT | {"intermediate_size": 40, "vocab_size": 60})
    view = walk(model.trace(IDS), 1, model=model)
    data = json.loads(json.dumps(walk_payload(view.walk)))
    arrays, steps = data["arrays"], {step.name: step for step in view.steps}
    units, words = list(steps["pre"].shown), list(steps["logits"].shown)
    parameters = model.parameters
    for name, whole, columns in (
        ("pre", steps["pre"].values, units),
        ("post", steps["post"].values, units),
        ("W_up", parameters["blocks.1.mlp.up_proj.weight"], units),
        ("b_up", parameters["blocks.1.mlp.up_proj.bias"], units),
        ("W_U", parameters["embed.weight"].T, words),
        ("b_U", parameters["head.out_proj.bias"], words),
        ("probs", steps["probs"].values, words),
        ("own", view.walk.own, words),
    ):
        assert arrays[name]["columns"] == columns, name
        np.testing.assert_array_equal(
            unpacked(arrays[name]), whole[..., columns].astype(np.float32), err_msg=name
        )
    assert arrays["W_down"]["rows"] == units
    down = parameters["blocks.1.mlp.down_proj.weight"][units]
    np.testing.assert_array_equal(unpacked(arrays["W_down"]), down)
    assert "columns" not in arrays["logits"]  # a softmax sums over all columns
    np.testing.assert_array_equal(unpacked(arrays["logits"]), steps["logits"].values)
    assert data["said"] == view.walk.likeliest
    made = {step["name"]: step for step in data["steps"]}
    assert made["logits"]["shown"] == {"at": words, "names": [str(word) for word in words]}
    assert (made["logits"]["side"], made["mlp"]["shown"]) == ("position", None)
