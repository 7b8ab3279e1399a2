"""How the model that ships is made: WordNet, what it trains on, and how good the result is."""

from __future__ import annotations

import sys
from collections.abc import Callable


def command(main: Callable[[], None]) -> None:
    """Run a command; what it cannot do, and that it was stopped, it says in one line."""
    from qkv.learn import Interrupted
    from qkv.signals import answering, leave

    try:
        with answering(leave):  # half a file is taken away
            main()
    except Interrupted as stop:
        sys.exit(f"{stop}; --resume goes on")
    except (ValueError, OSError) as error:
        sys.exit(str(error))
