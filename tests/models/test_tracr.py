"""Tests of Tracr's programs against an independent forward pass in float64."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qkv import circuits
from qkv.models import ModelError, load_tracr

HEADS, SIZE, DIM, HIDDEN, WORDS, PLACES = 3, 4, 10, 7, 5, 6
IDS = [0, 3, 1, 4, 2]
LABELS = [*(f"tokens:{n}" for n in range(5)), *(f"sum:{n}" for n in range(4)), "one"]


def random_params(layers: int = 2, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Return parameters with the names, the shapes and the order of Tracr's."""
    rng = np.random.default_rng(seed)
    params = {
        "token_embed": {"embeddings": rng.normal(size=(WORDS, DIM))},
        "pos_embed": {"embeddings": rng.normal(size=(PLACES, DIM))},
    }
    wide = HEADS * SIZE
    shapes = {"attn/query": (DIM, wide), "attn/key": (DIM, wide), "attn/value": (DIM, wide)}
    shapes |= {"attn/linear": (wide, DIM), "mlp/linear_1": (DIM, HIDDEN)}
    shapes |= {"mlp/linear_2": (HIDDEN, DIM)}
    for layer in range(layers):
        for name, shape in shapes.items():
            one = {"w": rng.normal(size=shape) / 2, "b": rng.normal(size=shape[1])}
            params[f"transformer/layer_{layer}/{name}"] = one
    return params


def forward(params: dict[str, Any], ids: list[int], causal: bool) -> tuple[np.ndarray, list[Any]]:
    """Compute the last residual stream (T, D) and the scores of each layer, one query at a time."""
    x = params["token_embed"]["embeddings"][ids] + params["pos_embed"]["embeddings"][: len(ids)]
    scores = []
    for layer in range(2):

        def linear(name: str, y: np.ndarray, at: int = layer) -> np.ndarray:
            one = params[f"transformer/layer_{at}/{name}"]
            return y @ one["w"] + one["b"]

        q, k, v = (linear(f"attn/{name}", x) for name in ("query", "key", "value"))
        z = np.zeros_like(q)
        own = np.full((HEADS, len(ids), len(ids)), -np.inf)
        for head in range(HEADS):
            part = slice(head * SIZE, (head + 1) * SIZE)
            for i in range(len(ids)):
                seen = i + 1 if causal else len(ids)
                own[head, i, :seen] = k[:seen, part] @ q[i, part] / SIZE**0.5
                weights = np.exp(own[head, i, :seen]) / np.exp(own[head, i, :seen]).sum()
                z[i, part] = weights @ v[:seen, part]
        scores.append(own)
        x = x + linear("attn/linear", z)
        x = x + linear("mlp/linear_2", np.maximum(linear("mlp/linear_1", x), 0))
    return x, scores


@pytest.mark.parametrize("causal", [True, False])
def test_a_program_computes_what_tracr_computes(causal: bool) -> None:
    params = random_params()
    model = load_tracr(params, num_heads=HEADS, causal=causal)
    trace = model.trace(IDS, logits=True)
    expected, scores = forward(params, IDS, causal)
    np.testing.assert_allclose(trace["logits"][0], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trace["resid_post", 1][0], expected, rtol=0, atol=1e-10)
    for layer in (0, 1):
        np.testing.assert_allclose(trace["attn_scores", layer][0], scores[layer], atol=1e-10)


def test_a_compiled_program_says_its_own_sizes_and_outputs() -> None:
    params = random_params(seed=1)
    config = SimpleNamespace(num_heads=HEADS, causal=False, layer_norm=False)
    program = SimpleNamespace(params=params, model_config=config, residual_labels=LABELS)
    logits = load_tracr(program, outputs="sum", dtype=np.float32).trace(IDS, logits=True)["logits"]
    expected = forward(params, IDS, causal=False)[0][:, 5:9]
    np.testing.assert_allclose(logits[0], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_program_by_hand_reverses_its_text() -> None:
    """Each place asks for the mirrored place; its value goes to the five last directions."""
    places, words, sharp = 4, 5, 100.0
    dim = words + places + words
    query, value = np.zeros((dim, dim)), np.zeros((dim, dim))
    for place in range(places):
        query[words + place, words + places - 1 - place] = sharp
    value[:words, -words:] = np.eye(words)
    zero = {"w": np.zeros((dim, dim)), "b": np.zeros(dim)}
    params = {
        "token_embed": {"embeddings": np.eye(words, dim)},
        "pos_embed": {"embeddings": np.eye(places, dim, words)},
        "transformer/layer_0/attn/query": zero | {"w": query},
        "transformer/layer_0/attn/key": zero | {"w": np.eye(dim)},
        "transformer/layer_0/attn/value": zero | {"w": value},
        "transformer/layer_0/attn/linear": zero | {"w": np.eye(dim)},
        "transformer/layer_0/mlp/linear_1": zero,
        "transformer/layer_0/mlp/linear_2": zero,
    }
    labels = [
        f"{kind}:{n}"
        for kind, size in (("tokens", 5), ("indices", 4), ("reversed", 5))
        for n in range(size)
    ]
    model = load_tracr(params, num_heads=1, causal=False, labels=labels, outputs="reversed")
    ids = [2, 0, 4, 1]
    trace = model.trace(ids, logits=True)
    assert trace["logits"][0].argmax(-1).tolist() == ids[::-1]
    np.testing.assert_allclose(trace["pattern", 0][0, 0], np.eye(4)[::-1], atol=1e-9)
    found = circuits.patch(model, ids, [3, 0, 4, 1], at="resid_pre", metric=(3, 2, 3))
    np.testing.assert_allclose(found[0], [1, -1, -1, -1], atol=1e-9)  # only place 0 tells place 3


def test_what_is_missing_is_named() -> None:
    params = random_params()
    with pytest.raises(
        ValueError, match="load_tracr: `program` has parameters only; pass num_heads"
    ):
        load_tracr(params, num_heads=3)
    known = {"num_heads": HEADS, "causal": True}
    with pytest.raises(
        ValueError, match=r"`outputs` is 'max', but the variables are tokens, sum, one"
    ):
        load_tracr(params, **known, labels=LABELS, outputs="max")
    with pytest.raises(ValueError, match="the variables are not known: pass labels="):
        load_tracr(params, **known, outputs="max")
    with pytest.raises(ModelError, match="`program` has norms"):
        load_tracr(params | {"transformer/layer_0/layer_norm": {}}, **known)
    del params["transformer/layer_1/mlp/linear_2"]
    with pytest.raises(ModelError, match="no parameter transformer/layer_1/mlp/linear_2/w"):
        load_tracr(params, **known)
    with pytest.raises(ModelError, match="no parameter token_embed/embeddings"):
        load_tracr({}, **known)
