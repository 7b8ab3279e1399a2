"""`qkv check`, which marks solutions to the tasks of the course."""

import functools
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from qkv._visible import visible
from qkv.cli._options import json_option, writable, writable_folder
from qkv.cli._output import print_json, tell
from qkv.cli._program import FAILED
from qkv.files import ordinary

if TYPE_CHECKING:
    from qkv_marking import CheckResult, ClassTable, Plan


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--task",
    "tasks",
    metavar="NAME",
    multiple=True,
    help="Mark only this task; may be repeated. Default: each task that a file contains.",
)
@click.option(
    "--lesson",
    "lessons",
    type=click.IntRange(1),
    multiple=True,
    help="Mark the tasks of this lesson, even if a file lists different tasks; may be repeated."
    " A student's files for other lessons do not count.",
)
@click.option(
    "--released",
    metavar="NOTEBOOK",
    help="The notebook that you handed out: mark its tasks, even if a file lists different tasks.",
)
@click.option(
    "--points",
    metavar="FILE",
    help="A CSV file with the points for a correct solution to each task, in the columns `task` "
    "and `points` (and `lesson`, if several lessons contain a task). Default: 10 points per task.",
)
@click.option(
    "--list",
    "as_list",
    is_flag=True,
    help="Print each task, with the function or values that it expects.",
)
@click.option(
    "--hints",
    "--hint",
    "hints",
    type=click.IntRange(0, 3),
    default=1,
    help="The number of hints in each verdict. 0: none. 1: what to try. 2: also where to look. "
    "3: also the correct line. Default: 1.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    help="The random seed of the test inputs. With seed 0, the default, many inputs are short and "
    "written by hand.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="The time limit in seconds for reading a file and for each task; a notebook cell may take"
    " six times as long. Default: each task's own limit, usually 10 seconds.",
)
@click.option(
    "--junit",
    metavar="FILE",
    callback=writable(".xml"),
    help="Also write the verdicts as JUnit XML.",
)
@click.option(
    "--roster",
    metavar="FILE",
    help="A CSV file of all students, with the columns `id` and `name`; the class table gets a row "
    "for each student.",
)
@click.option(
    "--take",
    type=click.Choice(["best", "latest"]),
    default="best",
    help="Which file counts for a task if a student hands in several files. Default: best.",
)
@click.option(
    "--manual",
    metavar="FILE",
    help="A CSV file of your own grades, with the columns `id`, `task`, `points` and `comment`. The"
    " column `task` contains a task's name, the number of a question in the question bank (such as"
    " 3.2), or `sentences` for the sentences of the capstone.",
)
@click.option(
    "--csv", metavar="FILE", callback=writable(".csv"), help="Write the class table as CSV."
)
@click.option(
    "--gradescope",
    metavar="FILE",
    callback=writable(".json"),
    help="Write the verdicts on one submission as Gradescope's results.json.",
)
@click.option(
    "--html", metavar="FILE", callback=writable(".html"), help="Write the class table as a page."
)
@click.option(
    "--feedback",
    metavar="DIR",
    callback=writable_folder,
    help="Write a feedback page for each student to this folder, and a copy of each student's "
    "notebook with a feedback cell under each task.",
)
@json_option
def check(files: tuple[str, ...], hints: int, as_json: bool, **options: Any) -> None:
    """Mark solutions to the course's tasks in FILEs (.py, .ipynb): print points, mistakes, hints.

    A lesson's notebook is marked only for the tasks that it lists. To choose the tasks yourself,
    pass --lesson or --released; the class table then has a column for each chosen task. For a
    folder, the command marks every file in the folder, prints the class table, and lists the most
    common mistakes. If each student has a subfolder, the table has a row for each student. If a
    file cannot be marked, its verdict gives the reason, and the other files are still marked.

    With a roster, the command assigns a file to the student whose id is in the name of the file or
    its folder. If no id matches, the command looks for the student's name. Students without files
    also get a row.

    Each file runs in a separate process, which is stopped if it runs too long or uses too much
    memory. Another process checks the results. A solution gets no points if it calls qkv or another
    library to compute the answer. There is no sandbox: a marked file runs with your permissions.

    \b
        qkv check --list
        qkv check mine.py
        qkv check mine.py --task softmax --hints 2
        qkv check 3-one-function-student.ipynb
        qkv check submissions --lesson 3 --roster roster.csv --csv grades.csv --html grades.html
        qkv check submissions --lesson 3 --roster roster.csv --feedback feedback --hints 2
    """  # noqa: D301 (\b tells click not to wrap the next lines)
    import qkv_marking as marking

    if options["as_list"]:
        _print_tasks(as_json)
        return
    context = click.get_current_context()
    if not files:
        raise click.UsageError("pass the files to mark, or --list", context)
    chosen = {name: options[name] for name in ("tasks", "lessons", "released", "points")}
    plan = marking.plan_tasks(**chosen)
    folders = [file for file in files if Path(file).is_dir()]
    for file in files:
        if file not in folders:
            _readable(file)
    roster = options["roster"]
    listed = None if roster is None else marking.read_roster(roster)
    paths = [*_paths(files, folders)]
    if listed is None:
        students = marking.by_file(paths, folders)
    else:
        students = marking.by_roster(listed, paths, folders)
    students = students.select(plan.select)
    if options["manual"] is not None:
        students, plan = marking.add_grades(options["manual"], students, plan)
    paths = [file for student in students.rows for file in student.files]
    if options["gradescope"] and len(students.rows) > 1 and students.columns != ("file",):
        raise ValueError(
            "--gradescope writes the results of one submission, but these files are from"
            f" {len(students.rows)} students: pass the files of one student, or use --csv"
        )
    marked = _mark_files(paths, plan, seed=options["seed"], seconds=options["seconds"])
    table = marking.ClassTable(marked, students, plan, options["take"])
    unwritten = [*_unwritten(table, hints, options)]
    results = [(file, result) for file, results in table.marked for result in results]
    if as_json:
        print_json([_row(file, result, plan, hints) for file, result in results])
    elif folders or roster is not None:
        _print_table(table)
    else:
        tell("\n\n".join(_text(file, result, hints, plan) for file, result in results))
        if len(results) > 1:
            click.echo(f"\n{_sum(results, plan)}")
    if unwritten:  # print all verdicts before raising this error
        raise OSError("; ".join(unwritten))
    if not all(result.passed for _, result in results):
        context.exit(FAILED)


def _paths(files: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Yield all named files, all files in named folders, and all named folders without files."""
    from qkv_marking import files_in

    for file in files:
        if file not in folders:
            yield file
            continue
        try:
            yield from files_in(file)
        except FileNotFoundError:
            yield file


def _mark_files(
    files: Sequence[str], plan: "Plan", **options: Any
) -> "list[tuple[str, Sequence[CheckResult]]]":
    """Mark each file; if the marker itself fails, the verdict on the file reports the failure."""
    from qkv._progress import progress
    from qkv_marking import check_file
    from qkv_marking.files.verdicts import report_unmarked

    marked: list[tuple[str, Sequence[CheckResult]]] = []
    with progress("marking", len(files)) as advance:
        for file in files:
            tasks = plan.tasks_of(file)
            try:
                results = check_file(file, tasks, waiting=lambda: advance(0), **options)
            except Exception as error:
                results = (
                    report_unmarked(error, file, tasks[0] if tasks and len(tasks) == 1 else None),
                )
            marked.append((file, results))
            advance(1)
    return marked


def _unwritten(table: "ClassTable", hints: int, paths: Mapping[str, Any]) -> Iterator[str]:
    """Write each output file; yield a message for each file that cannot be written."""
    import qkv_marking as marking

    pages: list[Path] = []

    def write_html(to: str) -> None:
        table.write_html(to, [*map(functools.partial(_link, to), pages)])

    writers: dict[str, Callable[[str], None]] = {
        "feedback": lambda to: pages.extend(marking.write_feedback(to, table, hints)),
        "junit": lambda to: marking.write_junit(to, table.marked, hints),
        "gradescope": lambda to: marking.write_gradescope(
            to, table.marked, table.plan, hints, table.take
        ),
        "csv": table.write_csv,
        "html": write_html,
    }
    for name, write in writers.items():
        if (path := paths[name]) is not None:
            try:
                write(path)
            except OSError as error:
                yield f"{error.filename or path} cannot be written: {error.strerror or error}"


def _link(page: str, target: Path) -> str:
    """Return the address of a file as a link on a page."""
    try:
        relative = os.path.relpath(target.resolve(), Path(page).resolve().parent)
    except ValueError:  # the files are on two drives
        return target.resolve().as_uri()
    return quote(Path(relative).as_posix())


def _readable(file: str) -> None:
    """Raise an error if a file cannot be read."""
    with open(ordinary(file), "rb"):
        pass


def _print_tasks(as_json: bool) -> None:
    from qkv_marking import TASKS

    if as_json:
        print_json([
            {"task": task.name, "looks_for": [*task.looks_for], "signature": task.signature,
             "asks": task.asks}
            for task in TASKS.values()
        ])  # fmt: skip
        return
    for task in TASKS.values():
        click.echo(f"{task.name}\n    {task.signature}")
        click.echo(textwrap.indent(textwrap.fill(task.asks, 76), "    "))
        if len(task.looks_for) > 1:
            click.echo(f"    the function may be called {' or '.join(task.looks_for)}")


_COMMON = 10  # the maximum number of mistakes listed below the table


def _print_table(table: "ClassTable") -> None:
    """Print the points per file and task, then the most common mistakes."""
    from rich.table import Table
    from rich.text import Text

    from qkv.cli._output import console

    screen = console()
    points = Table(box=None, pad_edge=False)
    for name in table.columns:
        points.add_column(name, overflow="fold")
    for name in table.headings:
        points.add_column(name, justify="right")
    notes = table.notes
    for name in (*notes, "mistakes"):
        points.add_column(name, overflow="fold")
    for row in table.rows:
        cells = ["" if n is None else f"{n:g}" for n in (*row.points, row.total)]
        cells += [visible(row.note)] * len(notes)
        points.add_row(*(Text(visible(name)) for name in row.names), *cells, visible(row.mistakes))
    screen.print(points)
    if table.commonest:
        screen.print("\nMost common mistakes:")
    for count, task, key in table.commonest[:_COMMON]:
        screen.print(f"  {count:>3} {key} ({task})", markup=False)
    if len(table.commonest) > _COMMON:
        screen.print(f"      and {len(table.commonest) - _COMMON} more")


def _row(file: str, result: "CheckResult", plan: "Plan", hints: int) -> dict[str, Any]:
    names = ("task", "passed", "mistakes", "fragile", "conventions", "hint", "helped_by", "reason")
    points, most = _weigh(file, result, plan)
    row = {name: getattr(result, name) for name in names}
    text = result.text(hints)
    return {"file": file, **row, "points": points, "max_points": most, "text": text}


def _weigh(file: str, result: "CheckResult", plan: "Plan") -> tuple[float, float]:
    """Return the points of a verdict and the maximum."""
    most = plan.most(result.task, file)
    return (plan.column(result.task, file).weigh(result.points) if result.task else 0, most)


def _text(file: str, result: "CheckResult", hints: int, plan: "Plan") -> str:
    """Return a verdict as text for a terminal, with all hints up to the number `hints`."""
    about = visible(file) + (f", {result.task}" if result.task else "")
    points, most = _weigh(file, result, plan)
    verdict = "graded" if result.by_teacher else "passed" if result.passed else "not passed"
    lines = [
        f"{about}: {verdict}, {points:g} of {most:g} points",
        textwrap.indent(visible(result.text(hints), "\n"), "  "),
    ]
    if (result.mistakes or result.fragile) and hints < len(result.hint):
        more = ("says what to try", "says where to look", "shows the correct line")[hints]
        lines.append(f"  --hints {hints + 1} {more}.")
    return "\n".join(lines)


def _sum(results: "Sequence[tuple[str, CheckResult]]", plan: "Plan") -> str:
    passed = sum(result.passed for _, result in results)
    weighed = [_weigh(file, result, plan) for file, result in results]
    points, most = (sum(numbers) for numbers in zip(*weighed, strict=True))
    return f"{passed} of {len(results)} passed, {points:g} of {most:g} points"
