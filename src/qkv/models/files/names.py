"""What a family of models is: its design, and how its files name and lay out the parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, Shape
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.files.tensors import FLOATS, TYPES, Tensors, digest, of_array
from qkv.models.network.designs import AnyDesign

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
QKV = tuple(f"blocks.*.attn.{name}" for name in PROJECTIONS[:3])
_TABLE, _OUTPUT = "embed.weight", "head.out_proj.weight"


@dataclass(frozen=True)
class Fused:
    """One of several parameters that files hold as one tensor, side by side; or the one of it.

    Attributes:
        name: of that tensor, `*` for the layer's number.
        index: which one this is.
        count: how many there are.
        groups: the columns fall into so many equal groups, each with a piece of every one: as
            many as there are heads, say, where each head's query, key and value are side by side.
        shares: how large each is beside the others; empty where all are of one size.

    >>> Fused("qkv", 1, 3).cut(np.arange(6)), Fused("qkv", 1, 3, groups=2).cut(np.arange(6))
    (array([2, 3]), array([1, 4]))
    >>> Fused("qkv", 1, 3, shares=(4, 1, 1)).cut(np.arange(6))
    array([4])
    """

    name: str
    index: int
    count: int
    groups: int = 1
    shares: tuple[int, ...] = ()

    @property
    def _shares(self) -> tuple[int, ...]:
        """How large each is beside the others."""
        return self.shares or (1,) * self.count

    def whole(self, columns: int) -> int:
        """How many columns all parts have, where this one has so many."""
        return columns * sum(self._shares) // self._shares[self.index]

    def cut(self, whole: Array) -> Array:
        """This one's columns, `(..., n)` of `(..., count * n)`."""
        *lead, columns = whole.shape
        one = columns // self.groups // sum(self._shares)
        begin, end = (one * sum(self._shares[: self.index + more]) for more in (0, 1))
        split = whole.reshape(*lead, self.groups, columns // self.groups)[..., begin:end]
        found: Array = split.reshape(*lead, self.groups * (end - begin))
        return found

    def join(self, parts: list[Array]) -> Array:
        """The whole of all parts in their order."""
        if self.count == 1:
            return parts[0]
        *lead, _ = parts[0].shape
        split = [part.reshape(*lead, self.groups, part.shape[-1] // self.groups) for part in parts]
        joined: Array = np.concatenate(split, axis=-1).reshape(*lead, -1)
        return joined


def fused(
    name: str, *parts: str, groups: int = 1, shares: tuple[int, ...] = ()
) -> dict[str, Fused]:
    """Our names of the parts that files hold as one tensor, in their order, each with its place.

    >>> fused("wi", "gate_proj", "up_proj")["up_proj"]
    Fused(name='wi', index=1, count=2, groups=1, shares=())
    """
    count = len(parts)
    return {part: Fused(name, index, count, groups, shares) for index, part in enumerate(parts)}


def projections(place: str, *theirs: str, ours: str = "blocks.*.attn.") -> dict[str, str]:
    """Our names of an attention's projections, each with what files call it behind `place`.

    >>> projections("h.*.", "q", "k", "v", "o")["blocks.*.attn.out_proj"]
    'h.*.o'
    """
    return {f"{ours}{name}": place + one for name, one in zip(PROJECTIONS, theirs, strict=True)}


@dataclass(frozen=True)
class Family:
    """Models of one `model_type`.

    Attributes:
        model_type: as config.json spells it.
        design: reads the sizes and options from a config.
        names: our name of a part -> the name in the files, or a `Fused` of it; `*` stands for the
            layer's number, and behind that for the expert's; a number in its place for that one
            alone.
        rename: from these names and a config to all names, where files depend on the config.
        heads: the names of the parts of heads, by the kind of head, for other kinds than that in
            `names`.
        defaults: the values of keys that a config leaves out.
        spellings: the names that the family has for a key, as for `Config`.
        layout: whether files hold the linear weights of blocks as (out, in) or as (in, out).
        prefix: what the files of a model with a head put before every name.
        old_prefix: what old files have in its place; written is today's.
        old: endings that old files have -> what they are called now.
        instead: a tensor -> the one that stands for it in files that lack it.
        body: the beginnings of names that belong to the model itself; a tensor of another name
            is a head that is not computed, which is kept.
        unused: patterns of tensors in the body that say nothing.
        copies: names in the files -> the tensor that it repeats, or stands for where that is
            left out.
        harmless: config keys of the family that have no say in what is computed.
    """

    model_type: str
    design: Callable[[Config], AnyDesign]
    names: Mapping[str, str | Fused]
    rename: Callable[[Mapping[str, str | Fused], Config], Mapping[str, str | Fused]] | None = None
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    spellings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    layout: Literal["out_in", "in_out"] = "out_in"
    prefix: str = ""
    old_prefix: str = ""
    old: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    body: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()

    def config(self, values: Mapping[str, Any], source: str) -> Config:
        """Return a config of this family; `source` is the name of the file in errors."""
        return Config(values, source, self.defaults, self.spellings)

    def today(self, place: str) -> str:
        """What a tensor of the files is called without the prefix and in today's spelling."""
        name = place.removeprefix(self.prefix).removeprefix(self.old_prefix)
        for old, new in self.old.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name

    def transposed(self, name: str) -> bool:
        """Whether files hold this parameter as (out, in), which we use as (in, out)."""
        out_first = self.layout == "out_in" or name.startswith("head.")
        return out_first and name.endswith("_proj.weight")


@dataclass(frozen=True)
class Names:
    """How the files of one model name its parameters.

    Attributes:
        family: its family.
        parts: our name of a part -> the name in the files, or a `Fused` of it.
    """

    family: Family
    parts: Mapping[str, str | Fused]

    @classmethod
    def of(cls, family: Family, config: Config) -> Names:
        """Those of a model with this config."""
        names = {**family.names, **family.heads.get(config.head(), {})}
        return cls(family, names if family.rename is None else family.rename(names, config))

    def place(self, name: str) -> tuple[str, Fused]:
        """The tensor that holds a parameter, and which part of it this is, of one for the whole.

        >>> family = Family("x", lambda config: None, {"blocks.*.attn.q_proj": "layer.*.query"})
        >>> Names.of(family, Config({}, "config.json")).place("blocks.12.attn.q_proj.weight")[0]
        'layer.12.query.weight'
        """
        numbers = re.findall(r"\b(?:blocks|experts)\.(\d+)\.", name)
        ways = name, re.sub(r"\b(blocks|experts)\.\d+\.", r"\1.*.", name)
        # each as a tensor of its own, or as the weight or the bias of a part
        known = [(way, part) for way in ways for part in (way, way.rpartition(".")[0])]
        way, part = next((one for one in known if one[1] in self.parts), (name, name))
        found = self.parts[part]
        piece = found if isinstance(found, Fused) else Fused(found, 0, 1)
        full = piece.name + way.removeprefix(part)
        for number in numbers:
            full = full.replace("*", number, 1)
        return full, piece


@dataclass(frozen=True)
class Weights:
    """What a model's files hold.

    Attributes:
        names: how they name the parameters.
        parameters: by our names, linear weights as (in, out).
        heads: tensors that are not computed with, by the names in the files.
        places: our name of a parameter -> the tensor of the files that it comes from.
        stored: the files that they were read from, or the digest of those; None where parameters
            were made or replaced.
    """

    names: Names
    parameters: MutableMapping[str, Array]
    heads: dict[str, Array] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    stored: Tensors | str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and copies take: the digest of the files, and not the files."""
        return {**self.__dict__, "stored": self.stored and self.sha256}

    @cached_property
    def sha256(self) -> str:
        """The digest of the tensors as they are stored, whatever type they were converted to.

        Where parameters were replaced, of the tensors as `Model.save` would write them.
        """
        if isinstance(self.stored, str):
            return self.stored
        if self.stored is not None:
            return self.stored.sha256()
        return digest((name, *of_array(array)) for name, array in self.to_files().items())

    def to_files(self) -> dict[str, Array]:
        """The tensors under the names that they have in files."""
        files: dict[str, Array] = {}
        parts: dict[str, dict[int, Array]] = {}
        for name, array in self.parameters.items():
            place, fused = self.names.place(name)
            place = self.places.get(name, place)
            parts.setdefault(place, {})[fused.index] = array
            if len(parts[place]) == fused.count:
                whole = fused.join([part for _, part in sorted(parts[place].items())])
                files[place] = whole.T if self.names.family.transposed(name) else whole
        return {**files, **self.heads}


def read_weights(names: Names, design: AnyDesign, tensors: Tensors, dtype: Any = None) -> Weights:
    """The weights of a model, those that are computed with in one type.

    Args:
        names: what the files call them.
        design: which there must be, and of which shapes.
        tensors: the files.
        dtype: the type to have; without it float64 where the files have it, otherwise float32.

    All names, types and shapes are checked before a number is read.

    Raises:
        ModelError: a tensor is missing, has another shape or type, or is not known.
    """
    family = names.family
    stored = _stored_names(family, tensors)
    tied = _tied(names, design)
    instead = {**family.instead, **tied}
    wanted: dict[str, tuple[str, Fused]] = {}  # ours -> theirs
    # stops at the first missing one
    for name, shape in chain(design.shapes(), _outputs(tied, stored, tensors)):
        theirs, fused = names.place(name)
        if theirs not in stored and instead.get(theirs) in stored:
            theirs = instead[theirs]
        if theirs not in stored:
            raise ModelError(f"{tensors.source}: there is no tensor {theirs}")
        tensor = tensors[stored[theirs]]
        expected = (*shape[:-1], *map(fused.whole, shape[-1:]))  # one number has no columns
        expected = expected[::-1] if family.transposed(name) else expected
        if tensor.shape != expected:
            raise ModelError(
                f"{tensors.source}: {theirs} has shape {tensor.shape} and must have "
                f"{expected} by the sizes in config.json"
            )
        if tensor.kind not in FLOATS:
            raise ModelError(
                f"{tensors.source}: {theirs} is {tensor.kind}: weights are {', '.join(FLOATS)}"
            )
        wanted[name] = theirs, fused
    known = {theirs for theirs, _ in wanted.values()}
    heads = {}
    for name, place in stored.items():
        if name in known or any(re.fullmatch(pattern, name) for pattern in family.unused):
            continue
        if family.body and name.startswith(family.body):
            raise ModelError(
                f"{tensors.source}: {name} is not a part of the {family.model_type} model that "
                "config.json describes"
            )
        if tensors[place].kind in TYPES:
            heads[place] = tensors[place].read()
    double = any(tensors[stored[theirs]].kind == "F64" for theirs in known)
    kind = np.dtype(dtype or (np.float64 if double else np.float32))
    parameters, places = {}, {}
    for name, (theirs, fused) in wanted.items():
        array = tensors[stored[theirs]].read()
        array = array.T if family.transposed(name) else array
        array = fused.cut(array) if fused.count > 1 else array
        parameters[name] = array.astype(kind, copy=False)
        begins = tuple(filter(None, (family.prefix, family.old_prefix)))
        prefix = family.prefix if stored[theirs].startswith(begins) else ""
        places[name] = prefix + theirs
    return Weights(names, parameters, heads, places, tensors)


def _tied(names: Names, design: AnyDesign) -> dict[str, str]:
    """The token table -> the output matrix, by the names in files, where they are to be one."""
    tied = design.head is not None and design.head.tied
    return {names.place(_TABLE)[0]: names.place(_OUTPUT)[0]} if tied else {}


def _outputs(
    tied: Mapping[str, str], stored: dict[str, str], tensors: Tensors
) -> Iterator[tuple[str, Shape]]:
    """The output matrix of a tied head and its shape, if it is not the table after all.

    One that is the table again is taken out of `stored`.
    """
    for table, output in tied.items():
        if table in stored and output in stored:
            if tensors[stored[output]].same(tensors[stored[table]]):
                del stored[output]
            else:
                yield _OUTPUT, tensors[stored[table]].shape[::-1]  # (D, V)


def _stored_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """The names without prefix and in today's spelling -> the names in the file."""
    stored: dict[str, str] = {}
    for place in tensors:
        name = family.today(place)
        if name in stored:
            raise ModelError(f"{tensors.source}: {place} and {stored[name]} are the same tensor")
        stored[name] = place
    for copy, name in family.copies.items():
        if copy in stored:
            place = stored.pop(copy)
            if not tensors[place].same(tensors[stored.setdefault(name, place)]):
                raise ModelError(
                    f"{tensors.source}: {place} is another tensor than {name}, which qkv does not "
                    "support: they must be the same"
                )
    return stored
