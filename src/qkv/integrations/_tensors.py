"""Convert torch tensors to arrays, and arrays to tensors."""

import sys
from typing import Any

import numpy as np

from qkv.arrays import Array, torch_bfloat16


def torch_module() -> Any:
    """Return the torch module, which must already have been imported."""
    return sys.modules["torch"]


def as_array(tensor: Any) -> Array:
    """Return a tensor as an array that shares its memory."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    is_bfloat16 = tensor.dtype is torch_module().bfloat16
    return np.asarray(torch_bfloat16(tensor) if is_bfloat16 else tensor.numpy())


def as_tensor(array: Array) -> Any:
    """Return an array as a tensor that shares its memory."""
    torch = torch_module()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def unreadable(*tensors: Any) -> str:
    """Explain why the numbers of these tensors cannot be read; return "" if they can be read."""
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
    """Raise an error if the numbers of a tensor cannot be read."""
    reason = unreadable(*tensors)
    if reason:
        raise NotImplementedError(
            f'{name}: {reason} qkv: load the model with attn_implementation="eager"'
        )
