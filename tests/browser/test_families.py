"""Tests of each model family in a page: random checkpoints, edits and greedy text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

import qkv
from models.small_models import write_small
from qkv.models import Model

from .edited import Edit
from .engine import EXACT, WIDE, agree, ask, by_the_library, page_of
from .support import Visit, config_of

ENCODERS = ("bert", "distilbert", "electra", "modernbert", "roberta")
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3 |= {"original_max_position_embeddings": 8}
LONG_ROPE |= {"factor": 2.0, "original_max_position_embeddings": 8, "attention_factor": 1.1}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
OPT = {"word_embed_proj_dim": 12, "do_layer_norm_before": False}
SQUARE = {"hidden_size": 16}  # Gemma scales by sqrt(16) = 4, which is exact in every dtype
# Maps the name of each test model to its family and to more fields of its config. These fields
# are added to the family's small sizes, or replace them.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ENCODERS},
    "bert with relu": ("bert", {"hidden_act": "relu"}),
    "gpt2": ("gpt2", {}),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt_neo": ("gpt_neo", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox in turn": ("gpt_neox", {"use_parallel_residual": False}),
    "opt": ("opt", {}),
    "opt projected, norms after": ("opt", OPT),
    "llama": ("llama", {"attention_bias": True}),
    "llama of version 3": ("llama", {"rope_scaling": LLAMA_3}),
    "llama stretched": ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "llama stretched by yarn": ("llama", {"rope_scaling": YARN}),
    "llama stretched evenly": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama of two ropes": ("llama", {"rope_scaling": LONG_ROPE}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", SQUARE),
    "gemma2": ("gemma2", SQUARE),
    "gemma3_text": ("gemma3_text", SQUARE),
    "smollm3": ("smollm3", {}),
    "olmo3": ("olmo3", {}),
    "starcoder2": ("starcoder2", {}),
    "stablelm in parallel": ("stablelm", {"use_parallel_residual": True}),
    "phi": ("phi", {"qk_layernorm": True}),
    "falcon": ("falcon", {}),
}
WRITERS = [name for name, (family, _) in KINDS.items() if family not in ENCODERS]
TEXT = "the cat sat on the bank"  # 8 tokens
OTHER = "a dog ran on the mat"  # 8 tokens, too


def small(folder: Path, kind: str) -> tuple[Model, Model]:
    """Return a small model whose parameters float16 can hold, and the same model in float64."""
    family, others = KINDS[kind]
    write_small(folder / "whole", config_of(family, **others), seed=3, spread=0.4)
    qkv.load(folder / "whole").save(folder / "half", dtype="float16")
    return qkv.load(folder / "half"), qkv.load(folder / "half", dtype=np.float64)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def models(tmp_path: Path, kind: str) -> tuple[Model, Model]:
    return small(tmp_path, kind)


@pytest.fixture
def page(visit: Visit, models: tuple[Model, Model]) -> Page:
    return visit(page_of(models[0]))


@pytest.fixture
def plain(visit: Visit, models: tuple[Model, Model]) -> Page:
    """Like `page`, without WebAssembly."""
    return visit(page_of(models[0], plain=True))


def edits_for(model: Model) -> dict[str, list[Edit]]:
    """Return edits of each kind, by name; the activation edits cover every activation."""
    attn = model.layers[1].attn
    heads, shared = attn.num_heads, attn.num_kv_heads
    dim, size = model.dim, attn.d_query
    rng = np.random.default_rng(5)

    def numbers(*shape: int) -> Any:
        return rng.standard_normal(shape).round(3).tolist()

    of = {"q": heads, "k": shared, "v": shared, "z": heads, "pattern": heads}
    found: dict[str, list[Edit]] = {
        "hide": [{"op": "hide", "token": 2}],
        "mask": [{"op": "mask", "query": 5, "key": 1}],
        "mask of a head": [{"op": "mask", "query": 5, "key": 5, "layer": 1, "head": heads - 1}],
        "causal": [{"op": "causal"}],
        "ablate": [{"op": "ablate", "layer": 1, "head": heads - 1}],
        "ablate a layer": [{"op": "ablate", "layer": 2}],
        "mean": [{"op": "ablate", "layer": 0, "head": 1, "with": "mean"}],
        "numbers": [{"op": "ablate", "layer": 0, "head": 1, "with": numbers(size)}],
        "scale": [{"op": "scale", "value": 0.3}],
        "row": [
            {"op": "row", "layer": 1, "head": 0, "query": 4, "weights": [0.5, 0.5, *[0.0] * 6]}
        ],
        "swap": [{"op": "swap", "token": 3, "with": "dog"}],
        "two of a kind": [{"op": "hide", "token": 1}, {"op": "ablate", "layer": 0, "head": 0}],
    }
    for at in ("resid_pre", "resid_post", "attn_out", "mlp_out"):
        found[f"add {at}"] = [{"op": "add", "at": at, "layer": 1, "vector": numbers(dim)}]
        one = {"op": "add", "at": at, "layer": 0, "token": 3, "vector": numbers(dim)}
        found[f"add {at} of a token"] = [one]
    for at in ("resid_pre", "attn_out", "mlp_out", *of):
        head = {"head": of[at] - 1} if at in of else {}
        whole = {"op": "patch", "at": at, "layer": 1, "from": OTHER}
        found[f"patch {at}"] = [whole]
        found[f"patch {at} of a token"] = [whole | {"token": 4} | head]
    found["set k"] = [
        {"op": "set", "at": "k", "layer": 1, "token": 2, "value": numbers(shared, size)}
    ]
    found["set v of a head"] = [
        {"op": "set", "at": "v", "layer": 0, "head": shared - 1, "value": numbers(8, size)}
    ]
    return found


def test_numbers_and_edits_are_the_librarys(
    page: Page, plain: Page, models: tuple[Model, Model]
) -> None:
    half, exact = models
    for name, edits in {"nothing": [], **edits_for(half)}.items():
        expected = by_the_library(exact, TEXT, edits)
        for one, bounds in ((page, WIDE), (plain, EXACT)):
            found, result = ask(one, TEXT, edits)
            assert len(found["tokens"]) == 8, name
            agree(result, expected, *bounds)


def test_activations_of_a_layer_match_the_trace(page: Page, models: tuple[Model, Model]) -> None:
    half, exact = models
    trace = exact.trace(TEXT)
    for layer in range(half.num_layers):
        [block] = page.evaluate(
            "async ([text, layer]) => [Object.fromEntries(Object.entries("
            "(await qkv.run(text, [], {layers: [layer]})).blocks[layer])"
            ".filter(([name]) => !['scale', 'softcap'].includes(name))"
            ".map(([name, x]) => [name, Array.isArray(x) ? x.map((one) => [...one]) : [...x]]))]",
            [TEXT, layer],
        )
        assert {"q", "k", "v", "z", "pattern", "attn_out", "mlp_out", "resid_post"} <= block.keys()
        for name, numbers in block.items():
            own = trace[name, layer][0]
            found = np.array(numbers, float)  # the page may give null for a masked score
            found[np.isnan(found)] = -np.inf
            atol = WIDE[1] * max(1, np.abs(own[np.isfinite(own)]).max())
            found = found.reshape(own.shape)
            np.testing.assert_allclose(found, own, rtol=0, atol=atol, err_msg=f"{name} {layer}")


@pytest.mark.parametrize("kind", WRITERS, indirect=True)
def test_greedy_text_is_the_librarys(page: Page, models: tuple[Model, Model]) -> None:
    half, exact = models
    edits = edits_for(half)
    for name in ("nothing", "hide", "mask", "ablate", "scale", "row", "add resid_pre", "set k"):
        changes = edits.get(name, [])
        for text, count in ((TEXT, 20), ("cat", 24)):
            if changes and text != TEXT:
                continue
            own = exact.generate(text, max_new_tokens=count, edit=changes)
            generate = "([text, max, edits]) => qkv.generate(text, {max}, edits)"
            found = page.evaluate(generate, [text, count, changes])
            assert (found["ids"], found["text"]) == (own.ids, str(own)), (name, text)
            assert len(found["probabilities"]) == len(found["ids"]) == len(found["tokens"])
