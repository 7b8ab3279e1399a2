"""qkv as the attention of any model of Hugging Face's transformers, on a CPU."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.attend.call import Call, check_call
from qkv.attend.quick import quick_attention
from qkv.attend.solve import answer
from qkv.extras import need
from qkv.integrations.record import Ran, can_record, current

# What a few models hand over beside the usual to say what is seen: not done here.
REFUSED = ("indices", "block_indices", "sinks", "cache")

SHORT = 32  # queries up to which it takes longer to check a call than to copy its result
PLAIN = {"is_causal"}

_NO_GRADIENT = (
    'attn_implementation="qkv" has no gradient: run the model under torch.no_grad() or '
    'torch.inference_mode(), or train it after model.set_attn_implementation("sdpa")'
)


def register() -> None:
    """Make `attn_implementation="qkv"` work for the models of `transformers`, on a CPU.

    After this call, once in a process, `from_pretrained(name, attn_implementation="qkv")` and
    `model.set_attn_implementation("qkv")` have every attention that goes through the interface of
    `transformers` computed by qkv. Tensors are read where they stand and results are handed
    back where they stand: float32, float64, float16 and bfloat16. Causal masks, sliding windows and
    padding reach the kernel as rules, so no `(L, S)` mask is made for them; softcaps, sinks,
    position bias and grouped heads are those of the model. It computes results, no gradients.

    Source: the attention interface of transformers,
    https://huggingface.co/docs/transformers/attention_interface

    Raises:
        ImportError: torch or transformers is missing.
    """
    need("torch", "torch")
    utils = need("transformers.modeling_utils", "torch")
    masking = need("transformers.masking_utils", "torch")
    compiler = need("torch.compiler", "torch")
    utils.AttentionInterface.register("qkv", compiler.disable(attend))
    masking.AttentionMaskInterface.register("qkv", mask)
    can_record("transformers")


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
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
        scaling: what the scores are multiplied by.
        is_causal: counts where there is no mask; if None, what the module says.
        softcap: as `qkv.attention` takes it.
        s_aux: `(Hq,)`, the sinks.
        position_bias: added to the scores, broadcasts to `(B, Hq, L, S)`.
        **others: of no account, but for what `REFUSED` lists and `output_attentions`.

    Returns:
        `(B, L, Hq, dv)`, and the weights `(B, Hq, L, S)` if `output_attentions` asks for them.
    """
    torch = _torch()
    tensors = [x for x in (query, key, value, s_aux, position_bias) if x is not None]
    _check(module, tensors, dropout, others)
    options, ran = _options(module, query, key, attention_mask, is_causal)
    if softcap is not None:
        options["softcap"] = softcap
    weights = bool(others.get("output_attentions"))
    if torch.is_autocast_enabled("cpu") and not query.dtype == key.dtype == value.dtype:
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))

    def compute() -> tuple[Any, Any]:
        if s_aux is not None:
            options["sinks"] = _array(s_aux).reshape(-1)
        if position_bias is not None:
            options["bias"] = _array(position_bias)
        q, k, v = _array(query), _array(key), _array(value)
        if not weights and current() is None and query.shape[-2] <= SHORT and {*options} <= PLAIN:
            found = quick_attention(q, k, v, "is_causal" in options, scaling, lse=False)
            if found is not None:
                out = _tensor(found[0], query.dtype).transpose(-3, -2)
                return out.contiguous(), None
        call = check_call(q, k, v, scale=scaling, call=type(module).__name__, **options)
        return _answer(call, ran, weights=weights, kind=query.dtype)

    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return compute()
    if module.training:
        raise NotImplementedError(_NO_GRADIENT)
    out, shown = _without_gradient().apply(compute, *tensors)
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
    if elsewhere or torch.compiler.is_compiling() or torch.jit.is_tracing():
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
        return {"attn_mask": seen[:, None, None, :]}  # (B, 1, 1, S)

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
def _without_gradient() -> Any:
    """What stands in the graph of torch in place of attention: its way back is an error."""

    def forward(ctx: Any, compute: Any, *tensors: Any) -> Any:
        return compute()

    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(_NO_GRADIENT)

    way = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Attention", (_torch().autograd.Function,), way)


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
        raise NotImplementedError(
            f"{name} asks for dropout {dropout} and qkv has none: call model.eval()"
        )
    for tensor in tensors:
        if not tensor.is_cpu:
            raise ValueError(
                f"{name}: a tensor is on {tensor.device} and qkv computes on the CPU: "
                'move the model with model.to("cpu"), or take another attn_implementation'
            )
    if _torch().jit.is_tracing():
        raise NotImplementedError(
            f"{name}: torch.jit cannot trace through qkv: "
            'trace the model with attn_implementation="sdpa"'
        )


def _options(
    module: Any, query: Any, key: Any, attention_mask: Any, is_causal: bool | None
) -> tuple[dict[str, Any], Ran]:
    """What is visible, as arguments of `qkv.attention`, and for a recording what ran."""
    length, keys = query.shape[-2], key.shape[-2]
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal or length == 1:
            return {}, Ran(module)
        if length != keys:
            raise ValueError(
                f"{type(module).__name__} is causal, has {length} queries and {keys} keys, "
                "and no mask says where the queries stand: hand it an attention_mask"
            )
        return {"is_causal": True}, Ran(module, is_causal=True)
    if type(attention_mask) is not _mask_type():
        # the user may hand the same one to the next forward pass: it does not say which this is
        return {"attn_mask": _array(attention_mask)}, Ran(module)
    rules: Rules = attention_mask.rules
    ran = Ran(module, attention_mask, rules.start, rules.first_key, rules.is_causal, rules.padding)
    if attention_mask.changed or (rules.length, rules.keys) != (length, keys):
        return {"attn_mask": _array(attention_mask + 0)}, ran
    return dict(rules.options), ran


def _answer(call: Call, ran: Ran, *, weights: bool, kind: Any) -> tuple[Any, Any]:
    """Out `(B, L, Hq, dv)`, and the weights where they are wanted."""
    recording = current()
    shown = None
    if recording is not None:
        out = np.ascontiguousarray(np.swapaxes(recording.add(ran, call), -3, -2))
        if weights:
            shown = answer(call, weights=True)[1]
    else:
        kv_heads, group, length = call.shape[-3:]
        lead = call.lead[len(call.lead) + 3 - call.axes :]
        out = np.empty((*lead, length, kv_heads * group, call.value.shape[-1]), call.dtype)
        found = answer(call, weights=weights, out=np.swapaxes(out, -3, -2))
        shown = found[1] if weights else None
    if shown is not None:
        shown = _tensor(shown.astype(call.dtype, copy=False), kind)
    return _tensor(out, kind), shown


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


def _tensor(array: Array, kind: Any) -> Any:
    """An array where it stands, as a tensor of the type `kind`."""
    torch = _torch()
    if kind is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(kind)
    return torch.from_numpy(array)
