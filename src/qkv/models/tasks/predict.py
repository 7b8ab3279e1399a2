"""Predict words at the mask tokens of a text or after the text, and compute losses and logits."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qkv._argument_errors import invalid, public_call, type_error, value_error
from qkv.arrays import Array, ArrayLike, as_array, is_float, whole_number
from qkv.attend import softmax
from qkv.edits import Ablate, Edit, Edits, Hide, edits_of
from qkv.models._model_base import ModelBase
from qkv.models.network.batch import Batch
from qkv.models.run.edited_run import CANNOT
from qkv.models.run.text_reader import ids_given
from qkv.models.run.truncation import callers
from qkv.models.tasks.tracing import trace
from qkv.ops import cross_entropy
from qkv.text import Tokenized, Tokenizer
from qkv.text.tokenized import plain_tokens, told_unknown
from qkv.text.tokenizer import check_text

# `Ranked` is a list of pairs (id, probability) for each position; `Guesses` is a list of pairs
# (word, probability) for each position. The most likely pair is the first.
Ranked = list[list[tuple[int, float]]]
Guesses = list[list[tuple[str, float]]]


@public_call("predict")
def predict(
    model: ModelBase,
    text: Any,
    top_k: int = 5,
    *,
    ablate: Ablate = (),
    hide: Hide = (),
    edit: Edit = None,
) -> Guesses:
    """Predict the word at each mask token of a text or, with a decoder, the word after the text.

    Words are shown without the tokenizer's mark for a space; "##" marks a subword that continues
    the word before it.

    Args:
        text: one text, or token ids, (T,) or (1, T). For an encoder, mark each missing word
            with the mask token, or with another sign for a gap, such as "_" (see `mask`).
        top_k: the number of words.
        ablate: heads to ablate, as in `trace`.
        hide: words and positions to mask, as in `trace`.
        edit: activations to change, as in `trace`.

    Returns:
        For each mask token, or for the next position, a list of `top_k` pairs.
        A pair is `(word, probability)`; the most likely word comes first.
        Probabilities are the softmax of the logits over the whole vocabulary, in float64.

    Raises:
        TypeError: `text` is neither a string nor integers; or `top_k` is not an integer.
        ValueError: the model has no head that predicts words, or is an encoder-decoder model; the
            text is empty or too long, or has no mask token; several texts are given; `top_k` is
            below 1 or above V; or `trace` would raise a ValueError.
        FloatingPointError: the model's logits are not finite.

    >>> import qkv
    >>> (first,) = qkv.load().predict("The sun rises in the [MASK].", top_k=3)
    >>> len(first), all(0 < probability < 1 for _, probability in first)
    (3, True)
    """
    tokens, positions = blanks(model, text)
    unknown, tokenizer = tokens.unknown(), model.tokenizer
    if unknown and tokenizer is not None and tokenizer.unknown is not None:
        message = told_unknown(unknown, tokenizer.unknown).removeprefix("The ").rstrip(".")
        warnings.warn(f"predict: the {message}", UserWarning, stacklevel=callers())
    edits = edits_of(edit, ablate, hide)
    return guesses(model, tokens, positions, top_k, edits)


@public_call("losses")
def losses(
    model: ModelBase, text: Any, *, ablate: Ablate = (), hide: Hide = (), edit: Edit = None
) -> Array:
    """Return the cross-entropy of each token of a text, except the first.

    Each token is predicted from the tokens before it. The mean of the cross-entropies is the loss
    of a language model on this text. The exponential of the mean is the perplexity per token.

    Args:
        text: one text, or token ids, (T,) or (1, T).
        ablate: heads to ablate, as in `trace`.
        hide: tokens and edges to mask, as in `trace`.
        edit: activations to change, as in `trace`.

    Returns:
        (T - 1,) in nats: float32, or float64 for a float64 model.

    Raises:
        TypeError: `text` is neither a string nor integers.
        ValueError: the model is not a decoder, or `trace` raises a ValueError.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> losses = model.losses("the king of the north")
    >>> bool(losses[2] < losses[3])  # "the" after "of" is likelier than "north" after "the"
    True
    """
    model.need("losses")
    traced = trace(model, text, names=[], logits=True, ablate=ablate, hide=hide, edit=edit)
    if len(traced) != 1:
        raise value_error(f"{len(traced)} texts are given; pass one text per call")
    per_token, _ = cross_entropy(traced["logits"][0, :-1], np.array(traced[0].ids[1:], np.int64))
    return per_token


@public_call("predict")
def blanks(model: ModelBase, text: Any) -> tuple[Tokenized, list[int]]:
    """Return the tokens of a text, and the positions at which `predict` predicts words.

    Args:
        text: as in `predict`, which lists the errors.
    """
    model.need("predict")
    tokens = model.reader.with_names(_one_text(model, text))
    if model.generates:
        return tokens, [len(tokens) - 1]
    return tokens, mask_positions(tokens, model.tokenizer, model.name)


@public_call("predict")
def guesses(
    model: ModelBase,
    tokens: Tokenized,
    positions: Sequence[int],
    top_k: int = 5,
    edits: Edits | None = None,
) -> Guesses:
    """Return the guesses of `predict`, given the tokens and positions that `blanks` returns."""
    edits = edits or Edits()
    most = model.need_words()
    top_k = whole_number(top_k, name="top_k", least=1)
    if top_k > most:
        raise value_error(
            f"top_k is {top_k}, but the vocabulary of {model.name} has {most} tokens; "
            f"pass 1 to {most}"
        )
    batch, edited = model.check_edits(edits, Batch([tokens]))
    rows, _ = model.network.run(batch, model.with_means(edited, batch))
    ranked = likeliest(model.network.logits(rows[list(positions)]), top_k, edited.why)
    last = positions if model.generates else [position - 1 for position in positions]
    before = [batch[0].tokens[max(0, position) : position + 1] for position in last]
    return in_words(ranked, before, model.tokenizer)


@public_call("unembed")
def unembed(model: ModelBase, resid: ArrayLike, *, norm: bool = True) -> Array:
    """Compute logits from vectors, with the final norm, if any, and the head.

    A masked-LM head includes a linear layer, an activation and a norm. In models with
    pre-norms, `unembed(trace["resid_post", -1])` equals `trace["logits"]`. In models with
    post-norms, use `unembed(trace["normalized_resid_post", -1])` instead.

    Args:
        resid: (..., D), float.
        norm: whether to apply the final norm first; False for vectors that are normalised already.
            The norm inside a masked-LM head is always applied.

    Returns:
        (..., V), float32, or float64 for a float64 model.

    Raises:
        TypeError: `resid` does not hold floats.
        ValueError: the last dimension of `resid` is not D, or the model has no head that predicts
            words.

    >>> import qkv
    >>> model = qkv.load()
    >>> trace = model.trace("The sun rises.", logits=True)
    >>> logits = model.unembed(trace["normalized_resid_post", -1])
    >>> logits.shape == trace["logits"].shape, bool(abs(logits - trace["logits"]).max() < 1e-4)
    (True, True)
    """
    model.need("unembed")
    array = as_array(resid, name="resid")
    if not is_float(array.dtype):
        raise type_error(f"resid is {array.dtype}; pass floats (..., {model.dim})")
    if array.shape[-1:] != (model.dim,):
        raise value_error(
            f"resid has shape {array.shape} and {model.name} has vectors of "
            f"{model.dim}; pass (..., {model.dim})"
        )
    rows = array.reshape(-1, model.dim).astype(model.network.dtype, copy=False)
    logits = model.network.unembed(rows, norm=norm)
    return logits.reshape(*array.shape[:-1], logits.shape[-1])


def _one_text(model: ModelBase, text: Any) -> Tokenized:
    """Return the tokens of one text, given as a string or as ids.

    Raises:
        TypeError: the text is neither a string nor integers.
        ValueError: the text is empty or too long, or several texts are given.
    """
    reader, limit = model.reader, model.max_seq_length
    ids = ids_given(text, rows=reader.rows, limit=limit)
    if ids is not None:
        if len(ids[1]) > 1:
            raise value_error(
                f"{len(ids[1])} texts are given; pass one text, as ids of shape (T,) or (1, T)"
            )
        return ids[1][0]
    if isinstance(text, list | tuple) and text:
        raise type_error(f"text is a list of {len(text)} texts; pass one text per call")
    tokenizer, mask = reader.need_tokenizer(), reader.mask
    text = check_text(text, name="text")
    # a decoder predicts the word after the whole text, so the text may not be truncated
    truncator = reader.truncator(None if model.generates else limit)
    [tokens] = truncator([text])
    if truncator.cut.gaps and mask not in tokens.tokens:
        raise value_error(
            f"the gap is beyond the {'last' if tokenizer.cuts_left else 'first'} {limit} "
            f"tokens, and {model.name} reads only these: shorten the text"
        )
    truncator.cut.warn()
    if all(tokens.special) and mask not in tokens.tokens:
        raise value_error("the text is empty; pass a text with at least one word")
    if limit is not None and len(tokens) > limit:
        raise value_error(
            f"the text has {len(tokens)} tokens, but {model.name} takes at most "
            f"{limit} tokens; pass a shorter text"
        )
    return replace(tokens, text=text[: max(end for _, end in tokens.offsets)])


def mask_positions(tokens: Tokenized, tokenizer: Tokenizer | None, name: str) -> list[int]:
    """Return the positions of the mask tokens of a text; `name` is the model's name in errors.

    Raises:
        ValueError: the text or the model has no mask token.
    """
    mask = None if tokenizer is None else tokenizer.mask
    if mask is None:
        why = "no tokenizer" if tokenizer is None else "no mask token in its vocabulary"
        raise value_error(
            f"{name} fills in words at mask tokens but has {why}, so a text cannot mark "
            "a missing word: use the logits of model(input_ids)"
        )
    positions = [i for i, token in enumerate(tokens.tokens) if token == mask]
    if not positions:
        raise value_error(
            f"the text has no mask token, and {name} guesses words at mask tokens: write "
            f'{mask} or _ where a word is missing, for example "I sat on the {mask}."'
        )
    return positions


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of the softmax over the last axis, in float64.

    >>> log_softmax(np.zeros((1, 4))).round(4).tolist()  # log(1 / 4)
    [[-1.3863, -1.3863, -1.3863, -1.3863]]
    """
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))


def likeliest(logits: Array, count: int, why: str = CANNOT) -> Ranked:
    """Return the most likely ids in each row of logits (n, V), and their probabilities (float64).

    If probabilities are equal, the lower id comes first.

    Raises:
        FloatingPointError: logits are not finite.

    >>> ranked = likeliest(np.log([[0.1, 0.6, 0.3]]), 2)
    >>> [[(token, round(probability, 2)) for token, probability in row] for row in ranked]
    [[(1, 0.6), (2, 0.3)]]
    """
    wide = logits.astype(np.float64)
    if not np.isfinite(wide.max(-1)).all():
        raise invalid(FloatingPointError, f"the model's logits are not finite: {why}")
    return [largest(softmax(row), count) for row in wide]


def in_words(ranked: Ranked, before: list[list[str]], tokenizer: Tokenizer | None) -> Guesses:
    """Convert ids to words, with their probabilities; "##" begins a subword inside a word.

    Without a tokenizer, or if no token has the id, the word is the id's digits, such as "7".

    Args:
        ranked: ids and probabilities for each position.
        before: for each position, a list with the token before it; an empty list at the start.
        tokenizer: the model's tokenizer.
    """
    marks = tokenizer is not None and bool(tokenizer.blank)

    def word(token: int, last: Sequence[str]) -> str:
        name = None if tokenizer is None else tokenizer.token(token)
        if tokenizer is None or name is None:
            return str(token)
        front = ["Ġ"] * marks + list(last)  # tells `plain_tokens` that "Ġ" marks a space
        special = [False] * len(front) + [tokenizer.is_special(token)]
        return plain_tokens([*front, name], special)[-1]

    return [
        [(word(token, last), probability) for token, probability in row]
        for row, last in zip(ranked, before, strict=True)
    ]


def largest(values: Array, count: int) -> list[tuple[int, float]]:
    """Return `(index, value)` for the `count` largest values (V,); equal values keep their order.

    >>> largest(np.array([0.1, 0.6, 0.3]), 2)
    [(1, 0.6), (2, 0.3)]
    """
    if not count:
        return []
    ids = np.flatnonzero(values >= np.partition(values, -count)[-count])
    ids = ids[np.argsort(-values[ids], kind="stable")][:count]
    return list(zip(ids.tolist(), values[ids].tolist(), strict=True))
