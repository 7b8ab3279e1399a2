"""Tests that no key of a config is ignored: each is used, refused, or shown to change nothing.

For each family, the tests try three groups of keys: all fields of its config class in transformers,
all aliases of these fields, and the fields of all other families. Each key gets other values in the
config.json of a small random model. Then transformers and qkv must compute the same, or qkv must
refuse the model.
"""

import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

import qkv
from models.sizes import IMAGES, LOOKS, MIXED, SMALL, WINDOWS
from qkv.models import ModelError
from qkv.models.families import PUBLISHED
from qkv.models.files.config import HARMLESS, NEUTRAL
from qkv.models.files.names import Names
from rows import sample

from .models import double, scatter

BOUND = {"float64": 1e-9, "float32": 2e-5}  # relative to max(1, the largest value)
IDS = np.array([[5, 7, 30, 11, 7, 25, 16, 9, 33, 21, 7, 14]])

ACTIVATIONS = [
    *("gelu", "gelu_new", "gelu_python", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh"),
    *("gelu_python_tanh", "gelu_10", "relu", "relu2", "relu6", "silu", "swish", "tanh", "mish"),
    *("quick_gelu", "leaky_relu", "linear", "laplace", "sigmoid", "nonsense"),
]
ROPE = {"rope_theta": 500.0}
# Values for keys whose type does not tell which values to try.
VALUES: dict[str, list[Any]] = {
    "activation": ACTIVATIONS,
    "activation_function": ACTIVATIONS,
    "attention_layers": [["local", "global", "local"], ["global"] * 3, ["local"] * 2],
    "attention_types": [
        [[["global", "local"], 1], [["local"], 1]],
        [[["global"], 3]],
        [[["local"], 2], [["global"], 1], [["global"], 0]],
        [[["local"], 4]],
        [[["nonsense"], 3]],
        ["global", "local", "global"],
        "global",
    ],
    "classifier_activation": ["relu", "tanh", "nonsense"],
    "classifier_pooling": ["mean", "nonsense"],
    "eos_token_id": [0, 2, 7, [7, 2]],
    "feed_forward_proj": ["gated-gelu", "gelu", "gated-silu", "nonsense"],
    "head_dim": [2, 6, 10, 16, 0],
    "hidden_act": ACTIVATIONS,
    "hidden_activation": ACTIVATIONS,
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "is_causal": [False],
    "label2id": [{"a": 0, "b": 1, "c": 2}],
    "layer_types": [
        ["full_attention"] * 3,
        ["full_attention", "sliding_attention", "sliding_attention"],
        ["full_attention", "chunked_attention", "full_attention"],
        ["full_attention"] * 2,
        ["nonsense"] * 3,
        "full_attention",
    ],
    "local_attention": [2, 5, 6, 100, -1],
    "max_position_embeddings": [12, 16, 64, 0],
    "n_positions": [12, 16, 64, 0],
    **{"_out_features": [["stage1"]], "out_features": [["stage1"]]},
    **{"_out_indices": [[1]], "out_indices": [[1]]},
    "pad_token_id": [0, 2, 7, None],
    "per_layer_config": [{"1": {"intermediate_size": 10}}, {"1": {"num_attention_heads": 2}}],
    "position_embedding_type": ["relative_key", "nonsense"],
    "problem_type": ["regression", "multi_label_classification"],
    "pruned_heads": [{"1": [0]}],
    "query_pre_attn_scalar": [1, 16, 24.5, 100],
    "relative_attention_max_distance": [8, 16],
    "relative_attention_num_buckets": [8, 16],
    "rope_parameters": [
        {"rope_type": "default", **ROPE},
        {"rope_type": "linear", "factor": 4.0, **ROPE},
        {"rope_type": "dynamic", "factor": 4.0, **ROPE},
        {"rope_type": "default", "partial_rotary_factor": 0.5, **ROPE},
        {"rope_type": "nonsense", **ROPE},
        {kind: {"rope_type": "default", **ROPE} for kind in WINDOWS},
    ],
    "rope_scaling": [{"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}],
    "rope_theta": [500.0],
    "rope_local_base_freq": [500.0],
    "sliding_window": [1, 2, 5, 100, None],
    "dense_act_fn": ACTIVATIONS,
    "vision_config": [{**LOOKS, "patch_size": 2}, {**LOOKS, "hidden_size": 12}],
    "summary_activation": ["relu", "tanh", "nonsense"],
    "summary_type": ["last", "mean", "nonsense"],
    "use_bidirectional_attention": [True, "vision", "all"],
}
# transformers ignores the older key "type" where a config has one dict per kind of layer.
QUIRKS = {(name, "rope_scaling") for name in ("gemma3", "gemma3_text", "modernbert", "olmo3")}
# A list also fixes the number of layers: no other number fits it, not even the default.
LISTED = {("gpt_neo", "num_hidden_layers")}
# Keys that select a config's class, or tell how transformers itself writes and runs a model.
ASIDE = {"architectures", "model_type", "transformers_version", "dtype", "return_dict"}
# Names that transformers' modelling code reads although no config class has them.
MORE = {
    *("is_causal", "per_layer_config", "rope_scaling", "rope_theta", "partial_rotary_factor"),
    *("rope_local_base_freq", "position_embedding_type", "pruned_heads", "sliding_window_pattern"),
    *("_sliding_window_pattern", "token_classification_bias", "attention_chunk_size"),
    *("embedding_size", "n_inner", "n_ctx", "logit_scale", "embedding_multiplier", "num_labels"),
}


def values_for(key: str, default: Any) -> Iterator[Any]:
    """Yield values to try in place of a default."""
    if key in VALUES:
        yield from VALUES[key]
    elif isinstance(default, bool):
        yield not default
    elif isinstance(default, int):
        yield from sorted({default + 1, default * 2, max(default // 2, 1), 0} - {default})[::-1]
    elif isinstance(default, float):
        yield from (3 * default + 0.1, default / 3 + 0.1, 0.0, 1.0)
    elif isinstance(default, str):
        yield "nonsense"
    else:
        yield from (0.5, 3, True, "nonsense")


def class_of(name: str) -> Any:
    """Return a class of transformers by its name."""
    return getattr(transformers, name)


def fields_of(model_type: str) -> dict[str, Any]:
    """Return the default of each field of a config class, also under the field's aliases."""
    made = CONFIG_MAPPING[model_type]()
    names = [field.name for field in dataclasses.fields(made)]
    names += [name for name in (*type(made).attribute_map, *made.to_dict()) if name not in names]
    found = {name: getattr(made, name, None) for name in names if name not in ASIDE}
    return {
        name: value.to_dict() if hasattr(value, "to_dict") else value
        for name, value in found.items()
    }


class Small:
    """A small model of one class, run with changed configs."""

    def __init__(self, model_type: str, kind: str, folder: Path) -> None:
        sizes, _ = SMALL[model_type]
        self.kind, self.folder = class_of(kind), folder
        self.values = {"model_type": model_type, "architectures": [kind], **sizes}
        self.given = {"input_ids": IDS}
        if model_type in ("t5", "mt5") and "Encoder" not in kind:
            self.given["decoder_input_ids"] = IDS[:, :9] - 2
        self.base = self.theirs(self.values)
        assert self.base is not None

    def theirs(self, values: dict[str, Any]) -> list[Any] | None:
        """Return transformers' results with this config, or None if they fail or are not finite.

        The model is saved. It is in float64, or in float32 if transformers insists on it.
        """
        for dtype in (torch.float64, torch.float32):
            try:
                found = self.computed(values, dtype)
            except Exception as error:  # any error: transformers does not support the config either
                if "float32" not in str(error):
                    return None
            else:
                return found if all(np.isfinite(array).all() for array in found) else None
        return None

    def computed(self, values: dict[str, Any], dtype: torch.dtype) -> list[Any]:
        """Return the last hidden states and the logits of transformers."""
        with double(dtype == torch.float64), torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = self.kind.config_class.from_dict(json.loads(json.dumps(values)))
            # In Falcon, "eager" adds ALiBi's bias twice (see test_falcon.py).
            twice = values["model_type"] == "falcon" and config.alibi
            config._attn_implementation = "sdpa" if twice else "eager"
            model = self.kind(config).to(dtype).eval()
            if values["model_type"] in MIXED:
                model.set_experts_implementation("eager")
            scatter(model)
            if values["model_type"] in IMAGES:
                looks = getattr(config, "vision_config", config)
                shape = [looks.num_channels, *([looks.image_size] * 2)]
                images = np.random.default_rng(0).standard_normal([2, *shape])
                texts = {"input_ids": IDS} if self.kind.__name__ == "CLIPModel" else {}
                self.given = {**texts, "pixel_values": images}
            tensors = {name: torch.tensor(array) for name, array in self.given.items()}
            found = model(**tensors, output_hidden_states=True)
            model.save_pretrained(self.folder)
            states = found.get("decoder_hidden_states", found.get("hidden_states"))
            if states is None or "CLIP" in self.kind.__name__:  # theirs precede the last norm
                states = [found.get("last_hidden_state", torch.zeros(0))]
            others = ("logits_per_image", "text_embeds", "image_embeds", "pooler_output")
            logits = next((found[one] for one in ("logits", *others) if one in found), None)
            return self.shown(states[-1].numpy(), logits)

    def ours(self, values: dict[str, Any]) -> list[Any] | str:
        """Return qkv's results with this config, or the message of its error."""
        (self.folder / "config.json").write_text(json.dumps(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with np.errstate(all="ignore"):
                    ids, *written = self.given.values()
                    found = qkv.load(self.folder)(ids, *((None, *written) if written else ()))
            except ValueError as error:  # a ModelError, or more tokens than positions
                return str(error)
        on_top = found.embeds if found.logits is None else found.logits
        on_top = getattr(found, "logits_per_image", on_top)
        return self.shown(found.last_hidden_state, on_top)

    def shown(self, last: Any, logits: Any) -> list[Any]:
        """Return the arrays to compare.

        Of image models, compare only the logits: the libraries define the last hidden states
        differently.
        """
        arrays = [logits] if self.values["model_type"] in IMAGES else [last, logits]
        return [np.asarray(array) for array in arrays if array is not None]

    def alike(self, key: str, value: Any, without: str = "") -> str:
        """Compare both libraries with this value, and return a verdict.

        The verdict is "refused", "not theirs", "unlike", "nothing" or "read". If qkv raises an
        error that does not name the key, the verdict is "refused, but not by name: ", followed by
        the error's message.
        """
        values = {**self.values, key: value}
        values.pop(without, None)
        theirs = self.theirs(values)
        ours = self.ours(values)
        refused = isinstance(ours, str) and key in ours
        if theirs is None or refused:
            return "refused" if refused else "not theirs"
        if isinstance(ours, str):
            return f"refused, but not by name: {ours}"
        if not all(map(near, ours, theirs)):
            return "unlike"
        same = all(map(near, self.base, theirs))
        return "nothing" if same else "read"


def near(found: Any, expected: Any) -> bool:
    """Whether the arrays are equal, except for rounding."""
    if found.shape != expected.shape:
        return False
    allowed = BOUND[expected.dtype.name] * max(1, np.abs(expected).max())
    return bool(np.abs(found - expected).max() <= allowed)


KINDS = [(name, kind) for name in PUBLISHED if name in SMALL for kind in SMALL[name][1]]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_each_field_is_used_or_refused_or_changes_nothing(
    tmp_path: Path, name: str, kind: str
) -> None:
    small = Small(name, kind, tmp_path)
    assert small.alike("model_type", name) == "nothing"
    wrong, unproved = [], []
    for key, default in sample(fields_of(name).items()):
        now = small.values.get(key, default)
        values = list(values_for(key, now))
        if kind != SMALL[name][1][0]:  # all classes share the body
            values = values[:2] + values[2:][-1:]
        found = {str(value): small.alike(key, value) for value in values}
        own = small.kind.config_class.attribute_map.get(key)
        if own in small.values:  # an alias of a field: try it beside the field and instead of it
            now = small.values[own]
            others = [now] if (name, key) in LISTED else values_for(key, now)
            alone = {value: small.alike(key, value, own) for value in others}
            assert ("nothing" if (name, key) in LISTED else "read") in alone.values(), alone
            found |= {f"{value} alone": result for value, result in alone.items()}
        print(key, found)
        bad = ("unlike", "refused,")
        wrong += [(key, *item) for item in found.items() if item[1].startswith(bad)]
        if set(found.values()) <= {"not theirs"}:
            unproved.append(key)
    assert wrong == []
    assert unproved == []


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name in SMALL])
def test_a_key_of_another_family_is_refused_or_changes_nothing(tmp_path: Path, name: str) -> None:
    """If qkv only warns of such a key and ignores it, transformers must ignore the key too."""
    small = Small(name, SMALL[name][1][0], tmp_path)
    own = fields_of(name)
    others = {key: value for family in SMALL for key, value in fields_of(family).items()}
    others = {key: others.get(key) for key in sorted(MORE | set(others)) if key not in own}
    passed: list[dict[str, Any]] = [{}, {}, {}]
    read: list[dict[str, Any]] = [{}, {}, {}]
    wrong = []
    for key, default in sample(others.items()):
        for number, value in enumerate([*values_for(key, default)][:3]):
            ours = small.ours({**small.values, key: value})
            if isinstance(ours, str):
                continue
            if all(map(near, ours, small.base)):
                passed[number][key] = value
            else:
                read[number][key] = value
    for keys in passed:
        wrong += [(*item, "is passed over") for item in changing(small, keys)]
    for key, value in (item for keys in read for item in keys.items()):
        result = small.alike(key, value)
        print(key, value, result)
        if (name, key) in QUIRKS and "type" in value:
            continue
        if result not in ("read", "not theirs"):
            wrong.append((key, value, result))
    assert wrong == []


def changing(small: Small, keys: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the keys that change transformers' results, with their values."""
    theirs = small.theirs({**small.values, **keys}) if keys else small.base
    if theirs is not None and all(map(near, theirs, small.base)):
        return []
    if len(keys) == 1:
        return [] if theirs is None else list(keys.items())
    items = list(keys.items())
    half = len(items) // 2
    return changing(small, dict(items[:half])) + changing(small, dict(items[half:]))


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name in SMALL])
def test_each_field_is_known(name: str) -> None:
    """Each field is known, and an absent field has the default of transformers."""
    family = PUBLISHED[name]
    for kind in ("", *SMALL[name][1]):
        heads = {"architectures": [kind], "model_type": name}
        every = json.loads(json.dumps(CONFIG_MAPPING[name]().to_dict() | heads))
        config, silent = (family.config(values, "config.json") for values in (every, heads))
        design = family.design(config)
        Names.of(family, config)
        known = config.used | HARMLESS | set(NEUTRAL) | set(family.harmless)
        assert set(fields_of(name)) | set(every) <= known | ASIDE
        config.finish(family.harmless)
        assert family.design(silent) == design


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("value", [{"garbage": 1}, ["garbage"], "garbage", -7.5, [[]]], ids=str)
def test_garbage_in_a_key_that_is_read_is_refused_by_name(name: str, kind: str, value: Any) -> None:
    """Keys are checked before weights are read: the test has no weights."""

    def read(values: dict[str, Any]) -> frozenset[str]:
        family, kinds = PUBLISHED[name], {"model_type": name, "architectures": [kind]}
        config = family.config({**kinds, **values}, "config.json")
        family.design(config)
        Names.of(family, config)
        config.finish(family.harmless)
        return config.used

    sizes, _ = SMALL[name]
    for key in sorted(read(sizes) - {"architectures"}):
        tables = ("id2label", "text_config", "vision_config")
        if key.removesuffix("_dict") in tables and isinstance(value, dict):
            continue
        also = "|rope_parameters: full_attention: garbage" if key == "rope_scaling" else ""
        with pytest.raises(ModelError, match=key + also) as caught:
            read({**sizes, key: value})
        assert str(caught.value).startswith("config.json: ")


def test_every_family_is_tested() -> None:
    assert set(SMALL) == set(PUBLISHED)
