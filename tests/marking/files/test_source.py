"""Tests of reading a file's source text: its functions and classes, and the lines of errors."""

import re
from pathlib import Path

import pytest

from qkv_marking._check_function import task_of
from qkv_marking.files._source import find_names, tasks_in
from qkv_marking.files.verdicts import names_of, not_marked, of_error
from qkv_marking.tasks import TASKS


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def a(): pass", "a"),
        ("async def a(): pass", "a"),
        ("class A: pass", "A"),
        ("if x:\n    def a(): pass\nelse:\n    def b(): pass", "a b"),
        ("if x:\n    pass\nelif y:\n    def b(): pass", "b"),
        ("try:\n    pass\nexcept E:\n    def a(): pass\nfinally:\n    def b(): pass", "a b"),
        ("try:\n    pass\nexcept E:\n    pass\nelse:\n    def c(): pass", "c"),
        ("with x:\n    def a(): pass", "a"),
        ("while x:\n    def a(): pass", "a"),
        ("def a():\n    def inner(): pass", "a"),
        ("class A:\n    def inner(self): pass", "A"),
        ("a = lambda x: x", "a"),
        ("a = b = c", "a b"),
        ("a = np.exp", "a"),
        ("a: object = c", "a"),
        ("a: int", ""),
        ("a, b = c", ""),
        ("a.b = a[0] = c", ""),
        ("a = c(4)", ""),
        ("a = 3", ""),
        ("from m import a\nimport b", ""),
        ("# a\n'def a(): pass'", ""),
    ],
)
def test_defined_lists_module_level_names_that_may_be_callable(source, names):
    assert " ".join(sorted(find_names(source.encode()))) == names


def test_syntax_warnings_of_a_file_are_suppressed(recwarn):
    assert find_names(rb'a = lambda: "\d"') == {"a"}
    assert not recwarn.list


@pytest.mark.parametrize(
    "source", [b"-" * 100_000 + b"1", b"(" * 100_000, b"a = [" * 300 + b"]" * 300]
)
def test_too_deep_nesting_is_a_syntax_error(source):
    with pytest.raises(SyntaxError) as error:
        find_names(source)
    assert str(error.value)


@pytest.mark.parametrize("kind", [RecursionError, MemoryError, ValueError])
def test_parser_failures_become_syntax_errors(monkeypatch, kind):
    def gives_up(*_):
        raise kind

    monkeypatch.setattr("ast.parse", gives_up)
    with pytest.raises(SyntaxError, match="too deeply nested"):
        find_names(b"a = 1")


def raised(source, file):
    try:
        exec(compile(source, file, "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_reported_line_is_the_innermost_of_the_file():
    source = "def f():\n    int('x')\n\nf()"
    said = of_error(raised(source, "/a/mine.py"), "/a/mine.py").message
    assert "It shows: line 2: ValueError: invalid literal" in said
    # for an error in a library, the verdict names the line that called the library
    source = "import json\n\njson.loads('{')"
    assert "line 3: JSONDecodeError" in of_error(raised(source, "mine.py"), "mine.py").message
    assert "It shows: ValueError: no" in of_error(ValueError("no"), "mine.py").message


def test_a_syntax_error_omits_the_line_of_ast_parse():
    # line 3 calls ast.parse, but has no syntax error itself, so the verdict does not name line 3
    source = "import ast\n\nast.parse('(')"
    said = of_error(raised(source, "mine.py"), "mine.py").message
    assert "It shows: SyntaxError: '(' was never closed" in said
    assert "until python mine.py reports no syntax error" in said


def test_braces_in_a_correction_are_kept():
    said = not_marked(
        "missing-function", "it has {a}", "softmax", name="f", signature="f(x[:, {b}])"
    )
    assert said.hint[2] == "f(x[:, {b}])"
    assert "It shows: it has {a}." in said.message


def test_names_of_joins_the_accepted_names_of_a_task():
    assert names_of(TASKS["softmax"]) == "softmax"
    several = TASKS["self-attention-class"]
    assert names_of(several) == " or ".join(several.looks_for)
    assert names_of(several).startswith("SelfAttention or ")


LESSONS = Path(__file__).parents[3] / "docs" / "course"
CELL = re.compile(r"```\{code-cell\} ipython3\n(.*?)```", re.DOTALL)
CHECKED = re.compile(r'qkv\.check\((\w+)(?:, task="([\w-]+)")?')


def test_lesson_functions_have_the_names_that_their_tasks_look_for():
    found = set()
    for lesson in LESSONS.glob("[0-9]*.md"):
        cells = CELL.findall(lesson.read_text())
        stubs = [cell for cell in cells if cell.startswith(":tags: [stub]")]
        names = {name for cell in stubs for name in re.findall(r"^(?:def|class) (\w+)", cell, re.M)}
        checked = {pair for cell in cells for pair in CHECKED.findall(cell) if pair[0] in names}
        found |= {(name, task or "attention") for name, task in checked}
    functions = {name for name, task in TASKS.items() if not task.values}
    asked = {task for _, task in found} | {task_of(name).name for name, _ in found}
    assert asked == functions, "a lesson for each task"
    for name, task in found:
        assert name in TASKS[task].looks_for, name
        if not TASKS[task].by_name:
            assert tasks_in({name}) == [task], name
            assert task_of(name) is TASKS[task], name
