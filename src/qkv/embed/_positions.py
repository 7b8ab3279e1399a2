"""Position vectors, which are added to token vectors, and the slopes of ALiBi."""

import numpy as np

from qkv._argument_errors import public_call, public_method, value_error
from qkv.arrays import Array, ArrayLike, whole_number
from qkv.embed._table import fixed_table, positive_number, take_rows


@public_call("sinusoidal_positions")
def sinusoidal_positions(length: int, dim: int, base: float = 10000.0) -> Array:
    """Return a vector for each position: sines and cosines with increasing periods.

    Column 2i is `sin(p / base**(2i / dim))`, and column 2i + 1 is the cosine of the same angle. If
    `dim` is odd, the last column is a sine.

    Args:
        length: the number of positions, which may be 0. The first position is 0.
        dim: the size of a vector.
        base: determines the periods. With a larger base, the last columns have longer periods.

    Returns:
        (length, dim) float64.

    Raises:
        TypeError: `length` or `dim` is not a whole number, or `base` is not a number.
        ValueError: `length` is negative, `dim` is less than 1, or `base` is not a finite positive
            number.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, section 3.5.

    Example:
        >>> sinusoidal_positions(3, 4).round(3)
        array([[ 0.   ,  1.   ,  0.   ,  1.   ],
               [ 0.841,  0.54 ,  0.01 ,  1.   ],
               [ 0.909, -0.416,  0.02 ,  1.   ]])
    """
    length = whole_number(length, name="length", least=0)
    dim = whole_number(dim, name="dim", least=1)
    base = positive_number(base, name="base")
    turns = base ** (np.arange(0, dim, 2) / dim)
    angle = np.arange(length)[:, None] / turns  # (length, ceil(dim / 2))
    table = np.empty((length, dim))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : dim // 2])
    return table


class LearnedPositions:
    """A learned table with a row for each position.

    Args:
        weight: (rows, dim), floats or integers. A weight that is not read-only is copied.
        offset: the row of position 0. BERT's offset is 0. RoBERTa's offset is 2, because the first
            two rows of its table belong to padding.

    Raises:
        TypeError: `weight` does not hold numbers, or `offset` is not a whole number.
        ValueError: `weight` is not (rows, dim), or has no row for position 0.

    Source:
        Devlin et al. 2019, BERT, section 3 (position embeddings).

    Example:
        >>> positions = LearnedPositions([[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]], offset=1)
        >>> len(positions)
        2
        >>> positions(2)
        array([[1., 2.],
               [3., 4.]])
    """

    @public_method
    def __init__(self, weight: ArrayLike, *, offset: int = 0) -> None:
        self.weight = fixed_table(weight)
        self.offset = whole_number(offset, name="offset", least=0)
        if self.offset >= len(self.weight):
            raise value_error(
                f"offset is {self.offset} and weight has {len(self.weight)} rows; "
                "pass an offset that leaves at least one row"
            )

    def __len__(self) -> int:
        """The number of positions, which is the maximum number of tokens in a text."""
        return len(self.weight) - self.offset

    @public_method
    def __call__(self, length: int) -> Array:
        """Return the rows of positions 0 to length - 1 as a read-only view, (length, dim).

        Raises:
            TypeError: `length` is not a whole number.
            ValueError: `length` is negative or larger than the number of positions.
        """
        length = whole_number(length, name="length", least=0)
        if length > len(self):
            raise value_error(
                f"the text has {length} tokens, but the table has only {len(self)} "
                "positions: truncate the text"
            )
        return self.weight[self.offset : self.offset + length]

    @public_method
    def rows(self, positions: ArrayLike) -> Array:
        """Return a copy of the rows (..., dim) for positions (...).

        Raises:
            TypeError: `positions` are not integers.
            ValueError: a position has no row.
        """
        table = self.weight[self.offset :]
        return take_rows(table, positions, name="position")


@public_call("alibi_slopes")
def alibi_slopes(num_heads: int) -> Array:
    """Return the slope of each head: the decrease of its scores per unit of distance.

    If the number n of heads is a power of two, head h has the slope `2**(-8 * (h + 1) / n)`. For
    12 heads, the first 8 slopes are `alibi_slopes(8)`, and the last 4 slopes are
    `alibi_slopes(16)[0:8:2]`. The same rule gives the slopes for every number of heads that is not
    a power of two, as in the authors' code.

    Args:
        num_heads: the number of heads, at least 1.

    Returns:
        (num_heads,) float64. Pass the array to `qkv.attention` as the argument `alibi_slopes`.

    Raises:
        TypeError: `num_heads` is not a whole number.
        ValueError: `num_heads` is less than 1.

    Source:
        Press et al. 2022, Train Short, Test Long, section 3, and the authors' `get_slopes`.

    Example:
        >>> alibi_slopes(4)
        array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    """
    heads = whole_number(num_heads, name="num_heads", least=1)
    lower = 1 << (heads.bit_length() - 1)  # the largest power of two up to num_heads
    return np.concatenate([_geometric(lower), _geometric(2 * lower)[0::2][: heads - lower]])


def _geometric(heads: int) -> Array:
    slopes: Array = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return slopes
