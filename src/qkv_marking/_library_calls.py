"""Record a student's calls of library functions, which may compute the answer for the student."""

import functools
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from qkv_marking._errors import LIBRARY, MARKING
from qkv_marking._mistake import look_up
from qkv_marking._result import CheckResult

_SOFTMAX = frozenset({"softmax", "log_softmax", "logsumexp", "Softmax.forward"})
_ANSWERS = frozenset(
    {"scaled_dot_product_attention", "multi_head_attention_forward", "MultiheadAttention.forward"}
    | {"TransformerEncoderLayer.forward", "_native_multi_head_attention"}
    | {"cross_entropy", "CrossEntropyLoss.forward"}
)
# Libraries with functions for many purposes: only these functions are named.
_GENERAL = frozenset({"torch", "scipy", "jax", "tensorflow", "keras", "mlx", "cupy"})
# Libraries that compute a whole answer: each function that a student calls is named.
_WHOLE = frozenset(
    {"onnxruntime", "transformers", "sklearn", "openvino", "xformers", "flash_attn"}
    | {"multiprocessing", "concurrent"}
)
_OF_THREADS = frozenset({"concurrent.futures.thread", "concurrent.futures._base"})
_STARTS = frozenset(
    {"system", "popen", "fork", "forkpty", "fork_exec", "posix_spawn", "posix_spawnp", "execv"}
    | {"execve", "spawnv", "spawnve"}
)
_NAMING = f"{LIBRARY[0]}_argument_errors.py"  # its wrappers name a public call in errors
_PASSED = frozenset({__file__, _NAMING})  # their own functions answer no task
_PRINTED = "Unread.write"  # print() calls this method while output is hidden
_SWITCHED_OFF = "sys.setprofile"
# These functions are saved here because a student's file may replace the attributes of `sys`.
_set, _get = sys.setprofile, sys.getprofile
_set_in_threads, _get_in_threads = threading.setprofile, threading.getprofile


class Watch:
    """A record of calls to functions of qkv and other libraries, and of started processes."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record the calls in a `with` block, and whether recording was switched off early."""
        spy, before = self._spy, (_get_in_threads(), _get())
        collects = gc.isenabled()
        gc.disable()  # finalizers of other objects would count as calls of the function
        _set_in_threads(spy)
        _set(spy)
        try:
            yield
            if _get() is not spy:  # Python removes a profile function that raises a RecursionError
                self.called.add(_SWITCHED_OFF)
        finally:
            _set_in_threads(before[0])
            _set(before[1])
            if collects:
                gc.enable()

    def watch_new_threads(self) -> None:
        """Record the calls in all threads that start from now on."""
        _set_in_threads(self._spy)

    def wrap(self, thing: Any) -> Any:
        """Return a function, or a subclass of a class, whose calls are recorded."""
        if not inspect.isclass(thing):
            return self._record_calls_of(thing)
        methods = {"__init__", "__call__"} & {name for kind in thing.__mro__ for name in vars(kind)}
        members = {name: self._record_calls_of(getattr(thing, name)) for name in methods}
        try:
            kind: Any = type(thing)
            return kind(thing.__name__, (thing,), members | {"__doc__": thing.__doc__})
        except Exception:  # some classes cannot have subclasses
            return thing

    def _record_calls_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def call_and_record(*arguments: Any, **named: Any) -> Any:
            with self.on():
                return function(*arguments, **named)

        return call_and_record

    def _spy(self, frame: FrameType, event: str, thing: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(LIBRARY):
                caller = _caller(frame)
                is_exempt = code.co_filename in _PASSED or code.co_qualname == _PRINTED
                # a function that calls gc.collect() may close the marker's generators
                closes = code.co_flags & inspect.CO_GENERATOR and code.co_filename.startswith(
                    MARKING
                )
                is_exempt = is_exempt or bool(closes)
                if not is_exempt and _is_outside(caller, code.co_filename):
                    self.called.add(f"qkv.{code.co_qualname}")
            else:
                self._note_library(frame)
        elif event == "c_call":
            name, module = thing.__name__, thing.__module__ or ""
            if name in _SOFTMAX | _ANSWERS:
                self._note(module or type(thing.__self__).__module__, name)
            elif name == "setprofile" and frame.f_code.co_filename != __file__:
                self.called.add(_SWITCHED_OFF)
            elif name in _STARTS and module in ("posix", "nt", "_posixsubprocess"):
                self.called.add(f"os.{name}")
            elif module.startswith("qkv.") and not frame.f_code.co_filename.startswith(LIBRARY):
                self.called.add(f"qkv.{name}")

    def _note(self, module: str, name: str) -> None:
        library = module.partition(".")[0]
        if library in _GENERAL:
            self.called.add(f"{library}.{name}")

    def _note_library(self, frame: FrameType) -> None:
        """Note a Python function of another library."""
        module, name = _module_of(frame), frame.f_code.co_qualname
        library = module.partition(".")[0]
        if name in _SOFTMAX | _ANSWERS and library not in _WHOLE:
            self._note(module, name)
        elif library in _WHOLE and name != "<module>" and module not in _OF_THREADS:
            caller = _module_of(frame.f_back).partition(".")[0]
            # libraries that are being imported call their own functions
            if caller not in _WHOLE and caller not in sys.stdlib_module_names:
                self.called.add(f"{library}.{name}")


def _module_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def _caller(frame: FrameType) -> str:
    """Return the file that called a function; skip wrappers that only add the name to errors."""
    back = frame.f_back
    while back is not None and back.f_code.co_filename == _NAMING:
        back = back.f_back
    return "" if back is None else back.f_code.co_filename


def _is_outside(caller: str, called: str) -> bool:
    """Return whether the caller is outside qkv; qkv_marking counts as outside."""
    if caller.startswith(MARKING):
        return not called.startswith(MARKING)
    return not caller.startswith(LIBRARY)


def answers(called: Iterable[str], task: str) -> tuple[str, ...]:
    """Return the called functions that are not allowed in a task.

    A library's softmax is not allowed in the task `softmax`, but it is allowed in all other tasks.
    No solution may call a library's attention or loss, call any other function of qkv, or start a
    process.

    >>> answers({"scipy.softmax", "qkv.softmax", "qkv.attention"}, "attention")
    ('qkv.attention',)
    """
    return tuple(
        sorted(
            name for name in called if task == "softmax" or name.partition(".")[2] not in _SOFTMAX
        )
    )


def withhold_points(result: CheckResult, helped_by: tuple[str, ...]) -> CheckResult:
    """Return the verdict; if a library function computed the answer, remove all points."""
    if not helped_by:
        return result
    shows = f"it calls {', '.join(helped_by)}"
    mistake = look_up("answered-by-library", shows, it=result.task or "the task")
    says = f"{mistake.says}."
    about = [says, f"It shows: {shows}.", f"Correction: {mistake.hint[-1]}"]
    return replace(
        result,
        message="\n".join([*about, result.message]),
        mistakes=(mistake.key, *result.mistakes),
        says={mistake.key: says, **result.says},
        points=0,
        hint=mistake.hint,
        helped_by=helped_by,
        reason="A function of a library computed the answer.",
    )
