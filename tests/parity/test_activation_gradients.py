"""Tests of gradients with respect to activations, against torch's autograd in transformers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from .models import double, ids_of, made

LENGTHS = [11, 4, 7]


@dataclass(frozen=True)
class Family:
    """Where transformers keeps the activations that have gradients; `*` is the layer.

    Attributes:
        given: activations that are a module's first input.
        gives: activations that are a module's output.
        joined: the module that computes queries, keys and values side by side.
    """

    kind: str
    config: dict[str, Any]
    given: dict[str, str] = field(default_factory=dict)
    gives: dict[str, str] = field(default_factory=dict)
    joined: str | None = None


SIZES: dict[str, Any] = {
    **{"vocab_size": 97, "hidden_size": 24, "intermediate_size": 50, "num_hidden_layers": 2},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64},
    "pad_token_id": 0,
}
AT, MLP = "model.layers.*.self_attn", "model.layers.*.mlp"
LLAMA_GIVEN = {
    "blocks.*.hook_resid_pre": "model.layers.*",
    "blocks.*.hook_resid_mid": "model.layers.*.post_attention_layernorm",
    "blocks.*.attn.hook_z": f"{AT}.o_proj",
    "blocks.*.mlp.hook_post": f"{MLP}.down_proj",
}
LLAMA_GIVES = {
    "hook_embed": "model.embed_tokens",
    "blocks.*.ln1.hook_normalized": "model.layers.*.input_layernorm",
    **{f"blocks.*.attn.hook_{name}": f"{AT}.{name}_proj" for name in "qkv"},
    "blocks.*.hook_attn_out": AT,
    "blocks.*.mlp.hook_pre": f"{MLP}.gate_proj",
    "blocks.*.mlp.hook_pre_linear": f"{MLP}.up_proj",
    "blocks.*.hook_mlp_out": MLP,
    "blocks.*.hook_resid_post": "model.layers.*",
    "ln_final.hook_normalized": "model.norm",
}
FAMILIES = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        {"vocab_size": 97, "n_positions": 64, "n_embd": 33, "n_head": 3, "n_layer": 2},
        given={
            "blocks.*.hook_resid_pre": "transformer.h.*",
            "blocks.*.hook_resid_mid": "transformer.h.*.ln_2",
            "blocks.*.attn.hook_z": "transformer.h.*.attn.c_proj",
            "blocks.*.mlp.hook_post": "transformer.h.*.mlp.c_proj",
        },
        gives={
            "hook_embed": "transformer.wte",
            "blocks.*.hook_attn_out": "transformer.h.*.attn",
            "blocks.*.mlp.hook_pre": "transformer.h.*.mlp.c_fc",
            "blocks.*.hook_mlp_out": "transformer.h.*.mlp",
            "blocks.*.hook_resid_post": "transformer.h.*",
            "ln_final.hook_normalized": "transformer.ln_f",
        },
        joined="transformer.h.*.attn.c_attn",
    ),
    "llama": Family(
        "LlamaForCausalLM",
        {**SIZES, "rms_norm_eps": 1e-2, "attention_bias": True},
        LLAMA_GIVEN,
        LLAMA_GIVES,
    ),
    "qwen3": Family("Qwen3ForCausalLM", {**SIZES, "head_dim": 10}, LLAMA_GIVEN, LLAMA_GIVES),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {
            **{**SIZES, "head_dim": 10, "sliding_window": 6, "query_pre_attn_scalar": 10},
            **{"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        },
        LLAMA_GIVEN | {"blocks.*.hook_resid_mid": "model.layers.*.pre_feedforward_layernorm"},
        {
            **{name: theirs for name, theirs in LLAMA_GIVES.items() if name != "hook_embed"},
            "blocks.*.hook_attn_out": "model.layers.*.post_attention_layernorm",
            "blocks.*.hook_mlp_out": "model.layers.*.post_feedforward_layernorm",
        },
    ),
    "bert": Family(
        "BertForMaskedLM",
        {
            **{"vocab_size": 97, "hidden_size": 24, "num_attention_heads": 3},
            **{"num_hidden_layers": 2, "intermediate_size": 50, "max_position_embeddings": 64},
            "layer_norm_eps": 1e-2,
        },
        given={
            "blocks.*.hook_resid_pre": "bert.encoder.layer.*.attention.self.query",
            "blocks.*.attn.hook_z": "bert.encoder.layer.*.attention.output.dense",
            "blocks.*.hook_resid_mid": "bert.encoder.layer.*.attention.output.LayerNorm",
            "blocks.*.mlp.hook_post": "bert.encoder.layer.*.output.dense",
            "blocks.*.hook_resid_post": "bert.encoder.layer.*.output.LayerNorm",
        },
        gives={
            "hook_embed": "bert.embeddings.word_embeddings",
            "hook_full_embed": "bert.embeddings",
            "blocks.*.attn.hook_q": "bert.encoder.layer.*.attention.self.query",
            "blocks.*.attn.hook_k": "bert.encoder.layer.*.attention.self.key",
            "blocks.*.attn.hook_v": "bert.encoder.layer.*.attention.self.value",
            "blocks.*.hook_attn_out": "bert.encoder.layer.*.attention.output.dense",
            "blocks.*.ln1.hook_normalized": "bert.encoder.layer.*.attention.output.LayerNorm",
            "blocks.*.mlp.hook_pre": "bert.encoder.layer.*.intermediate.dense",
            "blocks.*.hook_mlp_out": "bert.encoder.layer.*.output.dense",
            "blocks.*.hook_normalized_resid_post": "bert.encoder.layer.*.output.LayerNorm",
        },
    ),
}


@contextmanager
def kept(model: torch.nn.Module) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Record each module's first input and its output, both of which retain their gradients."""
    seen: dict[str, tuple[Any, Any]] = {}

    def hook_of(name: str) -> Any:
        def hook(_: Any, given: Any, named: Any, gave: Any) -> None:
            first = given[0] if given else named.get("hidden_states")
            pair = first, gave[0] if isinstance(gave, tuple) else gave
            for one in pair:
                if isinstance(one, torch.Tensor) and one.requires_grad:
                    one.retain_grad()
            seen[name] = pair

        return hook

    with ExitStack() as stack:
        for name, part in model.named_modules():
            stack.enter_context(part.register_forward_hook(hook_of(name), with_kwargs=True))
        yield seen


def expected_of(family: Family, seen: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return the gradient (B, T, ...) of each activation, by its full name."""
    found = {}
    for side, names in enumerate((family.given, family.gives)):
        for ours, theirs in names.items():
            for layer in ("0", "1") if "*" in ours else ("",):
                array = seen[theirs.replace("*", layer)][side].grad
                found[ours.replace("*", layer)] = array.numpy()
    if family.joined is not None:
        for layer in ("0", "1"):
            joined = seen[family.joined.replace("*", layer)][1].grad.numpy()
            for name, part in zip("qkv", np.split(joined, 3, -1), strict=True):
                found[f"blocks.{layer}.attn.hook_{name}"] = part
    return found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_each_gradient_is_that_of_autograd(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    family = FAMILIES[name]
    pair = made(tmp_path, family.kind, family.config, dtype)
    ids, mask = ids_of(pair, LENGTHS, "right")
    real = mask.astype(bool)
    rng = np.random.default_rng(1)
    up = rng.standard_normal((*ids.shape, 97)).astype(
        pair.ours.unembed(np.zeros((1, pair.ours.dim))).dtype
    )
    texts = [row[:length].tolist() for row, length in zip(ids, LENGTHS, strict=True)]
    with double(pair.is_double), kept(pair.theirs) as seen:
        logits = pair.theirs(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
        (logits * torch.tensor(up))[torch.tensor(real)].sum().backward()
    expected = expected_of(family, seen)
    found = pair.ours.gradient(texts, of=up, at=list(expected))
    trace = pair.ours.trace(texts)
    largest = max(np.abs(array[real]).max() for array in expected.values())
    for full, array in expected.items():
        assert found[full].shape == trace[full].shape, full
        assert not found[full][~real].any(), full
        array = array.reshape(array.shape[:1] + ids.shape[1:] + found[full].shape[2:])
        difference = np.abs(found[full] - array)[real].max()
        assert difference <= pair.bound * max(1, largest), f"{full}: {difference:.2e}"
