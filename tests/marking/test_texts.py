"""Tests that each table of a TOML file has texts, is used, and replaces lines that exist."""

import ast
import importlib
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from qkv_marking import tasks
from qkv_marking._formula import Formula
from qkv_marking.tasks._table import Table

FOLDER = Path(tasks.__file__).parent
CATALOGUE = FOLDER / "tasks.toml"
FILES = sorted({*FOLDER.rglob("*.toml")} - {CATALOGUE})
OF_FORMULA = ("lines", "when")
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def parse(path):
    return tomllib.loads(path.read_text("utf-8"))


def paths(tables, groups=()):
    """Yield the names of each group and of each mistake, after the names of its groups."""
    for name, table in tables.items():
        if name not in OF_FORMULA and isinstance(table, dict):
            yield *groups, name
            yield from paths(table, (*groups, name))


def package_of(path):
    return ".".join((tasks.__name__, *path.parent.relative_to(FOLDER).parts))


def read(path):
    """Return the tables of a file: one `Table` for the file, or one for each of its sections."""
    inner = parse(path)
    in_sections = "lines" not in inner and any("lines" in table for table in inner.values())
    return [
        Table(package_of(path), path.stem, section=name)
        for name in (inner if in_sections else [""])
    ]


def lines_of_readers(path):
    """Return the names of all lines in the modules that read a TOML file."""
    readers = [code for code in path.parent.glob("*.py") if f'"{path.stem}"' in code.read_text()]
    modules = [importlib.import_module(f"{package_of(path)}.{code.stem}") for code in readers]
    values = [value for module in modules for value in vars(module).values()]
    tables = [value.formula for value in values if isinstance(value, Table)]
    formulas = tables + [value for value in values if isinstance(value, Formula)]
    return {name for formula in formulas for name in formula.lines}


@each_file
def test_every_table_is_named_in_the_code_of_its_package(path):
    code = "\n".join(code.read_text("utf-8") for code in path.parent.glob("*.py"))
    found = [*paths(parse(path))]
    mistakes = [one for one in found if not any(other[:-1] == one for other in found)]
    assert [one for one in mistakes if not any(f'"{name}"' in code for name in one)] == []


@each_file
def test_two_tables_never_share_a_name(path):
    names = Counter(one[-1] for one in paths(parse(path)))
    assert [name for name, count in names.items() if count > 1] == []


@each_file
def test_every_mistake_has_texts(path):
    for one in (one for table in read(path) for one in table.group()):
        assert one.says, one.key
        assert one.shows, one.key
        if one.variants:  # a known mistake, not a finding of the code
            assert one.nudge, one.key
            assert one.where, one.key


@each_file
def test_every_way_replaces_lines_that_exist(path):
    tables = read(path)
    of_readers = lines_of_readers(path) if len(tables) == 1 else set()
    for table in tables:
        known = of_readers | table.formula.lines.keys()
        assert table.formula.when.keys() <= known
        for one in table.group():
            for way in one.variants:
                assert way.keys() <= known, one.key
                assert not way.items() <= table.formula.lines.items(), one.key
                for line in way.values():
                    ast.parse(line)


def test_every_finding_in_the_code_has_a_table():
    rows = {one[-1] for path in FILES for one in paths(parse(path))}
    calls = [
        call
        for path in FOLDER.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    ]
    named = {
        call.args[0].value
        for call in calls
        if call.func.attr in ("finding", "mistake") and isinstance(call.args[0], ast.Constant)
    }
    assert len(named) > 20
    assert named <= rows


# -- what `Table` makes of a file -----------------------------------------------------------------

WRITTEN = """
[lines]
first = "a = x + 1"
second = "out = a * 2"

[when]
second = "x.size"

[group]
remedy = "all"

[group.one]
says = "the {row} row"
shows = "a"
numbers = [3, 4.5]
ways = [{ first = "a = x" }, { second = "out = a * NUMBER" }]

[group.two]
key = "other"
says = "b {c}"
shows = "d"
remedy = "own"
alone = true
ways = [{ first = "pass", second = "RIGHT + 1" }]

[three]
says = "the {end} item"
shows = "e"
ends = true
ways = [{ second = "out = without(a, AT, -1)" }]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a TOML file, and reads it as a `Table`."""
    monkeypatch.setattr("qkv_marking._mistake.files", Path)

    def write(text, section="", base=None):
        name = f"written_{len([*tmp_path.iterdir()])}"
        (tmp_path / f"{name}.toml").write_text(text)
        return Table(str(tmp_path), name, base=base, section=section)

    return write


def test_groups_give_defaults_and_values_replace_placeholders(write):
    table = write(WRITTEN)
    one, two = table.mistake("one", row="last"), table.mistake("two")
    assert (one.key, one.says, one.remedy, one.alone) == ("one", "the last row", "all", False)
    assert (two.key, two.says, two.remedy, two.alone) == ("other", "b {c}", "own", True)
    assert table.group("group") == table.group("one", "two") == table.group()[:2]
    assert table.mistake("one", {"first": "a = 0"}).variants == ({"first": "a = 0"},)
    with pytest.raises(KeyError, match="four"):
        table.mistake("four")


def test_a_way_is_written_for_the_right_line_each_number_and_both_ends(write):
    one, two, last, first = write(WRITTEN).group()
    assert one.variants == (
        {"first": "a = x"},
        {"second": "out = a * 3"},
        {"second": "out = a * 4.5"},
    )
    assert two.variants == ({"first": "pass", "second": "out = a * 2 + 1"},)
    assert [last.says, first.says] == ["the last item", "the first item"]
    assert [*last.variants, *first.variants] == [
        {"second": "out = without(a, -1, -1)"},
        {"second": "out = without(a, 0, -1)"},
    ]


def test_the_lines_run_with_the_lines_of_a_way(write):
    table = write(WRITTEN)
    x, (one, _, last, first) = np.array([1, 5]), table.group()
    assert table.formula.run({"x": x})["out"].tolist() == [4, 12]
    outs = [table.formula.run({"x": x}, wrong.variants[0])["out"] for wrong in (one, last, first)]
    assert [out.tolist() for out in outs] == [[2, 10], [2, 0], [0, 6]]
    assert "out" not in table.formula.run({"x": x[:0]})
    longer = write("[lines]\nthird = 'out = -out'", base=table.formula).formula
    assert longer.run({"x": x})["out"].tolist() == [-4, -12]


def test_a_section_is_read_like_a_file(write):
    inner = WRITTEN.replace("\n[", "\n[part.")
    table = write(f"[part]\ntried = 'two calls'\n{inner}\n[other.four]\nsays = 'f'", "part")
    assert table.fields == {"tried": "two calls"}
    assert [one.key for one in table.group()] == ["one", "other", "three", "three"]
    assert table.mistake("one").variants[0] == {"first": "a = x"}


def test_two_mistakes_of_one_name_are_an_error(write):
    with pytest.raises(KeyError, match="two tables have the name one"):
        write("[a.one]\nsays = 'x'\n[b.one]\nsays = 'y'")


def test_the_catalogue_has_each_task_in_the_order_of_the_course():
    assert [*parse(CATALOGUE)] == [*tasks.TASKS]
