"""Tests of relative position biases, against the rule in plain loops."""

import math

import numpy as np
import pytest

from qkv.models.network._relative_bias import Buckets


def bucket(distance: int, count: int, furthest: int, both_ways: bool) -> int:
    """Return the bucket of one distance by the rule of T5's paper and code."""
    after = 0
    if both_ways:
        count //= 2
        after = count if distance > 0 else 0
        away = abs(distance)
    else:
        away = max(-distance, 0)
    near = count // 2
    if away < near:
        return after + away
    steps = math.log(away / near) / math.log(furthest / near) * (count - near)
    return after + min(near + int(steps + 1e-9), count - 1)  # at a boundary, the farther bucket


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("count", "furthest"), [(32, 128), (32, 64), (8, 20), (4, 8)])
def test_bias_of_every_query_key_pair_matches_t5(count, furthest, both_ways):
    table = np.random.default_rng(0).normal(size=(count, 3))
    bias = Buckets(count, furthest, both_ways).with_table(table)
    for length, keys, q_offset in ((5, 5, 0), (1, 150, 149), (150, 1, 0), (7, 200, 90), (3, 2, 5)):
        found = bias(length, keys, q_offset)
        assert found.shape == (1, 3, length, keys)
        for query in range(length):
            for key in range(keys):
                row = bucket(key - query - q_offset, count, furthest, both_ways)
                np.testing.assert_array_equal(found[0, :, query, key], table[row])


def test_one_bias_is_stored_per_distance():
    """For a text of 4,096 tokens, each head stores one bias for each distance.

    No head stores one bias for each pair of tokens.
    """
    bias = Buckets(32, 128).with_table(np.zeros((32, 12), np.float32))
    found = bias(4096, 4096)
    assert found.base is not None
    assert found.strides == (found.strides[0], 8191 * 4, -4, 4)
