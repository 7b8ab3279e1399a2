"""The native kernel (native/module.cpp). Python checks; this only refuses to leave a buffer.

Arrays have a last axis that is contiguous (masks and biases need not) and whole, native-endian
elements; bfloat16 comes as its bits, uint16. Leading axes broadcast to those of query. `body`
counts in `bodies()`.
"""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

MAX_SIZE: int  # the largest d that it takes
SOURCES: str  # the SHA-256 of the SHA-256 of each file that it was compiled from

def bodies() -> list[tuple[str, bool]]:
    """Those that this machine can run, the best first: name, and whether it has BF16 products."""

def attend(
    body: int,
    query: Array,  # (..., Hq, L, d), d from 1 to MAX_SIZE
    key: Array,  # (..., Hkv, S, d)
    value: Array,  # (..., Hkv, S, dv)
    out: Array,  # (..., Hq, L, dv)
    lse: Array | None,  # (..., Hq, L, 1) float64
    mask: Array | None,  # (..., Hq, L, S), any axis of length 1; bool or float
    bias: Array | None,  # the same, float
    slopes: Array | None,  # (Hq,) float32
    sinks: Array | None,  # (Hq, n) float32
    offset: int | Array,  # one, or int64 for each row
    query_lengths: int | Array | None,
    key_lengths: int | Array | None,
    left: int | None,
    right: int | None,
    softcap: float | None,
    scale: float,
    threads: int,
    weights: Array | None,  # (..., Hq, L, S) float32, zeros
    /,
) -> None: ...
def summarize(
    body: int,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    lse: Array,
    mask: Array | None,
    bias: Array | None,
    slopes: Array | None,
    sinks: Array | None,
    offset: int | Array,
    query_lengths: int | Array | None,
    key_lengths: int | Array | None,
    left: int | None,
    right: int | None,
    softcap: float | None,
    scale: float,
    threads: int,
    top_indices: Array,  # (..., Hq, L, top_k) int64
    top_weights: Array,  # (..., Hq, L, top_k) float32
    received: Array,  # (..., Hq, 1, S) float64, zeros
    /,
) -> None: ...
def differentiate(
    body: int,
    query: Array,
    key: Array,
    value: Array,
    out: Array,  # what attend gave
    lse: Array,
    mask: Array | None,
    bias: Array | None,
    slopes: Array | None,
    sinks: Array | None,
    offset: int | Array,
    query_lengths: int | Array | None,
    key_lengths: int | Array | None,
    left: int | None,
    right: int | None,
    softcap: float | None,
    scale: float,
    threads: int,
    most: float,  # rows with a larger log-sum-exp make their head unsound
    grad_out: Array,  # (..., Hq, L, dv) of any working type
    grad_query: Array,  # (..., Hq, L, d) float32
    grad_key: Array,  # (..., Hkv, S, d) float32
    grad_value: Array,  # (..., Hkv, S, dv) float32
    grad_bias: Array | None,  # (..., Hq, L, S) float32, any axis of length 1; is added to
    grad_slopes: Array | None,  # (rows, Hq) float64, is added to
    grad_sinks: Array | None,  # (rows, Hq, n) float64, is added to
    unsound: Array,  # (rows, Hkv) bool: what stands there is wrong
    /,
) -> None: ...
def attend_packed(
    body: int,
    query: Array,  # (total, Hq, d)
    key: Array,  # (total, Hkv, d)
    value: Array,  # (total, Hkv, dv)
    out: Array,  # (total, Hq, dv)
    lse: Array | None,  # (total, Hq, 1) float64
    query_starts: Array,  # (B + 1,) int64
    key_starts: Array,
    slopes: Array | None,
    sinks: Array | None,
    offset: int | Array,
    left: int | None,
    right: int | None,
    softcap: float | None,
    scale: float,
    threads: int,
    /,
) -> None: ...
def differentiate_packed(
    body: int,
    query: Array,
    key: Array,
    value: Array,
    out: Array,  # what attend_packed gave
    lse: Array,
    query_starts: Array,
    key_starts: Array,
    slopes: Array | None,
    sinks: Array | None,
    offset: int | Array,
    left: int | None,
    right: int | None,
    softcap: float | None,
    scale: float,
    threads: int,
    most: float,  # as for differentiate
    grad_out: Array,  # (total, Hq, dv) of any working type
    grad_query: Array,  # (total, Hq, d) float32
    grad_key: Array,  # (total, Hkv, d) float32
    grad_value: Array,  # (total, Hkv, dv) float32
    grad_slopes: Array | None,  # (B, Hq) float64, is added to
    grad_sinks: Array | None,  # (B, Hq, n) float64, is added to
    unsound: Array,  # (B, Hkv) bool: what stands there is wrong
    /,
) -> None: ...
def packed_size(body: int, rows: int, columns: int, like: Array, /) -> int:
    """How many float32 the packed weights (in, out) = (rows, columns) of `like`'s type take."""

def pack(
    body: int,
    weight: Array,  # (in, out), any strides
    packed: Array,  # float32, packed_size of them
    threads: int,
    /,
) -> None: ...
def linear(
    body: int,
    x: Array,  # (rows, in)
    packed: Array,  # by the same body, of weights (in, out) of x's type
    bias: Array | None,  # (out,) float32
    activation: int,  # 0 none, 1 gelu, 2 gelu_tanh, 3 silu, 4 relu, 5 quick_gelu
    gate: Array | None,  # (rows, out): multiplies what the activation gave
    residual: Array | None,  # (rows, out): added last
    y: Array,  # (rows, out); of x's type or float32, and gate and residual of y's
    threads: int,
    /,
) -> None: ...
def norm(
    body: int,
    x: Array,  # (rows, size) float32 or bfloat16
    weight: Array,  # (size,) float32
    bias: Array | None,
    eps: float,
    centred: bool,
    y: Array,  # (rows, size), of the type of x
    scale: Array,  # (rows,) float32: what was divided by
    threads: int,
    /,
) -> None: ...
def narrow(
    body: int,
    x: Array,  # float32, contiguous
    y: Array,  # bfloat16, of the same shape
    threads: int,
    /,
) -> None: ...
def outer(
    body: int,
    left: Array,  # (depth, rows) float32
    right: Array,  # (depth, columns) float32
    y: Array,  # (rows, columns) float32: left.T @ right
    left_sums: Array | None,  # (rows,) float32: the sums of the columns of left
    right_sums: Array | None,  # (columns,)
    threads: int,
    /,
) -> None: ...
def map(
    body: int,
    activation: int,  # as in linear, not 0
    x: Array,  # float32, contiguous
    grad: Array | None,  # the same: y is grad times the derivative at x
    y: Array,
    threads: int,
    /,
) -> None: ...
def norm_grad(
    body: int,
    x: Array,  # (rows, size) float32
    weight: Array,  # (size,) float32
    scale: Array,  # (rows,) float32: what norm divided by
    grad: Array,  # (rows, size) float32
    centred: bool,
    grad_x: Array,  # (rows, size) float32, contiguous
    grad_weight: Array,  # (size,) float32
    grad_bias: Array | None,
    threads: int,
    /,
) -> None: ...
def cross_entropy(
    body: int,
    logits: Array,  # (rows, size) float32
    targets: Array,  # (rows,) int64
    weights: Array | None,  # (rows,) float32
    losses: Array,  # (rows,) float32
    grad: Array,  # (rows, size) float32, contiguous
    threads: int,
    /,
) -> None: ...
def adamw(
    body: int,
    parameters: Array,  # (n,) float32, as are the others
    gradient: Array,
    mean: Array,
    square: Array,
    decays: Array | None,
    decay: float,  # where there are no decays
    rate: float,
    factor: float,
    eps: float,
    keep_mean: float,
    add_mean: float,
    keep_square: float,
    add_square: float,
    size: float,  # rate / (1 - beta1**step)
    root: float,  # 1 / sqrt(1 - beta2**step)
    threads: int,
    /,
) -> None: ...
def squares(
    body: int,
    x: Array,  # float32, contiguous
    threads: int,
    /,
) -> float: ...
def multiply_adds(body: int, bfloat16: bool, threads: int, /) -> float:
    """Floating-point operations a second in registers at most, measured: see native/rates.h."""

def read_rate(body: int, threads: int, /) -> float:
    """Bytes a second read from a large array at most, measured."""
