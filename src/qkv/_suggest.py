"""Suggest similar names, or all names, at the end of an error about an unknown name."""

import difflib
from collections.abc import Iterable

_LISTED = 10  # if no name is similar, a message lists at most this many names


def nearest(name: object, names: Iterable[str], most: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return the names that are similar to an unknown name, most similar first.

    >>> nearest("patern", ["pattern", "q", "k"]), nearest("zzz", ["pattern", "q", "k"])
    (['pattern'], [])
    """
    return difflib.get_close_matches(str(name), list(names), n=most, cutoff=cutoff)


def suggestion(near: Iterable[str], names: Iterable[str], kind: str = "the nearest are") -> str:
    """Return a clause that lists the similar names, or all names if none is similar.

    >>> suggestion([], "abcdefghijklm")
    'choose from a, b, c, d, e, f, g, h, i, j and 3 more'
    """
    near, known = list(dict.fromkeys(near)), list(dict.fromkeys(names))
    if near:
        return f"{kind} {', '.join(near)}"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"choose from {', '.join(known[:_LISTED])}{more}"
