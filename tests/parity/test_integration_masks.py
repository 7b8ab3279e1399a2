"""Tests of masks that no option describes, with caches that change in place.

Blocks of tokens that attend in both directions, such as the patches of an image, are the usual
case. `transformers` passes them as a mask function, and expects the mask before the layers run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers

from qkv.integrations.transformers import attend, register

from .models import double, scatter
from .test_integration import DECODERS, MIXED, SIZES, generated, mask_of, near, words

VISION = {
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "image_size": 24,
    "patch_size": 6,
}
TEXT = SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8}
WINDOWS = TEXT | MIXED | {"layer_types": MIXED["layer_types"][:2], "sliding_window": 5}
GEMMA = WINDOWS | {"query_pre_attn_scalar": 7}
GEMMA4 = WINDOWS | {"use_bidirectional_attention": "vision", "global_head_dim": 8}
SIGLIP = VISION | {"model_type": "siglip_vision_model"}
# The sizes of a small model, and the name of the argument that says which tokens form blocks.
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "gemma3": (
        {"text_config": GEMMA, "vision_config": VISION, "mm_tokens_per_image": 16},
        "token_type_ids",
    ),
    "gemma3_text": (GEMMA | {"use_bidirectional_attention": True}, ""),
    "gemma4": (
        {
            "text_config": GEMMA4
            | {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 97},
            "vision_config": VISION | {"head_dim": 8, "num_key_value_heads": 6},
        },
        "mm_token_type_ids",
    ),
    "gemma4_unified": ({"text_config": GEMMA4}, "mm_token_type_ids"),
    "git": (SIZES | {"vision_config": VISION}, ""),
    "hrm_text": (TEXT | {"prefix_lm": True}, "token_type_ids"),
    "llama4_text": (SIZES | DECODERS["llama4_text"], ""),
    "paligemma": (
        {"text_config": TEXT | {"model_type": "gemma"}, "vision_config": SIGLIP},
        "token_type_ids",
    ),
    "paligemma2": (
        {"text_config": GEMMA | {"model_type": "gemma2"}, "vision_config": SIGLIP},
        "token_type_ids",
    ),
}
BLOCKS = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0, 0]])
# transformers itself does not generate with the mask of these families
SILENT = {"paligemma2"}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register()
    with torch.inference_mode():
        yield


def family(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a random model, and the blocks of 9 tokens as arguments of the model."""
    sizes, argument = FAMILIES[name]
    config = transformers.AutoConfig.for_model(name.rstrip("2"), **sizes)
    kind = transformers.AutoModelForCausalLM
    if "text_config" in sizes:
        kind = transformers.AutoModelForImageTextToText
    with torch.inference_mode(False), double(True):
        model = kind.from_config(config, attn_implementation="eager").double().eval()
        scatter(model)
    return model, {argument: BLOCKS} if argument else {}


def three_passes(model: Any, blocks: dict[str, Any], cache: Any) -> list[Any]:
    """Return the logits of three passes, of 5, 3 and 1 tokens."""
    ids, logits = words([9, 9])["input_ids"], []
    # gemma3 reads the blocks of all tokens so far; the other families read those of this pass
    whole = "gemma3" in model.config.model_type
    for first, last in ((0, 5), (5, 8), (8, 9)):
        here = {name: x[:, 0 if whole else first : last] for name, x in blocks.items()}
        with double(True):
            out = model(ids[:, first:last], past_key_values=cache, use_cache=True, **here)
        logits.append(out.logits)
    return logits


@pytest.mark.parametrize("name", FAMILIES)
def test_three_passes_with_a_static_cache_agree_with_eager_attention(name: str) -> None:
    model, blocks = family(name)
    config = model.config.get_text_config()
    passes = []
    for implementation in ("eager", "qkv"):
        model.set_attn_implementation(implementation)
        cache = transformers.StaticCache(config=config, max_cache_len=16)
        passes.append(three_passes(model, blocks, cache))
    for expected, found in zip(*passes, strict=True):
        near(found, expected, torch.float64)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", sorted({*FAMILIES} - SILENT))
def test_a_cache_of_any_kind_generates_the_tokens_of_eager_attention(name: str, cache: str) -> None:
    model, blocks = family(name)
    assert torch.equal(*generated(model, words([9, 9]) | blocks, cache, count=6))


def causal_or_in_one_block(ids: Any) -> Callable[..., Any]:
    masks = transformers.masking_utils
    return masks.or_masks(masks.causal_mask_function, masks.blockwise_overlay(ids))


@pytest.mark.parametrize("read", ["by attention", "as numbers"])
@pytest.mark.parametrize("plain", [True, False])
def test_a_mask_keeps_what_it_was_made_from(plain: bool, read: str) -> None:
    ids = torch.tensor([[0, 0, -1, -1, -1, -1, -1], [-1, 0, 0, 0, -1, -1, -1]])
    offset, padding = torch.tensor(0), torch.tensor([[1] * 7, [1] * 5 + [0] * 2]) > 0
    function = (
        transformers.masking_utils.causal_mask_function if plain else causal_or_in_one_block(ids)
    )
    asked = {"mask_function": function, "q_offset": offset, "attention_mask": padding}
    expected = transformers.masking_utils.sdpa_mask(2, 7, 7, **asked, allow_is_causal_skip=False)
    made = mask_of(**asked)
    offset.add_(7)
    padding.fill_(False)
    ids.fill_(0)
    if read == "as numbers":
        assert torch.equal(made.clone() == 0, expected)
        return
    query = torch.zeros(2, 3, 7, 4)
    module = torch.nn.Module().eval()
    _, weights = attend(module, query, query, query, made, output_attentions=True)
    assert torch.equal(weights > 0, expected.expand(weights.shape))
