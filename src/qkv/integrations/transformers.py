"""qkv as the attention of any model of Hugging Face's transformers, on a CPU."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend.call import check_call
from qkv.attend.gradient import attention_grad
from qkv.attend.quick import quick_attention
from qkv.attend.solve import answer
from qkv.extras import need
from qkv.integrations.record import Ran, can_record, current

# What a few models hand over beside the usual to say what is seen: not done here.
REFUSED = ("indices", "block_indices", "sinks", "cache")

OUTSIDE = 'qkv computes outside torch\'s graph: take attn_implementation="eager" for a whole one'
SHORT = 32  # queries up to which it takes longer to check a call than to copy its result
PLAIN = {"is_causal", "scale"}


def register() -> None:
    """Make `attn_implementation="qkv"` work for the models of `transformers`, on a CPU.

    After this call, once in a process, `from_pretrained(name, attn_implementation="qkv")` and
    `model.set_attn_implementation("qkv")` have every attention that goes through the interface of
    `transformers` computed by qkv. Tensors are read where they stand and results are handed
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
    torch = _torch()
    name = type(module).__name__
    handed = (query, key, value, s_aux, position_bias, attention_mask, scaling)
    _check(module, [x for x in handed if torch.is_tensor(x)], dropout, others)
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
    arrays = {n: _array(x) for n, x in tensors.items()}
    plain = len(arrays) == 3 and {*options} <= PLAIN and query.shape[-2] <= SHORT
    if plain and not weights and current() is None:
        is_causal = "is_causal" in options
        found = quick_attention(**arrays, is_causal=is_causal, scale=scaling, lse=False)
        if found is not None:
            return _tensor(found[0]).transpose(-3, -2).contiguous(), None
    out, shown, _ = _answer(name, arrays, options, ran, weights=weights)
    return out, shown


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Any = None,
    **others: Any,
) -> Any:
    """The mask of a forward pass, as the models of transformers ask for it.

    Returns:
        A tensor that stands for `(B, 1, L, S)` numbers, 0 where a query sees a key and the lowest
        number where it does not, as models of transformers expect without qkv. The numbers are made
        when somebody asks for them; `attend` asks for the rules instead.
    """
    torch, masking = _torch(), _masking()
    if mask_function is None:
        mask_function = masking.causal_mask_function
    asked = others | {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    elsewhere = torch.device(others.get("device", "cpu")).type != "cpu"
    padding = [x for x in (attention_mask,) if x is not None]
    if elsewhere or torch.compiler.is_compiling() or _unreadable(*padding):
        return masking.eager_mask(**asked)
    return _mask_type()(Rules(asked))


class Rules:
    """What a mask of transformers hides, as arguments of `qkv.attention` where they say the same.

    Args:
        asked: what transformers asked its mask function for.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.length, self.keys = asked["q_length"], asked["kv_length"]
        self.start, self.first_key = int(asked["q_offset"]), int(asked["kv_offset"])
        self.band = band(asked["mask_function"])
        given = asked["attention_mask"]
        self.padding: Array | None = None  # (B, T), True where there is a token
        if given is not None and given.ndim == 2:
            self.padding = given.detach().bool().numpy()
        elif given is not None:
            self.band = None

    @functools.cached_property
    def is_causal(self) -> bool:
        """Whether no query sees what stands behind its own place."""
        bands = map(band, _joined(self.asked["mask_function"]))
        return any(found is not None and found[1] == 0 for found in bands)

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """Arguments of `qkv.attention`."""
        if self.band is None:
            return {"attn_mask": _masking().sdpa_mask(**self.asked).numpy()}
        left, right = self.band
        offset = self.start - self.first_key
        if left is not None and offset + self.length - 1 - left <= 0:
            left = None
        if right is not None and offset + right >= self.keys - 1:
            right = None
        found: dict[str, Any] = {}
        if (left, right, offset) == (None, 0, 0) and self.length == self.keys:
            found = {"is_causal": True}
        elif left is not None or right is not None:
            found = {"window": (left, right), "q_offset": offset}
        return found | self._padding()

    def _padding(self) -> dict[str, Any]:
        """Lengths where padding stands behind the tokens, otherwise a mask of the keys."""
        if self.padding is None:
            return {}
        seen = self.padding[:, self.first_key : self.first_key + self.keys]
        if seen.shape[1] < self.keys:  # keys that nothing was said about are hidden
            seen = np.pad(seen, [(0, 0), (0, self.keys - seen.shape[1])])
        if seen.all():
            return {}
        lengths = seen.sum(axis=1)
        if (seen == (np.arange(self.keys) < lengths[:, None])).all():
            return {"key_lengths": lengths}
        return {"attn_mask": seen[:, None, None, :].copy()}  # (B, 1, 1, S)

    def numbers(self) -> Any:
        """The whole mask, as a model expects it that does not know of rules."""
        return _masking().eager_mask(**self.asked)


def band(function: Any) -> tuple[int | None, int | None] | None:
    """`window` of `qkv.attention` for a mask function of transformers; None where there is none.

    The functions are known by their code, and the code was tried (`_known`).
    """
    code = getattr(function, "__code__", None)
    rule = _known().get(code)
    if code is None or rule is None:
        return None
    if rule != "and":
        size = _inside(function).get("sliding_window")
        return None if size is not None and size < 1 else _BANDS[rule](size)
    bands = [band(part) for part in _joined(function)]
    if None in bands:
        return None
    sides = zip(*(found for found in bands if found is not None), strict=True)
    left, right = (min((n for n in side if n is not None), default=None) for side in sides)
    return left, right


def _inside(function: Any) -> dict[str, Any]:
    """The names and values that a function took along from where it was made."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _joined(function: Any) -> tuple[Any, ...]:
    """The mask functions that all have to agree in this one: itself, if it is not made of any."""
    if _known().get(getattr(function, "__code__", None)) != "and":
        return (function,)
    return tuple(part for one in _inside(function)["mask_functions"] for part in _joined(one))


_BANDS: dict[str, Any] = {
    "causal_mask_function": lambda size: (None, 0),
    "bidirectional_mask_function": lambda size: (None, None),
    "sliding_window_overlay": lambda size: (size - 1, None),
    "sliding_window_bidirectional_overlay": lambda size: (size, size),
}


@functools.cache
def _known() -> dict[Any, str]:
    """The code of the mask functions whose rule is known, each tried on a small square."""
    torch, masking = _torch(), _masking()
    query, key = torch.arange(9)[:, None], torch.arange(9)[None]
    found = {}
    for name, sides in _BANDS.items():
        function = getattr(masking, name, None)
        if function is None:
            continue
        for size in (1, 2, 4):
            made = function(size) if "sliding" in name else function
            left, right = sides(size)
            expected = torch.ones(9, 9, dtype=torch.bool)
            if left is not None:
                expected &= key >= query - left
            if right is not None:
                expected &= key <= query + right
            if not (made(0, 0, query, key).expand(9, 9) == expected).all():
                break
        else:
            found[made.__code__] = name
    both = getattr(masking, "and_masks", None)
    if both is not None:
        joined = both(masking.sliding_window_overlay(3), masking.causal_mask_function)
        expected = (key <= query) & (key > query - 3)
        if (joined(0, 0, query, key) == expected).all():
            found[joined.__code__] = "and"
    return found


@functools.cache
def _mask_type() -> Any:
    """The class of the tensors that `mask` gives."""
    torch = _torch()
    aten = torch.ops.aten

    def new(cls: Any, rules: Rules) -> Any:
        size = (rules.asked["batch_size"], 1, rules.length, rules.keys)
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, dtype=rules.asked.get("dtype", torch.float32), device="cpu"
        )
        made.rules, made.numbers, made.changed = rules, None, False
        return made

    def dispatch(
        cls: Any, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (aten.alias.default, aten.detach.default):
            return args[0]

        def whole(found: Any) -> Any:
            if found.numbers is None:
                found.numbers = found.rules.numbers()
            # whoever holds a view of the numbers may write to them
            schema = function._schema
            found.changed |= schema.is_mutable or any(x.alias_info for x in schema.returns)
            return found.numbers

        args, kwargs = torch.utils._pytree.tree_map_only(cls, whole, (args, kwargs or {}))
        return function(*args, **kwargs)

    return type(
        "Mask",
        (torch.Tensor,),
        {
            "__doc__": "A mask of transformers that keeps the rules it was made of.",
            "__new__": staticmethod(new),
            "__torch_function__": torch._C._disabled_torch_function_impl,
            "__torch_dispatch__": classmethod(dispatch),
        },
    )


@functools.cache
def _function() -> Any:
    """Attention as a step in the graph of torch: the way there, and the way back."""
    torch = _torch()

    def forward(ctx: Any, asked: tuple[Any, ...], *tensors: Any) -> Any:
        name, names, options, ran, weights = asked
        arrays = dict(zip(names, map(_array, tensors), strict=True))
        out, shown, lse = _answer(name, arrays, options, ran, weights=weights, lse=True)
        ctx.asked = name, names, options
        ctx.save_for_backward(*tensors, out, lse)
        ctx.set_materialize_grads(False)
        return out, shown

    def backward(ctx: Any, above: Any, above_weights: Any) -> Any:
        name = ctx.asked[0]
        if above_weights is not None:
            raise NotImplementedError(
                f"{name}: the weights that output_attentions gives have no gradient with qkv: "
                'load the model with attn_implementation="eager"'
            )
        if above is None:  # nothing came of the result
            return (None,) * len(ctx.needs_input_grad)
        _check_readable(name, above)
        return None, *gradients.apply(
            ctx.asked, ctx.needs_input_grad[1:], above, *ctx.saved_tensors
        )

    def gradient(ctx: Any, asked: Any, wanted: Any, above: Any, *saved: Any) -> Any:
        ctx.name, names, options = asked
        *tensors, out, lse = saved
        arrays = dict(zip(names, map(_array, tensors), strict=True))
        forward = np.swapaxes(_array(out), -3, -2), _array(lse)
        above = np.swapaxes(_array(above), -3, -2)
        found = attention_grad(**arrays, grad_out=above, forward=forward, **options)
        return tuple(
            _tensor(getattr(found, which)) if needed else None
            for which, needed in zip(names, wanted, strict=True)
        )

    def refuse(ctx: Any, *above: Any) -> Any:
        raise NotImplementedError(
            f"{ctx.name}: qkv cannot differentiate twice: "
            'load the model with attn_implementation="eager"'
        )

    function = torch.autograd.Function
    way = {"forward": staticmethod(gradient), "backward": staticmethod(refuse)}
    gradients: Any = type("AttentionGradient", (function,), way)
    way = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Attention", (function,), way)


def _unreadable(*tensors: Any) -> str:
    """What torch does to these tensors that leaves no numbers to read, or does not see us read."""
    torch = _torch()
    functorch, modes = torch._C._functorch, torch._C._TorchDispatchModeKey
    if functorch.peek_interpreter_stack() or any(map(functorch.is_legacy_batchedtensor, tensors)):
        return "torch.func and torch.vmap cannot transform"
    traced = torch.jit.is_tracing() or torch.compiler.is_exporting()
    if traced or torch._C._get_dispatch_mode(modes.PROXY) is not None:
        return "torch.export, torch.jit and torch.fx cannot trace"
    plain = torch.Tensor.__torch_dispatch__
    kinds = {type(x).__name__ for x in tensors if type(x).__torch_dispatch__ is not plain}
    if kinds - {"Mask"}:
        return f"no numbers can be read from a {min(kinds)} by"
    dual = torch.autograd.forward_ad.unpack_dual
    if any(dual(x).tangent is not None for x in tensors):
        return "forward-mode differentiation cannot see"
    return ""


def _check_readable(name: str, *tensors: Any) -> None:
    """An error for tensors whose numbers cannot be read."""
    what = _unreadable(*tensors)
    if what:
        raise NotImplementedError(
            f'{name}: {what} qkv: load the model with attn_implementation="eager"'
        )


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
    _check_readable(name, *tensors)


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
    if type(attention_mask) is not _mask_type():
        # the user may hand the same one to the next forward pass: it does not say which this is
        return {}, attention_mask, Ran(module)
    rules: Rules = attention_mask.rules
    ran = Ran(module, attention_mask, rules.start, rules.first_key, rules.is_causal, rules.padding)
    if attention_mask.changed or (rules.length, rules.keys) != (length, keys):
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
    if recording is not None and _torch()._C._current_graph_task_id() != -1:
        recording = None  # on the way back: a checkpoint has run once already
    shown = sums = None
    if recording is not None:
        out, sums = recording.add(ran, call)
        out = np.ascontiguousarray(np.swapaxes(out, -3, -2))
        if weights:
            shown = answer(call, weights=True)[1]
    else:
        kv_heads, group, length = call.shape[-3:]
        lead = call.lead[len(call.lead) + 3 - call.axes :]
        out = np.empty((*lead, length, kv_heads * group, call.value.shape[-1]), call.dtype)
        _, *found = answer(call, weights=weights, lse=lse, out=np.swapaxes(out, -3, -2))
        shown = found[0] if weights else None
        sums = found[-1] if lse else None
    if shown is not None:
        shown = _tensor(shown.astype(call.dtype, copy=False))
    return _tensor(out), shown, None if sums is None else _tensor(sums)


def _torch() -> Any:
    return sys.modules["torch"]  # whoever has a tensor has imported it


def _masking() -> Any:
    return sys.modules["transformers.masking_utils"]


def _array(tensor: Any) -> Array:
    """A tensor where it stands, as an array."""
    torch = _torch()
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.dtype is not torch.bfloat16:
        array: Array = tensor.numpy()
        return array
    import ml_dtypes

    return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)


def _tensor(array: Array) -> Any:
    """An array where it stands, as a tensor."""
    torch = _torch()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
