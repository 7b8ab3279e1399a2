"""Build layers of a student's class, call them, read their weights, and compute right outputs.

The weights of a layer are in attributes, whose names differ between students.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from qkv.arrays import Array, Arrays
from qkv_marking._formula import Lines
from qkv_marking._mistake import Function
from qkv_marking._outcome import RAISED, Elsewhere, as_tensors, is_number, numbers, options_of
from qkv_marking.tasks._table import Table
from qkv_marking.tasks.attention.mistakes import FORMULA, HEADS, HELPERS, OF_OUTPUT, ONE_HEAD, core
from qkv_marking.tasks.attention.steps import OPTIONS, Trial, values_of

_TABLE = Table(__package__, "layers", HELPERS, FORMULA)
RIGHT = _TABLE.formula.lines
NO_OUTPUT, *_OTHERS = _TABLE.group("layer")
KNOWN = (NO_OUTPUT, *_OTHERS, *HEADS, *ONE_HEAD, *core("x,w_q,w_k,w_v"), *OF_OUTPUT)


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer.

    Attributes:
        x: the word vectors (..., T, D).
        heads: the number of heads of the layer.
        matrices: the projections, keyed by role: "q", "k" and "v" (D, heads * d), and "o"
            (heads * d, D). None if the projections are unknown.
        biases: the layer's biases, keyed by role.
        mask: a mask (T, T) that is True where a word may attend to another word.
        causal: whether a causal mask is requested.
    """

    x: Array
    heads: int
    matrices: Arrays | None = None
    biases: Arrays | None = None
    mask: Array | None = None
    causal: bool = False

    @property
    def built_with(self) -> tuple[int, int]:
        """The layer's constructor arguments: embed_dim and num_heads."""
        return self.x.shape[-1], self.heads

    def list_arguments(self) -> dict[str, Any]:
        """Return the layer and the arguments that a learner needs to repeat this call."""
        matrices, biases = self.matrices or {}, self.biases or {}
        arguments = {
            "layer": f"SelfAttention({self.x.shape[-1]}, {self.heads})",
            "x": self.x,
            "mask": self.mask,
            "is_causal": self.causal or None,
            **{f"w_{role}": matrices.get(role) for role in "qkvo"},
            **{f"b_{role}": biases.get(role) for role in "qkvo"},
        }
        return {name: value for name, value in arguments.items() if value is not None}


def as_attention(case: LayerCall) -> Trial:
    """Convert a call of a layer to a case of the task `attention`, which has no biases.

    A 1 is appended to each word vector, and each bias becomes the last row of its projection.
    """
    matrices, biases, x = case.matrices or {}, case.biases or {}, case.x
    arrays = {f"w_{role}": matrices[role] for role in "qkv"}
    if biases:
        x = np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)
        for role in "qkv":
            w = matrices[role]
            arrays[f"w_{role}"] = np.vstack([w, biases.get(role, np.zeros(w.shape[1]))])
    return Trial({"x": x, **arrays}, case.mask, case.causal, None, case.heads, matrices["o"])


def compute(case: LayerCall, steps: Lines) -> Array:
    """Compute the output from the layer's weights, or return the input if no weights are known."""
    if case.matrices is None:
        return case.x
    attention = as_attention(case)
    biases = case.biases or {}
    values = {**values_of(attention), "before": case.x, "b_o": biases.get("o", 0)}
    out: Array = _TABLE.formula.run(values, steps)["out"]
    return out


ROLES = ("q", "k", "v", "o")
# lower-case names of attributes for projections and biases, keyed by role
_NAMES = {
    "q": {"q", "wq", "bq", "query", "queries"},
    "k": {"k", "wk", "bk", "key", "keys"},
    "v": {"v", "wv", "bv", "value", "values"},
    "o": {"o", "wo", "bo", "out", "output", "proj", "projection", "fc", "unifyheads", "linear"},
}
_WEIGHT = re.compile(r"(^|[._])(w|b)[_.qkvo]|weight|bias|proj|linear|attn|to_")
_FUSED = re.compile("qkv|c_attn|in_proj")


@dataclass(frozen=True)
class Projections:
    """The projections of a layer, each as one matrix for all heads, and their biases.

    W_Q, W_K and W_V have shape (D, heads * d), and W_O has shape (heads * d, D).

    Attributes:
        matrices: the matrices, keyed by role; `"o"` is missing if the layer has no W_O.
        biases: the layer's biases, keyed by role.
        shared: whether all heads use the same matrix.
        slices: whether each head reads only its own slice of the word vector.
    """

    matrices: Arrays
    biases: Arrays
    shared: bool = False
    slices: bool = False


class Format(NamedTuple):
    """The sizes of a layer, and the order of the two axes of its matrices.

    Attributes:
        dim: the size of a word vector.
        heads: the number of heads.
        flipped: whether the matrices are (out, in) as in torch; if not, they are (in, out).
    """

    dim: int
    heads: int
    flipped: bool


def projections(layer: Any, layout: Format) -> Projections | None:
    """Read the weights of a layer from its attributes; return None if their sizes do not fit.

    The layer's arrays may be inside lists, mappings and other objects.
    """
    named: dict[str, list[tuple[str, Array]]] = {}
    seen = set()
    held = layer.held_arrays() if isinstance(layer, Elsewhere) else arrays_of(layer)
    for path, a in sorted(held, key=lambda one: _in_order(one[0])):
        role = _role(path)
        memory = role, a.ctypes.data, a.size
        if role is not None and memory not in seen:  # two attributes may hold the same array
            seen.add(memory)
            named.setdefault(role, []).append((path, a))
    by_role = {}
    for role, arrays in named.items():
        weights = [a for path, a in arrays if _WEIGHT.search(path.lower())]
        # prefer arrays whose names match `_WEIGHT`
        by_role[role] = weights or [a for _, a in arrays]
    return _read(by_role, layout)


def arrays_of(
    thing: Any, path: str = "", been: set[int] | None = None
) -> Iterator[tuple[str, Array]]:
    """Find all arrays with 1 to 3 dimensions inside an object; yield their paths and values."""
    been = set() if been is None else been
    try:
        a, inside = _open(thing)
    except RAISED:  # the attributes cannot be read
        return
    if a is not None and 1 <= a.ndim <= 3:
        yield path, a
    if inside and id(thing) not in been:  # objects may refer to each other
        been.add(id(thing))
        for name, one in inside.items():
            yield from arrays_of(one, f"{path}.{name}", been)


def _open(thing: Any) -> tuple[Array | None, dict[Any, Any]]:
    """Return `(array, {})` for an array, and `(None, parts)` for any other object."""
    if isinstance(thing, Mapping):
        return None, dict(thing)
    if isinstance(thing, list | tuple):
        return None, dict(enumerate(thing))
    if (a := numbers(thing)) is not None:
        return a, {}
    if hasattr(thing, "__dict__") and not isinstance(thing, type | ModuleType):
        properties = {
            name: getattr(thing, name)
            for kind in type(thing).__mro__
            for name, it in vars(kind).items()
            if isinstance(it, property) and _role(f".{name}") is not None
        }
        return None, {**vars(thing), **properties}
    return None, {}


def _in_order(path: str) -> list[Any]:
    """Return a sort key that puts head 10 after head 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def _role(path: str) -> str | None:
    """Return the role of a projection from the name of its attribute."""
    words = [word for word in re.split(r"[^a-z]+", path.lower()) if word]
    for role in ("q", "k", "v"):
        if _NAMES[role] & {*words}:
            return role
    if _FUSED.search(path.lower()):
        return "qkv"
    return "o" if _NAMES["o"] & {*words} else None


def _read(by_role: Mapping[str, list[Array]], layout: Format) -> Projections | None:
    """Join the arrays of each role into one matrix; return None if their sizes do not fit."""
    parts = dict(by_role)
    if "qkv" in parts and not {"q", "k", "v"} & {*parts}:
        split = [_in_three(a, layout.flipped) for a in parts.pop("qkv")]
        for n, role in enumerate("qkv"):
            parts[role] = [three[n] for three in split]
    matrices, biases, notes = {}, {}, set()
    for role in ROLES:
        arrays = [a for a in parts.get(role, []) if not _flat(a)]
        flat = [a.ravel() for a in parts.get(role, []) if _flat(a)]
        whole = _join(arrays, role, layout)
        if whole is None:
            if role == "o" and not arrays:
                continue
            return None
        matrices[role], note = whole
        notes.add(note)
        if flat:
            bias = np.concatenate(flat)
            width = matrices[role].shape[1]
            biases[role] = np.tile(bias, width // len(bias)) if width % len(bias) == 0 else bias
            if len(biases[role]) != width:
                return None
    said = ", ".join(notes)
    return Projections(matrices, biases, "shared" in said, layout.heads > 1 and "slices" in said)


def _flat(a: Array) -> bool:
    """Return whether an array is a bias: a vector, or a matrix with one row or column."""
    return a.ndim == 1 or (a.ndim == 2 and min(a.shape) == 1)


def _in_three(a: Array, flipped: bool) -> list[Array]:
    """Split a matrix or bias that holds query, key and value side by side."""
    axis = 0 if a.ndim == 1 or flipped else 1
    return np.split(a, 3, axis=axis) if a.shape[axis] % 3 == 0 else [a, a, a]


def _join(arrays: list[Array], role: str, layout: Format) -> tuple[Array, str] | None:
    """Join the matrices of all heads into one; also return a note, such as "slices, shared".

    The note lists the fields of `Projections` that are True for these matrices. If the sizes of the
    matrices do not fit, the result is None.
    """
    dim, heads, flipped = layout
    if len(arrays) == 1 and arrays[0].ndim == 3:
        arrays = list(arrays[0])  # (heads, D, d)
    arrays = [a.T if flipped else a for a in arrays]
    if not arrays or any(a.ndim != 2 for a in arrays):
        return None
    if role == "o":
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return (whole, "") if whole.shape[1] == dim else None
    if all(a.shape[0] == dim for a in arrays):
        whole = np.concatenate(arrays, axis=1)
        if len(arrays) == 1 and heads > 1 and whole.shape[1] * heads == dim:
            return np.tile(whole, heads), "shared"  # all heads use the same matrix (D, d)
        return (whole, "") if whole.shape[1] % heads == 0 else None
    if arrays[0].shape[0] * heads == dim and len(arrays) in (1, heads):
        matrices = arrays * heads if len(arrays) == 1 else arrays
        return _on_slices(matrices), "slices, shared" if len(arrays) == 1 < heads else "slices"
    return None


def _on_slices(arrays: list[Array]) -> Array:
    """Return a block-diagonal matrix, which multiplies slice n of a vector by `arrays[n]`."""
    rows, columns = arrays[0].shape
    whole = np.zeros((rows * len(arrays), columns * len(arrays)))
    for n, a in enumerate(arrays):
        whole[n * rows : (n + 1) * rows, n * columns : (n + 1) * columns] = a
    return whole


_MASKS = {option: OPTIONS[option] for option in ("mask", "causal")}


class Layers:
    """Layers of a student's class, built on first use: one layer per (embed_dim, num_heads).

    Args:
        built: the class.
        seed: the seed of the weights, or None for the class's default.

    Raises:
        TypeError: the class cannot be called with an embed_dim and a number of heads.
    """

    def __init__(self, built: Function, seed: int | None = None) -> None:
        self.built = built
        known = {"causal": OPTIONS["causal"], "seed": ("seed",)}
        self.when_built, needed = options_of(built, ("embed_dim", "num_heads"), known)
        self.seed = 0 if seed is None and "seed" in needed else seed
        self.layers: dict[tuple[int, int, bool], Any] = {}
        self.batched = False  # Whether a layer takes only x (1, T, D).
        self.adds_mask = False  # Whether a layer expects masks of 0 and -inf, not boolean masks.

    def of(self, case: LayerCall) -> Any:
        """Return the layer of a case."""
        causal = case.causal and "causal" in self.when_built
        sizes = *case.built_with, causal
        if sizes not in self.layers:
            chosen = {"causal": causal} | ({} if self.seed is None else {"seed": self.seed})
            names = self.when_built
            options = {names[option]: it for option, it in chosen.items() if option in names}
            layer = self.built(*case.built_with, **options)
            if hasattr(layer, "state_dict"):  # for a torch layer, turn off dropout and use float64
                layer = layer.eval().double()
            self.layers[sizes] = layer
        return self.layers[sizes]

    def run_with_seed(self, case: LayerCall, seed: int) -> Any:
        """Build a layer with this seed, and return its output for the words of a case."""
        others = Layers(self.built, seed)
        others.batched = self.batched
        return others(case)

    def number_as_mask(self, case: LayerCall) -> bool:
        """Return whether the default of the layer's mask parameter is a number.

        If the default is a number, the layer probably adds its mask to the scores.
        """
        parameters = inspect.signature(_function_of(self.of(case))).parameters
        name = self.takes(case)[0].get("mask")
        return name is not None and is_number(parameters[name].default)

    def takes(self, case: LayerCall) -> tuple[dict[str, str], frozenset[str]]:
        """Return the names of the mask parameters, keyed by option, and the required options.

        Raises:
            TypeError: the layer requires an argument that the marker does not know.
        """
        return options_of(_function_of(self.of(case)), ("x",), _MASKS)

    def read(self, case: LayerCall) -> Callable[[bool], Projections | None]:
        """Return a function that reads the weights; its argument is `flipped`, as in `Format`."""
        return lambda flipped: projections(self.of(case), Format(*case.built_with, flipped))

    def add_weights(self, case: LayerCall, flipped: bool) -> LayerCall | None:
        """Add the layer's weights to a case; return None if the weights cannot be read.

        A missing W_O becomes the identity matrix.
        """
        read = self.read(case)(flipped)
        if read is None:
            return None
        width = read.matrices["v"].shape[1]
        return replace(case, matrices={"o": np.eye(width), **read.matrices}, biases=read.biases)

    def __call__(self, case: LayerCall) -> Any:
        """Run the layer of a case on the words of this case."""
        layer = self.of(case)
        alone = self.batched and case.x.ndim == 2
        arguments = {name: a[None] if alone else a for name, a in self._arrays(case).items()}
        x = arguments.pop("x")
        options, _ = self.takes(case)
        if "causal" in options:
            arguments[options["causal"]] = case.causal
        if hasattr(layer, "state_dict"):
            x, arguments = as_tensors(x), as_tensors(arguments)
        returned = _function_of(layer)(x, **arguments)
        if not alone:
            return returned
        if isinstance(returned, tuple):
            return tuple(one if one is None else one[0] for one in returned)
        return returned[0]

    def _arrays(self, case: LayerCall) -> dict[str, Any]:
        """Return the word vectors as "x", and the mask under the name of its argument."""
        options, needed = self.takes(case)
        mask = case.mask
        if mask is None and "mask" in needed:
            mask = np.ones((case.x.shape[-2],) * 2, dtype=bool)
        if mask is None:
            return {"x": case.x}
        mask = np.where(mask, 0.0, -np.inf) if self.adds_mask else mask
        return {"x": case.x, options["mask"]: mask}


def _function_of(layer: Any) -> Function:
    """Return the function to call: `layer.forward` for a torch module, else the layer itself."""
    if hasattr(layer, "state_dict") or (not callable(layer) and hasattr(layer, "forward")):
        forward: Function = layer.forward
        return forward
    called: Function = layer
    return called
