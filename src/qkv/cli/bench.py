"""`qkv bench`: how fast attention is here, and how exact."""

from __future__ import annotations

import click

from qkv.cli.common import console, debug_option, json_option, print_json


@click.command()
@json_option
@debug_option
def bench(as_json: bool) -> None:
    """Time attention beside plain NumPy, and beside what this machine gives at most.

    Each result is verified against float64 before it is timed; the errors are the largest found.
    Times are medians of at least nine, taken in turn.
    """
    from qkv.measure import ROUNDS, TASKS, machine, survey, table
    from qkv.progress import progress

    about = machine()
    with progress("measuring", len(TASKS) * (ROUNDS + 1)) as advance:
        results = survey(advance=advance)
    if as_json:
        print_json({"machine": about, "results": results})
        return
    from rich.table import Table

    out = console()
    out.print("{processor}, {cores} cores: {backend}, threads: {threads}".format(**about))
    first, *lines = table(results)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in first:
        grid.add_column(name, justify="left" if name == first[0] else "right")
    for line in lines:
        grid.add_row(*line)
    out.print(grid)
