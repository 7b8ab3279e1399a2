"""Tests of Jupyter notebooks that learners hand in."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest

from qkv_marking import CheckResult, check_file
from qkv_marking.files._shell import to_python
from qkv_marking.files._source import Notebook, read_notebook

from . import test_check_file

pytestmark = pytest.mark.usefixtures("quick")

SOFTMAX = test_check_file.SOFTMAX.strip()
RIGHT = 10


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


LINES = """\
%matplotlib inline
!pip install qkv
softmax?
?softmax
np.exp??
%time timed = np.ones(2)
value = %time np.ones(3)
%timeit -n 1 3 + 4
files = !ls
get_ipython().run_line_magic("time", "ran = 5")
get_ipython().system("ls")
    %time inside = 1
import asyncio; awaited = await asyncio.sleep(0, 7)
"""


@pytest.fixture(params=["IPython", "no IPython"])
def ipython(request, monkeypatch):
    """Run the cells with the transformer of IPython, or without IPython."""
    if request.param == "IPython":
        pytest.importorskip("IPython")
    else:
        monkeypatch.setitem(sys.modules, "IPython.core.inputtransformer2", None)


@pytest.mark.usefixtures("ipython")
def test_cells_run_as_ipython_runs_them():
    lines = LINES.splitlines()
    cells = [f"if True:\n    pass\n{line}\nran_{n} = True" for n, line in enumerate(lines)]
    cells += ["%%time\ncell = 1", "%%capture\nprint()\nhidden = 2", "%%bash\nrm -r here ("]
    module = ModuleType("mine")
    module.np = np
    book = Notebook(tuple(enumerate(cells, start=1)))
    to_python.cache_clear()
    assert book.run(module, "mine.ipynb", lambda: None) == []
    to_python.cache_clear()
    names = vars(module)
    assert all(names[f"ran_{n}"] for n in range(len(lines)))
    assert [len(names[name]) for name in ("timed", "value", "files")] == [2, 3, 0]
    assert [names[name] for name in ("ran", "inside", "cell", "hidden")] == [5, 1, 1, 2]
    assert names["awaited"] == 7


@pytest.mark.usefixtures("ipython")
def test_a_cell_is_written_to_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = Notebook(((1, "%%writefile mine.py\nx = 1\n"), (2, "%%writefile -a mine.py\ny = 2\n")))
    assert book.run(ModuleType("mine"), "mine.ipynb", lambda: None) == []
    assert (tmp_path / "mine.py").read_text() == "x = 1\ny = 2\n"


def test_the_assignment_of_a_timed_line_is_marked(book):
    timed = SOFTMAX.replace("def softmax(x)", "def own(x)")
    (result,) = check_file(book(timed, "%time softmax = own", tasks=["softmax"]))
    assert (result.points, "fails" in result.message) == (RIGHT, False)


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
    loops = f"{SOFTMAX}\nwhile True: pass"
    softmax, attention = check_file(book(loops, "def attention(q, k, v): ..."), seconds=0.4)
    assert (softmax.task, softmax.points) == ("softmax", RIGHT)
    assert "Code cell 1 does not end within its time limit." in softmax.message
    assert attention.mistakes == ("returns-nothing",)


def test_a_cell_that_ignores_its_interruption_ends_the_notebook(book):
    deaf = "import time\nwhile True:\n    try: time.sleep(100)\n    except BaseException: pass"
    (result,) = check_file(book(deaf, SOFTMAX), seconds=0.2)
    assert result.mistakes == ("endless-loop",)


@pytest.mark.parametrize("mark", ["# In[{}]:", "# %%", "# In[ ]:"])
def test_a_python_file_with_cells_is_a_notebook(tmp_path, mark):
    path = tmp_path / "mine.py"
    cells = ["1 / 0", "get_ipython().run_line_magic('time', 'x = 1')", SOFTMAX, "def broken("]
    text = "".join(f"\n{mark.format(n)}\n\n{cell}\n" for n, cell in enumerate(cells))
    path.write_text(f"#!/usr/bin/env python\n# coding: utf-8\n# %% [markdown]\n# Words\n{text}")
    (result,) = check_file(path)
    assert (result.task, result.points) == ("softmax", RIGHT)
    said = [line.split(" fails")[0] for line in result.message.splitlines() if " fails" in line]
    assert said == ["Code cell 1", "Code cell 4"]


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
    for waits, mistakes in ((3, ()), (60, ("missing-function",))):
        path = book(f"import time\ntime.sleep({waits})\n{SOFTMAX}")
        (result,) = check_file(path, "softmax", seconds=1)
        assert result.mistakes == mistakes


def test_a_function_that_is_still_a_stub_has_a_verdict_of_one_line(book):
    (result,) = check_file(book("def softmax(scores):\n    '''(..., S) -> (..., S).'''\n    ..."))
    assert result.message == "softmax: nothing is filled in yet."
    assert result.points == 0


def test_a_stub_in_a_cell_below_the_solution_is_named(book):
    (result,) = check_file(book("x = 1", SOFTMAX, "def softmax(x): ..."))
    assert result.mistakes == ("returns-nothing",)
    assert "defined in code cell 2 and code cell 3: only the last" in result.message


@pytest.mark.parametrize("metadata", [None, [], {"qkv": None}, {"qkv": {"tasks": 5}}])
def test_damaged_metadata_leaves_the_notebook_readable(metadata):
    cell = {"cell_type": "code", "source": "x = 1", "metadata": {"tags": None}}
    text = json.dumps({"cells": [cell], "metadata": metadata})
    assert read_notebook(text.encode()) == Notebook(((1, "x = 1"),), None)


@pytest.mark.parametrize("tag", ["live", "training"])
def test_a_cell_that_shows_or_trains_something_does_not_run(tag):
    cells = [
        {"cell_type": "code", "source": source, "metadata": {"tags": tags}}
        for source, tags in (("x = 1", []), ("y = 2", ["hide-input", tag]), ("z = 3", ["stub"]))
    ]
    found = read_notebook(json.dumps({"cells": cells}).encode())
    assert found.cells == ((1, "x = 1"), (3, "z = 3"))


def test_a_flood_of_prints_ends_a_cell_only(book):
    (result,) = check_file(book(SOFTMAX, "while True: print('x')"))
    assert result.points == RIGHT
    assert "Code cell 2 fails: PrintFlood: more than 100,000 lines" in result.message
