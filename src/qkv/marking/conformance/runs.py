"""Run cases in the process of the function; if the process ends, start a new process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.arrays import Array
from qkv.marking.conformance.cases import Case
from qkv.marking.conformance.inputs import draw
from qkv.marking.conformance.judge import Answer, answer
from qkv.marking.files.wire import unpack
from qkv.marking.isolated import Ended, Isolated

_LOADING = 12  # loading may take this many times the limit of a call: it may import torch


@dataclass(frozen=True, eq=False)
class CaseResult:
    """The result of one case.

    Attributes:
        case: the call.
        status: "right", "wrong" or "refused".
        error: the error of the worst array; None if the results cannot be compared.
        bound: the allowed error.
        message: what happened, if `error` does not say enough.
        outputs: the arrays that the function returned.
        ended: whether the process has ended, by itself or at its time limit.
        like: another feature whose defect explains the case, or "".
    """

    case: Case
    status: str
    error: float | None = None
    bound: float | None = None
    message: str = ""
    outputs: tuple[Array, ...] = ()
    ended: bool = False
    like: str = ""

    @property
    def feature(self) -> str:
        """The feature that the case tests."""
        return self.case.feature

    def __str__(self) -> str:
        message = self.message
        if self.error is not None and self.bound is not None and not message:
            message = f"error {self.error:.2g}, bound {self.bound:.2g}"
        return f"{self.case.shown()}: {message}"


class Runs:
    """Runs one case after another.

    Args:
        start: starts a process.
    """

    def __init__(self, start: Callable[[], Isolated]) -> None:
        self._start = start
        self._processes = ExitStack()  # one at most
        self._process: Isolated | None = None

    def load(self) -> Mapping[str, Any]:
        """Load the function, and return its description.

        Raises:
            ValueError: it cannot be loaded.
        """
        try:
            return self._begun()[1]
        except Ended as end:
            self.close()
            raise ValueError(
                f"conform: loading the function ends its process: {end.shows}"
            ) from None

    def run(self, case: Case) -> CaseResult:
        """Run a case."""
        right = answer(case, draw(case))
        try:
            process, _ = self._begun()
            process.begin()
            reply = process.ask({"do": "call", "case": case.packed()})
        except Ended as end:
            self.close()
            verbs = {"endless-loop": "it does not come back: ", "exits": "it ends: "}
            message = verbs.get(end.key, "it crashes: ") + end.shows
            return CaseResult(case, "wrong", message=message, ended=True)
        if "error" in reply:
            status = "wrong" if reply["slip"] else "refused"
            return CaseResult(case, status, message=f"it raises {reply['error']}")
        return _judged(case, right, reply)

    def _begun(self) -> tuple[Isolated, Mapping[str, Any]]:
        if self._process is None:
            self._process = self._processes.enter_context(self._start())
            self._about = self._process.ask({"do": "load"}, _LOADING * self._process.seconds)
            if "error" in self._about:
                raise ValueError(f"conform: the function cannot be loaded: {self._about['error']}")
        return self._process, self._about

    def close(self) -> None:
        """End the process if it runs."""
        self._processes.close()
        self._process = None


def _judged(case: Case, right: Answer, reply: Mapping[str, Any]) -> CaseResult:
    """Compare the returned arrays with the right answer."""
    outputs = tuple(unpack(out, lambda number, thing: thing) for out in reply["outs"])
    if len(outputs) > len(right.arrays) and not {"weights", "lse"} & {*right.names}:
        outputs = outputs[:1]  # the case asked for no weights
    if len(outputs) != len(right.arrays):
        return CaseResult(case, "wrong", message=f"it returns {len(outputs)} arrays in place of"
                          f" {', '.join(right.names)}")  # fmt: skip
    for name, a, b in zip(right.names, right.arrays, outputs, strict=True):
        if a.shape != np.shape(b):
            message = f"{name} has shape {np.shape(b)} and must have {a.shape}"
            return CaseResult(case, "wrong", message=message, outputs=outputs)
    error, bound = right.worst(outputs)
    message = ""
    if reply["changed"]:
        message = f"it writes to {' and '.join(reply['changed'])}"
    elif not reply["same"]:
        message = "it gives different results for the same call"
    elif reply["overwritten"]:
        message = "a later call writes to the result of an earlier call"
    is_right = error <= bound and not message
    return CaseResult(case, "right" if is_right else "wrong", error, bound, message, outputs)
