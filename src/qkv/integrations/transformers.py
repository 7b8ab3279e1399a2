"""qkv as the attention of any model of Hugging Face's transformers, on a CPU."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from qkv.attend.call import check_call
from qkv.attend.gradient import attention_grad
from qkv.attend.solve import answer
from qkv.extras import need
from qkv.integrations.callers import located
from qkv.integrations.masks import Rules, mask, mask_type
from qkv.integrations.record import Ran, can_record, current
from qkv.integrations.tensors import as_array, as_tensor, check_readable, torch_module

# What a few models pass beside the usual to say what is seen: not done here.
REFUSED = ("indices", "block_indices", "sinks", "cache")

OUTSIDE = 'qkv computes outside torch\'s graph: take attn_implementation="eager" for a whole one'


def register() -> None:
    """Make `attn_implementation="qkv"` work for the models of `transformers`, on a CPU.

    After this call, once in a process, `from_pretrained(name, attn_implementation="qkv")` and
    `model.set_attn_implementation("qkv")` have every attention that goes through the interface of
    `transformers` computed by qkv. Tensors are read where they stand and results are given
    back where they stand: float32, float64, float16 and bfloat16. Causal masks, sliding windows and
    padding reach the kernel as rules, so no `(L, S)` mask is made for them; softcaps, sinks,
    position bias and grouped heads are those of the model. Models train: whatever of this needs a
    gradient gets it, in memory that grows with the length and not with its square.

    Source: the attention interface of transformers,
    https://huggingface.co/docs/transformers/attention_interface

    Raises:
        ImportError: torch or transformers is missing.
    """
    need("torch", "torch")
    utils = need("transformers.modeling_utils", "torch")
    masking = need("transformers.masking_utils", "torch")
    compiler = need("torch.compiler", "torch")
    utils.AttentionInterface.register("qkv", compiler.disable(attend, reason=OUTSIDE))
    masking.AttentionMaskInterface.register("qkv", mask)
    can_record("transformers")


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
    """Attention as the models of transformers call it.

    Args:
        module: the layer that calls.
        query: `(B, Hq, L, d)`.
        key: `(B, Hkv, S, d)`.
        value: `(B, Hkv, S, dv)`.
        attention_mask: what `mask` gave, or the model's own; None where there is none.
        dropout: must be 0 while a model is trained.
        scaling: what the scores are multiplied by; a tensor may be learned.
        is_causal: counts where there is no mask; if None, what the module says.
        softcap: as `qkv.attention` takes it.
        s_aux: `(Hq,)`, the sinks.
        position_bias: added to the scores, broadcasts to `(B, Hq, L, S)`.
        **others: of no account, but for what `REFUSED` lists and `output_attentions`.

    Returns:
        `(B, L, Hq, dv)`, and the weights `(B, Hq, L, S)` if `output_attentions` asks for them.
    """
    torch = torch_module()
    name = type(module).__name__
    all_given = (query, key, value, s_aux, position_bias, attention_mask, scaling)
    _check(module, [x for x in all_given if torch.is_tensor(x)], dropout, others)
    options, numbers, ran = _options(module, query, key, attention_mask, is_causal)
    if torch.is_tensor(scaling) and scaling.requires_grad:
        query, scaling = query * scaling.to(query.dtype), 1.0
    options["scale"] = scaling
    if softcap is not None:
        options["softcap"] = softcap
    if numbers is not None and numbers.requires_grad:  # a bias that is learned
        position_bias = numbers if position_bias is None else position_bias + numbers
        numbers = None
    if torch.is_autocast_enabled("cpu") and not query.dtype == key.dtype == value.dtype:
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    given = {
        "query": query,
        "key": key,
        "value": value,
        "attn_mask": numbers,
        "bias": position_bias,
        "sinks": None if s_aux is None else s_aux.reshape(-1),
    }
    tensors = {n: x for n, x in given.items() if x is not None}
    weights = bool(others.get("output_attentions")) or _collects_weights()
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors.values()):
        asked = (name, [*tensors], options, ran, weights)
        out, shown = _function().apply(asked, *tensors.values())
        return out, shown
    arrays = {n: as_array(x) for n, x in tensors.items()}
    out, shown, _ = _answer(name, arrays, options, ran, weights=weights)
    return out, shown


@functools.cache
def _function() -> Any:
    """Attention as a step in the graph of torch: the forward pass and the backward pass."""
    torch = torch_module()

    def forward(ctx: Any, asked: tuple[Any, ...], *tensors: Any) -> Any:
        name, names, options, ran, weights = asked
        arrays = dict(zip(names, map(as_array, tensors), strict=True))
        out, shown, lse = _answer(name, arrays, options, ran, weights=weights, lse=True)
        ctx.asked = name, names, options
        ctx.save_for_backward(*tensors, out, lse)
        ctx.set_materialize_grads(False)
        return out, shown

    def backward(ctx: Any, grad: Any, grad_weights: Any) -> Any:
        name = ctx.asked[0]
        if grad_weights is not None:
            raise NotImplementedError(
                f"{name}: the weights that output_attentions gives have no gradient with qkv: "
                'load the model with attn_implementation="eager"'
            )
        if grad is None:  # nothing came of the result
            return (None,) * len(ctx.needs_input_grad)
        check_readable(name, grad)
        return None, *gradients.apply(ctx.asked, ctx.needs_input_grad[1:], grad, *ctx.saved_tensors)

    def gradient(ctx: Any, asked: Any, wanted: Any, grad: Any, *saved: Any) -> Any:
        ctx.name, names, options = asked
        *tensors, out, lse = saved
        arrays = dict(zip(names, map(as_array, tensors), strict=True))
        forward = np.swapaxes(as_array(out), -3, -2), as_array(lse)
        grad = np.swapaxes(as_array(grad), -3, -2)
        found = attention_grad(**arrays, grad_out=grad, forward=forward, **options)
        return tuple(
            as_tensor(getattr(found, which)) if needed else None
            for which, needed in zip(names, wanted, strict=True)
        )

    def refuse(ctx: Any, *grad: Any) -> Any:
        raise NotImplementedError(
            f"{ctx.name}: qkv cannot differentiate twice: "
            'load the model with attn_implementation="eager"'
        )

    function = torch.autograd.Function
    way = {"forward": staticmethod(gradient), "backward": staticmethod(refuse)}
    gradients: Any = type("AttentionGradient", (function,), way)
    way = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Attention", (function,), way)


def _check(module: Any, tensors: list[Any], dropout: float, others: dict[str, Any]) -> None:
    """An error for what would be computed wrongly, or not at all."""
    name = type(module).__name__
    for refused in REFUSED:
        if others.get(refused) is not None:
            raise NotImplementedError(
                f"{name} hands {refused} to its attention, which qkv does not take: "
                'load the model with attn_implementation="sdpa" or "eager"'
            )
    if dropout and module.training:
        option = _option_of(dropout, getattr(module, "config", None))
        raise NotImplementedError(
            f"{name} asks for dropout {dropout} while it is trained, and qkv has none: "
            f"load the model with {option}=0.0 in its config, or call model.eval()"
        )
    for tensor in tensors:
        if not tensor.is_cpu:
            raise ValueError(
                f"{name}: a tensor is on {tensor.device} and qkv computes on the CPU: "
                'move the model with model.to("cpu"), or take another attn_implementation'
            )
    check_readable(name, *tensors)


def _options(
    module: Any, query: Any, key: Any, attention_mask: Any, is_causal: bool | None
) -> tuple[dict[str, Any], Any, Ran]:
    """What is visible, as arguments of `qkv.attention` and as a tensor, and what ran.

    The tensor is None where the arguments say it all. What ran is for a recording.
    """
    length, keys = query.shape[-2], key.shape[-2]
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal or length == 1:
            return {}, None, Ran(module)
        if length != keys:
            raise ValueError(
                f"{type(module).__name__} is causal, has {length} queries and {keys} keys, "
                "and no mask says where the queries stand: hand it an attention_mask"
            )
        return {"is_causal": True}, None, Ran(module, is_causal=True)
    if type(attention_mask) is not mask_type():
        # the user may hand the same one to the next forward pass: it does not say which this is
        return {}, attention_mask, Ran(module)
    rules: Rules = attention_mask.rules
    ran = Ran(module, attention_mask, rules.start, rules.first_key, rules.is_causal, rules.padding)
    if rules.changed or (rules.length, rules.keys) != (length, keys):
        return {}, attention_mask + 0, ran
    return dict(rules.options), None, ran


def _collects_weights() -> bool:
    """Whether transformers collects the weights here, which it does not tell every layer."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    active = getattr(capturing, "_active_collector", None)
    collected = (active and active.get()) or ()
    return any("attentions" in name for name in collected)


def _option_of(dropout: float, config: Any) -> str:
    """The name of the option of a model that asks for this dropout, as far as can be told."""
    given = getattr(config, "__dict__", {})
    names = [name for name, value in given.items() if "drop" in name and value == dropout]
    return min(names, key=lambda name: "att" not in name, default="dropout")


def _answer(
    name: str,
    arrays: dict[str, Any],
    options: dict[str, Any],
    ran: Ran,
    *,
    weights: bool,
    lse: bool = False,
) -> tuple[Any, Any, Any]:
    """Out `(B, L, Hq, dv)`; where wanted weights `(B, Hq, L, S)` and log-sum-exp `(B, Hq, L)`."""
    call = check_call(**arrays, **options, call=name)
    recording = current()
    if recording is not None and torch_module()._C._current_graph_task_id() != -1:
        recording = None  # in the backward pass: a checkpoint has run once already
    if recording is not None and not recording.wants(ran.owner):
        recording = None
    shown = sums = None
    if recording is not None:
        out, sums = recording.add(located(ran, arrays["query"], arrays["key"]), call)
        out = np.ascontiguousarray(np.swapaxes(out, -3, -2))
        if weights:
            shown = answer(call, weights=True)[1]
    else:
        *lead, heads, length, size = call.plan.out
        out = np.empty((*lead, length, heads, size), call.plan.dtype)
        _, *found = answer(call, weights=weights, lse=lse, out=np.swapaxes(out, -3, -2))
        shown = found[0] if weights else None
        sums = found[-1] if lse else None
    if shown is not None:
        shown = as_tensor(shown.astype(call.plan.dtype, copy=False))
    return as_tensor(out), shown, None if sums is None else as_tensor(sums)
