"""Tests of the engine's operations: in WebAssembly, and without it, against NumPy in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from qkv.models import Model

from .bundling import script_of
from .engine import ask, page_of
from .support import Visit

UNIT = 2.0**-24  # the largest relative error of an operation in float32
# Calls an operation in WebAssembly and without it, with the same numbers.
CALL = """([name, given]) => [ops, page.PLAIN].map((table) => {
  const numbers = (x) => (Array.isArray(x) ? new table.Numbers(x) : x ?? undefined);
  const array = (x) => (x?.bytes ? new Uint8Array(x.bytes) : numbers(x));
  const blocks = (x) => ({ ...x, bytes: new Uint8Array(x.bytes) });
  return [...table[name](...given.map((x) => (x?.kind ? blocks(x) : array(x))))];
})"""
ERF = np.vectorize(math.erf, otypes=[float])
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: x / 2 * (1 + ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}
# (T, S, H, key heads, d): sizes below, at and above the four numbers of a vector
ATTENTION = [(1, 1, 1, 1, 1), (5, 5, 3, 3, 4), (7, 9, 4, 2, 6), (1, 13, 6, 1, 32), (2, 4, 2, 2, 19)]


@pytest.fixture(scope="module")
def page(visit_once: Visit) -> Page:
    script = f"{script_of('engine/kernels', 'engine/layers')}\nglobalThis.page = page;"
    page = visit_once(f"<title>bare</title><script>{script}</script>")
    page.evaluate("globalThis.ops = page.kernels()")
    return page


def check(page: Page, name: str, given: list[Any], expected: np.ndarray, bound: Any) -> None:
    """Check an operation within `bound` in WebAssembly, and within a hundredth of it without."""
    packed = [one.ravel().tolist() if isinstance(one, np.ndarray) else one for one in given]
    for found, part in zip(page.evaluate(CALL, [name, packed]), (1, 0.01), strict=True):
        numbers = np.array(found, float).reshape(expected.shape)
        shown = np.isfinite(expected)
        np.testing.assert_array_equal(numbers[~shown], expected[~shown])
        error = np.abs(numbers[shown] - expected[shown])
        most = part * np.broadcast_to(bound, expected.shape)[shown] + 1e-30
        assert (error <= most).all(), (name, part)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw numbers that float32 holds."""
    return rng.standard_normal(shape).astype(np.float32).astype(float)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1), (2, 4, 4), (3, 7, 5), (5, 192, 10), (4, 30, 9), (1, 769, 6)]
)
def test_linear_layers(page: Page, sizes: tuple[int, int, int], bias: bool) -> None:
    (rows, size, columns), rng = sizes, np.random.default_rng(sum(sizes))
    x, weight, own = draw(rng, rows, size), draw(rng, columns, size), draw(rng, columns)
    expected, most = x @ weight.T, np.abs(x) @ np.abs(weight).T
    if bias:
        expected, most = expected + own, most + np.abs(own)
    given = [x, weight, own if bias else None, size]
    check(page, "linear", given, expected, (size / 4 + 6) * UNIT * most)


def blocks(
    rng: np.random.Generator, kind: str, rows: int, size: int
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return random blocks: their bytes, their whole numbers times scales, and their minima."""
    shape = (rows, size // 32, 1)
    scale, least = (rng.uniform(*ends, shape).astype("<f2") for ends in ((0.01, 0.03), (-0.3, 0.1)))
    heads = [scale, least] if kind == "Q4_1" else [scale]
    if kind == "Q8_0":
        q = rng.integers(-127, 128, (*shape[:2], 32)).astype(np.int8)
        parts = [*heads, q]
    else:
        q = rng.integers(0, 16, (*shape[:2], 32)).astype(np.uint8)
        parts = [*heads, q[..., :16] | q[..., 16:] << 4]
    raw = b"".join(part[at].tobytes() for at in np.ndindex(shape[:2]) for part in parts)
    whole = q.astype(float) - (8 if kind == "Q4_0" else 0)
    least = least if kind == "Q4_1" else np.zeros(shape)
    return raw, (whole * scale).reshape(rows, size), np.repeat(least.astype(float), 32, 1)[..., 0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(1, 32, 1), (3, 64, 5), (4, 96, 8), (9, 576, 7)])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_linear_layers_in_blocks(
    page: Page, kind: str, sizes: tuple[int, int, int], bias: bool
) -> None:
    """In WebAssembly, 32 numbers of x are rounded to int16 with a scale, except for a far one."""
    (rows, size, columns), rng = sizes, np.random.default_rng(sum(sizes))
    x, own = draw(rng, rows, size), draw(rng, columns)
    x[:, :32] *= 100  # a block with a scale of its own
    x[0, -32:] = 0
    near, x[-1, -27] = x.copy(), 5000
    raw, scaled, least = blocks(rng, kind, columns, size)
    weight = (scaled + least).astype(np.float32).astype(float)  # as the library reads it
    expected, most = x @ weight.T, np.abs(x) @ (np.abs(scaled) + np.abs(least)).T
    if bias:
        expected, most = expected + own, most + np.abs(own)
    step = np.abs(near).reshape(rows, -1, 32).max(-1).repeat(32, 1) / 32767
    bound = step / 2 @ np.abs(scaled).T + (size / 32 + 10) * 2 * UNIT * most
    given = [x, {"kind": kind, "bytes": list(raw), "length": columns * size}]
    check(page, "linear", [*given, own if bias else None, size], expected, bound)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 4), (3, 7), (2, 192), (4, 18)])
def test_norms(page: Page, rows: int, size: int, rms: bool) -> None:
    rng = np.random.default_rng(size)
    x, weight, bias = draw(rng, rows, size) + (0 if rms else 64), draw(rng, size), draw(rng, size)
    x = x.astype(np.float32).astype(float)
    centred = x - (0 if rms else x.mean(-1, keepdims=True))
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    for offset, own in ((0.0, bias), (1.0, None)):
        product = scaled * (weight + offset)
        expected = product if own is None else product + own
        bound = (size / 4 + 10) * UNIT * (np.abs(product).max() + np.abs(bias).max())
        given = [x, weight, own, {"eps": 1e-5, "rms": rms, "offset": offset}]
        check(page, "normalized", given, expected, bound)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(page: Page, name: str, gated: bool) -> None:
    x = np.concatenate([np.linspace(-12, 12, 1003), [0, -80, 80]]).astype(np.float32).astype(float)
    by = np.linspace(-2, 2, len(x)).astype(np.float32).astype(float) if gated else 1.0
    expected = ACTIVATIONS[name](x) * by
    # the polynomials of native/activation.h and native/simd.h, then roundings
    bound = 5e-7 * np.abs(x * by)
    check(page, "activated", [x, name, by if gated else None], expected, bound)


def attend(sizes: tuple[int, int, int, int, int]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the sizes of a call as the engine names them, and random queries, keys and values."""
    queries, keys, heads, shared, size = sizes
    rng = np.random.default_rng(sum(sizes))
    arrays = [draw(rng, queries, heads, size), *(draw(rng, keys, shared, size) for _ in range(2))]
    return {"heads": heads, "kv_heads": shared, "size": size}, arrays


def both(sum_: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return products of two arrays, summed, and the same of their absolute values."""
    return np.einsum(sum_, x, y), np.einsum(sum_, np.abs(x), np.abs(y))


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sizes", ATTENTION)
def test_scores(page: Page, sizes: tuple[int, int, int, int, int], softcap: float | None) -> None:
    named, (q, k, _) = attend(sizes)
    *_, heads, shared, size = sizes
    own = np.repeat(k, heads // shared, axis=1)
    scores, most = both("ihc,jhc->hij", 0.25 * q, own)
    hidden = np.random.default_rng(3).random(scores.shape) < 0.2
    expected = scores if softcap is None else softcap * np.tanh(scores / softcap)
    given = [q, k, named, {"scale": 0.25, "softcap": softcap}, {"bytes": hidden.ravel().tolist()}]
    bound = (size / 4 + 8) * UNIT * most + 5e-7 * np.abs(scores)
    check(page, "scored", given, np.where(hidden, -np.inf, expected), bound)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (4, 3), (3, 8), (5, 61)])
def test_softmax(page: Page, rows: int, keys: int) -> None:
    rng = np.random.default_rng(rows)
    scores = 4 * draw(rng, rows, keys)
    scores[:, 1:][rng.random((rows, keys - 1)) < 0.3] = -np.inf
    below = scores - scores.max(-1, keepdims=True)
    expected = np.exp(below) / np.exp(below).sum(-1, keepdims=True)
    away = np.where(np.isinf(below), 0, -below)
    bound = expected * (4e-7 + (keys / 4 + 2 * away) * UNIT)
    check(page, "softmax", [scores, keys], expected, bound)
    check(page, "softmax", [np.full(2 * keys, -np.inf), keys], np.zeros(2 * keys), 0)


@pytest.mark.parametrize("sizes", ATTENTION)
def test_weighted_sums(page: Page, sizes: tuple[int, int, int, int, int]) -> None:
    named, (_, _, v) = attend(sizes)
    queries, keys, heads, shared, _ = sizes
    pattern = draw(np.random.default_rng(7), heads, queries, keys)
    own = np.repeat(v, heads // shared, axis=1)
    expected, most = both("hij,jhc->ihc", pattern, own)
    check(page, "weigh", [pattern, v, named], expected, (keys + 1) * UNIT * most)


def test_a_row_has_the_same_bits_alone_and_among_others(page: Page) -> None:
    """A new token gets the same keys, values and weights as it gets in a prompt."""
    rng = np.random.default_rng(1)
    x, weight, k, v = (draw(rng, *shape) for shape in ((5, 30), (9, 30), (5, 12), (5, 12)))
    named = {"heads": 3, "kv_heads": 3, "size": 4}
    same = page.evaluate(
        """([x, weight, k, v, named]) => {
          const [all, w, keys, values] = [x, weight, k, v].map((one) => new Float32Array(one));
          const options = { scale: 0.5, softcap: null };
          const attend = (q, count, hidden) => {
            const [own, seen] = [keys, values].map((one) => one.slice(0, 12 * count));
            const pattern = ops.softmax(ops.scored(q, own, named, options, hidden), count);
            return ops.weigh(pattern, seen, named);
          };
          const later = Uint8Array.from({ length: 75 }, (_, i) => i % 5 > Math.floor(i / 5) % 5);
          const [rows, z] = [ops.linear(all, w, undefined, 30), attend(keys, 5, later)];
          const equal = (one, other) => one.every((value, i) => Object.is(value, other[i]));
          return [0, 1, 2, 3, 4].every((t) => {
            const row = ops.linear(all.slice(30 * t, 30 * t + 30), w, undefined, 30);
            const own = attend(keys.slice(12 * t, 12 * t + 12), t + 1, new Uint8Array(3 * (t + 1)));
            return equal(row, rows.slice(9 * t)) && equal(own, z.slice(12 * t));
          });
        }""",
        [*(one.ravel().tolist() for one in (x, weight, k, v)), named],
    )
    assert same


def test_the_memory_grows_and_keeps_the_parameters(page: Page) -> None:
    found = page.evaluate(
        """() => {
          const weight = new Float32Array([1, 2, 3, 4]);
          const x = (count) => new Float32Array(2 * count).fill(0.5);
          const last = (count) => [...ops.linear(x(count), weight, undefined, 2).slice(-2)];
          return [last(1), last(4_000_000), last(1)];
        }"""
    )
    assert found == [[1.5, 3.5]] * 3


def test_the_engine_runs_where_webassembly_is_forbidden(visit: Visit, model: Model) -> None:
    """A page's policy may forbid WebAssembly; then the page computes in float64."""
    html = page_of(model)
    assert html.count(" 'wasm-unsafe-eval'") == 1
    text = "The bank of the river was [MASK]."
    forbidden = ask(visit(html.replace(" 'wasm-unsafe-eval'", "")), text)[1]
    plain, usual = (ask(visit(page_of(model, plain=one)), text)[1] for one in (True, False))
    np.testing.assert_array_equal(forbidden.logits, plain.logits)
    assert (usual.logits != plain.logits).any(), "the usual page computes in float32"
