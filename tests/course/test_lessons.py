"""Test that every lesson's notebooks run, and that the right answers get all points."""

import ast
import html
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl

import nbformat
import notebooks
import pytest
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from substitutions import filled

from qkv_marking import check_file
from qkv_marking.files._plan import LESSONS

PAGES = notebooks.lessons()
FULL = 10


def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run a notebook in a new kernel; raise the error of a cell that fails."""
    # on a busy machine, printed text may arrive late; by default, nbclient drops text after 4 s
    with tempfile.TemporaryDirectory() as folder:  # live views write pages into this folder
        shutil.copy(notebooks.BOOK, folder)
        resources = {"metadata": {"path": folder}}
        options = {
            "timeout": 300,
            "startup_timeout": 300,
            "iopub_timeout": 60,
            "kernel_name": "python3",
            "resources": resources,
        }
        try:
            NotebookClient(notebook, **options).execute()
        except RuntimeError as error:
            # another process took a port between its choice and the kernel's start
            if "died before replying" not in str(error):
                raise
            NotebookClient(notebook, **options).execute()
    return notebook


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(params=PAGES, ids=[page.stem for page in PAGES])
def text(request: pytest.FixtureRequest) -> str:
    page: Path = request.param
    return page.read_text(encoding="utf-8")


def test_the_teachers_notebook_has_the_cells_of_the_page(text: str) -> None:
    """The build of the page runs these cells, so that the notebook's cells run."""
    added = {"install", "live"}
    cells = [it for it in code(notebooks.teacher(text)) if not added & notebooks.cell_tags(it)]
    page = read_myst_markdown_notebook(filled(text))
    shown = [it for it in code(page) if "stub" not in notebooks.cell_tags(it)]
    assert [cell.source for cell in cells] == [cell.source for cell in shown]


def test_the_cells_that_only_notebooks_have_run() -> None:
    added = {
        cell.source: cell
        for page in PAGES
        for cell in code(notebooks.teacher(page.read_text("utf-8")))
        if {"install", "live"} & notebooks.cell_tags(cell)
    }
    assert len(added) > 10
    run(nbformat.v4.new_notebook(cells=[*added.values()]))


def test_the_marker_knows_the_tasks_of_each_lesson() -> None:
    known = {f"{number}-{name}": [*tasks] for number, (name, tasks) in LESSONS.items()}
    notebook_of = {page.stem: notebooks.student(page.read_text("utf-8")) for page in PAGES}
    assert known == {name: book.metadata["qkv"]["tasks"] for name, book in notebook_of.items()}


def test_handed_in_notebooks_get_full_or_no_points(text: str, tmp_path: Path) -> None:
    handed_in = {"full": notebooks.answered(text), "empty": notebooks.student(text)}
    for name, notebook in handed_in.items():
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    tasks = handed_in["full"].metadata["qkv"]["tasks"]
    stubs = [cell for cell in handed_in["full"].cells if "stub" in notebooks.cell_tags(cell)]
    assert len(tasks) == len(stubs)
    full = check_file(tmp_path / "full.ipynb", seconds=60)
    assert [(verdict.task, verdict.points) for verdict in full] == [(name, FULL) for name in tasks]
    assert not any("Code cell" in verdict.message for verdict in full)
    empty = check_file(tmp_path / "empty.ipynb", seconds=60)
    assert [verdict.task for verdict in empty] == tasks
    assert not any("Code cell" in verdict.message for verdict in empty)  # no traceback
    for verdict in empty:
        # one lesson gives a function with two planted mistakes
        planted = ("causal-upper", "heads-reshape")
        assert verdict.points == 0
        assert verdict.mistakes in (("returns-nothing",), ("not-filled-in",), planted)


def test_three_questions_follow_the_question_and_the_picture(text: str) -> None:
    cells = notebooks.student(text).cells
    texts = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    first, opening = texts.partition("\n## ")[0].split("**From memory.**")
    assert re.search(r"\?\*\*$", first, re.MULTILINE)
    asked = re.findall(r"^(\d)\. .+?<details><summary>Answer<", opening, re.MULTILINE | re.DOTALL)
    assert asked == ["1", "2", "3"]
    page = read_myst_markdown_notebook(text).cells
    quiz = next(n for n, cell in enumerate(page) if "**From memory.**" in cell.source)
    draws = any(cell.cell_type == "code" for cell in page[:quiz])
    assert draws or "Capstone" in cells[0].source


def test_cell_output_after_a_question_is_folded_on_the_page(text: str) -> None:
    cells = read_myst_markdown_notebook(text).cells
    asking = [n for n, cell in enumerate(cells) if "Before you run this" in cell.source]
    assert asking
    for question, answer in ((cells[n], cells[n + 1]) for n in asking):
        assert (question.cell_type, answer.cell_type) == ("markdown", "code")
        assert "hide-output" in notebooks.cell_tags(answer), question.source[-200:]
    for make in notebooks.KINDS.values():  # the reader runs the cell to see the output
        for cell in code(make(text)):
            assert "outputs_hidden" not in cell.metadata.get("jupyter", {})


def test_iframes_open_the_live_page_in_a_valid_state(text: str) -> None:
    regions = {"sentence", "changes", "map", "head", "steps", "outcome", "second"}
    for address in re.findall(r'<iframe[^>]* src="([^"]+)"', text):
        page, _, state = html.unescape(address).partition("#")
        assert page == "../play.html"
        held = dict(parse_qsl(state, strict_parsing=True))
        assert set(json.loads(held.pop("only"))) <= regions
        held.pop("text")
        for value in held.values():
            json.loads(value)


def test_lessons_import_only_qkv_numpy_matplotlib_and_stdlib(text: str) -> None:
    for cell in code(notebooks.teacher(text)):
        for node in ast.walk(ast.parse(cell.source)):
            modules = {
                *([name.name for name in node.names] if isinstance(node, ast.Import) else ()),
                *([node.module] if isinstance(node, ast.ImportFrom) else ()),
            }
            for module in modules:
                top = module.partition(".")[0]
                assert top in {"qkv", "numpy", "matplotlib"} | sys.stdlib_module_names
