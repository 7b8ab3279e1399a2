"""The weights of an attention layer: their names, and checks that they are compatible."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from qkv._argument_errors import value_error
from qkv.arrays import Array, Arrays, quote
from qkv.layers.base import check_parameters, need_shape, word_vectors

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
WEIGHTS = tuple(f"{name}.weight" for name in PROJECTIONS)
SHORT = dict(zip(WEIGHTS, ("w_q", "w_k", "w_v", "w_o"), strict=True))


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer, which follow from the shapes of its weights."""

    embed_dim: int  # D, the size of the vectors in `x`.
    context_dim: int  # The size of the vectors in the context.
    output_dim: int  # The size of the vectors in the result.
    num_heads: int  # Hq.
    num_kv_heads: int  # Hkv.
    d_query: int  # d.
    d_value: int  # dv.


@dataclass(frozen=True)
class Weights:
    """The parameters of a layer, with the names and the layout that errors show.

    In `parameters`, all weights have the layout (in, out). `layout` is the user's layout, and
    `short` is True if the user passed w_q, w_k, w_v and w_o.
    """

    parameters: Arrays
    layout: str = "in_out"
    short: bool = False

    @classmethod
    def short_named(cls, weights: Sequence[Any], layout: str) -> Self:
        """Make `Weights` from w_q, w_k, w_v and w_o, given their layout; w_o may be None."""
        if layout not in ("in_out", "out_in"):
            raise value_error(f'layout is {quote(layout)}; pass "in_out" or "out_in"')
        named = zip(SHORT.values(), weights, strict=True)
        arrays = check_parameters({name: w for name, w in named if w is not None})
        if layout == "out_in":
            arrays = {name: array.T for name, array in arrays.items()}
        parameters = {full: arrays[short] for full, short in SHORT.items() if short in arrays}
        return cls(parameters, layout, short=True)

    def quote(self, name: str) -> str:
        """Return a weight's name and shape as the user passed them."""
        shape = self.parameters[name].shape
        shape = shape if self.layout == "in_out" else shape[::-1]
        return f"{SHORT[name] if self.short else name} {shape}"

    def hint(self, would_fit: bool) -> str:
        """Return the advice "pass layout=..." for an error; "" if the advice would not help."""
        if not (self.short and would_fit):
            return ""
        other = "out_in" if self.layout == "in_out" else "in_out"
        return f'; if the weights are transposed, pass layout="{other}"'

    def vectors(self, x: Any, name: str) -> Array:
        """Return `x` or the context as an array; check that its vectors fit the projection."""
        array = word_vectors(x, name=name)
        weight = "q_proj.weight" if name == "x" else "k_proj.weight"
        rows, columns = self.parameters[weight].shape
        if array.shape[-1] != rows:
            raise value_error(
                f"{name} {array.shape} has vectors of size {array.shape[-1]} and "
                f"{self.quote(weight)} takes vectors of size {rows}"
                + self.hint(columns == array.shape[-1])
            )
        return array

    def sizes(self, num_heads: int) -> Sizes:
        """Return the sizes; raise an error if two weights are incompatible."""
        self._check_names()
        query, key, value = (self.parameters[name].shape for name in WEIGHTS[:3])
        shown_q, shown_k, shown_v = (self.quote(name) for name in WEIGHTS[:3])
        if query[1] % num_heads:
            raise value_error(
                f"{shown_q} has {query[1]} columns of queries and num_heads is "
                f"{num_heads}: the number of columns must be a multiple of num_heads"
                + self.hint(query[0] % num_heads == 0)
            )
        size = query[1] // num_heads
        if key[1] % size or num_heads % (key[1] // size):
            raise value_error(
                f"{shown_q} and {shown_k}: a query head has size {size}, so keys need "
                f"{_columns(num_heads, size)} columns, not {key[1]}"
            )
        kv_heads = key[1] // size
        if key[0] != value[0]:
            raise value_error(
                f"{shown_k} takes vectors of size {key[0]} and {shown_v} takes vectors of "
                f"size {value[0]}: both must take the same size" + self.hint(key[1] == value[1])
            )
        if value[1] % kv_heads:
            raise value_error(
                f"{shown_k} and {shown_v}: there are {kv_heads} key heads, "
                f"so the number of value columns, {value[1]}, must be a multiple of {kv_heads}"
            )
        joined = num_heads * (value[1] // kv_heads)
        output = joined
        if "out_proj.weight" in self.parameters:
            taken, output = self.parameters["out_proj.weight"].shape
            if taken != joined:
                raise value_error(
                    f"{shown_v} and {self.quote('out_proj.weight')}: the joined heads "
                    f"have {joined} columns and the output projection takes {taken} columns"
                    + self.hint(output == joined)
                )
        return Sizes(query[0], key[0], output, num_heads, kv_heads, size, value[1] // kv_heads)

    def _check_names(self) -> None:
        """Raise an error if a parameter is unknown, is missing or has a wrong number of axes."""
        known = [f"{name}.{part}" for name in PROJECTIONS for part in ("weight", "bias")]
        for name in self.parameters:
            if name not in known:
                raise value_error(f"there is no parameter {name}: choose from {', '.join(known)}")
        for name in WEIGHTS:
            bias = name.replace("weight", "bias")
            if name not in self.parameters:
                if name == "out_proj.weight" and bias not in self.parameters:
                    continue
                has = ", ".join(self.parameters) or "none"
                raise value_error(f"{name} is missing: the parameters are {has}")
            shape = self.parameters[name].shape
            if len(shape) != 2 or 0 in shape:
                raise value_error(
                    f"{self.quote(name)}: a weight must be 2-D, with the heads side by "
                    "side, and no size may be 0"
                )
            if bias in self.parameters:
                why = f"{name} has {shape[1]} columns"
                need_shape(self.parameters[bias], shape[1:], name=bias, why=why)


def _columns(num_heads: int, size: int) -> str:
    """Return the numbers of columns that the key weight may have, as text: "8 or 4 or 2"."""
    fitting = [n * size for n in range(num_heads, 0, -1) if num_heads % n == 0]
    return " or ".join(map(str, fitting))
