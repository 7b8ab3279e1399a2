"""Tests that the TOML files have a text for each mistake, and a mistake for each text."""

import ast
import tomllib
from pathlib import Path

import pytest

from qkv_marking import tasks
from qkv_marking.tasks._task import Phrases

FOLDER = Path(tasks.__file__).parent
CATALOGUE = FOLDER / "tasks.toml"
FILES = sorted({*FOLDER.rglob("*.toml")} - {CATALOGUE})


def tables(table):
    """Yield the name and the fields of each table that contains no tables."""
    for name, inner in table.items():
        if any(isinstance(value, dict) for value in inner.values()):
            yield from tables({n: value for n, value in inner.items() if isinstance(value, dict)})
        else:
            yield name, inner


def code_of(path):
    """Return the code of the file, public or private, that reads a TOML file."""
    (code,) = {*path.parent.glob(f"{path.stem}.py"), *path.parent.glob(f"_{path.stem}.py")}
    return code.read_text("utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_text_has_a_mistake_and_a_unique_name(path):
    names = [name for name, _ in tables(tomllib.loads(path.read_text("utf-8")))]
    assert len(names) == len({*names})
    code = code_of(path)
    assert [name for name in names if f'"{name}"' not in code] == []


def named(source):
    """Yield each name of a mistake that a module passes to `_TEXTS`, directly or as a dict key."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_TEXTS."):
            first = node.args[0]
            for name in first.keys if isinstance(first, ast.Dict) else [first]:
                if isinstance(name, ast.Constant):
                    yield name.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_mistake_that_a_module_names_has_a_text(path):
    texts = {name for name, _ in tables(tomllib.loads(path.read_text("utf-8")))}
    assert {*named(code_of(path))} <= texts


def test_groups_give_defaults_and_values_replace_placeholders(tmp_path, monkeypatch):
    (tmp_path / "written.toml").write_text(
        '[group]\nremedy = "all"\n'
        '[group.one]\nsays = "the {row} row"\nshows = "a"\n'
        '[group.two]\nkey = "other"\nsays = "b {c}"\nshows = "d"\nremedy = "own"\nalone = true\n'
    )
    monkeypatch.setattr("qkv_marking._mistake.files", lambda package: tmp_path)
    texts = Phrases("package.written")
    one, two = texts.mistake("one", {"a": min}, {"a": max}, row="last"), texts.mistake("two")
    assert (one.key, one.says, one.remedy, one.alone) == ("one", "the last row", "all", False)
    assert one.variants == ({"a": min}, {"a": max})
    assert (two.key, two.says, two.remedy, two.alone) == ("other", "b {c}", "own", True)
    with pytest.raises(KeyError, match="three"):
        texts.mistake("three")


def test_the_catalogue_has_each_task_in_the_order_of_the_course():
    assert [*tomllib.loads(CATALOGUE.read_text("utf-8"))] == [*tasks.TASKS]
