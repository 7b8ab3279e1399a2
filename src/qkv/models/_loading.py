"""`load`: find and read a model."""

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qkv._argument_errors import message, public_call, value_error
from qkv.arrays import DType, float_type
from qkv.files import StrPath
from qkv.models._cross_encoder import CrossEncoderModel
from qkv.models._kinds import kind_of
from qkv.models._model_base import cache_type
from qkv.models._other_libraries import LOADING, advising
from qkv.models.families import FAMILIES, design_of, towers
from qkv.models.families.static_embedding import read_static
from qkv.models.files import (
    Pixels,
    Stored,
    Tensors,
    configure,
    gguf_config,
    gguf_generation,
    gguf_sentence,
    gguf_tensors,
    gguf_tokenizer,
    read,
    read_gguf,
    read_notices,
    read_routing,
)
from qkv.models.files.config import Config, lacking
from qkv.models.files.find import DEFAULT, find_model, shipped_models
from qkv.models.files.names import Names, Storage, read_weights
from qkv.models.files.sentence import Sentence, read_sentence
from qkv.models.model import Model, Seq2SeqModel
from qkv.models.network.design import Design, DualDesign, Seq2SeqDesign, VisionDesign
from qkv.models.untrained import random_model
from qkv.models.vision import DualEncoder, VisionModel
from qkv.ops.kernel import variant
from qkv.text import SubwordTokenizer
from qkv.text.tokenizer import BareTokenizer, parse_tokenizer, read_tokenizer

# The name of a model class without a head, such as BertModel, ends with one of these words.
_BARE = ("Model", "Encoder", "Backbone")
# Files that qkv does not read, and the feature that each file would add to a model.
_UNREAD = {
    read.ADAPTER: "a PEFT adapter, which qkv does not apply: merge it into the model with peft "
    "(merge_and_unload), and save the result",
    "sparse_linear.pt": "a pickle with a layer for sparse vectors: without this layer in another "
    "format (docs/models.md), qkv computes only dense vectors",
    "colbert_linear.pt": "a pickle with a layer for one vector per token: without this layer in "
    "another format (docs/models.md), qkv computes only dense vectors",
}
# The classes of models that have methods of their own, by the first word of the kind.
_CLASSES = {
    "encoder-decoder": Seq2SeqModel,
    "cross-encoder": CrossEncoderModel,
    "classifier": CrossEncoderModel,
}


@public_call("load")
@advising(LOADING)
def load(
    name_or_path: StrPath | None = None,
    *,
    revision: str | None = None,
    dtype: Any = None,
    cache_dtype: Any = None,
) -> Model:
    """Load a model.

    Args:
        name_or_path: a folder, a GGUF file, a short name ("books", "books-decoder", "minilm",
            "smollm2"), a Hub id ("organisation/name", or an old name such as "gpt2"), or "random"
            for a small model with random weights. A folder holds config.json, `*.safetensors` and
            tokenizer.json; without tokenizer.json, the model accepts only ids. The models "books"
            and "books-decoder" come with qkv; qkv searches for other names in the Hugging Face
            cache, then in an installed package, then on the Hub. The default is the value of the
            environment variable `QKV_MODEL`, or "books" if this variable is not set.
        revision: a branch, tag or commit on the Hub; folders and files have no revisions.
        dtype: float32, float64, bfloat16 or int8. By default, float16 and bfloat16 weights become
            float32; other weights keep the dtype of the file. With bfloat16, weights take half the
            memory, matrix products take about half the time, and results are accurate to two or
            three significant digits. With int8, the products of linear layers are computed in int8,
            and parameters are float32; docs/models.md describes the rounding and its error. With
            int8, matrices that a GGUF file stores in blocks of type Q4_0, Q4_1, Q8_0, Q4_K or Q6_K
            take about as much memory as in the file. Before a product with such a matrix, vectors
            are rounded to int16 numbers, with one scale for each block of 32;
            `model.parameters[name]` computes a float32 array.
        cache_dtype: for decoders, the dtype of the key/value caches of `generate` and `chat`:
            float16 or bfloat16, which take half the memory of float32; by default, the dtype in
            which keys are computed. The attribute `model.cache_dtype` has this value.

    The weight files are mapped into memory. While a model is in use, do not write to its
    files; replace the files instead. The kernel's packed matrices are the only copy of the weights
    (docs/models.md, Memory).

    Raises:
        ModelError: the files are broken or inconsistent, or qkv does not support the model's family
            or one of its options.
        FileNotFoundError: the folder does not exist, or the model was not found.
        ValueError: the name is unknown, `dtype` or `cache_dtype` is not supported, or `cache_dtype`
            is given for a model that is not a decoder.
        MemoryError: the model does not fit into memory; the message says how much memory it needs,
            and which dtype needs less.

    >>> load("random")
    <Model random: qkv-lesson, 1 layers, 2 heads, vectors of 8>
    """
    chosen = os.environ.get("QKV_MODEL") if name_or_path is None else None
    if name_or_path is None:
        name_or_path = chosen or DEFAULT
    kind = None if dtype is None else _float_type(dtype)
    cache_dtype = cache_type(cache_dtype)
    if name_or_path == "random" and not Path("random", read.CONFIG).is_file():
        if revision is not None:
            raise value_error(f"the model 'random' has no revisions: omit {revision!r}")
        if kind == np.int8:
            raise value_error("the model 'random' cannot compute in int8; pass another dtype")
        return _with_cache_dtype(random_model(dtype=kind or np.float32), cache_dtype)
    try:
        folder, name = find_model(name_or_path, revision), str(name_or_path)
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        # Only qkv's own errors have one argument; the operating system's errors have two.
        if chosen and len(error.args) == 1:
            raise type(error)(f"{error} (the name comes from QKV_MODEL)") from error
        raise
    if Path(name).exists():
        name = Path(name).expanduser().resolve().name.removesuffix(".gguf")
    try:
        model = _read(folder, name, kind) if folder.is_dir() else _of_gguf(folder, name, kind)
        return _with_cache_dtype(model, cache_dtype)
    except read.ModelError as error:
        raise read.ModelError(read.plain(f"load: {message(error)}", 2000)) from error


@contextmanager
def _naming_memory(name: str, stored: Tensors, kind: DType | None) -> Iterator[None]:
    """Inside the `with` block, let out-of-memory errors say how much memory the model needs."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(_lack_of_memory(name, list(stored.values()), kind)) from error


def _lack_of_memory(name: str, tensors: Sequence[Stored], kind: DType | None) -> str:
    """Return the error for a model that does not fit in memory."""
    count = sum(math.prod(tensor.shape) for tensor in tensors)
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
    is_narrow = variant() is not None and all(tensor.narrow for tensor in matrices)
    sizes = {"float64": 8 * count, "float32": 2 * count if is_narrow else 4 * count}
    sizes |= {"bfloat16": 2 * count, "int8": 2 * count}
    if any(tensor.is_between_blocks for tensor in tensors):
        sizes["int8"] = sum(tensor.raw.nbytes for tensor in tensors)
    about = {dtype: f"about {size / 1e6:,.1f} MB" for dtype, size in sizes.items()}
    dtype = "float32" if kind is None else kind.name
    small = min(sizes, key=lambda one: sizes[one])
    way_out = "use a smaller model, or a GGUF file in Q4_0 with dtype='int8'"
    if sizes[small] < sizes[dtype]:
        way_out = f"pass dtype={small!r} ({about[small]})"
    return (
        f"load: not enough memory: {name} has {count:,} parameters, {about[dtype]} with "
        f"dtype={kind and kind.name!r}: {way_out}"
    )


def _with_cache_dtype(model: Model, kind: DType | None) -> Model:
    """Set the dtype of a model's key/value caches, and return the model."""
    model.cache_dtype = kind
    return model


def _read(folder: Path, name: str, kind: DType | None) -> Model:
    """Read the model in a folder."""
    routing = read_routing(folder)
    models: dict[str, Model] = {}
    for route, modules in routing.ways.items():
        sentence = read_sentence(folder, modules, routing.files)
        alike = (other for other in models.values() if other.sentence.home == sentence.home)
        twin = next(alike, None)
        models[route] = (
            _of_files(folder, name, sentence, kind) if twin is None else twin.read_as(sentence)
        )
    model = models[routing.first]
    return model.join_routes(routing, models) if routing.is_choice else model


def _of_files(folder: Path, name: str, sentence: Sentence, kind: DType | None) -> Model:
    """Read the model in the folder `folder / sentence.home`.

    A static model (a table of vectors) does not need a config.json. Any other model needs a
    config.json.
    """
    home = folder / sentence.home
    if sentence.static:
        return _static(folder, name, sentence, kind)
    if not (home / read.CONFIG).exists():
        raise read.ModelError(f"{home}: {lacking(home)}")
    values = read.read_json(home / read.CONFIG)
    design, names = design_of(values, home / read.CONFIG)
    tensors = Tensors(home)
    is_pair, named = isinstance(design, Seq2SeqDesign), Config(values, "").architecture()
    if is_pair and not any(name.startswith("decoder.") for name in tensors):
        what = f"config.json names {named:.80}, but the files hold no decoder"
        _warn(f"{tensors.source}: {what}: the encoder runs alone and computes vectors")
        values = {**values, "architectures": [f"{values['model_type'].upper()}EncoderModel"]}
        design, names = design_of(values, home / read.CONFIG)
    layers = design.layers if isinstance(design, Design) else ()
    if re.search("Bi[A-Z]|Encoder", named) and any(one.options.get("is_causal") for one in layers):
        _warn(
            f"{home / read.CONFIG}: {named:.80} is not a class of transformers: attention is "
            "causal; if the model's own code lets tokens attend to both sides, add "
            '"is_causal": false'
        )
    for file, what in _UNREAD.items():
        if (home / file).is_file():
            _warn(f"{home / file}: it is {what}")
    bare = not isinstance(design, DualDesign) and design.head is None
    design = _with_what_is_there(design, names, tensors)
    with _naming_memory(name, tensors, kind):
        weights = read_weights(names, design, tensors, kind)
    if bare:
        _warn_of_left_out(Config(values, str(home / read.CONFIG)), weights)
    tokenizer = _tokenizer(home / read.TOKENIZER, lowercase=sentence.lowercase)
    if tokenizer is not None:
        configure(tokenizer, sentence.tokenizer_config(), home, values["model_type"])
    made: Callable[..., Model] = _CLASSES.get(kind_of(design).split()[0], Model)
    if isinstance(design, VisionDesign):
        made = partial(VisionModel, pixels=Pixels.read(home, design))
    elif isinstance(design, DualDesign):
        looks = Pixels.read(home, design.vision)
        made = partial(DualEncoder, pixels=looks, towers=towers(values, home / read.CONFIG))
    model = made(
        name=name,
        config=values,
        design=design,
        weights=weights,
        tokenizer=tokenizer,
        sentence=sentence,
        generation=read.read_json(home / read.GENERATION)
        if (home / read.GENERATION).is_file()
        else None,
        notices=read_notices(folder),
    )
    with _naming_memory(name, tensors, kind):
        model.prepare()
    return model


def _of_gguf(path: Path, name: str, kind: DType | None) -> Model:
    """Read the model in a GGUF file."""
    file = read_gguf(path)
    config = gguf_config(file, FAMILIES)
    design, names = design_of(config, path)
    tensors = gguf_tensors(file, names)
    with _naming_memory(name, tensors, kind):
        weights = read_weights(names, design, tensors, kind)
    parts, sentence = gguf_tokenizer(file), gguf_sentence(file)
    tokenizer = None if parts is None else _make_tokenizer(path, lambda: _of_parts(parts))
    if tokenizer is not None:
        configure(tokenizer, sentence.tokenizer_config(), path, config["model_type"])
    model = Model(
        name=name,
        config=config,
        design=design,
        weights=weights,
        tokenizer=tokenizer,
        sentence=sentence,
        generation=gguf_generation(file),
    )
    with _naming_memory(name, tensors, kind):
        model.prepare()
    return model


def _static(folder: Path, name: str, sentence: Sentence, kind: DType | None) -> Model:
    """Read a static model: a table with one vector per token.

    The model's tokenizer.json may set a maximum number of tokens per text.
    """
    home = folder / sentence.home
    # A static model has no linear layers, so with int8, its table stays float32.
    config, design, weights = read_static(Tensors(home), None if kind == np.int8 else kind)
    read.need_file(home / read.TOKENIZER, read.MOST_TOKENIZER)
    tokenizer = _tokenizer(home / read.TOKENIZER, BareTokenizer)
    cut = tokenizer.truncation if isinstance(tokenizer, BareTokenizer) else None
    if cut is not None and cut["direction"] != "right":
        raise read.ModelError(
            f"{home / read.TOKENIZER}: the tokenizer truncates texts on the {cut['direction']}, "
            "but qkv truncates on the right"
        )
    return Model(
        name=name,
        config=config,
        design=design,
        weights=weights,
        tokenizer=tokenizer,
        sentence=replace(sentence, max_seq_length=None if cut is None else cut["max_length"]),
        notices=read_notices(folder),
    )


def _with_what_is_there(design: Any, names: Names, tensors: Tensors) -> Any:
    """Return the design; remove its head if the files lack the head's tensors."""
    if type(design) is not Design or design.head is None:
        return design
    if design.head.embeds:
        return design
    missing = [names.tensor_of(name)[0] for name, _ in design.head.shapes(design.out_dim)]
    there = {names.family.today(tensor) for tensor in tensors}
    if not missing or not there.isdisjoint(missing):
        return design
    _warn(
        f"{tensors.source}: config.json names a head, but the tensor {missing[0]} is "
        "missing: the model runs without a head and has no logits"
    )
    return replace(design, head=None)


def _warn_of_left_out(config: Config, weights: Storage) -> None:
    """Warn about a head that qkv does not compute."""
    parts = sorted({name.removesuffix(".weight").removesuffix(".bias") for name in weights.heads})
    is_bare = config.architecture().endswith(_BARE)
    if config.head() or (config.architecture() and not is_bare and parts):
        _warn(
            f"{config.source}: qkv does not compute the head of "
            f"{read.plain(config.architecture(), 80)} (ignored tensors: "
            f"{read.plain(', '.join(parts), 200) or 'none, because the files lack the head'}): "
            "the rest of the model works and computes vectors (trace, encode), but no logits "
            "(predict, rank, generate)"
        )


def _warn(message: str) -> None:
    """Warn about a part of a model that qkv leaves out."""
    warnings.warn(message, UserWarning, stacklevel=3)


def load_for(texts: Iterable[str], name_or_path: StrPath | None = None) -> Model:
    """Load a model as `load` does; for "random", the words of `texts` become the vocabulary."""
    name = os.environ.get("QKV_MODEL") or None if name_or_path is None else name_or_path
    if name == "random" and not Path("random", read.CONFIG).is_file():
        return random_model(texts)
    return load(name_or_path)


def _tokenizer(
    path: Path, kind: type[SubwordTokenizer] = SubwordTokenizer, *, lowercase: bool = False
) -> SubwordTokenizer | None:
    """Read and test the tokenizer in a file; return None if the file does not exist."""
    if not path.is_file():
        return None
    read.need_file(path, read.MOST_TOKENIZER)

    def make() -> SubwordTokenizer:
        tokenizer = read_tokenizer(path, kind, trusted=path.parent in shipped_models().values())
        return tokenizer.lowercased() if lowercase else tokenizer

    return _make_tokenizer(path, make)


def _of_parts(parts: Any) -> SubwordTokenizer:
    """Return the tokenizer that the contents of a tokenizer.json describe."""
    return parse_tokenizer(json.dumps(parts), SubwordTokenizer)


def _make_tokenizer(path: Path, make: Callable[[], SubwordTokenizer]) -> SubwordTokenizer:
    """Make and test the tokenizer of a file."""
    try:
        tokenizer = make()
        tokenizer.tokenize("a")  # Some broken files raise an error only in this call.
    except BaseException as error:
        # A panic in the tokenizers library is a BaseException, but not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        # The message of `error` begins with the name of a call; the message of its cause does not.
        reason = read.first_line(error.__cause__ or error)
        raise read.ModelError(f"{path} does not work as a tokenizer: {reason}") from error
    return tokenizer


def _float_type(dtype: Any) -> DType:
    """Convert the argument `dtype` of `load` to a NumPy type."""
    with suppress(TypeError):
        if np.dtype(dtype) == np.int8:
            return np.dtype(np.int8)
    with suppress(TypeError):
        kind = float_type(dtype)
        if kind != np.float16:
            return kind
    raise value_error(f"dtype is {dtype}; pass float32, float64, bfloat16 or int8")
