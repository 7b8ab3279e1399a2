"""Make vectors of texts: `Model.encode` and the calls beside it, and the routes that texts take."""

from __future__ import annotations

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

    Texts of similar length run together, end to end: no padding is computed. A text longer than
    `max_seq_length` is cut as in `trace`. Blanks around a text are left out.

    Args:
        inputs: one text or any iterable of texts.
        batch_size: the number of texts of 128 tokens that run at once: more shorter ones, fewer
            longer ones.
        show_progress_bar: None shows one on a terminal if the work takes long.
        normalize_embeddings: whether vectors are scaled to length 1; None for what the model's
            files say.
        output_value: "sentence_embedding", or "token_embeddings" for the last vectors of all
            tokens, special tokens included, or None for both, by name.
        prompt_name: which of the prompts in the model's files goes before each text; by default the
            files' default prompt, if any.
        prompt: a prompt to use instead.
        truncate_dim: keep only this many numbers of each vector; None keeps all. As in
            sentence-transformers, vectors that the model's files scale to length 1 are scaled
            before they are cut, and `normalize_embeddings=True` scales the rest again. Vectors of
            tokens are not cut.
        precision: "float32", or None, keeps vectors as they are. "int8" and "uint8" divide the
            range of each number over these texts into 256 steps; other texts have other steps.
            "binary" and "ubinary" keep only whether each number is above 0, eight of them in an
            int8 (less 128) or uint8.
        convert_to_numpy: False for a list of torch tensors, one for each text.
        convert_to_tensor: True for one torch tensor, (n, D).
        device: None or "cpu", the only device.
        pool: processes that share the work, a `qkv.models.Pool` of this model.
        chunk_size: the number of texts that each process gets at a time; by default a tenth of its
            share.
        task: what the texts are for ("query", "document"), which chooses the route in a model with
            routes; None for the default route.
        ablate: heads to ablate, as in `trace`; with any of these three, all texts are split into
            tokens before the first is run.
        hide: words, positions and edges to mask, as in `trace`; tokens of a prompt count.
        edit: activations to change, as in `trace`. A function gets the texts that run together, of
            similar length in any order, and `at.texts` has their numbers; arrays are indexed by
            text in the order given.

    Returns:
        (n, D) in the order of the texts, (D,) for one string; (0, D) for no text. For
        "token_embeddings" a list of (T_i, D), or (T, D); for None a list of dicts, or a dict, with
        "input_ids" and "attention_mask" (T_i,), "token_embeddings" (T_i, D) and
        "sentence_embedding" (D,). float32, or float64 for a model of that type, or the type that
        `precision` names. With `truncate_dim` D is that number; with bits an eighth of it, rounded
        up.

    Raises:
        TypeError: a text is not a string, or the texts are a dict; as in `trace`.
        ValueError: a text has no token at all, a prompt or route does not exist, a single text is
            to be divided into steps, or an argument makes no sense; as in `trace`.
        ImportError: tensors are asked for, and torch is not installed.

    Source:
        Steps and bits: sentence-transformers, `quantize_embeddings`.

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
                f"encode: the pool is of {pool.model.name}, another model: start one of this model"
            )
        if edits:
            raise ValueError(
                "encode: pool cannot be combined with ablate, hide or edit: leave one of them out"
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
    """Return what a pool makes of texts, by the options of an encoder."""
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
    """Encode queries: `encode` with the task "query" and, by default, the prompt of that name.

    Args:
        inputs: one text or any iterable of texts.
        prompt_name: as in `encode`.
        prompt: as in `encode`.
        options: the others of `encode`.

    Returns:
        As `encode`; for a model without prompts and routes the same vectors.

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
    """Encode documents: `encode` with the task "document" and, by default, its prompt.

    Args:
        inputs: one text or any iterable of texts.
        prompt_name: as in `encode`.
        prompt: as in `encode`.
        options: the others of `encode`.

    Returns:
        As `encode`; for a model without prompts and routes the same vectors.

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
    model: Core,
    sentences: Iterable[str],
    *,
    show_progress_bar: bool | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Encode any number of texts, a few thousand at a time.

    `ablate`, `hide` and `edit` of `encode` need all texts at once and are not supported here.

    Args:
        sentences: any iterable of texts, read as the iterator advances.
        show_progress_bar: as in `encode`.
        options: the others of `encode`, except those three.

    Returns:
        An iterator over what `encode` returns for consecutive texts.

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
                f"encode_stream: there is no argument {name!r}: there are {', '.join(OPTIONS)}"
            )
    encoder = text_encoder(model, call="encode_stream", **options)
    return encoder.windows(sentences, show_progress_bar)


def text_encoder(model: Core, *, task: str | None = None, **options: Any) -> Encoder:
    """Return what `encode` computes with, for a caller that runs texts of several users together.

    Args:
        model: the model.
        task: as in `encode`.
        options: those of `encode`.
    """
    own = model_for(model, task, options.get("call", "encode"))
    return Encoder(own, task=task, **options)


def routes(model: Core) -> Mapping[str, Core]:
    """Return the models of all routes by name; empty for a model without routes."""
    if not model._routing.is_choice:
        return MappingProxyType({})
    own = {model._route: model}
    return MappingProxyType({name: (own | model._others)[name] for name in model._routing.ways})


def model_for(model: Core, task: str | None, call: str) -> Core:
    """Return the model of the route that a text with this task takes.

    Raises:
        TypeError: the task is not a string.
        ValueError: no route is for this task.
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
