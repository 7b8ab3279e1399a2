"""Convert arrays to NumPy, torch or JAX, and results back to NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array
from qkv.extras import need

LIBRARIES = ("numpy", "torch", "jax")


class Library(NamedTuple):
    """How to convert arrays from and to a library.

    Attributes:
        give: converts a NumPy array to an array of the library, on the device.
        take: converts an array of the library to NumPy; half precision becomes float32.
        halves: the library's types of half precision.
        absent: features and layouts that the library cannot express.
        backward: computes gradients from a function, its inputs and the upstream gradient.
    """

    give: Callable[[Array], Any]
    take: Callable[[Any], Array]
    halves: list[str]
    absent: frozenset[str] = frozenset()
    backward: Callable[[Callable[..., Any], tuple[Any, ...], Any], Any] | None = None


def library(name: str, device: str) -> Library:
    """Return the library of this name."""
    return {"numpy": _numpy, "torch": _torch, "jax": _jax}[name](device)


def _numpy(device: str) -> Library:
    if device not in ("", "cpu"):
        raise ValueError(f"NumPy arrays have no device {device!r}: use arrays of torch or jax")
    return Library(lambda a: a, _taken, ["float16"])


def _torch(device: str) -> Library:
    torch: Any = need("torch", "torch")
    torch.set_num_threads(1)  # one thread: a fork does not copy the other threads

    def give(a: Array) -> Any:
        if a.dtype.name == "bfloat16":
            return torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16).to(device or "cpu")
        return torch.from_numpy(a).to(device or "cpu")

    def take(x: Any) -> Array:
        if isinstance(x, torch.Tensor):
            x = x.detach().cpu()
            x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
        return _taken(x)

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

    absent = frozenset({"strides"})  # XLA chooses them
    halves = ["float16", "bfloat16"]
    return Library(lambda a: jax.device_put(a, target), _taken, halves, absent, backward)


def _taken(x: Any) -> Array:
    a = np.asarray(x)
    if a.dtype.name == "bfloat16":
        return a.astype(np.float32)
    if a.dtype.kind not in "biuf":
        raise TypeError(f"it returned {type(x).__name__}, which is not an array of numbers")
    return a
