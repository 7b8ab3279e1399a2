"""The inputs of the tests of attention: small arrays with short numbers, smallest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.draws import by_seed, generator

NAMES = {"qkv": ("query", "key", "value"), "x,w_q,w_k,w_v": ("x", "w_q", "w_k", "w_v")}
SIZES = {"qkv": "other lengths and sizes", "x,w_q,w_k,w_v": "values of another size"}
CORE = "scores, scaling, softmax, values"  # as many queries as keys, d == dv: most mistakes show


@dataclass(frozen=True)
class Case:
    """One call of the function: its arrays by name, and its options."""

    arrays: dict[str, Array]
    mask: Array | None = None
    causal: bool = False
    q_offset: int | None = None
    heads: int = 1
    output: Array | None = None  # w_o, (heads * dv, D)

    @property
    def visible(self) -> Array | None:
        """Where the mask lets a query see a key: where it is True, or finite if it is added."""
        if self.mask is None or self.mask.dtype == bool:
            return self.mask
        return np.isfinite(self.mask)

    def with_added_mask(self) -> Case:
        """Return this case with a mask to add to the scores: 0, and -inf where a key is masked."""
        if self.mask is None or self.mask.dtype != bool:
            return self
        return replace(self, mask=np.where(self.mask, 0.0, -np.inf))

    def shown(self) -> dict[str, Any]:
        """Return what a learner needs to make this call by hand."""
        options = {
            "mask": self.mask,
            "is_causal": self.causal or None,
            "q_offset": self.q_offset,
            "w_o": self.output,
            "num_heads": self.heads if self.heads > 1 else None,
        }
        return self.arrays | {name: a for name, a in options.items() if a is not None}

    def at_rank(self, rank: int) -> Case:
        """Add leading dimensions of 1, for a function that takes batches only."""
        arrays = {
            name: a if name.startswith("w_") else _lift(a, rank) for name, a in self.arrays.items()
        }
        mask = self.mask
        if mask is not None:
            mask = _lift(mask, rank - (mask.ndim == 1))  # a mask of keys has one dimension less
        return replace(self, arrays=arrays, mask=mask)

    def permuted(self) -> Case:
        """Reverse the order of keys and values, or of the tokens of x."""
        ordered = ("key", "value", "x")
        arrays = {n: a[..., ::-1, :].copy() if n in ordered else a for n, a in self.arrays.items()}
        return replace(self, arrays=arrays)


def _lift(a: Array, rank: int) -> Array:
    """Give an array `rank` dimensions, of size 1 where dimensions are missing."""
    missing = max(0, rank - a.ndim)
    return a.reshape(a.shape[:-2] + (1,) * missing + a.shape[-2:])


def cases(signature: str) -> dict[str, list[Case]]:
    """Return the cases of each test by the name of the test, smallest first."""
    own_cases = _of_query_key_value() if signature == "qkv" else _of_word_vectors()
    two, _, three, *_ = own_cases[CORE]
    batch = own_cases["batches"][-1]
    whole = {
        name: a if name.startswith("w_") else a.astype(np.int64) for name, a in two.arrays.items()
    }
    diagonal = np.eye(2, dtype=bool)  # each query sees its own key
    lopsided = np.array([[True, False, True], [True, True, False], [True, False, False]])
    masks = [replace(two, mask=diagonal), replace(three, mask=lopsided)]
    if signature == "qkv":
        masks += [replace(case, mask=lopsided[:2]) for case in drawn("qkv", 140, (2, 3, 2, 2))]
    return {
        **own_cases,
        "whole numbers": [Case(whole)],
        "one key": drawn(signature, 160, (1, 1, 2, 2)),
        # every query sees a key, also if the mask is inverted
        "a mask": masks,
        "a mask of keys": [replace(two, mask=diagonal[1]), replace(three, mask=lopsided[0])],
        "a row masked out": [replace(two, mask=np.array([[True, True], [False, False]]))],
        "a mask on a batch": [replace(batch, mask=lopsided)],
        "a causal mask": [replace(two, causal=True), replace(three, causal=True)],
        "a causal mask on a batch": [replace(batch, causal=True)],
        "both masks together": [replace(three, mask=lopsided, causal=True)],
    }


def _of_query_key_value() -> dict[str, list[Case]]:
    """Return the cases that only these three arrays have, or that other cases are made from."""
    smallest = _case("qkv", [[1, 1], [2, 1]], [[1, 2], [0, 1]], [[1, 0], [3, 2]])
    if by_seed():
        (smallest,) = drawn("qkv", 0, (2, 2, 2, 2))
    sizes = [(1, 2, 2, 2), (2, 3, 2, 2), (3, 2, 2, 2), (2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)]
    cached = drawn("qkv", 150, (1, 2, 2, 2), (2, 3, 2, 2), (1, 3, 2, 2))
    return {
        CORE: [smallest, *drawn("qkv", 10, (3, 3, 2, 2), (3, 3, 4, 4), (3, 3, 5, 5))],
        SIZES["qkv"]: drawn("qkv", 50, *sizes, apart=5),
        # scores [[1000, 0], [-1000, 0]]: exp overflows, and a row far below the largest underflows
        "scores of 1000": [_case("qkv", [[1000], [-1000]], [[1], [0]], [[1], [2]])],
        # in 2 x 2 x 2, transposing too many axes changes no shape
        "batches": drawn("qkv", 100, (2, 2, 2, 2), (3, 3, 4, 4), batch=(2,)),
        # as with a cache; the queries of the last case are not at the end of the keys
        "q_offset": [replace(case, causal=True, q_offset=1) for case in cached],
    }


def _of_word_vectors() -> dict[str, list[Case]]:
    """Return these cases for x and the weights of its projections."""
    names = "x,w_q,w_k,w_v"
    smallest = [[[1, 0], [1, 2]], [[1, 1], [0, 1]], [[1, -1], [0, 1]], [[1, 2], [1, 0]]]
    two, sizes = _case(names, *smallest), [(2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)]
    if by_seed():
        (two,) = drawn(names, 20, (2, 2, 2, 2))
    return {
        CORE: [two, *drawn(names, 30, (2, 3, 3, 3), (3, 4, 2, 2), (3, 4, 5, 5))],
        SIZES[names]: drawn(names, 80, *sizes, apart=5),
        "scores of 1000": [_case(names, [[1, 1], [-1, 0]], [[1000], [0]], [[0], [1]], [[1], [1]])],
        "batches": drawn(names, 120, (2, 2, 2, 2), (3, 4, 4, 4), batch=(2,)),
        # in the second case, the heads together are wider than x
        "two heads": [replace(case, heads=2) for case in (two, *drawn(names, 180, (3, 3, 4, 4)))],
    }


def long_ones(length: int) -> list[Case]:
    """Return two queries of many keys, whose scores rise and fall, and many queries of two keys."""
    both, long = np.array([[1.0], [-1.0]]), np.arange(length)[:, None] / 8
    value = np.random.default_rng(900).integers(-4, 5, (length, 1)) / 2
    return [_case("qkv", both, long, value), _case("qkv", long, both, value[:2])]


def large_ones(length: int) -> Case:
    """Return many keys, whose scores fall from 2000 to 1000, and rise from -2000 to -1000."""
    key = np.where(np.arange(length) < (length + 1) // 2, 2, 1)[:, None]
    return _case("qkv", [[1000], [-1000]], key, np.arange(length)[:, None])


def _case(signature: str, *rows: Any) -> Case:
    """Return a call with these arrays."""
    arrays = [np.array(row, dtype=np.float64) for row in rows]
    return Case(dict(zip(NAMES[signature], arrays, strict=True)))


def drawn(
    signature: str,
    seed: int,
    *sizes: tuple[int, int, int, int],
    apart: int = 10,
    batch: tuple[int, ...] = (),
) -> list[Case]:
    """Draw multiples of 1/2 between -2 and 2: short to print, exact in float32.

    Args:
        signature: names the arrays, with sizes (L, S, d, dv), or (T, D, d, dv) for x.
        seed: seeds the first array of the first case; its other arrays get the next seeds.
        sizes: the four sizes of each case.
        apart: the distance between the seeds of two cases.
        batch: the leading dimensions.
    """
    drawn_cases = []
    for first, (a, b, d, dv) in enumerate(sizes):
        shapes = [(*batch, a, d), (*batch, b, d), (*batch, b, dv)]
        if signature != "qkv":
            shapes = [(*batch, a, b), (b, d), (b, d), (b, dv)]
        rngs = (generator(seed + first * apart + n) for n in range(len(shapes)))
        numbers = (rng.integers(-4, 5, shape) / 2 for rng, shape in zip(rngs, shapes, strict=True))
        drawn_cases.append(_case(signature, *numbers))
    return drawn_cases
