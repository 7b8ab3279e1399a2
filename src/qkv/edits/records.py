"""The records of edits: their JSON Schema, and `edit`, `ablate` and `hide` as records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from qkv.arrays import is_whole_number, shown


class Field(NamedTuple):
    """What a record has beside its `op`.

    Attributes:
        kind: the definition in the schema that describes it.
        needed: whether a record must have it.
        choices: what it may be, where the schema lists that; else empty.
    """

    kind: str
    needed: bool
    choices: tuple[str, ...] = ()


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a list of edits.

    >>> schema()["$defs"]["hide"]["description"]
    'No query sees this token.'
    """
    found: dict[str, Any] = json.loads(
        files("qkv.edits").joinpath("schema.json").read_text("utf-8")
    )
    return found


@cache
def operations() -> dict[str, dict[str, Field]]:
    """The fields of each kind of record, by its `op`.

    >>> operations()["hide"]
    {'token': Field(kind='token', needed=True, choices=())}
    """
    defined = schema()["$defs"]
    found: dict[str, dict[str, Field]] = {}
    for one in map(_name, schema()["items"]["oneOf"]):
        fields, needed = defined[one]["properties"], defined[one]["required"]
        found[one] = {
            name: Field(_name(field), name in needed, tuple(defined[_name(field)].get("enum", ())))
            for name, field in fields.items()
            if name != "op"
        }
    return found


def _name(reference: dict[str, str]) -> str:
    """The name of the definition that a part of the schema refers to."""
    return reference["$ref"].rpartition("/")[2]


# Heads, and layers whole; or what takes the place of what each gives: "zero", "mean", or (d,).
Ablate = Iterable[tuple[int, int | None]] | Mapping[tuple[int, int | None], Any]
# Words, places, and edges: (query, key), (query, key, layer), (query, key, layer, head).
Hide = str | int | Iterable[str | int | tuple[int, ...]]
# From an activation to a function of its array, or to the array that takes its place; or records.
Edit = Mapping[Any, Any] | Sequence[Mapping[str, Any]] | None

_EDGE = ("query", "key", "layer", "head")


class Record(NamedTuple):
    """One thing that is done differently.

    Attributes:
        fields: as the schema describes them, "op" among them. What `hide=` and `ablate=` say may
            also have words in the place of tokens, and numbers that count from the end.
        source: what errors call it: "hide", "ablate", or "edit[2] (mask)".
    """

    fields: Mapping[str, Any]
    source: str

    @property
    def op(self) -> str:
        """The kind of record."""
        return str(self.fields["op"])

    @property
    def is_argument(self) -> bool:
        """Whether it was written as `hide=` or `ablate=`, and not as a record."""
        return self.source in ("hide", "ablate")


@dataclass(frozen=True, eq=False)
class Edits:
    """What a call does differently, before it is known to fit a model and its texts.

    Attributes:
        call: who is named in an error.
        records: what JSON can say, in the order it was given.
        changes: what Python alone can say: functions and arrays, by the activations they change.
    """

    call: str = ""
    records: tuple[Record, ...] = ()
    changes: Mapping[Any, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.records or self.changes)


def edits_of(
    edit: Edit, ablate: Ablate = (), hide: Hide = (), *, call: str, given: str = "edit"
) -> Edits:
    """The three arguments as one object.

    Args:
        edit: functions and arrays by activations, or records.
        ablate: the heads to leave out, None for all of a layer.
        hide: the words, places and edges that are not looked at.
        call: who is named in an error.
        given: what an error calls the list of records.

    Raises:
        TypeError: one of them is something else.
        ValueError: a record has an op or a field that the schema does not have, or lacks one.

    >>> [one.fields for one in edits_of(None, [(0, 4)], ["river"], call="trace").records]
    [{'op': 'ablate', 'layer': 0, 'head': 4}, {'op': 'hide', 'token': 'river'}]
    """
    is_list = isinstance(edit, list | tuple)
    if edit is not None and not is_list and not isinstance(edit, Mapping):
        raise TypeError(
            f"{call}: {given} is {shown(edit)}: give a mapping from an activation to a function or "
            'an array, as {("resid_post", 0): f}, or a list of records, as '
            '[{"op": "hide", "token": 2}]'
        )
    own = (
        [_record(one, f"{given}[{n}]", call) for n, one in enumerate(edit or ())] if is_list else []
    )
    records = (*own, *_ablated(ablate, call), *_hidden(hide, call))
    return Edits(call, records, dict(edit) if isinstance(edit, Mapping) else {})


def _record(one: Any, source: str, call: str) -> Record:
    """A record with the fields that the schema names, those left out that are None."""
    known = operations()
    if not isinstance(one, Mapping):
        raise TypeError(
            f'{call}: {source} is {shown(one)}: give a record, as {{"op": "hide", "token": 2}}'
        )
    op = one.get("op")
    if not isinstance(op, str) or op not in known:
        raise ValueError(
            f"{call}: {source} has op {shown(op)}: it must be one of {', '.join(known)}"
        )
    fields = {name: value for name, value in one.items() if value is not None}
    source = f"{source} ({op})"
    missing = [name for name, about in known[op].items() if about.needed and name not in fields]
    unknown = [name for name in fields if name not in known[op] and name != "op"]
    if missing or unknown:
        what = f"has no {missing[0]}" if missing else f"has {shown(unknown[0])}"
        raise ValueError(f"{call}: {source} {what}: {_takes(op)}")
    for name, value in fields.items():
        choices = known[op][name].choices if name != "op" else ()
        if choices and (not isinstance(value, str) or value not in choices):
            raise ValueError(
                f"{call}: {source} has {name} {shown(value)}: it must be one of "
                f"{', '.join(choices)}"
            )
    for name, others in schema()["$defs"][op].get("dependentRequired", {}).items():
        for other in others:
            if name in fields and other not in fields:
                raise ValueError(
                    f"{call}: {source} has {name} {shown(fields[name])} and no {other}: give the "
                    f"{other} too"
                )
    return Record(fields, source)


def _takes(op: str) -> str:
    """What a record of a kind has, in words.

    >>> _takes("mask")
    'it needs query, key and may have layer, head'
    """
    fields = operations()[op].items()
    needed = ", ".join(name for name, about in fields if about.needed)
    others = ", ".join(name for name, about in fields if not about.needed)
    parts = [f"needs {needed}"] * bool(needed) + [f"may have {others}"] * bool(others)
    return "it " + (" and ".join(parts) or "has nothing but op")


def _ablated(ablate: Any, call: str) -> list[Record]:
    """The heads that are left out, layer and head as they were counted."""
    many = isinstance(ablate, Iterable) and not isinstance(ablate, str | bytes)
    found = []
    for pair in ablate if many else [ablate]:
        numbers = tuple(pair) if isinstance(pair, tuple | list) else ()
        whole = len(numbers) == 2 and is_whole_number(numbers[0])
        if not whole or not (numbers[1] is None or is_whole_number(numbers[1])):
            raise TypeError(
                f"{call}: ablate has {shown(pair)}: write (layer, head) pairs, as [(0, 4)]"
            )
        fields: dict[str, Any] = {"op": "ablate", "layer": int(numbers[0])}
        if numbers[1] is not None:
            fields["head"] = int(numbers[1])
        if isinstance(ablate, Mapping):
            fields["with"] = ablate[pair]
        found.append(Record(fields, "ablate"))
    return found


def _hidden(hide: Any, call: str) -> list[Record]:
    """The words, places and edges that are not looked at, as they were counted."""
    many = isinstance(hide, Iterable) and not isinstance(hide, str | bytes | Mapping)
    if isinstance(hide, tuple) and 2 <= len(hide) <= 4 and all(map(is_whole_number, hide)):
        raise TypeError(
            f"{call}: hide is {hide}, which may be places or one edge: write {[*hide]} for places, "
            f"{[hide]} for the edge"
        )
    found = []
    for one in hide if many else [hide]:
        if isinstance(one, str) or is_whole_number(one):
            token = one if isinstance(one, str) else int(one)
            found.append(Record({"op": "hide", "token": token}, "hide"))
            continue
        numbers = tuple(one) if isinstance(one, tuple | list) else ()
        if not 2 <= len(numbers) <= 4 or not all(map(is_whole_number, numbers)):
            raise TypeError(
                f"{call}: hide has {shown(one)}: give words, places as whole numbers, and edges as "
                "(query, key), (query, key, layer) or (query, key, layer, head)"
            )
        places = dict(zip(_EDGE, map(int, numbers), strict=False))
        found.append(Record({"op": "mask", **places}, "hide"))
    return found
