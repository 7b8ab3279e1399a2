"""Packing against what was packed."""

import base64

import numpy as np
import pytest

from qkv.see.page import packing

from ..support import unpack


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_packed_numbers_are_those_of_float32(kind: type) -> None:
    values = np.array([[0.28652, -np.inf, np.nan], [1e-7, 1.0005, 6e4]]).astype(kind)
    np.testing.assert_array_equal(unpack(packing.pack_numbers(values)), np.float32(values))
    assert np.isinf(unpack(packing.pack_numbers(np.array([1e300])))).all()


def test_packed_shares_show_as_the_weights_do() -> None:
    rng = np.random.default_rng(0)
    ties = np.arange(2001, dtype=np.float32) / 2000  # among them an eighth, in two digits
    near = [np.abs(np.nextafter(ties, np.float32(side))) for side in (-1, 2)]
    weights = np.concatenate([ties, *near, rng.random(2000) ** 5]).astype(np.float32).clip(0, 1)
    packed = packing.pack_shares(weights)
    found = unpack(packed) / packed["per"]
    for digits in (1, 2, 3, 4):
        shown = [[f"{x:.{digits}f}" for x in part.tolist()] for part in (found, weights)]
        assert shown[0] == shown[1]


def test_bits_and_indices() -> None:
    flags = np.random.default_rng(0).random((2, 3, 5)) < 0.4
    packed = packing.pack_bits(flags)
    data = np.frombuffer(base64.b64decode(packed["b64"]), np.uint8)
    assert (np.unpackbits(data)[: flags.size].reshape(packed["shape"]) == flags).all()
    assert packed["bits"] == 8
    short = packing.pack_indices(np.array([0, 65534, -1]), 65535)
    assert (short["bits"], unpack(short).tolist()) == (16, [0, 65534, 65535])
    wide = packing.pack_indices(np.array([65535, -1]), 65536)
    assert (wide["bits"], unpack(wide).tolist()) == (32, [65535, 2**32 - 1])


def test_bits_hold_for_all_heads_only_where_they_do() -> None:
    flags = np.zeros((2, 3, 2, 2), dtype=bool)
    assert packing.pack_flags(flags) is None
    flags[1, 2, 0, 1] = True
    assert packing.pack_flags(flags)["shape"] == [2, 3, 2, 2]
    flags[1, :, 0, 1] = True
    assert packing.pack_flags(flags)["shape"] == [2, 1, 2, 2]
    flags[0] = flags[1]
    assert packing.pack_flags(flags)["shape"] == [1, 1, 2, 2]
