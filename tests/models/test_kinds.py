"""Tests of `qkv.models._kinds`: the table agrees with what models of each kind do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.circuits import head_scores
from qkv.findings import finding
from qkv.models import CrossEncoderModel, DualEncoder, Model, load
from qkv.models._kinds import kind_of
from qkv.models.model import Seq2SeqModel
from qkv.models.vision import VisionModel
from qkv.see import show

from .small_models import CONFIGS, write_small
from .support import CONFIG, mask_bert

# A config of each kind, with the calls that its models answer. `everything` lists all calls.
EMBEDDER = {
    **CONFIGS["clip_text_model"],
    "vocab_size": 30,
    "architectures": ["CLIPTextModelWithProjection"],
}
TEXT = {"trace", "text", "view", "encode", "gradient", "run_layers", "analyse"}
WORDS = TEXT | {"predict", "unembed", "logits"}
KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "encoder": ({**CONFIG, "architectures": ["BertModel"]}, TEXT),
    "embedder": (EMBEDDER, TEXT),
    "cross-encoder": (
        {**CONFIG, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "a"}},
        TEXT | {"rank"},
    ),
    "classifier": ({**CONFIG, "architectures": ["BertForSequenceClassification"]}, TEXT),
    "tagger": ({**CONFIG, "architectures": ["BertForTokenClassification"]}, TEXT),
    "masked LM": ({}, WORDS),
    "decoder": (CONFIGS["gpt2"], WORDS | {"losses", "generate"}),
    "predictor": (
        {"model_type": "qkv-plain", "vocab_size": 30, "output_vocab_size": 20},
        TEXT | {"unembed", "logits"},
    ),
    "encoder-decoder": (
        {**CONFIGS["t5"], "vocab_size": 30},
        {"trace", "text", "view", "encode", "unembed", "generate"},
    ),
    "encoder-decoder without head": (
        {**CONFIGS["t5"], "vocab_size": 30, "architectures": ["T5Model"]},
        {"trace", "text", "view", "encode"},
    ),
    "dual encoder": (CONFIGS["clip"], TEXT),
    "image encoder": ({**CONFIGS["vit"], "architectures": ["ViTModel"]}, {"trace", "run_layers"}),
    "image embedder": (
        {**CONFIGS["clip_vision_model"], "architectures": ["CLIPVisionModelWithProjection"]},
        {"trace", "encode", "run_layers"},
    ),
    "image classifier": (CONFIGS["vit"], {"trace", "run_layers"}),
}


def calls(model: Any) -> dict[str, Callable[[], Any]]:
    """Return a call for each row of the table."""
    if model.kind.startswith("image"):
        given = np.zeros((1, model.design.channels, *model.design.image))
    else:
        given = "the cat"
    vectors = np.zeros((1, 3, model.dim), np.float32)
    whole = model.network.hook_names
    return {
        "trace": lambda: model.trace(given),
        "text": lambda: model.read("the cat"),
        "view": lambda: show("the cat", model=model),
        "encode": lambda: model.encode(given),
        "predict": lambda: model.guesses(*model.blanks("the [MASK]"), 1),
        "unembed": lambda: model.unembed(vectors),
        "logits": lambda: model.trace(given, logits=True),
        "losses": lambda: model.losses("the cat"),
        "generate": lambda: model.generate("the cat", max_new_tokens=1),
        "rank": lambda: model.rank("the", ["cat"]),
        "gradient": lambda: model.gradient(
            given, of={whole[0]: np.ones_like(model.trace(given)[whole[0]])}
        ),
        "run_layers": lambda: model.run_layers(vectors, 0),
        "analyse": lambda: head_scores(model, ["the cat"], of=["first"]),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_answers_exactly_the_calls_of_its_kind(kind: str, tmp_path: Path) -> None:
    config, answered = KINDS[kind]
    folder = tmp_path / "small"
    if kind == "masked LM":
        mask_bert(folder)
    else:
        write_small(folder, config)
    model = load(folder)
    assert model.kind == kind_of(model.design) == kind
    assert {ask for ask in calls(model) if model.can(ask)} == answered
    assert model.can("similarity")
    for ask, call in calls(model).items():
        if ask in answered:
            call()
            model.need(ask)
            continue
        # the way out is the last part, and the error begins with the public call
        with pytest.raises((ValueError, TypeError), match=r"^\w+: [\w.]+ .*[:;] \w+ "):
            call()
        with pytest.raises(ValueError, match=rf"^{model.name} .*: \w+ "):
            model.need(ask)


@pytest.mark.parametrize("kind", [CrossEncoderModel, Seq2SeqModel, VisionModel, DualEncoder])
def test_a_method_takes_the_arguments_of_the_method_that_it_overrides(kind: type) -> None:
    """No kind hides a method with another signature behind an annotation."""
    for name, method in dict(vars(kind)).items():
        plain = getattr(Model, name, None)
        if not callable(plain) or name in ("__init__", "__doc__", "__module__", "_build"):
            continue
        assert name not in inspect.get_annotations(kind)
        own, wanted = ([*inspect.signature(one).parameters.values()] for one in (method, plain))
        if own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
            assert {one.name for one in wanted[2:]} <= {one.name for one in own[2:]}
        by_position = [one.name for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD]
        assert [one.name for one in own][2 : len(by_position)] == by_position[2:]


@pytest.mark.parametrize(
    ("kind", "call", "argument", "value"),
    [
        ("cross-encoder", "predict", "top_k", 3),
        ("classifier", "predict", "ablate", [(0, 0)]),
        ("cross-encoder", "predict", "edit", {"z": np.zeros(1)}),
        ("image encoder", "model", "attention_mask", [[1]]),
        ("image classifier", "model", "position_ids", [[1]]),
        ("image embedder", "encode", "prompt", "a"),
        ("image embedder", "encode", "prompt_name", "query"),
        ("image embedder", "encode", "task", "query"),
        ("image embedder", "encode", "output_value", None),
        ("image embedder", "encode", "chunk_size", 3),
    ],
)
def test_an_argument_for_another_kind_is_refused(
    kind: str, call: str, argument: str, value: Any, tmp_path: Path
) -> None:
    model: Any = load(write_small(tmp_path / "small", KINDS[kind][0]))
    given = ("the", "cat")
    if kind.startswith("image"):
        given = np.zeros((1, model.design.channels, *model.design.image), np.float32)
    method = model if call == "model" else getattr(model, call)
    said = rf"^{call}: {argument} does not apply to small, which .* head.*: omit {argument}$"
    with pytest.raises(ValueError, match=said):
        method(given, **{argument: value})


def test_vectors_of_images_have_the_formats_of_vectors_of_texts(tmp_path: Path) -> None:
    model: Any = load(write_small(tmp_path / "small", KINDS["image embedder"][0]))
    shape = (3, model.design.channels, *model.design.image)
    images = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    plain = np.concatenate([model(image[None]).embeds for image in images])
    np.testing.assert_allclose(model.encode(images, batch_size=2), plain, rtol=1e-5, atol=1e-6)
    short = plain[:, :4]
    scaled = short / np.sqrt((short**2).sum(1, keepdims=True))
    found = model.encode(images, truncate_dim=4, normalize_embeddings=True)
    np.testing.assert_allclose(found, scaled, rtol=1e-5, atol=1e-6)
    bits = model.encode(images, precision="ubinary")
    assert np.array_equal(bits, np.packbits(plain > 0, axis=1))
    assert model.encode(images[:1], batch_size=1).shape == plain[:1].shape
    with pytest.raises(ValueError, match=rf"encode: truncate_dim is {plain.shape[1] + 1}"):
        model.encode(images, truncate_dim=plain.shape[1] + 1)


def test_a_finding_needs_one_network_for_texts_that_predicts_words(tmp_path: Path) -> None:
    for kind, said in {
        "encoder-decoder": "reads one text and writes another: load a text encoder or decoder",
        "image classifier": "reads images and has a head for 2 classes: load a text encoder",
        "tagger": "has a head for 2 classes of each token, so it cannot predict words: load",
    }.items():
        model = load(write_small(tmp_path / kind, KINDS[kind][0]))
        with pytest.raises(ValueError, match=f"^finding: {kind} {said}"):
            finding(model, "the cat")
