"""What an error of somebody's function most likely is: a name that is missing, or a slip."""

from __future__ import annotations

import builtins
import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping
from types import FrameType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from qkv.marking.elsewhere import RaisedElsewhere
from qkv.marking.errors import in_words
from qkv.marking.mistake import Mistake, mistake
from qkv.marking.outcome import kind_of

_IMPORTS = MappingProxyType(
    {
        "np": "import numpy as np",
        "numpy": "import numpy",
        "math": "import math",
        "qkv": "import qkv",
        "torch": "import torch",
        "nn": "from torch import nn",
        "F": "import torch.nn.functional as F",
    }
)
# what is NumPy's, and is easily written without np.
_NUMPYS = frozenset(
    {"exp", "log", "sqrt", "sin", "cos", "tanh", "zeros", "ones", "array", "arange", "where", "pi"}
    | {"tril", "triu", "concatenate", "stack", "einsum", "matmul", "dot", "inf", "swapaxes"}
)

_SHOW = "Print what there is before the line that is named, with its shape."
# an error's words, and what it most likely is
_KNOWN = tuple(
    (re.compile(words), mistake(key, says, "", remedy=remedy, nudge=nudge, where=where))
    for words, key, says, nudge, where, remedy in (
        (
            r"^IndexError: (index -?\d+ is out of bounds|\w+ index out of range)",
            "index-past-end",
            "an index is past the end: of n things the last has the index n - 1",
            "Print the index, and the length of what it is used on.",
            "the range that the index runs over: where does it end?",
            "for j in range(len(k)): ...  # from 0 to len(k) - 1",
        ),
        (
            r"too many (indices for array|subscripts for operand)|^AxisError"
            "|not enough values to unpack",
            "axes-missing",
            "an array has fewer axes than the line expects",
            _SHOW,
            "the numbers of axes in that line: which array has so many?",
            "a.shape[-1], axis=-1, np.swapaxes(a, -1, -2)  # counted from the end",
        ),
        (
            r"NoneType|does not have enough dimensions \(has 0",
            "none-used",
            "it computes with None: a function without a return statement gives it, and a parameter"
            " may be None",
            "Print each thing that the line computes with: which one is None?",
            "the functions called before that line: does each return something?",
            "return weights  # at the end of the function that is called",
        ),
        (
            r"for \^|bitwise_xor",
            "power-sign",
            "^ is no power in Python, which writes it as **",
            "What is 3 ^ 2 in Python?",
            "the sign between a number and its exponent",
            "d ** 0.5",
        ),
        (
            "float(64)?' object cannot be interpreted as an integer|slice indices must be integers"
            "|^IndexError: only integers",
            "size-not-whole",
            "a size or an index is not a whole number, since / always gives a fraction",
            "What is 4 / 2 in Python: 2 or 2.0?",
            "the division that makes the size",
            "d = D // num_heads",
        ),
        (
            "list indices must be integers or slices, not tuple|'list' object has no attribute"
            r"|can't multiply sequence|operand type\(s\) for \S+ (.* and )?'list'",
            "list-as-array",
            "a list is used as an array: a list has no shape and no [i, j], and does not compute"
            " number by number",
            "Print the type of each thing in that line.",
            "the line that makes the list",
            "a = np.array(a)",
        ),
        (
            "object is not callable",
            "not-callable",
            "something that is no function is called, by ( ) behind it",
            "Print the type of what stands before the bracket.",
            "the ( ) of that line: is a sign missing before it, or should it be [ ]?",
            "q.shape[-1]; x @ (a + b)",
        ),
        (
            r"only (0-dimensional|length-1|size-1) arrays|setting an array element with a sequence"
            "|must be real number, not",
            "array-for-number",
            "an array stands where one number belongs",
            _SHOW,
            "functions of math, float() and out[i, j] take one number: what do they get?",
            "np.exp(scores)  # not math.exp; out[i] = row  # not out[i, j]",
        ),
        (
            r"Cannot cast ufunc .* to dtype\('(u?int\d*|bool)'\)",
            "integer-table",
            "fractions are added to an array of whole numbers (or of True and False)",
            "Print the dtype of the array that is written to.",
            "the line that makes the array: which dtype does it ask for?",
            "out = np.zeros(shape)  # of floats: no dtype=int, no np.full(shape, 0)",
        ),
        (
            r"\(\) (missing \d+ required|takes .* positional argument|got an unexpected keyword)",
            "call-arguments",
            "a function is called with other arguments than it has parameters",
            "Compare the call with the line of its def.",
            "the call, and the def: a method has self as its first parameter",
            "def split(self, a): ...",
        ),
        (
            "truth value of an array",
            "array-in-if",
            "an if, and, or, not or max is given a whole array, which is neither true nor false",
            "What is bool(np.array([True, False]))?",
            "the conditions in that line",
            "if mask is not None: ...; np.maximum(a, b)",
        ),
    )
)  # fmt: skip
# findings that say no more than that an error was raised: whatever raises them may be no answer
RAISES = frozenset({"raises", *(one.key for _, one in _KNOWN)} - {"integer-table"})


def known(error: BaseException | None) -> Mistake | None:
    """What an error most likely is; None where its own words are all there is to say."""
    if isinstance(error, RaisedElsewhere):
        likely: Mistake | None = error.likely
        return likely
    if isinstance(error, NameError):
        return _of_name(error)
    if isinstance(error, AttributeError) and (found := _of_attribute(error)):
        return found
    if isinstance(error, KeyError):
        return _of_key(error)
    words = in_words(error)
    return next((one for pattern, one in _KNOWN if pattern.search(words)), None)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Where it was raised, and the calls that led there, the last first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    yield from reversed(frames)


def _near(name: str, names: Any) -> str:
    """The likeliest of these names, or nothing."""
    lowered = {str(one).lower(): str(one) for one in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1, 0.75)
    return lowered[near[0]] if near else ""


def _of_name(error: NameError) -> Mistake:
    """A name that has no value: of a module, an attribute, or of nothing at all."""
    found = re.search(r"'(\w+)'", str(error))
    name = found[1] if found else str(error)
    of_self = _is_of_self(name, error)
    if not re.match(r"name '\w+' is not defined", str(error)):
        return mistake(
            "name-before-value",
            f"the name {name} is used before it has a value"
            f"{f', and self.{name} is another one' if of_self else ''}",
            "",
            remedy=f"{name} = ...  # before it is used, also where an if or a loop does nothing",
            nudge=f"Follow the lines from the top: which one gives {name} a value?",
            where=f"the lines that begin with {name} =: does one of them run before?",
        )
    if of_self:
        return _self_forgotten(name, f"self.{name}")
    if name in _IMPORTS:
        return mistake(
            "import-forgotten",
            f"the name {name} is used and never imported",
            "",
            remedy=f"{_IMPORTS[name]}  # at the top of the file",
            nudge=f"Which line of the file says what {name} is?",
            where="the import statements at the top",
        )
    frame = next(_frames(error), None)
    names = {*vars(builtins)} | ({*frame.f_locals, *frame.f_globals} if frame else set())
    near = f"np.{name}" if name in _NUMPYS else _near(name, names - {name})
    return mistake(
        "name-unknown",
        f"the name {name} is used and defined nowhere{_meant(near)}",
        "",
        remedy=near or f"{name} = ...  # or def {name}(...), before it is used",
        nudge=f"Search the file for {name}: which line defines it?",
        where=f"each place that says {name}",
    )


def _is_of_self(name: str, error: BaseException) -> bool:
    """Does an object, in one of whose methods it was raised, have an attribute of this name?"""
    for frame in _frames(error):
        with contextlib.suppress(Exception):  # whatever an attribute of somebody's class does
            if hasattr(frame.f_locals["self"], name):
                return True
    return False


def _meant(near: str) -> str:
    return f" (perhaps {near} is meant)" if near else ""


def _self_forgotten(name: str, line: str) -> Mistake:
    return mistake(
        "self-forgotten",
        f"{name} belongs to the object: self. is missing before it",
        "",
        remedy=line,
        nudge=f"Who knows {name} once __init__ has ended?",
        where=f"each {name} without self.",
    )


def _of_attribute(error: AttributeError) -> Mistake | None:
    """A name that a module, an array or an object of the file's own class has not."""
    name, owner = error.name or "", error.obj
    begin = getattr(getattr(type(owner), "__init__", None), "__code__", None)
    if begin is not None and name in begin.co_varnames:
        return _self_forgotten(name, f"self.{name} = ...  # in __init__")
    near = _near(name, dir(owner))
    if isinstance(owner, np.ndarray) and hasattr(np, name):
        near = f"np.{name}"
    if not near and not isinstance(owner, ModuleType):
        return None
    called = "an array" if isinstance(owner, np.ndarray) else kind_of(owner)
    if isinstance(owner, ModuleType):
        called = owner.__name__
    return mistake(
        "name-unknown",
        f"{called} has no {name}{_meant(near)}",
        "",
        remedy=near or f"def {name}(...): ...  # your own",
        nudge=f"Print dir() of it: which names has {called}?",
        where=f"each .{name}",
    )


def _of_key(error: KeyError) -> Mistake | None:
    """A name that a mapping has not, where one has a name much like it."""
    name = error.args[0] if error.args else None
    mappings = (
        it for frame in _frames(error) for it in frame.f_locals.values() if isinstance(it, Mapping)
    )
    near = next((n for n in (_near(str(name), it) for it in mappings if name not in it) if n), "")
    if not near or not isinstance(name, str):
        return None
    return mistake(
        "key-unknown",
        f"it asks for {name!r}, which is not there{_meant(repr(near))}",
        "",
        remedy=f'"{near}"',
        nudge="Print the names that the mapping has.",
        where=f"each {name!r}",
    )
