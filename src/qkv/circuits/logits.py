"""The parts of a logit: logit lens, direct logit attribution, integrated gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, as_array, is_float, shown, whole_number
from qkv.circuits.checks import Logit, check_logit, check_trace, check_words, for_each, kept_of_all
from qkv.circuits.results import Result, words_of
from qkv.layers import MLP, LayerNorm, RMSNorm
from qkv.models.model import Model, handed_on
from qkv.models.network.design import Design
from qkv.models.tasks.gradient import word_id
from qkv.trace import Trace


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
    model = check_words(model, "logit_lens")
    trace = check_trace(trace, "logit_lens", model, several=True)
    layers = range(model.num_layers)
    names: list[list[Any]] = [[("resid_pre", 0), "full_embed"]]
    names += [list(handed_on(model, layer)) for layer in layers]
    given = [kept_of_all(trace, "logit_lens", *either) for either in names]  # (B, T, D) each
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


def attribute_logits(
    model: Model,
    trace: Trace,
    of: tuple[Any, ...] | list[tuple[Any, ...]],
    *,
    by: Literal["neuron"] | None = None,
) -> dict[str, Any]:
    """Each part's share of a logit: direct logit attribution.

    Where norms stand before the parts of a block, every head and every MLP adds its vector to one
    sum, and a norm and a matrix make the logits of that. A norm divides by a number that depends on
    all parts together; held at what it was in this run, what is left is linear, and the shares sum
    to the logit, before a soft cap if the head has one.

    A share is what a part wrote, not what would be missing without it: `patch` and `ablate=` change
    what comes behind as well.

    Args:
        model: a decoder whose norms stand before its parts, with or without norms behind them
            (GPT-2, Llama, Gemma), in parallel too (GPT-NeoX), and whose head is a norm and a
            matrix.
        trace: by this model, of one text or several, with "full_embed", "z" (or "result") and
            "mlp_out" of all layers and the scales of the norms, as it is unless `names=` leaves
            something out; by neuron also "post".
        of: (place, token), or (place, token, other token) for how far the one logit is above the
            other. A place counts from the end of each text with -1; a token is an id, or a string
            that is one. Of several texts, a list has one such tuple for each.
        by: "neuron" to divide the MLPs' shares among their neurons.

    Returns:
        "embed", the share of the embeddings, positions included; "heads" (layers, Hq); "mlp"
        (layers,), each with its own bias, 0 where a block has none; and "bias", that of the output
        projections, of the final norm and of the head. By neuron also "neurons" (layers, F), which
        are parts of "mlp": `found["mlp"] - found["neurons"].sum(-1)` are the shares of the MLPs'
        output biases. Of several texts all have a first axis more, (B, ...). Numbers and arrays are
        float64.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: the model gives no logits over words; its head is not linear (BERT's has a layer
            and an activation), or its norms stand behind its parts; by neuron, its blocks have no
            MLP or a mixture of experts; the trace is of another model; there is no such `by`, place
            or token; or `of` is a list of another length.
        KeyError: the trace lacks an activation; the message says what to trace.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and nostalgebraist
        2020; scales held fixed as in TransformerLens.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> found = attribute_logits(model, trace, of=(-1, 7), by="neuron")
    >>> total = found["embed"] + found["heads"].sum() + found["mlp"].sum() + found["bias"]
    >>> bool(abs(total - trace["logits"][0, -1, 7]) < 1e-4)
    True
    >>> found["neurons"].shape[0] == model.num_layers
    True
    """
    model = check_words(model, "attribute_logits")
    _check_linear(model, by)
    trace = check_trace(trace, "attribute_logits", model, several=True)
    embed = kept_of_all(trace, "attribute_logits", "full_embed", ("resid_pre", 0))  # (B, T, D)
    texts = len(embed)
    lengths = trace.lengths if texts > 1 else [embed.shape[1]]
    logits = [
        check_logit(
            one, model, int(length), "attribute_logits", "of" if texts == 1 else f"of text {number}"
        )
        for number, (one, length) in enumerate(
            zip(for_each(of, texts, "attribute_logits", "of"), lengths, strict=True)
        )
    ]
    rows, places = np.arange(texts), [logit.place for logit in logits]

    def at(*names: Any) -> Array:
        """An activation at the place of each text, (B, ...)."""
        return _wide(kept_of_all(trace, "attribute_logits", *names)[rows, places])

    towards, bias = _from_head(model, logits)  # (B, D), (B,)
    design, parameters = model.design, model.parameters
    assert isinstance(design, Design)  # of a model of one text
    final = design.norm(parameters, "final_norm")
    if final is not None:
        towards, more = _through(final, at("ln_final.hook_scale"), towards)
        bias += more
    heads, mlp, neurons = [], np.zeros((texts, model.num_layers)), []
    for number, block in enumerate(model.layers):
        own = towards
        if block.out_norm1 is not None:
            own, more = _through(
                block.out_norm1, at(f"blocks.{number}.ln1_post.hook_scale"), towards
            )
            bias += more
        result = ("result", number)
        if result in trace:
            heads.append(np.einsum("bhd,bd->bh", at(result), own))
        else:
            z = at(("z", number))  # (B, Hq, dv)
            each = z * _back(block.attn, "out_proj", own).reshape(z.shape)
            heads.append(each.sum(-1))
        if "out_proj.bias" in block.attn.parameters:
            bias += own @ _wide(block.attn.parameters["out_proj.bias"])
        if block.mlp is not None:
            mlp[:, number] = (at(("mlp_out", number)) * towards).sum(-1)
        if by is not None:
            own = towards
            if block.out_norm2 is not None:
                scale = at(f"blocks.{number}.ln2_post.hook_scale")
                own, _ = _through(block.out_norm2, scale, towards)
            neurons.append(at(("post", number)) * _back(block.mlp, "down_proj", own))
    found: dict[str, Any] = {
        "embed": (at("full_embed", ("resid_pre", 0)) * towards).sum(-1),
        "heads": np.stack(heads, 1),
        "mlp": mlp,
        "bias": bias,
    }
    if by is not None:
        found["neurons"] = np.stack(neurons, 1)
    axes = {"heads": ("layer", "head"), "mlp": ("layer",), "neurons": ("layer", "neuron")}
    if texts == 1:
        found = {name: share[0] for name, share in found.items()}
    front = ("text",) * (texts > 1)
    return {
        name: Result(share, (*front, *axes.get(name, ())), of="share of the logit", title=name)
        if share.ndim
        else float(share)
        for name, share in found.items()
    }


def _check_linear(model: Model, by: Any) -> None:
    """An error where logits are no sum of parts, whatever the scales of the norms."""
    if by not in (None, "neuron"):
        raise ValueError(f"attribute_logits: by is {shown(by)}: give 'neuron', or leave it out")
    if by is not None and not all(isinstance(block.mlp, MLP) for block in model.layers):
        raise ValueError(
            f"attribute_logits: by is 'neuron' and a block of {model.name} has no MLP, or a "
            "mixture of experts: leave by out"
        )
    if not has_linear_head(model):
        raise ValueError(
            f"attribute_logits: the head of {model.name} has a layer before its last matrix, so a "
            "logit is no sum of parts: take a decoder, or measure effects with patch(model, ...)"
        )
    if any(block.post_norm for block in model.layers):
        raise ValueError(
            f"attribute_logits: {model.name} normalizes after its parts, so each norm changes what "
            "earlier parts added: take a decoder that normalizes before, or patch(model, ...)"
        )


def _from_head(model: Model, logits: Sequence[Logit]) -> tuple[Array, Array]:
    """What the vectors in front of the head are multiplied by, (B, D), and what is added, (B,)."""
    head, parameters = model.design.head, model.parameters
    assert head is not None
    out, bias = unembedding(model), parameters.get("head.out_proj.bias")
    towards = np.array([logit.of(out) for logit in logits]) * head.scale
    return towards, np.array([0.0 if bias is None else logit.of(bias) for logit in logits])


def _through(norm: LayerNorm | RMSNorm, scale: Array, towards: Array) -> tuple[Array, Array]:
    """The same in front of a norm that divides by `scale`, and what the norm's bias adds."""
    found = _wide(norm.scaled()) * towards / scale
    if isinstance(norm, LayerNorm):
        found = found - found.mean(-1, keepdims=True)  # the norm takes the mean away
    bias = norm.parameters.get("bias")
    return found, np.zeros(len(towards)) if bias is None else towards @ _wide(bias)


def _back(part: Any, name: str, own: Array) -> Array:
    """What a part's last projection multiplies its input by towards the logits, (B, in)."""
    found: Array = own @ _wide(part.parameters[f"{name}.weight"]).T
    return found


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


TOKENS = 2**11  # whose gradients are taken at once, or those of one text


def integrated_gradients(
    model: Model, text: Any, *, of: tuple[Any, ...], baseline: Any = None, steps: int = 50
) -> Result:
    """Integrated gradients: shares of a logit that the embeddings of a text have.

    On the straight way from a baseline to the embeddings of the tokens the gradient of the logit is
    averaged, and multiplied by how far it is. The shares sum to what the logit is above that of the
    baseline, which a gradient at one place does not. Positions stay as they are all the way.

    Args:
        model: with a head over words, in float32 or float64.
        text: one text, or the ids of its tokens.
        of: (place, token) for that logit, or (place, token, other token) for how far it is above
            another. A place counts from the end with -1; a token is an id, or a string that is one.
        baseline: what says nothing: a token, by its id or a string, which then stands at every
            place ("[PAD]", "[MASK]"); vectors (D,) or (T, D) in the place of embeddings; or None
            for vectors of 0. Where a norm is all that comes between embeddings and the first layer
            (Llama), those near 0 are as large as any behind it, so that a token is the better one.
        steps: at how many points the gradient is taken, those of Gauss and Legendre.

    Returns:
        (T, D), float64; its sum over D is the share of each token.

    Warns:
        UserWarning: the shares miss their sum by over a twentieth of it, so that there are too few
            steps for this baseline.

    Raises:
        TypeError: an argument is of a wrong type, or the model is in half precision.
        ValueError: the model gives no logits over words; `text` is several; there is no such place
            or token; `baseline` has another shape; `steps` is below 1.

    Source:
        Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", equation 1; the
        sum is its axiom of completeness.

    >>> import qkv
    >>> model = qkv.load()
    >>> found = integrated_gradients(model, "The sun [MASK].", of=(3, "the"), baseline="[PAD]")
    >>> logits = model.trace("The sun [MASK].", logits=True)["logits"]
    >>> found.shape == (logits.shape[1], model.dim)
    True
    """
    model = check_words(model, "integrated_gradients")
    steps = whole_number(steps, call="integrated_gradients", name="steps", least=1)
    trace = model.trace(text, names="embed", logits=True)
    if len(trace) > 1:
        raise ValueError(f"integrated_gradients: text is {len(trace)} texts: give one")
    ids, end = trace[0].ids, trace["embed"][0].astype(np.float64)  # (T, D)
    logit = check_logit(of, model, len(end), "integrated_gradients", "of")
    start = _baseline(model, baseline, end.shape)
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # between -1 and 1
    mean = np.zeros_like(end)
    at_once = max(1, TOKENS // len(end))
    for first in range(0, steps, at_once):
        part = slice(first, first + at_once)
        way = start + (nodes[part, None, None] + 1) / 2 * (end - start)  # (n, T, D)
        slopes = model.gradient([ids] * len(way), of=of, edit={"embed": way})["embed"]
        mean += np.einsum("n,ntd->td", weights[part] / 2, slopes.astype(np.float64))
    found: Array = (end - start) * mean
    before = model.trace(ids, names=[], logits=True, edit={"embed": start[None]})
    low, high = (float(logit.of(run["logits"][0, logit.place])) for run in (before, trace))
    missing = abs(found.sum() - (high - low))
    if missing > 0.05 * abs(high - low) + 1e-4 * max(abs(low), abs(high)):
        warnings.warn(
            f"integrated_gradients: the shares sum to {found.sum():.4g}, and the logit is "
            f"{high - low:.4g} above that of the baseline: give more steps than {steps}, or "
            "another baseline",
            stacklevel=2,
        )
    return Result(
        found,
        ("token", "D"),
        of="share of the logit",
        title="Integrated gradients",
        words={"token": words_of(trace[0])},
    )


def _baseline(model: Model, given: Any, shape: tuple[int, ...]) -> Array:
    """The vectors (T, D) that a baseline stands for, float64."""
    if given is None:
        return np.zeros(shape)
    if isinstance(given, str) or np.ndim(given) == 0:
        token = word_id(
            given,
            len(model.embedding.table),
            model.tokenizer,
            model.prepared,
            model.name,
            call="integrated_gradients",
            given="baseline",
        )
        alone = model.trace(np.full(shape[0], token), names="embed")["embed"][0]
        return np.asarray(alone, np.float64)
    array = as_array(given, call="integrated_gradients", name="baseline")
    if not is_float(array.dtype):
        raise TypeError(
            f"integrated_gradients: baseline is {shown(given)}: give a token, or floats "
            f"{shape[1:]} or {shape}"
        )
    if array.shape not in (shape, shape[1:]):
        raise ValueError(
            f"integrated_gradients: baseline has shape {array.shape} and the embeddings {shape}: "
            f"give that, or {shape[1:]} for all positions"
        )
    return np.array(np.broadcast_to(array, shape), np.float64)
