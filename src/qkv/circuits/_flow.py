"""Measure how tokens contribute to vectors, and how heads read the outputs of other heads."""

from typing import Literal

import numpy as np

from qkv._argument_errors import public_call, value_error
from qkv.arrays import Array, quote
from qkv.circuits._logits import has_linear_head, unembedding
from qkv.circuits._reader import check_index, check_model, check_trace, check_words, pick
from qkv.circuits.results import Result, words_of
from qkv.models.model import Model
from qkv.trace import Trace


@public_call("rollout")
def rollout(trace: Trace) -> Result:
    """Attention rollout: estimate how much each token contributes to the vector of each position.

    In each layer, the attention weights are averaged over the heads. The identity matrix, which
    stands for the residual connection, is added, and each row is divided by its sum. The matrices
    of the layers are then multiplied. Rollout ignores values and MLPs, so the formula also holds
    for blocks that compute attention and the MLP in parallel (GPT-NeoX).

    Args:
        trace: a trace of one text or image, with the "pattern" of all layers.

    Returns:
        An array (layers, T, T) of float64, in which each row sums to 1.
        `[l, i, j]` estimates how much token `j` contributes to the vector of position `i` after
        layer `l`.
        The last layer's matrix is the rollout of the whole model.

    Raises:
        TypeError: `trace` is not a trace.
        ValueError: the trace has several texts, or its queries and its keys belong to different
            tokens.
        KeyError: the trace lacks the pattern of a layer.

    Source:
        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3, equation 1.

    >>> weights = np.array([[[[1.0, 0.0], [0.5, 0.5]]]])
    >>> rollout(Trace({f"blocks.{n}.attn.hook_pattern": weights for n in range(2)}))[-1]
    array([[1.    , 0.    ],
           [0.4375, 0.5625]])
    """
    trace = check_trace(trace)
    layers: list[Array] = []
    for layer in range(trace.num_layers):
        weights = pick(trace, ("pattern", layer))[0].astype(np.float64)  # (Hq, T, T)
        if weights.shape[-1] != weights.shape[-2]:
            raise value_error(
                f"layer {layer} has {weights.shape[-2]} queries and {weights.shape[-1]} "
                "keys: use a trace whose queries and keys are the same tokens"
            )
        mixed = weights.mean(0) + np.eye(weights.shape[-1])
        mixed /= mixed.sum(-1, keepdims=True)
        layers.append(mixed @ layers[-1] if layers else mixed)
    axes, words = ("layer", "query", "key"), _words(trace)
    return Result(layers, axes, of="weight", title="Attention rollout", words=words)


@public_call("value_weighted")
def value_weighted(trace: Trace, layer: int, *, model: Model | None = None) -> Result:
    """Multiply attention weights by the norms of the value vectors.

    A head can give a large weight to a token, such as [CLS], whose value vector is near 0; the
    head's output is then small. The result reflects edits of the weights and values, but not
    ablated heads or edits of "z".

    Args:
        trace: a trace of one text, with "pattern" and "v" of the layer.
        layer: the layer's index; a negative index counts from the end.
        model: the model of the trace. If `model` is given, each value vector is multiplied by the
            head's output projection before the norm is computed, as in the paper. If `model` is
            None, the norm of the value vector itself is used.

    Returns:
        (Hq, T, T), float64: `[h, i, j]` is the norm of `weight * value` for query `i`, key `j`.

    Raises:
        TypeError: `trace` is not a trace, `model` is not a model, or `layer` is not an integer.
        ValueError: the trace has several texts or comes from a different model, or the layer does
            not exist.
        KeyError: the trace lacks the pattern or the values of the layer.

    Source:
        Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector
        Norms", equations 3 to 5. If `model` is given, the result is `|weight * f(x)|` in the
        paper's notation.

    >>> import qkv
    >>> model = qkv.load("random")
    >>> trace = model.trace("I love you")
    >>> lengths = np.linalg.norm(trace["v", 0][0], axis=-1)  # (T, H)
    >>> weighted = value_weighted(trace, 0)
    >>> bool(np.allclose(weighted, trace["pattern", 0][0] * lengths.T[:, None]))
    True
    >>> value_weighted(trace, 0, model=model).shape
    (2, 3, 3)
    """
    if model is not None:
        model = check_model(model)
    trace = check_trace(trace, model)
    layer = check_index(layer, trace.num_layers, "layer", ValueError)
    weights, values = (
        pick(trace, (name, layer))[0].astype(np.float64) for name in ("pattern", "v")
    )  # Weights (Hq, Q, K) and values (K, Hkv, dv).
    values = np.swapaxes(values, 0, 1).repeat(len(weights) // values.shape[1], 0)
    if model is not None:
        out = model.layers[layer].attn.parameters["out_proj.weight"].astype(np.float64)
        values = values @ out.reshape(len(weights), -1, out.shape[-1])  # (Hq, K, D)
    lengths, title = np.linalg.norm(values, axis=-1), f"Value-weighted attention of layer {layer}"
    axes, words = ("head", "query", "key"), _words(trace)
    return Result(weights * lengths[:, None], axes, of="length", title=title, words=words)


def _words(trace: Trace) -> dict[str, list[str]]:
    """Label the query axis and the key axis with the tokens."""
    return dict.fromkeys(("query", "key"), words_of(trace))


@public_call("composition")
def composition(model: Model, kind: Literal["q", "k", "v"]) -> Result:
    """Measure how strongly each head reads the output of each earlier head.

    The score is `|A @ B| / (|A| |B|)`, where `|M|` is the root of the sum of the squared entries of
    a matrix M. `A` and `B` come from `model.head_weights(layer)`. `A` is the OV matrix of the
    earlier head, which writes `x @ A`. `B` is a matrix of the later head, which reads this output.
    For "q" (queries), `B` is the later head's QK matrix. For "k" (keys), `B` is the transpose of
    this QK matrix. For "v" (values), `B` is the later head's OV matrix. Even random matrices have
    scores above 0, especially if D is small, so compare a score with the scores of other heads. The
    weights are raw: norms are not folded in. (TransformerLens multiplies the weights by the norms'
    weights when it loads a model, so its scores differ.) The score ignores rotary positions, the
    norms of queries and keys, and the norms that follow attention and MLPs (BERT).

    The result has the axes "layer" and "head" for the writing head, and "reader_layer" and
    "reader_head" for the reading head. Query heads that share a key head have separate scores.

    Args:
        model: a text encoder or decoder from `qkv.load`.
        kind: "q", "k" or "v", the input through which the later head reads.

    Returns:
        (layers, Hq, layers, Hq), float64, between 0 and 1. A score is 0 unless the reading head is
        in a later layer than the writing head.

    Raises:
        TypeError: `model` is not a model.
        ValueError: `kind` is unknown, or the model is an encoder-decoder or reads images.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Two-Layer
        Attention-Only Transformers".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> scores = composition(model, "v")
    >>> one, other = model.head_weights(0).ov.full()[1], model.head_weights(3).ov.full()[2]
    >>> norm = np.linalg.norm
    >>> bool(np.isclose(scores[0, 1, 3, 2], norm(one @ other) / (norm(one) * norm(other))))
    True
    """
    model = check_model(model)
    if kind not in ("q", "k", "v"):
        raise value_error(f"`kind` is {quote(kind)}: choose among q, k and v")
    layers, heads = model.num_layers, model.num_heads
    write, read = [], []
    for layer in range(layers):
        weights = model.head_weights(layer)
        q, k, v, o = (getattr(weights, f"W_{name}").astype(np.float64) for name in "QKVO")
        write.append(_triangle(v) @ o)  # (Hq, d, D), with the same norms as the OV matrices
        first, second = {"q": (q, k.transpose(0, 2, 1)), "k": (k, q.transpose(0, 2, 1))}.get(
            kind, (v, o)
        )
        read.append(first @ np.swapaxes(_triangle(np.swapaxes(second, 1, 2)), 1, 2))  # (Hq, D, d)
    scores = np.zeros((layers, heads, layers, heads))
    for later in range(1, layers):
        right = np.concatenate(read[later], axis=1)  # (D, Hq * d)
        for early in range(later):
            product = write[early] @ right  # (Hq, d, Hq * d)
            squares = np.square(product).reshape(*product.shape[:2], heads, -1)
            lengths = np.multiply.outer(_lengths(write[early]), _lengths(read[later]))
            score = np.sqrt(squares.sum((1, 3)))
            scores[early, :, later] = np.divide(
                score, lengths, out=np.zeros_like(score), where=lengths > 0
            )
    axes = "layer", "head", "reader_layer", "reader_head"
    return Result(scores, axes, of="score", title=f"{kind.upper()}-composition")


def _triangle(tall: Array) -> Array:
    """Return the factors R (H, d, d) of QR decompositions of thin matrices (H, D, d).

    If R is the factor of a thin matrix A, then `R @ M` has the same Frobenius norm as `A @ M` for
    every matrix M.
    """
    return np.asarray(np.linalg.qr(tall, mode="r"))


def _lengths(matrices: Array) -> Array:
    """Return the Frobenius norm (H,) of each matrix."""
    return np.asarray(np.linalg.norm(matrices, axis=(1, 2)))


@public_call("copying_scores")
def copying_scores(model: Model) -> Result:
    """Measure copying: how much each head raises the logits of the tokens that it attends to.

    A head that attends to a single token adds a row of `W_E @ OV @ W_U` (V, V) to the logits, where
    `OV` is from `model.head_weights(layer)`. The score is the sum of the eigenvalues of that
    matrix, divided by the sum of their absolute values. The score is 1 if all eigenvalues are
    positive: the head raises the logits of the tokens that it reads. It is -1 if all eigenvalues
    are negative, and near 0 if the eigenvalues point in random directions of the complex plane.
    The weights are raw: norms are not folded in, and the contributions of position embeddings and
    MLPs are ignored.

    Args:
        model: a model whose LM head consists of a norm and a matrix.

    Returns:
        (layers, Hq), float64, between -1 and 1; NaN if a head adds nothing to the logits.

    Raises:
        TypeError: `model` is not a model.
        ValueError: the model has no LM head, or its LM head is not linear (BERT's LM head has a
            layer with an activation function).

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Copying".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> scores = copying_scores(model)
    >>> scores.shape == (model.num_layers, model.num_heads), bool(abs(scores).max() <= 1)
    (True, True)
    """
    model = check_words(model)
    if not has_linear_head(model):
        raise value_error(
            f"the LM head of {model.name} has a layer before the last matrix, "
            "so a head's contribution to the logits is not a product of matrices: use a decoder"
        )
    embed, out = model.parameters["embed.weight"], unembedding(model)  # (V, D), (D, V)
    for weight in model.network.final_proj.values():  # OPT: (V, E), (E, V) -> (V, D), (D, V)
        embed, out = embed @ model.parameters["embed_proj.weight"], weight @ out
    there_and_back = out.astype(np.float64) @ embed.astype(np.float64)  # (D, D)
    scores = np.empty((model.num_layers, model.num_heads))
    for layer in range(model.num_layers):
        ov = model.head_weights(layer).ov
        # A head's (d, d) matrix has the same nonzero eigenvalues as its (V, V) matrix.
        values = np.linalg.eigvals(ov.right.astype(np.float64) @ there_and_back @ ov.left)
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
            scores[layer] = values.sum(-1).real / np.abs(values).sum(-1)
    return Result(scores, ("layer", "head"), of="score", title="Copying")
