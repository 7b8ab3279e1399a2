"""The child process of `conform`, which draws the arrays of a case and calls the function."""

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
from qkv.files import ordinary
from qkv_marking._errors import in_words, type_name
from qkv_marking._isolated import Packed, serve
from qkv_marking.conformance import _adapters
from qkv_marking.conformance._called import Callee, Library, NotNumbers, callee, library
from qkv_marking.conformance._random_arrays import draw, laid
from qkv_marking.conformance.read_cases import Case
from qkv_marking.files.wire import Packer

MEGABYTES = 8192
_LARGEST = 1 << 22  # the maximum number of elements of an output
_LAID = ("query", "key", "value")


def main() -> None:
    """Read a task from the first command-line argument, then answer requests."""
    task, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
    sys.path[:] = dict.fromkeys([*task.pop("path"), *sys.path])
    worker = CaseWorker(task, lambda target: load(target, task["names"]))
    serve(lambda: worker.answer, MEGABYTES, seconds)


def load(target: str, names: Mapping[str, str] | None) -> Callee:
    """Load a function by its name.

    Raises:
        ValueError: the function does not exist or cannot be called.
    """
    if target in _adapters.BUILT_IN:
        return _adapters.BUILT_IN[target]()
    if target.endswith(".onnx"):
        return _adapters.onnx_file(str(ordinary(target)), names)
    where, colon, name = target.rpartition(":")
    if not colon:
        built_in = ", ".join(_adapters.BUILT_IN)
        raise ValueError(
            f"{target} is not a known function: write package.module:function, file.py:function,"
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
    """Determine how to call a function; known library functions are called as documented."""
    if not callable(thing):
        raise ValueError(f"it is a {type_name(thing)}, which cannot be called")
    return _adapters.find_callee(thing) or callee(thing, names)


class CaseWorker:
    """Passes the arrays of cases to a function.

    Args:
        task: a dict. `"target"` is the judged function, and `"gradient"` is its backward pass or
            None. `"arrays"` is the array library of both functions; `"device"` is the device of the
            arrays.
        load: a function that returns a `Callee`. The argument of `load` is the judged function, the
            backward pass, or the name of one of these two functions.
    """

    def __init__(self, task: Mapping[str, Any], load: Callable[[Any], Callee]) -> None:
        self._task, self._load = task, load
        self.callee: Callee
        self.gradient: Callee | None = None
        self.library: Library

    def answer(self, request: Packed, tell: Callable[[Any], None]) -> Packed:
        """Reply to a request; if the function raises an error, the reply describes the error."""
        try:
            if request["do"] == "load":
                return self._load_target()
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._call(Case.read(request["case"]))
        except BaseException as error:
            # an error refuses the call; SystemExit and a result without numbers are wrong
            slip = isinstance(error, NotNumbers) or not isinstance(error, Exception)
            return {"error": in_words(error)[:500], "slip": slip}

    def _load_target(self) -> Packed:
        self.callee = self._load(self._task["target"])
        arrays = self.callee.arrays or self._task["arrays"]
        self.library = library(arrays, self._task["device"])
        offered = {} if self.library.backward is None else self.callee.names
        if self._task["gradient"] is not None:
            self.gradient = self._load(self._task["gradient"])
            offered = self.gradient.names
        has_gradient = self.gradient is not None or self.library.backward is not None
        return {
            "offered": sorted(self.callee.names),
            "unnamed": sorted(self.callee.unnamed),
            "gradient": sorted(offered) if has_gradient else None,
            "absent": sorted({*self.callee.absent, *self.library.absent}),
            "aligned": self.callee.aligned,
            "defaults": dict(self.callee.defaults),
            "says": self.callee.says,
            "halves": self.library.halves,
        }

    def _call(self, case: Case) -> Packed:
        """Call the function `case.repeats` times, and record the inputs that it changes."""
        drawn = draw(case)
        bases, arguments = {}, {}
        for name, a in drawn.items():
            if name in case.unsaid:
                continue
            if not isinstance(a, np.ndarray):
                arguments[name] = a
                continue
            memory = laid(case, name, a) if name in _LAID else laid(_plain(case, a), name, a)
            bases[name] = self.library.give(memory.base)
            arguments[name] = memory.view(bases[name])
        before = {name: self.library.take(a).tobytes() for name, a in bases.items()}
        kept_outs: list[tuple[Array, Array]] = []
        results: list[list[Array]] = []
        for _ in range(case.repeats):
            returned = self._call_function(case, arguments)
            several = returned if isinstance(returned, tuple | list) else [returned]
            outs = [self.library.take(out) for out in several]
            results.append([out.copy() for out in outs])
            kept_outs += zip(outs, results[-1], strict=True)
        changed = [
            name for name, a in bases.items() if self.library.take(a).tobytes() != before[name]
        ]
        if too_large := [out.shape for out in results[0] if out.size > _LARGEST]:
            raise NotNumbers(f"the output has the shape {too_large[0]}")
        packer = Packer(lambda _: None, _LARGEST)
        return {
            "outs": [packer.pack(out) for out in results[0]],
            "changed": changed,
            "others": [
                [packer.pack(out) for out in result]
                for result in results
                if not _same(results[0], result)
            ],
            "overwritten": any(not _same([a], [copy]) for a, copy in kept_outs),
        }

    def _call_function(self, case: Case, arguments: Mapping[str, Any]) -> Any:
        """Call the function, or its backward pass, once."""
        options = dict(arguments)
        query, key, value = (options.pop(name) for name in _LAID)
        if not case.is_backward:
            return self.callee(query, key, value, **options)
        grad_out = options.pop("grad_out")
        if self.gradient is not None:
            named = {self.gradient.names[name]: x for name, x in options.items()}
            return self.gradient.function(query, key, value, grad_out, **named)[:3]
        assert self.library.backward is not None
        return self.library.backward(
            lambda *inputs: self.callee(*inputs, **options), (query, key, value), grad_out
        )


def _plain(case: Case, a: Array) -> Case:
    """Return a case whose `layout` fits the array `a`, which may be a mask."""
    across = case.layout in ("transposed", "every second") and a.ndim == 4
    return Case(case.feature, layout="fortran" if across else "")


def _same(arrays: list[Array], others: list[Array]) -> bool:
    return [a.tobytes() for a in arrays] == [b.tobytes() for b in others]
