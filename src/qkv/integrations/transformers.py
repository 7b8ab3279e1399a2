"""qkv as the attention of any Hugging Face transformers model, on a CPU."""

import functools
import inspect
import sys
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array
from qkv.attend.arguments import check_call
from qkv.attend.attention import answer
from qkv.attend.gradient import attention_grad
from qkv.extras import need
from qkv.integrations import _transformers_masks
from qkv.integrations._record import CURRENT, REGISTERED, Ran
from qkv.integrations._tensors import as_array, as_tensor, check_readable, torch_module

# A few models pass these arguments to restrict the visible keys. `attend` refuses such calls.
REFUSED = ("indices", "block_indices", "sinks", "cache")

OUTSIDE = (
    'qkv computes outside torch\'s graph: for a complete graph, set attn_implementation="eager"'
)


def register() -> None:
    """Make `attn_implementation="qkv"` work for `transformers` models, on a CPU.

    Call this function once per process. After `from_pretrained(name, attn_implementation="qkv")` or
    `model.set_attn_implementation("qkv")`, qkv computes all attention that uses the `transformers`
    attention interface. Tensors of float32, float64, float16 and bfloat16 are read and returned
    without copies. Causal masks, sliding windows and padding reach the kernel as options such as
    `is_causal`, so no `(L, S)` mask is made for them. The model's softcaps, sinks, position bias
    and grouped heads are supported. During training, gradients are computed for all inputs that
    require gradients. The memory for gradients grows linearly with the sequence length.

    Source: transformers' attention interface,
    https://huggingface.co/docs/transformers/attention_interface

    Raises:
        ImportError: torch or transformers is missing.
    """
    need("torch", "torch")
    utils = need("transformers.modeling_utils", "torch")
    masking = need("transformers.masking_utils", "torch")
    compiler = need("torch.compiler", "torch")
    utils.AttentionInterface.register("qkv", compiler.disable(attend, reason=OUTSIDE))
    masking.AttentionMaskInterface.register("qkv", _transformers_masks.mask)
    REGISTERED.add("transformers")


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: Any = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Compute attention for a `transformers` model.

    Args:
        module: the layer that calls attention.
        query: `(B, Hq, L, d)`.
        key: `(B, Hkv, S, d)`.
        value: `(B, Hkv, S, dv)`.
        attention_mask: the result of `mask`, or the model's own mask; None without a mask.
        dropout: must be 0 during training.
        scaling: the factor by which scores are multiplied; a learned factor is a tensor.
        is_causal: whether attention without a mask is causal; if None, `module.is_causal` decides.
        softcap: as for `qkv.attention`.
        s_aux: `(Hq,)`, the sinks.
        position_bias: a bias that is added to the scores; broadcasts to `(B, Hq, L, S)`.
        **others: the function reads `output_attentions`, and ignores all other names. An argument
            whose name is in `REFUSED` must be None.

    Returns:
        `(out, weights)`: the output has the shape `(B, L, Hq, dv)`. The weights have the shape
            `(B, Hq, L, S)`; they are None if they were not requested.
    """
    torch = torch_module()
    name = type(module).__name__
    arguments = (query, key, value, s_aux, position_bias, attention_mask, scaling)
    _check(module, [x for x in arguments if torch.is_tensor(x)], dropout, others)
    options, numbers, ran = _options(module, query, key, attention_mask, is_causal)
    if torch.is_tensor(scaling) and scaling.requires_grad:
        query, scaling = query * scaling.to(query.dtype), 1.0
    elif torch.is_tensor(scaling):
        scaling = scaling.clone()  # the backward pass reads it again
    options |= {"scale": scaling} | ({} if softcap is None else {"softcap": softcap})
    if numbers is not None and numbers.requires_grad:  # a learned bias
        position_bias = numbers if position_bias is None else position_bias + numbers
        numbers = None
    if torch.is_autocast_enabled("cpu") and not query.dtype == key.dtype == value.dtype:
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    inputs = {"query": query, "key": key, "value": value, "attn_mask": numbers}
    inputs |= {"bias": position_bias, "sinks": None if s_aux is None else s_aux.reshape(-1)}
    inputs = {n: x for n, x in inputs.items() if x is not None}
    weights = bool(others.get("output_attentions")) or _collects_weights()
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs.values()):
        attention, used = _functions()
        sent: list[Any] = []
        request = name, [*inputs], options, ran, weights, sent
        out, pattern = attention.apply(request, *inputs.values())
        return out if pattern is None else used.apply(sent, out, pattern, value), pattern
    arrays = {n: as_array(x) for n, x in inputs.items()}
    out, pattern, _ = _answer(arrays | options, ran, weights)
    return out, pattern


@functools.cache
def _functions() -> tuple[Any, Any]:
    """Return two torch autograd functions: attention, and one that joins its results.

    The second makes the output depend on the weights, whose gradient is `grad @ value.T`.
    """
    torch = torch_module()

    def forward(ctx: Any, request: tuple[Any, ...], *inputs: Any) -> Any:
        name, names, options, ran, weights, sent = request
        arrays = dict(zip(names, map(as_array, inputs), strict=True))
        out, pattern, lse = _answer(arrays | options, ran, weights, lse=True)
        ctx.request, ctx.sent = (name, names, options), sent
        ctx.save_for_backward(*inputs, out, lse)
        ctx.set_materialize_grads(False)
        return out, pattern

    def backward(ctx: Any, grad: Any, grad_weights: Any) -> Any:
        name = ctx.request[0]
        # `gradient` computes with `grad` alone, which implies the gradient that `send` sent
        expected = None if grad is None or not ctx.sent else ctx.sent.pop()
        if grad_weights is not expected:
            raise NotImplementedError(
                f"{name}: the loss depends on the weights that output_attentions returns, or a "
                "hook changes their gradient, which qkv does not support: "
                'load the model with attn_implementation="eager"'
            )
        if grad is None:  # the loss does not depend on the result
            return (None,) * len(ctx.needs_input_grad)
        check_readable(name, grad)
        needed = ctx.needs_input_grad[1:]
        return None, *gradients.apply(ctx.request, needed, grad, *ctx.saved_tensors)

    def use(ctx: Any, sent: list[Any], out: Any, weights: Any, value: Any) -> Any:
        ctx.sent = sent
        ctx.save_for_backward(value)
        return out.view_as(out)

    def send(ctx: Any, grad: Any) -> Any:
        (value,) = ctx.saved_tensors
        grouped = grad.transpose(1, 2).unflatten(1, (value.shape[1], -1))  # (B, Hkv, G, L, dv)
        ctx.sent[:] = [(grouped @ value.mT.unsqueeze(2)).flatten(1, 2)]  # (B, Hq, L, S)
        return None, grad, ctx.sent[0], None

    def gradient(ctx: Any, request: Any, needed: Any, grad: Any, *saved: Any) -> Any:
        ctx.name, names, options = request
        *inputs, out, lse = map(as_array, saved)
        arrays = dict(zip(names, inputs, strict=True))
        grad_out, context = (np.swapaxes(x, -3, -2) for x in (as_array(grad), out))
        grads = attention_grad(**arrays, grad_out=grad_out, forward=(context, lse), **options)
        return tuple(
            as_tensor(getattr(grads, name)) if is_needed else None
            for name, is_needed in zip(names, needed, strict=True)
        )

    def refuse(ctx: Any, *grad: Any) -> Any:
        raise NotImplementedError(
            f"{ctx.name}: qkv cannot differentiate twice: "
            'load the model with attn_implementation="eager"'
        )

    def step(name: str, forward: Any, backward: Any) -> Any:
        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (torch.autograd.Function,), members)

    gradients = step("AttentionGradient", gradient, refuse)
    return step("Attention", forward, backward), step("UsedWeights", use, send)


def _check(module: Any, inputs: list[Any], dropout: float, others: dict[str, Any]) -> None:
    """Raise an error for calls that qkv cannot compute correctly."""
    name = type(module).__name__
    for refused in REFUSED:
        if others.get(refused) is not None:
            raise NotImplementedError(
                f"{name} passes {refused} to its attention, which qkv does not support: "
                'load the model with attn_implementation="sdpa" or "eager"'
            )
    if dropout and module.training:
        option = _option_of(dropout, getattr(module, "config", None))
        raise NotImplementedError(
            f"{name} uses dropout {dropout} in training, which qkv does not support: "
            f"load the model with {option}=0.0 in its config, or call model.eval()"
        )
    for tensor in inputs:
        if not tensor.is_cpu:
            raise ValueError(
                f"{name}: a tensor is on {tensor.device} and qkv computes on the CPU: "
                'move the model with model.to("cpu"), or use another attn_implementation'
            )
    check_readable(name, *inputs)


def _options(
    module: Any, query: Any, key: Any, attention_mask: Any, is_causal: bool | None
) -> tuple[dict[str, Any], Any, Ran]:
    """Return `(options, mask, ran)`: options of `qkv.attention`, a mask, and a record of the call.

    If the options can describe the visible keys, the mask is None. Otherwise, the mask describes
    the visible keys.
    """
    length, keys = query.shape[-2], key.shape[-2]
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal or length == 1:
            return {}, None, Ran(module)
        if length != keys:
            raise ValueError(
                f"{type(module).__name__} is causal, has {length} queries and {keys} keys, "
                "and no mask gives the positions of the queries: pass an attention_mask"
            )
        return {"is_causal": True}, None, Ran(module, is_causal=True)
    if type(attention_mask) is not _transformers_masks.mask_type():
        # `Ran.mask` must be different for each forward pass. Several passes may share this
        # `attention_mask`, so it does not identify a pass, and `Ran` is created without a mask.
        return {}, attention_mask, Ran(module)
    rules: _transformers_masks.MaskOptions = attention_mask.rules
    ran = Ran(module, attention_mask, rules.start, rules.first_key, rules.is_causal, rules.padding)
    if rules.changed or (rules.length, rules.keys) != (length, keys):
        return {}, attention_mask + 0, ran
    return dict(rules.options), None, ran


def _collects_weights() -> bool:
    """Return whether `transformers` collects attention weights.

    The library can collect attention weights without passing `output_attentions` to every layer.
    """
    capturing = sys.modules.get("transformers.utils.output_capturing")
    active = getattr(capturing, "_active_collector", None)
    collected = (active and active.get()) or ()
    return any("attentions" in name for name in collected)


def _option_of(dropout: float, config: Any) -> str:
    """Guess which option in the model's config has the value `dropout`; return its name."""
    options = getattr(config, "__dict__", {})
    names = [name for name, value in options.items() if "drop" in name and value == dropout]
    return min(names, key=lambda name: "att" not in name, default="dropout")


def _answer(inputs: dict[str, Any], ran: Ran, weights: bool, lse: bool = False) -> tuple[Any, ...]:
    """Compute attention; `inputs` holds the arguments of `qkv.attention`.

    Return `(out, weights, lse)`, where `weights` and `lse` are None if they were not requested.

    The shapes are `(B, L, Hq, dv)`, `(B, Hq, L, S)` and `(B, Hq, L)`. Calls during a backward pass
    are not recorded: with gradient checkpointing, the backward pass repeats the forward pass.
    """
    with public_call(type(ran.owner).__name__):
        call = check_call(**inputs)
    recording = CURRENT.get()
    pattern = sums = None
    if (
        recording is not None
        and torch_module()._C._current_graph_task_id() == -1
        and recording.wants(ran.owner)
    ):
        out, sums = recording.add(locate_call(ran, inputs["query"], inputs["key"]), call)
        out = np.ascontiguousarray(np.swapaxes(out, -3, -2))
        if weights:
            pattern = answer(call, weights=True)[1]
    else:
        *lead, heads, length, size = call.plan.out
        out = np.empty((*lead, length, heads, size), call.plan.dtype)
        _, *more = answer(call, weights=weights, lse=lse, out=np.swapaxes(out, -3, -2))
        pattern = more[0] if weights else None
        sums = more[-1] if lse else None
    if pattern is not None:
        pattern = as_tensor(pattern.astype(call.plan.dtype, copy=False))
    return as_tensor(out), pattern, None if sums is None else as_tensor(sums)


class Running(NamedTuple):
    """A torch module during a call. The dict `kwargs` is a new object in each call."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def argument(self, name: str) -> Any:
        """Return the argument with this name; None if the caller omitted it."""
        names = inspect.signature(self.module.forward).parameters
        return dict(zip(names, self.args, strict=False)).get(name, self.kwargs.get(name))

    @property
    def vectors(self) -> Any:
        """The first float tensor among the arguments; None if there is none."""
        is_tensor = torch_module().is_tensor
        named = [*(("", x) for x in self.args), *self.kwargs.items()]
        inputs = (x for name, x in named if is_tensor(x) and "mask" not in name)
        return next((x for x in inputs if x.is_floating_point() and x.ndim > 1), None)


def running(owner: Any) -> list[Running]:
    """Return the running modules, from `owner` outward to the model; [] if it is not running.

    The modules are read from Python's frames, because torch does not keep a list of running modules
    and `torch.compile` skips hooks.
    """
    code = torch_module().nn.Module._call_impl.__code__
    frame: Any = sys._getframe()
    modules: list[Running] = []
    while frame is not None:
        if frame.f_code is code:
            names = frame.f_locals
            if modules or names["self"] is owner:
                modules.append(Running(names["self"], names["args"], names["kwargs"]))
        frame = frame.f_back
    return modules


def locate_call(ran: Ran, query: Array, key: Array) -> Ran:
    """Return a copy of `ran` with the fields `call`, `part` and `whole`.

    Raises:
        NotImplementedError: a module splits its input into windows, or joins several inputs into
            one.
    """
    calls = running(ran.owner)
    if not calls:
        return ran
    texts, length = query.shape[0], query.shape[-2]
    # the part is the innermost module that is a PreTrainedModel
    model = sys.modules["transformers"].PreTrainedModel
    last = next((n for n, x in enumerate(calls) if isinstance(x.module, model)), len(calls))
    inside = calls[: last + 1]
    for one in inside:
        vectors = one.vectors
        if vectors is None or len(vectors) == texts:
            continue
        if vectors.ndim > 2 or (texts, length) != (1, len(vectors)):
            raise NotImplementedError(
                f"record: {type(one.module).__name__} was given {len(vectors)} rows, but "
                f"{type(ran.owner).__name__} got {texts} x {length} tokens, so the model split or "
                "joined its inputs: record a single input, or leave this part out with "
                "record(module=another part)"
            )
    about = {"call": calls[0].kwargs, "part": inside[-1].module, "whole": calls[-1].module}
    if ran.mask is None and length == key.shape[-2]:  # no qkv mask was passed
        for mask in (one.argument("attention_mask") for one in inside):
            if mask is not None and tuple(mask.shape) == (texts, length):
                about |= {"start": 0, "padding": mask.detach().bool().numpy().copy()}
                break
    return replace(ran, mask=calls[-1].kwargs, **about)
