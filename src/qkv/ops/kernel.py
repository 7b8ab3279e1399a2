"""The only door to the native kernel: whether it is here, and which of its bodies computes."""

from __future__ import annotations

import os

try:
    from qkv import _kernel
except ImportError:  # not built here, or not for this machine
    _kernel = None  # type: ignore[assignment]
kernel = _kernel
BODIES = (
    {} if kernel is None else {f"native-{name}": i for i, (name, _) in enumerate(kernel.bodies())}
)
BACKENDS = (*BODIES, "numpy")  # those that this machine can run, the best first


def backend() -> str:
    """The name of what computes here: the best body of the native kernel, or `"numpy"`.

    `"native-avx512"`, `"native-avx2"` and `"native-portable"` are the kernel's bodies; which there
    are depends on the machine and the compiler. float64, and attention of a head size above 256,
    is computed by NumPy in any case. The environment variable `QKV_BACKEND` picks one; a ValueError
    names those there are when it asks for one that is not here.

    >>> backend() in ("native-avx512", "native-avx2", "native-portable", "numpy")
    True
    """
    wanted = os.environ.get("QKV_BACKEND", "")
    if not wanted:
        return BACKENDS[0]
    if wanted not in BACKENDS:
        raise ValueError(
            f"QKV_BACKEND={wanted} is not available here: choose {', '.join(BACKENDS)}"
        )
    return wanted


def body() -> int | None:
    """The kernel's body that computes here, for the first argument of its functions; or None."""
    return BODIES.get(backend())
