"""Read and check the keys of a config, and explain why a folder is not a model."""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from qkv.models.files.read import ADAPTER, CONFIG, ModelError, is_number, is_whole, plain, read_json
from qkv.ops.activation import CONFIG_NAMES

Choice = TypeVar("Choice")

# Keys that do not change a forward pass in any family. Such keys set options of transformers,
# or describe how a model was trained, saved or used.
HARMLESS = frozenset({
    *("_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path"),
    *("_num_labels", "architectures", "attention_dropout", "attention_probs_dropout_prob"),
    *("bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "dtype", "eos_token_id"),
    *("finetuning_task", "gradient_checkpointing", "hidden_dropout_prob", "id2label"),
    *("initializer_factor", "initializer_range", "keys_to_ignore_at_inference", "label2id"),
    *("language", "mask_token_id", "num_labels", "output_attentions", "output_hidden_states"),
    *("output_past", "pad_token_id", "prefix", "problem_type", "return_dict", "sep_token_id"),
    *("task_specific_params", "tie_word_embeddings", "tokenizer_class", "torch_dtype"),
    *("torchscript", "transformers.js_config", "transformers_version", "use_bfloat16"),
    *("sbert_ce_default_activation_function", "sentence_transformers"),  # keys for `rank`
    *("use_cache",),
})  # fmt: skip
# Keys that change a forward pass, unless their value is one of the values listed here.
NEUTRAL: Mapping[str, Collection[Any]] = {
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "is_causal": (True, None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "per_layer_config": ({}, None),
    "pruned_heads": ({}, None),
    "sparsify_config": ({}, None),
    "tie_encoder_decoder": (False, None),
}
# Values of keys with which every token of a decoder attends to both sides.
_BOTH_SIDES = {"is_causal": False, "use_bidirectional_attention": True}
SLIDING, FULL = "sliding_attention", "full_attention"  # the values in layer_types
MOST_LAYERS = 10_000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_OTHERS = {".onnx": "ONNX", ".h5": "HDF5", ".msgpack": "Flax", ".tflite": "TFLite"}
_A_MODEL = "a model is a folder with config.json, *.safetensors and tokenizer.json"
_MOST_WHOLE = 2**31 - 1  # The largest integer that a config may hold.
_MIN_NUMBER, _MAX_NUMBER = 1e-30, 1e30  # float32 can hold these numbers and their inverses


@dataclass(eq=False)
class Config:
    """The values of a config.json, and a record of the keys that were read.

    Args:
        values: the JSON object.
        source: the name of the file, for errors.
        defaults: the values for keys missing in the config.
        spellings: the names of each key in this family, usual name first. An empty list means that
            the family does not use the key; then the key always has its default value.

    Attributes:
        used: the keys that were read.

    >>> config = Config({"n_embd": 12, "odd": 1}, "config.json", {"intermediate_size": 48},
    ...                 {"hidden_size": ["n_embd", "hidden_size"]})
    >>> config.size("hidden_size"), config.size("intermediate_size"), config.size("layers", 2)
    (12, 48, 2)
    """

    values: Mapping[str, Any]
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set, init=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the values of a JSON file.

        Raises:
            ModelError: the file is missing, or is not a JSON object.
        """
        return cls(read_json(path), str(path))

    def size(
        self, key: str, default: int | None = None, *, least: int = 1, most: float = _MOST_WHOLE
    ) -> int:
        """Return an integer that is at least `least` and fits in 32 bits."""
        key, value = self._get(key, default)
        self.need(is_whole(value) and value >= least, key, value, f"a whole number >= {least}")
        self.need(value <= most, key, value, f"at most {most}")
        return int(value)

    def pair(self, key: str) -> tuple[int, int]:
        """Return `(height, width)` from two integers, or from one integer for both."""
        key, value = self._get(key)
        both = value if isinstance(value, list) else [value, value]
        fine = len(both) == 2 and all(is_whole(side) and 1 <= side <= _MOST_WHOLE for side in both)
        self.need(fine, key, value, f"a whole number from 1 to {_MOST_WHOLE}, or a list of two")
        return both[0], both[1]

    def heads(self) -> tuple[int, int, int]:
        """Return `(D, heads, size)`: the size of vectors, the number of heads, a head's size."""
        dim, heads = self.size("hidden_size"), self.size("num_attention_heads")
        if dim % heads:
            raise ModelError(
                f"{self.source}: {self.key('hidden_size')} is {dim} and "
                f"{self.key('num_attention_heads')} is {heads}; "
                "the first must be a multiple of the second"
            )
        return dim, heads, dim // heads

    def sized_heads(self) -> tuple[int, int, int]:
        """Return `(D, heads, size)` as `heads` does; the key `head_dim`, if any, gives `size`."""
        size = self.size_or_none("head_dim")
        if size is None:
            return self.heads()
        return self.size("hidden_size"), self.size("num_attention_heads"), size

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number between 1e-30 and 1e30, which float32 can hold."""
        key, value = self._get(key, default)
        fine = is_number(value) and _MIN_NUMBER <= value <= _MAX_NUMBER
        self.need(fine, key, value, f"a number above 0, from {_MIN_NUMBER:g} to {_MAX_NUMBER:g}")
        return float(value)

    def layers(self, key: str = "num_hidden_layers", default: int | None = None) -> int:
        """Return the number of layers, at most `MOST_LAYERS`."""
        return self.size(key, default, most=MOST_LAYERS)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a non-negative integer."""
        return self.size(key, default, least=0)

    def size_or_none(self, key: str, *, most: float = _MOST_WHOLE) -> int | None:
        """Return a positive integer, or None if the value is null or missing."""
        return None if self._get(key)[1] is None else self.size(key, most=most)

    def positive_or_none(self, key: str) -> float | None:
        """Return a positive number, or None if the value is null or missing."""
        return None if self._get(key)[1] is None else self.positive(key)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a value that must be true or false."""
        key, value = self._get(key, default)
        self.need(isinstance(value, bool), key, value, "true or false")
        return bool(value)

    def activation(self, key: str) -> str:
        """Return the name of an activation, as `qkv.layers.MLP` spells it."""
        return self.choice(key, CONFIG_NAMES)

    def head(self) -> str:
        """Return the kind of head at the end of the class's name: "MaskedLM", "CausalLM", ...

        The result is "" if the model has no head or the config does not name a class.

        >>> Config({"architectures": ["BertForMaskedLM"]}, "config.json").head()
        'MaskedLM'
        """
        name = self.architecture()
        if name.endswith("LMHeadModel"):
            return "CausalLM"
        if name.endswith("DoubleHeadsModel"):
            return "DoubleHeads"
        return name.rpartition("For")[2] if "For" in name else ""

    def architecture(self) -> str:
        """Return the name of the model's class; "" if the config does not name a class."""
        _, names = self._get("architectures")
        name = names[0] if isinstance(names, list) and names else ""
        return name if isinstance(name, str) else ""

    def labels(self) -> int:
        """Return the number of classes of a classifier."""
        return len(self.table("id2label")) or self.size("num_labels", 2)

    def spelling(self, *keys: str) -> str:
        """Return the first of `keys` that the config has; `keys[0]` is the default.

        >>> Config({"hidden_size": 12}, "config.json").spelling("n_embd", "hidden_size")
        'hidden_size'
        """
        self.used.update(keys)
        used = [key for key in keys if self.values.get(key) is not None]
        for key in used[1:]:
            if self.values[key] != self.values[used[0]]:
                raise ModelError(
                    f"{self.source}: {used[0]} is {self.values[used[0]]!r:.40} and {key} is "
                    f"{self.values[key]!r:.40}; keep only one of these keys, because both "
                    "set the same option"
                )
        return (used or keys)[0]

    def key(self, key: str) -> str:
        """Return the spelling of a key in this config."""
        return self.spelling(*self.spellings.get(key, (key,)))

    def choice(self, key: str, choices: Mapping[str, Choice], default: str | None = None) -> Choice:
        """Return `choices[value]`, where `value` is the config's value at `key`."""
        key, value = self._get(key, default)
        known = isinstance(value, str) and value in choices
        self._support(known, f"{key} is {value!r:.80}", choices)
        return choices[value]

    def only(self, key: str, *allowed: Any) -> None:
        """Raise an error unless the value is in `allowed`; the default value is `allowed[0]`."""
        key, value = self._get(key, allowed[0])
        self._support(value in allowed, f"{key} is {value!r:.80}", map(repr, allowed))

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Return a list of `count` positive numbers."""
        key, value = self._get(key)
        fine = isinstance(value, list) and len(value) == count
        self.need(fine, key, value, f"a list of {count} numbers")
        parts = Config({f"{key}[{n}]": number for n, number in enumerate(value)}, self.source)
        return tuple(map(parts.positive, parts.values))

    def table(self, key: str) -> dict[str, Any]:
        """Return the JSON object at a key; `{}` if the value is null or missing."""
        value = self.value(key, {})
        self.need(isinstance(value, dict), key, value, "a JSON object")
        return dict(value)

    def kinds(self, default: Sequence[str]) -> tuple[str, ...]:
        """Return the value of `layer_types`, one type per layer; `default` if the key is missing.

        >>> Config({}, "config.json").kinds(["full_attention"] * 2)
        ('full_attention', 'full_attention')
        """
        value = self.value("layer_types", [*default])
        fine = isinstance(value, list) and len(value) == len(default)
        self.need(fine, "layer_types", value, f"a list of {len(default)} types, one per layer", 80)
        known = (FULL, SLIDING)
        for kind in value:
            self._support(kind in known, f"layer_types has {kind!r:.80}", known)
        return tuple(value)

    def value(self, key: str, default: Any) -> Any:
        """Return an unchecked value, or `default` if the value is null or missing."""
        self.used.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Raise an error for a value that no family supports; warn about keys that were not read.

        Args:
            harmless: keys of this family that do not change a forward pass.
        """
        if quantised := self.table("quantization_config"):
            raise ModelError(
                f"{self.source}: quantization_config is {quantised!r:.80}, so the weights are "
                f"quantised with {quantised.get('quant_method')!r:.40}, which qkv does not "
                "support; use a bfloat16 version of the model, or convert the weights with "
                "transformers"
            )
        for key, allowed in NEUTRAL.items():
            if key not in self.used:
                self.only(key, *allowed)
        known = self.used | HARMLESS | {"model_type", *harmless}
        unknown = [
            key for key, value in self.values.items() if key not in known and value is not None
        ]
        if unknown:
            why = "unknown keys are ignored"
            if "auto_map" in unknown:
                why += ", and so is the code that auto_map names"
                if all(self.values.get(key) is not value for key, value in _BOTH_SIDES.items()):
                    why += "; decoders stay causal"
            warnings.warn(
                f"{self.source}: qkv does not know {plain(', '.join(unknown), 300)}: {why}",
                UserWarning,
                stacklevel=2,
            )

    def need(self, fine: bool, key: str, value: Any, must: str, most: int = 40) -> None:
        """Raise an error unless the value of a key is allowed.

        Args:
            fine: whether the value is allowed.
            key: the name of the key.
            value: the value in the file.
            must: the allowed values, as the error names them.
            most: the maximum number of characters of the value that the error shows.
        """
        if not fine:
            text = f"{value!r:.{most}}"
            raise ModelError(f"{self.source}: {key} is {text}; it must be {must}")

    def _support(self, fine: bool, text: str, known: Iterable[str]) -> None:
        """Raise an error if `fine` is false; `text` names the key and the unsupported value."""
        if not fine:
            raise ModelError(
                f"{self.source}: {text}, which qkv does not support; it supports only "
                f"{', '.join(known)}"
            )

    def _get(self, key: str, default: Any = None) -> tuple[str, Any]:
        """Return the name of a key as this config spells it, and the key's unchecked value."""
        default = self.defaults.get(key) if default is None else default
        names = self.spellings.get(key, (key,))
        if not names:
            return key, default
        key = self.spelling(*names)
        return key, self.values.get(key, default)


def lacking(folder: Path, file: Path | None = None) -> str:
    """Return an error message that says why a folder is not a model, and what to do.

    If the user gave a file instead of a folder, `file` is this file, and `folder` contains it.
    """
    if (folder / ADAPTER).is_file():
        base = plain(str(read_json(folder / ADAPTER).get("base_model_name_or_path")), 80)
        return (
            f"holds only a PEFT adapter ({ADAPTER}), not a model: merge it into its base model "
            f"({base}) with peft (merge_and_unload), save the result, and load its folder"
        )
    files = [] if file is None else [file]
    files += sorted(path for path in folder.glob("*") if path.is_file())
    gguf = next((path.name for path in files if path.suffix.lower() == ".gguf"), None)
    pickles = [path.name for path in files if path.suffix.lower() in _PICKLES]
    others = [path for path in files if path.suffix.lower() in _OTHERS]
    if any(path.suffix.lower() == ".safetensors" for path in files):
        return f"holds no {CONFIG}: {_A_MODEL}: put {CONFIG} into the folder of the weights"
    if gguf is not None:
        return f"holds no {CONFIG}, but a GGUF file; pass the path of this file, {folder / gguf}"
    if pickles and (folder / CONFIG).is_file():
        return (
            f"holds no safetensors file, only {pickles[0]}, a pickle. qkv does not load "
            "pickles, because opening a pickle can run any program: if you trust the file, "
            "convert it with "
            f"transformers: {_class_of(folder)}.from_pretrained(folder).save_pretrained(folder)"
        )
    if others or pickles:
        kind = _OTHERS[others[0].suffix.lower()] if others else "a pickle"
        return (
            f"holds {others[0].name if others else pickles[0]}, which is {kind}: qkv does not read "
            f"this format: {_A_MODEL}: download the model as safetensors"
        )
    missing = "*.safetensors file with weights" if (folder / CONFIG).is_file() else CONFIG
    return f"holds no {missing}: {_A_MODEL}"


def _class_of(folder: Path) -> str:
    """Return the transformers class that loads all weights of the model, including the head."""
    with suppress(ModelError):
        match read_json(folder / CONFIG).get("architectures"):
            case [str(name), *_] if name.isascii() and name.isidentifier() and len(name) <= 80:
                return name
    return "AutoModel"
