"""The native kernel (native/module.cpp), which only checks that no access leaves a buffer.

The Python code checks all other arguments. The last axis of every array is contiguous, except in
masks and biases. Elements are aligned and native-endian. bfloat16 arrays are passed as uint16. The
leading axes of all arrays broadcast to the leading axes of query. `variant` is an index into
`variants()`.
"""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

MAX_SIZE: int  # the maximum head size d
SOURCES: str  # a hash of the source files that the kernel was compiled from

def variants() -> list[tuple[str, str]]:
    """Return the variants of this machine, the fastest first.

    Each has a name and a word for how it multiplies bfloat16: "tiles", "dot products" or "float32".
    """

def about_bfloat16() -> str:
    """Return why this machine multiplies bfloat16 as it does."""

def attend(
    variant: int,
    query: Array,  # (..., Hq, L, d), d from 1 to MAX_SIZE
    key: Array,  # (..., Hkv, S, d)
    value: Array,  # (..., Hkv, S, dv)
    out: Array,  # (..., Hq, L, dv), of the type of query or float32
    lse: Array | None,  # (..., Hq, L, 1) float64
    mask: Array | None,  # (..., Hq, L, S), any axis of length 1; bool or float
    bias: Array | None,  # the same, float
    slopes: Array | None,  # (Hq,) float32
    sinks: Array | None,  # (Hq, n) float32
    offset: int | Array,  # a number for all rows, or int64 (rows,)
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
    variant: int,
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
    variant: int,
    query: Array,
    key: Array,
    value: Array,
    out: Array,  # the result of attend
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
    most: float,  # a larger log-sum-exp marks the head in `unsound`
    grad_out: Array,  # (..., Hq, L, dv) of any type but float64
    grad_query: Array,  # (..., Hq, L, d) float32
    grad_key: Array,  # (..., Hkv, S, d) float32
    grad_value: Array,  # (..., Hkv, S, dv) float32
    grad_bias: Array | None,  # (..., Hq, L, S) or broadcast, float32; the kernel adds to it
    grad_slopes: Array | None,  # (rows, Hq) float64; the kernel adds to it
    grad_sinks: Array | None,  # (rows, Hq, n) float64; the kernel adds to it
    unsound: Array,  # (rows, Hkv) bool: True if the gradients of this head are wrong
    /,
) -> None: ...
def attend_packed(
    variant: int,
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
    variant: int,
    query: Array,
    key: Array,
    value: Array,
    out: Array,  # the result of attend_packed
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
    grad_out: Array,  # (total, Hq, dv) of any type but float64
    grad_query: Array,  # (total, Hq, d) float32
    grad_key: Array,  # (total, Hkv, d) float32
    grad_value: Array,  # (total, Hkv, dv) float32
    grad_slopes: Array | None,  # (B, Hq) float64; the kernel adds to it
    grad_sinks: Array | None,  # (B, Hq, n) float64; the kernel adds to it
    unsound: Array,  # (B, Hkv) bool: True if the gradients of this head are wrong
    /,
) -> None: ...
def packed_size(variant: int, rows: int, columns: int, like: Array, /) -> int:
    """Return how many float32 numbers packed weights (rows, columns) of `like`'s type take."""

def pack(
    variant: int,
    weight: Array,  # (in, out), any strides
    # 4 * packed_size(...) bytes: float16 for float16, uint16 for bfloat16 that multiplies float32,
    # otherwise float32
    packed: Array,
    threads: int,
    /,
) -> None: ...
def pack_int8(
    variant: int,
    weight: Array,  # (in, out) int8, any strides
    # the second digits of the weight, int8 with the same strides; None if all are 0: they are not
    # packed, and the products are the same
    more: Array | None,
    scales: Array,  # (out,) float32: column j is (weight[:, j] + more[:, j] / 256) * scales[j]
    packed: Array,  # int8, or uint8 without second digits, 4 * packed_size(...) for this type
    threads: int,
    /,
) -> None: ...
def linear(
    variant: int,
    x: Array,  # (rows, in)
    # weights (in, out), packed by the same variant: of x's type, or, for x of float32, of int8,
    # uint8 (int8 without second digits), float16 or uint16 (bfloat16)
    packed: Array,
    bias: Array | None,  # (out,) float32
    activation: int,  # a code in ops/activation.py, or 0 for none
    gate: Array | None,  # (rows, out): the factor of the activation's result
    residual: Array | None,  # (rows, out): added last
    y: Array,  # (rows, out), of x's type or float32; gate and residual have y's type
    threads: int,
    /,
) -> None: ...
def multiply_blocks(
    variant: int,
    kind: int,  # the number of the kind of blocks in ops/_blocks.py
    x: Array,  # (rows, in) float32
    packed: Array,  # weights (in, out) in packed blocks
    bias: Array | None,  # this and the rest as in `linear`
    activation: int,
    gate: Array | None,
    residual: Array | None,
    y: Array,
    threads: int,
    /,
) -> None: ...
def norm(
    variant: int,
    x: Array,  # (rows, size) float32 or bfloat16
    weight: Array,  # (size,) float32
    bias: Array | None,
    eps: float,
    centred: bool,
    y: Array,  # (rows, size), of the type of x
    scale: Array,  # (rows,) float32: the divisors
    threads: int,
    /,
) -> None: ...
def multiply_tiles(variant: int, sums: Array, rows: Array, columns: Array) -> None:
    """Add one product of tiles (AMX) to `sums` (256 float32); for tests of the model.

    `rows` are 16 rows of 32 bfloat16 numbers. Row k of `columns` has the numbers 2 k and 2 k + 1 of
    16 columns, as pairs. Or `rows` are 16 rows of 64 int8 numbers, and row k of `columns` has the
    numbers 4 k to 4 k + 3 of 16 columns, each the bits of a uint8; the bits of `sums` are then
    int32. A variant without tiles raises a ValueError.
    """

def narrow(
    variant: int,
    x: Array,  # float32, contiguous
    y: Array,  # bfloat16, of the same shape
    threads: int,
    /,
) -> None: ...
def outer(
    variant: int,
    left: Array,  # (depth, rows) float32
    right: Array,  # (depth, columns) float32
    y: Array,  # (rows, columns) float32: left.T @ right
    left_sums: Array | None,  # (rows,) float32: the sums of the columns of left
    right_sums: Array | None,  # (columns,)
    threads: int,
    /,
) -> None: ...
def map(
    variant: int,
    activation: int,  # as in linear, not 0
    x: Array,  # float32, contiguous
    grad: Array | None,  # float32, contiguous: y is grad times the derivative at x
    y: Array,
    threads: int,
    /,
) -> None: ...
def norm_grad(
    variant: int,
    x: Array,  # (rows, size) float32
    weight: Array,  # (size,) float32
    scale: Array,  # (rows,) float32: the divisors of the forward pass
    grad: Array,  # (rows, size) float32
    centred: bool,
    grad_x: Array,  # (rows, size) float32, contiguous
    grad_weight: Array,  # (size,) float32
    grad_bias: Array | None,
    threads: int,
    /,
) -> None: ...
def cross_entropy(
    variant: int,
    logits: Array,  # (rows, size) float32
    targets: Array,  # (rows,) int64
    weights: Array | None,  # (rows,) float32
    losses: Array,  # (rows,) float32
    grad: Array,  # (rows, size) float32, contiguous
    threads: int,
    /,
) -> None: ...
def adamw(
    variant: int,
    parameters: Array,  # (n,) float32, like the other arrays
    gradient: Array,
    mean: Array,
    square: Array,
    decays: Array | None,
    decay: float,  # used if `decays` is None
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
    variant: int,
    x: Array,  # float32, contiguous
    threads: int,
    /,
) -> float: ...
def multiply_adds(variant: int, bfloat16: bool, threads: int, /) -> float:
    """Measure the maximum of floating-point operations per second; see native/rates.h."""

def read_rate(variant: int, threads: int, /) -> float:
    """Measure the maximum of bytes per second that can be read from a large array."""
