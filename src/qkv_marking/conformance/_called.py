"""The judged function: its arguments and its array library."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.attend.arguments import OPTIONS
from qkv.extras import need

_TAKEN = frozenset({*OPTIONS} - {"out"})
# options whose default value may change the result of a call, and the types of such a value
_KINDS = MappingProxyType(
    {"is_causal": bool, "window": tuple, "softcap": int | float, "scale": int | float}
)
# names of the arguments in other libraries; the argument `names` overrides them
_ALSO = MappingProxyType(
    {
        "attention_mask": "attn_mask",
        "mask": "attn_mask",
        "causal": "is_causal",
        "sm_scale": "scale",
        "softmax_scale": "scale",
        "soft_cap": "softcap",
        "logit_softcap": "softcap",
        "window_size": "window",
        "return_attention": "return_weights",
        "return_attn_weights": "return_weights",
        "return_softmax_lse": "return_lse",
    }
)

LIBRARIES = ("numpy", "torch", "jax")


@dataclass(frozen=True)
class Callee:
    """The judged function, the names of its arguments, and its array library.

    Attributes:
        function: the function, which takes (query, key, value, **arguments).
        names: the function's argument names, keyed by the name in qkv.
        absent: features that the function does not support, although the function has arguments for
            them.
        arrays: the array library that the function uses: "numpy", "torch" or "jax".
        aligned: "start" if the function aligns the first query with the first key, "end" if it
            aligns the last query with the last key, None if unknown.
        says: the name and version of the function's library.
        unnamed: arguments that only the function's `**options` accept, by their names in qkv.
        defaults: values in the function's signature that may affect a call that omits the argument,
            keyed by the name in qkv.
    """

    function: Callable[..., Any]
    names: Mapping[str, str]
    absent: frozenset[str] = field(default_factory=frozenset)
    arrays: str | None = None
    aligned: str | None = None
    says: str = ""
    unnamed: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Call the function; `options` uses qkv's argument names."""
        return self.function(query, key, value, **{self.names[k]: v for k, v in options.items()})


def callee(function: Any, names: Mapping[str, str] | None, also: Iterable[str] = ()) -> Callee:
    """Determine how to call a function, from its signature and `names`.

    Args:
        function: the function.
        names: the arguments whose names differ from qkv's: `{"mask": "attn_mask"}` or
            `{"attn_mask": "mask"}` if qkv's argument `attn_mask` is called `mask` in the function.
        also: the names of the function's arguments, if the function has no signature.
    """
    taken: dict[str, str] = {}
    theirs = [*also]
    own: dict[str, Any] = {}
    with suppress(TypeError, ValueError):  # some compiled functions have no signature
        # `__call__` of a layer of torch or Keras passes all arguments to `forward` or `call`
        read = getattr(function, "forward", getattr(function, "call", function))
        for parameter in inspect.signature(read).parameters.values() if not theirs else ():
            if parameter.kind is parameter.VAR_KEYWORD:
                taken = dict(zip(_TAKEN, _TAKEN, strict=True))
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                theirs.append(parameter.name)
                own[parameter.name] = parameter.default
    unnamed = {*taken}
    pairs = [(_ALSO.get(name, name), name) for name in theirs]
    # if a function has both qkv's name of an argument and a synonym, use qkv's name
    for ours, name in sorted(pairs, key=lambda pair: pair[0] == pair[1]):
        if ours in _TAKEN:
            taken[ours] = name
            unnamed.discard(ours)
    given = _ours_to_theirs(names or {}, {*theirs})
    taken |= given
    defaults = {ours: own[name] for ours, name in taken.items() if ours in _KINDS and name in own}
    if isinstance(window := defaults.get("window"), tuple):  # -1 stands for "no limit"
        sides = tuple(None if side == -1 else side for side in window)
        defaults["window"] = sides if sides != (None, None) else None
    defaults = {name: x for name, x in defaults.items() if x and isinstance(x, _KINDS[name])}
    left = frozenset(unnamed - given.keys())
    return Callee(function, taken, defaults=defaults, unnamed=left)


def _ours_to_theirs(names: Mapping[str, str], theirs: set[str]) -> dict[str, str]:
    """Map qkv's argument names to the function's names.

    `names` may map qkv's names to the function's names, or the function's names to qkv's names.
    """
    ours = {}
    for name, other in names.items():
        if other in _TAKEN and (name in theirs or name not in _TAKEN):
            ours[other] = name
        elif name in _TAKEN:
            ours[name] = other
        else:
            raise ValueError(
                f"conform: `names` has {name}={other}, but neither name is an argument"
                f" of qkv.attention: write your_name=qkv_name, where qkv_name is one of"
                f" {', '.join(sorted(_TAKEN))}"
            )
    return ours


class Library(NamedTuple):
    """The conversions between NumPy arrays and the arrays of a library.

    Attributes:
        give: a function that converts a NumPy array to an array of the library, on the device.
        take: a function that converts an array of the library to NumPy; bfloat16 becomes float32.
        halves: the library's half-precision dtypes.
        absent: features and layouts that the library cannot express.
        backward: `backward(function, inputs, upstream)` returns the gradients of `function` with
            respect to `inputs`; `upstream` is the gradient with respect to the function's output.
    """

    give: Callable[[Array], Any]
    take: Callable[[Any], Array]
    halves: list[str]
    absent: frozenset[str] = frozenset()
    backward: Callable[[Callable[..., Any], tuple[Any, ...], Any], Any] | None = None


def library(name: str, device: str) -> Library:
    """Return a library by its name."""
    return {"numpy": _numpy, "torch": _torch, "jax": _jax}[name](device)


def _numpy(device: str) -> Library:
    if device not in ("", "cpu"):
        raise ValueError(f"NumPy arrays have no device {device!r}: use arrays of torch or jax")
    return Library(lambda a: a, _as_array, ["float16"])


def _torch(device: str) -> Library:
    torch: Any = need("torch", "torch")
    # The worker threads of torch do not exist in a forked process. If torch used more than one
    # thread, it would wait for the missing threads forever.
    torch.set_num_threads(1)

    def give(a: Array) -> Any:
        if a.dtype.name == "bfloat16":
            return torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16).to(device or "cpu")
        return torch.from_numpy(a).to(device or "cpu")

    def take(x: Any) -> Array:
        if isinstance(x, torch.Tensor):
            x = x.detach().cpu()
            x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
        return _as_array(x)

    def backward(function: Callable[..., Any], inputs: tuple[Any, ...], upstream: Any) -> Any:
        inputs = tuple(x.detach().requires_grad_() for x in inputs)
        return torch.autograd.grad(function(*inputs), inputs, upstream)

    return Library(give, take, ["float16", "bfloat16"], frozenset({"reversed"}), backward)


def _jax(device: str) -> Library:
    jax: Any = need("jax", "jax")
    jax.config.update("jax_enable_x64", True)
    target = jax.devices(device)[0] if device else None

    def backward(function: Callable[..., Any], inputs: tuple[Any, ...], upstream: Any) -> Any:
        return jax.vjp(function, *inputs)[1](upstream)

    absent = frozenset({"strides"})  # XLA chooses all strides, and a caller cannot set them
    halves = ["float16", "bfloat16"]
    return Library(lambda a: jax.device_put(a, target), _as_array, halves, absent, backward)


class NotNumbers(TypeError):
    """The function did not return an array of numbers, or returned far too many numbers."""


def _as_array(x: Any) -> Array:
    a = np.asarray(x)
    if a.dtype.name == "bfloat16":
        return a.astype(np.float32)
    if a.dtype.kind not in "biuf":
        raise NotNumbers(
            f"the function returned {type(x).__name__}, which is not an array of numbers"
        )
    return a
