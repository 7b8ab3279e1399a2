"""Tests of the model of AMX's products of tiles: by exact arithmetic, and by the instructions."""

import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from qkv.ops.kernel import compiled

TINY = Fraction(1, 2**126)  # the smallest normal float32
PROGRAM = """
import sys
import numpy as np
from qkv import _kernel
assert _kernel.variants()[0] == ("amx", "tiles"), _kernel.variants()
given = np.load(sys.argv[1])
sums = given["sums"].copy()
for k in range(len(sums)):
    _kernel.multiply_tiles(0, sums[k], given["rows"][k], given["columns"][k])
np.save(sys.argv[2], sums)
"""

pytestmark = pytest.mark.skipif(compiled is None, reason="there is no native kernel")


def _multiply(folder: Path, *, model: bool, **given: np.ndarray) -> np.ndarray:
    """Return the sums of one product for each row of the arrays."""
    np.savez(folder / "given.npz", **given)
    environment = {name: text for name, text in os.environ.items() if name != "QKV_AMX"}
    command = [sys.executable, "-c", PROGRAM, folder / "given.npz", folder / "sums.npy"]
    subprocess.run(command, check=True, env=environment | ({"QKV_AMX": "model"} if model else {}))
    return np.load(folder / "sums.npy")


def _random(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return random numbers: usual ones, and ones near the limits of float32."""
    rng = np.random.default_rng(seed)

    def words(shape: tuple[int, ...]) -> np.ndarray:
        usual = rng.standard_normal(shape).astype(np.float32)
        scale = rng.choice([0, 0, 0, -60, -63, -65, -100, -126, 50], shape[:1])
        return usual * np.ldexp(np.float32(1), scale).reshape(-1, *[1] * (len(shape) - 1))

    def halves() -> np.ndarray:
        found = (words((count, 512)).view(np.uint32) >> 16).astype(np.uint16)
        odd = rng.random(found.shape) < 0.01
        found[odd] = rng.integers(0, 1 << 16, odd.sum())  # NaN, infinity and subnormal numbers too
        return found

    sums = words((count, 256)) * np.where(rng.random((count, 1)) < 0.5, np.float32(1e-30), 1)
    return {"sums": sums, "rows": halves(), "columns": halves()}


def _random_bytes(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return random int8 numbers, and sums near the limits of int32."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(np.int32)
    sums = rng.choice([0, limits.min, limits.max], (count, 256)) + rng.integers(-99, 100, 256)
    rows, columns = (rng.integers(-128, 128, (count, 1024), np.int8) for _ in range(2))
    rows[0], columns[0, :512], columns[0, 512:] = -128, -1, 0  # uint8: 255 and 0
    return {"sums": sums.astype(np.int32).view(np.float32), "rows": rows, "columns": columns}


def _rounded(exact: Fraction, sign: int) -> Fraction | int:
    """Round to 24 bits, ties to even; a result below 2**-126 is the sign of a zero, as an int."""
    if exact == 0:
        return sign
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (exponent - 23)
    found = round(size / unit) * unit
    if found < TINY:
        return -1 if exact < 0 else 1
    return found if exact > 0 else -found


def _exact(word: int) -> Fraction | int:
    """Return the number of a bfloat16; of zeros and subnormal numbers, the sign as an int."""
    if not word & 0x7F80:
        return -1 if word & 0x8000 else 1
    return Fraction(float(np.array(word << 16, np.uint32).view(np.float32)))


def _value(x: Fraction | int) -> Fraction:
    return x if isinstance(x, Fraction) else Fraction(0)


def _negative(x: Fraction | int) -> bool:
    return x < 0


def _add(a: Fraction | int, b: Fraction | int) -> Fraction | int:
    zero = -1 if _negative(a) and _negative(b) else 1
    return _rounded(_value(a) + _value(b), zero)


def test_the_model_equals_exact_arithmetic(tmp_path: Path) -> None:
    given = _random(24, 0)
    for name in ("rows", "columns"):  # infinity and NaN have a test of their own
        odd = (given[name] & 0x7F80) > 0x5C00
        given[name][odd] = 0x3F80
    found = _multiply(tmp_path, model=True, **given)
    rng = np.random.default_rng(1)
    for k, r, c in rng.integers(0, (24, 16, 16), (1500, 3)):
        sums: list[Fraction | int] = [1, 1]
        for pair in range(16):
            for half in range(2):
                a = _exact(int(given["rows"][k, r * 32 + 2 * pair + half]))
                b = _exact(int(given["columns"][k, pair * 32 + 2 * c + half]))
                zero = isinstance(a, int) or isinstance(b, int)
                sign = -1 if _negative(a) != _negative(b) else 1
                product = sign if zero else a * b
                exact = _value(product) + _value(sums[half])
                both = -1 if _negative(product) and _negative(sums[half]) else 1
                sums[half] = _rounded(exact, both if exact == 0 else 1)
        before = float(given["sums"][k, 16 * r + c])
        small = abs(before) < TINY
        start = (-1 if np.signbit(before) else 1) if small else Fraction(before)
        total = _add(start, _add(sums[0], sums[1]))
        wanted = np.float32(np.copysign(0.0, total) if isinstance(total, int) else float(total))
        assert found[k, 16 * r + c].tobytes() == wanted.tobytes(), (k, r, c)


def test_sums_of_int8_products_are_exact_modulo_2_to_the_32nd(tmp_path: Path) -> None:
    given = _random_bytes(20, 3)
    found = _multiply(tmp_path, model=True, **given).view(np.int32).reshape(-1, 16, 16)
    rows = given["rows"].reshape(-1, 16, 64).astype(np.int64)
    columns = given["columns"].view(np.uint8).reshape(-1, 16, 16, 4).swapaxes(2, 3)
    before = given["sums"].view(np.int32).reshape(-1, 16, 16)
    exact = before + rows @ columns.reshape(-1, 64, 16).astype(np.int64)
    assert (np.abs(exact) > 2**31).any()
    np.testing.assert_array_equal(found, exact.astype(np.int32))


def test_infinity_and_nan(tmp_path: Path) -> None:
    given = {
        "sums": np.zeros((1, 256), np.float32),
        "rows": np.zeros((1, 512), np.uint16),
        "columns": np.zeros((1, 512), np.uint16),
    }
    given["columns"][0, 0:4] = 0x3F80, 0x3F80, 0, 0  # two ones in column 0, and zeros in column 1
    # a quiet NaN; a signalling NaN; infinity; infinity - infinity; a denormal number
    for row, pair in enumerate([(0xFFC1, 0), (0x7F81, 0), (0x7F80, 0), (0x7F80, 0xFF80), (1, 0)]):
        given["rows"][0, 32 * row : 32 * row + 2] = pair
    given["sums"][0, 16 * 5] = np.array(0x7FA00000, np.uint32).view(np.float32)
    found = _multiply(tmp_path, model=True, **given).view(np.uint32)[0].reshape(16, 16)
    assert [hex(x) for x in found[:6, 0]] == [
        "0xffc10000", "0x7fc10000", "0x7f800000", "0xffc00000", "0x0", "0x7fe00000",
    ]  # fmt: skip
    assert [hex(x) for x in found[:4, 1]] == [
        "0xffc10000",
        "0x7fc10000",
        "0xffc00000",
        "0xffc00000",
    ]


def test_a_number_is_tiny_if_it_is_below_the_normal_numbers_after_rounding(tmp_path: Path) -> None:
    """2**-126 less 0.6 or 0.4 of the distance to the number below it, in 24 bits."""
    given = {
        "sums": np.zeros((1, 256), np.float32),
        "rows": np.zeros((1, 512), np.float32),
        "columns": np.zeros((1, 512), np.float32),
    }
    given["columns"][0, [0, 32]] = 2.0**-63, 2.0**-76
    for row, part in enumerate((0.6015625, 0.3984375)):
        given["rows"][0, 32 * row : 32 * row + 3 : 2] = 2.0**-63, -part * 2.0**-74
    for name in ("rows", "columns"):
        given[name] = (given[name].view(np.uint32) >> 16).astype(np.uint16)
    found = _multiply(tmp_path, model=True, **given)[0].reshape(16, 16)
    assert found[:2, 0].tolist() == [0, 2.0**-126]


@pytest.mark.parametrize("draw", [_random, _random_bytes])
def test_the_instruction_equals_the_model(
    tmp_path: Path, draw: Callable[[int, int], dict[str, np.ndarray]]
) -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not (cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text()):
        pytest.skip("this processor has no AMX")
    given = draw(2000, 2)
    ours, theirs = (_multiply(tmp_path, model=model, **given) for model in (True, False))
    assert ours.tobytes() == theirs.tobytes()
