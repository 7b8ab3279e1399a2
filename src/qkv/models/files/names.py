"""Families of models, and the names and layouts of their parameters in files."""

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal

import numpy as np

from qkv.arrays import Array, DType, Shape
from qkv.models.files._tensors import FLOATS, KINDS, TYPES, Stored, Tensors, digest
from qkv.models.files.config import Config
from qkv.models.files.read import ModelError
from qkv.models.network.design import AnyDesign
from qkv.ops import BlockMatrix, StoredMatrix, int8_weight
from qkv.ops.kernel import is_bfloat16, variant

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
QKV = tuple(f"blocks.*.attn.{name}" for name in PROJECTIONS[:3])
_NUMBERED = r"\b(?:blocks|experts|[qk]_norm)\."  # the parts of names that a number follows
_TABLE, _OUTPUT = "embed.weight", "head.out_proj.weight"
_IN_INT8 = re.compile(r"\bblocks\.\d+\..*(?<!router)_proj\.weight$")


@dataclass(frozen=True)
class Fused:
    """The tensor that holds a parameter, and the columns of the parameter in the tensor.

    A tensor may hold several parameters side by side, such as query, key and value.

    Attributes:
        name: the name of the tensor, with `*` for the layer's number.
        index: the index of this parameter among the tensor's parameters, counted from 0.
        count: the number of parameters in the tensor.
        groups: the number of equal groups of columns. Each group holds some columns of every
            parameter; for example, a group holds one head's columns of query, key and value.
        shares: how many columns each parameter has, relative to the other parameters. For example,
            (4, 1, 1) means that the first parameter has four times as many columns as each of the
            others. An empty tuple means that all parameters have equally many columns.

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
        """The relative sizes of the parameters; (1, 1, ...) if all have the same size."""
        return self.shares or (1,) * self.count

    def whole(self, columns: int) -> int:
        """Return the tensor's number of columns, given this parameter's number of columns."""
        return columns * sum(self._shares) // self._shares[self.index]

    def cut(self, whole: Array) -> Array:
        """Return this parameter's columns `(..., n)` of the tensor `(..., count * n)`."""
        *lead, columns = whole.shape
        unit = columns // self.groups // sum(self._shares)
        begin, end = (unit * sum(self._shares[: self.index + more]) for more in (0, 1))
        split = whole.reshape(*lead, self.groups, columns // self.groups)[..., begin:end]
        return split.reshape(*lead, self.groups * (end - begin))

    def join(self, parts: list[Array]) -> Array:
        """Join the parameters, in order, into the tensor that the files store."""
        if self.count == 1:
            return parts[0]
        *lead, _ = parts[0].shape
        split = [part.reshape(*lead, self.groups, part.shape[-1] // self.groups) for part in parts]
        return np.concatenate(split, axis=-1).reshape(*lead, -1)


def fused(name: str, *parts: str, shares: tuple[int, ...] = ()) -> dict[str, Fused]:
    """Map the name of each part to a `Fused`, which gives the part's columns in the tensor `name`.

    >>> fused("wi", "gate_proj", "up_proj")["up_proj"]
    Fused(name='wi', index=1, count=2, groups=1, shares=())
    """
    count = len(parts)
    return {part: Fused(name, index, count, shares=shares) for index, part in enumerate(parts)}


def projections(prefix: str, *theirs: str, ours: str = "blocks.*.attn.") -> dict[str, str]:
    """Map qkv's names of an attention layer's projections to the names in the files.

    >>> projections("h.*.", "q", "k", "v", "o")["blocks.*.attn.out_proj"]
    'h.*.o'
    """
    return {f"{ours}{our}": prefix + their for our, their in zip(PROJECTIONS, theirs, strict=True)}


PartNames = Mapping[str, str | Fused]  # Maps qkv's name of a part to its name in the files.
Describe = Callable[[Config], AnyDesign]  # A function that returns the design for a config.
Rename = Callable[[PartNames, Config], PartNames]  # The type of `Family.rename`.


@dataclass(frozen=True)
class Family:
    """A family: all models with the same `model_type`.

    Attributes:
        model_type: the value in config.json.
        design: a function that returns the design for a config.
        names: maps qkv's name of a part to the name in the files, or to a `Fused`. The first `*`
            stands for the layer's number, the second `*` for the number of the expert or the head.
            An entry with a number instead of `*` applies only to the layer with this number.
        rename: if the names depend on the config, a function that takes `names` and a config, and
            returns all names.
        heads: maps some kinds of output head, such as "PreTraining", to the names of the head's
            parts. For a model with such a head, these names replace entries of `names`.
        defaults: the values for keys missing in a config.
        spellings: the names of each key in this family, as in `Config`.
        layout: whether files hold the linear weights of blocks as (out, in) or as (in, out).
        prefix: a prefix, such as "bert.". In the files of a model with a head, the names of the
            body's tensors begin with this prefix.
        old_prefix: the prefix of all names in old files.
        old: maps suffixes of tensor names in old files to the suffixes in new files.
        instead: maps the name of an optional tensor to the name of a substitute. If the optional
            tensor is missing, qkv reads the substitute.
        body: the prefixes of the names of all tensors that qkv reads. Tensors without these
            prefixes belong to heads that qkv does not compute; `Model.save` also writes these
            tensors.
        unused: patterns of tensor names; qkv ignores each tensor of the body whose name matches a
            pattern.
        copies: maps the name of a tensor to the name of a tensor with the same values. A file may
            have only one of these two tensors.
        harmless: keys of a config that do not change a forward pass.
    """

    model_type: str
    design: Describe
    names: PartNames
    rename: Rename | None = None
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
        """Return a config of this family; `source` is the name of the file, for errors."""
        return Config(values, source, self.defaults, self.spellings)

    def today(self, stored: str) -> str:
        """Remove the prefix from a tensor's name, and replace an old name with the new name."""
        name = stored.removeprefix(self.prefix).removeprefix(self.old_prefix)
        for old, new in self.old.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name

    def is_transposed(self, name: str) -> bool:
        """Return whether files store this parameter transposed, as (out, in)."""
        out_first = self.layout == "out_in" or name.startswith("head.")
        return out_first and name.endswith("_proj.weight")


@dataclass(frozen=True)
class Names:
    """The names of one model's parameters in the model's files.

    Attributes:
        family: the model's family.
        parts: maps qkv's name of a part to the name in the files, or to a `Fused`.
    """

    family: Family
    parts: PartNames

    @classmethod
    def of(cls, family: Family, config: Config) -> "Names":
        """Return the names for a model with this config."""
        names = {**family.names, **family.heads.get(config.head(), {})}
        return cls(family, names if family.rename is None else family.rename(names, config))

    def tensor_of(self, name: str) -> tuple[str, Fused]:
        """Return the name of a parameter's tensor in files, and the parameter's `Fused`.

        >>> family = Family("x", lambda config: None, {"blocks.*.attn.q_proj": "layer.*.query"})
        >>> Names.of(family, Config({}, "config.json")).tensor_of("blocks.12.attn.q_proj.weight")[0]
        'layer.12.query.weight'
        """
        numbers = re.findall(rf"{_NUMBERED}(\d+)\.", name)
        spelled = name, re.sub(rf"({_NUMBERED})\d+\.", r"\1*.", name)
        # The keys of `parts` may end with ".weight" or ".bias", or omit this ending.
        pairs = [(whole, part) for whole in spelled for part in (whole, whole.rpartition(".")[0])]
        whole, part = next((pair for pair in pairs if pair[1] in self.parts), (name, name))
        if part not in self.parts:
            raise ModelError(
                f"the family {self.family.model_type!r} has no name for {name}: add one to the "
                "argument `names` of qkv.models.register"
            )
        theirs = self.parts[part]
        tensor = theirs if isinstance(theirs, Fused) else Fused(theirs, 0, 1)
        full = tensor.name + whole.removeprefix(part)
        for number in numbers:
            full = full.replace("*", number, 1)
        return full, tensor


@dataclass(frozen=True)
class Storage:
    """The contents of a model's files.

    Attributes:
        names: the names of parameters in the files.
        parameters: the parameters, keyed by qkv's names; linear weights have shape (in, out).
        heads: the tensors of heads that qkv does not compute, keyed by their names in the files.
        tensor_names: maps qkv's name of a parameter to the name of its tensor in the files.
        stored: the tensors in the files. In a copied or unpickled object, `stored` is only the
            digest of the tensors. If parameters were created or replaced, `stored` is None.
    """

    names: Names
    parameters: MutableMapping[str, Array]
    heads: dict[str, Array] = field(default_factory=dict)
    tensor_names: dict[str, str] = field(default_factory=dict)
    stored: Tensors | str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copies, with a digest instead of the files' tensors."""
        return {**self.__dict__, "stored": self.stored and self.sha256}

    @cached_property
    def sha256(self) -> str:
        """The digest of the tensors in the files, before any conversion to a different type.

        If parameters were replaced, this is the digest of the tensors that `Model.save` would
        write.
        """
        if isinstance(self.stored, str):
            return self.stored
        if self.stored is not None:
            return self.stored.sha256()
        return digest(
            (name, KINDS[array.dtype.name], array.shape, array.tobytes())
            for name, array in self.to_files().items()
        )

    def blocks_of(self, name: str) -> tuple[str, Array] | None:
        """Return what `Model.blocks_of` returns."""
        if not isinstance(self.stored, Tensors) or name not in self.tensor_names:
            return None
        tensor, fused = self.stored.get(self.tensor_names[name]), self.names.tensor_of(name)[1]
        is_transposed = self.names.family.is_transposed(name)
        return None if tensor is None else tensor.raw_rows(is_transposed, fused.cut)

    def to_files(self) -> dict[str, Array]:
        """Return the tensors, keyed by their names in files."""
        files: dict[str, Array] = {}
        parts: dict[str, dict[int, Array]] = {}
        for name, array in self.parameters.items():
            tensor, fused = self.names.tensor_of(name)
            tensor = self.tensor_names.get(name, tensor)
            parts.setdefault(tensor, {})[fused.index] = array
            if len(parts[tensor]) == fused.count:
                whole = fused.join([part for _, part in sorted(parts[tensor].items())])
                files[tensor] = whole.T if self.names.family.is_transposed(name) else whole
        return {**files, **self.heads}


def read_weights(names: Names, design: AnyDesign, tensors: Tensors, dtype: Any = None) -> Storage:
    """Read the weights of a model, and convert all parameters to one dtype.

    All names, types and shapes are checked before any values are read.

    Args:
        names: the names of parameters in the files.
        design: the design, which defines the names and shapes of the parameters.
        tensors: the tensors in the files.
        dtype: the dtype of the parameters; by default float64 if the files contain float64, else
            float32. With int8, matrices in blocks become `BlockMatrix`, and all other parameters
            become float32. If no matrix is in blocks, parameters are float32, and `in_int8` marks
            some of them. Matrices that would be converted become `StoredMatrix`.

    Raises:
        ModelError: a tensor is missing or unknown, or has the wrong shape or type.
    """
    family = names.family
    stored = _stored_names(family, tensors)
    # With tied weights, `tied` maps the name of the token table to the name of the output matrix.
    tied: dict[str, str] = {}
    if design.head is not None and design.head.tied:
        tied[names.tensor_of(_TABLE)[0]] = names.tensor_of(_OUTPUT)[0]
    instead = {**family.instead, **tied}
    wanted: dict[str, tuple[str, Fused, Shape]] = {}  # The tensor and the shape of each parameter.
    # A broken config may set a huge number of layers. The generator avoids a huge list of names.
    for name, shape in chain(design.shapes(), _outputs(tied, stored, tensors)):
        theirs, fused = names.tensor_of(name)
        if theirs not in stored and instead.get(theirs) in stored:
            theirs = instead[theirs]
        if theirs not in stored:
            raise ModelError(
                f"{tensors.source}: the tensor {theirs} is missing; save or download the model "
                "again"
            )
        tensor = tensors[stored[theirs]]
        # Slicing a shape also works for a scalar, whose shape is ().
        expected = (*shape[:-1], *map(fused.whole, shape[-1:]))
        expected = expected[::-1] if family.is_transposed(name) else expected
        if tensor.shape != expected:
            raise ModelError(
                f"{tensors.source}: {theirs} has shape {tensor.shape}, but must have "
                f"{expected} according to its config"
            )
        if tensor.kind not in FLOATS:
            raise ModelError(
                f"{tensors.source}: {theirs} is {tensor.kind}; it must be one of "
                f"{', '.join(FLOATS)}"
            )
        wanted[name] = theirs, fused, shape
    known = {theirs for theirs, *_ in wanted.values()}
    heads = {}
    for name, in_file in stored.items():
        if name in known or any(re.fullmatch(pattern, name) for pattern in family.unused):
            continue
        if family.body and name.startswith(family.body):
            raise ModelError(
                f"{tensors.source}: {name} does not belong to the {family.model_type} model in "
                "config.json; correct config.json, or remove the tensor"
            )
        if tensors[in_file].kind in TYPES:
            heads[in_file] = tensors[in_file].read()
    double = any(tensors[stored[theirs]].kind == "F64" for theirs in known)
    kind, in_blocks = np.dtype(dtype or (np.float64 if double else np.float32)), False
    if kind == np.int8:
        kind, in_blocks = np.dtype(np.float32), True
    parameters, tensor_names = {}, {}
    for name, (theirs, fused, shape) in wanted.items():
        tensor, matrix, is_transposed = tensors[stored[theirs]], None, family.is_transposed(name)
        if in_blocks and (name == _TABLE or name.endswith("_proj.weight")):
            matrix = tensor.packed(is_transposed, fused.cut)
        if matrix is None and _is_lazy(name, tensor, fused, shape, kind):
            is_exact = in_blocks and tensor.has_exact_rows
            by_row = is_exact and fused.count == 1  # other tensors may have to read all rows
            matrix = StoredMatrix(
                partial(_read_parameter, tensor, is_transposed, fused),
                shape,
                kind,
                narrow=kind if is_bfloat16(kind) else tensor.narrow,
                rows_of=tensor.read_rows if name == _TABLE else None,
                columns_of=tensor.read_rows if by_row and is_transposed else None,
                exact=(is_exact and not is_transposed, is_exact and is_transposed),
            )
        if matrix is None:
            array = _read_parameter(tensor, is_transposed, fused)
            # a view of a small array would keep up to 2 MB of the matrices around it in memory
            matrix = array.astype(kind, copy=tensor.is_between_blocks or array.ndim < 2)
        parameters[name] = matrix
        begins = tuple(filter(None, (family.prefix, family.old_prefix)))
        prefix = family.prefix if stored[theirs].startswith(begins) else ""
        tensor_names[name] = prefix + theirs
    if in_blocks and not any(isinstance(matrix, BlockMatrix) for matrix in parameters.values()):
        parameters = in_int8(parameters, design)
    return Storage(names, parameters, heads, tensor_names, tensors)


def _read_parameter(tensor: Stored, is_transposed: bool, fused: Fused) -> Array:
    """Return the values of a parameter, in the dtype of the file."""
    array = tensor.read()
    array = array.T if is_transposed else array
    return fused.cut(array) if fused.count > 1 else array


def _is_lazy(name: str, tensor: Stored, fused: Fused, shape: Shape, kind: DType) -> bool:
    """Return whether a parameter is read when its values are needed.

    This is true for matrices whose values in memory would only duplicate the kernel's packed copy
    or the mapped file.
    """
    if variant() is None or kind == np.float64 or len(shape) != 2:
        return False
    if tensor.is_mapped_as(kind) and fused.groups == 1:
        return False
    return name.endswith("_proj.weight") or name == _TABLE


def in_int8(parameters: Mapping[str, Array], design: AnyDesign) -> dict[str, Array]:
    """Return the parameters; mark the weights of linear layers for products in int8.

    The marked weights are those of the blocks, except routers of experts, and the output matrix of
    a head that predicts words. Tensors of several experts stay float32.
    """
    head, names = design.head, set[str]()
    if head is not None and head.pool is None and not (head.classes or head.embeds):
        names = {_OUTPUT, _TABLE} if head.tied else {_OUTPUT}
    return {
        name: int8_weight(array) if name in names or _IN_INT8.search(name) else array
        for name, array in parameters.items()
    }


def _outputs(
    tied: Mapping[str, str], stored: dict[str, str], tensors: Tensors
) -> Iterator[tuple[str, Shape]]:
    """Yield the name and shape of a stored output matrix that differs from the token table.

    The config of a model with tied weights says that the output matrix equals the token table. If
    the files store an output matrix that equals the token table, remove the matrix from `stored`.
    """
    for table, output in tied.items():
        if table in stored and output in stored:
            if tensors[stored[output]].same(tensors[stored[table]]):
                del stored[output]
            else:
                yield _OUTPUT, tensors[stored[table]].shape[::-1]  # (D, V)


def _stored_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """Return `{current name without the prefix: name in the files}` for all tensors."""
    stored: dict[str, str] = {}
    for in_file in tensors:
        name = family.today(in_file)
        if name in stored:
            raise ModelError(
                f"{tensors.source}: {in_file} and {stored[name]} are names of the same tensor; "
                "keep one of them"
            )
        stored[name] = in_file
    for copy, name in family.copies.items():
        if copy in stored:
            in_file = stored.pop(copy)
            if not tensors[in_file].same(tensors[stored.setdefault(name, in_file)]):
                raise ModelError(
                    f"{tensors.source}: {in_file} differs from {name}, but qkv supports only "
                    "models in which the two are equal"
                )
    return stored
