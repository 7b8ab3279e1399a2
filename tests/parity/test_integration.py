"""Tests of qkv as the attention of transformers' models, against their eager attention."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers

from qkv.attend.arguments import check_call
from qkv.integrations._tensors import as_array
from qkv.integrations.transformers import attend, mask, register

from .models import double, scatter

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 70,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 12}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}

ENCODERS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 20},
    "bert": {},
    "camembert": {},
    "data2vec-text": {},
    "distilbert": {},
    "electra": {"embedding_size": 20},
    "ernie": {},
    "esm": {"position_embedding_type": "rotary", "token_dropout": False, "mask_token_id": 3},
    "eurobert": GROUPED,
    "mobilebert": {"embedding_size": 20, "intra_bottleneck_size": 24},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "roberta": {},
    "xlm-roberta": {},
}
DECODERS: dict[str, dict[str, Any]] = {
    "biogpt": {},
    "cohere": GROUPED,
    "cohere2": {**GROUPED, **MIXED, "sliding_window": 5},
    "gemma": GROUPED,
    "gemma2": {
        **GROUPED,
        **MIXED,
        "sliding_window": 5,
        "query_pre_attn_scalar": 7,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3_text": {**GROUPED, **MIXED, "sliding_window": 5, "query_pre_attn_scalar": 7},
    "glm4": {**GROUPED, "partial_rotary_factor": 0.5},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_oss": {**GROUPED, **MIXED, **EXPERTS, "sliding_window": 5},
    "granite": {**GROUPED, "attention_multiplier": 0.3},
    "helium": {"num_key_value_heads": 2, "head_dim": 8},
    "llama": GROUPED,
    "llama4_text": {
        **GROUPED,
        **EXPERTS,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 70,
        "attention_chunk_size": 5,
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
    },
    "ministral": {**GROUPED, **MIXED, "sliding_window": 5},
    "mistral": {**GROUPED, "sliding_window": 5},
    "mixtral": {**GROUPED, **EXPERTS},
    "modernbert-decoder": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "nemotron": GROUPED,
    "olmo2": {"num_key_value_heads": 2},
    "opt": {"ffn_dim": 70, "word_embed_proj_dim": 48},
    "phi": {"num_key_value_heads": 2},
    "phi3": {"num_key_value_heads": 2, "sliding_window": 5},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": GROUPED,
    "smollm3": {"num_key_value_heads": 2},
    "stablelm": {"num_key_value_heads": 2},
    "starcoder2": {"num_key_value_heads": 2, "sliding_window": 5},
}
IMAGE = {"image_size": 24, "patch_size": 6}
VISION: dict[str, dict[str, Any]] = {
    "clip_vision_model": IMAGE,
    "deit": IMAGE,
    "dinov2": IMAGE,
    "siglip_vision_model": IMAGE,
    "vit": IMAGE,
}
PAIR = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 70,
    "decoder_ffn_dim": 70,
    "decoder_start_token_id": 2,
}
PAIRS: dict[str, dict[str, Any]] = {
    "bart": PAIR,
    "m2m_100": PAIR,
    "marian": PAIR,
    "pegasus": PAIR,
    "t5": {
        "d_model": 48,
        "d_kv": 12,
        "d_ff": 70,
        "num_layers": 2,
        "num_heads": 6,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
    },
}
WHISPER = {**PAIR, "num_mel_bins": 8, "max_source_positions": 20}
BOUND = {torch.float32: 2e-5, torch.float64: 1e-10, torch.bfloat16: 4e-2}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register()
    with torch.inference_mode():
        yield


def made(
    name: str,
    options: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    kind: Any = transformers.AutoModel,
) -> Any:
    """Return a random model of a family, with eager attention."""
    config = transformers.AutoConfig.for_model(name, **SIZES | options)
    with torch.inference_mode(False), double(dtype == torch.float64):
        model = kind.from_config(config, attn_implementation="eager").to(dtype).eval()
        scatter(model)
    if "num_local_experts" in options:
        model.set_experts_implementation("eager")
    return model


def both(model: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Return the outputs with eager attention and with qkv; fail if qkv did not run."""
    calls = mock.patch("qkv.integrations.transformers.check_call", wraps=check_call)
    with double(model.dtype == torch.float64):
        eager = model(**inputs)
        model.set_attn_implementation("qkv")
        with calls as called:
            ours = model(**inputs)
    assert called.call_count
    model.set_attn_implementation("eager")
    return eager, ours


def near(found: Any, expected: Any, dtype: torch.dtype) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert torch.isfinite(expected).all()
    allowed = BOUND[dtype] * max(1.0, float(expected.abs().max()))
    assert float((found - expected).abs().max()) <= allowed


def words(lengths: list[int], side: str = "right") -> dict[str, Any]:
    """Return random ids (B, T), padded on one side, and their mask if there is padding."""
    rng = np.random.default_rng(0)
    longest = max(lengths)
    positions = np.arange(longest)
    ends = np.array(lengths)[:, None]
    mask = positions < ends if side == "right" else positions >= longest - ends
    ids = np.where(mask, rng.integers(4, 97, (len(lengths), longest)), 0)
    inputs = {"input_ids": torch.tensor(ids)}
    if not mask.all():
        inputs["attention_mask"] = torch.tensor(mask.astype(np.int64))
    return inputs


def compare(model: Any, inputs: dict[str, Any]) -> None:
    """Compare the last hidden states, except at padding."""
    eager, ours = both(model, inputs)
    real = inputs.get("attention_mask")
    found, expected = ours.last_hidden_state, eager.last_hidden_state
    if real is not None and real.shape == expected.shape[:2]:
        found, expected = found[real.bool()], expected[real.bool()]
    near(found, expected, model.dtype)


TEXTS = {**ENCODERS, **DECODERS}
TYPES = [
    *((name, torch.float32) for name in TEXTS if name != "mobilebert"),
    # without norms, MobileBERT's values grow to thousands, for which float32 is too coarse
    ("mobilebert", torch.float64),
    *((name, torch.float64) for name in ("bert", "modernbert", "llama", "gemma2", "gpt_oss")),
    ("qwen3", torch.float64),
    *((name, torch.bfloat16) for name in ("bert", "llama", "gemma2", "gpt_oss")),
]


@pytest.mark.parametrize(("name", "dtype"), TYPES)
def test_a_text_model_agrees_with_eager_attention(name: str, dtype: torch.dtype) -> None:
    model = made(name, TEXTS[name], dtype)
    compare(model, words([19, 19]))
    for side in ("right", "left"):
        compare(model, words([19, 7, 1, 12], side))


FAMILIES = {**TEXTS, **VISION, **PAIRS, "whisper": WHISPER}


def inputs_of(name: str) -> dict[str, Any]:
    """Return inputs for a model of a family: padded texts, images, or sounds."""
    written = {"decoder_input_ids": words([5, 5, 5])["input_ids"]}
    if name in VISION:
        return {"pixel_values": torch.randn(2, 3, 24, 24)}
    if name == "whisper":
        return {"input_features": torch.randn(3, 8, 40)} | written
    return words([19, 7, 12]) | (written if name in PAIRS else {})


@pytest.mark.parametrize("name", [*VISION, *PAIRS, "whisper"])
def test_a_model_of_images_or_pairs_agrees_with_eager_attention(name: str) -> None:
    compare(made(name, FAMILIES[name]), inputs_of(name))


PATCHES = {"image_size": 32, "patch_size": 4}
UNUSUAL: dict[str, dict[str, Any]] = {
    "diffllama": {"num_key_value_heads": 2, "head_dim": 8},  # attends twice in each layer
    "layoutlm": {},  # makes its own mask
    "pixtral": {**PATCHES, "head_dim": 8},  # packs the patches of all images into one row
    "swin": {
        **PATCHES,
        "embed_dim": 24,
        "depths": [2, 2],
        "num_attention_heads": [2, 4],
        "window_size": 4,
    },
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_model_with_unusual_layers_agrees_with_eager_attention(name: str) -> None:
    inputs = words([9, 5])
    if name == "layoutlm":
        inputs["bbox"] = torch.tensor([5, 5, 9, 9]).repeat(2, 9, 1)
    elif "image_size" in UNUSUAL[name]:
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    compare(made(name, UNUSUAL[name]), inputs)


def generated(model: Any, inputs: dict[str, Any], cache: str | None, count: int) -> list[Any]:
    """Generate `count` tokens in float64 with eager attention, then with that of qkv."""
    texts = []
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        with double(True):
            texts.append(
                model.generate(
                    **inputs,
                    max_new_tokens=count,
                    do_sample=False,
                    cache_implementation=cache,
                    disable_compile=True,
                )
            )
    return texts


@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3_text", "gpt2", "gpt_oss", "llama", "llama4_text", "mistral", "phi3"]
)
def test_generated_tokens_are_those_of_eager_attention(name: str) -> None:
    model = made(name, DECODERS[name], torch.float64, transformers.AutoModelForCausalLM)
    for inputs in (words([9]), words([9, 3, 6], "left")):
        assert torch.equal(*generated(model, inputs, None, count=24))


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_a_cache_of_any_kind_generates_the_same(cache: str) -> None:
    model = made("gemma2", DECODERS["gemma2"], torch.float64, transformers.AutoModelForCausalLM)
    assert torch.equal(*generated(model, words([9, 3], "left"), cache, count=16))


@pytest.mark.parametrize("name", FAMILIES)
def test_output_attentions_are_those_of_eager_attention(name: str) -> None:
    model = made(name, FAMILIES[name], torch.float64 if name == "mobilebert" else torch.float32)
    inputs = inputs_of(name)
    pair = name in PAIRS or name == "whisper"
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    with double(name == "mobilebert"):
        eager = model(**inputs, output_attentions=True)
        model.set_attn_implementation("qkv")
        ours = model(**inputs, output_attentions=True)
        plain = model(**inputs)
    for kind in kinds if pair else ("attentions",):
        assert getattr(plain, kind) is None
        assert len(getattr(ours, kind)) >= 2
        for found, expected in zip(getattr(ours, kind), getattr(eager, kind), strict=True):
            real = inputs.get("attention_mask", torch.ones(found.shape[0], found.shape[2]))
            if kind.startswith(("decoder", "cross")):
                real = torch.ones(found.shape[0], found.shape[2])
            rows = real.bool()[:, None, :, None].expand(found.shape)
            near(found[rows], expected[rows], model.dtype)


def test_a_custom_mask_is_applied() -> None:
    model = made("llama", DECODERS["llama"])
    seen = torch.rand(2, 1, 19, 19) < 0.5
    seen |= torch.eye(19, dtype=torch.bool)
    inputs = words([19, 19]) | {
        "attention_mask": torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    }
    compare(model, inputs)
    model.set_attn_implementation("qkv")
    ours = model(**inputs).last_hidden_state
    near(model(**inputs | {"attention_mask": seen}).last_hidden_state, ours, torch.float32)


def test_packed_texts_do_not_attend_to_each_other() -> None:
    model = made("llama", DECODERS["llama"])
    positions = torch.tensor([[*range(7), *range(12)]])
    compare(model, words([19]) | {"position_ids": positions, "use_cache": False})


@pytest.mark.parametrize("name", ["bert", "gemma2"])
def test_no_mask_is_built_where_rules_suffice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a mask was made")

    model = made(name, TEXTS[name])
    model.set_attn_implementation("qkv")
    for function in ("sdpa_mask", "eager_mask"):
        monkeypatch.setattr(transformers.masking_utils, function, refuse)
    for side in ("left", "right"):
        model(**words([19, 7, 12], side))


def mask_of(**changes: Any) -> Any:
    """Return the mask that a model asks for, by default causal over seven positions."""
    given = {
        "batch_size": 2,
        "q_length": 7,
        "kv_length": 7,
        "mask_function": transformers.masking_utils.causal_mask_function,
        "dtype": torch.float32,
    }
    return mask(**given | changes)


def functions() -> dict[str, Any]:
    """Return mask functions of transformers, by name."""
    masks = transformers.masking_utils
    chunk = masks.chunked_overlay(3, torch.tensor([0, 1]))
    made = {
        "causal": masks.causal_mask_function,
        "bidirectional": masks.bidirectional_mask_function,
        "chunks": masks.and_masks(chunk, masks.causal_mask_function),
        "causal, or the first two": masks.or_masks(
            masks.causal_mask_function, lambda b, h, q, k: k < 2
        ),
    }
    both_sides = masks.sliding_window_bidirectional_overlay(3)
    made["window 3 on both sides, causal"] = masks.and_masks(both_sides, made["causal"])
    for size in (1, 2, 4):
        made[f"window {size}"] = masks.sliding_window_causal_mask_function(size)
        made[f"window {size}, both sides"] = masks.sliding_window_bidirectional_mask_function(size)
    return made


@pytest.mark.parametrize("name", functions())
def test_mask_rules_allow_the_same_keys_as_the_mask(name: str) -> None:
    function = functions()[name]
    paddings = [None, torch.tensor([[1] * 8, [1] * 5 + [0] * 3]) > 0]
    paddings += [paddings[1].flip(1), torch.tensor([[1, 0, 1, 1, 0, 1, 1, 1]] * 2) > 0]
    for padding in paddings:
        for length, keys, start, first in [
            *((size, size, 0, 0) for size in range(1, 6)),
            *((1, size, size - 1, 0) for size in range(2, 6)),
            *((2, size, size - 2, 0) for size in range(3, 6)),
            *((3, 8, start, 0) for start in range(6)),
            *((1, size, 6, 7 - size) for size in range(1, 6)),
            (2, 4, 5, 3),
            (3, 3, 4, 2),
            (4, 9, 1, 0),
        ]:
            asked = {
                "batch_size": 2,
                "q_length": length,
                "kv_length": keys,
                "q_offset": start,
                "kv_offset": first,
                "mask_function": function,
                "attention_mask": padding,
                "use_vmap": "or" in name,
            }
            expected = transformers.masking_utils.sdpa_mask(**asked, allow_is_causal_skip=False)
            query, key = torch.zeros(2, 3, length, 4), torch.zeros(2, 3, keys, 4)
            _, weights = attend(
                torch.nn.Module().eval(), query, key, key, mask(**asked), output_attentions=True
            )
            assert torch.equal(weights > 0, expected.expand(weights.shape)), asked


def test_padding_of_another_shape_is_left_to_transformers() -> None:
    with pytest.raises(IndexError):
        mask_of(attention_mask=torch.ones(2, 1, 7, dtype=torch.bool))


def test_a_mask_is_what_models_without_the_interface_expect() -> None:
    lowest = torch.finfo(torch.float32).min
    expected = torch.full((7, 7), lowest).triu(1)
    made = mask_of()
    assert made.shape == (2, 1, 7, 7)
    assert made.dtype == torch.float32
    assert torch.equal((torch.zeros(2, 3, 7, 7) + made)[1, 2], expected)
    assert made[:, :, :, :7] is not None
    assert not made.rules.changed
    assert torch.equal(made[1, 0, :, :4], expected[:, :4])
    assert torch.equal(made.clone()[0, 0], expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_full_slice_or_detach_of_a_mask_keeps_its_rules(gradients: bool) -> None:
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        made = mask_of()
        for again in (made[:, :, :, :7], made.detach()):
            assert again.rules is made.rules
        assert not made.rules.changed
        made[:, :, :, :7].zero_()
        assert made.rules.changed
        assert not made.clone().any()


@pytest.mark.parametrize("how", ["in place", "a view", "a slice"])
def test_a_mask_changed_in_place_is_applied_as_changed(how: str) -> None:
    query = torch.randn(2, 3, 7, 8)
    module = torch.nn.Module().eval()
    changed = mask_of()
    if how == "in place":
        changed.mul_(0)
    elif how == "a view":
        changed[:, 0].zero_()
    else:
        changed[:, :, :, 1:] = 0
    out, _ = attend(module, query, query, query, changed)
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    near(out.transpose(1, 2), expected, torch.float32)


def test_tensors_are_read_without_a_copy() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.zeros(2, 5, 3, 8, dtype=dtype).transpose(1, 2)
        array = as_array(tensor)
        assert array.strides == tuple(step * array.itemsize for step in tensor.stride())
        assert array.ctypes.data == tensor.data_ptr()
        out, _ = attend(torch.nn.Module().eval(), tensor, tensor, tensor, None, is_causal=True)
        assert out.shape == (2, 5, 3, 8)
        assert out.is_contiguous()
        assert out.dtype == dtype


def test_a_query_in_float32_meets_values_in_bfloat16_under_autocast() -> None:
    model = made("llama", DECODERS["llama"])
    with torch.autocast("cpu", torch.bfloat16):
        eager, ours = both(model, words([19]))
    near(ours.last_hidden_state.bfloat16(), eager.last_hidden_state.bfloat16(), torch.bfloat16)


def test_tensors_not_on_the_cpu_are_an_error() -> None:
    tensor = torch.zeros(1, 2, 3, 4, device="meta")
    with pytest.raises(ValueError, match="on meta and qkv computes on the CPU"):
        attend(torch.nn.Module().eval(), tensor, tensor, tensor, None)


def test_a_model_that_is_not_on_the_cpu_is_an_error() -> None:
    model = made("llama", DECODERS["llama"]).to("meta")
    model.set_attn_implementation("qkv")
    with pytest.raises(ValueError, match="on meta and qkv computes on the CPU"):
        model(**{name: tensor.to("meta") for name, tensor in words([9, 4]).items()})


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace gives several warnings of its deprecation
def test_tracing_is_an_error() -> None:
    model = made("bert", {"return_dict": False})
    model.set_attn_implementation("qkv")
    with pytest.raises(NotImplementedError, match=r"torch\.jit and torch\.fx cannot trace qkv"):
        torch.jit.trace(model, words([9])["input_ids"])


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks", "cache"])
def test_unsupported_arguments_are_refused_by_name(name: str) -> None:
    tensor = torch.zeros(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match=f"Module passes {name} to its attention"):
        attend(torch.nn.Module().eval(), tensor, tensor, tensor, None, **{name: tensor})


def test_queries_of_unknown_position_are_an_error() -> None:
    query, key = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match="3 queries and 5 keys"):
        attend(torch.nn.Module().eval(), query, key, key, None)
    assert attend(torch.nn.Module(), query, key, key, None, is_causal=False)[0].shape[1] == 3
    value = torch.arange(5.0)[:, None].expand(1, 2, 5, 4)
    out, _ = attend(torch.nn.Module().eval(), query[:, :, :1], key, value, None)
    assert torch.equal(out, torch.full((1, 1, 2, 4), 2.0))


def test_a_family_without_the_interface_keeps_its_own_attention() -> None:
    for name in ("bloom", "falcon", "mpnet"):
        model = made(name, {"n_layer": 2, "n_head": 6})
        inputs = words([9, 4])
        eager = model(**inputs).last_hidden_state
        model.config._attn_implementation = "qkv"  # as from_pretrained sets it
        assert torch.equal(model(**inputs).last_hidden_state, eager)


def test_the_page_shows_the_output_of_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "inside-other-models.md"
    blocks = re.findall(r"```(python|text)\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {}
    for kind, block in blocks:
        if kind == "python":
            with torch.inference_mode(False), torch.enable_grad():
                exec(block, names)
        else:
            assert capsys.readouterr().out == block
    assert [kind for kind, _ in blocks] == ["python", "text"] * 3


def test_compiled_and_plain_are_the_same() -> None:
    model = made("gemma2", DECODERS["gemma2"])
    model.set_attn_implementation("qkv")
    inputs = words([9, 4])
    real = inputs["attention_mask"].bool()
    plain = model(**inputs).last_hidden_state[real]
    compiled = torch.compile(model, backend="eager")(**inputs).last_hidden_state[real]
    near(compiled, plain, torch.float32)
