"""The small inputs the marker runs a function on, smallest first, with numbers that can be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.arrays import Array


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
        options: dict[str, Any] = {}
        if self.mask is not None:
            options["mask"] = self.mask
        if self.causal:
            options["is_causal"] = True
        if self.q_offset is not None:
            options["q_offset"] = self.q_offset
        if self.heads > 1:
            options["num_heads"] = self.heads
        return {**self.arrays, **options}

    def at_rank(self, rank: int) -> Case:
        """The same numbers with leading dimensions of 1, for a function that takes batches only."""
        arrays = {
            name: a if name.startswith("w_") else _lift(a, rank) for name, a in self.arrays.items()
        }
        lower = 1 if self.mask is not None and self.mask.ndim == 1 else 0  # a mask of keys alone
        return replace(
            self, arrays=arrays, mask=None if self.mask is None else _lift(self.mask, rank - lower)
        )

    def permuted(self) -> Case:
        """Keys and values (or the tokens of x) in the opposite order."""
        turned = ("key", "value", "x")
        arrays = {n: a[..., ::-1, :].copy() if n in turned else a for n, a in self.arrays.items()}
        return replace(self, arrays=arrays)


def _lift(a: Array, rank: int) -> Array:
    missing = max(0, rank - a.ndim)
    return a.reshape(a.shape[:-2] + (1,) * missing + a.shape[-2:])


def _floats(*rows: list[Any]) -> list[Array]:
    return [np.array(row, dtype=np.float64) for row in rows]


def _halves(seed: int, *shape: int) -> Array:
    """Multiples of 1/2 between -2 and 2: short to print, exact in float32."""
    numbers: Array = np.random.default_rng(seed).integers(-4, 5, size=shape) / 2
    return numbers


def _qkv(
    queries: int, keys: int, d: int, dv: int, *, seed: int, batch: int = 0
) -> dict[str, Array]:
    lead = (batch,) if batch else ()
    return {
        "query": _halves(seed, *lead, queries, d),
        "key": _halves(seed + 1, *lead, keys, d),
        "value": _halves(seed + 2, *lead, keys, dv),
    }


def _x(tokens: int, width: int, d: int, dv: int, *, seed: int, batch: int = 0) -> dict[str, Array]:
    lead = (batch,) if batch else ()
    return {
        "x": _halves(seed, *lead, tokens, width),
        "w_q": _halves(seed + 1, width, d),
        "w_k": _halves(seed + 2, width, d),
        "w_v": _halves(seed + 3, width, dv),
    }


def core(signature: str) -> list[Case]:
    """As many queries as keys, d == dv: where most mistakes show."""
    if signature == "qkv":
        q, k, v = _floats([[1, 1], [2, 1]], [[1, 2], [0, 1]], [[1, 0], [3, 2]])
        smallest = {"query": q, "key": k, "value": v}
        rest = [_qkv(3, 3, 2, 2, seed=10), _qkv(3, 3, 4, 4, seed=20)]
    else:
        x, w_q, w_k, w_v = _floats(
            [[1, 0], [1, 2]], [[1, 1], [0, 1]], [[1, -1], [0, 1]], [[1, 2], [1, 0]]
        )
        smallest = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v}
        rest = [_x(2, 3, 3, 3, seed=30), _x(3, 4, 2, 2, seed=40)]
    return [Case(smallest), *map(Case, rest)]


def shapes(signature: str) -> list[Case]:
    """Other numbers of keys than queries, values of another size than keys."""
    if signature == "qkv":
        sizes = [(1, 2, 2, 2), (2, 3, 2, 2), (3, 2, 2, 2), (2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)]
        return [Case(_qkv(*size, seed=50 + 5 * n)) for n, size in enumerate(sizes)]
    sizes = [(2, 2, 2, 1), (2, 2, 2, 3), (2, 2, 1, 1)]
    return [Case(_x(*size, seed=80 + 5 * n)) for n, size in enumerate(sizes)]


def large(signature: str) -> list[Case]:
    """Scores [[1000, 0], [-1000, 0]]: exp overflows, and rows far below the largest underflow."""
    if signature == "qkv":
        q, k, v = _floats([[1000], [-1000]], [[1], [0]], [[1], [2]])
        return [Case({"query": q, "key": k, "value": v})]
    x, w_q, w_k, w_v = _floats([[1, 1], [-1, 0]], [[1000], [0]], [[0], [1]], [[1], [1]])
    return [Case({"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v})]


def whole_numbers(signature: str) -> list[Case]:
    """The smallest input again, as integers; weight matrices stay floats."""
    arrays = core(signature)[0].arrays
    return [Case({n: a if n.startswith("w_") else a.astype(np.int64) for n, a in arrays.items()})]


def batches(signature: str) -> list[Case]:
    """Two texts at once; the first is 2 x 2 x 2, where transposing too many axes goes unseen."""
    if signature == "qkv":
        return [
            Case(_qkv(2, 2, 2, 2, seed=100, batch=2)),
            Case(_qkv(3, 3, 4, 4, seed=110, batch=2)),
        ]
    return [Case(_x(2, 2, 2, 2, seed=120, batch=2)), Case(_x(3, 4, 4, 4, seed=130, batch=2))]


def masks(signature: str) -> list[Case]:
    """Masks that leave every query something to see, and would if they were inverted."""
    two, three = core(signature)[0], core(signature)[-1]
    tokens = three.arrays["query" if signature == "qkv" else "x"].shape[0]
    cases = [
        replace(two, mask=np.array([[True, False], [False, True]])),
        replace(three, mask=_LOPSIDED[:tokens, :tokens]),
    ]
    if signature == "qkv":
        cases.append(Case(_qkv(2, 3, 2, 2, seed=140), mask=_LOPSIDED[:2]))
    return cases


_LOPSIDED = np.array([[True, False, True], [True, True, False], [True, False, False]])


def key_masks(signature: str) -> list[Case]:
    """Masks that are the same for every query: one entry for each key."""
    cases = core(signature)
    tokens = cases[-1].arrays["key" if signature == "qkv" else "x"].shape[0]
    return [
        replace(cases[0], mask=np.array([False, True])),
        replace(cases[-1], mask=_LOPSIDED[0, :tokens]),
    ]


def empty_rows(signature: str) -> list[Case]:
    """A query that may attend to nothing."""
    return [replace(core(signature)[0], mask=np.array([[True, True], [False, False]]))]


def causal(signature: str) -> list[Case]:
    """Queries that may not look ahead."""
    cases = core(signature)
    return [replace(cases[0], causal=True), replace(cases[-1], causal=True)]


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
    return [
        Case(_qkv(1, 2, 2, 2, seed=150), causal=True, q_offset=1),
        Case(_qkv(2, 3, 2, 2, seed=160), causal=True, q_offset=1),
        Case(_qkv(1, 3, 2, 2, seed=170), causal=True, q_offset=1),
    ]


def heads(signature: str) -> list[Case]:
    """Two heads; in the second case their sizes together are not the width of x."""
    if signature == "qkv":
        return []
    smallest = core(signature)[0]
    return [replace(smallest, heads=2), Case(_x(3, 3, 4, 4, seed=180), heads=2)]
