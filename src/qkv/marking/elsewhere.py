"""Things that live in another process, where a student's file runs, as the marker holds them."""

from __future__ import annotations

from typing import Any

from qkv.arrays import Array


class Elsewhere:
    """An object of another process."""

    def held_arrays(self) -> list[tuple[str, Array]]:
        """The arrays that it holds, with the way to each."""
        raise NotImplementedError

    def is_stub(self) -> bool:
        """Is it as a lesson hands it out, with nothing filled in?"""
        raise NotImplementedError


class RaisedElsewhere(BaseException):
    """An exception of another process, where its frames are.

    Attributes:
        line: the line of the student's that raised it, in words; empty where none did.
        likely: the `Mistake` that it most likely is, or None.
    """

    line: str
    likely: Any
