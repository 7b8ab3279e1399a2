"""How far a run is, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from qkv.progress import wanted

Show = Callable[[float, str], None]


@contextmanager
def training_progress(show: bool | None = None) -> Iterator[Show]:
    """Give a function that is told the share of the run that is over, and what to say of it.

    Args:
        show: True for a bar, False for none; None for one on a terminal.
    """
    if not wanted(show):
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
