"""An entry of the tables: a defective kernel, and what the card must say of it."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from . import bases

_KNOWN = {
    name: parameter
    for base in (bases.prepare, bases.plain)
    for name, parameter in inspect.signature(base).parameters.items()
}


def takes(names: str) -> Callable[[Any], Any]:
    """Return a decorator for a kernel with `**options`: `names` are the arguments that it takes."""

    def decorate(kernel):
        first = [
            it for it in inspect.signature(kernel).parameters.values() if it.default is it.empty
        ]
        first = [it for it in first if it.kind is it.POSITIONAL_OR_KEYWORD]
        kernel.__signature__ = inspect.Signature([*first, *map(_KNOWN.get, names.split())])
        return kernel

    return decorate


def change(base: str, changes: Mapping[str, str], names: str = "") -> Callable[..., Any]:
    """Return a kernel of `bases.py` in which lines, or parts of lines, are replaced.

    Each key of `changes` must occur once in the base and in `prepare`. Further lines of its
    replacement are indented like the line that it is in. A key "before: ..." or "after: ..." keeps
    its text, and adds lines. The kernel takes the arguments `names`.
    """
    text = "\n".join(inspect.getsource(getattr(bases, name)) for name in ("prepare", base))
    for key, new in changes.items():
        old = key.removeprefix("before: ").removeprefix("after: ")
        if key.startswith("before: "):
            new = f"{new}\n{old}"
        elif key.startswith("after: "):
            new = f"{old}\n{new}"
        if text.count(old) != 1:
            raise ValueError(f"change: {old!r} occurs {text.count(old)} times in {base}; name one")
        line = text[text.rindex("\n", 0, text.index(old)) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        text = text.replace(old, new.replace("\n", "\n" + indent))
    space = dict(vars(bases))
    exec(text, space)
    return takes(names)(space[base])


class Entry(NamedTuple):
    """A defective kernel, and what the card must say of it.

    Attributes:
        says: what is wrong with it.
        kernel: the function; or a base of which `changes` replace lines, with the arguments that it
            takes: "tiled: scale return_lse". A change of "backward" changes the backward pass, and
            the forward pass is "plain".
        changes: the replaced texts, and what replaces them.
        card: the wrong feature, and words of the card that name the defect; they were read beside
            `says`; "" if the card gives no name. Further features are those to which a pair of
            arguments may be counted instead.
        beside: features without whose cases the first feature is not wrong, or not named rightly.
        gradient: the backward pass, if the defect is in it and `kernel` is a function.
        found: False if the card finds no defect, because the formula has it too in the kernel's
            own type, or because the card states it as a note.
        source: a public report of the defect on GitHub.
    """

    says: str
    kernel: str | Callable[..., Any]
    changes: Mapping[str, str] = {}
    card: Mapping[str, str] = {}
    beside: Collection[str] = ()
    gradient: Any = None
    found: bool = True
    source: str = ""

    def functions(self) -> tuple[Any, Any]:
        """Return the kernel, and its backward pass or None."""
        if not isinstance(self.kernel, str):
            return self.kernel, self.gradient
        return _functions(self.kernel, tuple(self.changes.items()))

    def features(self) -> list[str]:
        """Return the features whose cases decide what the card says."""
        return [*self.card, *self.beside]


@functools.cache
def _functions(kernel, changes):
    base, _, names = kernel.partition(": ")
    changed = change(base, dict(changes), names)
    return (change("plain", {}, names), changed) if base == "backward" else (changed, None)
