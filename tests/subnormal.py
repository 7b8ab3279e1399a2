"""Subnormal numbers: results that contain them, and calls that compute with them."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

OPERAND = 2  # the flag of the processor that an operand was subnormal


def has_subnormal(array: Any) -> bool:
    """Return whether an array contains a subnormal number."""
    size = np.abs(array)
    return bool(((size > 0) & (size < np.finfo(size.dtype).smallest_normal)).any())


@contextmanager
def no_subnormal_operand() -> Iterator[None]:
    """Fail if this thread computes with a subnormal number; check nothing on other processors."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        yield
        return
    libm, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint * 8)()
    libm.fesetenv(ctypes.c_void_p(-1))  # clears all flags
    yield
    libm.fegetenv(state)
    assert not state[7] & OPERAND, "an operand was subnormal"
