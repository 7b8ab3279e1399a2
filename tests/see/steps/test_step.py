"""Tests of steps.json: each row is complete, and Python or the live page uses it."""

import re
from pathlib import Path

import pytest

import qkv.see.steps
from qkv.see.steps._later_steps import _BLOCK
from qkv.see.steps.step import ACTIVATION_ROWS, PHRASES, ROWS, bias_of, fill, spell

FOLDER = Path(qkv.see.steps.__file__).parent
FLOW = FOLDER.parent / "page" / "assets" / "parts" / "flow.js"
FIELDS = {"title", "formula", "code", "name", "columns", "side", "op", "note"}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_every_field_and_its_code_assigns_its_name(row: str) -> None:
    found = ROWS[row]
    assert set(found) - {"weights"} == FIELDS
    assert all(type(found[name]) is str for name in FIELDS - {"op"})
    assert found["side"] in ("queries", "keys", "position", "{side}")
    name = re.escape(found["name"])
    assert re.search(rf"^(.*, )?{name} = ", found["code"], re.MULTILINE)


def test_every_kind_of_op_can_be_spelled_as_a_sum() -> None:
    for kind in {row["op"]["kind"] for row in ROWS.values()}:
        with pytest.raises((KeyError, IndexError)) as error:
            spell("x", {"kind": kind}, (0, 0), {}, ["cat"])
        assert error.value.args[0] != kind


def test_every_row_and_phrase_is_used() -> None:
    texts = "".join(path.read_text("utf-8") for path in (*FOLDER.glob("*.py"), FLOW))
    used = {name for name in (*ROWS, *PHRASES) if f'"{name}"' in texts}
    used |= {name for name in PHRASES if f"PHRASES.{name}" in texts}
    used |= {f"traced {name}" for name in _BLOCK} | set(ACTIVATION_ROWS)
    assert set(ROWS) | set(PHRASES) <= used


def test_a_placeholder_that_stands_alone_keeps_its_type() -> None:
    row = {"code": "Y = {x} / {d}**0.5", "op": {"of": "{x}", "rows": ["{d}"], "flip": False}}
    found = fill(row, {"x": "scores", "d": 32})
    assert found == {
        "code": "Y = scores / 32**0.5",
        "op": {"of": "scores", "rows": [32], "flip": False},
    }
    # placeholders in inserted values are not replaced
    assert fill("{token} of {x}", {"token": "{x}", "x": "R"}) == "{x} of R"
    with pytest.raises(KeyError, match="d"):
        fill("{d}", {})
    assert bias_of(None) == {"bias": None, "plus": ""}
