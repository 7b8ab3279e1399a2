"""The process that somebody's function runs in: makes the arrays of a case, calls it, and tells."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.child_process import Packed, serve
from qkv.marking.conformance import adapters
from qkv.marking.conformance.called import Callee, callee
from qkv.marking.conformance.cases import Case
from qkv.marking.conformance.inputs import draw, laid
from qkv.marking.conformance.libraries import Library, library
from qkv.marking.errors import in_words, type_name
from qkv.marking.files.wire import Packer

MEGABYTES = 8192
# what is raised by mistake, and not to refuse
_SLIPS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, NameError, RecursionError),
    *(SystemExit, KeyboardInterrupt, GeneratorExit),
)
_LAID = ("query", "key", "value")


def main() -> None:
    """Load the function that the first argument describes, and call it when asked."""
    told, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
    sys.path[:] = dict.fromkeys([*told.pop("path"), *sys.path])
    serve(lambda: Worker(lambda: load(**told), told["arrays"], told["device"]).answer,
          MEGABYTES, seconds)  # fmt: skip


def load(target: str, arrays: str, names: Mapping[str, str] | None, device: str) -> Callee:
    """The function that somebody named.

    Raises:
        ValueError: there is none, or it is nothing to call.
    """
    if target in adapters.BUILT_IN:
        return adapters.BUILT_IN[target]()
    if target.endswith(".onnx"):
        return adapters.onnx_file(target, names)
    where, colon, name = target.rpartition(":")
    if not colon:
        built_in = ", ".join(adapters.BUILT_IN)
        raise ValueError(
            f"{target} is nothing known: write package.module:function, file.py:function,"
            f" model.onnx, or one of {built_in}"
        )
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None or not Path(where).is_file():
            raise ValueError(f"there is no file {where}")
        thing: Any = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(Path(where).resolve().parent))
        sys.modules[spec.name] = thing
        spec.loader.exec_module(thing)
    else:
        thing = importlib.import_module(where)
    for part in name.split("."):
        if not hasattr(thing, part):
            raise ValueError(f"{where} has no {name}")
        thing = getattr(thing, part)
    return of_function(thing, names)


def of_function(thing: Any, names: Mapping[str, str] | None) -> Callee:
    """How a function is called; functions of libraries that are known are called as documented."""
    if not callable(thing):
        raise ValueError(f"it is a {type_name(thing)}, it must be something to call")
    return adapters.known(thing) or callee(thing, names)


class Worker:
    """Calls a function on cases.

    Args:
        load: gives the function.
        arrays: the library whose arrays it takes.
        device: where they stand.
    """

    def __init__(self, load: Callable[[], Callee], arrays: str, device: str) -> None:
        self._load, self._arrays, self._device = load, arrays, device
        self.callee: Callee
        self.library: Library

    def answer(self, request: Packed, tell: Callable[[Any], None]) -> Packed:
        """The reply to a request; what the function raises is one."""
        try:
            if request["do"] == "load":
                return self._loaded()
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._call(Case.read(request["case"]))
        except BaseException as error:
            return {"error": in_words(error)[:500], "slip": isinstance(error, _SLIPS)}

    def _loaded(self) -> Packed:
        self.callee = self._load()
        self.library = library(self.callee.arrays or self._arrays, self._device)
        return {
            "offered": sorted(self.callee.names),
            "absent": sorted({*self.callee.absent, *self.library.absent}),
            "aligned": self.callee.aligned,
            "says": self.callee.says,
            "halves": self.library.halves,
        }

    def _call(self, case: Case) -> Packed:
        """Call it as often as the case says; also what it has written to that is not its own."""
        drawn = draw(case)
        bases, given = {}, {}
        for name, a in drawn.items():
            if name in case.unsaid:
                continue
            if not isinstance(a, np.ndarray):
                given[name] = a
                continue
            kept = laid(case, name, a) if name in _LAID else laid(_plain(case, a), name, a)
            bases[name] = self.library.give(kept.base)
            given[name] = kept.view(bases[name])
        before = {name: self.library.take(a).tobytes() for name, a in bases.items()}
        query, key, value = (given.pop(name) for name in _LAID)
        kept_outs: list[tuple[Array, Array]] = []
        told: list[list[Array]] = []
        for _ in range(case.repeats):
            returned = self.callee(query, key, value, **given)
            outs = [self.library.take(one) for one in _tuple(returned)]
            told.append([one.copy() for one in outs])
            kept_outs += zip(outs, told[-1], strict=True)
        changed = [
            name for name, a in bases.items() if self.library.take(a).tobytes() != before[name]
        ]
        packer = Packer(lambda _: None)
        return {
            "outs": [packer.pack(one) for one in told[0]],
            "changed": changed,
            "same": all(_same(told[0], one) for one in told),
            "overwritten": any(not _same([a], [kept]) for a, kept in kept_outs),
        }


def _plain(case: Case, a: Array) -> Case:
    """How a mask stands in memory: across, where the inputs do not stand plainly."""
    across = case.layout in ("transposed", "every second") and a.ndim == 4
    return Case(case.feature, layout="fortran" if across else "")


def _tuple(returned: Any) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def _same(one: list[Array], other: list[Array]) -> bool:
    return [a.tobytes() for a in one] == [b.tobytes() for b in other]
