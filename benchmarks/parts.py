"""Measure which share of a model's time goes to projections, attention and norms."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

# For each part: its functions, and the modules that call these functions.
CALLED = {
    "projections": ("qkv.ops.linear.linear",),
    "attention": (
        "qkv.layers.attention.forward.answer",
        "qkv.layers.attention.forward.attend_rows",
    ),
    "norms": ("qkv.layers.norm.normalize",),
}


def parts(call: Callable[[], Any]) -> dict[str, float]:
    """Return the share of each part in the time of a call; the rest is mostly Python code."""
    spent = dict.fromkeys(CALLED, 0.0)
    with ExitStack() as stack:
        for name, places in CALLED.items():
            for place in places:
                stack.enter_context(timed(place, name, spent))
        begin = time.perf_counter()
        call()
        whole = time.perf_counter() - begin
    shares = {name: seconds / whole for name, seconds in spent.items()}
    return shares | {"the rest": 1 - sum(shares.values())}


@contextmanager
def timed(place: str, name: str, spent: dict[str, float]) -> Iterator[None]:
    """Add the time of each call of the function `place` to `spent[name]`."""
    from importlib import import_module

    module, _, function = place.rpartition(".")
    inner = getattr(import_module(module), function)

    def call(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return inner(*args, **options)
        finally:
            spent[name] += time.perf_counter() - begin

    with mock.patch(place, call):
        yield
