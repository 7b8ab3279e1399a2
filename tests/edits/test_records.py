"""Tests of the JSON Schema of edits: it is valid, and it accepts the same edits as Python."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from qkv.edits import edits_of, operations, schema

EXAMPLES = [one for op in operations() for one in schema()["$defs"][op]["examples"]]
RIGHT: list[dict[str, Any]] = [
    *EXAMPLES,
    {"op": "mask", "query": 4, "key": 0},
    {"op": "mask", "query": 4, "key": 0, "layer": 1},
    {"op": "ablate", "layer": 0},
    {"op": "ablate", "layer": 0, "head": 1, "with": [0.5, -1]},
    {"op": "set", "at": "ln1.normalized", "layer": 0, "value": [[1, 2]]},
    {"op": "set", "at": "embed", "value": [[1, 2]]},
]
WRONG: list[Any] = [
    None,
    "causal",
    {},
    {"op": "hyde", "token": 2},
    {"token": 2},
    {"op": "hide"},
    {"op": "hide", "token": 2, "layer": 0},
    {"op": "mask", "query": 4, "key": 0, "head": 1},
    {"op": "ablate", "head": 1},
    {"op": "ablate", "layer": 0, "haed": 1},
    {"op": "set", "at": "z", "head": 1, "value": [[1, 2]]},
    {"op": "patch", "at": "resid_post", "layer": 0, "from": "a dog"},
]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def test_each_kind_has_an_example() -> None:
    assert [one["op"] for one in EXAMPLES] == list(operations())


@pytest.mark.parametrize("record", RIGHT, ids=str)
def test_python_takes_what_the_schema_allows(
    validator: Draft202012Validator, record: dict[str, Any]
) -> None:
    assert validator.is_valid([record])
    [found] = edits_of([record]).records
    assert found.fields == record


@pytest.mark.parametrize("record", WRONG, ids=str)
def test_python_refuses_what_the_schema_forbids(
    validator: Draft202012Validator, record: Any
) -> None:
    assert not validator.is_valid([record])
    with pytest.raises((TypeError, ValueError), match=r"^edit\[1\] ") as raised:
        edits_of([{"op": "causal"}, record])
    assert "\n" not in str(raised.value)


def test_every_definition_is_used() -> None:
    used = str({name: one for name, one in schema()["$defs"].items()} | {"": schema()["items"]})
    unused = [name for name in schema()["$defs"] if f"#/$defs/{name}'" not in used]
    assert not unused
