"""How a text becomes one vector, as a model's sentence-transformers files say."""

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

# Where a model's limit may stand: the first of them that is there.
_FAMILIES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
LIMITS = (SENTENCE, *(f"sentence_{name}_config.json" for name in _FAMILIES))


TOKENIZER_CONFIG = "tokenizer_config.json"
_NO_LIMIT = 10**20  # transformers writes 10**30 for none
NO_PROMPTS = {"query": "", "document": ""}
_NO_FAMILY = ("PreTrainedTokenizerFast", "TokenizersBackend")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# Others that are kept beside config.json, and those at the top of the model's folder.
BESIDE = (*LIMITS, TOKENIZER_CONFIG, "special_tokens_map.json")
TOP = (PROMPTS, MODULES)


@dataclass(frozen=True)
class Sentence:
    """How a text becomes one vector.

    Attributes:
        home: the folder of config.json inside the model's folder.
        modes: how the vectors of the tokens are pooled; several are joined side by side.
        has_pooling: whether files say so, and not only what is done where none does.
        include_prompt: whether the tokens of a prompt are pooled with the others.
        steps: what follows the pooling, in order.
        static: whether the vectors of tokens are rows of a table and nothing else, as those of
            `StaticEmbedding`: of a text with its blanks and without special tokens, whose vector is
            zeros if it has no token.
        max_seq_length: the most tokens of a text; without it in the files, and with modules.json,
            `model_max_length` of tokenizer_config.json, as in sentence-transformers. Without
            modules.json a model has its own limit alone.
        lowercase: whether a text is turned to lower case before anything else.
        prompts: what may stand before each text, by name; "query" and "document" are there in any
            model, and empty where its files say nothing, as in sentence-transformers.
        default_prompt: the name of the one that does if none is asked for.
        similarity: how vectors are compared: one of `SIMILARITIES`.
        truncate_dim: how many numbers of a vector are kept, where nobody asks for fewer.
        activation: of a cross-encoder what follows its logits, by its name in torch; None for what
            config.json says.
        files: the files that said so, by their place in the model's folder.
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
        """The most tokens of two texts that are read together, None where no file has a limit.

        That is `model_max_length`, with modules.json or without, as in sentence-transformers.

        Raises:
            ModelError: what the file has is no limit.
        """
        if self.max_seq_length is not None:
            return self.max_seq_length
        return tokenizer_limit(self._tokenizer_config())

    @property
    def tells_texts_apart(self) -> bool:
        """Whether tokens of two texts that are read together are of two segments.

        As in transformers, it is the class of the tokenizer that says so: those without a family
        do not, if it is not written down.
        """
        values = self._tokenizer_config().values
        names = values.get("model_input_names")
        if isinstance(names, list):
            return "token_type_ids" in names
        return values.get("tokenizer_class") not in _NO_FAMILY

    def _tokenizer_config(self) -> Config:
        """What tokenizer_config.json says, nothing where there is none."""
        place = str(PurePosixPath(self.home, TOKENIZER_CONFIG))
        try:
            values = json.loads(self.files.get(place, b"{}"))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{place}: is not JSON that can be read: {error}") from error
        return Config(values if isinstance(values, dict) else {}, place)

    def prepared(self, text: str) -> str:
        """A text as the tokenizer is to have it."""
        return text.lower() if self.lowercase else text

    def stripped(self, text: str) -> str:
        """A text as it is encoded: blanks around it are no part of it, but in a static model."""
        return text if self.static else text.strip()

    def pool(self, rows: Array, unread: int = 0) -> Array:
        """One text's vectors (T, D) as one, (D,) for each mode.

        The first `unread` tokens are those of a prompt that is not to be pooled.
        """
        if self.static and not len(rows):
            return np.zeros(rows.shape[1], rows.dtype)
        if len(self.modes) == 1:
            return POOLING[self.modes[0]](rows, unread)
        return np.concatenate([POOLING[mode](rows, unread) for mode in self.modes])

    def finish(
        self, vectors: Array, *, normalize: bool | None = None, truncate_dim: int | None = None
    ) -> Array:
        """What follows the pooling of vectors (n, width).

        As in sentence-transformers, what the model's files say comes first, then vectors are cut to
        their first `truncate_dim` numbers, and these are scaled to length 1 if `normalize` asks for
        it. False leaves out such a scaling that is the last thing the files say.
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
        """How many numbers the result has where the vectors of tokens have `dim`.

        Raises:
            ModelError: a module does not take what comes before it.
        """
        width = dim * len(self.modes)
        for step in self.steps:
            if step.sizes is None:
                continue
            inputs, outputs = step.sizes
            if inputs != width:
                raise ModelError(
                    f"{step.home}/{CONFIG}: {step.size_key} is {inputs} and what comes in "
                    f"has {width} numbers"
                )
            width = outputs
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def to_files(self) -> dict[str, bytes]:
        """The files that say so, by their place in the model's folder."""
        from safetensors.numpy import save

        found = dict(self.files)
        for step in self.steps:
            arrays = {name: np.ascontiguousarray(one) for name, one in step.arrays().items()}
            if arrays:
                found[f"{step.home}/{WEIGHTS}"] = save(arrays)
        return found


def tokenizer_limit(config: Config) -> int | None:
    """What tokenizer_config.json has for a limit."""
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
# What may follow a linear layer, by its class in torch, in short or as files have it.
ACTIVATIONS = {
    f"torch.nn.{place}": None if name == "Identity" else name.lower()
    for name, file in _CLASSES.items()
    for place in (f"modules.{file}", name)
}


def read_sentence(
    folder: Path, modules: Sequence[Module] = (), listed: Sequence[str] = ()
) -> Sentence:
    """Read what the modules of a text say, and the model's files about all of them.

    Args:
        folder: the model's.
        modules: those that a text goes through, in order; none where no file names them.
        listed: the files that do, by their place in the folder.

    Raises:
        ModelError: files are broken, or ask for something that qkv does not know.
    """
    said: dict[str, Any] = {}  # of the attributes of `Sentence`, those that the files speak of
    kinds = [module.kind for module in modules]
    home = said["home"] = modules[0].place if modules else ""
    said["static"] = kinds[:1] == ["StaticEmbedding"]
    if "Pooling" in kinds:
        said |= _pooling(folder / modules[1].place / CONFIG)
    last = [module for module in modules if module.kind in STEPS]
    said["steps"] = tuple(_STEPS[module.kind](folder, module.place) for module in last)
    files = [PROMPTS, *listed, *(f"{module.place}/{CONFIG}" for module in modules[1:])]
    said |= _prompts(folder / PROMPTS)
    if not said["static"]:
        said |= _limit(folder / home, bool(modules))
    files += [str(PurePosixPath(home, name)) for name in BESIDE]
    found = {}
    for name in files:
        if (folder / name).is_file():
            need_file(folder / name, MOST_JSON)
            found[name] = (folder / name).read_bytes()
    return Sentence(**said, files=found)


def _pooling(path: Path) -> dict[str, Any]:
    """The modes, and whether the tokens of a prompt are pooled with the others."""
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
    """The linear layer whose files are in this folder inside the model's."""
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
    found = _arrays(folder / place, expected)
    through = found.get("residual.weight")
    return Dense(
        place,
        frozen(found["linear.weight"]).T,
        found.get("linear.bias"),
        activation,
        residual,
        None if through is None else frozen(through).T,
    )


def _norm(folder: Path, place: str) -> Norm:
    """The LayerNorm whose files are in this folder inside the model's."""
    config = Config.read(folder / place / CONFIG)
    size = (config.size("dimension", 0),)
    config.finish(())
    found = _arrays(folder / place, {"norm.weight": size, "norm.bias": size})
    return Norm(place, found["norm.weight"], found["norm.bias"])


def _length_one(folder: Path, place: str) -> LengthOne:
    """A scaling to length 1, which old folders have no file for."""
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
    """An error where a module is for anything but the one vector of a text."""
    for name in ("module_input_name", "module_output_name"):
        config.only(name, "sentence_embedding", None)


def _arrays(folder: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The tensors of a module, of these shapes: float64 where files have that, else float32."""
    tensors = Tensors(folder)
    for name, size in expected.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != size or tensor.kind not in FLOATS:
            found = "nothing" if tensor is None else f"{tensor.kind} {tensor.shape}"
            raise ModelError(
                f"{tensors.source}: {name} is {found} and must be floats {size} by {CONFIG}"
            )
    wide = np.float64 if any(tensors[name].kind == "F64" for name in expected) else np.float32
    return {name: tensors[name].read().astype(wide, copy=False) for name in expected}


def _limit(home: Path, modules: bool) -> dict[str, Any]:
    """The most tokens of a text, and whether it is turned to lower case, where files say so.

    Without `max_seq_length`, and with modules.json, sentence-transformers takes `model_max_length`.
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
    """What may stand before each text, by name, and the name of what does by default.

    And how vectors are compared: as in sentence-transformers, by their cosine where it is not said,
    or said by a name that is for other kinds of models. And what a cross-encoder's scores are.
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
    how = values.get("similarity_fn_name")
    how = how if how in SIMILARITIES else "cosine"
    cut = Config(values, str(path)).size_or_none("truncate_dim", most=math.inf)
    found = {"prompts": prompts, "default_prompt": default, "similarity": how}
    return found | {"activation": values.get("activation_fn"), "truncate_dim": cut}
