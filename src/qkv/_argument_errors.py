"""Errors about arguments: a helper names the argument, and the public call adds its own name.

    raise value_error(f"window is {window}; pass (left, right)")  # in a helper

    @public_call("attention")  # the user reads "attention: window is 3; pass (left, right)"

Only errors that this module makes get a name. If a public call uses another public call, the error
has the name of the user's call.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Item = TypeVar("Item")
Error = TypeVar("Error", bound=Exception)

_TEXT = "_qkv_text"  # Holds an error's message while the name before the message may change.


def mark_unnamed(error: Error) -> Error:
    """Let the public call add its name to the message of an error about an argument."""
    setattr(error, _TEXT, error.args[0])
    return error


def invalid(kind: Callable[[str], Error], text: str, call: str = "") -> Error:
    """Return an error about an argument; the public call adds its own name to the message.

    A function that is not a `public_call` passes the name as `call`.
    """
    return kind(f"{call}: {text}") if call else mark_unnamed(kind(text))


def value_error(text: str, call: str = "") -> ValueError:
    """Return `invalid(ValueError, text)`."""
    return invalid(ValueError, text, call)


def type_error(text: str, call: str = "") -> TypeError:
    """Return `invalid(TypeError, text)`."""
    return invalid(TypeError, text, call)


def message(error: BaseException) -> str:
    """Return an error's message; omit the name of a public call that qkv, not the user, made."""
    text = getattr(error, _TEXT, None)
    if text is None and isinstance(error, KeyError) and error.args:
        text = error.args[0]  # `str` would add quotes
    return str(error if text is None else text)


def add_name(error: BaseException, name: str) -> None:
    """Put `name` before the message of an error from `invalid`; other errors stay as they are.

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
    """Name a public call in its errors; use it as a decorator or as a context manager.

    >>> @public_call("predict")
    ... def predict(top_k):
    ...     raise value_error(f"top_k is {top_k}: it must be 1 or more")
    >>> predict(0)
    Traceback (most recent call last):
    ValueError: predict: top_k is 0: it must be 1 or more
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, function: Function) -> Function:
        """Wrap `function`, so that its errors begin with the name."""
        return _naming(function, lambda args: self.name)

    def __enter__(self) -> None:
        """Begin the work of the call."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Add the name to an error that the work raises."""
        if error is not None:
            add_name(error, self.name)


def public_method(method: Function) -> Function:
    """Name the class in the errors of a method or class method."""
    return _naming(method, _class_name)


def public_items(name: str, items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of a public call's result; errors raised while iterating name the call."""
    with public_call(name):
        yield from items


def _class_name(args: Sequence[Any]) -> str:
    owner = args[0]
    return (owner if isinstance(owner, type) else type(owner)).__name__


def _naming(function: Function, name_of: Callable[[Sequence[Any]], str]) -> Function:
    """Return `function`; its errors get a name that depends on the arguments."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            add_name(error, name_of(args))
            raise

    return cast(Function, call)
