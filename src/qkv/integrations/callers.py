"""Where in a model an attention runs: the modules around it, and what they were called with."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from typing import Any, NamedTuple

from qkv.arrays import Array
from qkv.integrations.record import Ran
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


def located(ran: Ran, query: Array, key: Array) -> Ran:
    """What ran, with the call and the part of the model that it was in.

    Raises:
        NotImplementedError: the texts here are not those that the part was given.
    """
    calls = running(ran.owner)
    if not calls:
        return ran
    texts, length = query.shape[0], query.shape[-2]
    # up to the part that has a config of its own, as towers have
    model = sys.modules["transformers"].PreTrainedModel
    last = next((n for n, x in enumerate(calls) if isinstance(x.module, model)), len(calls))
    inside = calls[: last + 1]
    for one in inside:
        given = one.vectors
        if given is None or len(given) == texts:
            continue
        if given.ndim > 2 or (texts, length) != (1, len(given)):
            raise NotImplementedError(
                f"record: {type(one.module).__name__} was given {len(given)} rows and "
                f"{type(ran.owner).__name__} attends within {texts} x {length} tokens: inputs that "
                "are cut or packed have no trace: record a single input, or leave this part out, "
                "record(module=another part)"
            )
    found = {"call": calls[0].kwargs, "part": inside[-1].module, "whole": calls[-1].module}
    if ran.mask is None and length == key.shape[-2]:  # a mask of the model's own making
        given = (one.given("attention_mask") for one in inside)
        padding = next(
            (x for x in given if x is not None and tuple(x.shape) == (texts, length)), None
        )
        if padding is not None:
            found |= {"start": 0, "padding": padding.detach().bool().numpy()}
    return replace(ran, mask=calls[-1].kwargs, **found)
