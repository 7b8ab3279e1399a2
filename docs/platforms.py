"""Prepare a lesson for Gradescope, and the course for nbgrader.

python docs/platforms.py gradescope 3 build/gradescope-3.zip dist/*.whl [-- --points points.csv]
python docs/platforms.py nbgrader build/nbgrader
"""

import ast
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
import notebooks
from nbformat.v4 import new_code_cell, new_markdown_cell

from qkv_marking import CheckResult, Plan, plan_tasks, write_gradescope

PARTS = Path(__file__).parent / "platforms"
_NOT_MARKED = (
    "The autograder could not mark this submission in time, or stopped. Restart the kernel, run all"
    " cells, and hand the notebook in again. If this happens twice, tell your teacher."
)


def write_autograder(
    path: Path, lesson: int, wheels: Sequence[Path], options: Sequence[str] = ()
) -> None:
    """Write the zip file that Gradescope uses as an autograder.

    Args:
        path: the zip file.
        lesson: the number of the lesson.
        wheels: wheels of qkv; pip chooses the one that fits.
        options: more options of `qkv check`. The file of `--points` goes into the zip file.
    """
    options, points = [*options], None
    if "--points" in options:
        place = options.index("--points") + 1
        points, options[place] = Path(options[place]), "../source/points.csv"
    plan = plan_tasks(lessons=[lesson], points=points)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name in ("setup.sh", "run_autograder"):
            package.write(PARTS / name, name)
        for wheel in wheels:
            package.write(wheel, f"wheels/{wheel.name}")
        if points is not None:
            package.write(points, "points.csv")
        package.writestr("options", "\n".join(["--lesson", str(lesson), *options]))
        with tempfile.TemporaryDirectory() as folder:
            failed = CheckResult(_NOT_MARKED, ("not-marked",), points=0, task=None)
            write_gradescope(Path(folder, "results.json"), [("submission", (failed,))], plan)
            package.write(Path(folder, "results.json"), "not_marked.json")
    print(f"{path}: the autograder of lesson {lesson}, {path.stat().st_size / 1e6:.0f} MB")


def write_course(folder: Path, points: Path | None = None) -> None:
    """Write the course for nbgrader: its settings, and `source` with a notebook per lesson.

    Args:
        folder: the folder of the course.
        points: a CSV file of points, as for `qkv check`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PARTS / "nbgrader_config.py", folder)
    plan = plan_tasks(points=points)
    for page in notebooks.lessons():
        path = folder / "source" / page.stem / f"{page.stem}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(graded(page.read_text(encoding="utf-8"), plan), path)
    print(f"{folder}: {len(notebooks.lessons())} assignments for nbgrader")


def graded(text: str, plan: Plan) -> nbformat.NotebookNode:
    """Make the teacher's notebook of a lesson for nbgrader, with the points of each task."""
    book = notebooks.student(text)
    solved = {cell.id: cell.source for cell in notebooks.answered(text).cells}
    calls = {
        task: (number, call)
        for number, cell in enumerate(book.cells)
        if cell.cell_type == "code"
        for task, call in _checks(cell.source)
    }
    after: dict[int, list[nbformat.NotebookNode]] = {}
    for task in book.metadata.qkv.tasks:
        number, call = calls[task]
        after.setdefault(number, []).append(_points_of(task, call, plan.column(task).most))
    cells = []
    for number, cell in enumerate(book.cells):
        if "stub" in notebooks.cell_tags(cell):
            cell.metadata.qkv_stub, cell.source = cell.source, solved[cell.id]
            _describe(cell, f"{cell.id}-solution", solution=True)
        cells += [cell, *after.get(number, [])]
    if "five sentences" in text:
        sentences = new_markdown_cell("Replace this line by your five sentences.")
        most = plan.column("sentences").most
        cells.append(_describe(sentences, "sentences", solution=True, points=most))
    return nbformat.v4.new_notebook(cells=cells, metadata=book.metadata)


def _checks(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield the task of each call of `qkv.check`, and the call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "qkv.check":
            for option in node.keywords:
                if option.arg == "task" and isinstance(option.value, ast.Constant):
                    yield option.value.value, node


def _points_of(task: str, call: ast.Call, most: float) -> nbformat.NotebookNode:
    """Make the cell whose value is the number of points; students do not see the seed."""
    visible = ast.unparse(call)
    source = f"""# The points of this task.
verdict = {visible}
### BEGIN HIDDEN TESTS
verdict = {visible[:-1]}, seed={secrets.randbelow(2**32)})
print(verdict)
### END HIDDEN TESTS
round(verdict.points * {most:g} / 10, 2)"""
    return _describe(new_code_cell(source), task, points=most)


def _describe(
    cell: nbformat.NotebookNode, name: str, *, solution: bool = False, points: float | None = None
) -> nbformat.NotebookNode:
    """Add nbgrader's metadata to a cell."""
    about = {"grade": points is not None, "solution": solution, "locked": not solution}
    cell.metadata["nbgrader"] = {"grade_id": name, "schema_version": 3, "task": False, **about}
    if points is not None:
        cell.metadata["nbgrader"]["points"] = points
    return cell


def main() -> None:
    """Write the zip file or the course that the arguments describe."""
    kind, *given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    given, options = given[:end], given[end + 1 :]
    if kind == "gradescope":
        lesson, *paths = given
        path, *wheels = map(Path, paths)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_autograder(path, int(lesson), wheels, options)
    else:
        write_course(*map(Path, given))


if __name__ == "__main__":
    main()
