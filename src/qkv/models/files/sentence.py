"""The steps from a text to one vector, as described by sentence-transformers files."""

import json
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.models.files import read
from qkv.models.files._modules_json import MASK, SPLADE, STEPS, Module, is_pylate
from qkv.models.files._tensors import FLOATS, Tensors
from qkv.models.files.config import Config
from qkv.models.network.pooling import (
    EMPTY,
    POOLING,
    Dense,
    Extra,
    LengthOne,
    Norm,
    Splade,
    to_length_one,
)
from qkv.ops.packing import frozen

# Files that may set the maximum number of tokens; qkv reads only the first file that exists.
_FAMILIES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
LIMITS = (read.SENTENCE, *(f"sentence_{name}_config.json" for name in _FAMILIES))
TOKENIZER_CONFIG = "tokenizer_config.json"
_NO_LIMIT = 10**20  # The library transformers writes 10**30 for "no limit".
NO_PROMPTS = {"query": "", "document": ""}
_NO_FAMILY = (
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)  # Tokenizer classes that models of any family may use.
LAYERS = {"sparse": "sparse_linear", "multi_vector": "colbert_linear"}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# `save` writes the files listed in `BESIDE` into the folder of config.json, and the files listed in
# `TOP` into the model's folder.
BESIDE = (*LIMITS, TOKENIZER_CONFIG, "special_tokens_map.json", read.ADDED)
TOP = (read.PROMPTS, read.MODULES)
_COPIED = (read.CONFIG, read.TOKENIZER, read.GENERATION, read.PREPROCESSOR, read.PROCESSOR)


class Expansion(NamedTuple):
    """The mask tokens that a ColBERT puts after each query."""

    length: int  # A shorter query is filled up to this number of tokens.
    attend: bool = False  # Whether other tokens attend to the mask tokens.
    token: str | None = None  # The token that replaces the mask token.


@dataclass(frozen=True)
class Sentence:
    """The steps from a text to one vector.

    Attributes:
        home: the folder of config.json inside the model's folder.
        modes: the kinds of pooling of token vectors; the results of several kinds are concatenated.
        has_pooling: whether the files define a pooling.
        include_prompt: whether pooling includes the tokens of a prompt.
        steps: the modules after the pooling, in order.
        splade: for a SPLADE model, the pooling of the logits of all tokens; a text's vector has one
            number for each word of the vocabulary. None for other models.
        skipped: for a multi-vector model (ColBERT), the tokens without a vector, keyed by task. The
            modules change each token's vector, and the whole text has no vector. None for other
            models.
        markers: for PyLate's ColBERT models, the token after the first token, keyed by task.
        expansion: for ColBERT models, the mask tokens after queries, if any.
        layers: for BGE-M3, the linear layers over the vectors of tokens, keyed by the
            `output_value` that applies them: `Dense` modules in the folders that `LAYERS` names.
        static: whether token vectors are rows of a table, as in `StaticEmbedding`. A static model
            does not add special tokens, and returns a zero vector for a text without tokens.
        max_seq_length: the maximum number of tokens in a text. If no file sets this number, the
            limit is `model_max_length` in tokenizer_config.json, as in sentence-transformers.
            Without modules.json, only the number of positions limits the length of texts.
        passes_positions: for a model without a position table, whether `max_seq_length` comes from
            a file that may set a limit above the number of positions.
        task_limits: the maximum number of tokens in a text with a task ("query" or "document"),
            keyed by task; other tasks have the limit `max_seq_length`.
        lowercase: whether the tokenizer converts a text to lower case first.
        prompts: the prompts for texts, keyed by name. As in sentence-transformers, the prompts
            "query" and "document" always exist; a prompt that no file defines is empty.
        default_prompt: the name of the prompt to use if the user does not choose a prompt.
        similarity: the measure that compares vectors, one of `SIMILARITIES`.
        truncate_dim: the number of dimensions to keep of each vector, unless the user chooses a
            different number.
        activation: torch's name for the activation that a cross-encoder applies to its logits. If
            `activation` is None, config.json may name the activation.
        files: the contents of the files that were read, keyed by their path in the model's folder.
        linked: the first JSON file that is a link to a path outside the model's folder. `save`
            refuses to copy such a file, because its content may be private.
    """

    home: str = ""
    modes: tuple[str, ...] = ("mean",)
    has_pooling: bool = False
    include_prompt: bool = True
    steps: tuple[Extra, ...] = ()
    splade: Splade | None = None
    skipped: Mapping[str, tuple[str, ...]] | None = None
    markers: Mapping[str, str] = field(default_factory=dict)
    expansion: Expansion | None = None
    layers: Mapping[str, Dense] = field(default_factory=dict)
    static: bool = False
    max_seq_length: int | None = None
    passes_positions: bool = False
    task_limits: Mapping[str, int] = field(default_factory=dict)
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: dict(NO_PROMPTS))
    default_prompt: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    activation: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    linked: Path | None = None

    @property
    def pair_limit(self) -> int | None:
        """The maximum number of tokens in a pair of texts; None for no limit.

        The limit is `max_seq_length`. If no file sets `max_seq_length`, the limit is
        `model_max_length`.

        Raises:
            ModelError: the value in the file is not a valid number of tokens.
        """
        if self.max_seq_length is not None:
            return self.max_seq_length
        return tokenizer_limit(self.tokenizer_config())

    @property
    def tells_texts_apart(self) -> bool:
        """Whether the two texts of a pair get different segments (`token_type_ids`).

        As in transformers, the list `model_input_names` decides: the texts get different segments
        if it holds "token_type_ids". Without this list, `tokenizer_class` decides. If the class
        does not belong to a family of models (for example, "PreTrainedTokenizerFast"), the two
        texts get the same segment. Otherwise, the texts get different segments.
        """
        values = self.tokenizer_config().values
        names = values.get("model_input_names")
        if isinstance(names, list):
            return "token_type_ids" in names
        return values.get("tokenizer_class") not in _NO_FAMILY

    def tokenizer_config(self) -> Config:
        """Return the contents of tokenizer_config.json; `{}` if the file is missing."""
        path = str(PurePosixPath(self.home, TOKENIZER_CONFIG))
        try:
            values = json.loads(self.files.get(path, b"{}"))
        except (ValueError, RecursionError) as error:
            raise read.ModelError(f"{path} is not valid JSON: {error}") from error
        return Config(values if isinstance(values, dict) else {}, path)

    def pool(self, rows: Array, unread: int = 0) -> Array:
        """Pool the token vectors (T, D) of a text to one vector, with D numbers for each mode.

        The first `unread` tokens belong to a prompt and are not pooled.
        """
        pooling = POOLING if len(rows) > unread else EMPTY
        if len(self.modes) == 1:
            return pooling[self.modes[0]](rows, unread)
        return np.concatenate([pooling[mode](rows, unread) for mode in self.modes])

    def finish(
        self, vectors: Array, *, normalize: bool | None = None, truncate_dim: int | None = None
    ) -> Array:
        """Apply the modules after the pooling to vectors (n, width).

        After these modules have run, the vectors keep only their first `truncate_dim` numbers, as
        in sentence-transformers. With `normalize=True`, the method scales the truncated vectors to
        length 1. With `normalize=False`, a last module that scales vectors to length 1 is skipped.
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
        """Return the size of a text's vector, given the size `dim` of token vectors.

        Raises:
            ModelError: a module expects vectors of a different size from those that the previous
                module returns.
        """
        width = dim * len(self.modes)
        for step in self.steps:
            if step.sizes is None:
                continue
            inputs, outputs = step.sizes
            if inputs != width:
                raise read.ModelError(
                    f"{step.home}/{read.CONFIG}: {step.size_key} is {inputs} and the previous "
                    f"module's vectors have {width} numbers; the two must be equal"
                )
            width = outputs
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    def to_files(self) -> dict[str, bytes]:
        """Return the contents of the files, keyed by their path in the model's folder."""
        from safetensors.numpy import save

        files = dict(self.files)
        for step in (*self.steps, *self.layers.values()):
            arrays = {name: np.ascontiguousarray(array) for name, array in step.arrays().items()}
            if arrays:
                files[f"{step.home}/{read.WEIGHTS}"] = save(arrays)
        return files


def tokenizer_limit(config: Config) -> int | None:
    """Return `model_max_length` of tokenizer_config.json; None for no limit."""
    limit = config.values.get("model_max_length")
    fine = limit is None or (read.is_number(limit) and limit >= 1 and not limit % 1)
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
# Keys of sentence_bert_config.json. A dot separates a key from the key of the object around it.
# `_LENGTHS` lists limits, most important first; `_SPELLINGS` lists the names of a key in different
# versions; `_ONLY` lists the values that qkv supports; `_HARMLESS` lists keys that change neither
# the tokens nor the vectors of texts.
_LENGTHS = (
    *("processing_kwargs.common.max_length", "processing_kwargs.text.max_length"),
    *("model_max_length", "max_seq_length", "query_length", "document_length"),
)
_SPELLINGS = {
    "model_max_length": ("processor_kwargs.model_max_length", "tokenizer_args.model_max_length")
}
_ONLY: Mapping[str, Sequence[Any]] = {
    "transformer_task": ("feature-extraction", "sequence-classification"),
    "modality_config.text.method": ("forward", "get_text_features"),
    "modality_config.text.method_output_name": (
        *("last_hidden_state", "pooler_output", "logits", None),
    ),
    "processing_kwargs.text.truncation": ("longest_first", True),
    "processing_kwargs.common.truncation": ("longest_first", True),
    "tokenizer_name_or_path": (None,),
}
_HARMLESS = re.compile(
    r"module_output_name|unpad_inputs|modality_config\.(?!text\.|message\.).*"
    r"|processing_kwargs\.(audio|image|video|chat_template)\..*"
    r"|processing_kwargs\.(text|common)\.(padding|padding_side|pad_to_multiple_of|return_tensors)"
    r"|(model|processor|tokenizer|config)_(kwargs|args)\."
    r"(add_pooling_layer|attn_implementation|cache_dir|device_map|dtype|local_files_only"
    r"|low_cpu_mem_usage|padding_side|token|torch_dtype|trust_remote_code|use_cache|use_fast"
    r"|use_safetensors)(\..*)?"
)
_CLASSES = {
    **{name: f"activation.{name}" for name in ("Tanh", "Sigmoid", "ReLU", "SiLU", "GELU", "ELU")},
    **{name: f"activation.{name}" for name in ("LeakyReLU", "SELU", "CELU", "ReLU6", "Mish")},
    **{name: f"activation.{name}" for name in ("Hardtanh", "Hardsigmoid", "Hardswish")},
    **{name: f"activation.{name}" for name in ("LogSigmoid", "Softplus", "Softsign")},
    "Tanhshrink": "activation.Tanhshrink",
    "Identity": "linear.Identity",
}
# The activation functions that may follow a linear layer. In torch, each
# function is a class; both the full and the short name of this class are keys.
ACTIVATIONS = {
    f"torch.nn.{path}": None if name == "Identity" else name.lower()
    for name, file in _CLASSES.items()
    for path in (f"modules.{file}", name)
}


def read_sentence(folder: Path, modules: Sequence[Module], listed: Sequence[str]) -> Sentence:
    """Read the settings for text vectors from the files of the modules and of the model.

    Args:
        folder: the model's folder.
        modules: the modules that process a text, in order. The list is empty if there is no
            modules.json.
        listed: the paths of the files that list the modules, relative to the model's folder.

    Raises:
        ModelError: files are broken, or need a feature that qkv does not support.
    """
    fields: dict[str, Any] = {}  # The attributes of `Sentence` that come from files.
    kinds = [module.kind for module in modules]
    home = fields["home"] = modules[0].subfolder if modules else ""
    fields["static"] = kinds[:1] == ["StaticEmbedding"]
    if "Pooling" in kinds:
        fields |= _pooling(folder / modules[1].subfolder / read.CONFIG)
    by_kind = {module.kind: folder / module.subfolder / read.CONFIG for module in modules}
    if SPLADE in kinds:
        fields["splade"] = _splade(by_kind[SPLADE])
    if MASK in kinds:
        fields["skipped"] = _skip_lists(by_kind[MASK])
    pylate = bool(modules) and MASK not in kinds and is_pylate(folder)
    name = "token_embeddings" if pylate or MASK in kinds else "sentence_embedding"
    last = [module for module in modules if module.kind in STEPS]
    fields["steps"] = tuple(_STEPS[module.kind](folder, module.subfolder, name) for module in last)
    inner = {value: str(PurePosixPath(home, name)) for value, name in LAYERS.items()}
    fields["layers"] = {
        value: _dense(folder, name, "token_embeddings")
        for value, name in inner.items()
        if (folder / name / read.CONFIG).is_file()
    }
    files = [
        read.PROMPTS,
        *(f"{layer.home}/{read.CONFIG}" for layer in fields["layers"].values()),
        *listed,
        *(f"{module.subfolder}/{read.CONFIG}" for module in modules[1:]),
    ]
    fields |= _prompts(folder / read.PROMPTS, usual="dot" if SPLADE in kinds else "cosine")
    if not fields["static"]:
        fields |= _limit(
            folder / home, bool(modules), predicts=SPLADE in kinds, multi=MASK in kinds
        )
    if pylate:
        ends = [] if "Normalize" in kinds else [LengthOne("")]
        fields |= {**_pylate(folder / read.PROMPTS), "steps": (*fields["steps"], *ends)}
    files += [str(PurePosixPath(home, name)) for name in BESIDE]
    contents = {}
    for name in files:
        if (folder / name).is_file():
            read.need_file(folder / name, read.MOST_JSON)
            contents[name] = (folder / name).read_bytes()
    files += [str(PurePosixPath(home, name)) for name in _COPIED]
    linked = next((folder / name for name in files if not read.stays(folder / name, folder)), None)
    return Sentence(**fields, files=contents, linked=linked)


def _pooling(path: Path) -> dict[str, Any]:
    """Return the fields of `Sentence` that the config.json of a pooling module sets."""
    config = Config.read(path)
    include_prompt = config.flag("include_prompt", True)
    chosen = config.values.get("pooling_mode")
    if chosen is None:
        keys = [key for key, value in config.values.items() if value and key not in _OTHER_KEYS]
        modes = [_KEYS.get(key, key) for key in keys] or ["mean"]
        modes.sort(key=[*POOLING, *modes].index)
    else:
        modes = [str(mode) for mode in chosen] if isinstance(chosen, list) else [str(chosen)]
        config.finish((*_KEYS, *_OTHER_KEYS, "pooling_mode"))
    if not modes or not set(modes) <= set(POOLING):
        raise read.ModelError(
            f"{path}: the pooling is {', '.join(modes) or 'none':.200}, but "
            f"qkv supports only {', '.join(POOLING)}"
        )
    return {"modes": tuple(modes), "has_pooling": True, "include_prompt": include_prompt}


def _splade(path: Path) -> Splade:
    """Return the pooling of a SPLADE model, given its config.json."""
    config = Config.read(path)
    pool = config.choice("pooling_strategy", {"max": "max", "sum": "sum"}, "max")
    times = config.choice("activation_function", {"relu": 1, "log1p_relu": 2}, "relu")
    config.finish(("embedding_dimension", "word_embedding_dimension"))
    return Splade(pool, times)


def _skip_lists(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the tokens without a vector for each task, from the config.json of the mask."""
    config = Config.read(path)
    config.only("keep_only_token_ids", None)
    lists = {"skiplist_words": config.value("skiplist_words", [])}
    lists["skiplist_tasks"] = config.value("skiplist_tasks", ["document"])
    for key, value in lists.items():
        fine = isinstance(value, list) and all(isinstance(one, str) for one in value)
        config.need(fine, key, value, "a list of strings")
    config.finish()
    return dict.fromkeys(lists["skiplist_tasks"], tuple(lists["skiplist_words"]))


def _pylate(path: Path) -> dict[str, Any]:
    """Return the fields of `Sentence` that a PyLate ColBERT sets, from its prompts' file."""
    config = Config.read(path)
    markers = {task: config.value(f"{task}_prefix", "") or "" for task in NO_PROMPTS}
    words = config.value("skiplist_words", list(string.punctuation))
    for key, listed in (("skiplist_words", words), ("query_prefix", [*markers.values()])):
        fine = isinstance(listed, list) and all(isinstance(one, str) for one in listed)
        config.need(fine, key, listed, "strings")
    limits = {
        task: config.size(f"{task}_length", 32 if task == "query" else 180) for task in markers
    }
    attend = config.flag("attend_to_expansion_tokens", False)
    expands = config.flag("do_query_expansion", True)
    return {
        "skipped": {"document": tuple(words)},
        "markers": markers,
        "task_limits": limits,
        "expansion": Expansion(limits["query"], attend) if expands else None,
    }


def _dense(folder: Path, subfolder: str, read_from: str) -> Dense:
    """Read the linear layer in `subfolder` of the model's folder."""
    config = Config.read(folder / subfolder / read.CONFIG)
    inputs, outputs = config.size("in_features", 0), config.size("out_features", 0)
    has_bias = config.flag("bias", True)
    activation = config.choice(
        "activation_function", ACTIVATIONS, "torch.nn.modules.activation.Tanh"
    )
    residual = config.flag("use_residual", False)
    _need_vectors(config, read_from)
    config.finish(())
    expected: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, inputs)}
    expected |= {"linear.bias": (outputs,)} if has_bias else {}
    expected |= {"residual.weight": (outputs, inputs)} if residual and inputs != outputs else {}
    arrays = _arrays(folder / subfolder, expected)
    through = arrays.get("residual.weight")
    return Dense(
        subfolder,
        frozen(arrays["linear.weight"]).T,
        arrays.get("linear.bias"),
        activation,
        residual,
        None if through is None else frozen(through).T,
    )


def _norm(folder: Path, subfolder: str, read_from: str) -> Norm:
    """Read the LayerNorm in `subfolder` of the model's folder."""
    config = Config.read(folder / subfolder / read.CONFIG)
    size = (config.size("dimension", 0),)
    config.finish(())
    arrays = _arrays(folder / subfolder, {"norm.weight": size, "norm.bias": size})
    return Norm(subfolder, arrays["norm.weight"], arrays["norm.bias"])


def _length_one(folder: Path, subfolder: str, read_from: str) -> LengthOne:
    """Return the module that scales vectors to length 1; its config.json may be missing."""
    if (folder / subfolder / read.CONFIG).is_file() and subfolder:
        _need_vectors(Config.read(folder / subfolder / read.CONFIG), read_from)
    return LengthOne(subfolder)


_STEPS: Mapping[str, Callable[[Path, str, str], Extra]] = {
    "Dense": _dense,
    "LayerNorm": _norm,
    "Normalize": _length_one,
    "Dropout": lambda folder, subfolder, read_from: Extra(subfolder),
}


def _need_vectors(config: Config, read_from: str) -> None:
    """Raise an error unless a module reads and writes `read_from`.

    `read_from` is "sentence_embedding", the text's vector, or "token_embeddings".
    """
    for name in ("module_input_name", "module_output_name"):
        config.only(name, read_from, None)


def _arrays(folder: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Read the tensors of a module as float64 or float32, and check their shapes."""
    tensors = Tensors(folder)
    for name, size in expected.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != size or tensor.kind not in FLOATS:
            actual = "missing" if tensor is None else f"{tensor.kind} {tensor.shape}"
            raise read.ModelError(
                f"{tensors.source}: {name} is {actual}, but {read.CONFIG} requires floats of "
                f"shape {size}"
            )
    wide = np.float64 if any(tensors[name].kind == "F64" for name in expected) else np.float32
    return {name: tensors[name].read().astype(wide, copy=False) for name in expected}


def _flat(values: Mapping[str, Any], depth: int = 2) -> dict[str, Any]:
    """Replace each object in `values`, down to a depth, with its entries; join keys with dots.

    >>> _flat({"a": 1, "b": {"c": {"d": 2}, "e": {}}})
    {'a': 1, 'b.c.d': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if depth and isinstance(value, dict):
            inner = _flat(value, depth - 1)
            flat |= {f"{key}.{name}": entry for name, entry in inner.items()}
        else:
            flat[key] = value
    return flat


def _limit(home: Path, modules: bool, *, predicts: bool, multi: bool) -> dict[str, Any]:
    """Return the fields of `Sentence` that sentence_bert_config.json sets.

    `predicts` says whether the module after the model pools the logits of its words, and `multi`
    whether the model gives a vector for each token.

    As in sentence-transformers, `max_length` takes precedence over all other limits, and
    `model_max_length` over `max_seq_length`. If these keys are missing and modules.json exists, the
    limit is `model_max_length` in tokenizer_config.json.

    Raises:
        ModelError: a value is wrong, or needs a feature that qkv does not support.
    """
    path = next((home / name for name in LIMITS if (home / name).is_file()), None)
    values = {} if path is None else read.read_json(path)
    flat = _flat(values) | {"do_lower_case": values.get("do_lower_case")}
    entries = {key: value for key, value in flat.items() if not _HARMLESS.fullmatch(key)}
    config = Config(entries, str(path), spellings=_SPELLINGS)
    for key, allowed in _ONLY.items():
        is_task = predicts and key == "transformer_task"
        config.only(key, *(["fill-mask"] if is_task else allowed))
    if any(key.startswith("modality_config.message") for key in entries):
        raise read.ModelError(
            f"{path}: modality_config has 'message', so sentence-transformers puts each text into "
            "the chat template, which qkv does not support; remove 'message' to encode plain texts"
        )
    lowercase = config.values.get("do_lower_case") is not None
    lowercase = config.flag("do_lower_case", False) if lowercase else False
    lengths = [config.size_or_none(key, most=math.inf) for key in _LENGTHS]
    common, text, processor, usual, query, document = lengths
    expansion, fixed = None, 0
    if not multi:
        config.only("query_expansion.strategy", None)
    elif entries.get("query_expansion.strategy") is not None:
        is_fixed = config.choice("query_expansion.strategy", {"fixed": True, "min": False})
        attend = config.flag("query_expansion.attend", False)
        token = config.value("query_expansion.token", None)
        config.need(isinstance(token, str | None), "query_expansion.token", token, "a string")
        expansion = Expansion(config.size("query_expansion.length"), attend, token)
        fixed = expansion.length if is_fixed else 0
    config.finish(("do_lower_case",))
    limit = common or text or processor or usual
    tasks = {} if common or text else {"query": query, "document": document}
    tasks |= {"query": fixed} if fixed else {}
    fields = {
        "lowercase": lowercase,
        "passes_positions": limit is not None,
        "expansion": expansion,
        "task_limits": {task: length for task, length in tasks.items() if length},
    }
    path = home / TOKENIZER_CONFIG
    if limit is None and modules and path.is_file():
        limit = tokenizer_limit(Config.read(path))
    return fields | {"max_seq_length": limit}


def _prompts(path: Path, *, usual: str) -> dict[str, Any]:
    """Return the fields of `Sentence` that config_sentence_transformers.json sets.

    As in sentence-transformers, the similarity is `usual` if the file does not name a similarity,
    or names an unknown similarity.
    """
    if not path.is_file():
        return {"similarity": usual}
    values = read.read_json(path)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    strings = isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())
    if not strings:
        raise read.ModelError(
            f"{path}: prompts is {prompts!r:.80}; it must be an object with a string for each name"
        )
    prompts = NO_PROMPTS | prompts
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise read.ModelError(
            f"{path}: default_prompt_name is {default!r:.40}; it must be one of "
            f"{', '.join(prompts)}"
        )
    similarity = values.get("similarity_fn_name")
    return {
        "prompts": prompts,
        "default_prompt": default,
        "similarity": similarity if similarity in SIMILARITIES else usual,
        "activation": values.get("activation_fn"),
        "truncate_dim": Config(values, str(path)).size_or_none("truncate_dim", most=math.inf),
    }
