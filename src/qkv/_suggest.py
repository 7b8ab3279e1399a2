"""The end of an error message about an unknown name: similar names, or all names."""

import difflib
from collections.abc import Iterable

_LISTED = 10  # a message lists at most this number of names if no name is similar


def nearest(name: object, names: Iterable[str], most: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return the names that are similar to an unknown name, the most similar first.

    >>> nearest("patern", ["pattern", "q", "k"]), nearest("zzz", ["pattern", "q", "k"])
    (['pattern'], [])
    """
    return difflib.get_close_matches(str(name), list(names), n=most, cutoff=cutoff)


def suggestion(near: Iterable[str], names: Iterable[str], kind: str = "the nearest are") -> str:
    """Return a clause that gives the similar names; if none is similar, it gives all names.

    >>> suggestion([], "abcdefghijklm")
    'choose from a, b, c, d, e, f, g, h, i, j and 3 more'
    """
    near, known = list(dict.fromkeys(near)), list(dict.fromkeys(names))
    if near:
        return f"{kind} {', '.join(near)}"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"choose from {', '.join(known[:_LISTED])}{more}"
