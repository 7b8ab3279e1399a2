"""Tests of a trace's names for norms, MLPs and heads against hooks on transformers' modules."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.sizes import SMALL
from qkv.models.families import PUBLISHED, design_of
from qkv.models.network._decoder import EncodedTexts, EncoderDecoder
from qkv.models.network.batch import PackedIds
from qkv.models.network.design import VisionDesign
from qkv.trace import Recorder

from .models import Pair, ids_of, made

Seen = dict[str, tuple[torch.Tensor, torch.Tensor]]  # a module's input and its output


@dataclass(frozen=True)
class Family:
    """Where transformers keeps the activations that a trace names; `*` is the layer.

    Attributes:
        norms: the module of each norm.
        given: activations that are a module's input.
        gives: activations that are a module's output.
        out_proj: the output projection of the attention.
        last: the final norm.
        absent: names that a trace of the family does not have.
    """

    kind: str
    config: dict[str, Any]
    norms: Mapping[str, str]
    given: Mapping[str, str]
    gives: Mapping[str, str]
    out_proj: str
    last: str | None = None
    absent: tuple[str, ...] = ()


LLAMA_MLP = {
    "given": {"mlp.hook_post": "model.layers.*.mlp.down_proj"},
    "gives": {
        "mlp.hook_pre": "model.layers.*.mlp.gate_proj",
        "mlp.hook_pre_linear": "model.layers.*.mlp.up_proj",
    },
    "out_proj": "model.layers.*.self_attn.o_proj",
    "last": "model.norm",
}
LLAMA_SIZES: dict[str, Any] = {
    **{"vocab_size": 97, "hidden_size": 24, "intermediate_size": 50, "num_hidden_layers": 2},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"pad_token_id": 0},
}
FAMILIES = {
    "bert": Family(
        "BertForMaskedLM",
        {
            **{"vocab_size": 97, "hidden_size": 24, "num_attention_heads": 3},
            **{"num_hidden_layers": 2, "intermediate_size": 50, "max_position_embeddings": 64},
            "layer_norm_eps": 1e-2,
        },
        norms={
            "ln1": "bert.encoder.layer.*.attention.output.LayerNorm",
            "ln2": "bert.encoder.layer.*.output.LayerNorm",
        },
        given={
            "hook_resid_mid": "bert.encoder.layer.*.attention.output.LayerNorm",
            "mlp.hook_post": "bert.encoder.layer.*.output.dense",
            "hook_resid_post": "bert.encoder.layer.*.output.LayerNorm",
        },
        gives={
            "mlp.hook_pre": "bert.encoder.layer.*.intermediate.dense",
            "hook_mlp_out": "bert.encoder.layer.*.output.dense",
            "hook_normalized_resid_post": "bert.encoder.layer.*.output.LayerNorm",
        },
        out_proj="bert.encoder.layer.*.attention.output.dense",
        absent=("ln_final.hook_scale", "mlp.hook_pre_linear", "ln1_post.hook_scale", "rot_q"),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        {"vocab_size": 97, "n_positions": 64, "n_embd": 33, "n_head": 3, "n_layer": 2},
        norms={"ln1": "transformer.h.*.ln_1", "ln2": "transformer.h.*.ln_2"},
        given={
            "hook_resid_mid": "transformer.h.*.ln_2",
            "mlp.hook_post": "transformer.h.*.mlp.c_proj",
        },
        gives={"mlp.hook_pre": "transformer.h.*.mlp.c_fc", "hook_mlp_out": "transformer.h.*.mlp"},
        out_proj="transformer.h.*.attn.c_proj",
        last="transformer.ln_f",
        absent=("normalized_resid_post", "mlp.hook_pre_linear", "hook_token_type_embed"),
    ),
    "llama": Family(
        "LlamaForCausalLM",
        {**LLAMA_SIZES, "rms_norm_eps": 1e-2, "attention_bias": True},
        norms={
            "ln1": "model.layers.*.input_layernorm",
            "ln2": "model.layers.*.post_attention_layernorm",
        },
        **LLAMA_MLP,
        absent=("normalized_resid_post", "ln2_post.hook_normalized", "hook_pos_embed"),
    ),
    "gpt_neox": Family(  # attention and MLP in parallel, with a norm each
        "GPTNeoXForCausalLM",
        {
            **{name: size for name, size in LLAMA_SIZES.items() if name != "num_key_value_heads"},
            "rotary_pct": 0.5,
        },
        norms={
            "ln1": "gpt_neox.layers.*.input_layernorm",
            "ln2": "gpt_neox.layers.*.post_attention_layernorm",
        },
        given={"mlp.hook_post": "gpt_neox.layers.*.mlp.dense_4h_to_h"},
        gives={
            "mlp.hook_pre": "gpt_neox.layers.*.mlp.dense_h_to_4h",
            "hook_mlp_out": "gpt_neox.layers.*.mlp",
        },
        out_proj="gpt_neox.layers.*.attention.dense",
        last="gpt_neox.final_layer_norm",
        absent=("resid_mid", "normalized_resid_post", "mlp.hook_pre_linear"),
    ),
    "gptj": Family(  # attention and MLP in parallel, with one norm for both
        "GPTJForCausalLM",
        {"vocab_size": 97, "n_embd": 24, "n_head": 3, "n_layer": 2, "rotary_dim": 4},
        norms={"ln1": "transformer.h.*.ln_1"},
        given={"mlp.hook_post": "transformer.h.*.mlp.fc_out"},
        gives={"mlp.hook_pre": "transformer.h.*.mlp.fc_in", "hook_mlp_out": "transformer.h.*.mlp"},
        out_proj="transformer.h.*.attn.out_proj",
        last="transformer.ln_f",
        absent=("resid_mid", "ln2.hook_normalized", "mlp.hook_pre_linear"),
    ),
    "olmo2": Family(  # norms only after attention and MLP
        "Olmo2ForCausalLM",
        {**LLAMA_SIZES, "rms_norm_eps": 1e-2},
        norms={
            "ln1_post": "model.layers.*.post_attention_layernorm",
            "ln2_post": "model.layers.*.post_feedforward_layernorm",
        },
        **LLAMA_MLP,
        absent=("ln1.hook_scale", "ln2.hook_normalized", "normalized_resid_post"),
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {**LLAMA_SIZES, "head_dim": 10, "sliding_window": 6, "query_pre_attn_scalar": 10},
        norms={
            "ln1": "model.layers.*.input_layernorm",
            "ln1_post": "model.layers.*.post_attention_layernorm",
            "ln2": "model.layers.*.pre_feedforward_layernorm",
            "ln2_post": "model.layers.*.post_feedforward_layernorm",
        },
        **LLAMA_MLP
        | {
            "gives": {
                **LLAMA_MLP["gives"],
                "hook_attn_out": "model.layers.*.post_attention_layernorm",
                "hook_mlp_out": "model.layers.*.post_feedforward_layernorm",
            }
        },
        absent=("normalized_resid_post", "ln3.hook_scale"),
    ),
}


# Other families whose norms, MLPs and sums have the same names as in one of the families above.
ALIKE = {
    **dict.fromkeys(("albert", "camembert", "distilbert", "electra", "mpnet", "roberta"), "bert"),
    **dict.fromkeys(("deberta-v2", "jina_embeddings_v3", "xlm-roberta"), "bert"),
    **dict.fromkeys(("bloom", "gpt_neo", "opt"), "gpt2"),
    **dict.fromkeys(("eurobert", "gemma", "granite", "mistral", "phi3", "qwen2", "qwen3"), "llama"),
    **dict.fromkeys(("olmo", "smollm3", "stablelm"), "llama"),
    **{"falcon": "gpt_neox", "olmo3": "olmo2", "phi": "gptj", "starcoder2": "gpt2"},
    **dict.fromkeys(("gemma3", "gemma3_text"), "gemma2"),
}
# These families are in neither FAMILIES nor ALIKE: their blocks have names of their own, or the
# blocks are of another kind, such as blocks with experts.
# Each value names the tests of a family, or says why the family needs no test of its own.
ELSEWHERE = {
    "modernbert": "test_a_first_layer_without_its_norm",
    **dict.fromkeys(("gte", "nomic_bert"), "a BERT with a gate, whose parts both are held above"),
    **dict.fromkeys(("gpt_oss", "mixtral", "qwen3_moe"), "experts, whose inside has no names"),
    **dict.fromkeys(("t5", "mt5"), "test_a_decoder_numbers_its_three_norms"),
    **dict.fromkeys(("clip", "clip_text_model", "clip_vision_model"), "test_clip.py"),
    **dict.fromkeys(("dinov2", "vit"), "images: test_dinov2.py and test_vit.py"),
}


def block_names(name: str) -> set[str]:
    """Return a trace's names for the norms, the MLP and the sums of a family's last layer."""
    sizes, kinds = SMALL[name]
    design, _ = design_of({"model_type": name, "architectures": [kinds[0]], **sizes}, "config.json")
    body = design.build({part: np.ones(shape) for part, shape in design.shapes()})
    return {hook for hook in body.layers[-1].hooks if not hook.startswith("attn.")}


def test_every_family_is_tested_or_shares_the_names_of_another() -> None:
    assert not set(FAMILIES) & (set(ALIKE) | set(ELSEWHERE))
    assert {*FAMILIES, *ALIKE, *ELSEWHERE} == set(PUBLISHED)
    for name, other in ALIKE.items():
        assert block_names(name) == block_names(other), name


def watched(pair: Pair, *given: Any, **named: Any) -> Seen:
    """Return each module's first input and its output in a run of transformers' model."""
    seen: Seen = {}

    def kept(name: str) -> Any:
        def hook(_: Any, given: Any, gave: Any) -> None:
            if given and isinstance(given[0], torch.Tensor) and isinstance(gave, torch.Tensor):
                seen[name] = given[0], gave

        return hook

    with ExitStack() as stack:
        for name, part in pair.theirs.named_modules():
            stack.enter_context(part.register_forward_hook(kept(name)))
        pair.run(*given, **named)
    return seen


def norm_scale(module: Any, x: Any) -> Any:
    """Return the divisor of a norm.

    A LayerNorm divides by sqrt(variance + epsilon), an RMSNorm by sqrt(mean square + epsilon).
    """
    if isinstance(module, torch.nn.LayerNorm):
        return np.sqrt(x.var(-1, keepdims=True) + module.eps)
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    return np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def compare_norm(pair: Pair, trace: Any, seen: Seen, ours: str, theirs: str) -> None:
    """Compare a norm's scale and output, and the output recomputed from the scale."""
    given, gave = (array.numpy() for array in seen[theirs])
    module = pair.theirs.get_submodule(theirs)
    scale = trace[f"{ours}.hook_scale"]
    pair.near(scale, norm_scale(module, given), f"{ours} scale")
    pair.near(trace[f"{ours}.hook_normalized"], gave, f"{ours} normalized")
    is_centred = isinstance(module, torch.nn.LayerNorm)
    alone = (given - is_centred * given.mean(-1, keepdims=True)) / scale
    weight = module.weight.detach().numpy() + ("Gemma" in type(module).__name__)
    bias = module.bias.detach().numpy() if getattr(module, "bias", None) is not None else 0
    pair.near(alone * weight + bias, gave, f"{ours} by its scale")


def compare_result(pair: Pair, trace: Any, seen: Seen, ours: str, theirs: str) -> None:
    """Compare each head's share of the attention's output; with the bias, the shares sum to it."""
    given, gave = (array.numpy() for array in seen[theirs])
    module = pair.theirs.get_submodule(theirs)
    weight = module.weight.detach().numpy()
    weight = weight if isinstance(module, torch.nn.Linear) else weight.T  # GPT-2's are (in, out)
    result = trace[f"{ours}.hook_result"]
    size = given.shape[-1] // result.shape[-2]
    for head in range(result.shape[-2]):
        own = slice(head * size, (head + 1) * size)
        expected = given[..., own] @ weight[:, own].T
        pair.near(result[..., head, :], expected, f"result of head {head}")
    bias = 0 if module.bias is None else module.bias.detach().numpy()
    pair.near(result.sum(-2) + bias, gave, "the results' sum")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_name_holds_the_values_of_its_module(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    family = FAMILIES[name]
    pair = made(tmp_path, family.kind, family.config, dtype)
    ids, _ = ids_of(pair, [17], "right")
    seen = watched(pair, ids)
    names = ["scale", "normalized", "pre", "post", "result", *family.given, *family.gives]
    trace = pair.ours.trace(ids, names=names)
    for layer in range(2):
        for ours, theirs in family.norms.items():
            compare_norm(
                pair, trace, seen, f"blocks.{layer}.{ours}", theirs.replace("*", str(layer))
            )
        for side, found in enumerate((family.given, family.gives)):
            for ours, theirs in found.items():
                expected = seen[theirs.replace("*", str(layer))][side].numpy()
                array = trace[f"blocks.{layer}.{ours}"]
                pair.near(array, expected.reshape(array.shape), f"{ours} {layer}")
        out_proj = family.out_proj.replace("*", str(layer))
        compare_result(pair, trace, seen, f"blocks.{layer}.attn", out_proj)
    if family.last is not None:
        compare_norm(pair, trace, seen, "ln_final", family.last)
    for absent in family.absent:
        with pytest.raises(KeyError, match="the nearest are"):
            pair.ours.trace(ids, names=absent)


def test_a_first_layer_without_its_norm(tmp_path: Path) -> None:
    sizes = {
        **{"vocab_size": 97, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2},
        **{"intermediate_size": 50, "global_attn_every_n_layers": 2, "local_attention": 6},
        **{"reference_compile": False, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
        **{"bos_token_id": 1, "eos_token_id": 2},
    }
    pair = made(tmp_path, "ModernBertForMaskedLM", sizes, torch.float64)
    ids, _ = ids_of(pair, [9], "right")
    seen = watched(pair, ids)
    trace = pair.ours.trace(ids, names=["scale", "normalized", "pre", "pre_linear", "post"])
    assert ("ln1.scale", 0) not in trace
    with pytest.raises(KeyError, match="exists only in layer 1"):
        pair.ours.trace(ids, names="blocks.0.ln1.hook_scale")
    compare_norm(pair, trace, seen, "blocks.1.ln1", "model.layers.1.attn_norm")
    compare_norm(pair, trace, seen, "blocks.0.ln2", "model.layers.0.mlp_norm")
    compare_norm(pair, trace, seen, "ln_final", "model.final_norm")
    both = seen["model.layers.1.mlp.Wi"][1].numpy()  # the gate, then the part that it multiplies
    for number, ours in enumerate(("mlp.pre", "mlp.pre_linear")):
        pair.near(trace[ours, 1], np.split(both, 2, -1)[number].reshape(1, 9, 50), ours)
    post = seen["model.layers.1.mlp.Wo"][0].numpy()
    pair.near(trace["mlp.post", 1], post.reshape(1, 9, 50), "post")


def test_a_decoder_numbers_its_three_norms(tmp_path: Path) -> None:
    sizes = {
        **{"vocab_size": 97, "d_model": 24, "num_heads": 3, "d_kv": 10, "d_ff": 40},
        **{"num_layers": 2, "decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": 1},
    }
    pair = made(tmp_path, "T5ForConditionalGeneration", sizes, torch.float64)
    ids, _ = ids_of(pair, [11], "right")
    answer, _ = ids_of(pair, [7], "right", seed=1)
    answer[0, 0] = 3
    seen = watched(pair, ids, decoder_input_ids=answer)
    names = ["scale", "normalized", "pre", "post", "result"]
    trace = pair.ours.trace(ids, target=answer, names=names)
    for side, count in (("encoder", 2), ("decoder", 3)):
        for layer in (0, 1):
            at = f"{side}.block.{layer}.layer"
            for number in range(count):
                ours, theirs = f"{side}.{layer}.ln{number + 1}", f"{at}.{number}.layer_norm"
                compare_norm(pair, trace, seen, ours, theirs)
            feed = f"{at}.{count - 1}.DenseReluDense"
            pre, post = seen[f"{feed}.wi"][1].numpy(), seen[f"{feed}.wo"][0].numpy()
            pair.near(trace[f"{side}.{layer}.mlp.hook_pre"], pre, "pre")
            pair.near(trace[f"{side}.{layer}.mlp.hook_post"], post, "post")
            compare_result(pair, trace, seen, f"{side}.{layer}.attn", f"{at}.0.SelfAttention.o")
        compare_norm(pair, trace, seen, f"{side}.ln_final", f"{side}.final_layer_norm")
    compare_result(
        pair, trace, seen, "decoder.1.cross_attn", "decoder.block.1.layer.1.EncDecAttention.o"
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_run_records_the_names_that_its_family_lists(name: str) -> None:
    """A run records exactly the names that its family lists, with 0 at padding."""
    sizes, kinds = SMALL[name]
    values = {"model_type": name, "architectures": [kinds[0]], **sizes}
    design, _ = design_of(values, "config.json")
    rng = np.random.default_rng(0)
    body = design.build({part: rng.standard_normal(shape) for part, shape in design.shapes()})
    texts, record = [np.arange(3, 10), np.arange(5, 8)], Recorder(lambda name: True)
    for top_k in (None, 2):
        if isinstance(design, VisionDesign):
            size = design.grid[0] * design.grid[1] + 1
            images = rng.standard_normal((2, design.channels, *design.image))
            positions, cu = np.tile(np.arange(size), 2), np.array([0, size, 2 * size])
            body.run(PackedIds(images, cu, positions), record=record, top_k=top_k)
        elif isinstance(body, EncoderDecoder):
            batch = PackedIds.of(texts)
            rows, _ = body.run(batch, record=record.under("encoder."), top_k=top_k)
            encoded = EncodedTexts(rows, batch.cu)
            ids, mask = np.array([[0, 3, 4], [0, 5, 6]]), np.ones((2, 3), bool)
            body.decode(ids, mask, encoded, record=record.under("decoder."), top_k=top_k)
        else:
            body.run(PackedIds.of(texts), record=record, top_k=top_k)
    is_pair = isinstance(body, EncoderDecoder)
    assert sorted(record.arrays) == sorted(body.pair_hook_names if is_pair else body.hook_names)
    for full, array in record.arrays.items():
        if array.shape[:2] == (2, 7):  # one row for each position of both texts
            assert array[0].any(), full
            assert not array[1, 3:].any(), full
