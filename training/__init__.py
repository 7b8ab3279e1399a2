"""Train and measure the models that come with qkv."""

from __future__ import annotations

import sys
from collections.abc import Callable


def command(main: Callable[[], None]) -> None:
    """Run a command. Print an error or an interruption as one line."""
    from qkv.learn import Interrupted
    from qkv.signals import answering, leave

    try:
        with answering(leave):  # remove an unfinished file
            main()
    except Interrupted as stop:
        sys.exit(f"{stop}; --resume continues the run")
    except (ValueError, OSError) as error:
        sys.exit(str(error))
