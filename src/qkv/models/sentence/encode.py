"""Turn texts into vectors: `Model.encode`, related methods, and the routes of texts."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from qkv.edits import Ablate, Edit, Hide, edits_of
from qkv.extras import need
from qkv.models.core import Core
from qkv.models.run.fit_edits import check
from qkv.models.run.inputs import check_device
from qkv.models.sentence.encoder import OPTIONS, Encoder, checked_texts
from qkv.models.sentence.vectors import as_tensors, check_precision, quantized


def encode(
    model: Core,
    inputs: str | Iterable[str],
    *,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
    normalize_embeddings: bool | None = None,
    output_value: str | None = "sentence_embedding",
    prompt_name: str | None = None,
    prompt: str | None = None,
    truncate_dim: int | None = None,
    precision: str | None = "float32",
    convert_to_numpy: bool = True,
    convert_to_tensor: bool = False,
    device: Any = None,
    pool: Any = None,
    chunk_size: int | None = None,
    task: str | None = None,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> Any:
    """Return a vector for each text, pooled and scaled as the model's files say.

    Texts of similar length run together, without padding. A text longer than `max_seq_length` is
    truncated as in `trace`. White space around a text is removed.

    Args:
        inputs: one text or any iterable of texts.
        batch_size: the number of texts per batch if each text has 128 tokens. Batches of shorter
            texts hold more texts, and batches of longer texts hold fewer.
        show_progress_bar: whether to show a progress bar; None shows it on a terminal if the work
            takes long.
        normalize_embeddings: whether vectors are scaled to length 1; None follows the model's
            files.
        output_value: "sentence_embedding"; "token_embeddings" for the last vectors of all tokens,
            including special tokens; or None for a dict with both.
        prompt_name: the name of the prompt to put before each text, as the model's files name it;
            by default, the default prompt in these files, if any.
        prompt: the text of a prompt, instead of `prompt_name`.
        truncate_dim: the number of leading dimensions of each vector to keep; None keeps all. As in
            sentence-transformers, a scaling to length 1 in the model's files comes before this
            truncation, and `normalize_embeddings=True` scales the truncated vectors again. Token
            vectors are not truncated.
        precision: "float32", or None, keeps vectors as they are. "int8" and "uint8" divide the
            range of each dimension over these texts into 256 steps, so the steps depend on the
            texts. "binary" and "ubinary" keep one bit per number: 1 if the number is positive.
            Eight bits form a uint8 or, minus 128, an int8.
        convert_to_numpy: False for a list of torch tensors, one per text.
        convert_to_tensor: True for one torch tensor, (n, D).
        device: None or "cpu", the only device.
        pool: a `qkv.models.Pool` of this model, with processes that share the work.
        chunk_size: the number of texts in each request to a process; by default a tenth of the
            texts per process.
        task: the use of the texts ("query" or "document"), which selects the route in a model with
            routes; None selects the default route.
        ablate: heads to ablate, as in `trace`. With `ablate`, `hide` or `edit`, all texts are split
            into tokens before the first text is run.
        hide: words, positions and edges to mask, as in `trace`; positions include the prompt.
        edit: activations to change, as in `trace`. A function gets a batch of texts, in any order;
            `at.texts` has the index of each text. An array has one row per text, in the order of
            the texts.

    Returns:
        (n, D) in the order of the texts; (D,) for one string; (0, D) if there are no texts.
        With "token_embeddings", a list of arrays (T_i, D), or one array (T, D) for one string.
        With `output_value=None`, a list of dicts, or one dict for one string.
        A dict has "input_ids" and "attention_mask" (T_i,), "token_embeddings" (T_i, D), and
        "sentence_embedding" (D,).
        The type is float32, float64 for a float64 model, or the type that `precision` names.
        With `truncate_dim`, D is that number; with "binary" and "ubinary", D / 8, rounded up.

    Raises:
        TypeError: a text is not a string, or the texts are a dict; also as in `trace`.
        ValueError: a text has no tokens, a prompt or route does not exist, `precision` needs
            several texts, or an argument is invalid; also as in `trace`.
        ImportError: the result should be tensors, but torch is not installed.

    Source:
        `quantize_embeddings` of sentence-transformers, for steps and bits.

    >>> import qkv
    >>> qkv.load("random").encode("I love you").shape
    (8,)
    >>> qkv.load("random").encode(["I love you"], truncate_dim=3).shape
    (1, 3)
    >>> qkv.load("random").encode(["I love you"], precision="ubinary").shape
    (1, 1)
    """
    if model.reader.has_images:
        model.reader.refuse_images(inputs, "encode")
    check_device(device, "encode")
    precision = "float32" if precision is None else precision
    check_precision(precision, call="encode", output_value=output_value)
    tensors = convert_to_tensor or not convert_to_numpy
    torch = need("torch", "torch") if tensors else None
    encoder = text_encoder(
        model,
        batch_size=batch_size,
        normalize_embeddings=normalize_embeddings,
        output_value=output_value,
        prompt_name=prompt_name,
        prompt=prompt,
        truncate_dim=truncate_dim,
        task=task,
    )
    texts = [inputs] if isinstance(inputs, str) else inputs
    edits = edits_of(edit, ablate, hide, call="encode")
    check(edits, encoder.model.network, encoder.model.reader)
    if pool is not None:
        if pool.model is not model:
            raise ValueError(
                f"encode: the pool is for {pool.model.name}, another model: start a pool for this "
                "model"
            )
        if edits:
            raise ValueError(
                "encode: pool cannot be combined with ablate, hide or edit: omit one of them"
            )
        vectors = _by_pool(pool, encoder, texts, chunk_size, show_progress_bar)
    else:
        vectors = encoder.all(texts, show_progress_bar, edits)
    if precision != "float32":
        vectors = quantized(vectors, precision, call="encode")
    if torch is not None:
        vectors = as_tensors(vectors, torch, joined=convert_to_tensor)
    return vectors[0] if isinstance(inputs, str) else vectors


def _by_pool(
    pool: Any, encoder: Encoder, texts: Any, chunk_size: int | None, show: bool | None
) -> Any:
    """Return a pool's results for texts, with the options of an encoder."""
    options = {name: getattr(encoder, name) for name in OPTIONS}
    checked = [*checked_texts(texts, "encode")]
    parts = pool.encode(checked, chunk_size, show, encoder.limit, **options) if checked else []
    if encoder.output_value == "sentence_embedding":
        return np.concatenate([encoder.all([]), *parts])
    return [vectors for part in parts for vectors in part]


def encode_query(
    model: Core,
    inputs: str | Iterable[str],
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> Any:
    """Encode queries: `encode` with the task "query" and, by default, the prompt "query".

    Args:
        inputs: one text or any iterable of texts.
        prompt_name: as in `encode`.
        prompt: as in `encode`.
        options: the other options of `encode`.

    Returns:
        The result of `encode` with this task and prompt.
        Without prompts and routes in the model, the result is the same as from `encode`.

    Raises:
        TypeError: as in `encode`.
        ValueError: as in `encode`.

    >>> import qkv
    >>> qkv.load("random").encode_query("I love you").shape
    (8,)
    """
    prompt_name = "query" if prompt is None and prompt_name is None else prompt_name
    return encode(model, inputs, prompt_name=prompt_name, prompt=prompt, task="query", **options)


def encode_document(
    model: Core,
    inputs: str | Iterable[str],
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> Any:
    """Encode documents: `encode` with the task "document" and, by default, the prompt "document".

    Args:
        inputs: one text or any iterable of texts.
        prompt_name: as in `encode`.
        prompt: as in `encode`.
        options: the other options of `encode`.

    Returns:
        The result of `encode` with this task and prompt.
        Without prompts and routes in the model, the result is the same as from `encode`.

    Raises:
        TypeError: as in `encode`.
        ValueError: as in `encode`.

    >>> import qkv
    >>> qkv.load("random").encode_document(["I love you"]).shape
    (1, 8)
    """
    prompt_name = "document" if prompt is None and prompt_name is None else prompt_name
    return encode(model, inputs, prompt_name=prompt_name, prompt=prompt, task="document", **options)


def encode_stream(
    model: Core, sentences: Iterable[str], *, show_progress_bar: bool | None = None, **options: Any
) -> Iterator[Any]:
    """Encode any number of texts, in groups of a few thousand texts.

    The options `ablate`, `hide` and `edit` need all texts at once and are not supported here.

    Args:
        sentences: any iterable of texts, which is read as the returned iterator advances.
        show_progress_bar: as in `encode`.
        options: other options of `encode`, except `ablate`, `hide` and `edit`.

    Returns:
        An iterator; each item is the result of `encode` for consecutive texts.

    >>> import qkv
    >>> texts = (f"the cat sat {n} times" for n in range(5000))
    >>> sum(len(vectors) for vectors in qkv.load("random").encode_stream(texts))
    5000
    """
    for name in options:
        if name in ("ablate", "hide", "edit"):
            raise TypeError(
                f"encode_stream: {name} needs all texts at once: call encode(texts, {name}=...)"
            )
        if name not in OPTIONS:
            raise TypeError(
                f"encode_stream: unknown argument {name!r}: choose from {', '.join(OPTIONS)}"
            )
    encoder = text_encoder(model, call="encode_stream", **options)
    return encoder.windows(sentences, show_progress_bar)


def text_encoder(model: Core, *, task: str | None = None, **options: Any) -> Encoder:
    """Return the `Encoder` of `encode`, for a caller that runs texts of several users together.

    Args:
        model: the model.
        task: as in `encode`.
        options: the options of `encode`.
    """
    own = model_for(model, task, options.get("call", "encode"))
    return Encoder(own, task=task, **options)


def routes(model: Core) -> Mapping[str, Core]:
    """Return the models of all routes, keyed by name; empty for a model without routes."""
    if not model._routing.is_choice:
        return MappingProxyType({})
    own = {model._route: model}
    return MappingProxyType({name: (own | model._others)[name] for name in model._routing.ways})


def model_for(model: Core, task: str | None, call: str) -> Core:
    """Return the model of the route for texts with this task.

    Raises:
        TypeError: the task is not a string.
        ValueError: this task has no route.
    """
    if task is not None and not isinstance(task, str):
        raise TypeError(f"{call}: task is {type(task).__name__}: give a string, or None")
    routing = model._routing
    if not routing.is_choice:
        return model
    route = routing.way(task)
    if route is None:
        tasks = {name for name, _ in routing.chosen if name is not None}
        known = ", ".join(dict.fromkeys([*routing.ways, *sorted(tasks)]))
        problem = f"no task is given, and {model.name} has no default route"
        if task is not None:
            problem = f"there is no route for the task {task!r:.80} in {model.name}"
        raise ValueError(
            f"{call}: {problem}: give task as one of {known}, or call encode_query or "
            "encode_document"
        )
    return routes(model)[route]
