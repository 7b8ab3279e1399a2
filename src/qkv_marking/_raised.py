"""Find the most likely cause of an error in a student's code, such as a missing name."""

import builtins
import contextlib
import difflib
import inspect
import re
from collections.abc import Iterator, Mapping
from types import FrameType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from qkv_marking._errors import RaisedElsewhere, in_words
from qkv_marking._mistake import TEXTS, Mistake, look_up
from qkv_marking._outcome import kind_of

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
# NumPy names that are often written without "np."
_OF_NUMPY = frozenset(
    {"exp", "log", "sqrt", "sin", "cos", "tanh", "zeros", "ones", "array", "arange", "where", "pi"}
    | {"tril", "triu", "concatenate", "stack", "einsum", "matmul", "dot", "inf", "swapaxes"}
)
# pairs (type, key): the mistake with this key causes errors of this type
_BY_TYPE = (
    (SystemExit, "exits"),
    (EOFError, "asks-for-input"),
    (MemoryError, "out-of-memory"),
    (RecursionError, "endless-recursion"),
)
# pairs (pattern, key): if an error message matches the pattern, the mistake with this key is the
# cause of the error
_BY_WORDS = tuple((re.compile(row["raised"]), key) for key, row in TEXTS.items() if "raised" in row)
# keys of mistakes whose only sign is an exception, which a helper function could also raise
RAISES = frozenset({"raises", *(key for _, key in _BY_WORDS)} - {"integer-table"})


def key_of(error: BaseException | None, otherwise: str) -> str:
    """Return the key of the mistake that causes this type of error, or `otherwise` if unknown."""
    return next((key for kind, key in _BY_TYPE if isinstance(error, kind)), otherwise)


def find_cause(error: BaseException | None) -> Mistake | None:
    """Return the most likely cause of an error, or None if no known cause fits."""
    if isinstance(error, RaisedElsewhere):
        likely: Mistake | None = error.likely
        return likely
    if isinstance(error, NameError):
        return _of_name(error)
    if isinstance(error, AttributeError) and (cause := _of_attribute(error)):
        return cause
    if isinstance(error, KeyError):
        return _of_key(error)
    words = in_words(error)
    return next((look_up(key) for pattern, key in _BY_WORDS if pattern.search(words)), None)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the stack frame that raised an error, then the frames of the callers."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    yield from reversed(frames)


def _near(name: str, names: Any) -> str:
    """Return the most similar of these names, or "" if none is similar."""
    lowered = {str(other).lower(): str(other) for other in names}
    near = difflib.get_close_matches(name.lower(), lowered, 1, 0.75)
    return lowered[near[0]] if near else ""


def _perhaps(near: str) -> str:
    return f" (perhaps {near} is meant)" if near else ""


def _of_name(error: NameError) -> Mistake:
    """Explain a NameError: a missing import, a missing `self.`, or an undefined name."""
    quoted = re.search(r"'(\w+)'", str(error))
    name = quoted[1] if quoted else str(error)
    of_self = _is_of_self(name, error)
    if not re.match(r"name '\w+' is not defined", str(error)):
        other = f", and self.{name} is another name" if of_self else ""
        return look_up("name-before-value", name=name, of_self=other)
    if of_self:
        return look_up("self-forgotten", name=name, line=f"self.{name}")
    if name in _IMPORTS:
        return look_up("import-forgotten", name=name, line=_IMPORTS[name])
    frame = next(_frames(error), None)
    names = {*vars(builtins)} | ({*frame.f_locals, *frame.f_globals} if frame else set())
    near = f"np.{name}" if name in _OF_NUMPY else _near(name, names - {name})
    line = near or f"{name} = ...  # or def {name}(...), before it is used"
    return look_up("name-unknown", name=name, perhaps=_perhaps(near), line=line)


def _is_of_self(name: str, error: BaseException) -> bool:
    """Return whether the error is from a method whose `self` has an attribute with this name."""
    for frame in _frames(error):
        with contextlib.suppress(Exception):  # attributes of a student's class may raise errors
            if hasattr(frame.f_locals["self"], name):
                return True
    return False


def _of_attribute(error: AttributeError) -> Mistake | None:
    """Explain an AttributeError of a module, an array, or an object whose class is in the file."""
    name, owner = error.name or "", error.obj
    method = inspect.unwrap(getattr(type(owner), "__init__", object.__init__))
    begin = getattr(method, "__code__", None)
    if begin is not None and name in begin.co_varnames:
        return look_up("self-forgotten", name=name, line=f"self.{name} = ...  # in __init__")
    near = _near(name, dir(owner))
    if isinstance(owner, np.ndarray) and hasattr(np, name):
        near = f"np.{name}"
    if not near and not isinstance(owner, ModuleType):
        return None
    called = "an array" if isinstance(owner, np.ndarray) else kind_of(owner)
    if isinstance(owner, ModuleType):
        called = owner.__name__
    names = {"name": name, "owner": called, "perhaps": _perhaps(near)}
    return look_up("attribute-unknown", **names, line=near or f"def {name}(...): ...  # your own")


def _of_key(error: KeyError) -> Mistake | None:
    """Explain a KeyError, and suggest a similar key of the mapping."""
    key = error.args[0] if error.args else None
    mappings = (
        value
        for frame in _frames(error)
        for value in frame.f_locals.values()
        if isinstance(value, Mapping) and key not in value
    )
    near = next(filter(None, (_near(str(key), mapping) for mapping in mappings)), "")
    if not near or not isinstance(key, str):
        return None
    perhaps = _perhaps(repr(near))
    return look_up("key-unknown", name=repr(key), perhaps=perhaps, line=f'"{near}"')
