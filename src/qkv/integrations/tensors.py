"""Tensors of torch as arrays where they stand, and which of them can be read."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from qkv.arrays import Array, torch_bfloat16


def torch_module() -> Any:
    """The module torch: whoever has a tensor has imported it."""
    return sys.modules["torch"]


def as_array(tensor: Any) -> Array:
    """A tensor where it stands, as an array."""
    torch = torch_module()
    tensor = tensor.detach() if tensor.requires_grad else tensor
    array: Array = torch_bfloat16(tensor) if tensor.dtype is torch.bfloat16 else tensor.numpy()
    return array


def as_tensor(array: Array) -> Any:
    """An array where it stands, as a tensor."""
    torch = torch_module()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def unreadable(*tensors: Any) -> str:
    """What torch does to these tensors that leaves no numbers to read, or does not see us read."""
    torch = torch_module()
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


def check_readable(name: str, *tensors: Any) -> None:
    """An error for tensors whose numbers cannot be read."""
    what = unreadable(*tensors)
    if what:
        raise NotImplementedError(
            f'{name}: {what} qkv: load the model with attn_implementation="eager"'
        )
