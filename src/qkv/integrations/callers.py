"""Which modules of torch run at this moment, and what they were called with."""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

from qkv.integrations.tensors import torch_module


class Running(NamedTuple):
    """One module that runs: its `kwargs` are a dict that no other call of it shares."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def given(self, name: str) -> Any:
        """The argument of this name, None where it was left out."""
        names = inspect.signature(self.module.forward).parameters
        return dict(zip(names, self.args, strict=False)).get(name, self.kwargs.get(name))

    @property
    def vectors(self) -> Any:
        """The first tensor of numbers it was called with, None if there is none."""
        is_tensor = torch_module().is_tensor
        named = [*(("", x) for x in self.args), *self.kwargs.items()]
        found = (x for name, x in named if is_tensor(x) and "mask" not in name)
        return next((x for x in found if x.is_floating_point() and x.ndim > 1), None)


def running(owner: Any) -> list[Running]:
    """The modules that run, from `owner` outward to the whole model; [] where it does not run.

    Read from the frames of Python: torch keeps no such list, and its hooks do not run in what
    `torch.compile` has made.
    """
    code = torch_module().nn.Module._call_impl.__code__
    frame: Any = sys._getframe()
    found: list[Running] = []
    while frame is not None:
        if frame.f_code is code:
            names = frame.f_locals
            if found or names["self"] is owner:
                found.append(Running(names["self"], names["args"], names["kwargs"]))
        frame = frame.f_back
    return found


def part_of(calls: list[Running]) -> list[Running]:
    """Of modules that run, those up to the part that has a config of its own, as towers have."""
    model = sys.modules["transformers"].PreTrainedModel
    last = next((n for n, x in enumerate(calls) if isinstance(x.module, model)), len(calls))
    return calls[: last + 1]
