"""The small inputs the marker runs a function on, smallest first, with numbers that can be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array

NAMES = {"qkv": ("query", "key", "value"), "x,w_q,w_k,w_v": ("x", "w_q", "w_k", "w_v")}


@dataclass(frozen=True)
class Case:
    """One call of the function: its arrays by name and the options that go with them."""

    arrays: dict[str, Array]
    mask: Array | None = None
    causal: bool = False
    q_offset: int | None = None
    heads: int = 1

    @property
    def visible(self) -> Array | None:
        """What the mask lets through: where it is True, or 0 if it is one to add."""
        if self.mask is None or self.mask.dtype == bool:
            return self.mask
        return np.isfinite(self.mask)

    def with_added_mask(self) -> Case:
        """The same with the mask as numbers to add to the scores: 0, and -inf where it hides."""
        if self.mask is None:
            return self
        return replace(self, mask=np.where(self.mask, 0.0, -np.inf))

    def shown(self) -> dict[str, Any]:
        """What a learner needs to make this call by hand."""
        options = {
            "mask": self.mask,
            "is_causal": self.causal or None,
            "q_offset": self.q_offset,
            "num_heads": self.heads if self.heads > 1 else None,
        }
        return self.arrays | {name: it for name, it in options.items() if it is not None}

    def at_rank(self, rank: int) -> Case:
        """The same numbers with leading dimensions of 1, for a function that takes batches only."""
        arrays = {
            name: a if name.startswith("w_") else _lift(a, rank) for name, a in self.arrays.items()
        }
        mask = self.mask
        if mask is not None:
            mask = _lift(mask, rank - (mask.ndim == 1))  # of keys alone it has one dimension less
        return replace(self, arrays=arrays, mask=mask)

    def permuted(self) -> Case:
        """Keys and values (or the tokens of x) in the opposite order."""
        ordered = ("key", "value", "x")
        arrays = {n: a[..., ::-1, :].copy() if n in ordered else a for n, a in self.arrays.items()}
        return replace(self, arrays=arrays)


def _lift(a: Array, rank: int) -> Array:
    """As many dimensions as `rank`, with 1 where they are missing."""
    missing = max(0, rank - a.ndim)
    return a.reshape(a.shape[:-2] + (1,) * missing + a.shape[-2:])


def _case(signature: str, *rows: Any) -> Case:
    """A call with these arrays."""
    arrays = [np.array(row, dtype=np.float64) for row in rows]
    return Case(dict(zip(NAMES[signature], arrays, strict=True)))


def _drawn(signature: str, *sizes: int, seed: int, batch: tuple[int, ...] = ()) -> Case:
    """Multiples of 1/2 between -2 and 2: short to print, exact in float32.

    Args:
        signature: what the sizes are of: (L, S, d, dv), or of x (T, D, d, dv).
        sizes: these four.
        seed: of the first array, those of the others follow.
        batch: the dimension before.
    """
    a, b, d, dv = sizes
    shapes = [(*batch, a, d), (*batch, b, d), (*batch, b, dv)]
    if signature != "qkv":
        shapes = [(*batch, a, b), (b, d), (b, d), (b, dv)]
    generators = (np.random.default_rng(seed + n) for n in range(len(shapes)))
    numbers = (rng.integers(-4, 5, size) / 2 for rng, size in zip(generators, shapes, strict=True))
    return _case(signature, *numbers)


def core(signature: str) -> list[Case]:
    """As many queries as keys, d == dv: where most mistakes show."""
    smallest: list[Any] = [[[1, 1], [2, 1]], [[1, 2], [0, 1]], [[1, 0], [3, 2]]]
    sizes, seed = [(3, 3, 2, 2), (3, 3, 4, 4)], 10
    if signature != "qkv":
        smallest = [[[1, 0], [1, 2]], [[1, 1], [0, 1]], [[1, -1], [0, 1]], [[1, 2], [1, 0]]]
        sizes, seed = [(2, 3, 3, 3), (3, 4, 2, 2)], 30
    rest = [_drawn(signature, *size, seed=seed + 10 * n) for n, size in enumerate(sizes)]
    return [_case(signature, *smallest), *rest]


def shapes(signature: str) -> list[Case]:
    """Other numbers of keys than queries, values of another size than keys."""
    sizes, seed = [(2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)], 80
    if signature == "qkv":
        sizes, seed = [(1, 2, 2, 2), (2, 3, 2, 2), (3, 2, 2, 2), *sizes], 50
    return [_drawn(signature, *size, seed=seed + 5 * n) for n, size in enumerate(sizes)]


def large(signature: str) -> list[Case]:
    """Scores [[1000, 0], [-1000, 0]]: exp overflows, and rows far below the largest underflow."""
    if signature == "qkv":
        return [_case(signature, [[1000], [-1000]], [[1], [0]], [[1], [2]])]
    return [_case(signature, [[1, 1], [-1, 0]], [[1000], [0]], [[0], [1]], [[1], [1]])]


def whole_numbers(signature: str) -> list[Case]:
    """The smallest input again, as integers; weight matrices stay floats."""
    arrays = core(signature)[0].arrays
    return [Case({n: a if n.startswith("w_") else a.astype(np.int64) for n, a in arrays.items()})]


def batches(signature: str) -> list[Case]:
    """Two texts at once; the first is 2 x 2 x 2, where transposing too many axes goes unseen."""
    larger, seed = ((3, 3, 4, 4), 100) if signature == "qkv" else ((3, 4, 4, 4), 120)
    return [
        _drawn(signature, 2, 2, 2, 2, seed=seed, batch=(2,)),
        _drawn(signature, *larger, seed=seed + 10, batch=(2,)),
    ]


def masks(signature: str) -> list[Case]:
    """Masks that leave every query something to see, and would if they were inverted."""
    two, _, three = core(signature)
    cases = [
        replace(two, mask=np.array([[True, False], [False, True]])),
        replace(three, mask=_LOPSIDED),
    ]
    if signature == "qkv":
        cases.append(replace(_drawn(signature, 2, 3, 2, 2, seed=140), mask=_LOPSIDED[:2]))
    return cases


_LOPSIDED = np.array([[True, False, True], [True, True, False], [True, False, False]])


def key_masks(signature: str) -> list[Case]:
    """Masks that are the same for every query: one entry for each key."""
    two, _, three = core(signature)
    return [replace(two, mask=np.array([False, True])), replace(three, mask=_LOPSIDED[0])]


def empty_rows(signature: str) -> list[Case]:
    """A query that may attend to nothing."""
    return [replace(core(signature)[0], mask=np.array([[True, True], [False, False]]))]


def causal(signature: str) -> list[Case]:
    """Queries that may not look ahead."""
    two, _, three = core(signature)
    return [replace(two, causal=True), replace(three, causal=True)]


def masked_batches(signature: str) -> list[Case]:
    """A mask for two texts at once."""
    return [replace(batches(signature)[1], mask=_LOPSIDED)]


def causal_batches(signature: str) -> list[Case]:
    """Two texts at once, neither of which may look ahead."""
    return [replace(batches(signature)[1], causal=True)]


def mask_and_causal(signature: str) -> list[Case]:
    """Both rules at once: a place is seen where both allow it."""
    return [replace(core(signature)[-1], mask=_LOPSIDED, causal=True)]


def offsets(signature: str) -> list[Case]:
    """Queries that stand later among the keys, as with a cache; the last is not at their end."""
    if signature != "qkv":
        return []
    lengths = enumerate([(1, 2), (2, 3), (1, 3)])
    cases = (_drawn(signature, *each, 2, 2, seed=150 + 10 * n) for n, each in lengths)
    return [replace(case, causal=True, q_offset=1) for case in cases]


def heads(signature: str) -> list[Case]:
    """Two heads; in the second case their sizes together are not the width of x."""
    if signature == "qkv":
        return []
    cases = core(signature)[0], _drawn(signature, 3, 3, 4, 4, seed=180)
    return [replace(case, heads=2) for case in cases]
