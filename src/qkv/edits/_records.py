"""Records of edits, and the JSON Schema of a record.

The function `edits_of` converts the arguments `edit`, `ablate` and `hide` to records.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from qkv._argument_errors import type_error, value_error
from qkv.arrays import is_whole_number, quote


class Field(NamedTuple):
    """A field of a record, other than `op`.

    Attributes:
        kind: the type of the value, by its name in the schema, such as "token" or "layer".
        needed: whether a record must have the field.
        choices: the values that the schema lists; empty if the schema does not list values.
    """

    kind: str
    needed: bool
    choices: tuple[str, ...] = ()


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a list of edits.

    >>> schema()["$defs"]["hide"]["description"]
    'No query may attend to this token.'
    """
    text = files("qkv.edits").joinpath("record_schema.json").read_text("utf-8")
    return dict(json.loads(text))


@cache
def operations() -> dict[str, dict[str, Field]]:
    """Return the fields of each kind of record, keyed by `op`.

    >>> operations()["hide"]
    {'token': Field(kind='token', needed=True, choices=())}
    """
    defined = schema()["$defs"]
    kinds: dict[str, dict[str, Field]] = {}
    for op in map(_name, schema()["items"]["oneOf"]):
        fields, needed = defined[op]["properties"], defined[op]["required"]
        kinds[op] = {
            name: Field(_name(field), name in needed, tuple(defined[_name(field)].get("enum", ())))
            for name, field in fields.items()
            if name != "op"
        }
    return kinds


def _name(reference: dict[str, str]) -> str:
    """Return the name to which a JSON reference points: "token" for {"$ref": "#/$defs/token"}."""
    return reference["$ref"].rpartition("/")[2]


# The heads to ablate: (layer, head), or (layer, None) for all heads of a layer. A mapping such as
# {(0, 4): "mean"} also sets the new output of each head: "zero", "mean" or a vector (d,).
Ablate = Iterable[tuple[int, int | None]] | Mapping[tuple[int, int | None], Any]
# The words, positions and edges to mask. An edge is (query, key), (query, key, layer) or
# (query, key, layer, head).
Hide = str | int | Iterable[str | int | tuple[int, ...]]
# A mapping from activations to functions or replacement arrays; or a list of records.
Edit = Mapping[Any, Any] | Sequence[Mapping[str, Any]] | None

_EDGE = ("query", "key", "layer", "head")
# The sources of the records that are made from `hide=` and `ablate=`.
_HIDE, _ABLATE = "`hide`", "`ablate`"


class Record(NamedTuple):
    """One edit that JSON can express.

    Attributes:
        fields: the fields of the schema, including "op". A record made from `hide=` may have a
            word as its token. A record made from `hide=` or `ablate=` may have negative positions,
            layers and heads, which count from the end.
        source: the name of the record in error messages ("`hide`", "`ablate`", or one such as
            "edit[2] (mask)").
    """

    fields: Mapping[str, Any]
    source: str

    @property
    def op(self) -> str:
        """The kind of record."""
        return str(self.fields["op"])

    @property
    def is_argument(self) -> bool:
        """Whether the record was made from `hide=` or `ablate=`."""
        return self.source in (_HIDE, _ABLATE)

    @property
    def is_hide_argument(self) -> bool:
        """Whether the record was made from `hide=`."""
        return self.source == _HIDE


@dataclass(frozen=True, eq=False)
class Edits:
    """The edits of a call, not yet checked against the model and the texts.

    Attributes:
        records: the edits that JSON can express, in the given order.
        changes: the edits that only Python can express (functions and arrays), keyed by activation.
        knows_means: whether all texts are read before the first edit, so that edits can use their
            means.
    """

    records: tuple[Record, ...] = ()
    changes: Mapping[Any, Any] = field(default_factory=dict)
    knows_means: bool = True

    def __bool__(self) -> bool:
        return bool(self.records or self.changes)


def edits_of(
    edit: Edit,
    ablate: Ablate = (),
    hide: Hide = (),
    *,
    argument: str = "edit",
    knows_means: bool = True,
) -> Edits:
    """Convert the arguments `edit`, `ablate` and `hide` to one `Edits` object.

    Args:
        edit: a mapping from activations to functions and arrays, or a list of records.
        ablate: the heads to ablate, as (layer, head); (layer, None) means all heads of the layer.
        hide: the words, positions and edges to mask.
        argument: the name of the argument `edit` in error messages. For records from a file, it is
            "edits".
        knows_means: as in `Edits`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a record has an unknown op or an unknown field, or lacks a field.

    >>> [one.fields for one in edits_of(None, [(0, 4)], ["river"]).records]
    [{'op': 'ablate', 'layer': 0, 'head': 4}, {'op': 'hide', 'token': 'river'}]
    """
    is_list = isinstance(edit, list | tuple)
    if edit is not None and not is_list and not isinstance(edit, Mapping):
        raise type_error(
            f"`{argument}` is {quote(edit)}; pass a mapping from an activation to a "
            'function or an array, such as {("resid_post", 0): f}, or a list of records, '
            'such as [{"op": "hide", "token": 2}]'
        )
    records = [_record(x, f"{argument}[{n}]") for n, x in enumerate(edit or ())] if is_list else []
    all_records = (*records, *_read_ablate(ablate), *_read_hide(hide))
    return Edits(all_records, dict(edit) if isinstance(edit, Mapping) else {}, knows_means)


def _record(one: Any, source: str) -> Record:
    """Check a record against the schema; return the record without the fields that are None."""
    known = operations()
    if not isinstance(one, Mapping):
        raise type_error(
            f'{source} is {quote(one)}; pass a record, such as {{"op": "hide", "token": 2}}'
        )
    op = one.get("op")
    if not isinstance(op, str) or op not in known:
        raise value_error(f"{source} has op {quote(op)}: it must be one of {', '.join(known)}")
    fields = {name: value for name, value in one.items() if value is not None}
    source = f"{source} ({op})"
    missing = [name for name, about in known[op].items() if about.needed and name not in fields]
    unknown = [name for name in fields if name not in known[op] and name != "op"]
    if missing or unknown:
        fault = f"has no {missing[0]}" if missing else f"has {quote(unknown[0])}"
        raise value_error(f"{source} {fault}: {_takes(op)}")
    for name, value in fields.items():
        choices = known[op][name].choices if name != "op" else ()
        if choices and (not isinstance(value, str) or value not in choices):
            raise value_error(
                f"{source} has {name} {quote(value)}: it must be one of {', '.join(choices)}"
            )
    required = schema()["$defs"][op].get("dependentRequired", {})
    for name in fields:
        for other in set(required.get(name, ())) - set(fields):
            raise value_error(
                f"{source} has {name} {quote(fields[name])} and no {other}; pass the {other} too"
            )
    return Record(fields, source)


def _takes(op: str) -> str:
    """Describe in an error message which fields a kind of record requires and which it allows.

    >>> _takes("mask")
    'it needs query, key and may have layer, head'
    """
    fields = operations()[op].items()
    needed = ", ".join(name for name, about in fields if about.needed)
    others = ", ".join(name for name, about in fields if not about.needed)
    parts = [f"needs {needed}"] * bool(needed) + [f"may have {others}"] * bool(others)
    return "it " + (" and ".join(parts) or "has no field except op")


def _read_ablate(ablate: Any) -> list[Record]:
    """Convert `ablate` to records. Negative indices of layers and heads are allowed."""
    many = isinstance(ablate, Iterable) and not isinstance(ablate, str | bytes)
    records = []
    for pair in ablate if many else [ablate]:
        numbers = tuple(pair) if isinstance(pair, tuple | list) else ()
        whole = len(numbers) == 2 and is_whole_number(numbers[0])
        if not whole or not (numbers[1] is None or is_whole_number(numbers[1])):
            raise type_error(
                f"`ablate` has {quote(pair)}; pass (layer, head) pairs, for example [(0, 4)]"
            )
        fields: dict[str, Any] = {"op": "ablate", "layer": int(numbers[0])}
        if numbers[1] is not None:
            fields["head"] = int(numbers[1])
        if isinstance(ablate, Mapping):
            fields["with"] = ablate[pair]
        records.append(Record(fields, _ABLATE))
    return records


def _read_hide(hide: Any) -> list[Record]:
    """Convert `hide` to records. Negative positions, layers and heads are allowed."""
    many = isinstance(hide, Iterable) and not isinstance(hide, str | bytes | Mapping)
    if isinstance(hide, tuple) and 2 <= len(hide) <= 4 and all(map(is_whole_number, hide)):
        raise type_error(
            f"`hide` is {hide}, which could mean positions or one edge; pass {[*hide]} for "
            f"positions, or {[hide]} for the edge"
        )
    records = []
    for one in hide if many else [hide]:
        numbers = tuple(one) if isinstance(one, tuple | list) else ()
        if isinstance(one, str) or is_whole_number(one):
            fields = {"op": "hide", "token": one if isinstance(one, str) else int(one)}
        elif 2 <= len(numbers) <= 4 and all(map(is_whole_number, numbers)):
            fields = {"op": "mask", **dict(zip(_EDGE, map(int, numbers), strict=False))}
        else:
            raise type_error(
                f"`hide` has {quote(one)}; pass words, positions as whole "
                "numbers, or edges as (query, key), (query, key, layer) or "
                "(query, key, layer, head)"
            )
        records.append(Record(fields, _HIDE))
    return records
