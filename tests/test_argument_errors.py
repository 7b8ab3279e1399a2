"""Which errors get the name of a public call, and that they get it once."""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qkv
from qkv._argument_errors import invalid, message, public_call


@public_call("outer")
def outer(work: Callable[[], Any]) -> Any:
    """A public call."""
    return work()


@public_call("inner")
def inner() -> None:
    """A public call that always fails."""
    raise invalid(KeyError, "no such name")


def of_qkv(source: str, **names: Any) -> Callable[[], Any]:
    """Return a function of qkv's own code."""
    space: dict[str, Any] = {"__name__": "qkv.example", **names}
    exec(source, space)
    work: Callable[[], Any] = space["work"]
    return work


@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, IndexError, FileNotFoundError])
def test_the_public_call_adds_its_name(kind: type[Exception]) -> None:
    def work() -> None:
        raise invalid(kind, "top_k is 0")

    with pytest.raises(kind) as caught:
        outer(work)
    assert type(caught.value) is kind
    assert caught.value.args == ("outer: top_k is 0",)
    assert vars(caught.value) == {}
    # The traceback still ends at the line that raised the error.
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "work"


def test_a_context_adds_the_name_too() -> None:
    with pytest.raises(ValueError, match=r"^block: x is 0$"), public_call("block"):
        raise invalid(ValueError, "x is 0")


def test_the_user_reads_the_name_of_the_call_that_the_user_made() -> None:
    with pytest.raises(KeyError) as caught:
        outer(of_qkv("def work(): inner()", inner=inner))
    assert caught.value.args == ("outer: no such name",)


def test_an_error_of_a_users_function_keeps_its_name() -> None:
    with pytest.raises(KeyError) as caught:
        outer(lambda: inner())
    assert caught.value.args == ("inner: no such name",)


def test_qkv_reads_the_message_without_a_name() -> None:
    with pytest.raises(KeyError) as caught:
        of_qkv("def work(): inner()", inner=inner)()
    assert caught.value.args == ("inner: no such name",)
    assert message(caught.value) == "no such name"
    assert message(ValueError("x: y")) == "x: y"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt("x"), SystemExit("x")])
def test_other_errors_stay_as_they_are(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        outer(work)
    assert caught.value is error
    assert error.args == ("x",)


def test_numpys_errors_stay_as_they_are() -> None:
    with pytest.raises(ValueError, match=r"^operands could not") as caught:
        outer(lambda: np.ones(2) + np.ones(3))
    assert "outer" not in str(caught.value)


def test_attention_keeps_its_name_inside_a_function_of_an_edit() -> None:
    def edit(x: Any, at: Any) -> Any:
        return qkv.attention(x, x, x, scale=np.inf)

    model = qkv.load("random")
    with pytest.raises(ValueError, match=r"^attention: scale is inf"):
        model.trace("The cat sat.", edit={("z", 0): edit})
