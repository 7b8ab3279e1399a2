"""What a model would say after each layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.circuits.checks import check_trace, check_words, kept_of_all
from qkv.circuits.results import Result, words_of
from qkv.models.model import Model, handed_on
from qkv.trace import Trace

_CALL = "logit_lens"


def logit_lens(model: Model, trace: Trace) -> Result:
    """What the final norm and the head make of the vectors in front of and behind each layer.

    Of a model whose norms stand behind its parts (BERT) the vectors are those behind a layer's last
    norm, and the head is all of a masked-LM head.

    Args:
        model: with a head over words.
        trace: by this model, with what its layers are given ("resid_pre") and the last one gives
            ("resid_post", or "normalized_resid_post" of BERT).

    Returns:
        For a trace of one text (layers + 1, T, V), float32, or float64 for a model of that: row 0
        is of the embeddings, row `l` of what layer `l - 1` hands on; the last row is the logits.
        For a trace of several texts (B, layers + 1, T, V), 0 in the padding.

    Raises:
        TypeError: `model` or `trace` is none.
        ValueError: the model gives no logits over words, or the trace is of another model.
        KeyError: the trace lacks what a layer is given; the message says what to trace.

    Source:
        nostalgebraist 2020, "interpreting GPT: the logit lens".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> found = logit_lens(model, trace)
    >>> found.shape == (model.num_layers + 1, len(trace.ids), trace["logits"].shape[-1])
    True
    >>> bool(abs(found[-1] - trace["logits"][0]).max() < 1e-4)
    True
    """
    model = check_words(model, _CALL)
    trace = check_trace(trace, _CALL, model, several=True)
    layers = range(model.num_layers)
    names: list[list[Any]] = [[("resid_pre", 0), "full_embed"]]
    names += [list(handed_on(model, layer)) for layer in layers]
    given = [kept_of_all(trace, _CALL, *either) for either in names]  # (B, T, D) each
    texts, length = given[0].shape[:2]
    first = model.unembed(given[0])  # (B, T, V)
    found = np.empty((texts, len(given), *first.shape[1:]), first.dtype)
    found[:, 0] = first
    for row, vectors in enumerate(given[1:], 1):
        found[:, row] = model.unembed(vectors)
    words = {"layer": ["embeddings", *(f"after layer {layer}" for layer in layers)]}
    if model.tokenizer is not None:
        spelled = map(model.tokenizer.token, range(found.shape[-1]))
        words["V"] = [token or str(number) for number, token in enumerate(spelled)]
    axes = ["text", "layer", "token", "V"]
    if texts == 1:
        found, axes, words["token"] = found[0], axes[1:], words_of(trace[0])
    else:
        for text, end in zip(found, trace.lengths, strict=True):
            text[:, end:length] = 0
    return Result(found, axes, of="logit", title="Logit lens", words=words)


def has_linear_head(model: Model) -> bool:
    """Whether nothing but a matrix stands between the final norm and the logits over words."""
    head = model.design.head
    return head is not None and not (head.dense or head.activation is not None or head.norm)


def unembedding(model: Model) -> Array:
    """The matrix (D, V) that makes logits of vectors: the head's own, or that of the embeddings."""
    weight = model.parameters.get("head.out_proj.weight")
    return model.parameters["embed.weight"].T if weight is None else weight
