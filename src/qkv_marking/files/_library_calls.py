"""Record a student's calls of library functions, which may compute the answer for the student."""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from qkv_marking._errors import LIBRARY, MARKING

_SOFTMAX = frozenset({"softmax", "log_softmax", "logsumexp", "Softmax.forward"})
_ATTENTION = frozenset(
    {"scaled_dot_product_attention", "multi_head_attention_forward", "MultiheadAttention.forward"}
    | {"TransformerEncoderLayer.forward", "_native_multi_head_attention"}
)
_STARTS = frozenset({"system", "popen", "fork_exec", "posix_spawn", "execv", "execve", "spawnv"})
_NAMING = f"{LIBRARY[0]}_argument_errors.py"  # its wrappers name a public call in errors
_PASSED = frozenset({__file__, _NAMING})  # their own functions answer no task
_PRINTED = "Unread.write"  # print() calls this method while output is hidden
_SWITCHED_OFF = "sys.setprofile"
# These functions are saved here because a student's file may replace the attributes of `sys`.
_set, _get = sys.setprofile, sys.getprofile


class Watch:
    """A record of calls to functions of qkv, torch and scipy, and of started programs."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record the calls in a `with` block, and whether recording was switched off early."""
        spy = self._spy
        threading.setprofile(spy)
        _set(spy)
        try:
            yield
            if _get() is not spy:  # Python removes a profile function that raises a RecursionError
                self.called.add(_SWITCHED_OFF)
        finally:
            _set(None)

    def _spy(self, frame: FrameType, event: str, thing: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(LIBRARY):
                caller = _caller(frame)
                is_exempt = code.co_filename in _PASSED or code.co_qualname == _PRINTED
                if not is_exempt and _is_outside(caller, code.co_filename):
                    self.called.add(f"qkv.{code.co_qualname}")
            elif code.co_qualname in _SOFTMAX | _ATTENTION:
                self._note(str(frame.f_globals.get("__name__")), code.co_qualname)
        elif event == "c_call":
            name, module = thing.__name__, thing.__module__ or ""
            if name in _SOFTMAX | _ATTENTION:
                self._note(module or type(thing.__self__).__module__, name)
            elif name == "setprofile" and frame.f_code.co_filename != __file__:
                self.called.add(_SWITCHED_OFF)
            elif name in _STARTS and module in ("posix", "nt", "_posixsubprocess"):
                self.called.add(f"os.{name}")
            elif module.startswith("qkv.") and not frame.f_code.co_filename.startswith(LIBRARY):
                self.called.add(f"qkv.{name}")

    def _note(self, module: str, name: str) -> None:
        library = module.partition(".")[0]
        if library in ("torch", "scipy"):
            self.called.add(f"{library}.{name}")


def _caller(frame: FrameType) -> str:
    """Return the file that called a function, behind the wrappers which name it in errors."""
    back = frame.f_back
    while back is not None and back.f_code.co_filename == _NAMING:
        back = back.f_back
    return "" if back is None else back.f_code.co_filename


def _is_outside(caller: str, called: str) -> bool:
    """Is the caller outside qkv? A call from qkv_marking to qkv counts as a call from outside."""
    if caller.startswith(MARKING):
        return not called.startswith(MARKING)
    return not caller.startswith(LIBRARY)


def answers(called: Iterable[str], task: str) -> tuple[str, ...]:
    """Return the called functions that are not allowed in a task.

    A library's softmax is not allowed in the task `softmax`, but it is allowed in all other tasks.
    No task may call a library's attention, call another function of qkv, or start a program.

    >>> answers({"scipy.softmax", "qkv.softmax", "qkv.attention"}, "attention")
    ('qkv.attention',)
    """
    return tuple(
        sorted(
            name for name in called if task == "softmax" or name.partition(".")[2] not in _SOFTMAX
        )
    )
