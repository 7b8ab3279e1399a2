"""Reading a config key by key: each one checked, and none that changes the maths passed over."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from qkv.models.files.read import ModelError, is_number, is_whole, plain, read_json

Choice = TypeVar("Choice")

# Keys of every family that have no say in what a forward pass computes: how a model was trained,
# written or is to be used, and what the library around it does.
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
    *("sbert_ce_default_activation_function", "sentence_transformers"),  # `rank` reads them
    *("use_cache",),
})  # fmt: skip
# Keys of every family that do, at the value at which they do nothing.
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


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


SLIDING, FULL = "sliding_attention", "full_attention"  # what a layer attends to, in layer_types
_MOST_LAYERS = 10_000
_MOST_WHOLE = 2**31 - 1  # a size beyond it is of no array that there is
_LEAST, _MOST = 1e-30, 1e30  # float32 holds them and their inverses, with room to compute


class Config:
    """The values of a config.json, which notes what was asked for.

    Args:
        values: the JSON object.
        source: what errors call the file.

    Attributes:
        used: the keys that were read, those that are only allowed to be neutral included.

    >>> config = Config({"hidden_size": 12, "odd": 1}, "config.json")
    >>> config.size("hidden_size", 768), config.size("intermediate_size", 48)
    (12, 48)
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source
        self.used: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> Self:
        """The values of a JSON file.

        Raises:
            ModelError: there is no such file, or it holds no JSON object.
        """
        return cls(read_json(path), str(path))

    def size(self, key: str, default: int, *, least: int = 1, most: float = _MOST_WHOLE) -> int:
        """A whole number of at least 1, or what `least` says, that fits in 32 bits."""
        value = self._get(key, default)
        self.need(is_whole(value) and value >= least, key, value, f"a whole number >= {least}")
        self.need(value <= most, key, value, f"at most {most}")
        return int(value)

    def pair(self, key: str, default: int) -> tuple[int, int]:
        """Height and width: two whole numbers of at least 1, or one for both."""
        value = self._get(key, default)
        both = value if isinstance(value, list) else [value, value]
        fine = len(both) == 2 and all(is_whole(side) and 1 <= side <= _MOST_WHOLE for side in both)
        self.need(fine, key, value, f"a whole number from 1 to {_MOST_WHOLE}, or two")
        return both[0], both[1]

    def heads(
        self,
        dim: int,
        default: int,
        *,
        key: str = "num_attention_heads",
        of: str = "hidden_size",
    ) -> int:
        """The number of heads, which divides the size `of` the vectors, here `dim`."""
        heads = self.size(key, default)
        if dim % heads:
            raise ModelError(
                f"{self.source}: {of} is {dim} and {key} is {heads}: "
                "the first must be a multiple of the second"
            )
        return heads

    def positive(self, key: str, default: float) -> float:
        """A number above 0, of a size that can be computed with in float32."""
        value = self._get(key, default)
        fine = is_number(value) and _LEAST <= value <= _MOST
        self.need(fine, key, value, f"a number above 0, from {_LEAST:g} to {_MOST:g}")
        return float(value)

    def layers(self, key: str, default: int) -> int:
        """How many layers, a number that a list of them can have."""
        return self.size(key, default, most=_MOST_LAYERS)

    def whole(self, key: str, default: int) -> int:
        """A whole number of at least 0."""
        return self.size(key, default, least=0)

    def size_or_none(
        self, key: str, default: int | None = None, *, most: float = _MOST_WHOLE
    ) -> int | None:
        """A whole number of at least 1, or None where the config has null or nothing."""
        return None if self._get(key, default) is None else self.size(key, default or 1, most=most)

    def positive_or_none(self, key: str, default: float | None = None) -> float | None:
        """A number above 0, or None where the config has null or nothing."""
        return None if self._get(key, default) is None else self.positive(key, default or 1.0)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        self.need(isinstance(value, bool), key, value, "true or false")
        return bool(value)

    def activation(self, key: str, default: str) -> str:
        """The activation of an MLP, as `qkv.layers.MLP` calls it."""
        return self.choice(key, ACTIVATIONS, default)

    def head(self) -> str:
        """What the model has on top, by the end of its class's name: "MaskedLM", "CausalLM", ...

        Empty for none, or where the config does not say.

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
        """The name of the model's class, empty where the config does not say."""
        names = self._get("architectures", None)
        name = names[0] if isinstance(names, list) and names else ""
        return name if isinstance(name, str) else ""

    def labels(self) -> int:
        """How many classes a classifier has."""
        names = self.table("id2label")
        return len(names) or self.size("num_labels", 2)

    def spelling(self, *keys: str) -> str:
        """Which of these keys for one thing the config has, the first of them for none.

        >>> Config({"hidden_size": 12}, "config.json").spelling("n_embd", "hidden_size")
        'hidden_size'
        """
        given = [key for key in keys if self._get(key, None) is not None]
        for key in given[1:]:
            if self.values[key] != self.values[given[0]]:
                raise ModelError(
                    f"{self.source}: {given[0]} is {self.values[given[0]]!r:.40} and {key} is "
                    f"{self.values[key]!r:.40}: they are two names for one thing"
                )
        return (given or keys)[0]

    def choice(self, key: str, choices: Mapping[str, Choice], default: str) -> Choice:
        """What `choices` has for the value."""
        value = self._get(key, default)
        known = isinstance(value, str) and value in choices
        self._support(known, f"{key} is {value!r:.80}", choices)
        return choices[value]

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse any other value; a key that is not there is as good as the first one."""
        value = self._get(key, allowed[0])
        self._support(value in allowed, f"{key} is {value!r:.80}", map(repr, allowed))

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of so many numbers above 0."""
        value = self._get(key, None)
        fine = isinstance(value, list) and len(value) == count
        self.need(fine, key, value, f"a list of {count} numbers")
        parts = Config({f"{key}[{n}]": one for n, one in enumerate(value)}, self.source)
        return tuple(parts.positive(part, 1.0) for part in parts.values)

    def table(self, key: str) -> dict[str, Any]:
        """A JSON object, empty where the config has null or nothing."""
        value = self._get(key, None)
        self.need(isinstance(value, dict | None), key, value, "a JSON object")
        return dict(value or {})

    def kinds(self, default: Sequence[str]) -> tuple[str, ...]:
        """What each layer attends to, as `default` has it where the config does not say.

        >>> Config({}, "config.json").kinds(["full_attention"] * 2)
        ('full_attention', 'full_attention')
        """
        value = self._get("layer_types", None)
        if value is None:
            return tuple(default)
        fine = isinstance(value, list) and len(value) == len(default)
        self.need(fine, "layer_types", value, f"a list of {len(default)}, one for each layer", 80)
        known = (FULL, SLIDING)
        for kind in value:
            self._support(kind in known, f"layer_types has {kind!r:.80}", known)
        return tuple(value)

    def given(self, key: str, default: Any) -> Any:
        """A value as it is, for a family that checks it by itself; null is as good as nothing."""
        value = self._get(key, None)
        return default if value is None else value

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Refuse what no family supports, and name what was neither read nor known to be harmless.

        Args:
            harmless: keys of this family that do not change what is computed.
        """
        quantised = self.table("quantization_config")
        if quantised:
            raise ModelError(
                f"{self.source}: quantization_config is {quantised!r:.80}: the weights are "
                f"quantised by {quantised.get('quant_method')!r:.40}, which qkv does not support: "
                "take files in bfloat16, or save such with transformers"
            )
        for key, allowed in NEUTRAL.items():
            if key not in self.used:
                self.only(key, *allowed)
        known = self.used | HARMLESS | {"model_type", *harmless}
        unknown = [
            key for key, value in self.values.items() if key not in known and value is not None
        ]
        if unknown:
            warnings.warn(
                f"{self.source}: qkv does not know {plain(', '.join(unknown), 300)} "
                "and went on without",
                UserWarning,
                stacklevel=2,
            )

    def need(self, fine: bool, key: str, value: Any, must: str, most: int = 40) -> None:
        """Refuse the value of a key that is not fine: it must be something else.

        Args:
            fine: whether it is.
            key: what it stands under.
            value: what the file has.
            must: what it must be.
            most: how many characters of the value are shown.
        """
        if not fine:
            shown = f"{value!r:.{most}}"
            raise ModelError(f"{self.source}: {key} is {shown}: it must be {must}")

    def _support(self, fine: bool, given: str, known: Iterable[str]) -> None:
        """Refuse what is not one of those that are known."""
        if not fine:
            raise ModelError(
                f"{self.source}: {given}, which qkv does not support: it knows {', '.join(known)}"
            )

    def _get(self, key: str, default: Any) -> Any:
        """A value as it is, noted as read."""
        self.used.add(key)
        return self.values.get(key, default)
