"""Tests of gradients of whole models against torch's autograd, for models of each family."""

import copy
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from models.sizes import CLIP_TEXT, DECODER, ENCODER, IMAGES, MIXED, SMALL
from qkv.models.network.batch import PackedIds
from qkv.trace.recorder import texts_and_positions

from .models import double, scatter

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}  # relative to max(1, the largest value)
LENGTHS = (12, 5, 1, 9)

CASES = {
    f"{name} {kind}": (kind, sizes)
    for name, (sizes, kinds) in SMALL.items()
    if name not in ("t5", "mt5", "gemma3")
    for kind in kinds
    if kind != "CLIPModel"
}
ROPE = {"rope_theta": 500.0}
CASES |= {
    "clip's text at the largest id": ("CLIPTextModel", {**CLIP_TEXT, "eos_token_id": 2}),
    "opt with embeddings of another size": (
        "OPTForCausalLM",
        {**SMALL["opt"][0], "word_embed_proj_dim": 10, "do_layer_norm_before": False},
    ),
    "bert of one head": ("BertForMaskedLM", {**ENCODER, "num_attention_heads": 1}),
    "bert of relu": ("BertForMaskedLM", {**ENCODER, "hidden_act": "relu"}),
    "bert with its own output": ("BertForMaskedLM", {**ENCODER, "tie_word_embeddings": False}),
    "deberta with shared projections": (
        "DebertaV2ForMaskedLM",
        {**SMALL["deberta-v2"][0], "share_att_key": True, "position_biased_input": False},
    ),
    "deberta with a convolution": (
        "DebertaV2ForMaskedLM",
        {**SMALL["deberta-v2"][0], "conv_kernel_size": 3, "conv_act": "gelu"},
    ),
    "deberta with a convolution in groups": (
        "DebertaV2ForMaskedLM",
        {**SMALL["deberta-v2"][0], "conv_kernel_size": 5, "conv_groups": 2},
    ),
    "eurobert that pools first": (
        "EuroBertForSequenceClassification",
        {**DECODER, "classifier_pooling": "mean"},
    ),
    "gpt2 scaled by layer": (
        "GPT2LMHeadModel",
        {**SMALL["gpt2"][0], "scale_attn_by_inverse_layer_idx": True},
    ),
    "olmo that clips": ("OlmoForCausalLM", {**DECODER, "clip_qkv": 0.7}),
    "stablelm with a norm for each head": (
        "StableLmForCausalLM",
        {**SMALL["stablelm"][0], "qk_layernorm": True},
    ),
    "llama tied": ("LlamaForCausalLM", {**DECODER, "tie_word_embeddings": True}),
    "llama with biases": (
        "LlamaForCausalLM",
        {**DECODER, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    ),
    "llama stretched": (
        "LlamaForCausalLM",
        {**DECODER, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, **ROPE}},
    ),
    "gemma2 with low caps": (
        "Gemma2ForCausalLM",
        {**{**SMALL["gemma2"][0], "attn_logit_softcapping": 2.0}, "final_logit_softcapping": 3.0},
    ),
}


def autograd(model: Any, given: dict[str, Any], real: Any, up: Any) -> Any:
    """Return a copy of the model in which each weight is replaced by its gradient.

    Autograd differentiates the sum of `up * logits` over the positions at which `real` is True.
    """
    found = model(**given)
    names = ("logits", "text_embeds", "image_embeds", "pooler_output")
    logits = next(found[name] for name in names if name in found)
    logits = logits.reshape(up.shape)  # ELECTRA gives one logit for each token
    (logits * up)[real].sum().backward()
    found = copy.deepcopy(model)
    with torch.no_grad():
        for one, gradient in zip(found.parameters(), model.parameters(), strict=True):
            one.copy_(torch.zeros(()) if gradient.grad is None else gradient.grad)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_every_parameter_is_that_of_autograd(
    tmp_path: Path, case: str, dtype: torch.dtype
) -> None:
    kind, sizes = CASES[case]
    number = zlib.crc32(case.encode())  # a seed that does not depend on other cases
    rng = np.random.default_rng(number)
    of_kind = getattr(transformers, kind)
    with double(dtype == torch.float64):
        config = of_kind.config_class(**sizes)
        config._attn_implementation = "eager"
        model = of_kind(config).to(dtype).eval()
        if config.model_type in MIXED:
            model.set_experts_implementation("eager")
        scatter(model, number)
        model.save_pretrained(tmp_path / "weights")
    with double(True):  # theirs is float64, whatever the type of ours
        model = model.double()
        ours = qkv.load(tmp_path / "weights")
        cu = np.cumsum([0, *LENGTHS])
        text, position = texts_and_positions(cu)
        if config.model_type in IMAGES:
            looks = getattr(config, "vision_config", config)
            shape = (3, looks.num_channels, looks.image_size, looks.image_size)
            ids: Any = rng.standard_normal(shape).astype(np.float32).astype(np.float64)
            given = {"pixel_values": torch.tensor(ids)}
            cu = np.arange(4) * (ours.design.grid[0] * ours.design.grid[1] + 1)
            position = texts_and_positions(cu)[1]
        else:
            batch = np.ones((len(LENGTHS), max(LENGTHS)), np.int64)
            batch[text, position] = ids = rng.integers(3, 40, cu[-1])
            mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
            given = {"input_ids": torch.tensor(batch), "attention_mask": torch.tensor(mask).long()}
        body = ours.design.build(dict(ours.parameters))
        rows, saved = body.run(PackedIds(ids, cu, position), save=True)
        logits, kept = body.head.training_forward(rows, cu, ids)
        up = rng.standard_normal(logits.shape)
        whole, real = up, np.ones(len(up), bool)
        if not body.head.pools and config.model_type not in IMAGES:
            whole, real = np.zeros((*mask.shape, up.shape[-1])), mask
            whole[text, position] = up
        theirs = autograd(model, given, torch.tensor(real), torch.tensor(whole))
        theirs.save_pretrained(tmp_path / "gradients")
    expected = dict(qkv.load(tmp_path / "gradients").parameters)
    top = body.head.backward(up.astype(logits.dtype), kept)
    found = {**top.parameters, **body.backward(top.x, saved)}
    if "head.out_proj.weight" in found.keys() - expected.keys():
        found["embed.weight"] = found["embed.weight"] + found.pop("head.out_proj.weight").T
    assert found.keys() == expected.keys()
    largest = max(np.abs(array).max() for array in expected.values())
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == ours.parameters[name].dtype, name
        difference = np.abs(found[name].astype(np.float64) - array).max()
        assert difference <= BOUND[dtype] * max(1, largest), f"{name}: {difference:.2e}"
