"""The logit lens, direct logit attribution and integrated gradients."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from qkv._argument_errors import public_call, type_error, value_error
from qkv.arrays import Array, as_array, is_float, quote, whole_number
from qkv.circuits._reader import MOST_POSITIONS, Target, check_trace, check_words, pick, readings
from qkv.circuits._residual import mlp_parts
from qkv.circuits.results import Result, mean_of_pairs, words_of
from qkv.layers import MLP, LayerNorm
from qkv.layers.base import to_bfloat16_like
from qkv.models.model import Model, handed_on
from qkv.models.network.design import Design
from qkv.models.run.truncation import callers
from qkv.models.tasks.gradient import Reading, word_id
from qkv.trace import Trace
from qkv.trace.activations import parse


@public_call("logit_lens")
def logit_lens(model: Model, trace: Trace) -> Result:
    """Apply the final norm and the LM head to the hidden states before and after each layer.

    In a model with norms after attention and MLPs (BERT), the hidden state after a layer is the
    output of the layer's last norm.

    Args:
        model: a model with an LM head.
        trace: a trace from this model with the inputs of its layers ("resid_pre") and the output of
            the last layer ("resid_post", or "normalized_resid_post" for BERT).

    Returns:
        An array (layers + 1, T, V) of float32, or of float64 for a float64 model. Entry 0 is
        computed from the embeddings, entry 1 from the output of layer 0, and so on. The last entry
        holds the logits, even for an edited run. For several texts, the array is (B, layers + 1, T,
        V), with 0 in the padding.

    Raises:
        TypeError: `model` is not a model, or `trace` is not a trace.
        ValueError: the model has no LM head, or the trace is from a different model.
        KeyError: the trace lacks the input of a layer; the message says what to trace.

    Source:
        nostalgebraist 2020, "interpreting GPT: the logit lens".

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> logits = logit_lens(model, trace)
    >>> logits.shape == (model.num_layers + 1, len(trace.ids), trace["logits"].shape[-1])
    True
    >>> bool(abs(logits[-1] - trace["logits"][0]).max() < 1e-4)
    True
    """
    model = check_words(model)
    trace = check_trace(trace, model, many=True)
    layers = range(model.num_layers)
    names = [(("resid_pre", 0), "full_embed"), *(handed_on(model, layer) for layer in layers)]
    hidden = [pick(trace, *either) for either in names]  # (B, T, D) each.
    first = model.unembed(hidden[0])  # (B, T, V).
    lens = np.empty((len(first), len(hidden), *first.shape[1:]), first.dtype)
    lens[:, 0] = first
    for row, vectors in enumerate(hidden[1:], 1):
        lens[:, row] = model.unembed(vectors)
    if any(parse(name).is_last for name in trace.changed.get("edit", ())):
        last = _last(model, trace)
        rows = model.network.logits(last.reshape(-1, last.shape[-1]))
        lens[:, -1] = rows.reshape(first.shape)
    words = {"layer": ["embeddings", *(f"after layer {layer}" for layer in layers)]}
    if model.tokenizer is not None:
        spelled = map(model.tokenizer.token, range(lens.shape[-1]))
        words["V"] = [token or str(number) for number, token in enumerate(spelled)]
    axes = ["text", "layer", "token", "V"]
    if len(lens) == 1:
        lens, axes, words["token"] = lens[0], axes[1:], words_of(trace[0])
    else:
        for text, end in zip(lens, trace.lengths, strict=True):
            text[:, end:] = 0
    return Result(lens, axes, of="logit", title="Logit lens", words=words)


def has_linear_head(model: Model) -> bool:
    """Return whether the LM head is one matrix, without its own norm or activation function."""
    head = model.design.head
    return head is not None and not (head.dense or head.activation is not None or head.norm)


def unembedding(model: Model) -> Array:
    """Return the LM head's matrix (D, V), which may be the transposed token embeddings.

    If the model has a final projection, the matrix is (E, V).
    """
    weight = model.parameters.get("head.out_proj.weight")
    return model.parameters["embed.weight"].T if weight is None else weight


def _last(model: Model, trace: Trace) -> Array:
    """Return the vectors (B, T, D or E) that the LM head reads."""
    names = [name for name in model.network.hook_names if parse(name).is_last]
    return pick(trace, names[-1] if names else handed_on(model, model.num_layers - 1)[0])


@public_call("attribute_logits")
def attribute_logits(
    model: Model, trace: Trace, of: Target | list[Target], *, by: Literal["neuron"] | None = None
) -> dict[str, Any]:
    """Direct logit attribution: split a logit into the contributions of the parts of a model.

    If norms come before attention and MLPs, every head and every MLP adds its vector to one sum,
    and a norm and a matrix turn that sum into logits. The scale of the norm depends on all parts
    together. To split the logit into a sum, the scale is fixed at its value in the traced run.
    With a fixed scale, the contributions sum to the logit (before any soft cap). A contribution is
    only the direct effect of a part's output. Later parts also read the outputs of earlier parts;
    `patch` and `ablate=` measure direct and indirect effects together.

    The entries of the result are the contributions of these parts:

    - "embed": the token and position embeddings.
    - "heads": each head.
    - "mlp": each MLP with its biases; 0 for a block without an MLP.
    - "bias": the other biases, those of the attention layers' output projections, of the final norm
      and of the LM head.
    - "neurons", with `by="neuron"`: each neuron of each MLP. An MLP's neurons and its output bias
      sum to the contribution of the MLP.
    - "edit", in an edited run: the edits of the residual stream and of the outputs of its parts.
      Edits inside a head or MLP change the contribution of this part.

    Args:
        model: a decoder with norms before attention and MLPs (GPT-2, Llama), and with an LM head
            that consists of a norm and a matrix. The model may also have norms after attention and
            MLPs (Gemma). The model's blocks may compute attention and the MLP in parallel
            (GPT-NeoX).
        trace: a trace of one or several texts from this model. The trace must contain "full_embed",
            "z" (or "result"), "mlp_out" and the scales of the norms, for all layers. For
            `by="neuron"`, the trace must also contain "post"; for an edited run, also the final
            norm and "resid_mid". A trace that was recorded without `names=` contains all of these.
        of: (position, token), or (position, token, other token) for the difference of two logits.
            Negative positions count from the end of each text. A token is an id or a one-token
            string. `metrics.logit_difference` is also accepted. For several texts, a list may give
            each text its own tuple.
        by: "neuron" splits the contribution of each MLP into the contributions of its neurons.

    Returns:
        A dictionary with the numbers "embed" and "bias", and with the arrays "heads" (layers, Hq),
        "mlp" (layers,) and, if requested, "neurons" (layers, F). For several texts, each value is
        the mean over the texts, and its attribute `pairs` holds the values of each text, with B as
        the first axis. All values are float64.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: the model has no LM head; the LM head is not linear (BERT's LM head has a layer
            with an activation function); norms come only after attention and MLPs, as in BERT; the
            trace is from a different model; the position, the token or the value of `by` does not
            exist; `by` is "neuron", but a block has no MLP or has a mixture of experts; or the list
            `of` does not have one tuple per text.
        KeyError: the trace lacks an activation; the message says what to trace.

    Source:
        Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", and nostalgebraist
        2020; the scales are held fixed as in TransformerLens.

    >>> import qkv
    >>> model = qkv.load("books-decoder")
    >>> trace = model.trace("spoon: a", logits=True)
    >>> parts = attribute_logits(model, trace, of=(-1, 7), by="neuron")
    >>> total = parts["embed"] + parts["heads"].sum() + parts["mlp"].sum() + parts["bias"]
    >>> bool(abs(total - trace["logits"][0, -1, 7]) < 1e-4)
    True
    >>> parts["neurons"].shape[0] == model.num_layers
    True
    """
    model = check_words(model)
    _check_linear(model, by)
    trace = check_trace(trace, model, many=True)
    embed = pick(trace, "full_embed", ("resid_pre", 0))  # (B, T, D)
    texts = len(embed)
    lengths = trace.lengths.tolist() if texts > 1 else [embed.shape[1]]
    logits = readings(model, of, lengths, "of", "text", "logit")
    axes = {"heads": ("layer", "head"), "mlp": ("layer",), "neurons": ("layer", "neuron")}
    shares = {}
    for name, share in _shares(model, trace, logits, by).items():
        shares[name] = mean_of_pairs(
            share, axes.get(name, ()), "text", of="contribution", title=name
        )
    return shares


def _shares(model: Model, trace: Trace, logits: Sequence[Reading], by: Any) -> dict[str, Array]:
    """Return the contributions of `attribute_logits`, (B, ...), keyed by name."""
    cells = np.arange(len(logits)), np.array([logit.position for logit in logits])

    def at(*names: Any) -> Array:
        """Return the activation (B, ...) at the position of each text's logit."""
        return _wide(pick(trace, *names)[cells])

    def through(norm: Any, name: str, towards: Array, scale: Any = None) -> tuple[Array, Any]:
        """Return `(factors, bias)` for a norm and the scale that follows the norm.

        `(scale(norm(x)) * towards).sum() == (x * factors).sum() + bias`
        """
        towards = towards if scale is None else scale.run(towards)[0]
        if norm is None:
            return towards, 0.0
        before = _wide(norm.scaled()) * towards / at(f"{name}.hook_scale")
        if isinstance(norm, LayerNorm):
            before = before - before.mean(-1, keepdims=True)  # LayerNorm subtracts the mean
        added = norm.parameters.get("bias")
        return before, 0.0 if added is None else towards @ _wide(added)

    towards, bias = _from_head(model, logits)  # (B, D or E), (B,)
    edited = trace.changed.get("edit", ())
    if trace.changed:
        whole = (_wide(_last(model, trace)[cells]) * towards).sum(-1) + bias
    for weight in model.network.final_proj.values():
        towards = towards @ _wide(weight).T
    design = model.design
    assert isinstance(design, Design)
    final = design.norm(model.parameters, "final_norm")
    towards, more = through(final, "ln_final", towards)
    bias += more
    heads, mlps, neurons = [], [], []
    for layer, block in enumerate(model.layers):
        name = f"blocks.{layer}.ln{{}}_post"
        factors, more = through(block.out_norm1, name.format(1), towards, block.scale1)
        bias += more
        if ("result", layer) in trace:
            heads.append(np.einsum("bhd,bd->bh", at(("result", layer)), factors))
        else:
            z = at(("z", layer))  # (B, Hq, dv)
            heads.append((z * _back(block.attn, "out_proj", factors).reshape(z.shape)).sum(-1))
        if "out_proj.bias" in block.attn.parameters:
            bias += factors @ _wide(block.attn.parameters["out_proj.bias"])
        out = 0 if block.mlp is None else at(("mlp_out", layer))
        if f"blocks.{layer}.hook_mlp_out" in edited:  # compute the MLP's own output again
            out = pick(trace, ("resid_pre" if block.parallel else "resid_mid", layer))[cells]
            for part in mlp_parts(block):
                out = part.run(to_bfloat16_like(out, part.parameters))[0]
        mlps.append((out * towards).sum(-1))
        if by is not None:
            factors, _ = through(block.out_norm2, name.format(2), towards, block.scale2)
            neurons.append(at(("post", layer)) * _back(block.mlp, "down_proj", factors))
    embed = (at("full_embed", ("resid_pre", 0)) * towards).sum(-1)
    shares = {"embed": embed, "heads": np.stack(heads, 1), "mlp": np.stack(mlps, 1), "bias": bias}
    if trace.changed:
        shares["edit"] = whole - sum(
            share.reshape(len(bias), -1).sum(1) for share in shares.values()
        )
    return shares if by is None else shares | {"neurons": np.stack(neurons, 1)}


def _check_linear(model: Model, by: Any) -> None:
    """Raise an error unless fixed scales of the norms make a logit a sum of contributions."""
    if by not in (None, "neuron"):
        raise value_error(f"`by` is {quote(by)}; pass 'neuron', or omit it")
    if by is not None and not all(isinstance(block.mlp, MLP) for block in model.layers):
        raise value_error(
            f"`by` is 'neuron', but a block of {model.name} has "
            "no MLP or has a mixture of experts: omit by='neuron'"
        )
    if not has_linear_head(model):
        raise value_error(
            f"the LM head of {model.name} has a layer before its last matrix, so a logit is not "
            "a sum of the parts' contributions: use a decoder, or measure effects with "
            "patch(model, ...)"
        )
    if any(block.post_norm for block in model.layers):
        raise value_error(
            f"{model.name} has norms after its parts, so each norm rescales the "
            "outputs of earlier parts: use a decoder with norms before its parts, or call "
            "patch(model, ...)"
        )


def _from_head(model: Model, logits: Sequence[Reading]) -> tuple[Array, Array]:
    """Return `(factors, biases)` such that `logits = (vectors * factors).sum(-1) + biases`."""
    head, parameters = model.design.head, model.parameters
    assert head is not None
    out, bias = unembedding(model), parameters.get("head.out_proj.bias")
    towards = np.array([logit.value(out) for logit in logits]) * head.scale
    return towards, np.array([0.0 if bias is None else logit.value(bias) for logit in logits])


def _back(part: Any, name: str, grad: Array) -> Array:
    """Convert the gradient at a projection's outputs to the gradient (B, in) at its inputs."""
    return np.asarray(grad @ _wide(part.parameters[f"{name}.weight"]).T)


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


@public_call("integrated_gradients")
def integrated_gradients(
    model: Model, text: Any, *, of: Any, baseline: Any = None, steps: int = 50
) -> Result:
    """Integrated gradients: split a logit into contributions of the text's embeddings.

    A contribution is `(embedding - baseline) * gradient`. Here, `gradient` is the average gradient
    of the logit along the straight line from the baseline to the embeddings. The contributions sum
    to the logit of the text minus the logit of the baseline. Position embeddings are not changed.

    Args:
        model: a model with an LM head, in float32 or float64.
        text: one text, or the ids of its tokens.
        of: (position, token) for one logit, or (position, token, other token) for the difference of
            two logits. Negative positions count from the end. A token is an id or a one-token
            string. `of` can also be a metric with a gradient, as for `edges`; its value then takes
            the place of the logit.
        baseline: an input without content. A token ("[PAD]", "[MASK]" or an id) is repeated at
            every position. Vectors (D,) or (T, D) replace the embeddings. None means zero vectors.
            In a model without position embeddings (Llama), choose a token: the vectors between zero
            and an embedding are multiples of the embedding, and the first norm scales almost all of
            these multiples to the same length.
        steps: the number of Gauss-Legendre points at which the gradient is computed.

    Returns:
        (T, D), float64; the sum over D gives the contribution of each token.

    Warns:
        UserWarning: the contributions should sum to the difference between the logit of the text
            and the logit of the baseline, but the error is more than 5% of this difference.
            Increase `steps`, or choose another baseline.

    Raises:
        TypeError: an argument has a wrong type, or the model is in half precision.
        ValueError: the model has no LM head; `text` is a list of several texts; the position or the
            token does not exist; `baseline` has the wrong shape; or `steps` is below 1.

    Source:
        Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", equation 1 and
        the axiom of completeness.

    >>> import qkv
    >>> model = qkv.load()
    >>> shares = integrated_gradients(model, "The sun [MASK].", of=(3, "the"), baseline="[PAD]")
    >>> logits = model.trace("The sun [MASK].", logits=True)["logits"]
    >>> shares.shape == (logits.shape[1], model.dim)
    True
    """
    model = check_words(model)
    steps = whole_number(steps, name="steps", least=1)
    trace = model.trace(text, names="embed", logits=True)
    if len(trace) > 1:
        raise value_error(f"text is a list of {len(trace)} texts; pass one text")
    ids, end = trace[0].ids, trace["embed"][0].astype(np.float64)  # (T, D)
    [metric] = readings(model, of, [len(end)], "of", "text", "gradient")
    start = _baseline(model, baseline, end.shape)
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # between -1 and 1
    mean = np.zeros_like(end)
    at_once = max(1, MOST_POSITIONS // len(end))
    for first in range(0, steps, at_once):
        part = slice(first, first + at_once)
        points = start + (nodes[part, None, None] + 1) / 2 * (end - start)  # (n, T, D)
        slopes = model.gradient([ids] * len(points), of=metric, edit={"embed": points})["embed"]
        mean += np.einsum("n,ntd->td", weights[part] / 2, slopes.astype(np.float64))
    shares = (end - start) * mean
    before = model.trace(ids, names=[], logits=True, edit={"embed": start[None]})
    at = slice(None) if metric.position is None else (0, metric.position)
    low, high = (float(metric.value(run["logits"][at])) for run in (before, trace))
    missing = abs(shares.sum() - (high - low))
    if missing > 0.05 * abs(high - low) + 1e-4 * max(abs(low), abs(high)):
        warnings.warn(
            f"the contributions sum to {shares.sum():.4g}, but should sum to "
            f"{high - low:.4g} (the logit minus the logit of the baseline); pass more steps than "
            f"{steps}, or another baseline",
            stacklevel=callers(),
        )
    axes, title, words = ("token", "D"), "Integrated gradients", {"token": words_of(trace[0])}
    return Result(shares, axes, of="contribution", title=title, words=words)


def _baseline(model: Model, baseline: Any, shape: tuple[int, ...]) -> Array:
    """Return the vectors (T, D) of a baseline, float64."""
    if baseline is None:
        return np.zeros(shape)
    if isinstance(baseline, str) or np.ndim(baseline) == 0:
        rows = len(model.embedding.table)
        token = word_id(model, rows, baseline, argument="`baseline`")
        alone = model.trace(np.full(shape[0], token), names="embed")["embed"][0]
        return np.asarray(alone, np.float64)
    array = as_array(baseline, name="baseline")
    if not is_float(array.dtype):
        raise type_error(
            f"`baseline` is {quote(baseline)}; pass a token, or floats of "
            f"shape {shape[1:]} or {shape}"
        )
    if array.shape not in (shape, shape[1:]):
        raise value_error(
            f"`baseline` has shape {array.shape} and the embeddings have {shape}; "
            f"pass shape {shape}, or {shape[1:]} to use one vector at all positions"
        )
    return np.array(np.broadcast_to(array, shape), np.float64)
