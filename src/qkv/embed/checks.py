"""What the tables and formulas of this package check alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.arrays import Array, as_array, is_float, native, real_number


def positive_number(value: Any, *, call: str, name: str) -> float:
    """`value` as a float that is finite and greater than 0."""
    number = real_number(value, call=call, name=name)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{call}: {name} is {number}: it must be finite and greater than 0")
    return number


def fixed_table(weight: Any, *, call: str, dtype: Any = None) -> Array:
    """`weight` as a table (rows, dim) that nobody can write to."""
    table = as_array(weight, call=call, name="weight")
    if table.ndim != 2 or table.shape[1] == 0:
        raise ValueError(f"{call}: weight has shape {table.shape}: a table is (rows, dim)")
    if not is_float(table.dtype) and table.dtype.kind not in "iu":
        raise TypeError(f"{call}: weight is {table.dtype}: give floats or integers")
    kind = native(table.dtype) if dtype is None else dtype
    table = table.astype(kind, copy=table.flags.writeable)
    table.setflags(write=False)
    return table


def take_rows(table: Array, ids: Any, *, call: str, name: str) -> Array:
    """The rows of `table` (N, dim) at `ids` (...), which are 0 ... N-1: (..., dim), a copy."""
    wanted = as_array(ids, call=call, name=f"{name}s")
    if wanted.size == 0:
        wanted = wanted.astype(np.int64)
    if wanted.dtype.kind not in "iu":
        raise TypeError(f"{call}: {name}s are {wanted.dtype}: give integers")
    outside = wanted[(wanted < 0) | (wanted >= len(table))]
    if outside.size:
        shown = ", ".join(str(value) for value in np.unique(outside)[:5])
        raise ValueError(
            f"{call}: no row for {name} {shown}: the table has {len(table)} rows, "
            f"so {name}s run from 0 to {len(table) - 1}"
        )
    return table[wanted]
