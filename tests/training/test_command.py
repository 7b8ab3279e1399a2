"""Tests of the error messages of the commands of `training`."""

from typing import Any

import pytest

from qkv.learn import Interrupted
from training import command


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no steps"), "no steps"),
        (FileNotFoundError("there is no file x"), "there is no file x"),
        (Interrupted("stopped at step 3"), "stopped at step 3; --resume continues the run"),
    ],
)
def test_an_error_is_reported_in_one_line(error: BaseException, line: str) -> None:
    def main() -> Any:
        raise error

    with pytest.raises(SystemExit) as end:
        command(main)
    assert end.value.code == line


def test_a_fault_of_the_code_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        command(lambda: print(1 / 0))
