"""Random matrices in quantized blocks, and the rounding of rows that are multiplied by them."""

from typing import NamedTuple

import numpy as np

from qkv.ops._blocks import BlockMatrix, blocks_size, pack_blocks
from qkv.ops.packing import large_memory

from .support import Array

WIDTHS = {"Q4_0": 96, "Q4_1": 96, "Q8_0": 96, "Q4_K": 512, "Q6_K": 512}
RANGES = {"Q4_0": (-8, 8), "Q4_1": (0, 16), "Q8_0": (-128, 128), "Q4_K": (0, 16), "Q6_K": (-32, 32)}


class Drawn(NamedTuple):
    matrix: BlockMatrix  # (width, rows)
    whole: Array  # (rows, width), the whole numbers in the blocks
    scale: Array  # (rows, width), the scale of each number
    least: Array  # (rows, width), what is added to the products

    def values(self) -> Array:
        return (self.whole * self.scale + self.least).T


def drawn(kind: str, rows: int = 70, width: int = 0, *, plain: bool = False) -> Drawn:
    """Draw a matrix in blocks; if `plain`, all scales are 1 and all minima are 0."""
    rng, width = np.random.default_rng(0), width or WIDTHS[kind]
    size, signed = (256 if kind.endswith("K") else 32), kind == "Q6_K"
    units, parts = width // size, size // 32
    low, high = RANGES[kind]
    whole = rng.integers(low, high, (rows, units, parts, 32))
    bits = (whole - low).astype(np.uint8)
    fields = {"q": bits[..., :16] & 15 | (bits[..., 16:] & 15) << 4, "d": np.ones((rows, units))}
    if kind == "Q8_0":
        fields["q"] = whole.astype(np.int8)
    if signed:
        fields["high"] = bits >> 4
    if not plain:
        fields["d"] = rng.normal(0, 0.1, (rows, units))
    if kind in ("Q4_1", "Q4_K"):
        fields["m"] = rng.normal(0, 0 if plain else 0.1, (rows, units))
    fields |= {n: field.astype(np.float16) for n, field in fields.items() if n in ("d", "m")}
    scale, least = (
        np.repeat(fields.get(n, np.zeros((rows, units))).astype(float), size, axis=1) for n in "dm"
    )
    if kind.endswith("K"):
        between = (1, 2) if plain else (-128, 128) if signed else (0, 64)
        scales = rng.integers(*between, (rows, units, parts, 2) if signed else (rows, units, parts))
        fields["scales"] = scales.astype(np.int8 if signed else np.uint8)
        scale *= np.repeat(scales.reshape(rows, -1), 16 if signed else 32, axis=1)
    if kind == "Q4_K":
        fields["minima"] = rng.integers(0, 64, (rows, units, parts)).astype(np.uint8)
        least *= -np.repeat(fields["minima"].reshape(rows, -1).astype(float), 32, axis=1)
    memory = large_memory(blocks_size(kind, rows, width))
    memory[:] = np.nan  # `pack_blocks` must write to all of it
    pack_blocks(kind, memory, rows, lambda a, b: {n: field[a:b] for n, field in fields.items()})
    memory.setflags(write=False)
    matrix = BlockMatrix(kind, memory, rows, width, transposed=True)
    return Drawn(matrix, whole.reshape(rows, width), scale, least)


def quantized(x: Array) -> Array:
    """Round each block of 32 numbers to multiples of its largest number / 32767."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    factor = np.divide(np.float32(32767), largest, out=np.zeros_like(largest), where=largest > 0)
    steps = np.rint(blocks * factor).astype(np.float64)
    return (steps * (largest / np.float32(32767)).astype(np.float64)).reshape(x.shape)
