"""Draw the random arrays of a case for the formula and the judged function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, DType
from qkv_marking.conformance._reference import run
from qkv_marking.conformance.read_cases import Case

Drawn = dict[str, Any]


def float_type(name: Any) -> DType:
    """Return a NumPy dtype by its name, which may be bfloat16."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    dtype: DType = np.dtype(name)
    return dtype


def draw(case: Case) -> Drawn:
    """Draw the arguments of a case, including `Case.unsaid`, as contiguous NumPy arrays."""
    rng = np.random.default_rng(case.seed)
    dtype = float_type(case.dtype)
    query, key = (
        rng.integers(-3, 4, shape).astype(float) if case.exact else rng.normal(size=shape)
        for shape in ((case.B, case.Hq, case.L, case.d), (case.B, case.Hkv, case.S, case.d))
    )
    if case.sign:
        query, key = abs(query) + 1, case.sign * (abs(key) + 1)
    value = rng.normal(0.5, 1, (case.B, case.Hkv, case.S, case.dv))
    if case.constant:
        value[...] = value[:, :, :1]
    if case.layout == "broadcast":
        key[...], value[...] = key[:1], value[:1]
    drawn: Drawn = {"query": query * case.spread, "key": key, "value": value}
    drawn = {name: a.astype(dtype) for name, a in drawn.items()}
    for name, words in case.options.items():
        drawn[name] = _option(case, name, words, rng)
    if case.is_backward:
        grad_out = rng.normal(size=(case.B, case.Hq, case.L, case.dv))
        drawn["grad_out"] = grad_out.astype(dtype)
    if case.hides_nan:
        _poison(case, drawn)
    elif isinstance(case.poison, str):
        number, _, name = case.poison.partition(" in ")
        seen = run(values(case, drawn)).seen
        row = 0 if name == "query" else int(seen.sum((0, 1, 2)).argmax())
        columns = slice(None) if number == "nan" else slice(1)
        drawn[name][:, :, row, columns] = float(number)
    return drawn


def _option(case: Case, name: str, words: Any, rng: np.random.Generator) -> Any:
    """Return the value of an option.

    If the option is described by a text such as "bool B1LS", return a random array that fits.
    """
    if name in ("attn_mask", "bias"):
        return _mask(case, words, rng)
    if name == "alibi_slopes":
        return (2.0 ** -np.arange(1, case.Hq + 1)).astype(float_type(case.dtype))
    if name == "sinks":
        shape = (case.Hq,) if words[1:] != "3" else (case.Hq, 3)
        mean = {"huge": 120, "large": 3}.get(words.partition(" ")[2], 0.5)
        sinks = rng.normal(mean, 1, shape)
        return sinks.astype(float_type(case.dtype))
    if name in ("query_lengths", "key_lengths"):
        most = case.L if name == "query_lengths" else case.S
        first = most // 3 if "short" in words else most - 1
        lengths = np.maximum(first - 2 * np.arange(case.B), min(1, most))
        if "blind" in words:
            lengths[0] = 0
        return lengths[::-1].copy() if "rising" in words else lengths
    if name == "q_offset" and str(words).startswith("rows"):
        offsets = case.S - case.L - np.arange(case.B)
        return offsets[::-1].copy() if "rising" in words else offsets
    return tuple(words) if name == "window" else words


def _mask(case: Case, description: str, rng: np.random.Generator) -> Array:
    """Draw a mask from a description of its dtype and shape, such as "bool B1LS"."""
    words = description.split()
    letters = next(word for word in words if not word.islower())
    sizes = {"B": case.B, "H": case.Hq, "L": case.L, "S": case.S, "1": 1}
    shape = tuple(sizes[letter] for letter in letters)
    seen = np.zeros(shape, bool)
    seen |= rng.random(shape) < 0.6
    if seen.size:
        seen[..., 0] = True
        if case.hides_nan and letters[-1] == "S" and case.S > 1:
            seen[..., -1] = False
        if "late" in words:  # rows see the last key, and no key of the first half
            seen[..., : (case.S + 1) // 2], seen[..., -1] = False, True
        if "blind" in words:
            seen[..., :1, :] = False
    if "bool" in words:
        return seen
    numbers = rng.normal(size=shape)
    if "float" in words and "finite" not in words:
        numbers = np.where(seen, numbers, -np.inf)
    return numbers.astype(float_type(case.dtype))


def _poison(case: Case, drawn: Drawn) -> None:
    """Write NaN into masked keys, values and queries, or into the last key if no key is masked."""
    seen = run(values(case, drawn)).seen.reshape(case.B, case.Hkv, -1, case.L, case.S)
    masked: Array = np.logical_not(seen.any(axis=(2, 3)))
    if not masked.any() and not seen[..., -1].all():
        masked[..., -1] = True  # in causal attention, only the last query attends to this key
    blind = ~seen.any(axis=-1).reshape(case.B, case.Hq, case.L)
    for name, where in (("key", masked), ("value", masked), ("query", blind)):
        if case.poison in (True, f"nan in masked {name}"):
            drawn[name][where] = np.nan


def values(case: Case, drawn: Drawn, dtype: Any = np.float64) -> dict[str, Any]:
    """Return the variables that the formula's lines use, in the given dtype."""

    def wide(name: str, *axes: int) -> Any:
        a = drawn.get(name)
        if a is None:
            return None
        a = np.asarray(a)
        return (a if a.dtype.kind in "bi" else a.astype(dtype)).reshape(*a.shape, *axes)

    mask = wide("attn_mask")
    is_bool = mask is not None and mask.dtype == bool
    left, right = drawn.get("window", (None, None))
    offset = drawn.get("q_offset", 0)
    if isinstance(offset, str):
        offset = case.S - case.L if offset == "end" else 0
    sinks = wide("sinks")
    shapes = {name: getattr(case, name) for name in ("B", "Hq", "Hkv", "L", "S", "d", "dv")}
    own = float_type(case.dtype)
    half = own if own.itemsize == 2 else None
    return shapes | {
        "G": case.Hq // case.Hkv,
        # the number of each query head if heads are stored as (groups, key heads)
        "swapped_groups": np.arange(case.Hq).reshape(-1, case.Hkv).T.ravel(),
        **{name: wide(name) for name in ("query", "key", "value", "grad_out", "bias")},
        **{name: drawn.get(name) for name in ("scale", "softcap", "return_weights", "return_lse")},
        "is_causal": drawn.get("is_causal", False),
        "left": left,
        "right": right,
        "allowed": mask if is_bool else None,
        "added": None if is_bool else mask,
        "slopes": wide("alibi_slopes", 1, 1),
        "sinks": None if sinks is None else sinks.reshape(case.Hq, 1, -1),
        "key_lengths": wide("key_lengths", 1, 1, 1),
        "query_lengths": wide("query_lengths", 1, 1, 1),
        "q_offset": offset if np.ndim(offset) == 0 else np.reshape(offset, (-1, 1, 1, 1)),
        "i": np.arange(case.L)[:, None],
        "j": np.arange(case.S),
        "is_offset_given": case.options.get("q_offset") is not None
        and "q_offset" not in case.unsaid
        and not isinstance(drawn["q_offset"], str),
        "is_offset_end": isinstance(drawn.get("q_offset"), str) and drawn["q_offset"] == "end",
        "type": own if half is None else np.dtype(np.float32),
        "half": half,
        "in_memory": lambda name: in_memory(case, drawn[name], name).astype(dtype),
        "in_rows": lambda name: in_rows(case, drawn[name], name).astype(dtype),
        "in_order": lambda name: in_order(case, drawn[name], name).astype(dtype),
    }


class Laid(NamedTuple):
    """An array in memory, and the view that is passed to the function."""

    base: Array
    view: Callable[[Any], Any]


def laid(case: Case, name: str, a: Array) -> Laid:
    """Store an array in the memory layout of a case; `view` restores the original shape."""
    layout = case.layout
    if layout == "transposed":  # the layout (B, T, H, d) of a projection
        return Laid(np.ascontiguousarray(a.swapaxes(1, 2)), lambda x: x.swapaxes(1, 2))
    if layout == "packed":  # the layout (B, T, 3, H, d) of a joint projection
        B, H, T, d = a.shape
        base, part = np.full((B, T, 3, H, d), 7, a.dtype), ("query", "key", "value").index(name)
        base[:, :, part] = a.swapaxes(1, 2)
        return Laid(base, lambda x: x[:, :, part].swapaxes(1, 2))
    if layout == "sliced":
        base = np.full((*a.shape[:2], a.shape[2] + 3, a.shape[3] + 1), 7, a.dtype)
        base[:, :, 1:-2, 1:] = a
        return Laid(base, lambda x: x[:, :, 1:-2, 1:])
    if layout == "every second":
        base = np.full((*a.shape[:3], 2 * a.shape[3]), 7, a.dtype)
        base[..., ::2] = a
        return Laid(base, lambda x: x[..., ::2])
    if layout == "fortran":
        return Laid(np.ascontiguousarray(a.T), lambda x: x.swapaxes(0, 3).swapaxes(1, 2))
    if layout == "reversed":
        return Laid(np.ascontiguousarray(a[:, :, ::-1]), lambda x: x[:, :, ::-1])
    if layout == "broadcast" and name != "query":
        shape = a.shape
        return Laid(
            a[:1].copy(),
            lambda x: x.expand(*shape) if hasattr(x, "expand") else np.broadcast_to(x, shape),
        )
    return Laid(a, lambda x: x)


def in_memory(case: Case, a: Array, name: str) -> Array:
    """Return the numbers that a kernel reads if the kernel wrongly assumes contiguous memory."""
    base, view = laid(case, name, a)
    numbers = np.arange(base.size).reshape(base.shape)
    first = view(numbers).flat[0] if a.size else 0  # the kernel begins where the view begins
    return np.resize(base.reshape(-1)[first:], a.size).reshape(a.shape)


def in_rows(case: Case, a: Array, name: str) -> Array:
    """Return the numbers that a kernel reads if it assumes that each row is contiguous."""
    base, view = laid(case, name, a)
    firsts = view(np.arange(base.size).reshape(base.shape))[..., :1]
    places: Array = (firsts + np.arange(a.shape[-1])) % max(base.size, 1)
    numbers: Array = base.reshape(-1)[places]
    return numbers


def in_order(case: Case, a: Array, name: str) -> Array:
    """Return the numbers of the view in the order of memory, without the gaps in the view."""
    base, view = laid(case, name, a)
    return np.asarray(view(base)).ravel(order="K").reshape(a.shape)
