"""The weights of an attention layer: what each is called, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qkv.arrays import Array
from qkv.layers.layer import need_shape

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
WEIGHTS = tuple(f"{name}.weight" for name in PROJECTIONS)
SHORT = dict(zip(WEIGHTS, ("w_q", "w_k", "w_v", "w_o"), strict=True))


@dataclass(frozen=True)
class Sizes:
    """What follows from the shapes of the weights."""

    embed_dim: int  # D, of x
    context_dim: int  # of the context
    output_dim: int  # of the result
    num_heads: int  # Hq
    num_kv_heads: int  # Hkv
    d_query: int  # d
    d_value: int  # dv


@dataclass(frozen=True)
class Weights:
    """Parameters, with how they were given: all that an error has to say.

    The weights in `parameters` are (in, out). `layout` is the one they were given in, and
    `short` says that they were given as w_q, w_k, w_v and w_o.
    """

    parameters: Mapping[str, Array]
    call: str
    layout: str = "in_out"
    short: bool = False

    def shown(self, name: str) -> str:
        """A weight's name and shape, as they were given."""
        shape = self.parameters[name].shape
        shape = shape if self.layout == "in_out" else shape[::-1]
        return f"{SHORT[name] if self.short else name} {shape}"

    def hint(self, would_fit: bool) -> str:
        """The way out, where the other layout would fit."""
        if not (self.short and would_fit):
            return ""
        other = "out_in" if self.layout == "in_out" else "in_out"
        return f'; if the weights are the other way round, give layout="{other}"'

    def sizes(self, num_heads: int) -> Sizes:
        """The sizes; one clear error for the first two things that do not fit."""
        self._check_names()
        call = self.call
        query, key, value = (self.parameters[name].shape for name in WEIGHTS[:3])
        shown_q, shown_k, shown_v = (self.shown(name) for name in WEIGHTS[:3])
        if query[1] % num_heads:
            raise ValueError(
                f"{call}: {shown_q} has {query[1]} columns of queries and num_heads is "
                f"{num_heads}: the first must be a multiple of the second"
                + self.hint(query[0] % num_heads == 0)
            )
        size = query[1] // num_heads
        if key[1] % size or num_heads % (key[1] // size):
            raise ValueError(
                f"{call}: {shown_q} and {shown_k}: a query head has size {size}, so keys need "
                f"{_columns(num_heads, size)} columns, not {key[1]}"
            )
        kv_heads = key[1] // size
        if key[0] != value[0]:
            raise ValueError(
                f"{call}: {shown_k} takes vectors of {key[0]} and {shown_v} of {value[0]}: "
                "both read the same words" + self.hint(key[1] == value[1])
            )
        if value[1] % kv_heads:
            raise ValueError(
                f"{call}: {shown_k} and {shown_v}: there are {kv_heads} key heads, "
                f"and the {value[1]} columns of values must be a multiple of that"
            )
        joined = num_heads * (value[1] // kv_heads)
        output = joined
        if "out_proj.weight" in self.parameters:
            taken, output = self.parameters["out_proj.weight"].shape
            if taken != joined:
                raise ValueError(
                    f"{call}: {shown_v} and {self.shown('out_proj.weight')}: the joined heads "
                    f"have {joined} columns and the output projection takes {taken}"
                    + self.hint(output == joined)
                )
        return Sizes(query[0], key[0], output, num_heads, kv_heads, size, value[1] // kv_heads)

    def _check_names(self) -> None:
        """Every parameter is known, none is missing, and each has the right number of axes."""
        call = self.call
        known = [f"{name}.{part}" for name in PROJECTIONS for part in ("weight", "bias")]
        for name in self.parameters:
            if name not in known:
                raise ValueError(
                    f"{call}: there is no parameter {name}: choose from {', '.join(known)}"
                )
        for name in WEIGHTS:
            bias = name.replace("weight", "bias")
            if name not in self.parameters:
                if name == "out_proj.weight" and bias not in self.parameters:
                    continue
                has = ", ".join(self.parameters) or "nothing"
                raise ValueError(f"{call}: {name} is missing: there is {has}")
            shape = self.parameters[name].shape
            if len(shape) != 2 or 0 in shape:
                raise ValueError(
                    f"{call}: {self.shown(name)}: a weight is 2-D, the heads side by side, "
                    "and no side of it is 0"
                )
            if bias in self.parameters:
                why = f"{name} has {shape[1]} columns"
                need_shape(self.parameters[bias], shape[1:], call=call, name=bias, why=why)


def _columns(num_heads: int, size: int) -> str:
    """How many columns the keys may have: one head for each query head, or fewer to share."""
    fitting = [n * size for n in range(num_heads, 0, -1) if num_heads % n == 0]
    return " or ".join(map(str, fitting))
