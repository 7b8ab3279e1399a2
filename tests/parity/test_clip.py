"""Tests of CLIP against transformers: each tower, both towers, classes, texts and pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)

import qkv

from .models import EVERY_LAYER, Pair, compare_saved, compare_trace, double, ids_of, images_of, made

END = 39  # the last id
TEXT: dict[str, dict[str, Any]] = {
    "three heads": {
        **{"vocab_size": 40, "hidden_size": 33, "num_attention_heads": 3, "num_hidden_layers": 3},
        **{"intermediate_size": 40, "max_position_embeddings": 32, "eos_token_id": END},
        "projection_dim": 16,
    },
    "the token of the largest id": {
        **{"vocab_size": 50, "hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 2},
        **{"intermediate_size": 20, "max_position_embeddings": 24, "eos_token_id": 2},
        **{"projection_dim": 7, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
    },
}
VISION: dict[str, dict[str, Any]] = {
    "three heads": {
        **{"hidden_size": 33, "num_attention_heads": 3, "num_hidden_layers": 3},
        **{"intermediate_size": 40, "image_size": 20, "patch_size": 4, "projection_dim": 16},
    },
    "grey, with an edge": {
        **{"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 2},
        **{"intermediate_size": 20, "image_size": 14, "patch_size": 4, "num_channels": 1},
        **{"projection_dim": 7, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    },
}
TYPES = [torch.float32, torch.float64]
both_types = pytest.mark.parametrize("dtype", TYPES, ids=str)


def texts_of(pair: Pair, lengths: list[int], side: str) -> tuple[Any, Any]:
    """Return ids and a mask; put an end token in the middle of each text except the last.

    The first text also ends with an end token.
    """
    ids, mask = ids_of(pair, lengths, side)
    real = [np.flatnonzero(row) for row in mask]
    for row, positions in list(zip(ids, real, strict=True))[:-1]:
        row[positions[len(positions) // 2]] = END
    ids[0, real[0][-1]] = END
    return ids, mask


def both(text: dict[str, Any], vision: dict[str, Any], **others: Any) -> CLIPConfig:
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=9, **others)


@pytest.mark.filterwarnings("ignore:.*eos_token_id")
@pytest.mark.parametrize("kind", [CLIPTextModel, CLIPTextModelWithProjection])
@pytest.mark.parametrize("name", TEXT)
@both_types
def test_the_tower_for_texts(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    pair = made(tmp_path / "theirs", kind, CLIPTextConfig(**TEXT[name]), dtype)
    compare_saved(pair, tmp_path / "ours")
    for side in ("right", "left", "inside"):
        ids, mask = texts_of(pair, [23, 5, 1, 14], side)
        theirs = pair.run(ids, attention_mask=mask)
        ours, real = pair.ours(ids, mask), mask.astype(bool)
        pair.near(ours.last_hidden_state[real], theirs.last_hidden_state.numpy()[real], "last")
        assert ours.logits is None
        vector = theirs.get("text_embeds", theirs.get("pooler_output")).numpy()
        # in a text without an end token they read the first column, which may be padding
        rows = slice(None) if side != "left" else slice(3)
        pair.near(ours.embeds[rows], vector[rows], "embeds")
    ids, _ = texts_of(pair, [23, 23], "right")
    compare_trace(pair, pair.ours.trace(ids), pair.run(ids, **EVERY_LAYER))


@pytest.mark.parametrize("kind", [CLIPVisionModel, CLIPVisionModelWithProjection])
@pytest.mark.parametrize("name", VISION)
@both_types
def test_the_tower_for_images(tmp_path: Path, name: str, kind: type, dtype: torch.dtype) -> None:
    pair = made(tmp_path / "theirs", kind, CLIPVisionConfig(**VISION[name]), dtype)
    compare_saved(pair, tmp_path / "ours")
    images = images_of(pair, 3)
    theirs = pair.run(images, **EVERY_LAYER)
    ours = pair.ours(images)
    vector = theirs.get("image_embeds", theirs.get("pooler_output"))
    pair.near(ours.last_hidden_state, theirs.last_hidden_state, "last")
    pair.near(ours.embeds, vector, "embeds")
    pair.near(pair.ours.encode(images, batch_size=2), vector, "encode")
    compare_trace(pair, pair.ours.trace(images), theirs)


@both_types
def test_classes_of_images(tmp_path: Path, dtype: torch.dtype) -> None:
    config = both(TEXT["three heads"], VISION["grey, with an edge"], num_labels=5)
    pair = made(tmp_path / "theirs", CLIPForImageClassification, config, dtype)
    compare_saved(pair, tmp_path / "ours")
    images = images_of(pair, 3)
    theirs = pair.run(images, **EVERY_LAYER)
    pair.near(pair.ours(images).logits, theirs.logits, "logits")
    compare_trace(pair, pair.ours.trace(images), theirs)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("looks", VISION)
@both_types
def test_both_towers(tmp_path: Path, name: str, looks: str, dtype: torch.dtype) -> None:
    pair = made(tmp_path / "theirs", CLIPModel, both(TEXT[name], VISION[looks]), dtype)
    compare_saved(pair, tmp_path / "ours")
    model = pair.ours
    images = images_of(pair, 3)
    ids, mask = texts_of(pair, [23, 5, 1, 14], "right")
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    theirs = pair.run(**given, pixel_values=images)
    with torch.inference_mode(), double(pair.is_double):
        looked = pair.theirs.vision_model(torch.tensor(images), **EVERY_LAYER)
        whole = pair.theirs.text_model(given["input_ids"], **EVERY_LAYER)
        words = pair.theirs.get_text_features(**given).pooler_output
        pictures = pair.theirs.get_image_features(torch.tensor(images)).pooler_output
    ours = model(ids, mask, images)
    for what in ("text_embeds", "image_embeds", "logits_per_image", "logits_per_text"):
        pair.near(getattr(ours, what), theirs[what], what)
    pair.near(ours.embeds, words, "embeds")
    pair.near(model.encode_image(images), pictures, "encode_image")
    pair.near(model.text(ids, mask).embeds, words, "the tower for texts")
    compare_trace(pair, model.text.trace(ids), whole)
    compare_trace(pair, model.trace(ids), whole)
    compare_trace(pair, model.vision.trace(images), looked)


@pytest.mark.parametrize("side", ["text", "vision"])
def test_a_tower_is_saved_alone(tmp_path: Path, side: str) -> None:
    pair = made(tmp_path / "theirs", CLIPModel, both(TEXT["three heads"], VISION["three heads"]))
    getattr(pair.ours, side).save(tmp_path / side)
    kinds = {"text": CLIPTextModelWithProjection, "vision": CLIPVisionModelWithProjection}
    alone, notes = kinds[side].from_pretrained(tmp_path / side, output_loading_info=True)
    assert not any(notes[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = pair.theirs.state_dict()
    for name, found in alone.state_dict().items():
        assert torch.equal(found, expected[name]), name


def test_the_second_config_of_a_tower_counts_in_older_files(tmp_path: Path) -> None:
    """Older files have two configs per tower, and qkv uses the second config.

    If the second config lacks a key that qkv needs, qkv uses the key's default. For example, the
    model openai/clip-vit-large-patch14 has two configs per tower.
    """
    config = both(TEXT["three heads"], VISION["three heads"])
    pair = made(tmp_path, CLIPModel, config)
    values = json.loads((tmp_path / "config.json").read_text())
    for side in ("text", "vision"):
        named = {**values[f"{side}_config"], "num_beams": 1, "top_k": 50}
        values[f"{side}_config_dict"] = {k: v for k, v in named.items() if k != "eos_token_id"}
        values[f"{side}_config"] = {**named, "layer_norm_eps": 0.5, "eos_token_id": 2}
    values["text_config_dict"]["layer_norm_eps"] = 1e-2
    (tmp_path / "config.json").write_text(json.dumps(values))
    theirs = CLIPModel.from_pretrained(tmp_path).eval()
    model = qkv.load(tmp_path)
    images = images_of(pair, 2)
    ids, mask = texts_of(pair, [9, 5], "right")
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids), torch.tensor(images)).logits_per_image
    pair.near(model(ids, mask, images).logits_per_image, expected, "logits")


def tokenizer() -> CLIPTokenizer:
    """Return a tokenizer with the letters a to z and the words *cat* and *dog* as tokens.

    The tokenizer knows no punctuation.
    """
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>")]
    names += [*("".join(pair) for pair in merges), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={name: id for id, name in enumerate(names)}, merges=merges)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_folder_of_sentence_transformers(tmp_path: Path, is_old: bool) -> None:
    text = {**TEXT["three heads"], "vocab_size": 58, "eos_token_id": 57}
    pair = made(tmp_path / "theirs", CLIPModel, both(text, VISION["three heads"]))
    looks = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 20, "width": 20})
    CLIPProcessor(looks, tokenizer()).save_pretrained(tmp_path / "theirs")
    theirs = SentenceTransformer(str(tmp_path / "theirs"))
    theirs.save(str(tmp_path / "ours"))
    if is_old:  # as in clip-ViT-B-32
        path = tmp_path / "ours" / "modules.json"
        kind = "sentence_transformers.models.CLIPModel"
        path.write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    model = qkv.load(tmp_path / "ours")
    texts = TEXTS[:2]
    pair.near(model.encode(texts), theirs.encode(texts), "texts")
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (31, 50, 3), np.uint8)) for _ in range(2)]
    pair.near(model.encode_image(images), theirs.encode(images), "images")
    model.text.save(tmp_path / "text")
    pair.near(qkv.load(tmp_path / "text").encode(texts), theirs.encode(texts), "the tower")


TEXTS = ["a cat", "a Dog and two cats", "", "a cat! a dog", "dogs " * 20]


@pytest.mark.filterwarnings("ignore:1 of 5 texts were cut")
@pytest.mark.parametrize("end", [57, 2])
@pytest.mark.parametrize("is_one", [True, False], ids=["one file", "two files"])
def test_texts_and_pictures(tmp_path: Path, end: int, is_one: bool) -> None:
    text = {**TEXT["three heads"], "vocab_size": 58, "eos_token_id": end}
    pair = made(tmp_path, CLIPModel, both(text, VISION["three heads"]))
    looks = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 20, "width": 20})
    processor = CLIPProcessor(looks, tokenizer())
    processor.save_pretrained(tmp_path)
    if not is_one:
        (tmp_path / "processor_config.json").unlink()
        looks.save_pretrained(tmp_path)
    model = qkv.load(tmp_path)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (*size, 3), np.uint8) for size in ((31, 50), (50, 31))]
    options = {"padding": True, "truncation": True, "max_length": 32, "return_tensors": "pt"}
    given = processor(text=TEXTS, images=images, **options)
    pair.near(model.vision.pixels(images), given["pixel_values"], "pixels")
    with torch.inference_mode():
        expected = pair.theirs(**given)
        words = pair.theirs.get_text_features(given["input_ids"], given["attention_mask"])
    pair.near(model.encode(TEXTS), words.pooler_output, "encode")
    pair.near(model.encode(TEXTS, normalize_embeddings=True), expected.text_embeds, "of length 1")
    found = model.encode_image(images, normalize_embeddings=True)
    pair.near(found, expected.image_embeds, "images")
    pair.near(model.logits_per_image(images, TEXTS), expected.logits_per_image, "logits")
    scaled = model.similarity(found, model.encode(TEXTS)) * np.exp(model.logit_scale)
    pair.near(scaled, expected.logits_per_image, "similarity")
    kept = tmp_path / "kept"
    model.save(kept)
    again = qkv.load(kept)
    np.testing.assert_array_equal(
        again.logits_per_image(images, TEXTS[:2]), model.logits_per_image(images, TEXTS[:2])
    )
