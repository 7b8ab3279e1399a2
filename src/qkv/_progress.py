"""Progress bars on standard error, if standard error is a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PATIENCE = 2.0  # seconds of work before a bar appears


def is_bar_wanted(show: bool | None) -> bool:
    """Return whether to show a bar; if `show` is None, a bar is shown only on a terminal.

    No bar is shown if standard error is missing (as under `pythonw`) or is closed by the shell.
    """
    stream = sys.stderr
    if stream is None or getattr(stream, "closed", False):
        return False
    return show is True or (show is None and hasattr(stream, "isatty") and stream.isatty())


@contextmanager
def progress(
    what: str, total: int | None, show: bool | None = None, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that advances the bar by an amount of work.

    Args:
        what: the name of the bar.
        total: the total amount of work; None if unknown.
        show: True shows a bar at once, False shows no bar. With None, a bar appears only on a
            terminal, and only after 2 seconds of work.
        unit: the unit of the amounts, such as "tokens". If a unit is given, the bar also shows the
            speed: "1,200 tokens a second".
    """
    if not is_bar_wanted(show):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    columns = [*Progress.get_default_columns()]
    if unit:
        columns.append(TextColumn("left, {task.fields[pace]}"))
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(what, total=total, pace="")
    begin = time.monotonic()

    def advance(amount: int) -> None:
        if not bar.live.is_started and (show or time.monotonic() - begin > PATIENCE):
            bar.start()
        bar.advance(task, amount)
        if unit:
            seconds = max(time.monotonic() - begin, 1e-9)
            bar.update(task, pace=f"{bar.tasks[0].completed / seconds:,.0f} {unit} a second")

    try:
        if show:
            bar.start()
        yield advance
    finally:
        bar.stop()


@contextmanager
def training_progress(show: bool | None = None) -> Iterator[Callable[[float, str], None]]:
    """Show the progress of a training run; yield a function that updates the bar.

    The function's arguments are the finished share of the run, from 0 to 1, and a description.

    Args:
        show: True shows a bar, False shows no bar. With None, a bar appears only on a terminal.
    """
    if not is_bar_wanted(show):
        yield lambda share, words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    )
    task = bar.add_task("", total=1.0)

    def tell(share: float, words: str) -> None:
        bar.update(task, completed=share, description=words)

    bar.start()
    try:
        yield tell
    finally:
        with suppress(OSError):  # the terminal was closed
            bar.stop()
