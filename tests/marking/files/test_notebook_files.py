"""Tests of Jupyter notebooks that learners hand in."""

import json
from pathlib import Path

import pytest

from qkv_marking import CheckResult, check_file

SOFTMAX = """import numpy as np
def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)"""
RIGHT = 10


@pytest.fixture
def book(tmp_path):
    def write(*cells: str, tasks: list[str] | None = None) -> Path:
        metadata = {} if tasks is None else {"qkv": {"tasks": tasks}}
        code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
        words = {"cell_type": "markdown", "source": ["def attention(q, k, v): not code"]}
        path = tmp_path / "mine.ipynb"
        path.write_text(json.dumps({"cells": [words, *code], "metadata": metadata, "nbformat": 4}))
        return path

    return write


def points(marked: tuple[CheckResult, ...]) -> dict[str | None, int]:
    return {result.task: result.points for result in marked}


def test_the_cells_run_in_order_in_one_module(book):
    first, rest = SOFTMAX.split("\n", 1)
    assert points(check_file(book(first, rest))) == {"softmax": RIGHT}
    (late,) = check_file(book("softmax = later", SOFTMAX.replace("softmax", "later"), "def f(): 0"))
    assert late.mistakes == ("missing-function",)
    assert "Code cell 1 fails: NameError: name 'later' is not defined" in late.message


def test_a_cell_that_fails_is_named_and_the_next_ones_still_run(book):
    (result,) = check_file(book("1 / 0", "def broken(:", SOFTMAX, "raise SystemExit"))
    assert result.points == RIGHT
    said = result.message.splitlines()
    failed = [line for line in said if line.startswith("Code cell")]
    assert [line.split(" fails")[0] for line in failed] == [f"Code cell {n}" for n in (1, 2, 4)]
    assert "division by zero" in failed[0]


def test_magics_are_left_out(book):
    magics = [
        "%matplotlib inline",
        "!pip install qkv",
        "softmax?",
        "?softmax",
        "%time 1",
        "np.exp??",
    ]
    cells = [f"if True:\n    pass\n{magic}\nran_{n} = True" for n, magic in enumerate(magics)]
    ran = " and ".join(f"ran_{n}" for n in range(len(magics)))
    (result,) = check_file(book(*cells, f"assert {ran}\n{SOFTMAX}"))
    assert result.points == RIGHT
    assert "fails" not in result.message


def test_a_cell_of_another_language_is_left_out_and_a_timed_one_runs(book):
    (result,) = check_file(book("%%bash\nrm -r here (", f"%%time\n{SOFTMAX}"))
    assert result.points == RIGHT
    assert "fails" not in result.message


def test_a_text_that_looks_like_a_magic_stays(book):
    keeps = f'{SOFTMAX}\n\nheld = """\n% of rows\n!\n"""\nassert "% of rows" in held\ndisplay(held)'
    (result,) = check_file(book(keeps))
    assert result.points == RIGHT
    assert "fails" not in result.message


def test_a_notebook_is_marked_only_for_its_tasks(book):
    helper = "def positions(length, dim):\n    return None"
    marked = check_file(book(SOFTMAX, helper, tasks=["softmax", "attention"]))
    assert points(marked) == {"softmax": RIGHT, "attention": 0}
    assert marked[1].mistakes == ("missing-function",)
    (nothing,) = check_file(book(SOFTMAX, tasks=[]))
    assert (nothing.task, nothing.mistakes) == (None, ("no-function",))


def test_a_task_that_is_not_filled_in_has_its_own_verdict(book):
    (result,) = check_file(book("def softmax(scores):\n    ...", tasks=["softmax"]))
    assert (result.points, result.mistakes) == (0, ("returns-nothing",))


def test_the_time_limit_applies_to_each_cell(book):
    sleeps = ["import time", *["time.sleep(0.6)"] * 3]
    assert points(check_file(book(*sleeps, SOFTMAX), seconds=1.5)) == {"softmax": RIGHT}
    (result,) = check_file(book("while True: pass", SOFTMAX), seconds=0.4)
    assert result.mistakes == ("endless-loop",)


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "not JSON", '{"cells": [{"source": 1}]}'),
        *(pytest.param(text, marks=pytest.mark.attack) for text in ("[1, 2]", "")),
    ],
)
def test_an_invalid_notebook_is_reported(tmp_path, text):
    path = tmp_path / "mine.ipynb"
    path.write_text(text)
    (result,) = check_file(path)
    assert result.mistakes == ("not-a-notebook",)


@pytest.mark.attack
def test_a_cell_may_take_six_times_as_long_and_no_longer(book):
    """A cell of a notebook may run for 6 * `seconds`, because some lessons train a model."""
    for waits, mistakes in ((3, ()), (60, ("endless-loop",))):
        path = book(f"import time\ntime.sleep({waits})\n{SOFTMAX}")
        (result,) = check_file(path, "softmax", seconds=1)
        assert result.mistakes == mistakes


def test_a_function_that_is_still_a_stub_has_a_verdict_of_one_line(book):
    (result,) = check_file(book("def softmax(scores):\n    '''(..., S) -> (..., S).'''\n    ..."))
    assert result.message == "softmax: nothing is filled in yet."
    assert result.points == 0
