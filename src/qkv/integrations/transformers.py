"""qkv as the attention of any Hugging Face transformers model, on a CPU."""

import functools
import sys
from typing import Any

import numpy as np

from qkv._argument_errors import public_call
from qkv.arrays import Array
from qkv.attend.arguments import check_call
from qkv.attend.attention import answer
from qkv.attend.gradient import attention_grad
from qkv.extras import need
from qkv.integrations._tensors import as_array, as_tensor, check_readable, torch_module, unreadable

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
    masking.AttentionMaskInterface.register("qkv", mask)


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
    options, numbers = _options(module, query, key, attention_mask, is_causal)
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
        request = name, [*inputs], options, weights, sent
        out, pattern = attention.apply(request, *inputs.values())
        return out if pattern is None else used.apply(sent, out, pattern, value), pattern
    arrays = {n: as_array(x) for n, x in inputs.items()}
    out, pattern, _ = _answer(name, arrays | options, weights)
    return out, pattern


@functools.cache
def _functions() -> tuple[Any, Any]:
    """Return two torch autograd functions: attention, and one that joins its results.

    The second makes the output depend on the weights, whose gradient is `grad @ value.T`.
    """
    torch = torch_module()

    def forward(ctx: Any, request: tuple[Any, ...], *inputs: Any) -> Any:
        name, names, options, weights, sent = request
        arrays = dict(zip(names, map(as_array, inputs), strict=True))
        out, pattern, lse = _answer(name, arrays | options, weights, lse=True)
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
) -> tuple[dict[str, Any], Any]:
    """Return `(options, mask)`: options of `qkv.attention`, and a mask.

    If the options can describe the visible keys, the mask is None. Otherwise, the mask describes
    the visible keys.
    """
    length, keys = query.shape[-2], key.shape[-2]
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal or length == 1:
            return {}, None
        if length != keys:
            raise ValueError(
                f"{type(module).__name__} is causal, has {length} queries and {keys} keys, "
                "and no mask gives the positions of the queries: pass an attention_mask"
            )
        return {"is_causal": True}, None
    if type(attention_mask) is not mask_type():
        return {}, attention_mask
    rules: MaskOptions = attention_mask.rules
    if rules.changed or (rules.length, rules.keys) != (length, keys):
        return {}, attention_mask + 0
    return dict(rules.options), None


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


def _answer(
    name: str, inputs: dict[str, Any], weights: bool, lse: bool = False
) -> tuple[Any, Any, Any]:
    """Compute attention; `inputs` holds the arguments of `qkv.attention`.

    Return `(out, weights, lse)`, where `weights` and `lse` are None if they were not requested.

    The shapes are `(B, L, Hq, dv)`, `(B, Hq, L, S)` and `(B, Hq, L)`. Errors begin with `name`.
    """
    with public_call(name):
        call = check_call(**inputs)
    *lead, heads, length, size = call.plan.out
    out = np.empty((*lead, length, heads, size), call.plan.dtype)
    _, *more = answer(call, weights=weights, lse=lse, out=np.swapaxes(out, -3, -2))
    pattern = as_tensor(more[0].astype(call.plan.dtype, copy=False)) if weights else None
    return as_tensor(out), pattern, as_tensor(more[-1]) if lse else None


def mask(*, mask_function: Any = None, attention_mask: Any = None, **others: Any) -> Any:
    """Return the mask of a forward pass; `transformers` models call this function.

    Returns:
        A tensor `(B, 1, L, S)` to add to the scores: 0 where a query sees a key, and the lowest
            number of the dtype elsewhere. The numbers are computed only when code reads them.
            The function `attend` does not read the numbers, but uses options such as `is_causal`.
    """
    torch, masking = torch_module(), _masking()
    request = {"q_offset": 0, "kv_offset": 0} | others
    request |= {
        "mask_function": mask_function or masking.causal_mask_function,
        "attention_mask": attention_mask,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    elsewhere = torch.device(others.get("device", "cpu")).type != "cpu"
    padding = [] if attention_mask is None else [attention_mask]
    if elsewhere or torch.compiler.is_compiling() or unreadable(*padding):
        return masking.eager_mask(**request)
    return mask_type()(MaskOptions(request))


Window = tuple[int | None, int | None]


class MaskOptions:
    """The options of `qkv.attention` that describe a `transformers` mask.

    Most masks are described by options such as `is_causal`, `window` and `key_lengths`. For any
    other mask, the only option is `attn_mask`, an array with the mask itself.

    Args:
        request: the arguments with which transformers requested the mask.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.length, self.keys = request["q_length"], request["kv_length"]
        self.start, self.first_key = int(request["q_offset"]), int(request["kv_offset"])
        self.windows = windows(request["mask_function"])
        self.changed = False  # whether other code may have changed the mask
        padding = request["attention_mask"]
        padding = None if padding is None else padding.detach().clone()
        # copy tensors: a cache adds to its `q_offset` before a layer reads the mask
        self.request = request | {"q_offset": self.start, "attention_mask": padding}
        self.padding: Array | None = None  # (B, T), True for tokens
        if padding is not None and padding.ndim == 2:
            self.padding = padding.bool().numpy()
        elif padding is not None:
            self.windows.append(None)  # no option such as `window` describes this mask
        # (B, 1, L, S), for a mask that no other option describes
        self.visible = _masking().sdpa_mask(**self.request) if None in self.windows else None

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Arguments of `qkv.attention`."""
        if self.visible is not None:
            return {"attn_mask": self.visible.numpy()}
        sides = zip(*(window for window in self.windows if window is not None), strict=True)
        left, right = (min((n for n in side if n is not None), default=None) for side in sides)
        offset = self.start - self.first_key
        if left is not None and offset + self.length - 1 - left <= 0:
            left = None
        if right is not None and offset + right >= self.keys - 1:
            right = None
        if (left, right, offset) == (None, 0, 0) and self.length == self.keys:
            return {"is_causal": True, **self._padding()}
        if left is None and right is None:
            return self._padding()
        return {"window": (left, right), "q_offset": offset, **self._padding()}

    def _padding(self) -> dict[str, Any]:
        """Return the lengths of texts if all padding follows the tokens, otherwise a key mask."""
        if self.padding is None:
            return {}
        seen = self.padding[:, self.first_key : self.first_key + self.keys]
        if seen.shape[1] < self.keys:  # keys without an entry in the padding mask are masked
            seen = np.pad(seen, [(0, 0), (0, self.keys - seen.shape[1])])
        if seen.all():
            return {}
        lengths = seen.sum(axis=1)
        if (seen == (np.arange(self.keys) < lengths[:, None])).all():
            return {"key_lengths": lengths}
        return {"attn_mask": seen[:, None, None, :].copy()}  # (B, 1, 1, S)

    @functools.cached_property
    def numbers(self) -> Any:
        """The whole mask as a tensor, for code that reads its numbers."""
        computed = {"mask_function": lambda *_: self.visible, "use_vmap": False}
        return _masking().eager_mask(**self.request | ({} if self.visible is None else computed))


def windows(function: Any) -> list[Window | None]:
    """Return the windows of a mask function; a key is visible if it is inside all windows.

    A window is a pair as in the option `window` of `qkv.attention`. If `_known_functions` does not
    recognise a function, the list contains None in place of the function's window.
    """
    rule = _known_functions().get(getattr(function, "__code__", None))
    if rule is None:
        return [None]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells}
    if rule == "and":
        return [window for part in inside["mask_functions"] for window in windows(part)]
    size = inside.get("sliding_window")
    return [None if size is not None and size < 1 else _BANDS[rule](size)]


_BANDS: dict[str, Any] = {
    "causal_mask_function": lambda size: (None, 0),
    "bidirectional_mask_function": lambda size: (None, None),
    "sliding_window_overlay": lambda size: (size - 1, None),
    "sliding_window_bidirectional_overlay": lambda size: (size, size),
}


@functools.cache
def _known_functions() -> dict[Any, str]:
    """Return the names of the known mask functions, keyed by their code objects.

    `_BANDS` lists the mask functions and the window that each function should have. Each function
    is tested with 9 queries and 9 keys. If its mask differs from the mask of its window, the
    result does not contain the function.
    """
    torch, masking = torch_module(), _masking()
    query, key = torch.arange(9)[:, None], torch.arange(9)[None]

    def is_band(function: Any, left: int | None, right: int | None) -> bool:
        visible = (key >= query - (9 if left is None else left)) & (
            key <= query + (9 if right is None else right)
        )
        return bool((function(0, 0, query, key).expand(9, 9) == visible).all())

    names = {}
    for name, sides in _BANDS.items():
        function = getattr(masking, name, None)
        if function is None:
            continue
        made = {size: function(size) if "sliding" in name else function for size in (1, 2, 4)}
        if all(is_band(band, *sides(size)) for size, band in made.items()):
            names[made[1].__code__] = name
    if hasattr(masking, "and_masks"):
        joined = masking.and_masks(masking.sliding_window_overlay(3), masking.causal_mask_function)
        if is_band(joined, 2, 0):
            names[joined.__code__] = "and"
    return names


@functools.cache
def mask_type() -> Any:
    """Return the class of the tensors that `mask` returns."""
    torch = torch_module()
    aten = torch.ops.aten

    def new(cls: Any, rules: MaskOptions) -> Any:
        size = (rules.request["batch_size"], 1, rules.length, rules.keys)
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, dtype=rules.request.get("dtype", torch.float32), device="cpu"
        )
        made.rules = rules
        return made

    def dispatch(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (aten.alias.default, aten.detach.default):
            return cls(args[0].rules)

        def whole(made: Any) -> Any:
            # code that gets a view of the numbers may change them
            schema, rules = function._schema, made.rules
            rules.changed |= schema.is_mutable or any(x.alias_info for x in schema.returns)
            return rules.numbers

        args, kwargs = torch.utils._pytree.tree_map_only(cls, whole, (args, kwargs or {}))
        return function(*args, **kwargs)

    members = {
        "__doc__": "A mask that stores rules, and computes its numbers when code reads them.",
        "__new__": staticmethod(new),
        "__torch_function__": torch._C._disabled_torch_function_impl,
        "__torch_dispatch__": classmethod(dispatch),
    }
    return type("Mask", (torch.Tensor,), members)


def _masking() -> Any:
    return sys.modules["transformers.masking_utils"]
