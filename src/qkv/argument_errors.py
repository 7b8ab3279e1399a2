"""Errors about arguments: a helper names the argument, and the public call adds its own name.

    raise value_error(f"window is {window}: write (left, right)")  # in a helper

    @public_call("attention")  # the user reads "attention: window is 3: write (left, right)"

Only errors that this module makes get a name. If one public call uses another, the error has the
name of the call that the user made.
"""

import functools
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Error = TypeVar("Error", bound=Exception)

_TEXT = "_qkv_text"  # The attribute with an error's message, while its name may still change.


def invalid(kind: Callable[[str], Error], text: str, call: str = "") -> Error:
    """Return an error about an argument, which gets the name of the public call.

    A function that is no `public_call` gives the name as `call`.
    """
    error = kind(f"{call}: {text}" if call else text)
    if not call:
        setattr(error, _TEXT, text)
    return error


def value_error(text: str, call: str = "") -> ValueError:
    """Return `invalid(ValueError, text)`."""
    return invalid(ValueError, text, call)


def type_error(text: str, call: str = "") -> TypeError:
    """Return `invalid(TypeError, text)`."""
    return invalid(TypeError, text, call)


def message(error: BaseException) -> str:
    """Return an error's message without the name of the public call that qkv itself made."""
    return str(getattr(error, _TEXT, error))


def add_name(error: BaseException, name: str) -> None:
    """Put `name` before the message of an error of `invalid`; other errors stay as they are.

    Call `add_name` in the `except` clause of the public call.
    """
    text, trace = getattr(error, _TEXT, None), error.__traceback__
    if text is None or trace is None:
        return
    error.args = (f"{name}: {text}",)
    if not _is_ours(trace.tb_frame.f_back):  # the user made this call: keep its name
        delattr(error, _TEXT)


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether the code of a frame belongs to qkv."""
    module = "" if frame is None else frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in ("qkv", "qkv_marking")


class public_call:
    """Name a public call in its errors: as a decorator, or as a context around its work.

    >>> @public_call("predict")
    ... def predict(top_k):
    ...     raise value_error(f"top_k is {top_k}: it must be 1 or more")
    >>> predict(0)
    Traceback (most recent call last):
    ValueError: predict: top_k is 0: it must be 1 or more
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return `function` with the name in its errors."""
        name = self.name

        @functools.wraps(function)
        def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            try:
                return function(*args, **options)
            except Exception as error:
                add_name(error, name)
                raise

        return call

    def __enter__(self) -> None:
        """Begin the work of the call."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Add the name to an error of the work."""
        if error is not None:
            add_name(error, self.name)


def public_method(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Name the class in the errors of a method, or of a class method."""

    @functools.wraps(method)
    def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            return method(*args, **options)
        except Exception as error:
            owner = args[0]
            add_name(error, (owner if isinstance(owner, type) else type(owner)).__name__)
            raise

    return call
