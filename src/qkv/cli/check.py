"""`qkv check`: marks what files have for the tasks of the course."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qkv.cli.common import FAILED, json_option, print_json, tell, writable
from qkv.visible import visible

if TYPE_CHECKING:
    from qkv.marking import CheckResult, ClassTable


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--task", metavar="NAME", help="Mark this task alone. Default: each that a file has.")
@click.option("--list", "as_list", is_flag=True, help="Print the tasks and what to write.")
@click.option(
    "--hint",
    "grade",
    type=click.IntRange(1, 3),
    default=1,
    help="1: what to try. 2: also where to look. 3: the line that mends it. Default: 1.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    help="Draw the inputs by this seed. Default: 0, the shortest to print.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="How long reading the file and each task may take; a cell of a notebook may take six times"
    " as long. Default: what each task needs, 10 for most.",
)
@click.option(
    "--junit",
    metavar="FILE",
    callback=writable(".xml"),
    help="Write the verdicts as JUnit XML too.",
)
@click.option(
    "--roster",
    metavar="FILE",
    help="A CSV file with the columns id and name: the table has a row for each student.",
)
@click.option(
    "--csv", metavar="FILE", callback=writable(".csv"), help="Write the table of the class as CSV."
)
@click.option(
    "--gradescope",
    metavar="FILE",
    callback=writable(".json"),
    help="Write the verdicts on one submission as Gradescope's results.json.",
)
@click.option("--html", metavar="FILE", callback=writable(".html"), help="Write it as a page.")
@json_option
@click.pass_context
def check(
    context: click.Context,
    files: tuple[str, ...],
    task: str | None,
    as_list: bool,
    grade: int,
    seed: int,
    seconds: float | None,
    junit: str | None,
    roster: str | None,
    csv: str | None,
    gradescope: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Mark what FILEs (.py, .ipynb) have for the tasks: points, what is wrong, and a hint.

    The notebook of a lesson is marked for its tasks. Of a folder, every file is marked, and a table
    of the class with its commonest mistakes is printed. Where every file lies in a folder of its
    student, the table has a row for each student. A file that cannot be marked has a verdict that
    says why, and the others are marked.

    With a roster, a file belongs to the student whose id, or else whose name, stands in the name of
    the file or of its folder. Students who handed in nothing have a row too.

    Each file runs in a process of its own, which is ended when it takes too long or too much
    memory. What its functions return is judged in another process, and where qkv, torch or scipy
    answers for the student there are no points. This is no sandbox: a file may do whatever you may.

    \b
        qkv check --list
        qkv check mine.py
        qkv check mine.py --task softmax --hint 2
        qkv check 3-one-function-student.ipynb
        qkv check submissions --roster roster.csv --csv grades.csv --html grades.html
    """  # noqa: D301 (click reads the backspace: what follows is not wrapped)
    from qkv.marking import (
        ClassTable,
        by_file,
        by_roster,
        read_roster,
        write_gradescope,
        write_junit,
    )
    from qkv.marking.marker import task_of
    from qkv.progress import progress

    if as_list:
        _print_tasks(as_json)
        return
    if not files:
        raise click.UsageError("name the files to mark, or give --list", context)
    if task is not None:
        task_of(task)
    folders = [file for file in files if Path(file).is_dir()]
    for file in files:
        if file not in folders:
            _readable(file)
    listed = None if roster is None else read_roster(roster)
    found = [*_found(files, folders)]
    students = by_file(found, folders) if listed is None else by_roster(listed, found, folders)
    if gradescope is not None and len(students.rows) > 1 and students.columns != ("file",):
        raise ValueError(
            f"--gradescope writes the results of one submission, and these are of"
            f" {len(students.rows)} students: name the files of one, or use --csv"
        )
    marked: list[tuple[str, Sequence[CheckResult]]] = []
    with progress("marking", len(found)) as advance:
        for file in found:
            marked.append(
                (file, _marked(file, task, {"seed": seed, "seconds": seconds}, lambda: advance(0)))
            )
            advance(1)
    table = ClassTable(marked, students)
    marked = table.marked
    outputs = {
        junit: lambda to: write_junit(to, marked),
        gradescope: lambda to: write_gradescope(to, marked),
        csv: table.write_csv,
        html: table.write_html,
    }
    unwritten = [*_unwritten(outputs)]
    flat = [(file, result) for file, results in marked for result in results]
    if as_json:
        rows = [_row(file, result) for file, result in flat]
        print_json(rows[0] if task is not None and len(files) == 1 and not folders else rows)
    elif folders or roster is not None:
        _print_table(table)
    else:
        tell("\n\n".join(_said(visible(file), result, grade) for file, result in flat))
        if len(flat) > 1:
            click.echo(f"\n{_sum([result for _, result in flat])}")
    if unwritten:  # what could be marked is told, and written where that was possible
        raise OSError("; ".join(unwritten))
    if not all(result.passed for _, result in flat):
        context.exit(FAILED)


def _found(files: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """The files that are named, and those in folders; an empty folder stands for itself.

    Alone it is an error.
    """
    from qkv.marking import files_in

    for file in files:
        if file not in folders:
            yield file
            continue
        try:
            yield from files_in(file)
        except FileNotFoundError:
            if len(files) == 1:
                raise
            yield file


def _marked(
    file: str, task: str | None, options: Mapping[str, Any], waiting: Callable[[], None]
) -> tuple[CheckResult, ...]:
    """The verdicts on a file; what fails in marking it is one, so that the others are marked."""
    from qkv.marking import check_file
    from qkv.marking.files.verdicts import unmarked

    try:
        return check_file(file, task, waiting=waiting, **options)
    except Exception as error:
        return (unmarked(error, task),)


def _unwritten(outputs: Mapping[str | None, Callable[[str], None]]) -> Iterator[str]:
    """Write each file that was asked for, and say which ones could not be."""
    for path, write in outputs.items():
        if path is not None:
            try:
                write(path)
            except OSError as error:
                yield f"{path} cannot be written: {error.strerror or error}"


def _readable(file: str) -> None:
    """A file that cannot be read is a bad request, before any is marked."""
    with open(file, "rb"):
        pass


def _print_tasks(as_json: bool) -> None:
    from qkv.marking import TASKS

    if as_json:
        print_json([
            {"task": one.name, "looks_for": [*one.looks_for], "signature": one.signature,
             "asks": one.asks}
            for one in TASKS.values()
        ])  # fmt: skip
        return
    for one in TASKS.values():
        click.echo(one.name)
        click.echo(f"    {one.signature}")
        click.echo(textwrap.indent(textwrap.fill(one.asks, 76), "    "))
        if len(one.looks_for) > 1:
            click.echo(f"    it may be called {' or '.join(one.looks_for)}")


_COMMON = 10  # mistakes below the table


def _print_table(table: ClassTable) -> None:
    """Points by file and task, and the commonest mistakes."""
    from rich.table import Table
    from rich.text import Text

    from qkv.cli.common import console

    screen = console()
    points = Table(box=None, pad_edge=False)
    for name in table.columns:
        points.add_column(name, overflow="fold")
    for name in (*table.tasks, "points"):
        points.add_column(name, justify="right")
    points.add_column("mistakes", overflow="fold")
    for names, each, total, mistakes in table.rows():
        cells = ["" if one is None else str(one) for one in (*each, total)]
        points.add_row(*(Text(visible(name)) for name in names), *cells, visible(mistakes))
    screen.print(points)
    if table.commonest:
        screen.print("\nCommonest mistakes:")
    for count, task, key in table.commonest[:_COMMON]:
        screen.print(f"  {count:>3} {key} ({task})", markup=False)
    if len(table.commonest) > _COMMON:
        screen.print(f"      and {len(table.commonest) - _COMMON} more")


def _row(file: str, result: CheckResult) -> dict[str, Any]:
    return {
        "file": file,
        "task": result.task,
        "passed": result.passed,
        "points": result.points,
        "mistakes": result.mistakes,
        "fragile": result.fragile,
        "conventions": result.conventions,
        "hint": result.hint,
        "helped_by": result.helped_by,
    }


def _said(file: str, result: CheckResult, grade: int) -> str:
    """One verdict for a terminal, with hints up to a grade."""
    about = f"{file}, {result.task}" if result.task else file
    points = f"{result.points} of 10 points"
    verdict = "passed" if result.passed else "not passed"
    told = visible(result.text(grade), "\n")
    lines = [f"{visible(about)}: {verdict}, {points}", textwrap.indent(told, "  ")]
    if (result.mistakes or result.fragile) and grade < len(result.hint):
        more = "says where to look" if grade == 1 else "has the line that mends it"
        lines.append(f"  --hint {grade + 1} {more}.")
    return "\n".join(lines)


def _sum(results: list[CheckResult]) -> str:
    passed = sum(result.passed for result in results)
    points = sum(result.points for result in results)
    return f"{passed} of {len(results)} passed, {points} of {10 * len(results)} points"
