"""Tests of the task `positions`: right and wrong tables in the style of a learner."""

import math

import numpy as np
import pytest

from qkv import sinusoidal_positions
from qkv_marking import check
from qkv_marking.tasks import TASKS

# -- right answers --------------------------------------------------------------------------------


def whole_arrays(length, dim):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
    table = np.zeros((length, dim))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : dim // 2])
    return table


def loops(length, dim):
    table = []
    for position in range(length):
        row = []
        for column in range(dim):
            angle = position / math.pow(10000, 2 * (column // 2) / dim)
            row.append(math.cos(angle) if column % 2 else math.sin(angle))
        table.append(row)
    return table


def by_logarithm(max_len, d_model):
    """Use exp and log, as in the Annotated Transformer; dim must be even."""
    position = np.arange(max_len)[:, None]
    speed = np.exp(np.arange(0, d_model, 2) * -(np.log(10000.0) / d_model))
    table = np.zeros((max_len, d_model), dtype=np.float32)
    table[:, 0::2] = np.sin(position * speed)
    table[:, 1::2] = np.cos(position * speed)[:, : d_model // 2]
    return table


def complex_numbers(length, dim):
    pairs = -(-dim // 2)
    turn = np.exp(1j * np.outer(np.arange(length), 10000.0 ** (-2 * np.arange(pairs) / dim)))
    return np.stack([turn.imag, turn.real], axis=-1).reshape(length, -1)[:, :dim]


@pytest.mark.parametrize("function", [whole_arrays, loops, by_logarithm, complex_numbers])
def test_a_right_table_gets_all_points(function):
    result = check(function, task="positions")
    assert (result.passed, result.points) == (True, 10), str(result)
    assert (result.fragile, result.conventions) == ((), ())
    assert "is right." in result.message


# -- wrong answers --------------------------------------------------------------------------------


def made(angle, dim):
    """Return a table with the sine and the cosine of each angle in neighbouring columns."""
    table = np.zeros((len(angle), dim))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : dim // 2])
    return table


def from_one(length, dim):
    return made(np.arange(1, length + 1)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim), dim)


def exponent_half(length, dim):
    pair = np.arange(-(-dim // 2))
    return made(np.arange(length)[:, None] / 10000 ** (pair / dim), dim)


def exponent_twice(length, dim):
    i = np.arange(0, dim, 2)
    return made(np.arange(length)[:, None] / 10000 ** (2 * i / dim), dim)


def exponent_whole(length, dim):
    i = np.arange(0, dim, 2)
    return made(np.arange(length)[:, None] / 10000 ** (i // dim), dim)


def exponent_each(length, dim):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(dim) / dim)
    table = np.zeros((length, dim))
    table[:, 0::2] = np.sin(angle[:, 0::2])
    table[:, 1::2] = np.cos(angle[:, 1::2])
    return table


def exponent_each_twice(length, dim):
    """Use the exponent 2i / dim with the column number i instead of the pair number i."""
    return [
        [(math.cos if i % 2 else math.sin)(position / 10000 ** (2 * i / dim)) for i in range(dim)]
        for position in range(length)
    ]


SPEEDS = 10000.0 ** (-np.arange(0, 32, 2) / 32)  # the speeds of the lesson, for 32 columns


def speeds_from_outside(length, dim):
    table = np.zeros((length, dim))
    for position in range(length):
        for pair in range(dim // 2):
            table[position, 2 * pair] = np.sin(position * SPEEDS[pair])
            table[position, 2 * pair + 1] = np.cos(position * SPEEDS[pair])
    return table


def multiplied(length, dim):
    return made(np.arange(length)[:, None] * 10000 ** (np.arange(0, dim, 2) / dim), dim)


def one_speed(length, dim):
    return made(np.arange(length)[:, None] * np.ones(-(-dim // 2)), dim)


def only_sine(length, dim):
    column = np.arange(dim)
    return np.sin(np.arange(length)[:, None] / 10000 ** ((column - column % 2) / dim))


def transposed(length, dim):
    return whole_arrays(length, dim).T


def base_1000(length, dim):
    return made(np.arange(length)[:, None] / 1000 ** (np.arange(0, dim, 2) / dim), dim)


def base_4096(length, dim):
    return made(np.arange(length)[:, None] / 4096 ** (np.arange(0, dim, 2) / dim), dim)


def halves(length, dim):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
    return np.concatenate([np.sin(angle), np.cos(angle[:, : dim // 2])], axis=1)


def cosine_first(length, dim):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
    table = np.zeros((length, dim))
    table[:, 0::2] = np.cos(angle)
    table[:, 1::2] = np.sin(angle[:, : dim // 2])
    return table


def of_tensor2tensor(length, dim):
    """Put all sines before all cosines, with exponents that reach 1."""
    pairs = dim // 2
    step = math.log(10000) / max(1, pairs - 1)
    angle = np.arange(length)[:, None] * np.exp(-step * np.arange(pairs))
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    return np.pad(table, [(0, 0), (0, dim % 2)])


def even_only(length, dim):
    angle = np.arange(length)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
    table = np.zeros((length, dim))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)
    return table


def from_one_and_multiplied(length, dim):
    return made(np.arange(1, length + 1)[:, None] * 10000 ** (np.arange(0, dim, 2) / dim), dim)


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (from_one, "positions-from-one"),
        (exponent_half, "positions-exponent-half"),
        (exponent_twice, "positions-exponent-twice"),
        (exponent_whole, "positions-one-speed"),
        (exponent_each, "positions-exponent-each"),
        (exponent_each_twice, "positions-exponent-each"),
        (speeds_from_outside, "positions-other-dim"),
        (multiplied, "positions-multiplied"),
        (one_speed, "positions-one-speed"),
        (only_sine, "positions-only-sine"),
        (transposed, "positions-transposed"),
        (base_1000, "positions-base"),
        (base_4096, "positions-base"),
    ],
)
def test_a_mistake_is_told_by_its_name(function, key):
    result = check(function, task="positions")
    assert (result.mistakes, result.passed, result.points < 9) == ((key,), False, True), str(result)
    assert len(result.hint) == 3
    assert all(result.hint)


def test_the_base_is_read_from_the_table():
    assert "as if the base were 4096," in check(base_4096, task="positions").message


def test_the_other_size_is_read_from_the_table():
    said = check(speeds_from_outside, task="positions").message
    assert "as fast as in a table with 32 columns" in said


def test_two_mistakes_are_told_apart():
    found = check(from_one_and_multiplied, task="positions")
    assert {*found.mistakes} == {"positions-from-one", "positions-multiplied"}
    assert 2 <= found.points <= 8


@pytest.mark.parametrize(
    ("function", "keys"),
    [
        (halves, {"positions-halves"}),
        (cosine_first, {"positions-cosine-first"}),
        (of_tensor2tensor, {"positions-halves", "positions-to-the-end"}),
    ],
)
def test_another_order_of_columns_is_wrong(function, keys):
    result = check(function, task="positions")
    assert {*result.mistakes} == keys, str(result)
    assert 6 - 2 * len(keys) <= result.points <= 8
    assert "the task asks for" in result.message


@pytest.mark.parametrize("contained", [lambda table: (table,), lambda table: {"table": table}])
def test_a_table_in_a_container_has_the_wrong_type(contained):
    def function(length, dim):
        return contained(sinusoidal_positions(length, dim))

    result = TASKS["positions"].mark(function, "")
    assert (result.mistakes, result.points) == (("wrong-type",), 0)


def test_a_table_of_even_width_only_is_fragile():
    result = check(even_only, task="positions")
    assert (result.passed, result.fragile, result.points) == (True, ("positions-odd",), 9)
    assert result.example["dim"] == 3


def test_the_example_is_the_smallest_failing_table():
    # two columns have only the exponent 0, so a wrong exponent does not show; four columns show it
    example = check(exponent_twice, task="positions").example
    assert (example["length"], example["dim"]) == (3, 4)
    assert np.allclose(example["right"], sinusoidal_positions(3, 4))
    example = check(from_one, task="positions").example
    assert (example["length"], example["dim"]) == (2, 2)
    assert np.allclose(example["right"], [[0, 1], [math.sin(1), math.cos(1)]])
    assert np.allclose(example["yours"][0], [math.sin(1), math.cos(1)])


def test_a_table_of_random_numbers_is_random():
    def drawn(length, dim):
        return np.random.default_rng().normal(size=(length, dim))

    assert check(drawn, task="positions").mistakes == ("random",)


def test_an_unrecognized_table_gets_no_points():
    result = check(lambda length, dim: np.ones((length, dim)) * length, task="positions")
    assert (result.mistakes, result.points) == (("unknown",), 0)


def test_a_function_of_other_parameters_is_a_type_error():
    with pytest.raises(TypeError, match=r"check: <?[\w ]+>?\(length, dim\) is called, but"):
        check(lambda length: length, task="positions")
