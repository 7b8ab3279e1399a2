"""The way from a text to one vector, by a model's files of sentence-transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.models.files.config import Config
from qkv.models.files.modules import STEPS, Module
from qkv.models.files.read import (
    CONFIG,
    MODULES,
    MOST_JSON,
    PROMPTS,
    SENTENCE,
    WEIGHTS,
    ModelError,
    is_number,
    need_file,
    read_json,
)
from qkv.models.files.tensors import FLOATS, Tensors
from qkv.models.network.pooling import POOLING, Dense, LengthOne, Norm, Step, to_length_one
from qkv.ops.packing import frozen

# The files that may have a model's limit; the first that exists counts.
_FAMILIES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
LIMITS = (SENTENCE, *(f"sentence_{name}_config.json" for name in _FAMILIES))
TOKENIZER_CONFIG = "tokenizer_config.json"
_NO_LIMIT = 10**20  # transformers writes 10**30 for no limit
NO_PROMPTS = {"query": "", "document": ""}
_NO_FAMILY = ("PreTrainedTokenizerFast", "TokenizersBackend")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# Other files that are kept beside config.json, and files at the top of the model's folder.
BESIDE = (*LIMITS, TOKENIZER_CONFIG, "special_tokens_map.json")
TOP = (PROMPTS, MODULES)


@dataclass(frozen=True)
class Sentence:
    """The way from a text to one vector.

    Attributes:
        home: the folder of config.json inside the model's folder.
        modes: the poolings of the vectors of the tokens; several results are joined side by side.
        has_pooling: whether files define the pooling.
        include_prompt: whether the tokens of a prompt are pooled with the others.
        steps: the modules behind the pooling, in order.
        static: whether the vectors of tokens are the rows of a table, as those of
            `StaticEmbedding`. Blanks around a text then count, there are no special tokens, and a
            text without tokens has zeros.
        max_seq_length: the most tokens of a text. If no file has it and there is a modules.json, it
            is `model_max_length` of tokenizer_config.json, as in sentence-transformers. Without
            modules.json only the model's own limit counts.
        lowercase: whether a text is converted to lower case first.
        prompts: the prompts before a text, by name. "query" and "document" always exist, and are
            empty unless files define them, as in sentence-transformers.
        default_prompt: the name of the prompt if the user names none.
        similarity: the comparison of vectors, one of `SIMILARITIES`.
        truncate_dim: how many numbers of a vector are kept, unless the user asks for fewer.
        activation: the activation of a cross-encoder's logits, by its name in torch; None for that
            in config.json.
        files: the contents of these files, by their path in the model's folder.
    """

    home: str = ""
    modes: tuple[str, ...] = ("mean",)
    has_pooling: bool = False
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()
    static: bool = False
    max_seq_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: dict(NO_PROMPTS))
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    activation: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def pair_limit(self) -> int | None:
        """The most tokens of two texts that are read together; None for no limit.

        It is `model_max_length`, with modules.json or without, as in sentence-transformers.

        Raises:
            ModelError: the value in the file is no limit.
        """
        if self.max_seq_length is not None:
            return self.max_seq_length
        return tokenizer_limit(self._tokenizer_config())

    @property
    def tells_texts_apart(self) -> bool:
        """Whether two texts that are read together have different segments.

        As in transformers, `model_input_names` says so or, without it, the class of the tokenizer:
        tokenizers without a family have no segments.
        """
        values = self._tokenizer_config().values
        names = values.get("model_input_names")
        if isinstance(names, list):
            return "token_type_ids" in names
        return values.get("tokenizer_class") not in _NO_FAMILY

    def _tokenizer_config(self) -> Config:
        """Return the contents of tokenizer_config.json, empty if there is no such file."""
        place = str(PurePosixPath(self.home, TOKENIZER_CONFIG))
        try:
            values = json.loads(self.files.get(place, b"{}"))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{place}: is not JSON that can be read: {error}") from error
        return Config(values if isinstance(values, dict) else {}, place)

    def prepared(self, text: str) -> str:
        """Return a text as the tokenizer gets it."""
        return text.lower() if self.lowercase else text

    def stripped(self, text: str) -> str:
        """Return a text without the blanks around it, which count only in a static model."""
        return text if self.static else text.strip()

    def pool(self, rows: Array, unread: int = 0) -> Array:
        """Pool one text's vectors (T, D) to one vector, (D,) for each mode.

        The first `unread` tokens belong to a prompt and are left out.
        """
        if self.static and not len(rows):
            return np.zeros(rows.shape[1], rows.dtype)
        if len(self.modes) == 1:
            return POOLING[self.modes[0]](rows, unread)
        return np.concatenate([POOLING[mode](rows, unread) for mode in self.modes])

    def finish(
        self, vectors: Array, *, normalize: bool | None = None, truncate_dim: int | None = None
    ) -> Array:
        """Apply the modules behind the pooling to vectors (n, width).

        As in sentence-transformers, the vectors are then cut to their first `truncate_dim` numbers
        and, with `normalize`, scaled to length 1. False skips a scaling that is the last module.
        """
        steps = self.steps
        if normalize is False and steps and isinstance(steps[-1], LengthOne):
            steps = steps[:-1]
        for step in steps:
            vectors = step(vectors)
        truncate_dim = self.truncate_dim if truncate_dim is None else truncate_dim
        if truncate_dim is not None:
            vectors = np.ascontiguousarray(vectors[:, :truncate_dim])
        return to_length_one(vectors) if normalize else vectors

    def width(self, dim: int) -> int:
        """Return the size of the result, if the vectors of tokens have the size `dim`.

        Raises:
            ModelError: a module does not take vectors of the size before it.
        """
        width = dim * len(self.modes)
        for step in self.steps:
            if step.sizes is None:
                continue
            inputs, outputs = step.sizes
            if inputs != width:
                raise ModelError(
                    f"{step.home}/{CONFIG}: {step.size_key} is {inputs} and the vectors before it "
                    f"have {width} numbers"
                )
            width = outputs
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def to_files(self) -> dict[str, bytes]:
        """Return the contents of the files, by their path in the model's folder."""
        from safetensors.numpy import save

        files = dict(self.files)
        for step in self.steps:
            arrays = {name: np.ascontiguousarray(array) for name, array in step.arrays().items()}
            if arrays:
                files[f"{step.home}/{WEIGHTS}"] = save(arrays)
        return files


def tokenizer_limit(config: Config) -> int | None:
    """Return the limit in tokenizer_config.json, if any."""
    limit = config.values.get("model_max_length")
    fine = limit is None or (is_number(limit) and limit >= 1 and not limit % 1)
    config.need(fine, "model_max_length", limit, "a whole number >= 1")
    return None if limit is None or limit >= _NO_LIMIT else int(limit)


_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OTHER_KEYS = ("word_embedding_dimension", "embedding_dimension", "include_prompt")
_CLASSES = {
    **{name: f"activation.{name}" for name in ("Tanh", "Sigmoid", "ReLU", "SiLU", "GELU", "ELU")},
    **{name: f"activation.{name}" for name in ("LeakyReLU", "SELU", "CELU", "ReLU6", "Mish")},
    **{name: f"activation.{name}" for name in ("Hardtanh", "Hardsigmoid", "Hardswish")},
    **{name: f"activation.{name}" for name in ("LogSigmoid", "Softplus", "Softsign")},
    "Tanhshrink": "activation.Tanhshrink",
    "Identity": "linear.Identity",
}
# The activations behind a linear layer, by their classes in torch, in full and short form.
ACTIVATIONS = {
    f"torch.nn.{place}": None if name == "Identity" else name.lower()
    for name, file in _CLASSES.items()
    for place in (f"modules.{file}", name)
}


def read_sentence(
    folder: Path, modules: Sequence[Module] = (), listed: Sequence[str] = ()
) -> Sentence:
    """Read the files of a text's modules, and the model's files about all modules.

    Args:
        folder: the model's folder.
        modules: the modules that a text goes through, in order; none if no file names them.
        listed: the files that name them, by their path in the folder.

    Raises:
        ModelError: files are broken, or ask for a feature that qkv does not know.
    """
    fields: dict[str, Any] = {}  # the attributes of `Sentence` that files give
    kinds = [module.kind for module in modules]
    home = fields["home"] = modules[0].place if modules else ""
    fields["static"] = kinds[:1] == ["StaticEmbedding"]
    if "Pooling" in kinds:
        fields |= _pooling(folder / modules[1].place / CONFIG)
    last = [module for module in modules if module.kind in STEPS]
    fields["steps"] = tuple(_STEPS[module.kind](folder, module.place) for module in last)
    files = [PROMPTS, *listed, *(f"{module.place}/{CONFIG}" for module in modules[1:])]
    fields |= _prompts(folder / PROMPTS)
    if not fields["static"]:
        fields |= _limit(folder / home, bool(modules))
    files += [str(PurePosixPath(home, name)) for name in BESIDE]
    contents = {}
    for name in files:
        if (folder / name).is_file():
            need_file(folder / name, MOST_JSON)
            contents[name] = (folder / name).read_bytes()
    return Sentence(**fields, files=contents)


def _pooling(path: Path) -> dict[str, Any]:
    """Return the modes, and whether the tokens of a prompt are pooled with the others."""
    config = Config.read(path)
    include_prompt = config.flag("include_prompt", True)
    chosen = config.values.get("pooling_mode")
    if chosen is None:
        asked = [key for key, value in config.values.items() if value and key not in _OTHER_KEYS]
        modes = [_KEYS.get(key, key) for key in asked] or ["mean"]
        modes.sort(key=[*POOLING, *modes].index)
    else:
        modes = [str(mode) for mode in chosen] if isinstance(chosen, list) else [str(chosen)]
    if not modes or not set(modes) <= set(POOLING):
        raise ModelError(
            f"{path}: the pooling is {', '.join(modes) or 'none':.200}: "
            f"qkv knows {', '.join(POOLING)}"
        )
    return {"modes": tuple(modes), "has_pooling": True, "include_prompt": include_prompt}


def _dense(folder: Path, place: str) -> Dense:
    """Read the linear layer with files in the folder `place` inside the model's."""
    config = Config.read(folder / place / CONFIG)
    inputs, outputs = config.size("in_features", 0), config.size("out_features", 0)
    has_bias = config.flag("bias", True)
    activation = config.choice(
        "activation_function", ACTIVATIONS, "torch.nn.modules.activation.Tanh"
    )
    residual = config.flag("use_residual", False)
    _need_vectors(config)
    config.finish(())
    expected: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, inputs)}
    expected |= {"linear.bias": (outputs,)} if has_bias else {}
    expected |= {"residual.weight": (outputs, inputs)} if residual and inputs != outputs else {}
    arrays = _arrays(folder / place, expected)
    through = arrays.get("residual.weight")
    return Dense(
        place,
        frozen(arrays["linear.weight"]).T,
        arrays.get("linear.bias"),
        activation,
        residual,
        None if through is None else frozen(through).T,
    )


def _norm(folder: Path, place: str) -> Norm:
    """Read the LayerNorm with files in the folder `place` inside the model's."""
    config = Config.read(folder / place / CONFIG)
    size = (config.size("dimension", 0),)
    config.finish(())
    arrays = _arrays(folder / place, {"norm.weight": size, "norm.bias": size})
    return Norm(place, arrays["norm.weight"], arrays["norm.bias"])


def _length_one(folder: Path, place: str) -> LengthOne:
    """Return a scaling to length 1, which has no file in old folders."""
    if (folder / place / CONFIG).is_file() and place:
        _need_vectors(Config.read(folder / place / CONFIG))
    return LengthOne(place)


_STEPS: Mapping[str, Callable[[Path, str], Step]] = {
    "Dense": _dense,
    "LayerNorm": _norm,
    "Normalize": _length_one,
    "Dropout": lambda folder, place: Step(place),
}


def _need_vectors(config: Config) -> None:
    """Raise unless a module reads and writes the one vector of a text."""
    for name in ("module_input_name", "module_output_name"):
        config.only(name, "sentence_embedding", None)


def _arrays(folder: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Read the tensors of a module, of these shapes: float64 if the files have it, else float32."""
    tensors = Tensors(folder)
    for name, size in expected.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != size or tensor.kind not in FLOATS:
            actual = "nothing" if tensor is None else f"{tensor.kind} {tensor.shape}"
            raise ModelError(
                f"{tensors.source}: {name} is {actual} and must be floats {size} by {CONFIG}"
            )
    wide = np.float64 if any(tensors[name].kind == "F64" for name in expected) else np.float32
    return {name: tensors[name].read().astype(wide, copy=False) for name in expected}


def _limit(home: Path, modules: bool) -> dict[str, Any]:
    """Return the most tokens of a text, and whether it is converted to lower case, by the files.

    If there is no `max_seq_length` but a modules.json, `model_max_length` is the limit, as in
    sentence-transformers.
    """
    path = next((home / name for name in LIMITS if (home / name).is_file()), None)
    config = Config({}, "") if path is None else Config.read(path)
    lowercase = config.values.get("do_lower_case") is not None
    lowercase = lowercase and config.flag("do_lower_case", False)
    limit = config.size_or_none("max_seq_length", most=math.inf)
    path = home / TOKENIZER_CONFIG
    if limit is None and modules and path.is_file():
        limit = tokenizer_limit(Config.read(path))
    return {"max_seq_length": limit, "lowercase": lowercase}


def _prompts(path: Path) -> dict[str, Any]:
    """Return the prompts, the default prompt, the similarity, and a cross-encoder's activation.

    The similarity is the cosine, as in sentence-transformers, unless the file has a known name.
    """
    if not path.is_file():
        return {}
    values = read_json(path)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    strings = isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())
    if not strings:
        raise ModelError(f"{path}: prompts are {prompts!r:.80}: they must be strings by name")
    prompts = NO_PROMPTS | prompts
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise ModelError(
            f"{path}: default_prompt_name is {default!r:.40}: there is {', '.join(prompts)}"
        )
    similarity = values.get("similarity_fn_name")
    return {
        "prompts": prompts,
        "default_prompt": default,
        "similarity": similarity if similarity in SIMILARITIES else "cosine",
        "activation": values.get("activation_fn"),
        "truncate_dim": Config(values, str(path)).size_or_none("truncate_dim", most=math.inf),
    }
