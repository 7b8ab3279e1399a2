"""Tests of every variant of the kernel against the float64 formula, in four builds.

The builds are the shipped one, two with sanitizers, and one for ARM64 under an emulator.
`make native` runs these tests.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activations import FORMULAS
from attend.drawn import BFLOAT16, F16, F32, Case, draw
from attend.support import numbers
from ops.drawn_blocks import drawn as drawn_blocks, quantized
from qkv.ops._blocks import BLOCK_KINDS
from qkv.ops._int8_rows import from_rows, multiply_int8, to_digits, to_rows
from qkv.ops._norm import norm_grad
from qkv.ops._training import adamw, cross_entropy
from qkv.ops.activation import activate, activation_grad
from rows import SAMPLE

from . import writer

pytestmark = pytest.mark.unsampled  # CI runs every build
SOURCE = Path(__file__).resolve().parents[2] / "native"
TYPES = [F32, F16, BFLOAT16]
LENGTHS = [1, 2, 5, 16, 17, 40, 130]
KEYS = [0, 1, 7, 33, 256, 257, 300, 600]
DRAWN = 360

ARM = {
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "aarch64",
    "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
    "CMAKE_EXE_LINKER_FLAGS": "-static",
    "QKV_VARIANTS": "portable",
}
# -g1 keeps the line numbers of reports; the rest of -g takes a third of the compile time.
SANITIZED = "-O1 -g1 -fno-omit-frame-pointer -DQKV_IMPATIENT -fno-sanitize-recover=all -fsanitize="
# For each driver: its CMake options, the tools it needs, and whether it is so slow that it always
# runs only a part of the cases; the others run a part with QKV_SAMPLE.
BUILDS: dict[str, tuple[dict[str, str], list[str], bool]] = {
    "address and undefined": (
        {
            "CMAKE_BUILD_TYPE": "None",
            "CMAKE_CXX_FLAGS": SANITIZED + "address,undefined",
            # Other variants could not run here. The model of AMX takes as long again.
            "QKV_VARIANTS": "fastest" if SAMPLE > 1 else "own",
        },
        [],
        False,
    ),
    "as it ships": ({}, [], False),
    "arm64": (ARM, ["aarch64-linux-gnu-g++", "qemu-aarch64"], True),
    "thread": (
        {
            "CMAKE_BUILD_TYPE": "None",
            "CMAKE_CXX_FLAGS": SANITIZED + "thread",
            "QKV_VARIANTS": "portable",  # all variants share work between threads in the same way
        },
        [],
        True,
    ),
}


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Return a function that writes a case file: all cases, or a fourth of them."""
    folder = tmp_path_factory.mktemp("cases")
    made: list[bytes] = []

    def file(part: bool) -> Path:
        path = folder / ("part" if part else "all")
        if not made:
            made.extend(
                [
                    *sizes(),
                    *long(),
                    *drawn(),
                    *packed(),
                    *gradients(),
                    *linear(),
                    *in_int8(),
                    *in_blocks(),
                    *training(),
                ]
            )
        if not path.exists():
            path.write_bytes(b"".join(made[::4] if part else made))
        return path

    return file


ONE_DRIVER = pytest.mark.xdist_group("as it ships")  # one process builds and runs this driver


@pytest.mark.parametrize(
    "build",
    [pytest.param(name, marks=[ONE_DRIVER] if name == "as it ships" else []) for name in BUILDS],
)
def test_cases(build: str, cases: Callable[[bool], Path], tmp_path: Path) -> None:
    options, tools, part = BUILDS[build]
    part = part or SAMPLE > 1
    for tool in ["cmake", "c++", *tools]:
        if not shutil.which(tool):
            missing = f"{tool} is not installed"
            assert not os.environ.get("CI"), missing
            pytest.skip(missing)
    driver = _built(options, tmp_path)
    command = [str(driver), str(cases(part))]
    if build == "arm64" and platform.machine() != "aarch64":
        command = ["qemu-aarch64", *command]
    result = _run(*command)
    print(result.stdout.splitlines()[-1] if result.stdout else "")
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[:6000]
    assert ("runs ended early" in result.stdout) == ("QKV_IMPATIENT" in str(options))


@ONE_DRIVER
def test_a_wrong_answer_is_noticed(cases: Callable[[bool], Path], tmp_path: Path) -> None:
    driver = _built({}, tmp_path)
    query, key, value = (numbers((1, 2, 5, 8), seed) for seed in range(3))
    whole = writer.attention_case("spoiled", Case((query, key, value), {}), weights=True, top_k=2)
    right = np.frombuffer(whole, np.uint8)
    wrong = right.copy()
    out = writer.exact.attention(query, key, value).loops.out
    at = whole.index(out.tobytes())
    wrong[at : at + 8] = np.frombuffer(np.float64(out.flat[0] + 1e-5).tobytes(), np.uint8)
    for content, code, said in ((right, 0, "0 failures"), (wrong, 1, "out at row 0, head 0")):
        path = tmp_path / "case"
        path.write_bytes(content.tobytes())
        result = _run(driver, path)
        assert result.returncode == code
        assert said in result.stdout


_drivers: dict[str, Path] = {}


def _built(options: dict[str, str], folder: Path) -> Path:
    """Build a driver with these CMake options; without options, reuse an install's objects."""
    key = repr(options)
    if key not in _drivers:
        if not options and (SOURCE / "CMakeCache.txt").exists() and not _build(SOURCE).returncode:
            folder = SOURCE
        else:
            defined = [f"-D{name}={value}" for name, value in options.items()]
            _succeeded(_run("cmake", "-S", SOURCE, "-B", folder, "-DQKV_MODULE=OFF", *defined))
            _succeeded(_build(folder))
        _drivers[key] = folder / "driver"
    return _drivers[key]


def _build(folder: Path) -> subprocess.CompletedProcess[str]:
    return _run("cmake", "--build", folder, "--target", "driver", "--parallel", "2")


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _succeeded(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]


def sizes() -> list[bytes]:
    """Return cases of every length of queries with every length of keys; sizes and types vary."""
    found = []
    options: list[dict[str, Any]] = [
        {},
        {"is_causal": True, "q_offset": "end"},
        {"window": (40, 3), "q_offset": "end"},
        {"softcap": 20.0},
        {"sinks": numbers((4, 2), 5)},
    ]
    sizes = [(64, 64), (1, 256), (128, 128), (33, 7), (256, 1), (16, 16), (95, 65)]
    number = 0
    for L in LENGTHS:
        for S in KEYS:
            number += 1
            d, dv = sizes[number % len(sizes)]
            dtype = TYPES[number % len(TYPES)]
            kv_heads = (4, 2, 1)[number % 3 if L * S < 5000 else 2]
            heads = 4 if L * S < 20_000 else 1
            chosen = options[number % len(options)]
            if "sinks" in chosen:
                chosen = {"sinks": chosen["sinks"][:heads]}
            arrays = (
                numbers((1, heads, L, d), number, dtype),
                numbers((1, min(heads, kv_heads), S, d), number + 1, dtype),
                numbers((1, min(heads, kv_heads), S, dv), number + 2, dtype),
            )
            name = f"{dtype} L={L} S={S} d={d} dv={dv} {', '.join(chosen)}"
            found.append(writer.attention_case(name, Case(arrays, chosen)))
    return found


def long() -> list[bytes]:
    """Return cases whose keys are split into parts, or whose queries are split into shares."""
    asked: list[tuple[int, int, int, dict[str, Any], dict[str, Any]]] = [
        (1, 4096, 8, {}, {}),
        (1, 3000, 4, {"sinks": numbers(4, 7), "key_lengths": 2500}, {}),
        (3, 5000, 8, {"is_causal": True, "q_offset": "end"}, {}),
        (16, 2500, 2, {"window": (1500, 3), "q_offset": "end", "softcap": 9.0}, {"weights": True}),
        (7, 2100, 2, {"bias": numbers((7, 2100), 8)}, {"top_k": 3}),
        (1000, 300, 1, {}, {"top_k": 5}),
        (1000, 1000, 1, {"is_causal": True}, {}),
        (1000, 1000, 1, {"window": (20, 0), "q_offset": -13}, {}),
    ]
    found = []
    for number, (L, S, group, options, way) in enumerate(asked):
        dtype = TYPES[number % len(TYPES)]
        shapes = [(2, group, L, 24), (2, 1, S, 24), (2, 1, S, 40)]
        arrays = tuple(numbers(shape, number + k, dtype) for k, shape in enumerate(shapes))
        name = f"long {dtype} L={L} S={S} {', '.join(options)}"
        found.append(writer.attention_case(name, Case(arrays, options), **way))
    return found


def drawn() -> list[bytes]:
    """Return random cases as in tests/attend, some with weights and some with summaries."""
    found = []
    for seed in range(DRAWN):
        case = draw(seed, types=(F32, F32, F16, BFLOAT16), cells=30_000)
        ways: list[dict[str, Any]] = [
            {},
            {"trim": True},
            {"weights": True},
            {"top_k": 1 + seed % 9},
        ]
        way = ways[seed % 4]
        found.append(
            writer.attention_case(f"draw({seed})", case, **way, gap=seed % 3, lse=seed % 5 > 0)
        )
    return found


def packed() -> list[bytes]:
    """Return cases of packed sequences, some of them empty."""
    found = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(0, (4, 30, 90)[seed % 3], rng.integers(1, 9))
        key_lengths = lengths if seed % 2 else rng.integers(0, 90, len(lengths))
        kv_heads, group, d = rng.integers(1, 3), rng.integers(1, 4), int(rng.integers(1, 80))
        dtype = TYPES[seed % 3]
        arrays = [
            numbers((sum(counts), heads, d), seed + k, dtype)
            for k, (counts, heads) in enumerate(
                [(lengths, kv_heads * group), (key_lengths, kv_heads), (key_lengths, kv_heads)]
            )
        ]
        options: dict[str, Any] = {}
        if seed % 4 > 1:
            options = {"is_causal": True, "q_offset": "end"}
        if seed % 5 == 0:
            options |= {"window": (11, 4), "softcap": 9.0, "q_offset": "start"}
        if seed % 7 == 0:
            options |= {"sinks": numbers(kv_heads * group, 9)}
        found.append(writer.packed_case(f"packed {seed}", arrays, lengths, key_lengths, **options))
    return found


def gradients() -> list[bytes]:
    """Return gradient cases with every argument, for one or more blocks of keys, full or not."""
    found = []
    shapes = [(1, 1), (5, 7), (13, 300), (40, 40), (120, 257), (130, 520)]
    sizes = [(64, 64), (1, 5), (33, 7), (256, 1), (16, 256), (95, 65)]
    for seed in range(36):
        rng = np.random.default_rng(seed)
        (L, S), (d, dv) = shapes[seed % 6], sizes[seed // 6 % 6]
        dtype = TYPES[seed % 3]
        group = int(rng.integers(1, 3))
        bias = [(S,), (2 * group, L, S), (2, 1, L, S), (L, 1), (2, 2 * group, 1, S), (1, 1, L, S)]
        options: list[dict[str, Any]] = [
            {"is_causal": True, "q_offset": "end"},
            {"window": (20, 30), "q_offset": 3, "alibi_slopes": rng.random(2 * group) / 8},
            {"bias": rng.standard_normal(bias[seed % 6])},
            {"attn_mask": rng.random((L, S)) < 0.8, "softcap": 2.0},
            {"sinks": rng.standard_normal((2 * group, 2)), "key_lengths": [S, (S + 1) // 2]},
            {"bias": rng.standard_normal(bias[seed // 6 % 6]), "query_lengths": [L // 2, L]},
            {},
        ]
        arrays = (
            numbers((2, 2 * group, L, d), seed, dtype),
            numbers((2, 2, S, d), seed + 1, dtype),
            numbers((2, 2, S, dv), seed + 2, dtype),
        )
        chosen = options[seed % 7]
        name = f"gradient {seed}: {dtype} L={L} S={S} d={d} dv={dv} {', '.join(chosen)}"
        found.append(writer.gradient_case(name, Case(arrays, chosen), seed))
    return found


def linear() -> list[bytes]:
    """Return cases of x @ W + b with activations, gates and residuals."""
    found = []
    for seed in range(90):
        rng = np.random.default_rng(seed)
        rows = int(rng.choice([0, 1, 2, 5, 13, 14, 15, 29, 64, 100]))
        columns, out = (int(n) for n in rng.choice([1, 2, 3, 15, 16, 31, 33, 64, 65, 384, 400], 2))
        dtype = TYPES[seed % 3]
        gap = int(rng.integers(0, 3))
        activation = writer.ACTIVATIONS[seed // 3 % len(writer.ACTIVATIONS)]

        def some(wanted: bool, more: int, shape: tuple[int, int], dtype: Any = dtype) -> Any:
            if not wanted:
                return None
            larger = np.full((shape[0], shape[1] + more), np.nan, dtype)
            larger[:, : shape[1]] = rng.standard_normal(shape)  # noqa: B023
            return larger[:, : shape[1]]

        x = some(True, gap, (rows, columns))
        weight = rng.standard_normal((columns, out)).astype(dtype)
        if rng.random() < 0.4:  # stored as (out, in), as in torch
            weight = np.ascontiguousarray(weight.T).T
        bias = rng.standard_normal(out).astype(np.float32) if rng.random() < 0.6 else None
        gate = some(rng.random() < 0.3, gap, (rows, out))
        residual = some(rng.random() < 0.4, 2 * gap, (rows, out))
        x64, weight64 = x.astype(np.float64), weight.astype(np.float64)
        total = x64 @ weight64
        size = np.abs(x64) @ np.abs(weight64)
        if bias is not None:
            total, size = total + bias, size + np.abs(bias)
        expected = ACTIVATE[activation](total)
        allowed = 1.2 * 2e-6 * (size + 1)  # no activation has a slope above 1.2
        if gate is not None:
            factor = gate.astype(np.float64)
            expected, allowed = expected * factor, allowed * np.abs(factor)
        if residual is not None:
            expected = expected + residual.astype(np.float64)
        allowed = allowed + writer.linear_rounding(dtype) * np.abs(expected) + 1e-6
        name = f"linear {seed}: {dtype} ({rows}, {columns}) @ ({columns}, {out}) {activation}"
        found.append(
            writer.linear_case(
                name,
                x,
                weight,
                bias=bias,
                activation=activation,
                gate=gate,
                residual=residual,
                expected=expected,
                allowed=allowed,
                gap=gap,
            )
        )
    return found


def in_int8() -> list[bytes]:
    """Return cases of products in int8, with outliers and a token that is not finite.

    In half of the cases, all second digits of the weight are 0, and are left out.
    """
    found = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        rows = int(rng.choice([1, 2, 5, 13, 14, 15, 29, 100]))
        columns, out = (int(n) for n in rng.choice([1, 3, 4, 15, 31, 33, 65, 200], 2))
        x = rng.standard_normal((rows, columns)).astype(np.float32)
        x[:, ::9] *= rng.choice([1, 40, 3000])
        x[rows // 2, columns // 2] = rng.choice([0, 1, np.nan, np.inf])
        weight = rng.standard_normal((columns, out)).astype(np.float32)
        is_exact = seed % 2 == 0
        if is_exact:
            weight = from_rows(*to_rows(weight.T)).T
        digits, more, scales = to_digits(weight.T)
        assert is_exact == (not more.any()) or columns == 1
        expected = multiply_int8(x, weight).astype(np.float64)
        given = {"expected": expected, "allowed": np.zeros_like(expected)}
        name = f"int8 {seed}: ({rows}, {columns}) @ ({columns}, {out})"
        second = None if is_exact else more.T
        found.append(writer.linear_case(name, x, digits.T, more=second, scales=scales, **given))
    return found


def in_blocks() -> list[bytes]:
    """Return cases of products with quantized blocks of each kind."""
    found = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        kind = list(BLOCK_KINDS)[seed % len(BLOCK_KINDS)]
        rows, out = int(rng.choice([1, 2, 5, 7, 13, 70, 130])), int(rng.choice([1, 31, 32, 33, 97]))
        drawing = drawn_blocks(kind, out)
        values = drawing.values()
        x = rng.standard_normal((rows, len(values))).astype(np.float32)
        x[:, :32] *= rng.choice([1e-3, 1, 1e-20, 50])
        bias = rng.standard_normal(out).astype(np.float32)
        used = quantized(x)
        allowed = 4e-6 * (np.abs(used) @ (np.abs(values) + np.abs(drawing.least.T)) + 1)
        given = {"bias": bias, "expected": used @ values + bias, "allowed": allowed}
        name = f"blocks {seed}: {kind} ({rows}, {len(values)}) @ ({len(values)}, {out})"
        found.append(writer.linear_case(name, x, drawing.matrix, **given))
    return found


def training() -> list[bytes]:
    """Return calls of the functions for training; most sizes are no multiples of a tile.

    The expected results are NumPy's.
    """
    found = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        rows = 400 if seed == 0 else int(rng.choice([1, 2, 13, 64, 385]))
        left, right = (int(n) for n in rng.choice([1, 5, 13, 14, 15, 31, 33, 64], 2))
        if seed == 0:  # several pieces for every function
            left = right = 200
        gap, name = int(rng.integers(0, 3)), f"training {seed}"

        def some(*shape: int, gap: int = 0) -> Any:
            drawn = rng.standard_normal((*shape[:-1], shape[-1] + gap)).astype(np.float32)  # noqa: B023
            return drawn[..., : shape[-1]]

        def outputs(*shapes: Any) -> list[Any]:
            return [np.full(shape, 7, np.float32) for shape in shapes]

        x, upstream = some(rows, left, gap=gap), some(rows, right, gap=2 * gap)
        steps = (left + gap, right + 2 * gap)
        a, b = x.astype(np.float64), upstream.astype(np.float64)
        expected = [a.T @ b, a.sum(0), b.sum(0)]
        found.append(
            writer.training_case(
                f"{name} outer", "outer", (rows, left, right, *steps), [x, upstream],
                outputs((left, right), left, right), expected,
            )
        )  # fmt: skip

        count, activation = rows * left, 1 + seed % (len(writer.ACTIVATIONS) - 1)
        kind = writer.ACTIVATIONS[activation]
        flat, grad = some(count) * 3, some(count) if seed % 3 else None
        wide = flat.astype(np.float64)
        expected = [
            activate(wide, kind)
            if grad is None
            else activation_grad(wide, grad.astype(np.float64), kind)
        ]
        found.append(
            writer.training_case(
                f"{name} map", "map", (count, activation), [flat, grad], outputs(count), expected
            )
        )

        centred, weight, scale = seed % 2, some(left), np.abs(some(rows)) + 1
        grad = some(rows, left, gap=1)
        given = [x, weight, scale, grad]
        wides = [it.astype(np.float64) for it in (x, weight, scale[:, None], grad)]
        expected = list(norm_grad(*wides, centred=bool(centred), bias=True))
        found.append(
            writer.training_case(
                f"{name} norm", "norm_grad", (rows, left, left + gap, left + 1, centred), given,
                outputs((rows, left), left, left), expected,
            )
        )  # fmt: skip

        targets, weights = rng.integers(0, right, rows), some(rows) if seed % 2 else None
        expected = list(cross_entropy(b, targets, weights))
        found.append(
            writer.training_case(
                f"{name} loss", "cross_entropy", (rows, right, right + 2 * gap),
                [upstream, targets, weights], outputs(rows, (rows, right)), expected,
            )
        )  # fmt: skip

        states = [some(count), some(count), np.square(some(count))]
        gradient, decays = some(count), some(count) if seed % 2 else None
        wides = [it.astype(np.float64) for it in states]
        adamw(
            wides[0], gradient.astype(np.float64), wides[1], wides[2], rate=0.1, betas=(0.9, 0.98),
            eps=1e-3, decay=0.2 if decays is None else decays.astype(np.float64), step=3,
            factor=0.5,
        )  # fmt: skip
        rest = (0.1, 0.5, 1e-3, 0.9, 0.1, 0.98, 0.02, 0.1 / (1 - 0.9**3), (1 - 0.98**3) ** -0.5)
        found.append(
            writer.training_case(
                f"{name} adamw", "adamw", (count,), [gradient, decays], states, wides,
                settings=(0.2, *rest),
            )
        )  # fmt: skip
        found.append(
            writer.training_case(
                f"{name} squares",
                "squares",
                (count,),
                [flat],
                outputs(1),
                [np.square(wide).sum()[None]],
            )
        )
    return found


ACTIVATE: dict[str | None, Callable[[Any], Any]] = {None: lambda x: x}
ACTIVATE |= {name: np.vectorize(one, otypes=[float]) for name, one in FORMULAS.items()}
