"""Tests of qkv.record in models with several parts, with windows, or with unusual layers.

Each record is correct, or qkv raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.integrations.transformers import register

from .models import scatter
from .test_integration import ENCODERS, PAIRS, SIZES, made, words

VISION = {
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "image_size": 24,
    "patch_size": 6,
}
TEXT = SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 24,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
QWEN = {
    "depth": 2,
    "hidden_size": 48,
    "out_hidden_size": 48,
    "num_heads": 6,
    "patch_size": 4,
    "intermediate_size": 70,
}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register()
    with torch.inference_mode():
        yield


def model_of(config: Any) -> Any:
    """Return a random model with eager attention."""
    with torch.inference_mode(False):
        model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
        scatter(model)
    return model


def images(texts: int = 2, size: int = 24) -> Any:
    return torch.randn(texts, 3, size, size, generator=torch.Generator().manual_seed(0))


def agree(trace: Any, attentions: Any, real: Any = None) -> None:
    """Compare the weight that each key receives in a trace and in eager attention. Skip padding."""
    assert trace.num_layers - len(trace.other_layers) == len(attentions)
    shown = [n for n in range(trace.num_layers) if n not in trace.other_layers]
    for layer, weights in zip(shown, attentions, strict=True):
        for text, rows in enumerate(weights):
            seen = np.ones(rows.shape[-1], bool) if real is None else real[text].bool().numpy()
            expected = rows.numpy()[:, seen][:, :, seen].sum(1)
            np.testing.assert_allclose(trace[text]["received", layer][0], expected, atol=1e-4)


def gemma3() -> tuple[Any, dict[str, Any]]:
    """Return a model and inputs with as many image patches as text tokens."""
    config = transformers.Gemma3Config(
        text_config=TEXT | {"query_pre_attn_scalar": 7, "sliding_window": 5},
        vision_config=VISION,
        mm_tokens_per_image=16,
        image_token_id=95,
    )
    return model_of(config), {
        "input_ids": torch.full((2, 16), 95),
        "pixel_values": images(),
        "token_type_ids": torch.zeros((2, 16), dtype=torch.long),
    }


def llava() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama"} | TEXT,
        vision_config={"model_type": "clip_vision_model"} | VISION,
        image_token_index=95,
    )
    return model_of(config), {
        "input_ids": torch.cat([torch.full((2, 16), 95), words([5, 5])["input_ids"]], 1),
        "pixel_values": images(),
    }


def clip() -> tuple[Any, dict[str, Any]]:
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION)
    return model_of(config), words([17, 17]) | {"pixel_values": images()}


@pytest.mark.parametrize(
    ("make", "parts", "layer"),
    [
        (gemma3, ["vision_tower", "language_model"], "Gemma3Attention"),
        (llava, ["vision_tower", "language_model"], "LlamaAttention"),
        (clip, ["vision_model", "text_model"], "CLIPAttention"),
    ],
)
def test_one_of_several_towers_must_be_named(make: Any, parts: list[str], layer: str) -> None:
    model, inputs = make()
    given: dict[Any, Any] = {}

    def keep(part: Any, args: Any, kwargs: Any) -> None:
        given[part] = args, kwargs

    hooks = [
        model.get_submodule(name).register_forward_pre_hook(keep, with_kwargs=True)
        for name in parts
    ]
    model(**inputs)
    for hook in hooks:
        hook.remove()
    asked = {"output_attentions": True, "use_cache": False, "past_key_values": None}
    expected = {
        name: part(*args, **kwargs | asked).attentions
        for name, (part, (args, kwargs)) in zip(parts, given.items(), strict=True)
    }
    model.set_attn_implementation("qkv")
    listed = rf"model\.{parts[0]} \(\w+\), model\.{parts[1]} \({layer}\)"
    message = rf"2 parts of {type(model).__name__}, {listed}; .* record\(module=model\.{parts[1]}\)"
    with pytest.raises(ValueError, match=message), qkv.record():
        model(**inputs)
    for name in parts:
        with qkv.record(module=model.get_submodule(name)) as trace:
            model(**inputs)
        agree(trace, expected[name])
    names = [f"w{i}" for i in range(inputs["input_ids"].shape[1])]
    with qkv.record(tokens=[names, names], module=model.get_submodule(parts[1])) as trace:
        model(**inputs)
    assert trace.tokens == [names, names]


def test_padding_counts_where_a_model_makes_its_own_mask() -> None:
    model = made("layoutlm", {})
    inputs = words([6, 3])
    inputs["bbox"] = torch.tensor([5, 5, 9, 9]).repeat(2, 6, 1)
    attentions = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("qkv")
    with qkv.record() as trace:
        model(**inputs)
    assert trace.lengths.tolist() == [6, 3]
    agree(trace, attentions, inputs["attention_mask"])
    with qkv.record() as positional:
        model(inputs["input_ids"], inputs["bbox"], inputs["attention_mask"])
    assert positional.lengths.tolist() == [6, 3]


@pytest.mark.parametrize("name", ["bert", "layoutlm"])  # layoutlm makes its own mask
def test_padding_and_tokens_changed_after_a_pass_do_not_change_its_record(name: str) -> None:
    model = made(name, {})
    model.set_attn_implementation("qkv")
    tokens, inputs = [list("abcde"), list("fgh")], words([5, 3])
    inputs["attention_mask"] = inputs["attention_mask"].bool()
    if name == "layoutlm":
        inputs["bbox"] = torch.tensor([5, 5, 9, 9]).repeat(2, 5, 1)
    with qkv.record(tokens=tokens) as trace:
        model(**inputs)
        inputs["attention_mask"].fill_(True)
        tokens[0].clear()
        tokens.pop()
    assert trace.tokens == [list("abcde"), list("fgh")]


def test_one_attention_that_is_run_in_two_halves_is_one_layer() -> None:
    model = made("diffllama", {"num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2})
    inputs = words([9, 5])
    attentions = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("qkv")
    with qkv.record() as trace:
        for _ in range(2):
            model(**inputs)
    assert trace.num_layers == 2
    agree(trace, attentions, inputs["attention_mask"])


def test_windowed_layers_are_refused_by_name() -> None:
    model = model_of(transformers.SwinConfig(**SWIN))
    model.set_attn_implementation("qkv")
    message = r"record: SwinLayer was given 2 rows, but SwinAttention got 8 x 16 tokens"
    with pytest.raises(NotImplementedError, match=message), qkv.record():
        model(images(2, 32))


def test_patches_of_several_images_in_a_row_are_refused() -> None:
    model = model_of(transformers.AutoConfig.for_model("qwen2_5_vl_vision", **QWEN))
    model.set_attn_implementation("qkv")
    patches = torch.randn(32, 3 * 2 * 4 * 4)
    with qkv.record(top_k=1) as trace:
        model(patches[:16], torch.tensor([[1, 4, 4]]))
    assert (trace.lengths.tolist(), trace.num_layers) == ([16], 2)
    message = "Attention was given 32 rows, but .* got 1 x 16 tokens"
    with pytest.raises(NotImplementedError, match=message), qkv.record():
        model(patches, torch.tensor([[1, 4, 4], [1, 4, 4]]))


def test_images_packed_into_one_sequence_are_refused() -> None:
    model = model_of(transformers.AutoConfig.for_model("pixtral", **VISION | {"head_dim": 8}))
    attentions = model(images(1), output_attentions=True).attentions
    model.set_attn_implementation("qkv")
    with qkv.record() as trace:
        model(images(1))
    agree(trace, attentions)
    message = "PixtralVisionModel was given 2 rows, but PixtralAttention got 1 x 32"
    with pytest.raises(NotImplementedError, match=message), qkv.record():
        model(images(2))


def test_a_layer_that_attends_twice_shows_its_self_attention() -> None:
    options = {k: v for k, v in TEXT.items() if "key" not in k and k != "head_dim"}
    config = transformers.Blip2QFormerConfig(**options, encoder_hidden_size=48)
    with torch.inference_mode(False):
        model = transformers.Blip2QFormerModel._from_config(config, attn_implementation="eager")
        scatter(model.eval())
    generator = torch.Generator().manual_seed(0)
    queries, patches = (torch.randn(2, 5, 48, generator=generator) for _ in range(2))
    asked = {"query_embeds": queries, "encoder_hidden_states": patches}
    attentions = model(**asked, output_attentions=True).attentions
    model.set_attn_implementation("qkv")
    with qkv.record() as trace:
        model(**asked)
    assert trace.other_layers == {1: "a second attention module in the same layer"}
    agree(trace, [attentions[0], attentions[2]])


def test_an_encoder_and_a_decoder_that_run_one_after_the_other_are_one_model() -> None:
    model = made("bart", PAIRS["bart"])
    model.set_attn_implementation("qkv")
    inputs, ids = words([9, 5], "left"), words([5, 5])["input_ids"]
    with qkv.record() as expected:
        model(**inputs, decoder_input_ids=ids)
    with qkv.record() as trace:
        encoded = model.encoder(**inputs).last_hidden_state
        model.decoder(
            ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=inputs["attention_mask"],
        )
    assert trace.other_layers == expected.other_layers
    assert trace.names() == expected.names()
    for name in expected.names():
        np.testing.assert_array_equal(trace[name], expected[name])
    with qkv.record(module=model.decoder) as decoder:
        model(**inputs, decoder_input_ids=ids)
    assert decoder.other_layers == {1: "cross-attention", 3: "cross-attention"}
    assert decoder.lengths.tolist() == [5, 5]


def test_two_models_in_a_block_are_not_mixed() -> None:
    first, second = (made("bert", ENCODERS["bert"]) for _ in range(2))
    for model in (first, second):
        model.set_attn_implementation("qkv")
    message = r"several models ran in one block \(BertModel, BertModel\); .* record\(module=model\)"

    def both(module: Any = None) -> Any:
        with qkv.record(module=module) as trace:
            first(**words([9]))
            second(**words([7]))
        return trace

    with pytest.raises(ValueError, match=message):
        both()
    trace = both(second)
    assert (trace.num_layers, len(trace.tokens)) == (3, 7)
    with (
        pytest.raises(RuntimeError, match="no attention of BertModel ran"),
        qkv.record(module=first),
    ):
        second(**words([9]))


def test_a_record_of_a_compiled_model_is_the_same() -> None:
    model = made("diffllama", {"num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2})
    model.set_attn_implementation("qkv")
    inputs = words([9, 5])
    with qkv.record() as expected:
        model(**inputs)
    compiled = torch.compile(model, backend="eager")
    for module in (None, model, compiled):
        with qkv.record(module=module) as trace:
            compiled(**inputs)
        assert trace.names() == expected.names()
        for name in expected.names():
            np.testing.assert_allclose(trace[name], expected[name], atol=1e-5)
