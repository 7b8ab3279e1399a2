"""Tests of the task `positions`: what its verdicts say."""

import math

import numpy as np

from qkv import sinusoidal_positions
from qkv_marking import check

from ..written import is_flawless, marked

# -- right answers --------------------------------------------------------------------------------


def complex_numbers(length, dim):
    pairs = -(-dim // 2)
    turn = np.exp(1j * np.outer(np.arange(length), 10000.0 ** (-2 * np.arange(pairs) / dim)))
    return np.stack([turn.imag, turn.real], axis=-1).reshape(length, -1)[:, :dim]


def test_a_right_table_gets_all_points():
    result = check(complex_numbers, task="positions")
    assert is_flawless(result), str(result)
    assert "is right." in result.message


# -- wrong answers --------------------------------------------------------------------------------

LOOPS = "positions/loops"


def of_tensor2tensor(length, dim):
    """Put all sines before all cosines, with exponents that reach 1."""
    pairs = dim // 2
    step = math.log(10000) / max(1, pairs - 1)
    angle = np.arange(length)[:, None] * np.exp(-step * np.arange(pairs))
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    return np.pad(table, [(0, 0), (0, dim % 2)])


def test_the_base_is_read_from_the_table():
    assert "as if the base were 4096," in marked(LOOPS, "10000 => 4096").message


def test_the_other_size_is_read_from_the_table():
    said = marked(LOOPS, "2 * pair / d => 2 * pair / 32").message
    assert "as fast as in a table with 32 columns" in said


def test_another_order_of_columns_is_wrong():
    result = check(of_tensor2tensor, task="positions")
    assert {*result.mistakes} == {"positions-halves", "positions-to-the-end"}, str(result)
    assert 2 <= result.points <= 8
    assert "the task asks for" in result.message


def test_a_table_of_even_width_only_is_fragile():
    result = marked("positions/arrays", "angle[:, : dim // 2] => angle")
    assert result.example["dim"] == 3


def test_the_example_is_the_smallest_failing_table():
    # two columns have only the exponent 0, so a wrong exponent does not show; four columns show it
    example = marked(LOOPS, "2 * pair / d => 4 * pair / d").example
    assert (example["length"], example["dim"]) == (3, 4)
    assert np.allclose(example["right"], sinusoidal_positions(3, 4))
    example = marked(LOOPS, "position / 10000 => (position + 1) / 10000").example
    assert (example["length"], example["dim"]) == (2, 2)
    assert np.allclose(example["right"], [[0, 1], [math.sin(1), math.cos(1)]])
    assert np.allclose(example["yours"][0], [math.sin(1), math.cos(1)])


def test_an_unrecognized_table_gets_no_points():
    result = check(lambda length, dim: np.ones((length, dim)) * length, task="positions")
    assert (result.mistakes, result.points) == (("unknown",), 0)
